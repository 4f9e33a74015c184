//! `config check` and `config show`.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::output::{self, Format};
use super::{Error, SourceArguments};
use crate::backend::postgres;
use crate::config::Provenance;

/// See the module.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check the configuration: exit code 0 if it is valid, 2 if not
    Check(SourceArguments),
    /// Show the values in force and where each came from, secrets hidden
    Show {
        #[command(flatten)]
        sources: SourceArguments,
        #[command(flatten)]
        format: Format,
    },
}

pub(super) fn run(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Check(sources) => {
            let (config, _, warnings) = sources.load()?;
            if let Some(url) = &config.persistence.postgres.url {
                postgres::check_url(url)?;
            }
            for warning in warnings {
                output::say(&format!("warning: {warning}"));
            }
            Ok(output::print("the configuration is valid")?)
        }
        Command::Show { sources, format } => {
            let (_, provenance, _) = sources.load()?;
            if format.json { Ok(output::print_json(&as_json(&provenance))?) } else { Ok(output::print(&as_text(&provenance))?) }
        }
    }
}

fn as_json(provenance: &Provenance) -> Value {
    let settings = provenance.settings.iter();
    let entry = |value: &Value, origin: String| json!({ "value": value, "origin": origin });
    Value::Object(settings.map(|s| (s.key.name.to_owned(), entry(&s.value, s.origin.to_string()))).collect::<Map<_, _>>())
}

/// Values as the file would have them.
fn as_text(provenance: &Provenance) -> String {
    let mut table = output::table(["KEY", "VALUE", "ORIGIN"]);
    for setting in &provenance.settings {
        let value = if setting.value.is_null() { "-".to_owned() } else { setting.value.to_string() };
        table.add_row([setting.key.name.to_owned(), value, setting.origin.to_string()]);
    }
    output::text(&table)
}

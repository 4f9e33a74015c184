//! `export`: takes the state out of its store, for `import` into another one.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::manager::{self, Address, Managers};
use super::{Error, SourceArguments, logging, output, signals};
use crate::rpc::StepDownRequest;
use crate::transfer::{self, Destination, Export};

/// The pause between asking one leader to step down and looking for the next.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// So many questions that nobody answers pass between two lines that say so.
const SAY_EVERY: u32 = 20;

/// Of `export`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Where the document goes: a file that is not there yet, or - for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    to: PathBuf,
    /// Read only: seal nothing, and make another cluster of it, which executors of this one never obey
    #[arg(long)]
    copy: bool,
    /// Where managers of this store serve gRPC, as http://host:port or host:port: separated by commas or repeated; whoever leads is
    /// asked to step down until the export has its turn
    #[arg(long = "manager", value_name = "URL", value_delimiter = ',', conflicts_with = "copy")]
    managers: Vec<Address>,
    #[command(flatten)]
    sources: SourceArguments,
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let shutdown = signals::install().map_err(|source| Error::Process { what: "install the handlers of signals", source })?;
    let Arguments { to, copy, managers, sources } = arguments;
    let (config, _, warnings) = sources.load()?;
    logging::start(config.log.format, &config.log.filter);
    for warning in warnings {
        warn!("{warning}");
    }
    let to = if to.as_os_str() == "-" { Destination::Stdout } else { Destination::File(to) };
    let (opened, elected) = (CancellationToken::new(), CancellationToken::new());
    let asking = elected.run_until_cancelled(async {
        opened.cancelled().await;
        ask_to_step_down(Managers::of(managers)).await;
    });
    let export = Export { to: to.clone(), copy, opened: opened.clone(), elected: elected.clone() };
    let exporting = async {
        let exported = transfer::export(&config, export, &shutdown).await;
        elected.cancel();
        exported
    };
    let (exported, _) = tokio::join!(exporting, asking);
    match exported {
        Ok(it) => {
            let what = format!("{} shards, {} executors, term {}", it.number_of_shards, it.executors, it.term);
            let then = if copy { "nothing was sealed" } else { "the store is sealed: import the document into another one" };
            let cluster = if copy { "a copy, as cluster" } else { "cluster" };
            output::say(&format!("{cluster} {} ({what}; checksum {}) is in {to}; {then}", it.cluster_id, it.checksum));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            output::say(&format!("error: {}", output::with_causes(&error)));
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

/// Asks one leader after the other, for ever. Nobody answers between two of them.
async fn ask_to_step_down(managers: Managers) {
    if managers.is_empty() {
        return;
    }
    let request =
        StepDownRequest { asked_by: "shard-manager export".to_owned(), reason: "the state is to be exported".to_owned() };
    let mut unanswered = 0;
    loop {
        match managers.ask(async |channel| manager::admin(channel).step_down(request.clone()).await).await {
            Ok(answer) => {
                unanswered = 0;
                info!("{} was asked to step down", answer.leader);
            }
            Err(error) => {
                if unanswered % SAY_EVERY == 0 {
                    info!("waiting: {error}");
                }
                unanswered += 1;
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

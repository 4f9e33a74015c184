//! `step-down`: lets another replica lead.

use std::process::ExitCode;

use serde::Serialize;

use super::Error;
use super::asker::asked_by;
use super::manager::{self, Managers};
use super::output::{self, Format};
use crate::rpc::StepDownRequest;

/// Of `step-down`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Why, for the leader's log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    managers: Managers,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Done<'a> {
    stepping_down: &'a str,
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let request = StepDownRequest { asked_by: asked_by(), reason: arguments.reason };
    let answer = arguments.managers.ask(async |channel| manager::admin(channel).step_down(request.clone()).await).await?;
    let printed = if arguments.format.json {
        output::print_json(&Done { stepping_down: &answer.leader })
    } else {
        output::print(&format!("{} steps down, and campaigns again behind those who wait already", answer.leader))
    };
    Ok(printed?)
}

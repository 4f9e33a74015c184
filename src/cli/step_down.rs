//! `step-down`: lets another replica lead.

use std::process::ExitCode;

use serde::Serialize;

use super::Error;
use super::asker::{Asking, asked_by};
use super::manager;
use super::output;
use crate::rpc::StepDownRequest;

#[derive(Debug, Serialize)]
struct Done<'a> {
    stepping_down: &'a str,
}

pub(super) async fn run(asking: Asking) -> Result<ExitCode, Error> {
    let request = StepDownRequest { asked_by: asked_by(), reason: asking.reason };
    let answer = asking.managers.change(async |channel| manager::admin(channel).step_down(request.clone()).await).await?;
    let printed = if asking.format.json {
        output::print_json(&Done { stepping_down: &answer.leader })
    } else {
        output::print(&format!("{} steps down, and campaigns again behind those who wait already", answer.leader))
    };
    Ok(printed?)
}

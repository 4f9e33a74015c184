//! What a command makes of an answer in any bytes, without asking anybody. Compiled for tests and under cargo-fuzz alone.

use prost::{DecodeError, Message};
use serde::Serialize;

use super::executors::{self, Executor};
use super::explain::{self, Explanation};
use super::plan::{self, Plan};
use super::status::{self, Status};
use super::table::{self, Table};
use super::{Error, output};
use crate::rpc;

/// An answer that commands print.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Table,
    Plan,
    Explanation,
    Status,
    Executors,
}

impl Answer {
    pub(crate) const ALL: [Answer; 5] = [Answer::Table, Answer::Plan, Answer::Explanation, Answer::Status, Answer::Executors];
}

/// An answer as it is printed.
#[derive(Debug)]
pub(crate) struct Printed {
    /// For people; several where arguments decide how much is shown.
    pub(crate) texts: Vec<String>,
    /// For programs.
    pub(crate) json: String,
}

/// Why an answer is not printed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// They are no such message: the command never sees them.
    Undecodable,
    /// What the command says.
    Nonsense(String),
}

impl From<DecodeError> for Refused {
    fn from(_: DecodeError) -> Refused {
        Refused::Undecodable
    }
}

/// Any other error has nothing to do with the answer.
impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        match error {
            Error::Nonsense(_) => Refused::Nonsense(error.to_string()),
            other => panic!("not of this answer: {other}"),
        }
    }
}

/// As the command prints it at that time.
pub(crate) fn printed(answer: Answer, bytes: &[u8], unix_ms: u64) -> Result<Printed, Refused> {
    match answer {
        Answer::Table => {
            let table = Table::read(rpc::RoutingTable::decode(bytes)?)?;
            both(&table, [table::as_text(&table)])
        }
        Answer::Plan => {
            let plan = Plan::read(rpc::PlanChangeResponse::decode(bytes)?)?;
            both(&plan, [plan::SAMPLE, usize::MAX].map(|most| plan::as_text(&plan, most)))
        }
        Answer::Explanation => {
            let explanation = Explanation::from(rpc::ExplainShardResponse::decode(bytes)?);
            both(&explanation, [explain::as_text(&explanation, unix_ms)])
        }
        Answer::Status => {
            let status = Status::from(rpc::GetStatusResponse::decode(bytes)?);
            both(&status, [status::as_text(&status, unix_ms / 1000)])
        }
        Answer::Executors => {
            let executors = rpc::ListExecutorsResponse::decode(bytes)?.executors;
            let executors: Vec<Executor> = executors.into_iter().map(Executor::from).collect();
            both(&executors, [executors::as_text(&executors)])
        }
    }
}

fn both<const N: usize>(value: &impl Serialize, texts: [String; N]) -> Result<Printed, Refused> {
    let json = output::json(value).map_err(Error::from)?;
    Ok(Printed { texts: texts.to_vec(), json })
}

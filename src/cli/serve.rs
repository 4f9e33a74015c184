//! `serve`: signals, configuration, logging, the manager, its exit code.

use std::process::ExitCode;

use super::{Error, SourceArguments, logging, output, signals};
use crate::run::{self, Deployment};

pub(super) async fn run(sources: SourceArguments) -> Result<ExitCode, Error> {
    let shutdown = signals::install().map_err(|source| Error::Process { what: "install the handlers of signals", source })?;
    let (config, _, warnings) = sources.load()?;
    logging::start(config.log.format, &config.log.filter);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    match run::run(config, Deployment::Standalone { shutdown }).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!("{}", output::with_causes(&error));
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

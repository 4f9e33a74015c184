//! `import`: puts what `export` wrote into another store.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Error, SourceArguments, logging, output, signals};
use crate::config::Origin;
use crate::transfer::{self, Import};

/// No document is longer, in bytes: the most shards, at their longest, are an eighth of it.
const MAX_DOCUMENT_LEN: u64 = 1 << 30;

/// Of `import`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The document that `export` wrote, or - for standard input
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    #[command(flatten)]
    sources: SourceArguments,
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let Arguments { from, sources } = arguments;
    let (config, provenance, warnings) = sources.load()?;
    logging::start(config.log.format, &config.log.filter);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let document = match read(&from) {
        Ok(document) => document,
        Err(error) => {
            output::say(&format!("error: the document {} cannot be read: {error}", from.display()));
            return Ok(ExitCode::from(2));
        }
    };
    // Not before: a signal ends the process as long as it only waits for a document.
    let shutdown = signals::install().map_err(|source| Error::Process { what: "install the handlers of signals", source })?;
    let set = !matches!(provenance.origin("number_of_shards"), None | Some(Origin::Default));
    let import = Import { document, configured_shards: set.then_some(config.number_of_shards) };
    match transfer::import(&config, import, &shutdown).await {
        Ok(it) => {
            let what = format!("{} shards, {} executors, term {}", it.number_of_shards, it.executors, it.term);
            let how = if it.was_there { "was in the store already" } else { "is in the store" };
            let then = format!("start managers on it, with number_of_shards = {}", it.number_of_shards);
            Ok(output::print(&format!("cluster {} ({what}) {how}; {then}", it.cluster_id))?)
        }
        Err(error) => {
            output::say(&format!("error: {}", output::with_causes(&error)));
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

fn read(from: &Path) -> io::Result<Vec<u8>> {
    let mut document = Vec::new();
    let read = if from.as_os_str() == "-" {
        io::stdin().lock().take(MAX_DOCUMENT_LEN + 1).read_to_end(&mut document)
    } else {
        File::open(from)?.take(MAX_DOCUMENT_LEN + 1).read_to_end(&mut document)
    };
    match read? as u64 {
        0..=MAX_DOCUMENT_LEN => Ok(document),
        _ => Err(io::Error::other(format!("it is longer than {MAX_DOCUMENT_LEN} bytes, which no document is"))),
    }
}

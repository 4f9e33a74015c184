//! Logs on standard error, as text or JSON.

use tracing_subscriber::EnvFilter;

use super::output;
use crate::config::LogFormat;

/// Starts logging for the rest of the process. A filter that does not parse is replaced by `info`, and said so; a second start does
/// nothing.
pub(super) fn start(format: LogFormat, filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|reason| {
        output::say(&format!("warning: the log filter {filter:?} is refused, info is taken instead: {reason}"));
        EnvFilter::new("info")
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(output::Stderr::default);
    let started = match format {
        LogFormat::Text => builder.with_ansi(output::takes_colours()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Err(reason) = started {
        tracing::debug!(%reason, "logging was started before");
    }
}

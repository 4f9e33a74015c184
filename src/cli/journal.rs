//! To be written.

/// None yet.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Does nothing yet.
pub async fn run(_arguments: Arguments) -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}

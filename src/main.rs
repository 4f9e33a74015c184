//! The binary: arguments, a runtime, the command, its exit code.

use std::process::ExitCode;

use clap::Parser;
use shard_manager::cli;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cli::no_runtime(&error),
    };
    let code = runtime.block_on(cli::run(arguments));
    // Whatever had to end in order has; a look-up of a name that still hangs must not keep the process.
    runtime.shutdown_background();
    code
}

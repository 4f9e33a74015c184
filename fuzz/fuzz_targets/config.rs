//! Configuration: a file, environment variables and `--set`, each from a third of the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shard_manager::config::{Config, Sources};

fuzz_target!(|data: &str| {
    let mut parts = data.splitn(3, '\0');
    let (file, env, sets) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let path = std::env::temp_dir().join(format!("shard-manager-fuzz-{}.toml", std::process::id()));
    std::fs::write(&path, file).expect("a file can be written");
    let pair = |line: &str| line.split_once('=').map(|(key, value)| (format!("SHARD_MANAGER__{key}"), value.to_owned()));
    let sources = Sources {
        file: Some(path),
        env: env.lines().filter_map(pair).collect(),
        sets: sets.lines().map(str::to_owned).collect(),
    };
    let _ = sources.warnings();
    match Config::load(&sources) {
        Ok((config, _)) => {
            let _ = config.warnings();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

//! Layers of the configuration: a file, variables and arguments, with a zero byte between two. What comes before the first one is the
//! file. A variable is `NAME=value`, without the prefix of ours where the text begins with a blank; an argument begins with `-`.

use super::scratch::Scratch;
use crate::config::keys::{Key, VARIABLE_PREFIX};
use crate::config::{Config, Origin, Problem, Sources};

/// Part of each secret. Where it shows, a secret was shown.
const SECRET: &str = "hunter2";

pub fn run(data: &[u8]) {
    // Whoever writes the secret into the name of a key shows it himself.
    if data.windows(SECRET.len()).any(|window| window.eq_ignore_ascii_case(SECRET.as_bytes())) {
        return;
    }
    let mut parts = data.split(|byte| *byte == 0);
    let file = parts.next().unwrap_or_default();
    let scratch = Scratch::new(file);
    let mut sources = Sources { file: Some(scratch.path().to_owned()), ..Sources::default() };
    for part in parts.map(String::from_utf8_lossy) {
        if let Some(argument) = part.strip_prefix('-') {
            sources.sets.push(with_secret(argument));
        } else if let Some((name, value)) = part.split_once('=') {
            let name = name.strip_prefix(' ').map_or_else(|| format!("{VARIABLE_PREFIX}{name}"), str::to_owned);
            let key = name.trim_start_matches(VARIABLE_PREFIX).replace("__", ".").to_lowercase();
            sources.env.push((name, with_secret_in(&key, value)));
        }
    }
    let warnings = sources.warnings().join("\n");
    assert!(!warnings.contains(SECRET), "{warnings}");
    match Config::load(&sources) {
        Ok((config, provenance)) => {
            config.check().expect("what was loaded was checked");
            let shown = format!("{config:?} {:?} {:?}", provenance.settings, config.warnings());
            assert!(!shown.contains(SECRET), "{shown}");
            // Every key that the file gives is in force, or something else has overridden it.
            for key in keys_of(file) {
                match provenance.origin(&key) {
                    Some(Origin::File(_) | Origin::Environment(_) | Origin::Set) => {}
                    origin => panic!("{key} stands in the file, and in force is what comes from {origin:?}"),
                }
            }
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            let text = error.to_string();
            assert!(!text.contains(SECRET), "{text}");
            for problem in &error.problems {
                match problem {
                    Problem::Internal(what) => panic!("not a mistake of whoever configures: {what}"),
                    Problem::Value { key, .. } => assert!(Key::find(key).is_some(), "{key} is refused, and is none"),
                    Problem::Rule(broken) => {
                        assert!(broken.keys.iter().all(|key| Key::find(key).is_some()) && !broken.keys.is_empty())
                    }
                    _ => {}
                }
            }
        }
    }
}

/// An argument as it is, and where it sets a password one that has the secret in it.
fn with_secret(argument: &str) -> String {
    match argument.split_once('=') {
        Some((key, value)) => format!("{key}={}", with_secret_in(key.trim(), value)),
        None => argument.to_owned(),
    }
}

fn with_secret_in(key: &str, value: &str) -> String {
    match key {
        "persistence.postgres.password" | "persistence.etcd.password" => format!("{value}{SECRET}"),
        "persistence.postgres.url" => format!("postgres://me:{SECRET}{value}@db/x"),
        _ => value.to_owned(),
    }
}

/// The dotted names of all values in the file; of a name with a dot in it, that name in quotes.
fn keys_of(file: &[u8]) -> Vec<String> {
    fn walk(prefix: &str, table: &toml::Table, keys: &mut Vec<String>) {
        for (name, value) in table {
            let name = if name.contains('.') { format!("{name:?}") } else { name.clone() };
            let path = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            match value {
                toml::Value::Table(inner) => walk(&path, inner, keys),
                _ => keys.push(path),
            }
        }
    }
    let mut keys = Vec::new();
    if let Some(table) = std::str::from_utf8(file).ok().and_then(|text| text.parse::<toml::Table>().ok()) {
        walk("", &table, &mut keys);
    }
    keys
}

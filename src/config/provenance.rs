//! Where the values in force came from.

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;

use super::Config;
use super::keys::{KEYS, Key};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// Nobody set it; its default was computed like this.
    Derived(&'static str),
    /// The file.
    File(PathBuf),
    /// This environment variable.
    Environment(String),
    /// `--set` on the command line.
    Set,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Derived(formula) => write!(f, "default {formula}"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Environment(variable) => write!(f, "environment variable {variable}"),
            Origin::Set => f.write_str("--set"),
        }
    }
}

/// One value in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its key.
    pub key: &'static Key,
    /// The value; passwords hidden, `Null` where there is none.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

/// Every value in force, in the order of [`KEYS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// One entry for each key.
    pub settings: Vec<Setting>,
}

impl Provenance {
    /// Reads the values off `config` itself, so that what is shown is what is in force.
    pub(super) fn new(config: &Config, origin: impl Fn(&'static Key) -> Origin) -> Result<Provenance, serde_json::Error> {
        let all = serde_json::to_value(config)?;
        let value = |key: &Key| all.pointer(&format!("/{}", key.name.replace('.', "/"))).cloned().unwrap_or(Value::Null);
        let settings = KEYS.iter().map(|key| Setting { key, value: value(key), origin: origin(key) }).collect();
        Ok(Provenance { settings })
    }

    /// Where the value of this key came from; `None` if there is no such key.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.settings.iter().find(|setting| setting.key.name == name).map(|setting| &setting.origin)
    }
}

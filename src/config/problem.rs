//! What can be wrong with a configuration, said so that a person can mend it.

use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;

use super::provenance::Origin;

/// A configuration that is refused. Shows one problem per line, each with its cause.
#[derive(Debug)]
pub struct Error {
    /// What is wrong; at least one.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {} is not valid TOML: {reason}", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Where and why, over several lines.
        reason: String,
    },
    /// An environment variable of ours is not UTF-8.
    #[error("environment variable {variable} is refused: its value is not valid UTF-8")]
    NotUnicode {
        /// Which.
        variable: String,
    },
    /// `--set` without `=`.
    #[error("--set {argument:?} is refused: it takes section.key=value")]
    NoAssignment {
        /// What was given.
        argument: String,
    },
    /// A key that does not exist.
    #[error("unknown key {key} in {origin}{}", suggestion(key, nearest.as_deref()))]
    UnknownKey {
        /// As it was written.
        key: String,
        /// Where.
        origin: Origin,
        /// In the same notation; `None` where it is like none.
        nearest: Option<String>,
    },
    /// No key at all, as in `--set =3`.
    #[error("the key in {origin} is empty: it takes the name of a section and of a key, such as grpc.listen")]
    EmptyKey {
        /// Where.
        origin: Origin,
    },
    /// A value of a wrong type, or text that does not parse.
    #[error("{key} = {value}, from {origin}, is refused: it takes {takes}")]
    Value {
        /// Of which key.
        key: String,
        /// As it was given; hidden if secret.
        value: String,
        /// From where.
        origin: Origin,
        /// The rule.
        takes: &'static str,
    },
    /// A rule is broken.
    #[error("{0}")]
    Rule(Broken),
    /// A fault of ours: the defaults do not load.
    #[error("the configuration cannot be put together: {0}")]
    Internal(String),
}

fn suggestion(key: &str, nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) if key.contains('"') => {
            format!("; the nearest known one is {nearest}, without quotes: a dot within them parts no sections")
        }
        Some(nearest) => format!("; the nearest known one is {nearest}"),
        None => "; `shard-manager config show` lists those that are known".to_owned(),
    }
}

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The keys concerned, the one to change first.
    pub keys: Vec<&'static str>,
    /// The values and the rule.
    pub message: String,
    /// Where the values came from; empty where that is not known.
    pub origins: Vec<(&'static str, Origin)>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (at, (key, origin)) in self.origins.iter().enumerate() {
            write!(f, "{}{key} from {origin}", if at == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.origins.is_empty() { "" } else { ")" })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "\n" })?;
            if let Some(cause) = problem.source() {
                write!(f, ": {cause}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Error { problems: vec![problem] }
    }
}

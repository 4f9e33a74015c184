//! Every key: its name, default and rule. The one list that loading, messages, the shipped file and the documentation agree on.

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its dotted name.
    pub name: &'static str,
    /// Its default as text; `None` where there is none, or where it depends on another key ([`Key::derived`]).
    pub default: Option<&'static str>,
    /// What the default is computed from, for keys whose default depends on another key.
    pub derived: Option<&'static str>,
    /// What it takes, as messages say it: "it takes ...".
    pub takes: &'static str,
    /// How text from the environment or the command line is read.
    pub kind: Kind,
    /// Its value never appears in a message as it is.
    pub secret: bool,
}

/// How text is read. The file says it with TOML's own types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Integer,
    /// A number.
    Fraction,
    /// `true` or `false`.
    Boolean,
    /// The text as it is: durations, addresses and words too.
    Text,
    /// Separated by commas, spaces around an entry not counted; empty text is the empty list.
    List,
}

const DURATION: &str = "a duration with its unit, such as 10s or 500ms";
/// What PostgreSQL takes for a name as it is written.
pub(crate) const SCHEMA: &str = "1 to 63 of a to z, 0 to 9 and _, the first no digit";

/// Whether [`SCHEMA`] holds.
pub(crate) fn is_schema(name: &str) -> bool {
    matches!(name.len(), 1..=63)
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

const ADDRESS: &str = "an IP address and a port, such as 127.0.0.1:9092 or [::1]:9092";

const fn key(name: &'static str, default: &'static str, kind: Kind, takes: &'static str) -> Key {
    Key { name, default: Some(default), derived: None, takes, kind, secret: false }
}

/// Every key, in the order of the documentation.
pub const KEYS: &[Key] = &[
    key("number_of_shards", "1024", Kind::Integer, "a whole number, 1 to 4194304"),
    key("rebalance_threshold", "0.1", Kind::Fraction, "a number, 0 to 1"),
    key("grpc.listen", "127.0.0.1:9092", Kind::Text, ADDRESS),
    key("http.listen", "127.0.0.1:8081", Kind::Text, ADDRESS),
    key("persistence.type", "sqlite", Kind::Text, "sqlite, postgres or etcd"),
    Key {
        derived: Some("min(2s, leadership.lease_ttl / 2)"),
        default: None,
        ..key("persistence.request_timeout", "", Kind::Text, DURATION)
    },
    key("persistence.sqlite.path", "shard-manager.db", Kind::Text, "the path of a file"),
    Key {
        secret: true,
        default: None,
        ..key("persistence.postgres.url", "", Kind::Text, "a URL that begins with postgres:// or postgresql://")
    },
    key("persistence.postgres.schema", "shard_manager", Kind::Text, SCHEMA),
    Key { secret: true, default: None, ..key("persistence.postgres.password", "", Kind::Text, "a password") },
    Key { default: None, ..key("persistence.postgres.password_file", "", Kind::Text, "the path of a file") },
    Key { default: None, ..key("persistence.postgres.ca_file", "", Kind::Text, "the path of a PEM file") },
    Key { default: None, ..key("persistence.postgres.cert_file", "", Kind::Text, "the path of a PEM file") },
    Key { default: None, ..key("persistence.postgres.key_file", "", Kind::Text, "the path of a PEM file") },
    key("persistence.etcd.endpoints", "", Kind::List, "a list of http://host:port or https://host:port"),
    key("persistence.etcd.prefix", "/shard-manager/", Kind::Text, "text of at most 1024 bytes that begins and ends with /"),
    Key { default: None, ..key("persistence.etcd.ca_file", "", Kind::Text, "the path of a PEM file") },
    Key { default: None, ..key("persistence.etcd.cert_file", "", Kind::Text, "the path of a PEM file") },
    Key { default: None, ..key("persistence.etcd.key_file", "", Kind::Text, "the path of a PEM file") },
    Key { default: None, ..key("persistence.etcd.username", "", Kind::Text, "the name of a user") },
    Key { secret: true, default: None, ..key("persistence.etcd.password", "", Kind::Text, "a password") },
    Key { default: None, ..key("persistence.etcd.password_file", "", Kind::Text, "the path of a file") },
    key("persistence.etcd.max_operations", "128", Kind::Integer, "a whole number, at least 5"),
    key("persistence.etcd.max_bytes", "1572864", Kind::Integer, "a whole number of bytes, at least 294912"),
    key("leadership.lease_ttl", "10s", Kind::Text, DURATION),
    key("leadership.on_loss", "exit", Kind::Text, "exit or standby"),
    key("leadership.host.tick", "100ms", Kind::Text, DURATION),
    key("leadership.host.grace", "3s", Kind::Text, DURATION),
    key("leadership.host.kill_hung", "true", Kind::Boolean, "true or false"),
    key("executors.lease_ttl", "30s", Kind::Text, DURATION),
    Key {
        derived: Some("min(5s, executors.lease_ttl / 3)"),
        default: None,
        ..key("executors.command_timeout", "", Kind::Text, DURATION)
    },
    key("executors.settle_time", "500ms", Kind::Text, DURATION),
    key("executors.calm_time", "1m", Kind::Text, DURATION),
    key("executors.exclusive_ids", "false", Kind::Boolean, "true or false"),
    key("executors.probe_interval", "5s", Kind::Text, DURATION),
    key("executors.probe_timeout", "2s", Kind::Text, DURATION),
    key("log.format", "text", Kind::Text, "text or json"),
    key("log.filter", "info", Kind::Text, "a level, or directives such as info,shard_manager::store=debug"),
];

impl Key {
    /// The key of this dotted name.
    pub fn find(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.to_uppercase().replace('.', "__"))
    }

    /// The known key that `name` most probably means: by spelling, and by its last part alone, for a key in the wrong section. `None` where
    /// it is like none of them.
    pub fn nearest(name: &str) -> Option<&'static Key> {
        let of_key = |key: &'static Key| {
            let last = likeness(last_part(name), last_part(key.name));
            (likeness(name, key.name).max(0.9 * last), key)
        };
        let (likeness, nearest) = KEYS.iter().map(of_key).max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (likeness >= LEAST_LIKENESS).then_some(nearest)
    }
}

/// How alike two texts are. Where one is so much longer that they are less alike than [`LEAST_LIKENESS`] whatever they say, it is 0: to
/// compare them takes time and memory by the product of their lengths, and what a configuration names has any length.
fn likeness(a: &str, b: &str) -> f64 {
    let (shorter, longer) = lengths(a, b);
    // Every letter that one has more than the other is a difference.
    if (shorter as f64) < LEAST_LIKENESS * longer as f64 { 0.0 } else { strsim::normalized_damerau_levenshtein(a, b) }
}

/// Of both texts, in letters; the shorter one first.
fn lengths(a: &str, b: &str) -> (usize, usize) {
    let (a, b) = (a.chars().count(), b.chars().count());
    (a.min(b), a.max(b))
}

/// Of a key that somebody may have meant; 1 is the same.
const LEAST_LIKENESS: f64 = 0.5;

/// The key that an environment variable seems to mean though it does not begin with [`VARIABLE_PREFIX`]: underscores and case do
/// not count, and one letter may be wrong. What Kubernetes sets for a service named shard-manager is not that close to any.
pub(super) fn meant_by(variable: &str) -> Option<&'static Key> {
    if variable.starts_with(VARIABLE_PREFIX) {
        return None;
    }
    let letters = |text: &str| text.replace('_', "").to_uppercase();
    let variable = letters(variable);
    KEYS.iter().find(|key| {
        let known = letters(&key.variable());
        let (shorter, longer) = lengths(&variable, &known);
        longer - shorter <= 1 && strsim::damerau_levenshtein(&variable, &known) <= 1
    })
}

/// What the environment variables that are ours begin with. (A single underscore would catch the variables that Kubernetes sets
/// for a service of our name.)
pub const VARIABLE_PREFIX: &str = "SHARD_MANAGER__";

/// Whether other keys stand below `name`.
pub(super) fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

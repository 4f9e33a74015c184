//! From four layers to one configuration.

use std::path::PathBuf;
use std::time::Duration;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use humantime_serde::re::humantime::format_duration;

use super::keys::{self, KEYS, Key, Kind, VARIABLE_PREFIX};
use super::problem::{Error, Problem};
use super::provenance::{Origin, Provenance};
use super::{Config, rules};

/// Where a configuration comes from, besides the defaults; what comes later overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// Environment variables. Those that do not begin with [`VARIABLE_PREFIX`] set nothing; see [`Sources::warnings`].
    pub env: Vec<(String, String)>,
    /// `section.key=value`, as `--set` gives them; of one key the last stands.
    pub sets: Vec<String>,
}

impl Sources {
    /// What sets nothing, but was probably meant to: environment variables that come close to one of ours. Not an error, because
    /// variables outside [`VARIABLE_PREFIX`] may be anybody's.
    pub fn warnings(&self) -> Vec<String> {
        let stray = self.env.iter().filter_map(|(variable, _)| Some((variable, keys::meant_by(variable)?)));
        let warning = |(variable, key): (&String, &Key)| {
            format!("environment variable {variable} sets nothing: {} is written {}", key.name, key.variable())
        };
        stray.map(warning).collect()
    }
}

/// The environment variables of this process that are ours, or seem to be meant for us. Refused where one that is ours is not UTF-8.
pub fn environment() -> Result<Vec<(String, String)>, Error> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let ours = name.starts_with(VARIABLE_PREFIX);
        if !ours && keys::meant_by(&name).is_none() {
            return None;
        }
        match value.into_string() {
            Ok(value) => Some(Ok((name, value))),
            Err(_) => ours.then(|| Err(Problem::NotUnicode { variable: name }.into())),
        }
    });
    ours.collect()
}

pub(super) fn load(sources: &Sources) -> Result<(Config, Provenance), Error> {
    let mut problems = Vec::new();
    let file = read_file(sources, &mut problems);
    let environment = read_environment(sources, &mut problems);
    let sets = read_sets(sources, &mut problems);
    if !problems.is_empty() {
        return Err(Error { problems });
    }

    let mut defaults = Layer::new(DEFAULT);
    for key in KEYS {
        if let Some(default) = key.default {
            defaults.put(key, default);
        }
    }
    let set = Figment::from(defaults).merge(file).merge(environment).merge(sets);
    let origin = |figment: &Figment, key: &Key| match figment.find_metadata(key.name).map(|metadata| metadata.name.as_ref()) {
        Some(FILE) => Origin::File(sources.file.clone().unwrap_or_default()),
        Some(ENVIRONMENT) => Origin::Environment(key.variable()),
        Some(SET) => Origin::Set,
        Some(DERIVED) => Origin::Derived(key.derived.unwrap_or_default()),
        _ => Origin::Default,
    };
    let refused = |figment: &Figment, error: &figment::Error| refused_value(figment, error, |key| origin(figment, key));

    let derived = derive(&set).map_err(|error| refused(&set, &error))?;
    let all = set.join(derived);
    let config: Config = all.extract().map_err(|error| refused(&all, &error))?;
    let provenance = Provenance::new(&config, |key| origin(&all, key)).map_err(|error| Problem::Internal(error.to_string()))?;

    let problems: Vec<Problem> = rules::broken(&config)
        .into_iter()
        .map(|mut broken| {
            let origins = broken.keys.iter().filter_map(|key| Some((*key, provenance.origin(key)?.clone())));
            broken.origins = origins.collect();
            Problem::Rule(broken)
        })
        .collect();
    if problems.is_empty() { Ok((config, provenance)) } else { Err(Error { problems }) }
}

const DEFAULT: &str = "default";
const DERIVED: &str = "derived";
const FILE: &str = "file";
const ENVIRONMENT: &str = "environment";
const SET: &str = "set";

/// The values that one source gives.
struct Layer {
    name: &'static str,
    values: Dict,
}

impl Layer {
    fn new(name: &'static str) -> Layer {
        Layer { name, values: Dict::new() }
    }

    /// Reads `text` as the key's kind wants it. What does not read stays text, and is refused where the types are checked.
    fn put(&mut self, key: &Key, text: &str) {
        let as_text = || Value::from(text);
        let value = match key.kind {
            Kind::Integer => text.parse::<i64>().map_or_else(|_| as_text(), Value::from),
            Kind::Fraction => text.parse::<f64>().map_or_else(|_| as_text(), Value::from),
            Kind::Boolean => text.parse::<bool>().map_or_else(|_| as_text(), Value::from),
            Kind::Text => as_text(),
            Kind::List if text.trim().is_empty() => Value::from(Vec::<Value>::new()),
            Kind::List => Value::from(text.split(',').map(str::trim).collect::<Vec<_>>()),
        };
        put(&mut self.values, key.name, value);
    }
}

fn put(dict: &mut Dict, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            dict.insert(path.to_owned(), value);
        }
        Some((section, rest)) => {
            let section = dict.entry(section.to_owned()).or_insert_with(|| Value::from(Dict::new()));
            if let Value::Dict(_, inner) = section {
                put(inner, rest, value);
            }
        }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

fn read_file(sources: &Sources, problems: &mut Vec<Problem>) -> Layer {
    let mut layer = Layer::new(FILE);
    let Some(path) = &sources.file else { return layer };
    match std::fs::read_to_string(path) {
        Err(source) => problems.push(Problem::Unreadable { path: path.clone(), source }),
        Ok(text) => match Toml::from_str::<Dict>(&text) {
            Err(error) => problems.push(Problem::Syntax { path: path.clone(), reason: error.to_string() }),
            Ok(values) => layer.values = values,
        },
    }
    let mut unknown = Vec::new();
    unknown_keys("", &layer.values, &mut unknown);
    problems.extend(unknown.into_iter().map(|key| {
        let nearest = Key::nearest(&key).map(|key| key.name.to_owned());
        unknown_key(&key, Origin::File(path.clone()), nearest)
    }));
    layer
}

fn read_environment(sources: &Sources, problems: &mut Vec<Problem>) -> Layer {
    let mut layer = Layer::new(ENVIRONMENT);
    for (variable, value) in &sources.env {
        let Some(path) = variable.strip_prefix(VARIABLE_PREFIX) else { continue };
        match KEYS.iter().find(|key| key.variable() == *variable) {
            Some(key) => layer.put(key, value),
            None => {
                let nearest = Key::nearest(&path.to_lowercase().replace("__", ".")).map(Key::variable);
                problems.push(unknown_key(path, Origin::Environment(variable.clone()), nearest));
            }
        }
    }
    layer
}

fn read_sets(sources: &Sources, problems: &mut Vec<Problem>) -> Layer {
    let mut layer = Layer::new(SET);
    for argument in &sources.sets {
        let Some((name, value)) = argument.split_once('=') else {
            problems.push(Problem::NoAssignment { argument: argument.clone() });
            continue;
        };
        match Key::find(name.trim()) {
            Some(key) => layer.put(key, value.trim()),
            None => {
                problems.push(unknown_key(name.trim(), Origin::Set, Key::nearest(name.trim()).map(|key| key.name.to_owned())))
            }
        }
    }
    layer
}

fn unknown_key(key: &str, origin: Origin, nearest: Option<String>) -> Problem {
    if key.trim().is_empty() {
        return Problem::EmptyKey { origin };
    }
    Problem::UnknownKey { key: key.to_owned(), origin, nearest }
}

/// Collects the dotted names of all leaves that are no key. An empty section is fine where there is such a section.
fn unknown_keys(prefix: &str, dict: &Dict, unknown: &mut Vec<String>) {
    for (name, value) in dict {
        // A dot within a quoted name parts no sections: what has one is no key of ours, however it reads.
        let is_dotted = name.contains('.');
        let name = if is_dotted { format!("{name:?}") } else { name.clone() };
        let path = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        if is_dotted {
            unknown.push(path);
            continue;
        }
        match value {
            Value::Dict(_, inner) if !inner.is_empty() => unknown_keys(&path, inner, unknown),
            Value::Dict(..) if keys::is_section(&path) => {}
            Value::Dict(..) => unknown.push(path),
            _ if Key::find(&path).is_none() => unknown.push(path),
            _ => {}
        }
    }
}

/// The defaults that depend on other values, in whole milliseconds.
fn derive(figment: &Figment) -> Result<Layer, Box<figment::Error>> {
    let mut layer = Layer::new(DERIVED);
    for (name, source, divisor, most) in [
        ("persistence.request_timeout", "leadership.lease_ttl", 2, 2),
        ("executors.command_timeout", "executors.lease_ttl", 3, 5),
    ] {
        let lease: humantime_serde::Serde<Duration> = figment.extract_inner(source).map_err(Box::new)?;
        let value = (lease.into_inner() / divisor).min(Duration::from_secs(most));
        let value = Duration::from_millis(u64::try_from(value.as_millis()).unwrap_or(u64::MAX));
        put(&mut layer.values, name, Value::from(format_duration(value).to_string()));
    }
    Ok(layer)
}

/// Says of a value that does not fit its type: which, from where, and what would.
fn refused_value(figment: &Figment, error: &figment::Error, origin: impl Fn(&Key) -> Origin) -> Error {
    let path = error.path.join(".");
    // An entry of a list has its index at the end of its path.
    let Some(key) =
        KEYS.iter().find(|key| path == key.name || path.strip_prefix(key.name).is_some_and(|rest| rest.starts_with('.')))
    else {
        return Problem::Internal(error.to_string()).into();
    };
    let value = match figment.find_value(key.name) {
        Ok(_) if key.secret => "***".to_owned(),
        Ok(value) => serde_json::to_string(&value).unwrap_or_else(|error| error.to_string()),
        Err(error) => error.to_string(),
    };
    Problem::Value { key: key.name.to_owned(), value, origin: origin(key), takes: key.takes }.into()
}

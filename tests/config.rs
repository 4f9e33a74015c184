//! The configuration's layers, rules and messages, and that what we ship and document is what the code does.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use shard_manager::config::keys::{KEYS, Key, VARIABLE_PREFIX};
use shard_manager::config::{Config, OnLoss, Origin, Provenance, Sources, StoreKind};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Sources with this file content, these variables and these `--set`s.
struct Given {
    sources: Sources,
    _file: Option<tempfile::NamedTempFile>,
}

fn given(file: &str, env: &[(&str, &str)], sets: &[&str]) -> Given {
    let mut sources = Sources {
        file: None,
        env: env.iter().map(|(name, value)| (format!("{VARIABLE_PREFIX}{name}"), (*value).to_owned())).collect(),
        sets: sets.iter().map(|set| (*set).to_owned()).collect(),
    };
    let file = (!file.is_empty()).then(|| {
        let written = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(written.path(), file).unwrap();
        sources.file = Some(written.path().to_owned());
        written
    });
    Given { sources, _file: file }
}

fn load(file: &str, env: &[(&str, &str)], sets: &[&str]) -> (Config, Provenance) {
    Config::load(&given(file, env, sets).sources).unwrap_or_else(|error| panic!("refused: {error}"))
}

/// The message of a refusal; panics unless it contains all of `parts`.
#[track_caller]
fn refused(file: &str, env: &[(&str, &str)], sets: &[&str], parts: &[&str]) -> String {
    let message = match Config::load(&given(file, env, sets).sources) {
        Ok((config, _)) => panic!("accepted: {config:?}"),
        Err(error) => error.to_string(),
    };
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
    message
}

#[test]
fn defaults_hold_where_nothing_is_set() {
    let (config, provenance) = load("", &[], &[]);
    assert_eq!(config.number_of_shards, 1024);
    assert_eq!(config.rebalance_threshold, 0.1);
    assert_eq!(config.grpc.listen, "127.0.0.1:9092".parse().unwrap());
    assert_eq!(config.http.listen, "127.0.0.1:8081".parse().unwrap());
    assert_eq!(config.persistence.kind, StoreKind::Sqlite);
    assert_eq!(config.persistence.sqlite.path, Path::new("shard-manager.db"));
    assert_eq!(config.persistence.request_timeout, Duration::from_secs(2));
    assert_eq!(config.leadership.lease_ttl, Duration::from_secs(10));
    assert_eq!(config.leadership.on_loss, OnLoss::Exit);
    assert_eq!(config.executors.lease_ttl, Duration::from_secs(30));
    assert_eq!(config.executors.command_timeout, Duration::from_secs(5));
    assert_eq!(config.executors.settle_time, Duration::from_millis(500));
    assert_eq!(config.executors.calm_time, Duration::from_secs(60));
    assert!(!config.executors.exclusive_ids);
    assert_eq!(config.warnings(), Vec::<String>::new());
    assert_eq!(provenance.settings.len(), KEYS.len());
    assert!(provenance.settings.iter().all(|setting| matches!(setting.origin, Origin::Default | Origin::Derived(_))));
}

#[test]
fn each_layer_overrides_the_one_before_and_is_remembered() {
    let file = "number_of_shards = 10\n[executors]\nlease_ttl = '40s'\nsettle_time = '1s'";
    let given = given(
        file,
        &[("NUMBER_OF_SHARDS", "20"), ("EXECUTORS__LEASE_TTL", "50s")],
        &["number_of_shards=29", "number_of_shards=30"],
    );
    let (config, provenance) = Config::load(&given.sources).unwrap();
    assert_eq!(config.number_of_shards, 30, "of one key the last --set stands");
    assert_eq!(config.executors.lease_ttl, Duration::from_secs(50));
    assert_eq!(config.executors.settle_time, Duration::from_secs(1));
    let file = given.sources.file.clone().unwrap();
    assert_eq!(provenance.origin("number_of_shards"), Some(&Origin::Set));
    assert_eq!(
        provenance.origin("executors.lease_ttl"),
        Some(&Origin::Environment("SHARD_MANAGER__EXECUTORS__LEASE_TTL".to_owned()))
    );
    assert_eq!(provenance.origin("executors.settle_time"), Some(&Origin::File(file)));
    assert_eq!(provenance.origin("grpc.listen"), Some(&Origin::Default));
    assert_eq!(provenance.origin("no.such.key"), None);
}

#[test]
fn every_key_can_be_set_from_every_source() {
    let example = |key: &Key| match key.name {
        "persistence.request_timeout" | "executors.command_timeout" => "900ms",
        "persistence.postgres.url" => "postgres://me@db/shards",
        "persistence.etcd.endpoints" => "http://a:2379, https://b:2379",
        "persistence.etcd.username" | "persistence.etcd.password" | "persistence.postgres.password" => "somebody",
        name if name.ends_with("_file") => "/some/file",
        _ => key.default.unwrap(),
    };
    for key in KEYS {
        let (from_env, provenance) = load("", &[(&key.variable()[VARIABLE_PREFIX.len()..], example(key))], &[]);
        assert_eq!(provenance.origin(key.name), Some(&Origin::Environment(key.variable())));
        let (from_set, provenance) = load("", &[], &[&format!("{}={}", key.name, example(key))]);
        assert_eq!(provenance.origin(key.name), Some(&Origin::Set));
        assert_eq!(from_env, from_set);
    }
}

#[test]
fn lists_in_the_environment_are_separated_by_commas() {
    let endpoints = |text| load("", &[("PERSISTENCE__ETCD__ENDPOINTS", text)], &[]).0.persistence.etcd.endpoints;
    assert_eq!(endpoints("http://a:1, http://b:2"), ["http://a:1", "http://b:2"]);
    assert_eq!(endpoints(""), Vec::<String>::new());
}

#[test]
fn an_unknown_key_is_named_with_its_source_and_the_nearest_known_one() {
    let file = given("[executors]\nlease_tll = '3s'", &[], &[]);
    let message = Config::load(&file.sources).unwrap_err().to_string();
    let path = file.sources.file.clone().unwrap();
    assert_eq!(
        message,
        format!("unknown key executors.lease_tll in file {}; the nearest known one is executors.lease_ttl", path.display())
    );
    refused(
        "",
        &[("GRPC__LISTN", "x")],
        &[],
        &["unknown key GRPC__LISTN", "environment variable SHARD_MANAGER__GRPC__LISTN", "is SHARD_MANAGER__GRPC__LISTEN"],
    );
    refused("", &[], &["persistense.type=sqlite"], &["unknown key persistense.type in --set", "is persistence.type"]);
    refused("on_loss = 'exit'", &[], &[], &["unknown key on_loss", "is leadership.on_loss"]);
    refused("wibble = 5", &[], &[], &["unknown key wibble in file", "`shard-manager config show` lists those that are known"]);
    refused("grpc = 5", &[], &[], &["unknown key grpc in file"]);
    refused("[number_of_shards]", &[], &[], &["unknown key number_of_shards in file"]);
    refused("[number_of_shards]\nx = 1", &[], &[], &["unknown key number_of_shards.x"]);
    refused("[[executors]]\nlease_ttl = '3s'", &[], &[], &["unknown key executors in file"]);
    refused("", &[], &["persistence=sqlite"], &["unknown key persistence in --set", "is persistence.type"]);
    refused("", &[("grpc__listen", "x")], &[], &["SHARD_MANAGER__grpc__listen", "is SHARD_MANAGER__GRPC__LISTEN"]);
}

#[test]
fn an_empty_key_is_said_to_be_empty() {
    refused("", &[], &["=3"], &["the key in --set is empty"]);
    refused("", &[], &[" = 3"], &["the key in --set is empty"]);
    refused("", &[("", "3")], &[], &["the key in environment variable SHARD_MANAGER__ is empty"]);
    refused("'' = 3", &[], &[], &["the key in file /", " is empty"]);
}

#[test]
fn a_variable_that_is_almost_ours_is_a_warning() {
    let warnings = |name: &str| Sources { env: vec![(name.to_owned(), "3s".to_owned())], ..Sources::default() }.warnings();
    for name in [
        "SHARD_MANAGER_EXECUTORS__LEASE_TTL",
        "SHARD_MANAGER_EXECUTORS_LEASE_TTL",
        "SHARD_MANGER__EXECUTORS__LEASE_TTL",
        "SHARDMANAGER__EXECUTORS__LEASE_TTL",
        "shard_manager__executors__lease_ttl",
    ] {
        let right = "executors.lease_ttl is written SHARD_MANAGER__EXECUTORS__LEASE_TTL";
        assert_eq!(warnings(name), [format!("environment variable {name} sets nothing: {right}")]);
    }
    // What Kubernetes sets for services of such names, and what others may well have.
    for name in [
        "SHARD_MANAGER_PORT",
        "SHARD_MANAGER_PORT_9092_TCP",
        "SHARD_MANAGER_PORT_9092_TCP_ADDR",
        "SHARD_MANAGER_SERVICE_HOST",
        "SHARD_MANAGER_SERVICE_PORT_GRPC",
        "SHARD_MANAGER_GRPC_PORT",
        "SHARD_MANAGER_HTTP_SERVICE_HOST",
        "LEASE_TTL",
        "SHARD_MANAGER__EXECUTORS__LEASE_TTL",
    ] {
        assert_eq!(warnings(name), Vec::<String>::new());
    }
}

/// They stood in the file, were taken for the key, and set nothing.
#[test]
fn a_key_whose_name_is_quoted_with_its_dots_is_unknown() {
    refused(
        "\"grpc.listen\" = '127.0.0.1:1'",
        &[],
        &[],
        &["unknown key \"grpc.listen\"", "nearest known one is grpc.listen, without quotes"],
    );
    refused("[\"persistence.etcd\"]\nprefix = '/x/'", &[], &[], &["unknown key \"persistence.etcd\""]);
}

/// Every letter of it was compared with every letter of every key.
#[test]
fn a_name_of_any_length_is_refused_at_once() {
    // Linux gives a process variables and arguments that are about as long.
    let name = "a".repeat(120_000);
    let began = std::time::Instant::now();
    let sets = vec![format!("{name}=1")];
    let sources = Sources { env: vec![(name, "1".to_owned())], sets, ..Sources::default() };
    assert_eq!(sources.warnings(), Vec::<String>::new());
    assert!(Config::load(&sources).unwrap_err().to_string().contains("unknown key aaaa"));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn all_unknown_keys_are_named_at_once() {
    refused(
        "a = 1\n[log]\nb = 2",
        &[("C", "3")],
        &["d=4", "nothing"],
        &["key a ", "key log.b ", "key C ", "key d ", "\"nothing\""],
    );
}

#[test]
fn variables_of_others_are_left_alone() {
    // Kubernetes sets such for a service named shard-manager.
    let mut sources = Sources::default();
    sources.env.push(("SHARD_MANAGER_PORT_9092_TCP".to_owned(), "tcp://10.0.0.1:9092".to_owned()));
    sources.env.push(("PATH".to_owned(), "/bin".to_owned()));
    assert!(Config::load(&sources).is_ok());
}

#[test]
fn a_wrong_value_is_named_with_key_value_source_and_rule() {
    refused(
        "number_of_shards = 'many'",
        &[],
        &[],
        &["number_of_shards = \"many\", from file /", "it takes a whole number, 1 to 4194304"],
    );
    refused("number_of_shards = 1.5", &[], &[], &["number_of_shards = 1.5"]);
    refused("number_of_shards = -1", &[], &[], &["number_of_shards = -1"]);
    refused("number_of_shards = 5000000000", &[], &[], &["number_of_shards = 5000000000"]);
    refused("", &[], &["number_of_shards="], &["number_of_shards = \"\", from --set"]);
    refused("", &[], &["rebalance_threshold=much"], &["rebalance_threshold = \"much\"", "a number, 0 to 1"]);
    refused(
        "",
        &[("GRPC__LISTEN", "localhost")],
        &[],
        &["grpc.listen = \"localhost\", from environment variable", "an IP address"],
    );
    refused("", &[], &["persistence.type=mysql"], &["persistence.type = \"mysql\"", "sqlite, postgres or etcd"]);
    refused("", &[], &["leadership.on_loss=panic"], &["leadership.on_loss = \"panic\"", "exit or standby"]);
    refused("[executors]\nlease_ttl = 30", &[], &[], &["executors.lease_ttl = 30, from file", "a duration with its unit"]);
    refused("", &[], &["leadership.lease_ttl=10"], &["leadership.lease_ttl = \"10\", from --set", "a duration with its unit"]);
    refused("", &[], &["executors.settle_time=soon"], &["executors.settle_time = \"soon\"", "a duration with its unit"]);
    refused("", &[], &["executors.exclusive_ids=yes"], &["executors.exclusive_ids = \"yes\"", "true or false"]);
    refused("", &[], &["log.format=xml"], &["log.format = \"xml\"", "text or json"]);
    refused("[persistence.etcd]\nendpoints = 'http://a:1'", &[], &[], &["persistence.etcd.endpoints = \"http://a:1\"", "a list"]);
    refused("[persistence.etcd]\nendpoints = ['http://a:1', 2]", &[], &[], &["persistence.etcd.endpoints", "a list"]);
}

#[test]
fn a_broken_rule_is_named_with_the_values_and_their_sources() {
    let rule = |sets: &[&str], parts: &[&str]| refused("", &[], sets, parts);
    rule(&["number_of_shards=0"], &["number_of_shards = 0 is refused: it must be 1 to 4194304", "number_of_shards from --set"]);
    rule(&["number_of_shards=4194305"], &["number_of_shards = 4194305"]);
    rule(&["rebalance_threshold=1.1"], &["rebalance_threshold = 1.1", "0 to 1"]);
    rule(&["rebalance_threshold=NaN"], &["rebalance_threshold = NaN"]);
    rule(&["leadership.lease_ttl=1500ms"], &["leadership.lease_ttl = 1s 500ms", "whole seconds, at least 2s"]);
    rule(&["leadership.lease_ttl=2500ms"], &["leadership.lease_ttl = 2s 500ms", "whole seconds"]);
    rule(&["leadership.lease_ttl=1s"], &["leadership.lease_ttl = 1s", "at least 2s"]);
    rule(&["leadership.lease_ttl=2days"], &["leadership.lease_ttl = 2days", "at most 24h"]);
    rule(
        &["persistence.request_timeout=5001ms"],
        &["persistence.request_timeout = 5s 1ms", "half of leadership.lease_ttl = 10s", "leadership.lease_ttl from default"],
    );
    rule(&["persistence.request_timeout=0s"], &["persistence.request_timeout = 0s", "above 0s"]);
    rule(&["executors.lease_ttl=999ms"], &["executors.lease_ttl = 999ms", "at least 1s"]);
    rule(&["executors.command_timeout=30s"], &["executors.command_timeout = 30s", "below executors.lease_ttl = 30s"]);
    rule(&["executors.settle_time=30s"], &["executors.settle_time = 30s", "below executors.lease_ttl = 30s"]);
    rule(&["executors.calm_time=25h"], &["executors.calm_time = 1day 1h", "at most 24h"]);
    rule(&["executors.probe_interval=0s"], &["executors.probe_interval = 0s", "above 0s"]);
    rule(&["executors.probe_timeout=6s"], &["executors.probe_timeout = 6s", "executors.probe_interval = 5s"]);
    rule(&["grpc.listen=127.0.0.1:8081"], &["grpc.listen = 127.0.0.1:8081", "http.listen = 127.0.0.1:8081"]);
    rule(&["grpc.listen=0.0.0.0:8081"], &["grpc.listen = 0.0.0.0:8081", "must differ"]);
    rule(&["persistence.type=postgres"], &["persistence.postgres.url is missing", "persistence.type from --set"]);
    rule(&["persistence.type=etcd"], &["persistence.etcd.endpoints = []"]);
    rule(&["persistence.etcd.endpoints=a:2379"], &["persistence.etcd.endpoints = \"a:2379\"", "http://host:port"]);
    let etcd = |sets: &[&'static str], words: &[&str]| {
        rule(&[&["persistence.type=etcd", "persistence.etcd.endpoints=http://a:1"], sets].concat(), words);
    };
    etcd(&["persistence.etcd.cert_file=/c"], &["persistence.etcd.cert_file is given without persistence.etcd.key_file"]);
    etcd(&["persistence.etcd.key_file=/k"], &["persistence.etcd.key_file is given without persistence.etcd.cert_file"]);
    etcd(&["persistence.etcd.username=me"], &["persistence.etcd.username is given without persistence.etcd.password"]);
    etcd(&["persistence.etcd.password=hunter2"], &["persistence.etcd.password is given without persistence.etcd.username"]);
    etcd(&["persistence.etcd.endpoints=https://b:2"], &["ca_file is missing", "https://b:2"]);
    etcd(&["persistence.etcd.max_operations=4"], &["persistence.etcd.max_operations = 4", "at least 5"]);
    etcd(&["persistence.etcd.max_bytes=294911"], &["persistence.etcd.max_bytes = 294911", "at least 294912"]);
    let postgres = |sets: &[&'static str], words: &[&str]| {
        rule(&[&["persistence.type=postgres", "persistence.postgres.url=postgres://db/x"], sets].concat(), words);
    };
    postgres(&["persistence.postgres.cert_file=/c"], &["cert_file is given without persistence.postgres.key_file"]);
    let both = ["persistence.postgres.password=hunter2", "persistence.postgres.password_file=/p"];
    postgres(&both, &["persistence.postgres.password and persistence.postgres.password_file are refused together"]);
    for name in ["", "0a", "Shards", "a-b", "s\"; drop"] {
        let set = format!("persistence.postgres.schema={name}");
        refused("", &[], &[&set], &["persistence.postgres.schema = ", "1 to 63 of a to z"]);
    }
    rule(&["leadership.host.tick=1ms"], &["leadership.host.tick = 1ms", "10ms to 10s"]);
    rule(&["leadership.host.grace=499ms"], &["leadership.host.grace = 499ms", "5 times leadership.host.tick = 100ms"]);
    rule(&["persistence.etcd.prefix=/x"], &["persistence.etcd.prefix = \"/x\"", "ends with /"]);
    let long = format!("persistence.etcd.prefix=/{}/", "x".repeat(1023));
    refused("", &[], &[&long], &["persistence.etcd.prefix = ", "at most 1024 bytes"]);
    rule(&["persistence.sqlite.path="], &["persistence.sqlite.path = \"\""]);
    rule(&["log.filter=info,x=loud"], &["log.filter = \"info,x=loud\""]);
    rule(&["log.filter=inf"], &["log.filter = \"inf\"", "\"inf\" is no level", "inf=debug"]);
    rule(&["number_of_shards=0", "executors.lease_ttl=0s"], &["number_of_shards = 0", "executors.lease_ttl = 0s"]);
}

#[test]
fn what_lies_just_inside_the_rules_is_accepted() {
    load("", &[], &["number_of_shards=1", "rebalance_threshold=0", "executors.settle_time=0s"]);
    load("", &[], &["number_of_shards=4194304", "rebalance_threshold=1", "executors.lease_ttl=1s"]);
    load("", &[], &["executors.calm_time=0s"]);
    load("", &[], &["executors.calm_time=24h"]);
    load("", &[], &["persistence.request_timeout=5s", "grpc.listen=127.0.0.1:0", "http.listen=127.0.0.1:0"]);
    load("", &[], &["grpc.listen=127.0.0.2:8081"]);
    for filter in ["", "WARN", "off", "info,hyper=off", "[executor{id=a}]=debug,warn", "shard_manager::store=trace"] {
        load("", &[], &[&format!("log.filter={filter}")]);
    }
    load("rebalance_threshold = 1", &[], &["grpc.listen=[::1]:9092"]);
}

#[test]
fn defaults_that_depend_on_others_follow_them() {
    let (config, provenance) = load("", &[], &["leadership.lease_ttl=3s", "executors.lease_ttl=2s"]);
    assert_eq!(config.persistence.request_timeout, Duration::from_millis(1500));
    assert_eq!(config.executors.command_timeout, Duration::from_millis(666));
    let shown = provenance.settings.iter().find(|setting| setting.key.name == "executors.command_timeout").unwrap();
    assert_eq!(shown.value, "666ms");
    assert_eq!(shown.origin.to_string(), "default min(5s, executors.lease_ttl / 3)");
}

#[test]
fn a_lease_that_is_short_beside_the_leadership_is_a_warning() {
    let etcd = ["persistence.type=etcd", "persistence.etcd.endpoints=http://a:2379"];
    let warnings = |lease| load("", &[], &[&etcd[..], &[lease]].concat()).0.warnings();
    assert_eq!(warnings("executors.lease_ttl=19s"), Vec::<String>::new());
    let sqlite = |lease| load("", &[], &[lease]).0.warnings();
    assert_eq!(sqlite("executors.lease_ttl=8s"), Vec::<String>::new());
    let short = sqlite("executors.lease_ttl=7s");
    assert!(short[0].contains("executors.lease_ttl = 7s") && short[0].contains("leadership.host.grace = 3s"), "{short:?}");
    let warnings = warnings("executors.lease_ttl=18s");
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("executors.lease_ttl = 18s") && warnings[0].contains("leadership.lease_ttl = 10s"),
        "{warnings:?}"
    );
}

#[test]
fn a_configuration_that_was_changed_in_code_can_be_checked() {
    let (mut config, _) = load("", &[], &[]);
    assert!(config.check().is_ok());
    config.number_of_shards = 0;
    assert_eq!(config.check().unwrap_err().to_string(), "number_of_shards = 0 is refused: it must be 1 to 4194304");
}

#[test]
fn secrets_are_hidden_wherever_they_could_show() {
    let (config, provenance) = load("", &[("PERSISTENCE__POSTGRES__URL", "postgres://me:hunter2@db/x")], &[]);
    assert_eq!(config.persistence.postgres.url.as_ref().unwrap().reveal(), "postgres://me:hunter2@db/x");
    assert!(!format!("{config:?} {provenance:?}").contains("hunter2"));
    let shown = provenance.settings.iter().find(|setting| setting.key.secret).unwrap();
    assert_eq!(shown.value, "postgres://me:***@db/x");
    let message = refused("", &[], &["persistence.postgres.url=mysql://me:hunter2@db/x"], &["persistence.postgres.url"]);
    assert!(!message.contains("hunter2"), "{message}");
    let message = refused("[persistence.postgres]\nurl = ['hunter2']", &[], &[], &["persistence.postgres.url = ***"]);
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn a_file_that_is_missing_or_not_toml_is_named() {
    let sources = Sources { file: Some("/no/such/file.toml".into()), ..Sources::default() };
    let message = Config::load(&sources).unwrap_err().to_string();
    assert!(message.contains("/no/such/file.toml cannot be read: No such file"), "{message}");
    refused("number_of_shards = ", &[], &[], &["is not valid TOML", "line 1"]);
    refused("number_of_shards = 1\nnumber_of_shards = 2", &[], &[], &["is not valid TOML", "number_of_shards"]);
}

#[test]
fn the_shipped_file_holds_every_key_at_its_default() {
    let path = repository("config/shard-manager.toml");
    let (shipped, provenance) = Config::load(&Sources { file: Some(path.clone()), ..Sources::default() }).unwrap();
    assert_eq!(shipped, load("", &[], &[]).0);
    let text = std::fs::read_to_string(path).unwrap();
    for setting in provenance.settings {
        let key = setting.key;
        if key.default.is_some() {
            assert!(matches!(setting.origin, Origin::File(_)), "{} is missing", key.name);
        } else {
            let last = key.name.rsplit('.').next().unwrap();
            assert!(text.contains(&format!("\n# {last} = ")), "{} is missing, as a comment", key.name);
        }
        assert!(key.derived.is_none_or(|formula| text.contains(&format!("# Default: {formula}."))), "{}", key.name);
    }
}

#[test]
fn the_documentation_lists_every_key_with_its_default_and_no_other() {
    let text = std::fs::read_to_string(repository("docs/configuration.md")).unwrap();
    let rows: Vec<(String, String)> = text
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.trim_matches('`').to_owned()))
        })
        .collect();
    let expected: Vec<(String, String)> = KEYS
        .iter()
        .map(|key| {
            let default = match (key.default, key.derived) {
                (Some(""), _) => "[]",
                (Some(default), _) => default,
                (None, Some(derived)) => derived,
                (None, None) => "none",
            };
            (key.name.to_owned(), default.to_owned())
        })
        .collect();
    assert_eq!(rows, expected);
}

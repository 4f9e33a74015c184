//! What we ship for running the manager says what the code does: configuration, ports, probes, arguments, times, metrics.
//!
//! `tools/check-deploy` asks the tools that read these files whether they are well-formed; here they are held against the code. Nothing
//! here needs a network, a cluster or an engine.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use serde_json::Value;
use shard_manager::api::http::{Phase, View, router};
use shard_manager::config::{Config, Sources, StoreKind};
use shard_manager::metrics::Metrics;
use shard_manager::{cli, rpc};

const BINARY: &str = "/usr/local/bin/shard-manager";
/// How often Prometheus scrapes at the most.
const SCRAPE: Duration = Duration::from_secs(15);

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file, its merges applied.
fn yaml(path: &str) -> Vec<Value> {
    let text = text(path);
    let document = |document| {
        let mut value: yaml_serde::Value = serde::Deserialize::deserialize(document)?;
        value.apply_merge()?;
        yaml_serde::from_value(value)
    };
    let documents: Result<Vec<Value>, yaml_serde::Error> = yaml_serde::Deserializer::from_str(&text).map(document).collect();
    documents.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The one Kubernetes object of this kind and name.
fn object(kind: &str, name: &str) -> Value {
    let files = std::fs::read_dir(repository("deploy/kubernetes")).unwrap().map(|entry| entry.unwrap().path());
    let manifests = files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    let mut found = manifests
        .flat_map(|path| yaml(path.to_str().unwrap()))
        .filter(|object| object["kind"] == kind && (object["metadata"]["name"] == name || kind == "Kustomization"));
    let object = found.next().unwrap_or_else(|| panic!("there is no {kind} {name}"));
    assert!(found.next().is_none(), "there are two of {kind} {name}");
    object
}

fn pod() -> Value {
    object("StatefulSet", "shard-manager")["spec"]["template"].clone()
}

fn container() -> Value {
    pod()["spec"]["containers"][0].clone()
}

fn services(prefix: &str) -> Vec<(String, Value)> {
    let compose = yaml("docker-compose.yml").remove(0);
    let services = compose["services"].as_object().unwrap();
    services.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(name, service)| (name.clone(), service.clone())).collect()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap().to_owned()).collect()
}

/// Of `15s` and the like.
fn seconds(value: &Value) -> Duration {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no time"));
    humantime_serde::re::humantime::parse_duration(text).unwrap()
}

/// The lines of the Dockerfile's last stage, continued ones joined.
fn image() -> Vec<String> {
    let joined = text("Dockerfile").replace("\\\n", " ");
    let stage = joined.rfind("\nFROM ").unwrap();
    joined[stage..].lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

/// What follows this instruction in the Dockerfile's last stage, by words.
fn instruction(name: &str) -> Vec<String> {
    let lines = image();
    let line = lines.iter().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("there is no {name}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// The arguments of an instruction in exec form, wherever in its line they stand.
fn exec_form(name: &str) -> Vec<String> {
    let line = instruction(name).join(" ");
    serde_json::from_str(&line[line.find('[').expect("exec form, not shell form")..]).unwrap()
}

/// The variables that every container of our image has.
fn image_variables() -> Vec<(String, String)> {
    instruction("ENV").iter().map(|pair| pair.split_once('=').unwrap()).map(|(name, value)| (name.into(), value.into())).collect()
}

#[track_caller]
fn load(toml: Option<&str>, env: Vec<(String, String)>) -> Config {
    let file = toml.map(|toml| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        file
    });
    let sources = Sources { file: file.as_ref().map(|file| file.path().to_owned()), env, sets: Vec::new() };
    let (config, _) = Config::load(&sources).unwrap_or_else(|error| panic!("refused: {error}"));
    assert_eq!(config.warnings(), Vec::<String>::new());
    config
}

fn on_kubernetes() -> Config {
    let map = object("ConfigMap", "shard-manager");
    load(map["data"]["shard-manager.toml"].as_str(), image_variables())
}

fn in_compose() -> Vec<Config> {
    let managers = services("manager-");
    let variables = |service: &Value| -> Vec<(String, String)> {
        let environment = service["environment"].as_object().unwrap();
        environment.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    };
    managers.iter().map(|(_, service)| load(None, [image_variables(), variables(service)].concat())).collect()
}

fn under_systemd() -> Config {
    load(Some(&text("deploy/systemd/shard-manager.toml")), Vec::new())
}

/// The time that the way down is bounded by: the commit in flight, the release, and four quarters of a second in between.
fn drain(config: &Config) -> Duration {
    config.persistence.request_timeout * 2 + Duration::from_secs(1)
}

/// Of a key in the unit's file; the last one, as systemd takes it.
fn unit(key: &str) -> String {
    let text = text("deploy/systemd/shard-manager.service");
    let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.next_back().unwrap_or_else(|| panic!("there is no {key}=")).to_owned()
}

#[track_caller]
fn is_a_command(arguments: &[String]) {
    if let Err(error) = cli::Arguments::try_parse_from(arguments) {
        panic!("{arguments:?}: {error}");
    }
}

#[test]
fn every_configuration_that_we_ship_is_accepted_and_says_where_the_state_is() {
    assert_eq!(load(None, image_variables()).persistence.kind, StoreKind::Sqlite);
    assert_eq!(under_systemd().persistence.kind, StoreKind::Sqlite);
    for config in in_compose() {
        assert_eq!(config.persistence.kind, StoreKind::Etcd);
        let members: Vec<String> = services("etcd-").iter().map(|(name, _)| format!("http://{name}:2379")).collect();
        assert_eq!(config.persistence.etcd.endpoints, members);
    }
    let config = on_kubernetes();
    assert_eq!(config.persistence.kind, StoreKind::Etcd);
    assert!(config.persistence.etcd.endpoints.iter().all(|endpoint| endpoint.starts_with("https://")), "never in the clear");
}

#[test]
fn the_lines_to_take_comments_off_are_accepted_too() {
    let map = object("ConfigMap", "shard-manager");
    let shipped = map["data"]["shard-manager.toml"].as_str().unwrap();
    let with_user = shipped.replace("# username =", "username =").replace("# password_file =", "password_file =");
    assert_ne!(shipped, with_user);
    load(Some(&with_user), image_variables());
}

#[test]
fn every_command_line_is_one_that_the_binary_takes() {
    assert_eq!(exec_form("ENTRYPOINT"), [BINARY]);
    is_a_command(&[exec_form("ENTRYPOINT"), exec_form("CMD")].concat());
    is_a_command(&exec_form("HEALTHCHECK"));
    is_a_command(&[vec![BINARY.to_owned()], strings(&container()["args"])].concat());
    let systemd: Vec<String> = unit("ExecStart").split_whitespace().map(str::to_owned).collect();
    assert_eq!(systemd[0], BINARY);
    is_a_command(&systemd);
    for (name, service) in services("manager-").into_iter().chain(services("executor-")) {
        is_a_command(&[vec![BINARY.to_owned()], strings(&service["command"])].concat());
        if name.starts_with("executor-") {
            assert!(strings(&service["command"]).contains(&format!("--id={name}")), "{name}");
            assert!(strings(&service["command"]).contains(&format!("--advertise={name}:7000")), "{name}");
            assert_eq!(service["healthcheck"]["disable"], true, "the image's check is one of managers");
        } else {
            is_a_command(&strings(&service["healthcheck"]["test"])[1..]);
        }
    }
}

#[test]
fn ports_are_the_same_everywhere() {
    let configs = in_compose().into_iter().chain([on_kubernetes(), load(None, image_variables())]);
    for config in configs {
        assert!(
            config.grpc.listen.ip().is_unspecified() && config.http.listen.ip().is_unspecified(),
            "to be reached from outside"
        );
        assert_eq!((config.grpc.listen.port(), config.http.listen.port()), (9092, 8081));
    }
    assert_eq!(instruction("EXPOSE"), ["9092", "8081"]);

    let ports = container()["ports"].clone();
    assert_eq!((&ports[0]["name"], &ports[0]["containerPort"]), (&"grpc".into(), &9092.into()));
    assert_eq!((&ports[1]["name"], &ports[1]["containerPort"]), (&"http".into(), &8081.into()));
    // gRPC probes take a number only.
    assert_eq!(container()["readinessProbe"]["grpc"]["port"], 9092);
    for probe in ["startupProbe", "livenessProbe"] {
        assert_eq!(container()[probe]["httpGet"]["port"], "http");
    }
    for name in ["shard-manager", "shard-manager-replicas"] {
        for port in object("Service", name)["spec"]["ports"].as_array().unwrap() {
            assert_eq!(port["port"], if port["name"] == "grpc" { 9092 } else { 8081 });
            assert_eq!(port["targetPort"], port["name"]);
        }
    }
    let policy = object("NetworkPolicy", "shard-manager");
    let policy: Vec<&Value> =
        policy["spec"]["ingress"].as_array().unwrap().iter().map(|rule| &rule["ports"][0]["port"]).collect();
    assert_eq!(policy, ["grpc", "http"]);

    let managers = services("manager-");
    let scraped = yaml("deploy/prometheus/prometheus.yml")[0]["scrape_configs"][0]["static_configs"][0]["targets"].clone();
    assert_eq!(strings(&scraped), managers.iter().map(|(name, _)| format!("{name}:8081")).collect::<Vec<_>>());
    for (_, service) in &managers {
        let ports = strings(&service["ports"]);
        assert!(ports[0].ends_with(":9092") && ports[1].ends_with(":8081") && ports.iter().all(|p| p.starts_with("127.0.0.1:")));
    }
    for (_, service) in services("executor-") {
        let arguments = strings(&service["command"]);
        let given = arguments.iter().find_map(|argument| argument.strip_prefix("--manager=")).unwrap();
        assert_eq!(given, managers.iter().map(|(name, _)| format!("{name}:9092")).collect::<Vec<_>>().join(","));
    }
}

#[tokio::test]
async fn probes_ask_for_what_is_served_and_a_standby_is_healthy() {
    let view = Arc::new(View::new(Arc::new(Metrics::new().unwrap()), "a test".to_owned()));
    view.enter(Phase::Standby);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router(view)).await });

    let get = async |path: &str| reqwest::get(format!("http://{address}{path}")).await.unwrap().status().as_u16();
    for probe in ["startupProbe", "livenessProbe"] {
        assert_eq!(get(container()[probe]["httpGet"]["path"].as_str().unwrap()).await, 200, "{probe}");
    }
    let monitor = object("ServiceMonitor", "shard-manager");
    assert_eq!(get(monitor["spec"]["endpoints"][0]["path"].as_str().unwrap()).await, 200);
    assert_eq!(get("/readyz").await, 503, "nor is a standby taken for a leader");
    assert_eq!(container()["readinessProbe"]["grpc"]["service"], rpc::shard_manager_server::SERVICE_NAME);

    let mut check = exec_form("HEALTHCHECK");
    assert_eq!(check.pop().unwrap(), "127.0.0.1:8081");
    check.push(address);
    let run = tokio::task::spawn_blocking(move || {
        Command::new(env!("CARGO_BIN_EXE_shard-manager")).args(&check[1..]).output().unwrap()
    });
    let output = run.await.unwrap();
    assert!(output.status.success(), "a standby is healthy: {output:?}");
}

#[test]
fn nobody_is_killed_while_draining() {
    let grace = Duration::from_secs(pod()["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap());
    assert_eq!(grace, drain(&on_kubernetes()) * 3, "as the comment there says");
    assert_eq!(seconds(&unit("TimeoutStopSec").into()), drain(&under_systemd()) * 3);
    for ((_, service), config) in services("manager-").iter().zip(in_compose()) {
        assert_eq!(seconds(&service["stop_grace_period"]), drain(&config) * 3);
    }
    for (_, service) in services("executor-") {
        let arguments = strings(&service["command"]);
        let leave = arguments.iter().find_map(|argument| argument.strip_prefix("--leave-timeout=")).unwrap();
        assert!(seconds(&service["stop_grace_period"]) > seconds(&leave.into()));
    }
}

/// Ready means "leads", so of three replicas two are never Ready. Whatever waits for Ready must not be waited for.
#[test]
fn a_standby_that_is_never_ready_stops_nothing() {
    let set = &object("StatefulSet", "shard-manager")["spec"];
    assert!(container()["readinessProbe"]["grpc"].is_object());
    assert_eq!(set["podManagementPolicy"], "Parallel", "OrderedReady would never start the second");
    assert_eq!(set["updateStrategy"]["type"], "OnDelete", "RollingUpdate would hang at the first standby");
    assert!(set["replicas"].as_u64() >= Some(3) && services("manager-").len() == 3);
    let budget = &object("PodDisruptionBudget", "shard-manager")["spec"];
    assert!(budget["minAvailable"].as_u64() <= Some(1) && budget["maxUnavailable"].is_null(), "one is Ready at the most");
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    let replicas = &object("Service", "shard-manager-replicas")["spec"];
    assert_eq!((&replicas["clusterIP"], &replicas["publishNotReadyAddresses"]), (&"None".into(), &true.into()));
    assert_eq!(set["serviceName"], "shard-manager-replicas");
    assert!(object("Service", "shard-manager")["spec"]["publishNotReadyAddresses"].is_null(), "the leader alone");
}

#[test]
fn manifests_speak_of_the_same_pods_files_and_image() {
    let labels = pod()["metadata"]["labels"].clone();
    let spec = |kind, name| object(kind, name)["spec"].clone();
    assert_eq!(spec("StatefulSet", "shard-manager")["selector"]["matchLabels"], labels);
    assert_eq!(spec("PodDisruptionBudget", "shard-manager")["selector"]["matchLabels"], labels);
    assert_eq!(spec("NetworkPolicy", "shard-manager")["podSelector"]["matchLabels"], labels);
    for name in ["shard-manager", "shard-manager-replicas"] {
        assert_eq!(spec("Service", name)["selector"], labels);
    }
    let monitor = spec("ServiceMonitor", "shard-manager");
    let replicas = object("Service", "shard-manager-replicas")["metadata"]["labels"].clone();
    assert_eq!(monitor["selector"]["matchLabels"], replicas, "standbys are scraped too");
    assert_eq!(replicas[monitor["jobLabel"].as_str().unwrap()], "shard-manager", "the alerts' job");
    assert_eq!(seconds(&monitor["endpoints"][0]["interval"]), SCRAPE);
    object("ServiceAccount", pod()["spec"]["serviceAccountName"].as_str().unwrap());

    let mounts = container()["volumeMounts"].clone();
    let mounted =
        |name: &str| mounts.as_array().unwrap().iter().find(|mount| mount["name"] == name).unwrap()["mountPath"].clone();
    let file = format!("{}/shard-manager.toml", mounted("config").as_str().unwrap());
    assert_eq!(strings(&container()["args"]), ["serve", "--config", &file]);
    let map = object("ConfigMap", pod()["spec"]["volumes"][0]["configMap"]["name"].as_str().unwrap());
    let toml = map["data"]["shard-manager.toml"].as_str().unwrap();
    let secrets = toml.lines().filter(|line| line.contains("_file = "));
    assert!(secrets.clone().count() >= 3 && secrets.into_iter().all(|line| line.contains(mounted("etcd").as_str().unwrap())));

    let listed: BTreeSet<String> = strings(&object("Kustomization", "")["resources"]).into_iter().collect();
    let files = std::fs::read_dir(repository("deploy/kubernetes")).unwrap().map(|entry| entry.unwrap().file_name());
    let files =
        files.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".yaml") && name != "kustomization.yaml");
    assert_eq!(listed, files.collect());

    let compiler =
        text("Dockerfile").lines().find_map(|line| line.strip_prefix("FROM rust:1.")?.split('-').next()?.parse::<u32>().ok());
    let needed = env!("CARGO_PKG_RUST_VERSION").split('.').nth(1).unwrap().parse::<u32>().unwrap();
    assert!(compiler.unwrap() >= needed, "the image is built with a Rust that can");

    let image = format!("shard-manager:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container()["image"], image.as_str());
    assert_eq!(object("Kustomization", "")["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
    for (name, service) in services("manager-").into_iter().chain(services("executor-")) {
        assert_eq!(service["image"], image.as_str(), "{name}");
    }
}

#[test]
fn nothing_runs_as_root_or_with_rights_that_it_does_not_need() {
    let user: Vec<u32> = instruction("USER")[0].split(':').map(|id| id.parse().expect("a number")).collect();
    let context = pod()["spec"]["securityContext"].clone();
    assert_eq!((&context["runAsUser"], &context["runAsGroup"]), (&user[0].into(), &user[1].into()));
    assert!(user[0] != 0 && context["runAsNonRoot"] == true && context["seccompProfile"]["type"] == "RuntimeDefault");
    let context = container()["securityContext"].clone();
    assert_eq!((&context["allowPrivilegeEscalation"], &context["readOnlyRootFilesystem"]), (&false.into(), &true.into()));
    assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"]);
    assert_eq!(pod()["spec"]["automountServiceAccountToken"], false);
    for (name, service) in services("manager-").into_iter().chain(services("executor-")) {
        assert!(service["read_only"] == true && strings(&service["cap_drop"]) == ["ALL"], "{name}");
    }
    assert_eq!(
        (unit("DynamicUser").as_str(), unit("NoNewPrivileges").as_str(), unit("ProtectSystem").as_str()),
        ("yes", "yes", "strict")
    );
    let path = under_systemd().persistence.sqlite.path;
    assert_eq!(path.parent().unwrap(), Path::new("/var/lib").join(unit("StateDirectory")), "the one place that it may write to");
    assert_eq!(unit("RestartPreventExitStatus"), "2", "a refused configuration, and nothing else, stays as it is");
}

fn alerts() -> Vec<Value> {
    yaml("deploy/prometheus/alerts.yml")[0]["groups"][0]["rules"].as_array().unwrap().clone()
}

#[test]
fn alerts_ask_for_metrics_and_labels_that_are_exported_before_their_first_event() {
    let exported = Metrics::new().unwrap().encode().unwrap();
    for alert in alerts() {
        let (name, expression) = (&alert["alert"], alert["expr"].as_str().unwrap());
        let mut metrics = 0;
        for part in expression.split("shard_manager_").skip(1) {
            let end = part.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap();
            let metric = format!("shard_manager_{}", &part[..end]);
            assert!(
                exported.lines().any(|line| line.starts_with(&format!("{metric}{{")) || line.starts_with(&format!("{metric} "))),
                "{name}: {metric}"
            );
            let selector = part[end..].strip_prefix("{job=\"shard-manager\"").unwrap_or_else(|| panic!("{name}: which job?"));
            let selector = &selector[..selector.find('}').unwrap()];
            for matcher in selector.split(',').map(str::trim).filter(|matcher| !matcher.is_empty()) {
                let (label, values) = matcher.split_once('=').unwrap();
                for value in values.trim_start_matches('~').trim_matches('"').split('|') {
                    let sample = format!("{metric}{{{label}=\"{value}\"}} 0");
                    assert!(exported.contains(&sample), "{name}: {sample}");
                }
            }
            metrics += 1;
        }
        assert!(metrics > 0 || expression.contains("up{job=\"shard-manager\"}"), "{name} asks for nothing of ours");
    }
}

/// As headings become anchors where Markdown is rendered.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
    };
    headings.map(slug).collect()
}

#[test]
fn links_of_the_deployment_page_lead_somewhere() {
    let page = text("docs/deploy.md");
    let links = page.split("](").skip(1).map(|rest| &rest[..rest.find(')').unwrap()]);
    for link in links.filter(|link| !link.contains("://")) {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.clone() } else { text(&format!("docs/{file}")) };
        assert!(anchor.is_empty() || anchors(&target).contains(anchor), "{link}");
    }
}

#[test]
fn every_alert_says_what_to_do_how_urgently_and_is_seen_firing() {
    let tests = text("deploy/prometheus/alerts_test.yml");
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(["page", "ticket"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        assert!(alert["annotations"]["summary"].is_string() && alert["annotations"]["description"].is_string(), "{name}");
        let runbook = alert["annotations"]["runbook"].as_str().unwrap();
        let (page, anchor) = runbook.split_once('#').unwrap();
        assert!(anchors(&text(page)).contains(anchor), "{name}: {runbook}");
        let fires =
            tests.contains(&format!("alertname=\"{name}\"")) || tests.contains(&format!("alertname: {name}\n        exp_alerts"));
        assert!(fires && tests.contains(&format!("alertname: {name}}}")), "{name} is seen firing, and not firing");
    }
}

#[test]
fn alerts_wait_for_what_heals_by_itself_and_no_longer() {
    let config = on_kubernetes();
    let wait = |name: &str| seconds(&alerts().iter().find(|alert| alert["alert"] == name).unwrap()["for"]);
    let election = config.leadership.lease_ttl + Duration::from_secs(1) + SCRAPE * 2;
    assert!((election..election * 2).contains(&wait("ShardManagerNoLeader")));
    assert!((SCRAPE * 2..SCRAPE * 5).contains(&wait("ShardManagerTwoLeaders")), "a hand-over shows two for a scrape");
    let lease = config.executors.lease_ttl;
    let crash = lease + Duration::from_millis(100) + lease / 100 + Duration::from_secs(1) + SCRAPE * 2;
    assert!((crash..crash * 2).contains(&wait("ShardManagerShardsUnserved")));
    let missing = alerts().into_iter().find(|alert| alert["alert"] == "ShardManagerReplicaMissing").unwrap();
    let replicas = object("StatefulSet", "shard-manager")["spec"]["replicas"].clone();
    assert!(missing["expr"].as_str().unwrap().ends_with(&format!("< {replicas}")));
}

/// Stands in for kubectl: three pods as files of `uid revision ready role`, in the directory `$PODS`; the second one leads.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
cd "$PODS"
case "$*" in
*"get statefulset"*generation*) echo "2 2" ;;
*"get statefulset"*replicas*) echo 3 ;;
*"get statefulset"*updateRevision*) echo new ;;
*"get pods"*) for pod in *; do read -r uid revision ready role <"$pod"; echo "$pod $revision $ready"; done ;;
*"get pod "*) read -r uid rest <"$3"; echo "$uid" ;;
"delete pod "*)
    read -r uid revision ready role <"$3"
    echo "$3" >>"$LOG"
    echo "$uid$uid new False $BECOMES" >"$3"
    # The first of the others takes over.
    [ "$ready" = False ] || for pod in *; do
        [ "$pod" != "$3" ] || continue
        read -r uid revision ready role <"$pod"
        echo "$uid $revision True leader" >"$pod"
        break
    done ;;
"exec "*) read -r uid revision ready role <"$2"; echo "{ \"role\": \"$role\" }" ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
"#;

/// The exit code, what was said on standard error, and the pods in the order in which they were deleted.
fn roll_out(becomes: &str) -> (Option<i32>, String, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let (pods, log, kubectl) = (directory.path().join("pods"), directory.path().join("log"), directory.path().join("kubectl"));
    std::fs::create_dir(&pods).unwrap();
    for (pod, state) in [("a", "1 old False standby"), ("b", "2 old True leader"), ("c", "3 old False standby")] {
        std::fs::write(pods.join(pod), format!("{state}\n")).unwrap();
    }
    std::fs::write(&kubectl, KUBECTL).unwrap();
    std::fs::set_permissions(&kubectl, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(repository("deploy/kubernetes/roll-out"));
    command.envs([("PATH", path.as_str()), ("BECOMES", becomes), ("PATIENCE", "1"), ("PAUSE", "0")]);
    let output = command.env("PODS", &pods).env("LOG", &log).env_remove("NAMESPACE").env_remove("STATEFULSET").output().unwrap();
    let deleted = std::fs::read_to_string(&log).unwrap_or_default();
    (output.status.code(), String::from_utf8(output.stderr).unwrap(), deleted.lines().map(str::to_owned).collect())
}

#[test]
fn a_roll_out_replaces_standbys_first_and_the_leader_last() {
    let (code, said, deleted) = roll_out("standby");
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(deleted, ["a", "c", "b"]);
}

#[test]
fn a_roll_out_stops_at_the_first_replica_that_does_not_come_back() {
    let (code, said, deleted) = roll_out("starting");
    assert_eq!(code, Some(1));
    assert!(said.contains("after 1s still waiting until a takes part"), "{said}");
    assert_eq!(deleted, ["a"], "the leader and a standby stay");
}

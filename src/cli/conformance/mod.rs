//! `conformance`: plays a manager against an executor, whatever it is written in, and says which rules for executors it breaks.

mod claims;
mod commands;
mod leases;
mod lives;
mod play;
mod record;
mod report;
mod rules;
mod stage;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use humantime_serde::re::humantime::parse_duration;
use tokio::net::TcpListener;

use self::play::{Play, Trouble, Verdict, unobserved};
use self::report::Report;
use self::rules::{LAST, ORDER, RULES, Rule};
use self::stage::Stage;
use super::Error;
use super::manager::Address;
use super::output::{self, Format};
use crate::types::BootInstant;

/// Leases between these keep a run between seconds and minutes.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// Plays a manager against one executor and says which rules it breaks.
///
/// Start the command first, then an executor that has its address as the manager's. The rules, E1 to E19, stand in docs/executors.md.
/// The run restarts nothing: it says when the executor is to be started again, and when it is to be ended.
///
/// Exit codes: 0 every required rule is kept, 1 a rule is broken, 2 usage, 3 none is broken but a required one was not observed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Arguments {
    /// Where commands go, as host:port or http://host:port; by default to where the executor says that it listens
    #[arg(long, value_name = "ADDR")]
    executor: Option<Address>,
    /// Where to listen as a manager; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 9092)))]
    listen: SocketAddr,
    /// How long to wait for the executor to register, and to be started and ended by whoever does that
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    wait: Duration,
    /// The lease that is granted, 1s to 60s. Work on a shard must stop within a quarter of it
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = lease)]
    lease: Duration,
    #[command(flatten)]
    format: Format,
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = parse_duration(text).map_err(|error| error.to_string())?;
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) { Ok(lease) } else { Err("it takes 1s to 60s".to_owned()) }
}

pub(super) async fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let Arguments { executor, listen, wait, lease, format } = arguments;
    let cannot_listen = |source| Error::Listen { listen, source };
    let listener = TcpListener::bind(listen).await.map_err(cannot_listen)?;
    let stage = Stage::open(listener, lease).map_err(cannot_listen)?;
    let must = executor.as_ref().map(|address| format!("; it must advertise {address}")).unwrap_or_default();
    output::say(&format!(
        "listening as a manager on {}: start your executor with the manager address http://{}{must}",
        stage.address, stage.address
    ));
    let mut play = Play { stage, lease, wait, address: executor, say: output::say, is_restless: false };
    let verdicts = play_all(&mut play).await;
    let first = play.stage.with(|state| state.registrations_since(BootInstant::default()).next().map(|(_, first)| first.clone()));
    let report = Report::new(first.as_ref(), verdicts);
    if format.json {
        output::print_json(&report)?
    } else {
        output::print(&report.to_text())?
    };
    Ok(report.exit_code())
}

/// The verdicts on [`RULES`], in their order.
async fn play_all(play: &mut Play) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = RULES.iter().map(|rule| unobserved(rule.hidden.unwrap_or("the run ended before"))).collect();
    let index = |id: &str| RULES.iter().position(|rule| rule.id == id);
    for index in ORDER.into_iter().filter_map(index) {
        verdicts[index] = scene(play, &RULES[index]).await;
        if ORDER.first() == Some(&RULES[index].id) {
            if !has_come(play) {
                return nobody(verdicts[index].clone());
            }
            compare_addresses(play);
        }
    }
    let has_ended = index("E12").is_some_and(|index| verdicts[index].is_ok());
    let restarted = if has_ended { lives::restart(play).await } else { Ok(()) };
    if let Some(index) = index(LAST) {
        verdicts[index] = match restarted {
            Ok(()) => scene(play, &RULES[index]).await,
            Err(trouble) => Err(trouble),
        };
    }
    let entries = play.stage.with(|state| std::mem::take(&mut state.entries));
    for (rule, verdict) in RULES.iter().zip(&mut verdicts) {
        let Some(reading) = rule.reading else { continue };
        let read = reading(&entries, play.lease);
        *verdict = match (rule.scene.is_some(), std::mem::replace(verdict, Ok(()))) {
            (true, scene) => worse(scene, read),
            (false, _) => read,
        };
    }
    // Who only read them knows nothing of those that were played for the reading's sake.
    play.stage.with(|state| state.entries = entries);
    verdicts
}

/// Plays one scene; once more where nothing could be seen.
async fn scene(play: &mut Play, rule: &Rule) -> Verdict {
    let Some(scene) = rule.scene else { return Ok(()) };
    let is_final = matches!(rule.id, "E1" | "E12" | LAST);
    let verdict = scene(play).await;
    match verdict {
        Err(Trouble::Unobserved(_)) if !is_final && !play.is_restless => scene(play).await,
        verdict => verdict,
    }
}

fn worse(one: Verdict, other: Verdict) -> Verdict {
    match (&one, &other) {
        (Err(Trouble::Broken(_)), _) | (_, Ok(())) => one,
        (_, Err(Trouble::Broken(_))) | (Ok(()), _) => other,
        _ => one,
    }
}

fn has_come(play: &Play) -> bool {
    play.stage.with(|state| state.executor_id.is_some())
}

/// Nobody registered: the same is to say of every rule.
fn nobody(why: Verdict) -> Vec<Verdict> {
    RULES.iter().map(|_| why.clone()).collect()
}

/// Says when commands do not go where the executor listens by its own account.
fn compare_addresses(play: &Play) {
    let advertised =
        play.stage.with(|state| state.registrations_since(BootInstant::default()).next().map(|(_, r)| r.endpoint.clone()));
    if let (Some(address), Some(advertised)) = (&play.address, advertised)
        && advertised.parse::<Address>().ok().as_ref() != Some(address)
    {
        output::say(&format!("the executor advertises {advertised}; commands go to {address}"));
    }
}

//! Rules about how one incarnation ends and the next begins: E12, E13, E14, E16.

use std::collections::BTreeSet;

use super::play::{GRACE, Play, Reply, SHARDS, Trouble, Verdict, broken, held_is, unobserved};
use super::record::{Claim, Entry, Outcome, Registration, Renewal, What, cut, listed, shown};
use super::stage::{Answer, State};
use crate::clock;
use crate::holdings::Holdings;
use crate::rpc::{self, reason};
use crate::types::{BootInstant, ClusterId, Version};

/// E13.
pub async fn unknown(play: &mut Play) -> Verdict {
    let before = Before::look(play).await?;
    play.stage.with(|state| {
        state.registrations = Answer::Bare;
        state.renewals = Answer::Refusal(before.incarnation, reason::UNKNOWN_EXECUTOR);
    });
    begins_anew(play, &before, "UNKNOWN_EXECUTOR").await?;
    stops_before_it_registers(play).await
}

/// E13, asked by a command as soon as the new incarnation takes one: what still stops then was not stopped before.
async fn stops_before_it_registers(play: &mut Play) -> Verdict {
    let before = Before::look(play).await?;
    play.stage.with(|state| {
        state.registrations = Answer::Bare;
        state.renewals = Answer::Refusal(before.incarnation, reason::UNKNOWN_EXECUTOR);
    });
    let registered = |state: &State| {
        let mut registrations = state.registrations_since(before.at);
        registrations.any(|(_, registration)| registration.outcome.is_lease()).then_some(())
    };
    if play.stage.find(clock::now().after(play.lease * 3 + GRACE), registered).await.is_none() {
        return unobserved("the second time it did not register anew");
    }
    let until = clock::now().after(play.lease / 2);
    loop {
        match play.command(|_| {}).await {
            Ok(Reply { held: Ok(held), .. }) if held.is_empty() => return Ok(()),
            Ok(reply) => {
                return broken(format!(
                    "told UNKNOWN_EXECUTOR, it registered anew, and to a command right after {}; it had to stop everything before",
                    held_is(&reply.held)
                ));
            }
            Err(bounce) if clock::now() > until => {
                bounce.heard()?;
                return unobserved(format!("registered anew, it refuses a command in order with {bounce}, see E7"));
            }
            // It has not taken the answer in yet.
            Err(_) => clock::sleep_until(clock::now().after(play.lease / 100)).await,
        }
    }
}

/// E14.
pub async fn other_cluster(play: &mut Play) -> Verdict {
    let before = Before::look(play).await?;
    play.stage.with(|state| {
        state.registrations = Answer::Bare;
        state.next_cluster();
    });
    begins_anew(play, &before, "WRONG_CLUSTER").await?;
    let before = Before::look(play).await?;
    play.stage.with(|state| {
        (state.registrations, state.renewals) = (Answer::Bare, Answer::Foreign(before.incarnation));
        state.next_cluster();
    });
    begins_anew(play, &before, "an answer that names another cluster").await
}

/// An incarnation at rest, just before it ends.
struct Before {
    at: BootInstant,
    incarnation: u64,
    cluster_id: ClusterId,
    mark: Version,
    used: BTreeSet<u64>,
}

impl Before {
    async fn look(play: &mut Play) -> Result<Before, Trouble> {
        play.rest(&SHARDS).await?;
        Ok(play.stage.with(|state| Before {
            at: clock::now(),
            incarnation: state.incarnation.unwrap_or_default(),
            cluster_id: state.cluster_id,
            mark: state.version,
            used: state.registrations_since(BootInstant::default()).map(|(_, registration)| registration.incarnation).collect(),
        }))
    }
}

async fn begins_anew(play: &mut Play, before: &Before, why: &str) -> Verdict {
    let Some((at, registration)) = play.registration(before.at, play.lease * 3 + GRACE).await else {
        let has_heard = |state: &State| {
            let mut renewals = state.renewals_since(before.at);
            renewals.any(|(_, renewal)| matches!(renewal.outcome, Outcome::Refused(_) | Outcome::Foreign))
        };
        return match play.stage.with(|state| has_heard(state)) {
            true => broken(format!("told {why}, it did not register anew within {:?}", play.lease * 3 + GRACE)),
            false => unobserved("it renews no more"),
        };
    };
    let Registration { incarnation, cluster_id, mark, .. } = registration;
    in_time(play, before, at, why)?;
    if before.used.contains(&incarnation) {
        return broken(format!("told {why}, it registered as incarnation {incarnation} again; expected a new one"));
    }
    if cluster_id != before.cluster_id.to_string() {
        let expected = before.cluster_id;
        return broken(format!(
            "told {why}, it registered naming cluster {cluster_id:?}; expected the one that it was in, {expected}"
        ));
    }
    if mark != Some(before.mark) {
        return broken(format!("told {why}, it registered with the mark {}; expected {}", shown(mark), before.mark));
    }
    // It was given nothing, so all that it can hold is what it did not stop.
    let first = |state: &State| {
        let mut renewals = state.renewals_since(at);
        renewals.find(|(_, renewal)| renewal.incarnation == incarnation).map(|(_, renewal)| renewal.claim.clone())
    };
    match play.stage.find(clock::now().after(play.lease * 2 + GRACE), first).await {
        Some(claim) if claim.is_nothing() => Ok(()),
        Some(claim) => broken(format!("told {why}, it registered anew and claims {claim}; it had to stop everything before")),
        None => unobserved("it registered anew and did not renew"),
    }
}

/// It was told, and does not wait for the end of its lease, after which it had to register anyway.
fn in_time(play: &Play, before: &Before, registered: BootInstant, why: &str) -> Verdict {
    let (told, over, went_on) = play.stage.with(|state| {
        let is_told = |renewal: &Renewal| matches!(renewal.outcome, Outcome::Refused(_) | Outcome::Foreign);
        let own = || state.renewals_since(before.at).filter(|(_, renewal)| renewal.incarnation == before.incarnation);
        let told = own().find(|(_, renewal)| is_told(renewal)).map_or(registered, |(at, _)| at);
        // Whoever renews so much later has heard it.
        let went_on = own().any(|(at, _)| at > told.after(play.lease / 4) && at < registered);
        (told, state.leased_before(told).after(play.lease), went_on)
    });
    // It counts its lease from a little earlier.
    if registered.after(play.lease / 8) < over {
        return Ok(());
    }
    let late = registered.since(told);
    if went_on {
        return broken(format!(
            "told {why}, it went on renewing and registered anew {late:.0?} later, when its lease was over anyway"
        ));
    }
    unobserved(format!("told {why}, it registered anew {late:.0?} later, when its lease was over anyway"))
}

/// E12. Ends the process.
pub async fn superseded(play: &mut Play) -> Verdict {
    let before = Before::look(play).await?;
    play.stage.with(|state| state.renewals = Answer::Refusal(before.incarnation, reason::SUPERSEDED));
    let told = |state: &State| {
        let mut renewals = state.renewals_since(before.at);
        renewals.find(|(_, renewal)| renewal.outcome == Outcome::Refused(reason::SUPERSEDED)).map(|(at, _)| at)
    };
    let Some(told) = play.stage.find(clock::now().after(play.lease * 2), told).await else {
        return unobserved("it renews no more");
    };
    let goes_on = |state: &State| {
        let registered = state.registrations_since(told).next().map(|(_, registration)| {
            format!(
                "told SUPERSEDED, it registered again, as incarnation {}; expected that its process ends",
                registration.incarnation
            )
        });
        registered.or_else(|| {
            let renewed = state.renewals_since(told).next();
            renewed.map(|(_, renewal)| format!("told SUPERSEDED, it went on renewing, claiming {}", renewal.claim))
        })
    };
    if let Some(how) = play.stage.find(clock::now().after(play.lease * 2), goes_on).await {
        return broken(how);
    }
    if let Some(reply) = takes_commands(play, |_| {}).await? {
        return broken(format!("told SUPERSEDED, it still takes commands: {}", held_is(&reply.held)));
    }
    match play.stage.with(|state| farewell(state, told)) {
        Some((incarnation, _)) if incarnation == before.incarnation => Ok(()),
        Some((incarnation, _)) => {
            broken(format!("told SUPERSEDED, it deregistered incarnation {incarnation}; expected {}", before.incarnation))
        }
        None => broken("told SUPERSEDED, it did not deregister: the newer process may have to wait for the end of its lease"),
    }
}

/// After [`superseded`], where that ended the process: has it started again.
pub async fn restart(play: &mut Play) -> Verdict {
    let since = clock::now();
    play.stage.with(|state| {
        state.entries.push(Entry { at: since, what: What::Restart });
        (state.registrations, state.renewals) = (Answer::Properly, Answer::Properly);
    });
    (play.say)("start the executor again now, with the same settings");
    match play.registration(since, play.wait).await {
        Some(_) => Ok(()),
        None => unobserved(format!("it was not started again within {:?}", play.wait)),
    }
}

/// E16. Ends the process.
pub async fn leaves(play: &mut Play) -> Verdict {
    let held = play.rest(&SHARDS).await?;
    let since = clock::now();
    let incarnation = play.incarnation().unwrap_or_default();
    (play.say)("end the executor now in order, as SIGTERM does");
    let began = play
        .stage
        .find(since.after(play.wait), |state| farewell(state, since).map(Some).or_else(|| asked(state, since).map(|_| None)));
    match began.await {
        None => return unobserved(format!("it was not ended within {:?}", play.wait)),
        Some(Some(_)) => {
            return broken("it deregistered without having asked to leave; expected leaving = true in a renewal first");
        }
        Some(None) => {}
    }
    goes_on_until_told(play, since, &held).await?;
    for shards in [&SHARDS[..1], &[]] {
        play.stage.with(|state| {
            let grants = state.grants(shards);
            state.assign(grants);
        });
        let wait_ms = u64::try_from((play.lease / 4).as_millis()).unwrap_or(u64::MAX);
        // Whether it is obeyed is told by renewals too.
        let _ = play.command(|request| request.wait_ms = wait_ms).await;
    }
    let until = clock::now().after(play.lease * 3 + GRACE);
    let Some((named, cluster_id)) = play.stage.find(until, |state| farewell(state, since)).await else {
        return broken("it asked to leave, its shards were taken away, and it did not deregister");
    };
    let expected = play.stage.with(|state| state.cluster_id.to_string());
    if (named, &cluster_id) != (incarnation, &expected) {
        return broken(format!(
            "it deregistered incarnation {named} of cluster {:?}; expected {incarnation} of {expected}",
            cut(&cluster_id)
        ));
    }
    match takes_commands(play, |request| request.incarnation = incarnation).await? {
        Some(reply) => broken(format!("it deregistered, and takes commands at {:?}: {}", play.endpoint(), held_is(&reply.held))),
        None => Ok(()),
    }
}

/// What it answers to a command, where it still takes any. One that ends may be in the middle of it, so where no answer comes it is asked
/// again, for as long as that may take.
async fn takes_commands(play: &Play, change: impl Fn(&mut rpc::ApplyAssignmentRequest)) -> Result<Option<Reply>, Trouble> {
    // A command that is not answered takes longer than a lease and twice the grace.
    let until = clock::now().after((play.lease + GRACE * 2) * 2);
    loop {
        let verdict = match play.command(&change).await {
            Ok(reply) => return Ok(Some(reply)),
            Err(bounce) => bounce.heard_or_gone(),
        };
        if verdict.is_ok() || clock::now() >= until {
            return verdict.map(|()| None);
        }
        clock::sleep_until(clock::now().after(play.lease / 100)).await;
    }
}

/// For a moment it still has everything: nobody took it away yet. No longer, since it need not wait for ever.
async fn goes_on_until_told(play: &Play, since: BootInstant, held: &Holdings) -> Verdict {
    let Some(asked) = play.stage.with(|state| asked(state, since)) else { return unobserved("it asked for nothing") };
    let left = |state: &State| farewell(state, since).map(|_| ());
    let has_left = play.stage.find(asked.after(play.lease / 8), left).await.is_some();
    play.stage.with(|state| {
        let lost = |claim: &Claim| match claim {
            Claim::Full(Ok(claimed)) => held.iter().any(|(shard, epoch)| claimed.epoch(shard) != Some(epoch)),
            // Whether it is the right one is E10's.
            other => other.is_nothing(),
        };
        let mut renewals = state.renewals_since(since).filter(|(at, _)| *at >= asked);
        match renewals.find(|(_, renewal)| lost(&renewal.claim)) {
            // Its patience cannot have ended before it began.
            Some((at, renewal)) if at == asked => broken(format!(
                "it asked to leave and claims {}; expected that it goes on with {} until they are taken away",
                renewal.claim,
                listed(held)
            )),
            None if !has_left => Ok(()),
            _ => unobserved("it gave up waiting before its shards were taken away: give it more patience, or a shorter --lease"),
        }
    })
}

/// When it first asked to leave.
fn asked(state: &State, since: BootInstant) -> Option<BootInstant> {
    state.renewals_since(since).find(|(_, renewal)| renewal.leaving).map(|(at, _)| at)
}

/// Whom it deregistered.
fn farewell(state: &State, since: BootInstant) -> Option<(u64, String)> {
    state.entries.iter().filter(|entry| entry.at > since).find_map(|entry| match &entry.what {
        What::Deregister(farewell) => Some((farewell.incarnation, farewell.cluster_id.clone())),
        _ => None,
    })
}

//! Rules about how one incarnation ends and the next begins: E12, E13, E14, E16.

use std::collections::BTreeSet;

use super::play::{Bounce, GRACE, Play, SHARDS, Trouble, Verdict, broken, held_is, unobserved};
use super::record::{Claim, Entry, Outcome, Registration, What, cut, listed, shown};
use super::stage::{Answer, State};
use crate::clock;
use crate::holdings::Holdings;
use crate::rpc::reason;
use crate::types::{BootInstant, ClusterId, Version};

/// E13.
pub async fn unknown(play: &mut Play) -> Verdict {
    let before = Before::look(play).await?;
    play.stage.with(|state| {
        state.registrations = Answer::Bare;
        state.renewals = Answer::Refusal(before.incarnation, reason::UNKNOWN_EXECUTOR);
    });
    begins_anew(play, &before, "UNKNOWN_EXECUTOR").await
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
    match play.command(|_| {}).await {
        Ok(reply) => broken(format!("told SUPERSEDED, it still takes commands: {}", held_is(&reply.held))),
        Err(_) => Ok(()),
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
    gone(play, play.command(|request| request.incarnation = incarnation).await)
}

fn gone(play: &Play, reply: Result<super::play::Reply, Bounce>) -> Verdict {
    match reply {
        Ok(reply) => broken(format!("it deregistered, and takes commands at {:?}: {}", play.endpoint(), held_is(&reply.held))),
        Err(_) => Ok(()),
    }
}

/// For two more renewals it still has everything: nobody took it away yet.
async fn goes_on_until_told(play: &Play, since: BootInstant, held: &Holdings) -> Verdict {
    let Some(asked) = play.stage.with(|state| asked(state, since)) else { return unobserved("it asked for nothing") };
    let two = |state: &State| (state.renewals_since(asked).count() >= 2 || farewell(state, since).is_some()).then_some(());
    if play.stage.find(asked.after(play.lease * 2), two).await.is_none() {
        return broken("it asked to leave and renewed no more, while its shards had nowhere to go yet");
    }
    play.stage.with(|state| {
        if farewell(state, since).is_some() {
            return broken("it asked to leave and deregistered before its shards were taken away");
        }
        let lost = |claim: &Claim| match claim {
            Claim::Full(Ok(claimed)) => held.iter().any(|(shard, epoch)| claimed.epoch(shard) != Some(epoch)),
            // Whether it is the right one is E10's.
            other => other.is_nothing(),
        };
        match state.renewals_since(asked).find(|(_, renewal)| lost(&renewal.claim)) {
            Some((_, renewal)) => broken(format!(
                "it asked to leave and claims {}; expected that it goes on with {} until they are taken away",
                renewal.claim,
                listed(held)
            )),
            None => Ok(()),
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

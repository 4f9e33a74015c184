//! Rules about commands and what is served: E4, E5, E6, E7, E15, E17.

use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use uuid::Uuid;

use super::play::{GRACE, Play, SHARDS, Trouble, Verdict, broken, held_is, lease_lost, unobserved};
use super::record::listed;
use crate::clock;
use crate::holdings::Holdings;
use crate::rpc::{self, reason};
use crate::types::{Epoch, ShardId};

/// Above every version that the played manager has.
const AHEAD: u64 = 1000;

/// E4.
pub async fn stale(play: &mut Play) -> Verdict {
    play.rest(&SHARDS).await?;
    let (version, held) = play.stage.with(|state| {
        state.next_term();
        state.version.revision.0 += 4;
        (state.version, state.assignment.clone())
    });
    let incarnation = play.incarnation();
    if let Err(bounce) = play.command(|_| {}).await {
        let how = format!("a command of a higher term with a lower revision was refused with {bounce}; terms compare first");
        return play.blame(&bounce, incarnation, how);
    }
    let at = |term: u64, revision: u64| {
        move |request: &mut rpc::ApplyAssignmentRequest| {
            request.version = Some(rpc::Version { term, revision });
            request.assignment = Some(rpc::Holdings { shards: vec![9], epochs: vec![5000] });
        }
    };
    let (term, revision) = (version.term.0, version.revision.0);
    play.refused("a command of a lower revision", reason::STALE_TERM, at(term, revision - 1)).await?;
    play.refused("a command of a lower term", reason::STALE_TERM, at(term - 1, revision + AHEAD)).await?;
    play.unmoved(&held).await
}

/// E5.
pub async fn foreign_address(play: &mut Play) -> Verdict {
    let held = play.rest(&SHARDS).await?;
    let nothing = |request: &mut rpc::ApplyAssignmentRequest| request.assignment = Some(rpc::Holdings::default());
    let wrong = reason::WRONG_INCARNATION;
    play.refused("a command for another incarnation", wrong, |request| {
        nothing(request);
        request.incarnation = request.incarnation.wrapping_add(1).max(1);
    })
    .await?;
    play.refused("a command for another executor", wrong, |request| {
        nothing(request);
        request.executor_id = if request.executor_id == "another" { "others".to_owned() } else { "another".to_owned() };
    })
    .await?;
    play.unmoved(&held).await
}

/// E6.
pub async fn foreign_cluster(play: &mut Play) -> Verdict {
    let held = play.rest(&SHARDS).await?;
    let term = play.stage.with(|state| state.version.term.0);
    play.refused("a command of another cluster", reason::WRONG_CLUSTER, |request| {
        request.cluster_id = Uuid::new_v4().to_string();
        request.version = Some(rpc::Version { term: term + AHEAD, revision: 1 });
        request.assignment = Some(rpc::Holdings::default());
    })
    .await?;
    play.unmoved(&held).await
}

/// E7. Renewals stay unanswered meanwhile, so that only commands can move anything.
pub async fn whole_assignment(play: &mut Play) -> Verdict {
    play.rest(&SHARDS).await?;
    let incarnation = play.incarnation();
    play.fall_silent().await?;
    let wait = play.lease / 4;
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let wanted = assign(play, &[2, 3, 4]);
    let mut last = Holdings::default();
    for attempt in ["a command", "the same command again"] {
        let reply = match play.command(|request| request.wait_ms = wait_ms).await {
            Ok(reply) => reply,
            Err(bounce) => return play.blame(&bounce, incarnation, format!("{attempt} in order was refused with {bounce}")),
        };
        if reply.took > wait + GRACE {
            return broken(format!("{attempt} was answered after {:?}; wait_ms was {wait_ms}", reply.took));
        }
        if play.is_lease_in_doubt(incarnation) {
            return lease_lost();
        }
        let Ok(held) = &reply.held else {
            return broken(format!("to {attempt} {}", held_is(&reply.held)));
        };
        let lacking: Vec<String> =
            wanted.iter().filter(|&(s, e)| held.epoch(s) != Some(e)).map(|(s, e)| format!("{s}@{e}")).collect();
        if !lacking.is_empty() {
            return broken(format!(
                "to {attempt} with {} {}; {} is missing, what is starting counts as held",
                listed(&wanted),
                held_is(&reply.held),
                lacking.join(", ")
            ));
        }
        last = held.clone();
    }
    if last != wanted {
        return broken(format!(
            "{:?} after it was assigned {} {}; what an assignment lacks is stopped",
            wait * 2,
            listed(&wanted),
            held_is(&Ok(last))
        ));
    }
    let reply = play.obeyed(|_| {}).await?;
    if reply.held.as_ref() != Ok(&wanted) {
        return broken(format!("after the same command again {}; expected {}", held_is(&reply.held), listed(&wanted)));
    }
    Ok(())
}

/// E15.
pub async fn other_epochs(play: &mut Play) -> Verdict {
    play.rest(&SHARDS).await?;
    let incarnation = play.incarnation();
    play.fall_silent().await?;
    let wait_ms = u64::try_from((play.lease / 8).as_millis()).unwrap_or(u64::MAX);
    play.stage.with(|state| state.epoch.0 += 10);
    let wanted = assign(play, &SHARDS);
    for _ in 0..2 {
        let reply = play.obeyed(|request| request.wait_ms = wait_ms).await?;
        if reply.held.as_ref() == Ok(&wanted) {
            break;
        }
    }
    let reply = play.obeyed(|request| request.wait_ms = wait_ms).await?;
    if play.is_lease_in_doubt(incarnation) {
        return lease_lost();
    }
    if reply.held.as_ref() != Ok(&wanted) {
        return broken(format!(
            "assigned the same shards at higher epochs, {}; expected {}",
            held_is(&reply.held),
            listed(&wanted)
        ));
    }
    let lower = Holdings::from_pairs(
        wanted.iter().map(|(shard, epoch)| (shard, if shard == ShardId(1) { Epoch(epoch.0 - 5) } else { epoch })),
    );
    play.stage.with(|state| state.version.revision.0 += 1);
    for _ in 0..2 {
        let reply = play.command(|request| {
            request.assignment = Some((&lower).into());
            request.wait_ms = wait_ms;
        });
        match reply.await {
            Ok(reply) if reply.held.as_ref().is_ok_and(|held| held.epoch(ShardId(1)) == lower.epoch(ShardId(1))) => {
                return broken(format!(
                    "it held {} and was assigned {}: {}; an epoch that it left behind must not come back",
                    listed(&wanted),
                    listed(&lower),
                    held_is(&reply.held)
                ));
            }
            Ok(_) => {}
            Err(bounce) if bounce.is_without_lease() && play.is_lease_in_doubt(incarnation) => return lease_lost(),
            Err(bounce) => return bounce.heard(),
        }
    }
    Ok(())
}

/// E17.
pub async fn health(play: &mut Play) -> Verdict {
    play.rest(&SHARDS).await?;
    let channel = play.connect().await.map_err(|bounce| Trouble::Unobserved(bounce.to_string()))?;
    let sent = clock::now();
    match HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await {
        Ok(answer) if answer.get_ref().status() == ServingStatus::Serving => Ok(()),
        Ok(answer) => {
            broken(format!("grpc.health.v1 says {:?} of a working executor; expected SERVING", answer.get_ref().status()))
        }
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            broken("grpc.health.v1 is not served; managers then only know that the port answers")
        }
        Err(status) if status.code() == tonic::Code::NotFound => {
            broken("grpc.health.v1 knows no service \"\", which is the one that managers ask for; expected SERVING")
        }
        Err(status) => unobserved(format!("grpc.health.v1 answers {:?} after {:?}", status.code(), clock::now().since(sent))),
    }
}

fn assign(play: &Play, shards: &[u32]) -> Holdings {
    play.stage.with(|state| {
        let grants = state.grants(shards);
        state.assign(grants.clone());
        grants
    })
}

//! What the engine says happened, as log lines: what, to whom, and what happens next.

use tracing::{info, warn};

use crate::assignment::command::{Notice, Raised};
use crate::assignment::record::Wish;
use crate::assignment::state::Pause;
use crate::clock;
use crate::types::ShardId;

/// Writes one line.
pub(super) fn log(notice: &Notice) {
    match notice {
        Notice::Joined { id, incarnation, endpoint, replaces: None } => {
            info!(executor = %id, %incarnation, %endpoint, "an executor joined; it gets its share once joins have settled");
        }
        Notice::Joined { id, incarnation, endpoint, replaces: Some((old, true)) } => info!(
            executor = %id, %incarnation, %endpoint, replaces = %old,
            "an executor joined as a new incarnation, the old one is proven gone; it takes over its shards at higher epochs"
        ),
        Notice::Joined { id, incarnation, endpoint, replaces: Some((old, false)) } => warn!(
            executor = %id, %incarnation, %endpoint, replaces = %old,
            "an executor joined under an id that another process may still use; that one is superseded, and its shards follow as it \
             confirms or its lease ends"
        ),
        Notice::Lapsed { id, incarnation, shards } => {
            warn!(executor = %id, %incarnation, shards, "a lease ran out; the executor's shards go to others");
        }
        Notice::Left { id, incarnation, shards } => {
            info!(executor = %id, %incarnation, shards, "an executor left; shards that it still owned go to others");
        }
        Notice::Wished { id, wish } => {
            let next = match wish {
                Wish::None => "it takes shards again",
                Wish::Cordon => "it gets no new shards",
                Wish::Drain => "its shards leave as long as somebody can take them",
                Wish::Remove => "its shards leave, and then its id is barred until it is admitted again",
            };
            info!(executor = %id, ?wish, "an operator's wish is in force; {next}");
        }
        Notice::Paused { pause: Pause { until_unix_ms, by, reason }, found } => {
            let (until, found) =
                (clock::text(*until_unix_ms), if *found { ", as a leader before this one wrote down" } else { "" });
            info!(until, asked_by = by, reason, "rebalancing is paused until {until}{found}: nothing moves for balance");
        }
        Notice::Resumed { asked } => {
            let why = if *asked { "an operator ended its pause" } else { "its pause is over" };
            info!("rebalancing goes on: {why}");
        }
        Notice::Removed { id, incarnation, shards, dead: false } => info!(
            executor = %id, %incarnation, shards,
            "a removed executor is no more; its id is barred until `shard-manager admit`"
        ),
        Notice::Removed { id, incarnation, shards, dead: true } => warn!(
            executor = %id, %incarnation, shards,
            "an operator said that this executor's process is gone; its shards are free at once, and its id is barred until \
             `shard-manager admit`"
        ),
        Notice::Admitted { id } => info!(executor = %id, "a removal was taken back; the id may register, and have shards, again"),
        Notice::Moved { cause, shards } => {
            info!(cause = cause.as_str(), shards, "shards were granted to other owners than before")
        }
        Notice::NotAdmitted { shards, id, suspect_for: Some(suspect_for) } => warn!(
            executor = %id, count = shards.len(), shards = some(shards), ?suspect_for,
            "shards were not started by their owner in time, or not kept; they are released and go elsewhere if somebody else can take \
             them, and it is suspect for a while"
        ),
        Notice::NotAdmitted { shards, id, suspect_for: None } => warn!(
            executor = %id, count = shards.len(), shards = some(shards),
            "shards were not started by their owner in time, or not kept, and not by the owner before it either: it may be the shards; \
             they are released and go elsewhere if somebody else can take them"
        ),
        Notice::ReleaseTimedOut { shards, id } => warn!(
            executor = %id, count = shards.len(), shards = some(shards),
            "a release was not confirmed for a whole lease; the shards count as free and are granted anew"
        ),
        Notice::EpochsRaised(Raised { shards, highest, above }) => warn!(
            shards, %highest, recorded = %above,
            "epochs were shown that are above the recorded ones: was the store wiped or restored? The records are raised above them"
        ),
        Notice::TermRaised { shown } => warn!(
            %shown,
            "a version was shown that is above this leadership's: was the store wiped or restored? The term is raised above it"
        ),
        Notice::Stalled { delay } => {
            warn!(?delay, "this process was stopped or starved; every executor's lease is extended by as much");
        }
        Notice::StoreRestored { shown, loaded, held_back } => warn!(
            %shown, %loaded, ?held_back,
            "an executor has seen a newer state than the store had: the store was restored. Executors keep what they say that they hold; \
             everything else is granted anew, at higher epochs, once the leases of the lost state must be over"
        ),
        Notice::ForeignCluster { id, cluster_id, held_back } => warn!(
            executor = %id, from = %cluster_id, ?held_back,
            "an executor came from another cluster: was the store wiped? No shard is granted until its old lease must be over"
        ),
    }
}

/// The first few of a list, for a line of a log.
fn some(shards: &[ShardId]) -> String {
    const FEW: usize = 8;
    let few: Vec<String> = shards.iter().take(FEW).map(ToString::to_string).collect();
    let more = if shards.len() > FEW { ", ..." } else { "" };
    format!("{}{more}", few.join(", "))
}

//! What the engine says happened, as log lines: what, to whom, and what happens next.

use tracing::{info, warn};

use crate::assignment::command::Notice;
use crate::assignment::record::Wish;

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
            };
            info!(executor = %id, ?wish, "an operator's wish is in force; {next}");
        }
        Notice::Moved { cause, shards } => {
            info!(cause = cause.as_str(), shards, "shards were granted to other owners than before")
        }
        Notice::NotAdmitted { shard, id } => warn!(
            %shard, executor = %id,
            "a shard was not started in time by its owner; it is released, and goes elsewhere if somebody else can take it"
        ),
        Notice::ReleaseTimedOut { shard, id } => {
            warn!(%shard, executor = %id, "a release was not confirmed for a whole lease; the shard counts as free and is granted anew");
        }
        Notice::EpochRaised { shard, recorded, shown } => warn!(
            %shard, %recorded, %shown,
            "an epoch was shown that is above the recorded one: was the store wiped or restored? The record is raised above it"
        ),
        Notice::TermRaised { shown } => warn!(
            %shown,
            "a version was shown that is above this leadership's: was the store wiped or restored? The term is raised above it"
        ),
        Notice::Stalled { delay } => {
            warn!(?delay, "this process was stopped or starved; every executor's lease is extended by as much");
        }
        Notice::ForeignCluster { id, cluster_id, held_back } => warn!(
            executor = %id, from = %cluster_id, ?held_back,
            "an executor came from another cluster: was the store wiped? No shard is granted until its old lease must be over"
        ),
    }
}

//! What a ledger says, as an engine takes it in, and what an engine answers, as a ledger does: for tests that let them talk to each
//! other without a wire.

use shard_manager::assignment::command::LeaseAnswer;
use shard_manager::assignment::event::{Claim, Renewal};
use shard_manager::client::ledger::{Answer, Attempt};
use shard_manager::holdings::Holdings;
use shard_manager::types::{ClusterId, ExecutorId};

/// An attempt to renew, by this executor, at this cluster.
pub fn renewal(id: ExecutorId, cluster_id: ClusterId, attempt: &Attempt) -> Renewal {
    let claim = match attempt.in_full {
        true => Claim::Full(Holdings::clone(&attempt.claim)),
        false => Claim::Digest(attempt.claim.digest()),
    };
    let (incarnation, mark, leaving) = (attempt.incarnation, attempt.mark, attempt.leaving);
    Renewal { id, incarnation, cluster_id, mark, claim, leaving, storage_epochs: attempt.storage_epochs.clone() }
}

/// A lease that was granted or renewed.
pub fn answer(lease: &LeaseAnswer) -> Answer {
    let LeaseAnswer { cluster_id, version, number_of_shards, lease_ttl, assignment, claim_wanted } = lease.clone();
    Answer { cluster_id, version, number_of_shards, lease_ttl, assignment, claim_wanted }
}

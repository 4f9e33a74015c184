//! Rules about what renewals say: E3, E10, E19.

use std::collections::BTreeMap;

use super::leases;
use super::play::{Play, SHARDS, Trouble, Verdict, broken, held_is, unobserved};
use super::record::{Claim, Entry, Outcome, What, listed, shown};
use super::stage::{Answer, State};
use crate::clock;
use crate::types::{BootInstant, Version};

/// A renewal may have been on its way while the answer to another was: so many later the mark must have arrived.
const RENEWALS_TO_CATCH_UP: u32 = 3;

/// E3: a command raises the mark while no renewal is answered.
pub async fn carries_its_mark(play: &mut Play) -> Verdict {
    play.rest(&SHARDS).await?;
    play.fall_silent().await?;
    play.stage.with(|state| state.version.revision.0 += 1);
    play.obeyed(|_| {}).await?;
    two_renewals(play, clock::now()).await
}

async fn two_renewals(play: &Play, since: BootInstant) -> Verdict {
    let two = |state: &State| (state.renewals_since(since).count() >= 2).then_some(());
    match play.stage.find(since.after(play.lease * 2), two).await {
        Some(()) => Ok(()),
        None => unobserved("fewer than two renewals came before its lease was over"),
    }
}

/// E3, of the whole run.
pub fn marks(entries: &[Entry]) -> Verdict {
    // Marks of different clusters do not compare.
    let mut known: BTreeMap<(u64, &str), Marks> = BTreeMap::new();
    for entry in entries {
        match &entry.what {
            What::Restart => known.clear(),
            What::Obeyed(obeyed) => {
                let marks = known.entry((obeyed.incarnation, &obeyed.cluster_id)).or_default();
                if obeyed.mark.is_none_or(|mark| mark < obeyed.version.max(marks.certain)) {
                    return broken(format!(
                        "the answer to a command at {} carries the mark {}; it accepted {} before",
                        obeyed.version,
                        shown(obeyed.mark),
                        marks.certain
                    ));
                }
                marks.fresh = marks.fresh.max(obeyed.version).max(obeyed.mark.unwrap_or_default());
            }
            What::Renew(renewal) => {
                let marks = known.entry((renewal.incarnation, &renewal.cluster_id)).or_default();
                let Some(mark) = renewal.mark else { return broken("a renewal carries no mark") };
                if mark < marks.certain {
                    return broken(format!("a renewal carries the mark {mark}; it accepted {} before", marks.certain));
                }
                if mark > renewal.newest && renewal.is_at_home {
                    return broken(format!(
                        "a renewal carries the mark {mark}; the newest that it was told is {}",
                        renewal.newest
                    ));
                }
                marks.certain = marks.certain.max(marks.fresh).max(mark);
                if let Some((version, renewals)) = &mut marks.awaited {
                    *renewals += 1;
                    if mark >= *version {
                        marks.awaited = None;
                    } else if *renewals >= RENEWALS_TO_CATCH_UP {
                        return broken(format!("{renewals} renewals after an answer at {version} one carries the mark {mark}"));
                    }
                }
                if let Outcome::Lease { version, .. } = renewal.outcome
                    && marks.awaited.is_none()
                {
                    marks.awaited = Some((version, 0));
                }
            }
            _ => {}
        }
    }
    if entries.iter().any(|entry| matches!(entry.what, What::Renew(_))) { Ok(()) } else { unobserved("it never renewed") }
}

/// What is known of one incarnation's mark.
#[derive(Default)]
struct Marks {
    /// The next renewal carries this at least.
    certain: Version,
    /// The one after the next does.
    fresh: Version,
    /// The answer to a renewal, and how many came since.
    awaited: Option<(Version, u32)>,
}

/// E10: a claim in full when asked for one, and for as long as no claim in full was answered.
pub async fn claims(play: &mut Play) -> Verdict {
    if let Err(restless) = play.rest(&SHARDS).await {
        return match inexact(play).await {
            Some(broken) => Err(broken),
            None => Err(restless),
        };
    }
    claims_in_full_when_asked(play).await?;
    play.rest(&SHARDS).await?;
    play.fall_silent().await?;
    let fewer = play.stage.with(|state| {
        let fewer = state.grants(&SHARDS[..2]);
        state.assign(fewer.clone());
        fewer
    });
    let wait_ms = u64::try_from((play.lease / 4).as_millis()).unwrap_or(u64::MAX);
    let told = clock::now();
    let reply = play.obeyed(|request| request.wait_ms = wait_ms).await?;
    if reply.held.as_ref() != Ok(&fewer) {
        return unobserved(format!("after a command {}, see E7", held_is(&reply.held)));
    }
    let changed = clock::now();
    // A claim in full that is lost, and another. The first may come as soon as the shard has stopped, before the command is answered.
    let look = |state: &State| {
        let claims = || state.renewals_since(told).map(|(at, renewal)| (at, &renewal.claim));
        if claims().any(|(_, claim)| *claim == Claim::Digest(fewer.digest())) {
            return Some(Some(Claim::Digest(fewer.digest())));
        }
        if claims().filter(|(_, claim)| **claim == Claim::Full(Ok(fewer.clone()))).count() >= 2 {
            return Some(None);
        }
        // Of those that came later one may have been on its way. What the lease ended meanwhile is another rule's.
        let is_other = |claim: &Claim| *claim != Claim::Full(Ok(fewer.clone())) && !claim.is_nothing();
        claims().filter(|(at, claim)| *at > changed && is_other(claim)).nth(1).map(|(_, claim)| Some(claim.clone()))
    };
    match play.stage.find(changed.after(play.lease * 2), look).await {
        Some(None) => Ok(()),
        Some(Some(claim)) => broken(format!(
            "it holds {} and claims {claim}, while no claim in full was answered since that changed; expected it in full",
            listed(&fewer)
        )),
        None => unobserved("fewer than two claims came before its lease was over"),
    }
}

/// Twice over: the next claim is one in full, and no such answer renews the lease.
async fn claims_in_full_when_asked(play: &mut Play) -> Verdict {
    let since = clock::now();
    let digest = |state: &State| {
        let mut renewals = state.renewals_since(since);
        renewals.any(|(_, renewal)| renewal.outcome.is_lease() && matches!(renewal.claim, Claim::Digest(_))).then_some(())
    };
    if play.stage.find(since.after(play.lease * 2), digest).await.is_none() {
        // It always claims in full, which always is enough.
        return Ok(());
    }
    let leased_at = play.stage.with(|state| {
        (state.registrations, state.renewals) = (Answer::Never, Answer::ClaimWanted);
        state.leased_at()
    });
    let asked = |state: &State| {
        state.renewals_since(since).find(|(_, renewal)| renewal.outcome == Outcome::ClaimWanted).map(|(at, _)| at)
    };
    let Some(asked) = play.stage.find(clock::now().after(play.lease * 2), asked).await else {
        return unobserved("it renews no more");
    };
    let next = |state: &State| state.renewals_since(asked).next().map(|(_, renewal)| renewal.claim.clone());
    match play.stage.find(clock::now().after(play.lease * 2), next).await {
        Some(Claim::Full(_)) => {}
        Some(claim) => return broken(format!("asked with claim_wanted, it claims {claim}; expected a claim in full")),
        None => return unobserved("it renews no more"),
    }
    let over = play.lease_end(leased_at).await;
    if let Err(bounce) = play.command(|_| {}).await {
        return bounce.heard();
    }
    let late = clock::now().since(over);
    play.sit_out(asked).await;
    let how =
        format!("{late:.0?} after its lease was over it had another: an answer with claim_wanted and no assignment renewed it");
    leases::had_a_lease(play, how).await
}

/// It never says what it holds, if that is why it does not come to rest.
async fn inexact(play: &Play) -> Option<Trouble> {
    // A digest stands for the last claim in full.
    let (assignment, claim) = play.stage.with(|state| {
        let claims = state.renewals_since(BootInstant::default()).map(|(_, renewal)| &renewal.claim);
        (state.assignment.clone(), claims.filter(|claim| !matches!(claim, Claim::Digest(_))).last().cloned())
    });
    let (reply, claim) = (play.command(|_| {}).await.ok()?, claim?);
    (!claim.is(&assignment) && reply.held.as_ref() == Ok(&assignment)).then(|| {
        let held = listed(&assignment);
        Trouble::Broken(format!("renewals claim {claim}; to commands it says that it holds {held}"))
    })
}

/// E10, of the whole run: a digest is that of the last claim in full that was answered.
pub fn digests(entries: &[Entry]) -> Verdict {
    let mut announced: BTreeMap<u64, crate::holdings::Holdings> = BTreeMap::new();
    let mut is_seen = false;
    for entry in entries {
        let renewal = match &entry.what {
            What::Renew(renewal) => renewal,
            What::Restart => {
                announced.clear();
                continue;
            }
            _ => continue,
        };
        is_seen = true;
        match (&renewal.claim, announced.get(&renewal.incarnation)) {
            (Claim::Full(Ok(held)), _) => {
                if renewal.outcome.is_lease() || renewal.outcome == Outcome::Open {
                    announced.insert(renewal.incarnation, held.clone());
                }
            }
            (Claim::Full(Err(_)) | Claim::Missing, _) => return broken(format!("a renewal claims {}", renewal.claim)),
            (Claim::Digest(_), None) => {
                return broken(format!("a renewal claims {} before a claim in full was answered", renewal.claim));
            }
            (Claim::Digest(digest), Some(held)) if *digest != held.digest() => {
                let (held, expected) = (listed(held), held.digest());
                return broken(format!(
                    "a renewal claims {}; the last claim in full, {held}, has {expected:#018x}",
                    renewal.claim
                ));
            }
            (Claim::Digest(_), Some(_)) => {}
        }
        if renewal.outcome == Outcome::ClaimWanted {
            // A claim in full that was answered so is still known.
            if matches!(renewal.claim, Claim::Digest(_)) {
                announced.remove(&renewal.incarnation);
            }
        }
    }
    if is_seen { Ok(()) } else { unobserved("it never renewed") }
}

/// E19, of the whole run.
pub fn storage_epochs(entries: &[Entry]) -> Verdict {
    let mut is_seen = false;
    for entry in entries {
        let What::Renew(renewal) = &entry.what else { continue };
        match &renewal.storage_epochs {
            Some(Err(invalid)) => return broken(format!("storage_epochs is no set: {invalid}")),
            Some(Ok(epochs)) => is_seen |= !epochs.is_empty(),
            None => {}
        }
    }
    if is_seen {
        return Ok(());
    }
    unobserved("its storage refused no epoch: let it have seen a higher epoch of shard 1 than is granted, and look again")
}

#[cfg(test)]
mod tests {
    use super::super::record::{Obeyed, Renewal};
    use super::*;
    use crate::holdings::Holdings;
    use crate::types::{Epoch, Revision, ShardId, Term};

    fn version(revision: u64) -> Version {
        Version { term: Term(5), revision: Revision(revision) }
    }

    fn set(epoch: u64) -> Holdings {
        Holdings::from_pairs([(ShardId(1), Epoch(epoch))])
    }

    fn renew(mark: u64, claim: Claim, outcome: Outcome) -> Entry {
        let renewal = Renewal {
            incarnation: 7,
            cluster_id: String::new(),
            is_at_home: true,
            mark: Some(version(mark)),
            claim,
            leaving: false,
            storage_epochs: None,
            newest: version(100),
            outcome,
        };
        Entry { at: BootInstant::default(), what: What::Renew(renewal) }
    }

    fn lease(revision: u64) -> Outcome {
        Outcome::Lease { at: BootInstant::default(), version: version(revision) }
    }

    fn obeyed(revision: u64, mark: u64) -> Entry {
        let what = What::Obeyed(Obeyed {
            incarnation: 7,
            cluster_id: String::new(),
            version: version(revision),
            mark: Some(version(mark)),
        });
        Entry { at: BootInstant::default(), what }
    }

    fn is_broken(verdict: &Verdict) -> bool {
        matches!(verdict, Err(Trouble::Broken(_)))
    }

    #[test]
    fn marks_never_go_back_and_are_never_invented() {
        let renewal = |mark| renew(mark, Claim::Digest(0), Outcome::Lost);
        assert_eq!(marks(&[renewal(1), obeyed(2, 2), renewal(1), renewal(2), obeyed(2, 2)]), Ok(()), "one may be on its way");
        assert!(is_broken(&marks(&[renewal(1), obeyed(2, 2), renewal(1), renewal(1)])));
        assert!(is_broken(&marks(&[renewal(3), renewal(2)])));
        assert!(is_broken(&marks(&[renewal(3), obeyed(3, 2)])));
        assert!(is_broken(&marks(&[renewal(101)])));
        let answered = |mark, revision| renew(mark, Claim::Digest(0), lease(revision));
        assert_eq!(marks(&[answered(1, 5), renewal(1), renewal(5)]), Ok(()));
        assert!(is_broken(&marks(&[answered(1, 5), renewal(1), renewal(1), renewal(1)])));
    }

    #[test]
    fn a_digest_stands_for_the_last_claim_in_full_that_was_answered() {
        let (full, digest) = (|epoch| Claim::Full(Ok(set(epoch))), |epoch| Claim::Digest(set(epoch).digest()));
        assert_eq!(digests(&[renew(1, full(7), lease(1)), renew(1, digest(7), lease(1))]), Ok(()));
        assert!(is_broken(&digests(&[renew(1, digest(7), lease(1))])));
        assert!(is_broken(&digests(&[renew(1, full(7), Outcome::Lost), renew(1, digest(7), lease(1))])));
        assert!(is_broken(&digests(&[renew(1, full(7), lease(1)), renew(1, digest(8), lease(1))])));
        let asked = renew(1, digest(7), Outcome::ClaimWanted);
        assert!(is_broken(&digests(&[renew(1, full(7), lease(1)), asked, renew(1, digest(7), lease(1))])));
        assert!(is_broken(&digests(&[renew(1, Claim::Full(Err("no".to_owned())), lease(1))])));
    }

    #[test]
    fn storage_epochs_are_a_set_where_there_are_any() {
        let with = |epochs| {
            let mut entry = renew(1, Claim::Digest(0), lease(1));
            if let What::Renew(renewal) = &mut entry.what {
                renewal.storage_epochs = epochs;
            }
            storage_epochs(&[entry])
        };
        assert!(matches!(with(None), Err(Trouble::Unobserved(_))));
        assert_eq!(with(Some(Ok(set(9)))), Ok(()));
        assert!(is_broken(&with(Some(Err("shard 99 does not exist".to_owned())))));
    }
}

//! Rules about the lease: E1, E2, E9, E11, E18.
//!
//! That a lease is over is asked for with a command, after it must be over by anybody's clock: an executor that is only slow
//! answers it right all the same, so a busy machine breaks no rule here.

use std::collections::BTreeSet;
use std::time::Duration;

use super::play::{Bounce, GRACE, Play, Reply, SHARDS, Trouble, Verdict, broken, lease_lost, unobserved};
use super::record::{Entry, Outcome, Registration, Renewal, What, listed, shown};
use super::stage::{Answer, State};
use crate::cli::manager::Address;
use crate::clock;
use crate::rpc;
use crate::types::{BootInstant, ExecutorId, MAX_WEIGHT, Revision, Version};

/// The longest time for which the first registration waits for its answer.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// E1: the first registration of a process.
pub async fn registers(play: &mut Play) -> Verdict {
    let since = clock::now();
    let delay = (play.lease / 2).min(LONGEST_DELAY);
    play.stage.with(|state| {
        (state.registrations, state.renewals) = (Answer::Late(delay), Answer::Never);
        let grants = state.grants(&SHARDS);
        state.assign(grants);
    });
    let Some((_, registration)) = play.registration(since, play.wait).await else {
        return unobserved(format!("nobody registered within {:?}", play.wait));
    };
    fields(&registration)?;
    // It is not answered yet.
    let incarnation = registration.incarnation;
    let early = play.command(|request| request.incarnation = incarnation).await;
    let is_early = play.incarnation().is_none();
    match early {
        Ok(_) if is_early => return broken("it took a command before its registration was answered"),
        Err(bounce) if bounce.reason.is_none() => {
            return unobserved(format!("before its registration was answered, a command to it failed with {bounce}"));
        }
        _ => {}
    }
    counts_from_sending(play, delay).await
}

/// The registration was answered late: the lease that it earned is over one lease after it was sent, not after it was answered.
async fn counts_from_sending(play: &mut Play, delay: Duration) -> Verdict {
    let registered = |state: &State| {
        let answered =
            state.registrations_since(BootInstant::default()).find_map(|(at, registration)| match registration.outcome {
                Outcome::Lease { at: answered, .. } => Some((at, answered)),
                _ => None,
            });
        answered.filter(|_| state.incarnation.is_some())
    };
    let until = clock::now().after(play.lease * 2 + GRACE);
    let Some((sent, answered)) = play.stage.find(until, registered).await else {
        return unobserved(format!("a registration that is answered after {delay:?} is not waited for"));
    };
    play.stage.with(|state| state.registrations = Answer::Never);
    until_taken(play, sent.after(play.lease)).await?;
    clock::sleep_until(sent.after(play.lease + delay / 2)).await;
    if let Err(bounce) = play.command(|_| {}).await {
        return bounce.heard();
    }
    if clock::now() > answered.after(play.lease) {
        return unobserved("this machine was too busy to look in time");
    }
    clock::sleep_until(answered.after(play.lease + play.lease / 4)).await;
    let how = format!(
        "its lease of {:?} lived on after the time since it sent the registration; it seems to count from the answer, {delay:?} later",
        play.lease
    );
    had_a_lease(play, how).await
}

/// It took a command after its lease had to be over. If it takes none now, it had another lease, for a reason that `how` says; unless it
/// takes them for a while after any lease.
pub async fn had_a_lease(play: &mut Play, how: String) -> Verdict {
    match play.command(|_| {}).await {
        Ok(_) => return unobserved("it takes commands without a lease, see E9"),
        Err(bounce) => bounce.heard()?,
    }
    match commands_extend_nothing(play).await {
        Err(Trouble::Broken(_)) => unobserved("it takes commands after its lease, see E9"),
        _ => broken(how),
    }
}

/// Waits until the executor has taken in that it has a lease: it then takes a command.
async fn until_taken(play: &Play, deadline: BootInstant) -> Verdict {
    loop {
        match play.command(|_| {}).await {
            Ok(_) => return Ok(()),
            Err(bounce) if clock::now() > deadline => {
                return unobserved(format!("it has a lease and refuses a command in order with {bounce}"));
            }
            Err(_) => clock::sleep_until(clock::now().after(play.lease / 50)).await,
        }
    }
}

fn fields(registration: &Registration) -> Verdict {
    let Registration { executor_id, incarnation, endpoint, weight, .. } = registration;
    if let Err(invalid) = executor_id.parse::<ExecutorId>() {
        return broken(invalid.to_string());
    }
    if *incarnation == 0 {
        return broken("incarnation 0 is refused: it is drawn at random from 1 on");
    }
    if let Err(invalid) = endpoint.parse::<Address>() {
        return broken(format!("endpoint {endpoint:?} is refused: {invalid}"));
    }
    if *weight > MAX_WEIGHT {
        return broken(format!("weight {weight} is refused: it is 1 to {MAX_WEIGHT}, or 0 for 1"));
    }
    Ok(())
}

/// E1, of the whole run: every process draws its own incarnation.
pub fn incarnations(entries: &[Entry]) -> Verdict {
    let (mut before, mut now) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        match &entry.what {
            What::Restart => before.append(&mut now),
            What::Register(registration) => {
                fields(registration)?;
                if before.contains(&registration.incarnation) {
                    let incarnation = registration.incarnation;
                    return broken(format!(
                        "two processes registered as incarnation {incarnation}; each draws its own at random"
                    ));
                }
                now.insert(registration.incarnation);
            }
            _ => {}
        }
    }
    Ok(())
}

/// E2, of the whole run. Half of the lease is allowed where a third is the rule, and single late ones count for nothing.
pub fn renews_in_time(entries: &[Entry], lease: Duration) -> Verdict {
    let (mut gaps, mut first_gaps) = (Vec::new(), Vec::new());
    let mut last: Option<(BootInstant, u64, bool)> = None;
    for entry in entries {
        match &entry.what {
            What::Register(registration) => last = granted(registration.outcome).map(|at| (at, registration.incarnation, true)),
            What::Renew(renewal) => {
                if let Some((at, incarnation, is_first)) = last
                    && incarnation == renewal.incarnation
                {
                    gaps.push(entry.at.since(at));
                    first_gaps.extend(is_first.then(|| entry.at.since(at)));
                }
                last = granted(renewal.outcome).map(|at| (at, renewal.incarnation, false));
            }
            What::Deregister(_) | What::Restart => last = None,
            What::Obeyed(_) => {}
        }
    }
    if gaps.len() < 4 {
        return unobserved("it had no lease for long enough");
    }
    for (gaps, what) in [(&gaps, "renewals"), (&first_gaps, "first renewals after a registration")] {
        let late = gaps.iter().filter(|gap| **gap > lease / 2).count();
        if late > 1 && late * 2 >= gaps.len() {
            let longest = gaps.iter().max().copied().unwrap_or_default();
            return broken(format!(
                "{late} of {} {what} came later than half of the lease of {lease:?}, the latest after {longest:.0?}; a third is the rule",
                gaps.len()
            ));
        }
    }
    Ok(())
}

fn granted(outcome: Outcome) -> Option<BootInstant> {
    if let Outcome::Lease { at, .. } = outcome { Some(at) } else { None }
}

/// E9.
pub async fn commands_extend_nothing(play: &mut Play) -> Verdict {
    play.rest(&SHARDS).await?;
    let leased_at = play.fall_silent().await?;
    clock::sleep_until(leased_at.after(play.lease / 2)).await;
    let extended = match play.command(|_| {}).await {
        Ok(_) => clock::now(),
        Err(_) if clock::now() > leased_at.after(play.lease * 2 / 3) => return lease_lost(),
        Err(bounce) => return unobserved(format!("under its lease it refuses a command in order with {bounce}, see E7")),
    };
    let over = play.lease_end(leased_at).await;
    if clock::now() > extended.after(play.lease) {
        return unobserved("this machine was too busy to look in time");
    }
    without_lease(play.command(|_| {}).await, over)
}

fn without_lease(reply: Result<Reply, Bounce>, over: BootInstant) -> Verdict {
    let late = clock::now().since(over);
    match reply {
        Ok(_) => broken(format!("it accepted a command {late:.0?} after its lease was over; expected LEASE_OVER")),
        Err(bounce) if bounce.is_without_lease() => Ok(()),
        Err(bounce) => {
            bounce.heard()?;
            broken(format!("{late:.0?} after its lease was over it refused a command with {bounce}; expected LEASE_OVER"))
        }
    }
}

/// E11.
pub async fn fences_itself(play: &mut Play) -> Verdict {
    let held = play.rest(&SHARDS).await?;
    let incarnation = play.incarnation();
    let leased_at = play.fall_silent().await?;
    let over = play.sit_out(leased_at).await;
    let looked = over.after(play.lease / 4);
    let has_stopped = |state: &State| {
        let registered = state.registrations_since(looked).any(|(_, registration)| Some(registration.incarnation) != incarnation);
        (registered || state.renewals_since(looked).any(|(_, renewal)| renewal.claim.is_nothing())).then_some(())
    };
    let has_stopped = play.stage.find(over.after(play.lease * 2), has_stopped).await.is_some();
    play.stage.with(|state| {
        // One may have been on its way for as long as that.
        let late =
            |(_, renewal): &(BootInstant, &Renewal)| Some(renewal.incarnation) == incarnation && !renewal.claim.is_nothing();
        if let Some((at, renewal)) = state.renewals_since(looked).filter(late).nth(1) {
            let late = at.since(over);
            return broken(format!(
                "{late:.0?} after its lease was over it still claims {}, having held {}; expected nothing",
                renewal.claim,
                listed(&held)
            ));
        }
        if has_stopped {
            return Ok(());
        }
        if state.registrations_since(looked).next().is_some() {
            return broken("its lease was over and it registered again under the same incarnation; expected a new one");
        }
        unobserved("it calls nobody while no manager answers")
    })
}

/// E18.
pub async fn old_answers_renew_nothing(play: &mut Play) -> Verdict {
    play.stage.with(|state| state.version.revision.0 += 10);
    let held = play.rest(&SHARDS).await?;
    let leased_at = play.fall_silent().await?;
    let mark = play.stage.with(|state| {
        let mark = state.version;
        state.renewals = Answer::Below(Version { revision: Revision(mark.revision.0.saturating_sub(5)), ..mark });
        mark
    });
    let over = play.lease_end(leased_at).await;
    let offered = |state: &State| {
        let below = state.renewals_since(leased_at).filter_map(|(_, renewal)| match renewal.outcome {
            Outcome::Below { at } => Some(at),
            _ => None,
        });
        below.last()
    };
    if play.stage.with(|state| offered(state)).is_none() {
        return unobserved("it asked for no lease while an answer below its mark was ready");
    }
    play.stage.with(|state| {
        // What it claims before its lease is over it has from somebody.
        let other = |(_, renewal): &(BootInstant, &Renewal)| !(renewal.claim.is(&held) || renewal.claim.is_nothing());
        let (held, mark) = (listed(&held), shown(Some(mark)));
        match state.renewals_since(leased_at).find(other) {
            Some((_, renewal)) => {
                broken(format!("it held {held} and claims {}: it took an assignment below its mark {mark}", renewal.claim))
            }
            None => Ok(()),
        }
    })?;
    let newest = |request: &mut rpc::ApplyAssignmentRequest| request.version = Some(mark.into());
    if let Err(bounce) = play.command(newest).await {
        return bounce.heard();
    }
    let late = clock::now().since(over);
    play.stage.with(|state| state.renewals = Answer::Never);
    let last = play.stage.with(|state| offered(state)).unwrap_or(leased_at);
    play.sit_out(last).await;
    let how =
        format!("{late:.0?} after its lease was over it had another: answers below its mark {} renewed it", shown(Some(mark)));
    had_a_lease(play, how).await
}

#[cfg(test)]
mod tests {
    use super::super::record::Claim;
    use super::*;
    use crate::types::Term;

    fn at(ms: u64) -> BootInstant {
        BootInstant(Duration::from_millis(ms))
    }

    fn register(ms: u64, incarnation: u64) -> Entry {
        let outcome = Outcome::Lease { at: at(ms), version: Version::default() };
        let registration = Registration {
            executor_id: "e".to_owned(),
            incarnation,
            endpoint: "h:1".to_owned(),
            weight: 1,
            cluster_id: String::new(),
            mark: None,
            outcome,
        };
        Entry { at: at(ms), what: What::Register(registration) }
    }

    fn renew(ms: u64) -> Entry {
        let renewal = Renewal {
            incarnation: 7,
            cluster_id: String::new(),
            is_at_home: true,
            mark: None,
            claim: Claim::Missing,
            leaving: false,
            storage_epochs: None,
            newest: Version { term: Term(1), revision: Revision(1) },
            outcome: Outcome::Lease { at: at(ms), version: Version::default() },
        };
        Entry { at: at(ms), what: What::Renew(renewal) }
    }

    fn is_broken(verdict: &Verdict) -> bool {
        matches!(verdict, Err(Trouble::Broken(_)))
    }

    #[test]
    fn renewals_in_time_are_told_from_late_ones_and_one_hiccup_counts_for_nothing() {
        let run = |times: &[u64]| {
            let entries: Vec<Entry> = [register(0, 7)].into_iter().chain(times.iter().map(|&ms| renew(ms))).collect();
            renews_in_time(&entries, Duration::from_secs(3))
        };
        assert_eq!(run(&[1000, 2000, 3000, 4000, 7000]), Ok(()));
        assert!(is_broken(&run(&[2000, 4000, 6000, 8000])));
        assert!(matches!(run(&[1000, 2000]), Err(Trouble::Unobserved(_))));
        let mut entries = Vec::new();
        for start in [0, 10_000, 20_000] {
            entries.push(register(start, 7));
            entries.extend([2000, 3000, 4000, 5000].map(|ms| renew(start + ms)));
        }
        assert!(is_broken(&renews_in_time(&entries, Duration::from_secs(3))), "late only while its shards start");
    }

    #[test]
    fn one_process_may_come_again_and_two_may_not_be_the_same() {
        let restart = || Entry { at: at(5), what: What::Restart };
        assert_eq!(incarnations(&[register(0, 7), register(1, 7), restart(), register(9, 8)]), Ok(()));
        assert!(is_broken(&incarnations(&[register(0, 7), restart(), register(9, 7)])));
        assert!(is_broken(&incarnations(&[register(0, 0)])));
    }
}

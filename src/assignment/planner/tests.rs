use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Role::{Keeps, Leaves, Takes};

fn member(name: &str, slot: u32, weight: u32, role: Role) -> Member {
    Member { slot: Slot(slot), id: name.parse().expect("a good id"), weight, role }
}

/// Members `a`, `b`, ... of weight 1.
fn members(roles: &[Role]) -> Vec<Member> {
    roles.iter().zip(0..).map(|(&role, at)| member(&format!("e{at:04}"), at, 1, role)).collect()
}

/// So many shards at each member, in its order; then so many without a home.
fn homes(at: &[usize], nowhere: usize) -> Vec<u32> {
    let at = at.iter().zip(0..).flat_map(|(&shards, home)| std::iter::repeat_n(home, shards));
    at.chain(std::iter::repeat_n(NOBODY, nowhere)).collect()
}

/// What a plan leads to.
struct After {
    homes: Vec<u32>,
    at: Vec<u32>,
    report: Report,
}

fn run(members: &[Member], homes: &[u32], threshold: f64, avoid: &[(u32, u32)]) -> After {
    let avoid: BTreeMap<ShardId, Slot> = avoid.iter().map(|&(shard, slot)| (ShardId(shard), Slot(slot))).collect();
    let (plan, report) = plan(&Input { members, homes, threshold, avoid: &avoid, still: false });
    assert!(plan.moves.is_sorted_by(|a, b| a.shard < b.shard), "ascending by shard");
    let mut homes = homes.to_vec();
    for step in &plan.moves {
        assert_ne!(homes[step.shard.0 as usize], step.to, "a move changes something");
        homes[step.shard.0 as usize] = step.to;
    }
    let at = (0..members.len() as u32).map(|home| homes.iter().filter(|&&at| at == home).count() as u32).collect();
    After { homes, at, report }
}

#[test]
fn three_shards_on_three_executors_are_one_each() {
    let three = members(&[Takes, Takes, Takes]);
    for at in [homes(&[3, 0, 0], 0), homes(&[0, 0, 0], 3), homes(&[1, 2, 0], 0), homes(&[2, 0, 0], 1)] {
        assert_eq!(run(&three, &at, 0.1, &[]).at, [1, 1, 1]);
    }
}

#[test]
fn two_shards_on_five_executors_are_at_most_one_each() {
    let five = members(&[Takes; 5]);
    let after = run(&five, &homes(&[0, 2, 0, 0, 0], 0), 0.1, &[]);
    assert_eq!((after.at, after.report.moved), (vec![1, 1, 0, 0, 0], 1));
    assert_eq!(run(&five, &homes(&[0, 0, 0, 1, 1], 0), 0.1, &[]).report, Report::default());
}

#[test]
fn a_share_of_1024_shards_on_three_is_307_to_376() {
    let three = members(&[Takes, Takes, Takes]);
    assert_eq!(run(&three, &homes(&[307, 341, 376], 0), 0.1, &[]).report.moved, 0);
    assert_eq!(run(&three, &homes(&[306, 342, 376], 0), 0.1, &[]).at, [307, 342, 375]);
    assert_eq!(run(&three, &homes(&[307, 340, 377], 0), 0.1, &[]).at, [308, 340, 376]);
}

#[test]
fn a_slack_that_is_a_whole_number_is_not_one_short() {
    for (shards, threshold, slack) in
        [(340, 0.1, 34), (10, 0.3, 3), (100, 0.29, 29), (1000, 0.001, 1), (7, 1.0, 7), (10_000, 0.0157, 157), (9, 0.0, 0)]
    {
        let two = members(&[Takes, Takes]);
        let rests = run(&two, &homes(&[shards + slack, shards - slack], 0), threshold, &[]);
        assert_eq!(rests.report.moved, 0, "{slack} of {shards} at {threshold}");
        if slack < shards {
            let moves = run(&two, &homes(&[shards + slack + 1, shards - slack - 1], 0), threshold, &[]);
            assert_eq!(moves.report.moved, 1, "{} of {shards} at {threshold}", slack + 1);
        }
    }
}

#[test]
fn a_threshold_that_is_no_fraction_is_the_nearer_end() {
    let two = members(&[Takes, Takes]);
    for (threshold, at) in [(f64::NAN, [5, 5]), (-1.0, [5, 5]), (7.0, [10, 0]), (f64::INFINITY, [10, 0])] {
        assert_eq!(run(&two, &homes(&[10, 0], 0), threshold, &[]).at, at, "{threshold}");
    }
}

/// Case 46, together.
#[test]
fn two_join_one_that_has_all_and_each_gets_its_share() {
    let after = run(&members(&[Takes, Takes, Takes]), &homes(&[1024, 0, 0], 0), 0.1, &[]);
    assert_eq!((after.at, after.report.moved), (vec![376, 324, 324], 648));
}

/// Case 46, one after the other.
#[test]
fn one_joins_and_then_another() {
    let first = run(&members(&[Takes, Takes]), &homes(&[1024, 0], 0), 0.1, &[]);
    assert_eq!((&first.at[..], first.report.moved), (&[563, 461][..], 461));
    let second = run(&members(&[Takes, Takes, Takes]), &first.homes, 0.1, &[]);
    assert_eq!((&second.at[..], second.report.moved), (&[358, 359, 307][..], 307));
}

/// Case 47.
#[test]
fn one_with_190_among_nine_with_90_is_trimmed() {
    let mut at = [90; 10];
    at[3] = 190;
    let after = run(&members(&[Takes; 10]), &homes(&at, 0), 0.1, &[]);
    assert_eq!((after.at[3], after.report.moved), (110, 80));
    assert!(after.at.iter().enumerate().all(|(at, shards)| at == 3 || [98, 99].contains(shards)), "{:?}", after.at);
    assert_eq!(after.report.reasons, [Reason::WithinThreshold { moves: 10 }]);
}

/// Case 48: who came back, came and went within one plan is not seen; a crash moves only what it must.
#[test]
fn shards_of_a_dead_executor_move_and_no_others() {
    let after = run(&members(&[Takes; 9]), &homes(&[100; 9], 100), 0.1, &[]);
    assert_eq!((after.report.placed, after.report.moved), (100, 0));
    assert!(after.at.iter().all(|shards| [111, 112].contains(shards)), "{:?}", after.at);
}

/// Case 48: what is free goes to the emptiest, as if nobody were above its bounds, and what runs stays.
#[test]
fn running_shards_that_are_to_stay_take_no_seat_from_free_ones() {
    let members = members(&[Takes, Takes, Leaves, Takes]);
    let homes = homes(&[50, 20, 10, 0], 15);
    let input = Input { members: &members, homes: &homes, threshold: 0.1, avoid: &BTreeMap::new(), still: true };
    let (plan, report) = plan(&input);
    assert!(plan.moves.iter().all(|it| it.shard.0 >= 70), "what runs stays: {plan:?}");
    let to = |member| plan.moves.iter().filter(|it| it.to == member).count();
    assert_eq!([to(0), to(1), to(3)], [0, 3, 22], "to the emptiest, and then evenly");
    assert_eq!(report.reasons, [Reason::Still { executors: 3 }]);
    assert_eq!(report.lines()[2], "outside of the bounds: 3 executors, since running shards stay where they are for now");
}

/// Case 51: a drain empties as long as somebody can take; and what it frees goes where it saves moves.
#[test]
fn a_leaving_executor_gives_up_everything() {
    let after = run(&members(&[Leaves, Takes, Takes]), &homes(&[20, 40, 0], 0), 0.1, &[]);
    assert_eq!(after.at, [0, 33, 27]);
    assert_eq!(
        after.report,
        Report { moved: 27, evacuated: 20, reasons: vec![Reason::WithinThreshold { moves: 3 }], ..Report::default() }
    );
}

#[test]
fn with_nobody_to_take_them_shards_stay() {
    let after = run(&members(&[Leaves, Keeps, Leaves]), &homes(&[4, 1, 0], 2), 0.1, &[]);
    assert_eq!(after.homes, homes(&[4, 1, 0], 2));
    let reasons =
        vec![Reason::NobodyTakes, Reason::Staying { shards: 4, executors: 1 }, Reason::Kept { shards: 1, executors: 1 }];
    assert_eq!(after.report, Report { unplaced: 2, reasons, ..Report::default() });
    assert_eq!(
        after.report.lines(),
        [
            "2 shards without an owner: not placed",
            "no executor can take shards",
            "4 shards stay on 1 leaving executor because nobody can take them",
            "1 shard stays on 1 executor that take no others: cordoned, suspect, or not heard yet",
        ]
    );
}

/// Case 51.
#[test]
fn who_keeps_its_shards_gets_none_and_does_not_count() {
    let after = run(&members(&[Keeps, Takes, Takes]), &homes(&[50, 30, 0], 10), 0.0, &[]);
    assert_eq!(after.at, [50, 20, 20]);
    assert_eq!(after.report.reasons, [Reason::Kept { shards: 50, executors: 1 }]);
}

#[test]
fn shares_follow_weights() {
    let three = [member("a", 0, 1, Takes), member("b", 1, 2, Takes), member("c", 2, 5, Takes)];
    assert_eq!(run(&three, &homes(&[0, 0, 0], 80), 0.1, &[]).at, [10, 20, 50]);
    assert_eq!(run(&three, &homes(&[80, 0, 0], 0), 0.0, &[]).at, [10, 20, 50]);
    assert_eq!(run(&three, &homes(&[0, 80, 0], 0), 0.1, &[]).at, [10, 22, 48]);
    let extreme = [member("big", 0, 1000, Takes), member("small", 1, 1, Takes), member("zero", 2, 0, Takes)];
    assert_eq!(run(&extreme, &homes(&[0, 0, 0], 1002), 0.0, &[]).at, [1000, 1, 1]);
}

/// Case 50: five shards on their way to the newcomer count there.
#[test]
fn shards_on_their_way_count_at_their_destination() {
    let after = run(&members(&[Takes, Takes]), &homes(&[5, 5], 2), 0.0, &[]);
    assert_eq!(after.at, [6, 6]);
}

#[test]
fn nothing_to_plan_is_nothing_planned() {
    for (members, homes) in [(vec![], vec![]), (members(&[Takes]), vec![]), (members(&[Keeps, Leaves]), vec![])] {
        let after = run(&members, &homes, 0.1, &[]);
        assert_eq!(after.report, Report::default());
        assert!(after.report.lines().is_empty());
    }
    let nobody = run(&[], &[NOBODY, NOBODY], 0.1, &[]);
    assert_eq!(nobody.report, Report { unplaced: 2, reasons: vec![Reason::NobodyTakes], ..Report::default() });
}

#[test]
fn a_home_without_a_member_is_none() {
    let after = run(&members(&[Takes]), &[7, NOBODY, 0], 0.1, &[]);
    assert_eq!((after.homes, after.report.placed), (vec![0, 0, 0], 2));
}

#[test]
fn a_shard_does_not_go_back_to_who_did_not_start_it() {
    let three = members(&[Takes, Takes, Takes]);
    // Without the rule shard 0 went to the first.
    assert_eq!(run(&three, &homes(&[0, 0, 0], 3), 0.1, &[(0, 0)]).homes, [1, 0, 2]);
    // The bounds ask for a move to the first; another shard goes.
    assert_eq!(run(&members(&[Takes, Takes]), &homes(&[0, 2], 0), 0.1, &[(0, 0)]).homes, [1, 0]);
    // Both shards avoid somebody, and the first to choose leaves no choice: the next pass finds one.
    assert_eq!(run(&three, &homes(&[0, 0, 0], 3), 0.1, &[(0, 1), (1, 2), (2, 2)]).homes, [2, 1, 0]);
    // Avoided by nobody who takes shards, or by no shard that there is.
    assert_eq!(run(&members(&[Takes, Leaves]), &homes(&[0, 1], 1), 0.1, &[(0, 1), (9, 0), (1, 7)]).homes, [0, 0]);
}

#[test]
fn bounds_yield_to_avoiding() {
    let after = run(&members(&[Takes, Takes]), &homes(&[0, 0], 4), 0.1, &[(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(after.at, [0, 4]);
    assert_eq!(after.report.reasons, [Reason::BoundsYielded { executors: 2 }]);
    assert_eq!(
        after.report.lines()[1],
        "outside of the bounds: 2 executors, since shards do not go back to who did not start them"
    );
}

#[test]
fn avoiding_yields_where_nobody_else_takes_shards() {
    let after = run(&members(&[Keeps, Takes]), &homes(&[0, 0], 2), 0.1, &[(0, 1)]);
    assert_eq!(after.homes, [1, 1]);
    assert_eq!(after.report.reasons, [Reason::NobodyElse { shards: 1 }]);
}

#[test]
fn a_shard_at_home_where_it_did_not_start_is_as_any_other() {
    assert_eq!(run(&members(&[Takes, Takes]), &homes(&[1, 1], 0), 0.1, &[(0, 0)]).report.moved, 0);
    assert_eq!(run(&members(&[Takes, Takes]), &homes(&[4, 0], 0), 0.0, &[(0, 0)]).homes, [1, 1, 0, 0]);
}

/// A scan over a thousand executors for each shard would make this take minutes.
#[test]
fn a_million_shards_on_a_thousand_executors_are_planned_in_a_few_passes() {
    let mut thousand = members(&[Takes; 1000]);
    for (member, at) in thousand.iter_mut().zip(1..) {
        member.weight = at;
    }
    let one = homes(&[0, 1 << 20], 0);
    let avoid = (0..100_000).map(|shard| (ShardId(shard), Slot(2))).collect();
    let (plan, report) = plan(&Input { members: &thousand, homes: &one, threshold: 0.1, avoid: &avoid, still: false });
    assert_eq!(report.moved as usize, plan.moves.len());
    assert!(report.moved > 1_000_000 && report.reasons.is_empty(), "{report:?}");
}

/// What the rules say, said again as simply as can be.
mod rules {
    use super::*;

    /// The bounds of each member; `None` for one that takes no shards.
    pub fn bounds(members: &[Member], homes: &[u32], percent: u64) -> Vec<Option<(u64, u64)>> {
        let role = |home: u32| members.get(home as usize).map(|member| member.role);
        let shards = homes.iter().filter(|&&home| role(home) != Some(Keeps)).count() as u64;
        let total: u64 = members.iter().filter(|member| member.role == Takes).map(|member| u64::from(member.weight)).sum();
        let bounds = |member: &Member| {
            (member.role == Takes).then(|| {
                let parts = shards * u64::from(member.weight);
                let slack = parts * percent / (total * 100);
                (parts / total - slack, parts.div_ceil(total) + slack)
            })
        };
        members.iter().map(bounds).collect()
    }

    pub fn count(members: &[Member], homes: &[u32]) -> Vec<u64> {
        (0..members.len() as u32).map(|home| homes.iter().filter(|&&at| at == home).count() as u64).collect()
    }

    pub fn holds(members: &[Member], before: &[u32], after: &[u32], percent: u64) -> bool {
        let bounds = bounds(members, before, percent);
        bounds
            .iter()
            .zip(count(members, after))
            .all(|(bounds, at)| bounds.is_none_or(|(lower, upper)| (lower..=upper).contains(&at)))
    }

    /// Running shards that change their home, those that have to aside.
    pub fn price(members: &[Member], before: &[u32], after: &[u32]) -> u32 {
        let runs = |home: u32| members.get(home as usize).is_some_and(|member| member.role == Takes);
        before.iter().zip(after).filter(|&(&before, after)| runs(before) && before != *after).count() as u32
    }

    /// The lowest price of all ways to keep the bounds.
    pub fn lowest_price(members: &[Member], homes: &[u32], percent: u64) -> u32 {
        fn search(members: &[Member], before: &[u32], after: &mut Vec<u32>, percent: u64, best: &mut u32) {
            if after.len() == before.len() {
                if holds(members, before, after, percent) {
                    *best = price(members, before, after).min(*best);
                }
                return;
            }
            let home = before[after.len()];
            let keeps = members.get(home as usize).is_some_and(|member| member.role == Keeps);
            for to in 0..members.len() as u32 {
                if if keeps { to == home } else { members[to as usize].role == Takes } {
                    after.push(to);
                    search(members, before, after, percent, best);
                    after.pop();
                }
            }
        }
        let mut best = u32::MAX;
        search(members, homes, &mut Vec::new(), percent, &mut best);
        best
    }

    /// What [`share::fill`](super::super::share::fill) is to do, one shard at a time.
    pub fn fill(shares: &mut [share::Share], amount: u32, limit: u32) -> u32 {
        for done in 0..amount {
            let free = shares.iter_mut().filter(|share| share.target < limit);
            let emptiest = free.min_by(|a, b| (a.target * b.weight).cmp(&(b.target * a.weight)));
            let Some(share) = emptiest else { return amount - done };
            share.target += 1;
        }
        0
    }
}

#[derive(Clone, Debug)]
struct Case {
    members: Vec<Member>,
    homes: Vec<u32>,
    percent: u64,
    avoid: Vec<(u32, u32)>,
}

impl Case {
    fn run(&self) -> After {
        run(&self.members, &self.homes, self.percent as f64 / 100.0, &self.avoid)
    }

    fn takers(&self) -> usize {
        self.members.iter().filter(|member| member.role == Takes).count()
    }
}

/// Up to so many members and shards; some members have many shards, some few.
fn cases(most_members: usize, most_shards: usize) -> impl Strategy<Value = Case> {
    let role = prop_oneof![6 => Just(Takes), 1 => Just(Keeps), 1 => Just(Leaves)];
    let weight = prop_oneof![3 => Just(1u32), 1 => 1..5u32, 1 => 1..=1000u32];
    let members = prop::collection::vec((role, weight), 0..=most_members);
    (members, 0..101u64).prop_flat_map(move |(members, percent)| {
        let count = members.len() as u32;
        let build = |((role, weight), at): ((Role, u32), u32)| member(&format!("e{at}"), at + 100, weight, role);
        let members: Vec<Member> = members.into_iter().zip(0..).map(build).collect();
        let home = prop_oneof![1 => Just(NOBODY), 2 => Just(0), 6 => 0..=count]
            .prop_map(move |home| if home < count { home } else { NOBODY });
        let homes = prop::collection::vec(home, 0..=most_shards);
        let avoid = prop::collection::vec((0..=most_shards as u32, 100..=100 + count), 0..=most_shards / 2);
        (Just(members), homes, Just(percent), avoid).prop_map(|(members, homes, percent, avoid)| Case {
            members,
            homes,
            percent: percent % 101,
            avoid,
        })
    })
}

proptest! {
    #[test]
    fn everyone_rests_within_the_bounds(case in cases(12, 200)) {
        let case = Case { avoid: Vec::new(), ..case };
        let after = case.run();
        if case.takers() > 0 {
            prop_assert!(rules::holds(&case.members, &case.homes, &after.homes, case.percent), "{:?}", after.at);
        } else {
            prop_assert_eq!(after.homes, case.homes);
        }
    }

    #[test]
    fn bounds_are_told_as_they_are_kept(case in cases(12, 200)) {
        let input = Input {
            members: &case.members,
            homes: &case.homes,
            threshold: case.percent as f64 / 100.0,
            avoid: &BTreeMap::new(),
            still: false,
        };
        let told: Vec<Option<(u64, u64)>> =
            bounds(&input).iter().map(|it| it.map(|it| (it.lower.into(), it.upper.into()))).collect();
        prop_assert_eq!(told, rules::bounds(&case.members, &case.homes, case.percent));
    }

    /// A move that is accepted is not undone, and where all rested before, all rest after it.
    #[test]
    fn what_was_relocated_stays(case in cases(8, 60), shards in prop::collection::btree_set(0..60u32, 1..8), to in 0..8u32) {
        let plan_first = case.clone();
        for case in [plan_first.clone(), Case { homes: plan_first.run().homes, ..plan_first }] {
            let case = Case { avoid: Vec::new(), ..case };
            let input = Input {
                members: &case.members,
                homes: &case.homes,
                threshold: case.percent as f64 / 100.0,
                avoid: &BTreeMap::new(),
                still: false,
            };
            let shards: Vec<ShardId> = shards.iter().filter(|&&it| (it as usize) < case.homes.len()).map(|&it| ShardId(it)).collect();
            let Ok(moving) = relocate(&input, &shards, to) else { continue };
            prop_assert!(moving.iter().all(|shard| case.members[to as usize].role == Takes && case.homes[shard.0 as usize] != to));
            let mut homes = case.homes.clone();
            moving.iter().for_each(|shard| homes[shard.0 as usize] = to);
            let after = Case { homes: homes.clone(), ..case.clone() }.run();
            prop_assert!(shards.iter().all(|shard| after.homes[shard.0 as usize] == to), "moved on");
            if case.run().homes == case.homes {
                prop_assert_eq!(after.homes, homes, "something moves where nothing did");
            }
        }
    }

    #[test]
    fn no_plan_is_cheaper(case in cases(4, 6)) {
        let case = Case { avoid: Vec::new(), ..case };
        if case.takers() > 0 {
            let price = rules::price(&case.members, &case.homes, &case.run().homes);
            prop_assert_eq!(price, rules::lowest_price(&case.members, &case.homes, case.percent));
        }
    }

    /// What is above the upper bounds and what is below the lower ones once free shards lie where they help most: every move mends
    /// one of each at most.
    #[test]
    fn moves_are_the_larger_of_excess_and_deficit(case in cases(12, 200)) {
        let case = Case { avoid: Vec::new(), ..case };
        if case.takers() > 0 {
            let at = rules::count(&case.members, &case.homes);
            let bounds = rules::bounds(&case.members, &case.homes, case.percent);
            let free = case.homes.iter().filter(|&&home| case.members.get(home as usize).is_none_or(|member| member.role == Leaves));
            let taken = || at.iter().zip(&bounds).filter_map(|(&at, bounds)| bounds.map(|(lower, upper)| (at, lower, upper)));
            let excess: u64 = taken().map(|(at, _, upper)| at.saturating_sub(upper)).sum();
            let deficit: u64 = taken().map(|(at, lower, _)| lower.saturating_sub(at)).sum();
            let least = excess.max(deficit.saturating_sub(free.count() as u64));
            prop_assert_eq!(u64::from(rules::price(&case.members, &case.homes, &case.run().homes)), least);
        }
    }

    #[test]
    fn a_plan_of_a_plan_is_empty(case in cases(8, 40)) {
        let after = case.run();
        let again = Case { homes: after.homes.clone(), ..case.clone() }.run();
        prop_assert_eq!(again.homes, after.homes);
        prop_assert_eq!((again.report.placed, again.report.moved), (0, 0));
    }

    #[test]
    fn plans_know_no_order_of_members_and_no_slots(case in cases(8, 60), by in 0..8usize) {
        let count = case.members.len();
        // New place `p` holds the member that was at `from[p]`.
        let from: Vec<usize> = (0..count).rev().cycle().skip(by).take(count).collect();
        let to = |home: u32| from.iter().position(|&at| at as u32 == home).map_or(NOBODY, |at| at as u32);
        let renamed = |slot: u32| 9_000 - slot * 7;
        let members = from.iter().map(|&at| Member { slot: Slot(renamed(case.members[at].slot.0)), ..case.members[at].clone() });
        let turned = Case {
            members: members.collect(),
            homes: case.homes.iter().map(|&home| to(home)).collect(),
            avoid: case.avoid.iter().map(|&(shard, slot)| (shard, renamed(slot))).collect(),
            percent: case.percent,
        };
        let (after, turned) = (case.run(), turned.run());
        prop_assert_eq!(after.homes.iter().map(|&home| to(home)).collect::<Vec<_>>(), turned.homes);
        prop_assert_eq!(after.report, turned.report);
    }

    #[test]
    fn shards_go_only_where_they_may(case in cases(8, 60)) {
        let after = case.run();
        let avoid: BTreeMap<u32, u32> = case.avoid.iter().copied().collect();
        for ((&before, &home), shard) in case.homes.iter().zip(&after.homes).zip(0..) {
            let to = case.members.get(home as usize);
            if before != home {
                let to = to.expect("no shard loses its home");
                prop_assert_eq!(to.role, Takes);
                prop_assert_ne!(case.members.get(before as usize).map(|member| member.role), Some(Keeps));
                prop_assert!(avoid.get(&shard) != Some(&to.slot.0) || case.takers() == 1);
            } else if case.takers() > 0 {
                prop_assert!(to.is_some_and(|member| member.role != Leaves), "shard {} has to go somewhere", shard);
            }
        }
        prop_assert_eq!(after.homes.iter().filter(|&&home| home == NOBODY).count(), after.report.unplaced as usize);
    }

    #[test]
    fn filling_at_once_is_filling_one_by_one(case in cases(8, 60), amount in 0..200u32, limit in prop_oneof![Just(u32::MAX), 0..50u32]) {
        let avoid = BTreeMap::new();
        let input = Input { members: &case.members, homes: &case.homes, threshold: 0.1, avoid: &avoid, still: false };
        let mut at_once = share::shares(&input, &Tally::of(&case.members, &case.homes));
        if !at_once.is_empty() {
            let mut one_by_one = at_once.clone();
            let left = share::fill(&mut at_once, amount, |_| limit);
            prop_assert_eq!(left, rules::fill(&mut one_by_one, amount, limit));
            prop_assert_eq!(at_once, one_by_one);
        }
    }
}

//! The promises over histories that proptest draws: the real engine and its successors, the real ledgers of executors, and in between
//! steps that each do one thing. What it is for is the *shrinking*: a failure comes out as the few steps that it takes. Whole worlds,
//! with clocks and links of their own, are `tests/sim`'s.
//!
//! `PROPTEST_CASES=n` runs more; the length of histories stands in [`LONGEST`].
//!
//! | file | what |
//! | --- | --- |
//! | `world` | leaders, processes and messages, and what each step does to them |
//! | `promises` | what is looked at |
//! | `executor` | a process of an executor around the real ledger |
//! | `store` | the stored state and who may write it |

mod executor;
mod promises;
mod store;
#[path = "../support/words.rs"]
mod words;
mod world;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use shard_manager::assignment::record::Wish;
use world::World;

pub(crate) const LEASE: Duration = Duration::from_secs(10);
pub(crate) const MARGIN: Duration = Duration::from_millis(200);
pub(crate) const SETTLE: Duration = Duration::from_millis(500);
pub(crate) const CALM: Duration = Duration::from_secs(20);
/// From one turn of an engine to the next.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Steps of a history at the most.
const LONGEST: usize = 40;
/// Unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 400;

/// One thing that happens. Executors, processes and messages are meant modulo how many there are.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A new process of an id starts at one of its two places; one of the same id that is there was gone before.
    Join { id: usize, place: usize },
    /// A process gives its shards away, then ends.
    Leave(usize),
    /// A process stops its shards, then ends.
    Stop(usize),
    /// A process is gone without a word.
    Die(usize),
    /// What becomes of a process's calls from here on.
    Calls(usize, Way),
    /// What becomes of commands to a process from here on.
    Commands(usize, Way),
    /// A process that takes its time to stop shards, or does no longer.
    Slow(usize, bool),
    /// A process stops what it was told to stop.
    Finish(usize),
    /// The work of a process on all its shards ends by itself.
    GiveUp(usize),
    /// A message that is under way arrives, maybe not for the last time.
    Arrive { message: usize, again: bool },
    /// So many milliseconds pass.
    Pass(u64),
    /// The same, while the leader's process stands still.
    Stall(u64),
    /// What becomes of the commits from here on.
    Commits(Fate),
    /// What the store has not answered is settled.
    Settle,
    /// Another leader.
    Lead { how: Succession, short_lease: bool },
    /// What an operator wants of an id.
    Wish(usize, Wish),
    /// A probe of a process comes back.
    Probe(usize, bool),
}

/// What becomes of a message and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Prompt,
    Lost,
    AnswerLost,
    /// It is under way until a step lets it arrive.
    Late,
    /// Its answer is.
    AnswerLate,
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lands,
    /// It certainly does not land.
    Fails,
    /// It lands, and the engine hears of it when it is settled.
    LandsUnnoticed,
    /// It has not landed when the next leader comes. When it is settled it lands, or is refused.
    Hangs,
}

/// How a leadership ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// The process is gone.
    Crash,
    /// Its belief runs out; it goes on, and its commits are refused.
    BeliefOver,
    /// It believes for a while yet, as on PostgreSQL; the new one knows by how much.
    StillBelieves,
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![
        3 => Just(Way::Prompt),
        1 => Just(Way::Lost),
        1 => Just(Way::AnswerLost),
        2 => Just(Way::Late),
        1 => Just(Way::AnswerLate),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let lease = LEASE.as_millis() as u64;
    let fate =
        prop_oneof![2 => Just(Fate::Lands), 1 => Just(Fate::Fails), 1 => Just(Fate::LandsUnnoticed), 1 => Just(Fate::Hangs)];
    let how = prop_oneof![Just(Succession::Crash), Just(Succession::BeliefOver), Just(Succession::StillBelieves)];
    let wish = prop_oneof![1 => Just(Wish::None), 2 => Just(Wish::Drain), 1 => Just(Wish::Cordon)];
    let who = 0..8usize;
    prop_oneof![
        6 => (0..3usize, 0..2usize).prop_map(|(id, place)| Step::Join { id, place }),
        1 => who.clone().prop_map(Step::Leave),
        1 => who.clone().prop_map(Step::Stop),
        2 => who.clone().prop_map(Step::Die),
        4 => (who.clone(), way()).prop_map(|(who, way)| Step::Calls(who, way)),
        4 => (who.clone(), way()).prop_map(|(who, way)| Step::Commands(who, way)),
        2 => (who.clone(), any::<bool>()).prop_map(|(who, slow)| Step::Slow(who, slow)),
        1 => who.clone().prop_map(Step::Finish),
        1 => who.clone().prop_map(Step::GiveUp),
        4 => (0..8usize, any::<bool>()).prop_map(|(message, again)| Step::Arrive { message, again }),
        8 => prop_oneof![0..1000u64, 0..lease + 500].prop_map(Step::Pass),
        1 => (0..lease * 2).prop_map(Step::Stall),
        2 => fate.prop_map(Step::Commits),
        2 => Just(Step::Settle),
        2 => (how, any::<bool>()).prop_map(|(how, short_lease)| Step::Lead { how, short_lease }),
        3 => (0..3usize, wish).prop_map(|(id, wish)| Step::Wish(id, wish)),
        1 => (who, any::<bool>()).prop_map(|(who, healthy)| Step::Probe(who, healthy)),
    ]
}

/// Steps around a lease that ends while the store does not answer: what L1 and L5 are for.
fn ends() -> impl Strategy<Value = Step> {
    let lease = LEASE.as_millis() as u64;
    let fate = prop_oneof![Just(Fate::Lands), Just(Fate::LandsUnnoticed), Just(Fate::Hangs)];
    let way = prop_oneof![Just(Way::Prompt), Just(Way::Lost)];
    prop_oneof![
        2 => (0..2usize, Just(0usize)).prop_map(|(id, place)| Step::Join { id, place }),
        3 => (0..2usize, way).prop_map(|(who, way)| Step::Calls(who, way)),
        3 => prop_oneof![0..1000u64, lease - 500..lease + 1000].prop_map(Step::Pass),
        3 => fate.prop_map(Step::Commits),
        2 => Just(Step::Settle),
    ]
}

/// Steps around calls that arrive after what they speak of has changed: what L2 and L3 are for.
fn stale() -> impl Strategy<Value = Step> {
    let calls = prop_oneof![Just(Way::Prompt), Just(Way::Late), Just(Way::Lost)];
    let commands = prop_oneof![1 => Just(Way::Prompt), 2 => Just(Way::Lost), 1 => Just(Way::Late)];
    let wish = prop_oneof![1 => Just(Wish::None), 2 => Just(Wish::Drain)];
    prop_oneof![
        2 => (0..2usize, Just(0usize)).prop_map(|(id, place)| Step::Join { id, place }),
        3 => (0..2usize, calls).prop_map(|(who, way)| Step::Calls(who, way)),
        2 => (0..2usize, commands).prop_map(|(who, way)| Step::Commands(who, way)),
        3 => (0..4usize, any::<bool>()).prop_map(|(message, again)| Step::Arrive { message, again }),
        4 => prop_oneof![0..1000u64, 3000..4000u64].prop_map(Step::Pass),
        2 => (0..2usize, wish).prop_map(|(id, wish)| Step::Wish(id, wish)),
    ]
}

fn two_that_hold() -> [Step; 3] {
    [Step::Join { id: 0, place: 0 }, Step::Join { id: 1, place: 0 }, Step::Pass(1000)]
}

/// It claims nothing, and is on its way when shards are granted.
fn a_call_from_before() -> [Step; 6] {
    let [joins, another, passes] = two_that_hold();
    [joins, Step::Calls(0, Way::Late), Step::Pass(400), Step::Calls(0, Way::Prompt), another, passes]
}

fn after(begin: Vec<Step>, then: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(then, 0..LONGEST / 2).prop_map(move |steps| [&begin[..], &steps].concat())
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![
        2 => prop::collection::vec(step(), 0..LONGEST),
        1 => after(two_that_hold().to_vec(), ends()),
        1 => after(a_call_from_before().to_vec(), stale()),
    ]
}

fn run(number_of_shards: u32, pages: usize, steps: &[Step]) -> Result<(), String> {
    let mut world = World::new(number_of_shards, pages);
    for step in steps {
        world.take(step)?;
    }
    world.come_to_rest()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var_os("PROPTEST_CASES").map_or(CASES, |_| ProptestConfig::default().cases),
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("proptest-regressions/histories.txt"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_promises_hold_over_every_history(
        number_of_shards in 1..4u32,
        pages in prop_oneof![Just(4usize), Just(64)],
        steps in history(),
    ) {
        run(number_of_shards, pages, &steps).map_err(TestCaseError::fail)?;
    }
}

fn holds(steps: &[Step]) {
    run(2, 64, steps).expect("it holds");
}

/// Its end is being committed when it renews: what is then granted to others must not be taken up by it again.
#[test]
fn l1_an_executor_renews_while_its_end_waits_for_the_store() {
    let silent = [Step::Commits(Fate::Hangs), Step::Calls(0, Way::Lost), Step::Pass(10_400)];
    let back = [Step::Calls(0, Way::Prompt), Step::Pass(3400), Step::Settle];
    holds(&[&two_that_hold()[..], &silent, &back].concat());
}

/// A claim without the shard, from before it was granted, arrives when it is being released.
#[test]
fn l2_an_old_claim_arrives_when_a_shard_is_being_released() {
    let deaf = [Step::Pass(3500), Step::Commands(0, Way::Lost), Step::Calls(0, Way::Lost)];
    let asked = [Step::Wish(0, Wish::Drain), Step::Pass(100), Step::Arrive { message: 0, again: false }, Step::Pass(200)];
    holds(&[&a_call_from_before()[..], &deaf, &asked].concat());
}

/// A drawn history may well be too mild to prove anything; this one is not.
#[test]
fn a_history_in_which_everything_happens_once() {
    let steps = [
        Step::Join { id: 0, place: 0 },
        Step::Join { id: 1, place: 0 },
        Step::Pass(1000),
        Step::Slow(0, true),
        Step::Wish(0, Wish::Drain),
        Step::Pass(1000),
        Step::Commits(Fate::LandsUnnoticed),
        Step::Finish(0),
        Step::Pass(500),
        Step::Settle,
        Step::Lead { how: Succession::BeliefOver, short_lease: true },
        Step::Pass(Duration::from_secs(2).as_millis() as u64),
        Step::Join { id: 0, place: 1 },
        Step::Die(1),
    ];
    let mut world = World::new(3, 64);
    for step in &steps {
        world.take(step).expect("it holds");
    }
    world.come_to_rest().expect("it comes to rest");
    assert!(world.grants() > 3, "shards moved");
}

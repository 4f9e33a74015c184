//! Breaks things by a plan, looks after the processes meanwhile, and heals everything at the end.

mod acts;
mod recipes;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};

use crate::ground::Ground;
use crate::link::Link;
use crate::operator::{Operator, Outcome};
use crate::parties::{Replica, Seat, Stage};
use crate::plan::{Fault, Kind, Target};
use crate::stored::Fences;

/// How often it is looked what is due.
const TICK: Duration = Duration::from_millis(20);
/// For how long a fault is tried whose target is not there at the moment.
const TRY_FOR: Duration = Duration::from_secs(4);
/// How long a process may take to end when it is asked to, whatever else is broken.
const STOP: Duration = Duration::from_secs(20);

/// Everything that can be broken.
pub struct World {
    pub stage: Stage,
    // Before the ground, so that processes end first.
    pub replicas: Vec<Replica>,
    /// Those that are always there, and a guest.
    pub seats: Vec<Seat>,
    pub router: Link,
    pub ground: Ground,
    pub operator: Operator,
    pub fences: Fences,
    /// Held while a file is replaced that others may look into.
    pub quiet: Arc<tokio::sync::Mutex<()>>,
    /// How often each kind happened.
    pub counts: BTreeMap<Kind, usize>,
    /// Faults that could not be: their target was not there.
    pub missed: usize,
}

/// A fault under way.
struct Active {
    fault: Fault,
    /// What of it comes next.
    step: usize,
    due: Instant,
    since: Instant,
    /// Whom it is done to, once that is known.
    name: Option<String>,
    replicas: Vec<usize>,
    asked: Option<JoinHandle<Outcome>>,
    /// When what the steps count from was.
    mark: Instant,
    /// How often something was done.
    turns: u32,
    /// What the store was fenced by when it began.
    fence: u64,
}

/// What comes after a step.
enum Next {
    /// The next one, after so long.
    After(Duration),
    /// The same one again, as soon as may be: its time has not come.
    Again,
    /// The same one again, after so long.
    Stay(Duration),
    /// It is over.
    Done,
    /// It could not be.
    Missed,
}

impl Active {
    fn new(fault: Fault, now: Instant) -> Active {
        let (name, replicas, asked) = (None, Vec::new(), None);
        Active { fault, step: 0, due: now, since: now, name, replicas, asked, mark: now, turns: 0, fence: 0 }
    }
}

impl World {
    /// Does everything of the plan, and returns when the last fault is over.
    pub async fn torture(&mut self, plan: &[Fault]) {
        let begin = Instant::now();
        let mut plan = plan.iter().peekable();
        let (mut waiting, mut active): (Vec<Fault>, Vec<Active>) = (Vec::new(), Vec::new());
        while plan.peek().is_some() || !waiting.is_empty() || !active.is_empty() {
            let now = Instant::now();
            while let Some(fault) = plan.next_if(|fault| begin + fault.begin <= now) {
                waiting.push(*fault);
            }
            // Where this program is late, what comes next to one thing waits for what is done to it.
            let mut still_waiting: Vec<Fault> = Vec::new();
            for fault in waiting {
                let hindered = active.iter().any(|it| fault.conflicts_with(&it.fault, it.step > 0));
                if hindered || still_waiting.iter().any(|it| fault.conflicts_with(it, false)) {
                    still_waiting.push(fault);
                } else {
                    active.push(Active::new(fault, now));
                }
            }
            waiting = still_waiting;
            let mut left = Vec::new();
            for mut one in active {
                if self.go_on(&mut one).await {
                    left.push(one);
                }
            }
            active = left;
            self.look_after();
            tokio::time::sleep(TICK).await;
        }
    }

    /// Does what is due of a fault; whether there is more to come.
    async fn go_on(&mut self, active: &mut Active) -> bool {
        let now = Instant::now();
        if active.due > now {
            return true;
        }
        let next = self.act(active).await;
        match next {
            Next::After(pause) => {
                (active.step, active.due) = (active.step + 1, Instant::now() + pause);
                true
            }
            Next::Stay(pause) => {
                active.due = Instant::now() + pause;
                true
            }
            Next::Again if active.name.is_some() || active.since.elapsed() < TRY_FOR => true,
            Next::Again | Next::Missed => {
                self.missed += 1;
                if active.name.is_some() {
                    self.end(active);
                }
                false
            }
            Next::Done => {
                *self.counts.entry(active.fault.kind).or_default() += 1;
                false
            }
        }
    }

    /// Notes that a fault begins, at somebody.
    fn begin(&self, active: &mut Active, target: impl Into<String>) {
        let target = target.into();
        self.note(active.fault.kind, &target, "begin");
        active.name = Some(target);
    }

    fn end(&self, active: &Active) {
        self.note(active.fault.kind, active.name.as_deref().unwrap_or_default(), "end");
    }

    fn note(&self, kind: Kind, target: &str, phase: &str) {
        self.stage.program.note("nemesis", "fault", json!({"kind": kind.name(), "target": target, "phase": phase}));
    }

    pub fn phase(&self, name: &str) {
        self.stage.program.note("nemesis", "phase", json!({"name": name}));
    }

    /// Which replica is meant, by who leads now.
    fn replica(&self, target: Target) -> Option<usize> {
        let leader = self.operator.leaders.current();
        let at = match target {
            Target::Standby(at) => (0..self.replicas.len()).filter(|it| Some(*it) != leader).nth(at)?,
            _ => leader?,
        };
        self.replicas[at].is_up().then_some(at)
    }

    /// Starts what is wanted and has ended.
    pub fn look_after(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.look_after(&mut self.stage));
        self.seats.iter_mut().for_each(|seat| seat.look_after(&mut self.stage));
    }

    /// Nothing is broken any more, and everybody who is to stay is there.
    pub async fn heal(&mut self) {
        self.phase("healing");
        self.router.restore();
        for replica in &mut self.replicas {
            replica.wanted = true;
            replica.store.restore();
            replica.signal(Signal::CONT);
        }
        for seat in &mut self.seats {
            seat.place.links().into_iter().for_each(Link::restore);
            seat.signal(Signal::CONT);
            seat.settle(&mut self.stage);
            // A guest leaves.
            seat.wanted = !seat.is_guest();
            if seat.is_guest() {
                seat.signal(Signal::TERM);
            }
        }
        let deadline = Instant::now() + STOP;
        let is_healed = |world: &World| {
            world.replicas.iter().all(Replica::is_up) && world.seats.iter().all(|seat| seat.is_up() != seat.is_guest())
        };
        while !is_healed(self) && Instant::now() < deadline {
            self.look_after();
            tokio::time::sleep(TICK).await;
        }
        self.stage.program.note("nemesis", "healed", json!({}));
    }

    /// Nobody is drained or removed any more.
    pub fn forgive(&self) -> JoinSet<()> {
        let mut asks = JoinSet::new();
        for seat in &self.seats {
            let (operator, id) = (self.operator.clone(), seat.id.clone());
            asks.spawn(async move {
                operator.insist("admit", &id).await;
                operator.insist("uncordon", &id).await;
            });
        }
        asks
    }

    /// Asks everybody to end: executors first, which leave, then the replicas.
    pub async fn stop(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.ask_to_stop());
        self.wait_until_gone().await;
        for replica in &mut self.replicas {
            replica.wanted = false;
            replica.signal(Signal::TERM);
        }
        self.wait_until_gone().await;
    }

    /// Who does not end in time is killed, which is noted.
    async fn wait_until_gone(&mut self) {
        let deadline = Instant::now() + STOP;
        let goes = |world: &World| {
            world.seats.iter().any(Seat::is_up) || world.replicas.iter().any(|replica| !replica.wanted && replica.is_up())
        };
        while goes(self) && Instant::now() < deadline {
            self.look_after();
            tokio::time::sleep(TICK).await;
        }
        let slow = self.seats.iter().filter(|seat| seat.is_up()).map(|seat| seat.id.clone());
        let slow = slow.chain(self.replicas.iter().filter(|it| !it.wanted && it.is_up()).map(|it| it.name.clone()));
        let slow: Vec<String> = slow.map(|name| format!("{name} did not end within {STOP:?} of being asked to")).collect();
        slow.into_iter().for_each(|what| self.stage.odd_end(what));
        self.seats.iter_mut().for_each(|seat| seat.kill(&mut self.stage));
        self.replicas.iter_mut().filter(|replica| !replica.wanted).for_each(|replica| replica.kill(&mut self.stage));
    }
}

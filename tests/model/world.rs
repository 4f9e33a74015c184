//! Everything there is at one moment, what may happen next, and what must hold whatever happened.

mod action;
mod scene;

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use shard_manager::client::ledger::Kind;
use shard_manager::types::{Epoch, Incarnation};

use crate::executor::{self, Executor};
use crate::guards::Guard;
use crate::manager::{self, Manager};
use crate::message::{Clock, LEADERSHIP, Message, Output, Outputs};
use crate::scopes::Bounds;
use crate::shared::Shared;
use crate::store::{self, Store};

pub use action::Action;
pub use scene::Scene;

/// See the module.
#[derive(Clone)]
pub struct World {
    pub clock: Clock,
    left: Bounds,
    /// Leaderships may change.
    is_contested: bool,
    /// Nothing can be seen of when a commit lands, only of when its answer arrives: so it lands at once.
    lands_at_once: bool,
    store: Shared<Store>,
    managers: [Shared<Manager>; 2],
    executors: [Shared<Executor>; 2],
    /// Under way, in the order of their prints.
    net: Vec<Shared<Message>>,
    /// The newest work on the shard: its epoch, and whose it is.
    started: Option<(Epoch, Incarnation)>,
    /// Promises that the last step broke.
    pub broken: Vec<String>,
}

/// A part after something happened to it, and what came out.
type Taken<T> = Rc<(Shared<T>, Vec<Output>)>;

/// What each part does is a function of the part, the time and what happens, so it is worked out once.
#[derive(Default)]
pub struct Memo {
    pub guard: Option<Guard>,
    stores: HashMap<(u64, Clock, u64), Taken<Store>>,
    managers: HashMap<(u64, Clock, u64), Taken<Manager>>,
    executors: HashMap<(u64, Clock, u64), Taken<Executor>>,
    pub reached: HashMap<&'static str, u64>,
}

impl Memo {
    pub fn without(guard: Option<Guard>) -> Memo {
        Memo { guard, ..Memo::default() }
    }
}

/// Works it out, or remembers.
fn taken<T: fmt::Debug, I: Hash>(
    known: &mut HashMap<(u64, Clock, u64), Taken<T>>,
    part: &Shared<T>,
    clock: Clock,
    input: &I,
    take: impl FnOnce() -> (T, Outputs),
) -> Taken<T> {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let make = || {
        let (part, out) = take();
        Rc::new((Shared::new(part), out.0))
    };
    Rc::clone(known.entry((part.print(), clock, hasher.finish())).or_insert_with(make))
}

impl World {
    pub fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.clock, &self.left, &self.store, &self.managers, &self.executors, &self.net, &self.started).hash(&mut hasher);
        hasher.finish()
    }

    /// Everything that may happen next.
    pub fn actions(&self, memo: &Memo) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut is_urgent = false;
        for (at, manager) in self.managers.iter().enumerate() {
            is_urgent |= self.actions_of_manager(at, manager, memo, &mut actions);
        }
        for (at, executor) in self.executors.iter().enumerate() {
            self.actions_of_executor(at, executor, &mut actions);
        }
        for (at, message) in self.net.iter().enumerate() {
            let twice = at > 0 && self.net[at - 1].print() == message.print();
            if twice || !self.is_awake_for(message) {
                continue;
            }
            actions.push(Action::Arrives { message: message.clone(), again: false });
            if self.left.duplicates > 0 {
                actions.push(Action::Arrives { message: message.clone(), again: true });
            }
            if self.left.outages > 0 && matches!(&**message, Message::Commit { .. }) {
                actions.push(Action::TurnedAway(message.clone()));
            }
        }
        if self.left.ticks > 0 && !is_urgent {
            actions.push(Action::Tick);
        }
        actions
    }

    /// Whether something has to be done before time goes on.
    fn actions_of_manager(&self, at: usize, manager: &Manager, memo: &Memo, actions: &mut Vec<Action>) -> bool {
        if manager.paused {
            actions.push(Action::WakeManager(at));
            return false;
        }
        let Some(leadership) = &manager.leadership else {
            if self.left.elections > 0 && self.clock.tick >= self.store.expires {
                actions.push(Action::Elect(at));
            }
            return false;
        };
        if self.left.manager_pauses > 0 {
            actions.push(Action::PauseManager(at));
        }
        let is_over = !leadership.is_believed_in(self.clock) && memo.guard != Some(Guard::Belief);
        if is_over {
            actions.push(Action::GiveUp(at));
        }
        let is_current = leadership.number == self.store.leader && self.clock.tick < self.store.expires;
        if self.is_contested && is_current && leadership.believe_until < self.clock.tick + LEADERSHIP {
            actions.push(Action::Keep(at));
        }
        if self.left.doubts > 0 && leadership.waits_for_the_store() {
            actions.push(Action::NotAnswered(at));
        }
        if self.left.wishes > 0 && leadership.is_open() {
            let wishes = [true, false].into_iter().filter(|drain| leadership.may_wish(0, *drain));
            actions.extend(wishes.map(|drain| Action::Wish { manager: at, executor: 0, drain }));
        }
        let is_due = leadership.waits_for_a_turn(self.clock);
        if is_due {
            actions.push(Action::Turn(at));
        }
        is_due || is_over
    }

    fn actions_of_executor(&self, at: usize, executor: &Executor, actions: &mut Vec<Action>) {
        if executor.paused {
            actions.push(Action::WakeExecutor(at));
            return;
        }
        if self.left.executor_pauses > 0 {
            actions.push(Action::PauseExecutor(at));
        }
        if executor.is_stopping() && !self.left.hangs {
            actions.push(Action::Stopped(at));
        }
        let may_call = match executor.calls(self.clock) {
            Some(Kind::Register) => self.left.registrations > 0,
            Some(_) => self.left.calls > 0,
            None => false,
        };
        for to in 0..2 {
            let manager = &self.managers[to];
            let reaches = !(self.left.prompt && at == 1 && manager.paused);
            if may_call && reaches && manager.leadership.as_ref().is_some_and(|leadership| leadership.is_open()) {
                actions.push(Action::Call { executor: at, to });
            }
        }
    }

    fn is_awake_for(&self, message: &Message) -> bool {
        match message {
            Message::Call { to, .. } => {
                let manager = &self.managers[*to];
                !manager.paused && manager.leadership.as_ref().is_some_and(|leadership| leadership.is_open())
            }
            Message::Stored { to, .. } | Message::Pushed { to, .. } => !self.managers[*to].paused,
            Message::Answer { to, .. } | Message::Push { to, .. } => !self.executors[*to].paused,
            Message::Commit { .. } => true,
        }
    }

    /// Whether a message can still have an effect on anybody.
    fn matters(&self, message: &Message) -> bool {
        match message {
            Message::Call { to, .. } => self.left.elections > 0 || self.managers[*to].leadership.is_some(),
            Message::Answer { to, number, .. } => self.executors[*to].awaits() == Some(*number),
            Message::Stored { to, leadership, attempt, .. } => {
                let leading = self.managers[*to].leadership.as_ref().filter(|it| it.number == *leadership);
                leading.is_some_and(|it| it.commits(*attempt))
            }
            Message::Pushed { to, leadership, from, version, .. } => {
                let leading = self.managers[*to].leadership.as_ref().filter(|it| it.number == *leadership);
                leading.is_some_and(|it| it.waits_for_command(*from, *version))
            }
            Message::Push { .. } | Message::Commit { .. } => true,
        }
    }

    /// The world after something happened.
    pub fn after(&self, action: &Action, memo: &mut Memo) -> World {
        let mut world = self.clone();
        world.act(action, memo);
        world.tidy();
        world.check(memo);
        world
    }

    fn act(&mut self, action: &Action, memo: &mut Memo) {
        match action {
            Action::Tick => {
                self.clock.tick += 1;
                self.left.ticks -= 1;
                for at in 0..2 {
                    let leads = self.managers[at].leadership.as_ref().is_some_and(|it| it.number == self.store.leader);
                    let is_kept =
                        leads && !self.is_contested && !self.managers[at].paused && self.clock.tick <= self.store.expires;
                    if is_kept {
                        self.store(&store::Input::Keep, memo);
                    }
                    if !self.managers[at].paused {
                        self.manager(at, &manager::Input::Tick { is_kept }, memo);
                    }
                    self.executor(at, &executor::Input::Look, memo);
                }
            }
            Action::Turn(at) => self.manager(*at, &manager::Input::Turn, memo),
            Action::Keep(at) => {
                self.store(&store::Input::Keep, memo);
                self.manager(*at, &manager::Input::Keep, memo);
            }
            Action::GiveUp(at) => self.manager(*at, &manager::Input::GiveUp, memo),
            Action::Elect(at) => {
                self.left.elections -= 1;
                self.store(&store::Input::Elect, memo);
                self.manager(*at, &manager::Input::Win(self.store.clone()), memo);
            }
            Action::NotAnswered(at) => {
                self.left.doubts -= 1;
                self.manager(*at, &manager::Input::NotAnswered, memo);
            }
            Action::Wish { manager, executor, drain } => {
                self.left.wishes -= 1;
                self.manager(*manager, &manager::Input::Wish { executor: *executor, drain: *drain }, memo);
            }
            Action::PauseManager(at) => {
                self.left.manager_pauses -= 1;
                self.manager(*at, &manager::Input::Pause, memo);
            }
            Action::WakeManager(at) => self.manager(*at, &manager::Input::Wake, memo),
            Action::Call { executor, to } => {
                if self.executors[*executor].calls(self.clock) == Some(Kind::Register) {
                    self.left.registrations -= 1;
                }
                self.executor(*executor, &executor::Input::Call { to: *to }, memo);
                if self.left.prompt && *executor == 1 {
                    self.answer_at_once(memo);
                }
            }
            Action::Stopped(at) => self.executor(*at, &executor::Input::Stopped, memo),
            Action::PauseExecutor(at) => {
                self.left.executor_pauses -= 1;
                self.executor(*at, &executor::Input::Pause, memo);
            }
            Action::WakeExecutor(at) => self.executor(*at, &executor::Input::Wake, memo),
            Action::Arrives { message, again } => {
                if *again {
                    self.left.duplicates -= 1;
                } else {
                    self.remove(message);
                }
                self.deliver(message, memo);
            }
            Action::TurnedAway(message) => {
                self.left.outages -= 1;
                self.remove(message);
                self.store(&store::Input::TurnAway(message.clone()), memo);
            }
        }
    }

    /// The call of the second executor arrives, and its answer, unless it waits for a commit.
    fn answer_at_once(&mut self, memo: &mut Memo) {
        let call = |message: &&Shared<Message>| matches!(&***message, Message::Call { from: 1, .. });
        let answer = |message: &&Shared<Message>| matches!(&***message, Message::Answer { to: 1, .. });
        if let Some(message) = self.net.iter().find(call).cloned() {
            self.remove(&message);
            self.deliver(&message, memo);
        }
        self.tidy();
        if let Some(message) = self.net.iter().find(answer).cloned() {
            self.remove(&message);
            self.deliver(&message, memo);
        }
    }

    fn remove(&mut self, message: &Shared<Message>) {
        if let Some(at) = self.net.iter().position(|other| other.print() == message.print()) {
            self.net.remove(at);
        }
    }

    fn deliver(&mut self, message: &Shared<Message>, memo: &mut Memo) {
        match &**message {
            Message::Call { to, .. } | Message::Stored { to, .. } | Message::Pushed { to, .. } => {
                self.manager(*to, &manager::Input::Message(message.clone()), memo);
            }
            Message::Answer { to, .. } | Message::Push { to, .. } => {
                self.executor(*to, &executor::Input::Message(message.clone()), memo);
            }
            Message::Commit { from, leadership, changes, .. } => {
                let revision = self.store.revision;
                self.store(&store::Input::Commit(message.clone()), memo);
                if self.store.revision == revision {
                    return;
                }
                // L5: what lands is waited for, or its leadership is over.
                let leading = self.managers[*from].leadership.as_ref().filter(|it| it.number == *leadership);
                match leading {
                    Some(leading) if !leading.commits(changes.meta.attempt) && memo.guard != Some(Guard::DurableFirst) => {
                        self.break_promise(format!("L5: attempt {} landed after it was called failed", changes.meta.attempt));
                    }
                    Some(_) => {}
                    None => *memo.reached.entry("a commit landed that nobody waited for any more").or_default() += 1,
                }
            }
        }
    }

    fn store(&mut self, input: &store::Input, memo: &mut Memo) {
        let (before, clock, guard) = (self.store.clone(), self.clock, memo.guard);
        let taken = taken(&mut memo.stores, &self.store, clock, input, || before.take(clock, input, guard));
        self.store = taken.0.clone();
        self.come_out(&taken.1, memo);
    }

    fn manager(&mut self, at: usize, input: &manager::Input, memo: &mut Memo) {
        let (before, clock, guard) = (self.managers[at].clone(), self.clock, memo.guard);
        let taken = taken(&mut memo.managers, &self.managers[at], clock, input, || before.take(clock, input, guard));
        self.managers[at] = taken.0.clone();
        self.come_out(&taken.1, memo);
    }

    fn executor(&mut self, at: usize, input: &executor::Input, memo: &mut Memo) {
        let (before, clock, guard) = (self.executors[at].clone(), self.clock, memo.guard);
        let taken = taken(&mut memo.executors, &self.executors[at], clock, input, || before.take(clock, input, guard));
        self.executors[at] = taken.0.clone();
        self.come_out(&taken.1, memo);
    }

    fn come_out(&mut self, outputs: &[Output], memo: &mut Memo) {
        for output in outputs {
            match output {
                Output::Send(message) if self.lands_at_once && matches!(&**message, Message::Commit { .. }) => {
                    self.deliver(message, memo);
                }
                Output::Send(message) => self.send(message),
                // P4: work only ever starts at a higher epoch than before, or again under the same process.
                Output::Started(epoch, incarnation) => {
                    let grew = self.started.is_none_or(|before| *epoch > before.0 || (*epoch, *incarnation) == before);
                    if !grew {
                        self.break_promise(format!("P4: work starts at epoch {epoch} after {:?}", self.started));
                    }
                    self.started = Some((*epoch, *incarnation));
                }
                Output::Broken(what) => self.break_promise(what.clone()),
                Output::Reached(what) => *memo.reached.entry(what).or_default() += 1,
            }
        }
    }

    fn send(&mut self, message: &Shared<Message>) {
        let (most, to) = match &**message {
            Message::Call { from, .. } => (self.left.calls, Some((true, *from))),
            Message::Push { to, .. } => (self.left.commands, Some((false, *to))),
            _ => (u8::MAX, None),
        };
        if most == 0 {
            return;
        }
        let age = |other: &Message| match other {
            Message::Call { from, number, .. } if to == Some((true, *from)) => Some((*number, 0)),
            Message::Push { to: other, push, .. } if to == Some((false, *other)) => {
                Some((push.version.term.0, push.version.revision.0))
            }
            _ => None,
        };
        let mut like: Vec<usize> = (0..self.net.len()).filter(|at| age(&self.net[*at]).is_some()).collect();
        if like.len() >= usize::from(most) {
            like.sort_by_key(|at| age(&self.net[*at]));
            self.net.remove(like[0]);
        }
        self.net.push(message.clone());
    }

    fn tidy(&mut self) {
        let mut net = std::mem::take(&mut self.net);
        net.retain(|message| self.matters(message));
        net.sort_by_key(Shared::print);
        self.net = net;
    }

    fn break_promise(&mut self, what: String) {
        self.broken.push(what);
    }

    fn check(&mut self, memo: &Memo) {
        if self.executors.iter().all(|executor| executor.works(self.clock)) {
            self.break_promise("P3: both executors work on the shard".to_owned());
        }
        if memo.guard == Some(Guard::DurableFirst) {
            return;
        }
        for at in 0..2 {
            let Some(leadership) = &self.managers[at].leadership else { continue };
            let stored = self.store.revision.map(|revision| (revision, self.store.print));
            let memory = leadership.settled_memory();
            if leadership.number == self.store.leader && memory.is_some() && memory != stored {
                self.break_promise(format!("L5: the memory of leadership {} is not what is stored", leadership.number));
            }
        }
    }
}

//! A manager's process: waits, wins, leads, and is put down by whatever happens to it.

use shard_manager::types::{BootInstant, Incarnation, Slot};

use crate::context::{Context, Message, Node};
use crate::leadership::{Leadership, Over};
use crate::random::{Clock, Instant, MS, span};
use crate::store::LEADERSHIP;

pub struct Replica {
    pub at: usize,
    pub clock: Clock,
    /// 0 while it runs.
    pub paused_until: Instant,
    pub down_until: Instant,
    pub inbox: Vec<Message>,
    role: Role,
}

enum Role {
    Waits { ask: BootInstant },
    Won { number: u64, load: BootInstant, until: BootInstant },
    Leads(Box<Leadership>),
}

impl Replica {
    pub fn new(at: usize, context: &mut Context) -> Replica {
        let clock = Clock::draw(&mut context.random);
        let role = Role::Waits { ask: clock.read(context.time) };
        Replica { at, clock, paused_until: 0, down_until: 0, inbox: Vec::new(), role }
    }

    pub fn crash(&mut self, until: Instant) {
        self.down_until = until;
        self.paused_until = 0;
        self.inbox.clear();
        self.role = Role::Waits { ask: self.clock.read(until) };
    }

    pub fn is_open(&self) -> bool {
        matches!(&self.role, Role::Leads(leads) if leads.open)
    }

    /// Somewhere to report a health probe for.
    pub fn peers(&self) -> Vec<(Slot, Incarnation)> {
        match &self.role {
            Role::Leads(leads) => leads.links.values().map(|link| (link.peer.slot, link.peer.incarnation)).collect(),
            _ => Vec::new(),
        }
    }

    /// Takes in what arrived, does what is due; when it wants to run next.
    pub fn run(&mut self, context: &mut Context) -> Instant {
        let now = self.clock.read(context.time);
        let inbox = std::mem::take(&mut self.inbox);
        match &mut self.role {
            Role::Waits { ask } => {
                refuse(self.at, inbox, context);
                if now < *ask {
                    return self.clock.when(*ask);
                }
                *ask = now.after(span(context.random.between(20 * MS, 120 * MS)));
                let ask = *ask;
                if context.reaches_store(self.at)
                    && let Some(number) = context.store.campaign(context.time)
                {
                    context.log(|| format!("replica {} wins leadership {number}", self.at));
                    context.reached("a replica won");
                    let longest = if context.calm { 30 * MS } else { 600 * MS };
                    let load = now.after(span(context.random.between(MS, longest)));
                    self.role = Role::Won { number, load, until: now.after(span(LEADERSHIP)) };
                    return self.clock.when(load);
                }
                self.clock.when(ask)
            }
            Role::Won { number, load, until } => {
                refuse(self.at, inbox, context);
                if now < *load {
                    return self.clock.when(*load);
                }
                if now >= *until {
                    return self.lose(now, context);
                }
                *load = now.after(span(50 * MS));
                let (number, load, until) = (*number, *load, *until);
                if let Some(loaded) = context.store.load(context.time).filter(|_| context.reaches_store(self.at)) {
                    let leads = Leadership::new(number, until, loaded, now, context);
                    self.role = Role::Leads(Box::new(leads));
                    return self.clock.when(now);
                }
                self.clock.when(load)
            }
            Role::Leads(leads) => match leads.run(self.at, now, inbox, context) {
                Ok(next) => self.clock.when(next.max(now)),
                Err(Over) => self.lose(now, context),
            },
        }
    }

    /// Nothing of the leadership stays.
    fn lose(&mut self, now: BootInstant, context: &mut Context) -> Instant {
        context.log(|| format!("replica {} leads no more", self.at));
        let ask = now.after(span(context.random.between(10 * MS, 500 * MS)));
        self.role = Role::Waits { ask };
        self.clock.when(ask)
    }
}

/// Nobody listens at the port.
pub fn refuse(at: usize, inbox: Vec<Message>, context: &mut Context) {
    for message in inbox {
        let (to, refusal) = match message {
            Message::Call { from, call, .. } => (Node::Process(from), Message::Answer { call, reply: None }),
            Message::Watch { from, stream, .. } => (Node::Reader(from), Message::Told { stream, place: 0, what: None }),
            _ => continue,
        };
        context.send(Node::Replica(at), to, refusal);
    }
}

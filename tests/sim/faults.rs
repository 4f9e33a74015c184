//! What goes wrong in a world, and how it ends.

use shard_manager::assignment::event::Demand;
use shard_manager::assignment::record::Wish;
use shard_manager::client::Route;
use shard_manager::types::{ExecutorId, ShardId};

use crate::context::{Message, Node};
use crate::executor::Process;
use crate::operators::{Word, wished};
use crate::random::{MS, SECOND, span};
use crate::world::{Runs, World};

impl World {
    pub fn start(&mut self, id: ExecutorId, in_place: bool) {
        let at = self.processes.len();
        let before = self.processes.iter().rfind(|process| process.id == id).map(|process| process.endpoint.clone());
        let endpoint = match before.filter(|_| in_place) {
            Some(endpoint) => endpoint,
            None if self.context.random.per_mille(500) => format!("http://10.0.0.1:{}", 1000 + at),
            None => format!("http://{id}-{at}:1"),
        };
        let replicas = self.replicas.len();
        let process = Process::new(at, id, endpoint, replicas, &mut self.context);
        self.context.log(|| format!("{} is started at {}", process.name(), process.endpoint));
        self.processes.push(process);
        self.wake(Runs::Process(at), self.context.time);
    }

    fn living(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect()
    }

    pub fn fault(&mut self) {
        let time = self.context.time;
        let living = self.living();
        let process = self.context.random.pick(&living);
        let replica = self.context.random.below(self.replicas.len());
        let span = match self.context.random.below(3) {
            0 => self.context.random.between(MS, 300 * MS),
            1 => self.context.random.between(300 * MS, 3 * SECOND),
            _ => self.context.random.between(3 * SECOND, 8 * SECOND),
        };
        match (self.context.random.below(if self.context.store_is_lost { 20 } else { 18 }), process) {
            (0, _) => {
                self.context.log(|| format!("replica {replica} crashes for {} ms", span / MS));
                self.replicas[replica].crash(time + span);
                self.wakes.remove(&Runs::Replica(replica));
                self.wake(Runs::Replica(replica), time + span);
            }
            (1, _) => {
                self.context.log(|| format!("replica {replica} pauses for {} ms", span / MS));
                self.replicas[replica].paused_until = time + span;
                self.wake(Runs::Replica(replica), time + span);
            }
            (2 | 3, Some(at)) => {
                self.context.log(|| format!("process {at} pauses for {} ms", span / MS));
                self.processes[at].paused_until = time + span;
                self.wake(Runs::Process(at), time + span);
            }
            (4, Some(at)) => {
                self.context.log(|| format!("process {at} crashes"));
                self.processes[at].alive = false;
            }
            (5..=7, _) => {
                let dead = |id: &&ExecutorId| !self.processes.iter().any(|process| process.alive && process.id == **id);
                let dead: Vec<usize> = (0..self.ids.len()).filter(|at| dead(&&self.ids[*at])).collect();
                if let Some(id) = self.context.random.pick(&dead) {
                    let in_place = self.context.random.per_mille(600);
                    self.start(self.ids[id].clone(), in_place);
                }
            }
            (8, Some(at)) => {
                // A second process under the id while the first one lives.
                let id = self.processes[at].id.clone();
                self.start(id, false);
            }
            (9, Some(at)) if self.processes[at].paused_until == 0 => {
                self.context.log(|| format!("process {at} leaves"));
                self.processes[at].leave(&self.context);
                self.run_process(at);
            }
            (10 | 17, _) => {
                let word = self.word();
                self.context.log(|| format!("an operator says {word:?}"));
                self.say(word);
            }
            (11 | 12, _) => {
                let reader = self.context.random.below(self.readers.len());
                let to = match (self.context.random.below(10), process) {
                    (0..=5, Some(at)) => vec![Node::Process(at), Node::Endpoint(self.processes[at].endpoint.clone())],
                    (6, _) => vec![Node::Reader(reader)],
                    _ => vec![Node::Store],
                };
                self.cut(&Node::Replica(replica), &to);
            }
            (13, _) => self.context.cuts.clear(),
            (14 | 16, _) => {
                self.context.log(|| format!("the store is out for {} ms", span / 4 / MS));
                self.context.store.out_until = time + span / 4;
            }
            (18.., _) => self.lose_the_store(),
            (15, Some(at)) if self.processes[at].paused_until == 0 => {
                self.processes[at].give_up(&mut self.context);
                self.run_process(at);
            }
            _ => {
                let healthy = self.context.random.per_mille(700);
                let peers = self.replicas[replica].peers();
                if let Some((slot, incarnation)) = self.context.random.pick(&peers) {
                    self.context.send(Node::Operator, Node::Replica(replica), Message::Probed(slot, incarnation, healthy));
                }
            }
        }
    }

    /// Both ways mostly; else one hears the other and is not heard.
    fn cut(&mut self, replica: &Node, others: &[Node]) {
        let ways = self.context.random.below(4);
        let word = ["cannot reach", "does not hear from", "is cut off from", "is cut off from"][ways];
        self.context.log(|| format!("{replica:?} {word} {others:?}"));
        for other in others {
            let (there, back) = ((replica.clone(), other.clone()), (other.clone(), replica.clone()));
            self.context.cuts.extend((ways != 1).then_some(there).into_iter().chain((ways != 0).then_some(back)));
        }
        let deaf = ways == 1 && matches!(others, [Node::Process(_), ..]);
        self.context.reached(if deaf { "only commands got through" } else { "a link was cut" });
    }

    /// Somebody empties the store, or puts a backup in its place; or a replica takes over that lags behind.
    fn lose_the_store(&mut self) {
        let backups = self.context.store.backups();
        let to = self.context.random.pick(&backups).filter(|_| self.context.random.per_mille(600));
        let leader_stays = self.context.random.per_mille(300);
        self.context.log(|| match to {
            Some(to) => format!("the store is put back to revision {}", to.0),
            None => "the store is wiped".to_owned(),
        });
        self.context.reached(match (to, leader_stays) {
            (None, _) => "the store was wiped",
            (Some(_), false) => "the store was put back",
            (Some(_), true) => "the store was put back under its leader",
        });
        self.context.store.restore(to, leader_stays);
        self.context.operators.store_was_lost();
        self.context.leased_over_lost();
    }

    /// Something that operators do.
    fn word(&mut self) -> Word {
        let random = &mut self.context.random;
        let id = self.ids[random.below(self.ids.len())].clone();
        let processes = &self.processes;
        let dead = |id: &&ExecutorId| !processes.iter().any(|process| process.alive && process.id == **id);
        let dead: Vec<&ExecutorId> = self.ids.iter().filter(dead).collect();
        if let Some(dead) = random.pick(&dead).filter(|_| random.per_mille(500)) {
            return Word::Demand(Demand::Remove { id: dead.clone(), dead: true });
        }
        let state = self.context.store.current();
        let removed = |id: &&ExecutorId| state.as_ref().is_some_and(|it| wished(&it.state, id) == Wish::Remove);
        let removed: Vec<&ExecutorId> = self.ids.iter().filter(removed).collect();
        if let Some(removed) = random.pick(&removed).filter(|_| random.per_mille(250)) {
            return Word::Demand(Demand::Admit(removed.clone()));
        }
        match random.below(11) {
            0 => Word::Wish(id, Wish::None),
            1 => Word::Wish(id, Wish::Cordon),
            2 => Word::Wish(id, Wish::Drain),
            3 | 4 => Word::Demand(Demand::Remove { id, dead: false }),
            5 => Word::Demand(Demand::Admit(id)),
            6..=8 => {
                let most = random.between(1, 4) as usize;
                let mut shards: Vec<ShardId> =
                    (0..most).map(|_| ShardId(random.below(self.context.shards as usize) as u32)).collect();
                shards.sort_unstable();
                shards.dedup();
                Word::Demand(Demand::Move { shards, to: id })
            }
            9 => {
                let length = span(random.between(SECOND, 15 * SECOND));
                Word::Demand(Demand::Pause { length, by: "an operator".to_owned(), reason: String::new() })
            }
            _ => Word::Demand(Demand::Resume),
        }
    }

    /// To whoever leads, or thinks so.
    fn say(&mut self, word: Word) {
        let open: Vec<usize> = (0..self.replicas.len()).filter(|at| self.replicas[*at].is_open()).collect();
        for at in open {
            self.context.send(Node::Operator, Node::Replica(at), Message::Word(word.clone()));
        }
    }

    pub fn calm_down(&mut self) {
        self.context.log(|| "the storm is over".to_owned());
        self.context.calm = true;
        self.context.cuts.clear();
        self.context.store.out_until = 0;
        // A leader under whom the store was put back finds that out by its next commit.
        for id in self.ids.clone() {
            self.say(Word::Wish(id, Wish::Cordon));
        }
        let length = span(SECOND);
        self.say(Word::Demand(Demand::Pause { length, by: "the calm".to_owned(), reason: String::new() }));
        self.leave_some_removed();
        let time = self.context.time;
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            replica.down_until = replica.down_until.min(time);
            replica.paused_until = replica.paused_until.min(time);
            self.wakes.remove(&Runs::Replica(at));
            self.wake(Runs::Replica(at), time);
        }
        for at in self.living() {
            self.processes[at].paused_until = self.processes[at].paused_until.min(time);
            self.wakes.remove(&Runs::Process(at));
            self.wake(Runs::Process(at), time);
        }
    }

    /// Who was removed is admitted again, or not: but then there is somebody else who takes shards. Some of their processes go on asking.
    fn leave_some_removed(&mut self) {
        let Some(newest) = self.context.store.current() else { return };
        for id in self.ids.clone() {
            let leaves = |other: &ExecutorId| self.processes.iter().any(|it| it.alive && it.id == *other && it.leaving);
            let takes = |other: &&ExecutorId| **other != id && !self.gone.contains(other) && !leaves(other);
            let stays = wished(&newest.state, &id) == Wish::Remove && self.ids.iter().any(|other| takes(&other));
            if !stays || self.context.random.per_mille(500) {
                continue;
            }
            self.context.reached("who was removed stays away");
            let ends = self.context.random.per_mille(500);
            self.processes.iter_mut().filter(|process| process.id == id && ends).for_each(|process| process.alive = false);
            self.gone.insert(id);
        }
    }

    /// Every 50 ms: a reader calls somebody, or loses its connection; in the calm, operators take back what they wished, and dead processes are started again.
    pub fn look(&mut self) {
        let reader = self.context.random.below(self.readers.len());
        let shard = ShardId(self.context.random.between(0, u64::from(self.context.shards)) as u32);
        let processes = &self.processes;
        let works = |route: &Route| {
            let owner = (&route.owner.id, route.owner.incarnation);
            processes.iter().any(|process| process.alive && process.has(shard, route.epoch, owner))
        };
        self.readers[reader].call(shard, works, &mut self.context);
        if !self.context.calm && self.context.random.per_mille(80) {
            self.readers[reader].lose_connection(&mut self.context);
        }
        self.run_reader(reader);
        if !self.context.calm {
            return;
        }
        let ids = self.ids.iter().filter(|_| self.context.random.per_mille(250)).cloned().collect::<Vec<_>>();
        for id in ids {
            if self.gone.contains(&id) {
                self.say(Word::Demand(Demand::Remove { id, dead: false }));
            } else {
                self.say(Word::Demand(Demand::Admit(id.clone())));
                self.say(Word::Wish(id, Wish::None));
            }
        }
        if self.context.random.per_mille(250) {
            self.say(Word::Demand(Demand::Resume));
        }
        for at in 0..self.replicas.len() {
            for (slot, incarnation) in self.replicas[at].peers() {
                self.context.send(Node::Operator, Node::Replica(at), Message::Probed(slot, incarnation, true));
            }
        }
        for id in self.ids.clone() {
            if !self.gone.contains(&id) && !self.processes.iter().any(|process| process.alive && process.id == id) {
                self.start(id, true);
            }
        }
    }
}

//! What goes wrong in a world, and how it ends.

use shard_manager::assignment::record::Wish;
use shard_manager::types::ExecutorId;

use crate::context::{Message, Node};
use crate::executor::Process;
use crate::random::{MS, SECOND};
use crate::world::World;

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
        self.wake(true, at, self.context.time);
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
        match (self.context.random.below(17), process) {
            (0, _) => {
                self.context.log(|| format!("replica {replica} crashes for {} ms", span / MS));
                self.replicas[replica].crash(time + span);
                self.wakes.remove(&(false, replica));
                self.wake(false, replica, time + span);
            }
            (1, _) => {
                self.context.log(|| format!("replica {replica} pauses for {} ms", span / MS));
                self.replicas[replica].paused_until = time + span;
                self.wake(false, replica, time + span);
            }
            (2 | 3, Some(at)) => {
                self.context.log(|| format!("process {at} pauses for {} ms", span / MS));
                self.processes[at].paused_until = time + span;
                self.wake(true, at, time + span);
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
            (9, Some(at)) => {
                self.context.log(|| format!("process {at} leaves"));
                self.processes[at].leave(&self.context);
                self.run_process(at);
            }
            (10, _) => {
                let id = self.ids[self.context.random.below(self.ids.len())].clone();
                let wish = [Wish::None, Wish::Cordon, Wish::Drain][self.context.random.below(3)];
                self.context.log(|| format!("an operator wishes {wish:?} for {id}"));
                self.wish(id, wish);
            }
            (11 | 12, _) => {
                let to = match process.filter(|_| self.context.random.per_mille(600)) {
                    Some(at) => Node::Process(at),
                    None => Node::Store,
                };
                self.context.log(|| format!("replica {replica} and {to:?} are cut apart"));
                let cut = (Node::Replica(replica), to.clone());
                if let Node::Process(at) = to {
                    let endpoint = Node::Endpoint(self.processes[at].endpoint.clone());
                    self.context.cuts.insert((Node::Replica(replica), endpoint));
                }
                self.context.cuts.insert(cut);
            }
            (13, _) => self.context.cuts.clear(),
            (14 | 16, _) => {
                self.context.log(|| format!("the store is out for {} ms", span / 4 / MS));
                self.context.store.out_until = time + span / 4;
            }
            (15, Some(at)) if self.processes[at].paused_until == 0 => {
                self.processes[at].give_up(&mut self.context);
                self.run_process(at);
            }
            _ => {
                let healthy = self.context.random.per_mille(700);
                let peers = self.replicas[replica].peers();
                if let Some((slot, incarnation)) = self.context.random.pick(&peers) {
                    self.context.send(Node::Replica(replica), Message::Probed(slot, incarnation, healthy));
                }
            }
        }
    }

    fn wish(&mut self, id: ExecutorId, wish: Wish) {
        let open: Vec<usize> = (0..self.replicas.len()).filter(|at| self.replicas[*at].is_open()).collect();
        for at in open {
            self.context.send(Node::Replica(at), Message::Wish(id.clone(), wish));
        }
    }

    pub fn calm_down(&mut self) {
        self.context.log(|| "the storm is over".to_owned());
        self.context.calm = true;
        self.context.cuts.clear();
        self.context.store.out_until = 0;
        let time = self.context.time;
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            replica.down_until = replica.down_until.min(time);
            replica.paused_until = replica.paused_until.min(time);
            self.wakes.remove(&(false, at));
            self.wake(false, at, time);
        }
        for at in self.living() {
            self.processes[at].paused_until = self.processes[at].paused_until.min(time);
            self.wakes.remove(&(true, at));
            self.wake(true, at, time);
        }
    }

    /// Every 50 ms: somebody reads a table; in the calm, operators take back what they wished, and dead processes are started again.
    pub fn look(&mut self) {
        let replica = self.context.random.below(self.replicas.len());
        if let Some(table) = self.replicas[replica].published().cloned() {
            self.context.send(Node::Reader, Message::Table(table));
        }
        if !self.context.calm {
            return;
        }
        if let Some(snapshot) = self.context.store.current() {
            for (_, record) in snapshot.state.executors().filter(|(_, record)| record.wish != Wish::None) {
                self.wish(record.id.clone(), Wish::None);
            }
        }
        for at in 0..self.replicas.len() {
            for (slot, incarnation) in self.replicas[at].peers() {
                self.context.send(Node::Replica(at), Message::Probed(slot, incarnation, true));
            }
        }
        for id in self.ids.clone() {
            if !self.processes.iter().any(|process| process.alive && process.id == id) {
                self.start(id, true);
            }
        }
    }
}

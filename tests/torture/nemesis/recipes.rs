//! Faults that take several steps, each of which aims at one rule.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use super::{Active, Next, World};
use crate::link::{Harm, Link};
use crate::operator::Outcome;
use crate::plan::{Kind, Target};
use crate::settings::{LEASE, SEATS, TTL};

/// Between two wishes of a churn.
const CHURN: Duration = Duration::from_millis(300);
/// How long a lock is held at a time: a commit has to get through in between.
const LOCKED: Duration = Duration::from_millis(400);
/// How much slower the way to the store is made.
const SLOW: Duration = Duration::from_millis(500);
/// How long an operator may have to wait for an answer.
const ANSWER: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(20);

impl World {
    fn seat_of(active: &Active) -> usize {
        match active.fault.target {
            Target::Seat(at) => at,
            _ => active.fault.draw as usize % SEATS,
        }
    }

    /// Asks for something in the background.
    fn wish(&self, active: &mut Active, kind: &'static str, id: &str) {
        let (operator, id) = (self.operator.clone(), id.to_owned());
        active.asked = Some(tokio::spawn(async move { operator.ask(kind, &id).await }));
    }

    /// Until it is done, whoever leads.
    fn take_back(&self, id: &str) {
        let (operator, id) = (self.operator.clone(), id.to_owned());
        tokio::spawn(async move { operator.insist("uncordon", &id).await });
    }

    /// Nothing is waited for between the acknowledgement and the leader's death.
    pub(super) async fn kill_after_acknowledgement(&mut self, active: &mut Active) -> Next {
        let id = self.seats[World::seat_of(active)].id.clone();
        if active.step == 0 {
            let Some(leader) = self.replica(Target::Leader) else { return Next::Again };
            let kind = ["cordon", "drain"][active.fault.draw as usize % 2];
            if timeout(ANSWER, self.operator.ask(kind, &id)).await != Ok(Outcome::Acknowledged) {
                return Next::Again;
            }
            self.replicas[leader].wanted = false;
            self.replicas[leader].kill(&mut self.stage);
            active.replicas.push(leader);
            let name = self.replicas[leader].name.clone();
            self.begin(active, name);
            return Next::After(active.fault.length);
        }
        self.replicas[active.replicas[0]].wanted = true;
        self.take_back(&id);
        self.end(active);
        Next::Done
    }

    /// Only the leader's own belief keeps it from answering the executor on its side.
    pub(super) fn split(&mut self, active: &mut Active) -> Next {
        let with_leader = World::seat_of(active);
        if active.step == 0 {
            let Some(leader) = self.replica(Target::Leader) else { return Next::Again };
            self.replicas[leader].store.harm(Harm::Held);
            for seat in self.seats.iter().enumerate() {
                match seat {
                    (at, seat) if at == with_leader => seat.place.calls.harm_all_but(leader, Harm::Held),
                    (_, seat) => seat.place.calls.harm_one(leader, Harm::Held),
                }
            }
            active.replicas.push(leader);
            self.begin(active, format!("{} and {}", self.replicas[leader].name, self.seats[with_leader].id));
            return Next::After(active.fault.length);
        }
        self.replicas[active.replicas[0]].store.restore();
        self.seats.iter().for_each(|seat| seat.place.calls.restore());
        self.end(active);
        Next::Done
    }

    /// The end of a lease is claimed in memory before it is committed: a call that comes in between is refused.
    pub(super) async fn lease_edge(&mut self, active: &mut Active) -> Next {
        let at = World::seat_of(active);
        let on_one_host = self.ground.servers().is_empty();
        if active.step == 0 {
            let Some(leader) = self.replica(Target::Leader).filter(|_| self.seats[at].is_up()) else { return Next::Again };
            active.replicas.push(leader);
            active.mark = std::time::Instant::now();
            self.seats[at].place.calls.harm(Harm::Held);
            self.begin(active, self.seats[at].id.clone());
            return Next::After(LEASE - Duration::from_secs(1));
        }
        let (since, leader) = (active.mark.elapsed(), active.replicas[0]);
        if since >= LEASE - Duration::from_millis(800) + Duration::from_millis(30) * active.fault.draw {
            self.seats[at].place.calls.restore();
        }
        if since >= active.fault.length {
            self.seats[at].place.calls.restore();
            self.ease(leader, on_one_host).await;
            self.end(active);
            return Next::Done;
        }
        // Beside a file, held for a while again and again.
        active.turns += 1;
        if on_one_host && active.turns.is_multiple_of(2) {
            self.ground.resume(&[]).await;
            return Next::Stay(LOCKED / 8);
        }
        if on_one_host {
            self.ground.pause(&[]).await;
            return Next::Stay(LOCKED);
        }
        self.replicas[leader].store.harm(Harm::Delayed(SLOW));
        Next::Stay(TICK)
    }

    async fn ease(&mut self, leader: usize, on_one_host: bool) {
        if on_one_host {
            self.ground.resume(&[]).await;
        }
        self.replicas[leader].store.restore();
    }

    /// Shards leave an executor and come back, again and again, while one of its ways is slow.
    pub(super) fn churn(&mut self, active: &mut Active) -> Next {
        let seat = &self.seats[World::seat_of(active)];
        let id = seat.id.clone();
        if active.step == 0 {
            if self.operator.leaders.current().is_none() || !seat.is_up() {
                return Next::Again;
            }
            let late = Duration::from_millis(300 + u64::from(active.fault.draw) * 12);
            match active.fault.kind {
                Kind::ChurnLateCommands => seat.place.commands.harm(Harm::RequestsDelayed(late)),
                Kind::ChurnLateCalls => seat.place.calls.harm(Harm::RequestsDelayed(late)),
                _ => seat.place.calls.harm(Harm::AnswersDelayed(late)),
            }
            self.begin(active, id);
            active.mark = std::time::Instant::now();
            return Next::After(Duration::ZERO);
        }
        if active.asked.as_ref().is_some_and(|asked| !asked.is_finished()) {
            return Next::Again;
        }
        if active.mark.elapsed() < active.fault.length {
            active.turns += 1;
            self.wish(active, ["uncordon", "drain"][active.turns as usize % 2], &id);
            return Next::Stay(CHURN);
        }
        seat.place.links().into_iter().for_each(Link::restore);
        self.take_back(&id);
        self.end(active);
        Next::Done
    }

    /// What a leader sent before its successor was elected arrives after it.
    pub(super) async fn stale_commit(&mut self, active: &mut Active) -> Next {
        let id = self.seats[World::seat_of(active)].id.clone();
        let on_one_host = self.ground.servers().is_empty();
        match active.step {
            0 => {
                let Some(leader) = self.replica(Target::Leader) else { return Next::Again };
                active.fence = self.fences.current();
                if active.fence == 0 || (on_one_host && !self.ground.pause(&[]).await) {
                    return Next::Again;
                }
                active.replicas.push(leader);
                self.begin(active, self.replicas[leader].name.clone());
                for (at, replica) in self.replicas.iter().enumerate() {
                    replica.store.harm(if at == leader { Harm::RequestsLost } else { Harm::Delayed(SLOW / 2) });
                }
                active.mark = std::time::Instant::now();
                self.wish(active, "drain", &id);
                Next::After(Duration::from_millis(150))
            }
            // Beside a file, the leader stands still while it waits for the lock.
            1 => {
                if on_one_host {
                    self.replicas[active.replicas[0]].signal(Signal::STOP);
                    self.ground.resume(&[]).await;
                }
                Next::After(Duration::ZERO)
            }
            2 if self.fences.current() == active.fence && active.mark.elapsed() < active.fault.length => Next::Again,
            2 => {
                let old = active.replicas[0];
                let new = self.replica(Target::Leader).filter(|new| *new != old && on_one_host);
                if let Some(new) = new {
                    self.replicas[new].signal(Signal::STOP);
                    active.replicas.push(new);
                }
                self.replicas[old].signal(Signal::CONT);
                self.replicas[old].store.restore();
                Next::After(TTL / 2)
            }
            _ => {
                for replica in &mut self.replicas {
                    replica.store.restore();
                    replica.signal(Signal::CONT);
                }
                self.take_back(&id);
                self.end(active);
                Next::Done
            }
        }
    }

    /// It fences itself, or nobody does; what it sent before that is for the storage to refuse.
    pub(super) fn cut_executor(&mut self, active: &mut Active) -> Next {
        let seat = &self.seats[World::seat_of(active)];
        if active.step == 0 {
            if !seat.is_up() {
                return Next::Again;
            }
            // Callers reach it still, and what it writes for them arrives when others own its shards.
            seat.place.calls.harm(Harm::Held);
            seat.place.storage.harm(Harm::RequestsLost);
            self.begin(active, seat.id.clone());
            return Next::After(active.fault.length);
        }
        seat.place.links().into_iter().for_each(Link::restore);
        self.end(active);
        Next::Done
    }
}

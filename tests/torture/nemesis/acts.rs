//! What each kind of fault does, step by step.

use std::time::Duration;

use rustix::process::Signal;

use super::{Active, Next, World};
use crate::link::{Harm, Link};
use crate::operator::Outcome;
use crate::plan::{Kind, Target};
use crate::settings::{SEATS, SHARDS, TTL};

/// Between two steps of a rolling restart.
const ROLL: Duration = Duration::from_millis(900);

impl World {
    /// One step.
    pub(super) async fn act(&mut self, active: &mut Active) -> Next {
        use Kind::*;
        match active.fault.kind {
            ManagerKilled | FreezeManager | ManagerRestarted | StandbyPausedAsLeaderDies => self.act_on_replica(active),
            StoreHeld | StoreRequestsLost | StoreAnswersLost | StoreDropped | StoreDelayed => self.act_on_link(active),
            CallsHeld | CallsAnswersLost | CallsDropped | CallsDelayed => self.act_on_link(active),
            CommandsHeld | CommandsAnswersLost | CommandsDropped | CommandsDelayed => self.act_on_link(active),
            StorageHeld | StorageAnswersLost | StorageDelayed | RouterHeld | RouterDropped => self.act_on_link(active),
            ExecutorKilled | ExecutorKilledMoved | FreezeExecutor | ExecutorRestarted | ExecutorLeft | ExecutorJoined
            | ExecutorDoubled => self.act_on_seat(active).await,
            ManagerSteppedDown | Drained | Removed | Moved => self.act_as_operator(active).await,
            RollingRestart => self.roll(active),
            MemberKilled | FreezeMember | DatabaseRestarted | FreezeStore | DatabaseLocked | MajorityLost | StoreWiped => {
                self.act_on_store(active).await
            }
            KillAfterAcknowledgement => self.kill_after_acknowledgement(active).await,
            Split => self.split(active),
            LeaseEdge => self.lease_edge(active).await,
            ChurnLateCommands | ChurnLateCalls | ChurnLateAnswers => self.churn(active),
            StaleCommit => self.stale_commit(active).await,
            CutExecutor => self.cut_executor(active),
        }
    }

    fn act_on_replica(&mut self, active: &mut Active) -> Next {
        let kind = active.fault.kind;
        if active.step == 0 {
            let Some(at) = self.replica(active.fault.target) else { return Next::Again };
            active.replicas.push(at);
            self.begin(active, self.replicas[at].name.clone());
        }
        let at = active.replicas[0];
        let replica = &mut self.replicas[at];
        match (kind, active.step) {
            (Kind::ManagerKilled, 0) => {
                replica.wanted = false;
                replica.kill(&mut self.stage);
            }
            (Kind::ManagerKilled, _) => replica.wanted = true,
            (Kind::FreezeManager | Kind::StandbyPausedAsLeaderDies, 0) => replica.signal(Signal::STOP),
            (Kind::FreezeManager, _) => replica.signal(Signal::CONT),
            (Kind::ManagerRestarted, 0) => {
                replica.wanted = false;
                replica.signal(Signal::TERM);
            }
            (Kind::ManagerRestarted, _) if replica.is_up() => {
                if active.since.elapsed() < super::STOP {
                    return Next::Again;
                }
                self.stage.odd_end(format!("{} did not end within {:?} of SIGTERM", replica.name, super::STOP));
                replica.kill(&mut self.stage);
                replica.wanted = true;
            }
            (Kind::ManagerRestarted, _) => replica.wanted = true,
            // The leader dies, the one that stands still wakes up, and the leader comes back.
            (Kind::StandbyPausedAsLeaderDies, 1) => {
                let leader = self.replica(Target::Leader).filter(|leader| *leader != at);
                if let Some(leader) = leader {
                    active.replicas.push(leader);
                    self.replicas[leader].wanted = false;
                    self.replicas[leader].kill(&mut self.stage);
                }
                return Next::After(TTL / 2);
            }
            (_, 2) => {
                replica.signal(Signal::CONT);
                return Next::After(TTL * 2);
            }
            _ => {
                let Some(leader) = active.replicas.get(1) else {
                    return Next::Missed;
                };
                self.replicas[*leader].wanted = true;
            }
        }
        if active.step == 0 {
            return Next::After(active.fault.length);
        }
        self.end(active);
        Next::Done
    }

    fn act_on_link(&mut self, active: &mut Active) -> Next {
        if active.step == 0 {
            let target = match active.fault.target {
                Target::Seat(at) if self.seats[at].is_up() => format!("{}'s links", self.seats[at].id),
                Target::Router => "router".to_owned(),
                Target::Leader | Target::Standby(_) => {
                    let Some(at) = self.replica(active.fault.target) else { return Next::Again };
                    active.replicas.push(at);
                    format!("{}'s link to the store", self.replicas[at].name)
                }
                _ => return Next::Again,
            };
            self.begin(active, target);
            self.link_of(active).harm(harm(active));
            return Next::After(active.fault.length);
        }
        self.link_of(active).restore();
        self.end(active);
        Next::Done
    }

    fn link_of(&self, active: &Active) -> &Link {
        use Kind::*;
        match (active.fault.kind, active.fault.target) {
            (CallsHeld | CallsAnswersLost | CallsDropped | CallsDelayed, Target::Seat(at)) => &self.seats[at].place.calls,
            (StorageHeld | StorageAnswersLost | StorageDelayed, Target::Seat(at)) => &self.seats[at].place.storage,
            (_, Target::Seat(at)) => &self.seats[at].place.commands,
            (_, Target::Router) => &self.router,
            _ => &self.replicas[active.replicas[0]].store,
        }
    }

    async fn act_on_seat(&mut self, active: &mut Active) -> Next {
        let at = if let Target::Seat(at) = active.fault.target { at } else { SEATS };
        let seat = &mut self.seats[at];
        let kind = active.fault.kind;
        if active.step == 0 {
            if seat.is_up() == (kind == Kind::ExecutorJoined) {
                return Next::Again;
            }
            let id = seat.id.clone();
            let target = if kind == Kind::ExecutorDoubled { format!("{id}#2") } else { id };
            self.begin(active, target);
            let seat = &mut self.seats[at];
            match kind {
                Kind::ExecutorKilled | Kind::ExecutorKilledMoved => {
                    seat.wanted = false;
                    seat.kill(&mut self.stage);
                }
                Kind::FreezeExecutor => seat.signal(Signal::STOP),
                Kind::ExecutorRestarted => seat.signal(Signal::INT),
                Kind::ExecutorLeft => {
                    seat.wanted = false;
                    seat.signal(Signal::TERM);
                }
                Kind::ExecutorJoined => seat.wanted = true,
                _ => seat.double(&mut self.stage).await,
            }
            return Next::After(active.fault.length);
        }
        match kind {
            Kind::ExecutorKilled => seat.wanted = true,
            Kind::ExecutorKilledMoved => {
                seat.place = crate::parties::Place::new(&self.stage).await;
                seat.wanted = true;
            }
            Kind::FreezeExecutor => seat.signal(Signal::CONT),
            Kind::ExecutorRestarted => {}
            // It leaves until it has left.
            Kind::ExecutorLeft if seat.is_up() => return Next::Again,
            Kind::ExecutorLeft => seat.wanted = true,
            Kind::ExecutorJoined => {
                seat.wanted = false;
                seat.signal(Signal::TERM);
            }
            _ => seat.settle(&mut self.stage),
        }
        self.end(active);
        Next::Done
    }

    async fn act_as_operator(&mut self, active: &mut Active) -> Next {
        let (kind, operator) = (active.fault.kind, self.operator.clone());
        let id = match active.fault.target {
            Target::Seat(at) => self.seats[at].id.clone(),
            _ => "the leader".to_owned(),
        };
        match active.step {
            0 => {
                if operator.leaders.current().is_none() {
                    return Next::Again;
                }
                if active.name.is_none() {
                    self.begin(active, id.clone());
                }
                // Another one each time, and to another one: not every shard may be moved, and who has the most takes none.
                let shard = (active.fault.draw + active.turns) % SHARDS;
                let id = match active.fault.target {
                    Target::Seat(at) if kind == Kind::Moved => {
                        self.seats[(at + active.turns as usize) % self.seats.len()].id.clone()
                    }
                    _ => id,
                };
                active.turns += 1;
                active.asked = Some(tokio::spawn(async move {
                    let outcome = match kind {
                        Kind::Drained => operator.ask("drain", &id).await,
                        Kind::Removed => operator.ask("remove", &id).await,
                        Kind::Moved => operator.move_to(shard, &id).await,
                        _ => operator.step_down().await,
                    };
                    if outcome == Outcome::Acknowledged {
                        crate::watch::state(&operator.part, &operator.managers).await;
                    }
                    outcome
                }));
                Next::After(active.fault.length)
            }
            1 => match &mut active.asked {
                Some(asked) if !asked.is_finished() => Next::Again,
                asked => {
                    let outcome = match asked.take() {
                        Some(asked) => asked.await.unwrap(),
                        None => Outcome::Unknown,
                    };
                    if outcome != Outcome::Acknowledged && active.since.elapsed() < active.fault.length + super::TRY_FOR {
                        // Who is asked for may be away, and come back.
                        active.step = 0;
                        return Next::Stay(Duration::from_millis(200));
                    }
                    // Whatever came of it, it is taken back.
                    let back = match kind {
                        Kind::Drained => Some("uncordon"),
                        Kind::Removed => Some("admit"),
                        _ => None,
                    };
                    if let Some(back) = back {
                        tokio::spawn(async move { operator.insist(back, &id).await });
                    }
                    if outcome != Outcome::Acknowledged {
                        return Next::Missed;
                    }
                    self.end(active);
                    Next::Done
                }
            },
            _ => Next::Done,
        }
    }

    fn roll(&mut self, active: &mut Active) -> Next {
        if active.step == 0 {
            self.begin(active, "all");
        }
        let steps = SEATS + self.replicas.len();
        match active.step {
            at if at < SEATS => self.seats[at].signal(Signal::INT),
            at if at < steps => self.replicas[at - SEATS].signal(Signal::TERM),
            _ => {
                self.end(active);
                return Next::Done;
            }
        }
        Next::After(ROLL)
    }
}

fn harm(active: &Active) -> Harm {
    use Kind::*;
    // Up to two thirds of a second each way.
    let delay = Duration::from_millis(u64::from(active.fault.draw) * 12 + 50);
    match active.fault.kind {
        StoreRequestsLost => Harm::RequestsLost,
        StoreAnswersLost | CallsAnswersLost | CommandsAnswersLost | StorageAnswersLost => Harm::AnswersLost,
        StoreDropped | CallsDropped | CommandsDropped | RouterDropped => Harm::Dropped,
        StoreDelayed | CallsDelayed | CommandsDelayed | StorageDelayed => Harm::Delayed(delay),
        _ => Harm::Held,
    }
}

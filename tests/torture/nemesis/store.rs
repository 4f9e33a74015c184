//! What is done to the store itself.

use super::{Active, Next, World};
use crate::plan::{Kind, Target};

impl World {
    pub(super) async fn act_on_store(&mut self, active: &mut Active) -> Next {
        match active.fault.kind {
            Kind::StoreWiped => return self.wipe(active).await,
            Kind::DatabaseRestarted => {
                self.begin(active, "store");
                self.ground.restart().await;
                self.end(active);
                return Next::Done;
            }
            _ => {}
        }
        let kind = active.fault.kind;
        let (members, target) = match active.fault.target {
            Target::Member(at) => (vec![at], format!("member {at}")),
            // All but one.
            _ => ((0..3).filter(|at| *at != active.fault.draw as usize % 3).collect(), "store".to_owned()),
        };
        if active.step == 0 {
            if kind == Kind::MemberKilled {
                self.ground.kill_member(members[0]);
            } else if !self.ground.pause(&members).await {
                return Next::Again;
            }
            if kind == Kind::MajorityLost {
                self.phase("majority_lost");
            }
            self.begin(active, target);
            return Next::After(active.fault.length);
        }
        if kind == Kind::MemberKilled {
            self.ground.start_member(members[0]);
        } else {
            self.ground.resume(&members).await;
        }
        self.end(active);
        if kind == Kind::MajorityLost {
            self.phase("normal");
        }
        Next::Done
    }

    /// Under running replicas where the store is a server; a file that processes have open cannot be taken from them.
    async fn wipe(&mut self, active: &mut Active) -> Next {
        if active.step > 0 {
            self.end(active);
            self.phase("normal");
            return Next::Done;
        }
        let on_one_host = self.ground.servers().is_empty();
        if active.name.is_none() {
            self.phase("store_wiped");
            self.begin(active, "store");
            if on_one_host {
                for replica in &mut self.replicas {
                    replica.wanted = false;
                    replica.kill(&mut self.stage);
                }
            }
        }
        let quiet = self.quiet.clone();
        let _quiet = quiet.lock().await;
        if !self.ground.wipe().await {
            return Next::Again;
        }
        if on_one_host {
            self.replicas.iter_mut().for_each(|replica| replica.wanted = true);
        }
        Next::After(active.fault.length)
    }
}

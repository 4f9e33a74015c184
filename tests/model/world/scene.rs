//! Where a search begins.

use super::{Action, Memo, World};
use crate::executor::Executor;
use crate::manager::Manager;
use crate::message::{Clock, Message};
use crate::scopes::Bounds;
use crate::shared::Shared;
use crate::store::Store;

/// Where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// Two executors are registered, one of them holds the shard, and all is quiet.
    Held,
    /// Two executors are registered, and the commit that grants the shard to one of them is under way.
    Granting,
    /// As `Held`, then the owner was told to stop the shard; the command is under way.
    Releasing,
    /// As `Held`, then the first manager was stopped, the other one has just begun to lead, and the first one has not noticed.
    TakenOver,
}

impl World {
    /// Empty, before anything began.
    fn new(lease: u8) -> World {
        World {
            clock: Clock { lease, tick: 10 },
            left: Bounds {
                ticks: u8::MAX,
                elections: 1,
                registrations: 2,
                calls: 8,
                commands: 8,
                prompt: false,
                ..Bounds::LEAST
            },
            is_contested: false,
            lands_at_once: false,
            store: Shared::new(Store::default()),
            managers: [0, 1].map(|at| Shared::new(Manager::new(at))),
            executors: [0, 1].map(|at| Shared::new(Executor::new(at))),
            net: Vec::new(),
            started: None,
            broken: Vec::new(),
        }
    }

    /// Where a scene begins: a calm run up to there.
    pub fn at(scene: Scene, bounds: Bounds, memo: &mut Memo) -> World {
        let calm = &mut Memo::default();
        // The first commit lands before anybody calls; both join before the first of them is granted anything.
        let mut world = World::new(bounds.lease).after(&Action::Elect(0), calm).calm(calm);
        for executor in [0, 1] {
            world = world.after(&Action::Call { executor, to: 0 }, calm);
            let call = world.net.iter().find(|message| matches!(&***message, Message::Call { .. })).expect("a call").clone();
            world = world.after(&Action::Arrives { message: call, again: false }, calm);
        }
        let grants = |message: &Message| matches!(message, Message::Commit { changes, .. } if !changes.shards.is_empty());
        while let Some(message) = world.net.iter().find(|message| !grants(message)).cloned() {
            world = world.after(&Action::Arrives { message, again: false }, calm);
        }
        if scene != Scene::Granting {
            world = world.calm(calm);
            world.is_contested = bounds.elections > 0 || scene == Scene::TakenOver;
            world = world.after(&Action::Tick, calm);
            world = world.renewed(calm);
            assert!(world.executors[0].works(world.clock), "the first one works");
        }
        if scene == Scene::Releasing {
            world.left.wishes = 1;
            world.lands_at_once = true;
            world = world.after(&Action::Wish { manager: 0, executor: 0, drain: true }, calm);
            let message = world.net.first().expect("the store's answer").clone();
            world = world.after(&Action::Arrives { message, again: false }, calm);
        }
        if scene == Scene::TakenOver {
            world.left.manager_pauses = 1;
            world = world.after(&Action::PauseManager(0), calm).after(&Action::Tick, calm);
            world.left.elections = 1;
            world = world.after(&Action::Elect(1), calm).calm(calm);
        }
        assert_eq!(world.broken, Vec::<String>::new());
        world.left = bounds;
        world.net.retain(|message| bounds.commands > 0 || !matches!(&**message, Message::Push { .. }));
        world.is_contested = bounds.elections > 0;
        world.lands_at_once = bounds.elections == 0 && bounds.doubts == 0 && bounds.outages == 0;
        world.executors = world.executors.map(|executor| Shared::new(executor.rested()));
        memo.reached.clear();
        world
    }

    /// Both executors renew their leases, until they have no news.
    fn renewed(mut self, memo: &mut Memo) -> World {
        for executor in [0, 1, 0, 1] {
            if self.executors[executor].calls(self.clock).is_some() {
                self = self.after(&Action::Call { executor, to: 0 }, memo).calm(memo);
            }
        }
        assert!(self.executors.iter().all(|executor| executor.is_at_rest()), "all is quiet");
        self
    }

    /// What is under way arrives, and what is due is done, until there is nothing of the kind any more.
    fn calm(mut self, memo: &mut Memo) -> World {
        loop {
            let actions = self.actions(memo);
            let calm =
                |action: &&Action| matches!(action, Action::Arrives { again: false, .. } | Action::Turn(_) | Action::Stopped(_));
            let print = self.print();
            let mut next = actions.iter().filter(calm).map(|action| self.after(action, memo));
            let Some(next) = next.find(|next| next.print() != print) else { return self };
            self = next;
        }
    }
}

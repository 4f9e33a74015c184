//! Where the promises are looked for with every rule in. What they leave out stands in docs/testing.md.

use crate::world::Scene;

/// How much may happen. What is not counted here may happen at any time: messages arrive in any order, late or never, shards take any time
/// to stop, or hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Ticks in a lease.
    pub lease: u8,
    /// How long it lasts.
    pub ticks: u8,
    /// Operators' wishes: the first executor is drained, or that is taken back.
    pub wishes: u8,
    /// Leaderships that begin. With none the one in force is renewed by itself; else it may also not be.
    pub elections: u8,
    /// Managers that stop for a while.
    pub manager_pauses: u8,
    /// Executors that stop for a while.
    pub executor_pauses: u8,
    /// Commits whose answer is not waited for.
    pub doubts: u8,
    /// Commits that the store turns away.
    pub outages: u8,
    /// Messages that arrive once more.
    pub duplicates: u8,
    /// Executors that register anew.
    pub registrations: u8,
    /// Calls of one executor that are under way at once, older ones are lost. With none, executors are silent.
    pub calls: u8,
    /// Commands to one executor that are under way at once, older ones are lost. With none, no command arrives.
    pub commands: u8,
    /// Calls of the second executor are answered at once, and so never lost or late.
    pub prompt: bool,
    /// No shard ever stops by itself.
    pub hangs: bool,
}

impl Bounds {
    /// Nothing but messages.
    pub const LEAST: Bounds = Bounds {
        lease: 1,
        ticks: 0,
        wishes: 0,
        elections: 0,
        manager_pauses: 0,
        executor_pauses: 0,
        doubts: 0,
        outages: 0,
        duplicates: 0,
        registrations: 0,
        calls: 1,
        commands: 1,
        prompt: true,
        hangs: false,
    };
}

/// A part of everything that may happen, looked at to its end.
pub struct Scope {
    pub name: &'static str,
    pub scene: Scene,
    pub bounds: Bounds,
    /// Too large for every run: for `make model`.
    pub is_deep: bool,
}

const fn scope(name: &'static str, scene: Scene, bounds: Bounds) -> Scope {
    Scope { name, scene, bounds, is_deep: false }
}

const fn deep(name: &'static str, scene: Scene, bounds: Bounds) -> Scope {
    Scope { name, scene, bounds, is_deep: true }
}

const LEAST: Bounds = Bounds::LEAST;
const WILD: Bounds = Bounds { prompt: false, ..Bounds::LEAST };

pub const ALL: [Scope; 24] = [
    scope("quiet", Scene::Held, Bounds { ticks: 2, ..WILD }),
    scope("a long lease", Scene::Held, Bounds { lease: 2, ticks: 4, ..LEAST }),
    scope("a release", Scene::Held, Bounds { ticks: 1, wishes: 1, calls: 2, commands: 2, ..LEAST }),
    scope("a release, repeated messages", Scene::Held, Bounds { wishes: 1, duplicates: 1, ..WILD }),
    scope("a release, wild", Scene::Releasing, Bounds { ticks: 1, ..WILD }),
    scope("a release that hangs", Scene::Releasing, Bounds { ticks: 2, hangs: true, ..LEAST }),
    scope("a release told by answers", Scene::Releasing, Bounds { lease: 3, ticks: 4, commands: 0, hangs: true, ..LEAST }),
    scope("a grant", Scene::Granting, Bounds { ticks: 1, wishes: 1, ..LEAST }),
    scope("a grant, late commands", Scene::Granting, Bounds { wishes: 1, commands: 2, ..LEAST }),
    scope("an election", Scene::Held, Bounds { ticks: 2, elections: 1, ..LEAST }),
    scope("a takeover", Scene::TakenOver, Bounds { ticks: 2, ..LEAST }),
    scope("a takeover under long leases", Scene::TakenOver, Bounds { lease: 2, ticks: 1, registrations: 2, ..LEAST }),
    scope("late commits", Scene::Held, Bounds { ticks: 1, wishes: 1, elections: 1, doubts: 1, calls: 0, ..LEAST }),
    scope("doubts", Scene::Held, Bounds { ticks: 2, doubts: 1, outages: 1, ..LEAST }),
    scope("pauses", Scene::Held, Bounds { ticks: 2, manager_pauses: 1, executor_pauses: 1, ..LEAST }),
    scope("executors come back", Scene::Held, Bounds { ticks: 3, registrations: 1, ..LEAST }),
    deep("quiet, longer", Scene::Held, Bounds { ticks: 3, ..WILD }),
    deep("a long lease, longer", Scene::Held, Bounds { lease: 2, ticks: 5, ..LEAST }),
    deep("wishes, repeated messages", Scene::Held, Bounds { wishes: 2, calls: 2, commands: 2, duplicates: 1, ..WILD }),
    deep("a release, longer", Scene::Releasing, Bounds { ticks: 2, ..LEAST }),
    deep("a release told by answers and commands", Scene::Releasing, Bounds { lease: 3, ticks: 4, hangs: true, ..LEAST }),
    deep("an election, longer", Scene::Held, Bounds { ticks: 3, elections: 1, ..LEAST }),
    deep("an election, late commits", Scene::Held, Bounds { ticks: 1, wishes: 1, elections: 1, ..LEAST }),
    deep("pauses, longer", Scene::Held, Bounds { ticks: 3, manager_pauses: 1, executor_pauses: 1, ..LEAST }),
];

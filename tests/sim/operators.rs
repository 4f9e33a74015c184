//! What operators say, and what holds of their words: what was acknowledged is durable, stays until somebody takes it back, and who was
//! removed gets nothing.

use std::collections::BTreeMap;

use shard_manager::assignment::State;
use shard_manager::assignment::command::{Answer, Refusal, Reply, Snapshot};
use shard_manager::assignment::event::{Demand, RequestId};
use shard_manager::assignment::record::{ShardState, Standing, Wish};
use shard_manager::types::{ExecutorId, ShardId};

use crate::store::Store;

/// What an operator asks a manager for.
#[derive(Clone, Debug)]
pub enum Word {
    Wish(ExecutorId, Wish),
    Demand(Demand),
}

impl Word {
    /// Whether it decides what is wished for an id.
    fn is_for(&self, id: &ExecutorId) -> bool {
        match self {
            Word::Wish(of, _) | Word::Demand(Demand::Remove { id: of, .. } | Demand::Admit(of)) => of == id,
            Word::Demand(_) => false,
        }
    }

    fn is_for_the_pause(&self) -> bool {
        matches!(self, Word::Demand(Demand::Pause { .. } | Demand::Resume))
    }

    fn moves(&self, shard: ShardId) -> bool {
        matches!(self, Word::Demand(Demand::Move { shards, .. }) if shards.binary_search(&shard).is_ok())
    }

    /// The process of this id is to be gone, by the operator's word.
    pub fn buries(&self) -> Option<&ExecutorId> {
        match self {
            Word::Demand(Demand::Remove { id, dead: true }) => Some(id),
            _ => None,
        }
    }
}

/// Shards that a leadership said it moves, while nothing else happens to those who own shards.
struct Move {
    leadership: u64,
    to: ExecutorId,
    shards: Vec<ShardId>,
    members: Vec<String>,
}

#[derive(Default)]
pub struct Operators {
    /// What leaderships took in and have not answered.
    pending: BTreeMap<(u64, RequestId), Word>,
    /// What the wall clock of a leadership showed when it last asked for a commit.
    walls: BTreeMap<u64, u64>,
    moves: Vec<Move>,
    /// Under which id a shard was worked on last, as far as known.
    owners: BTreeMap<ShardId, ExecutorId>,
}

impl Operators {
    pub fn took_in(&mut self, leadership: u64, request: RequestId, word: Word) {
        self.pending.insert((leadership, request), word);
    }

    pub fn commits_at(&mut self, leadership: u64, unix_ms: u64) {
        self.walls.insert(leadership, unix_ms);
    }

    /// The store lost what it had, and with it what operators wanted.
    pub fn store_was_lost(&mut self) {
        self.moves.clear();
        self.owners.clear();
    }

    /// Executors look different now to a leadership than their records say.
    pub fn looks_change(&mut self) {
        self.moves.clear();
    }

    fn is_pending(&self, leadership: u64, is_it: impl Fn(&Word) -> bool) -> bool {
        self.pending.range((leadership, RequestId(0))..=(leadership, RequestId(u64::MAX))).any(|(_, word)| is_it(word))
    }

    /// A reply goes out. **P2.** What it says is in the state that it names, unless another word overtook it there. What became of it, for
    /// the counters.
    pub fn answered(
        &mut self,
        leadership: u64,
        request: RequestId,
        reply: &Reply,
        store: &Store,
    ) -> Result<Option<&'static str>, String> {
        let Some(word) = self.pending.remove(&(leadership, request)) else { return Ok(None) };
        let version = match reply {
            Ok(Answer::Current(version) | Answer::Moving(version, _) | Answer::Paused(version, _)) => *version,
            Ok(other) => return Err(format!("an operator who said {word:?} was answered {other:?}")),
            Err(refusal) => return Ok(refused(&word, refusal)),
        };
        let what = format!("an acknowledged {word:?}");
        let told = |is_so: &dyn Fn(&State) -> bool| store.bears_out(version, &what, is_so);
        let (overtaken, done) = match &word {
            Word::Wish(id, wish) => {
                told(&|state| wished(state, id) == *wish || self.is_pending(leadership, |it| it.is_for(id)))?;
                (false, "a wish was acknowledged")
            }
            Word::Demand(Demand::Remove { id, dead }) => {
                let overtaken = self.is_pending(leadership, |it| it.is_for(id));
                let lives = |state: &State| state.executors().any(|(_, it)| it.id == *id && it.standing != Standing::Gone);
                told(&|state| overtaken || wished(state, id) == Wish::Remove && !(*dead && lives(state)))?;
                (overtaken, "a removal was acknowledged")
            }
            Word::Demand(Demand::Admit(id)) => {
                told(&|state| wished(state, id) == Wish::None || self.is_pending(leadership, |it| it.is_for(id)))?;
                (false, "an admission was acknowledged")
            }
            Word::Demand(Demand::Move { shards, to }) => {
                let elsewhere = |state: &State, shard: &ShardId| match state.shard(*shard).state {
                    ShardState::Held(slot) => state.executor(slot).is_none_or(|owner| owner.id != *to),
                    ShardState::Releasing(_) | ShardState::Unassigned => false,
                };
                // Whoever registers, leaves or is cordoned in the turn that took in the move may take the place of what it rests on.
                let overtaken = |state: &State| !store.before(version).any(|before| members(before) == members(state));
                told(&|state| overtaken(state) || !shards.iter().any(|shard| elsewhere(state, shard)))?;
                let state = store.durable(version).next().filter(|state| !overtaken(state));
                if let Some(state) = state {
                    let arrived = |shard: &ShardId| matches!(state.shard(*shard).state, ShardState::Held(_));
                    let shards = shards.iter().copied().filter(|shard| !arrived(shard)).collect();
                    self.moves.push(Move { leadership, to: to.clone(), shards, members: members(state) });
                }
                (state.is_none(), "a move was acknowledged")
            }
            Word::Demand(Demand::Pause { .. }) => {
                let until = if let Ok(Answer::Paused(_, until)) = reply { Some(*until) } else { None };
                let overtaken = self.is_pending(leadership, Word::is_for_the_pause);
                told(&|state| overtaken || state.meta.pause.as_ref().map(|pause| pause.until_unix_ms) == until)?;
                (overtaken, "a pause was acknowledged")
            }
            Word::Demand(Demand::Resume) => {
                told(&|state| state.meta.pause.is_none() || self.is_pending(leadership, Word::is_for_the_pause))?;
                (false, "an end of a pause was acknowledged")
            }
        };
        Ok((!overtaken).then_some(done))
    }

    /// A commit of a leadership landed. What operators wanted stays, until one of them says otherwise; who was removed gets nothing.
    pub fn landed(&mut self, leadership: u64, before: Option<&State>, after: &State) -> Result<(), String> {
        if let Some(before) = before {
            self.check_wishes(leadership, before, after)?;
            self.check_pause(leadership, before, after)?;
            self.check_grants(leadership, before, after)?;
        }
        self.check_moves(leadership, after)?;
        let owner = |slot| after.executor(slot).map(|owner| owner.id.clone());
        self.owners.extend(after.shards().filter_map(|(shard, record)| Some((shard, owner(record.owner()?)?))));
        Ok(())
    }

    fn check_wishes(&self, leadership: u64, before: &State, after: &State) -> Result<(), String> {
        for (_, record) in before.executors().filter(|(_, record)| record.wish != Wish::None) {
            let is = wished(after, &record.id);
            if is != record.wish && !self.is_pending(leadership, |word| word.is_for(&record.id)) {
                let (id, was) = (&record.id, record.wish);
                return Err(format!("wishes: {was:?} of {id} became {is:?}, and no operator said so"));
            }
        }
        Ok(())
    }

    fn check_pause(&self, leadership: u64, before: &State, after: &State) -> Result<(), String> {
        let Some(pause) = before.meta.pause.as_ref().filter(|_| before.meta.pause != after.meta.pause) else { return Ok(()) };
        let wall = self.walls.get(&leadership).copied().unwrap_or_default();
        if wall >= pause.until_unix_ms || self.is_pending(leadership, Word::is_for_the_pause) {
            return Ok(());
        }
        let is = &after.meta.pause;
        Err(format!("wishes: {pause:?} became {is:?} at {wall}, and no operator said so"))
    }

    fn check_grants(&self, leadership: u64, before: &State, after: &State) -> Result<(), String> {
        for (shard, record) in after.shards() {
            let (ShardState::Held(slot), was) = (record.state, before.shard(shard)) else { continue };
            let Some(owner) = after.executor(slot).filter(|_| was.owner() != Some(slot)) else { continue };
            let id = &owner.id;
            if wished(before, id) != Wish::Remove || self.is_pending(leadership, |word| word.is_for(id)) {
                continue;
            }
            // Where nobody else takes them, shards go on under an id that is being removed, at its next process.
            let goes_on = self.owners.get(&shard).is_none_or(|last| last == id) && !before.is_barred(id);
            if !goes_on {
                return Err(format!("wishes: shard {shard} is granted to {id}, which was removed"));
            }
        }
        Ok(())
    }

    /// As long as nothing else happens, a shard goes where it was to go.
    fn check_moves(&mut self, leadership: u64, after: &State) -> Result<(), String> {
        let is = members(after);
        self.moves.retain(|it| it.leadership == leadership && it.members == is);
        for Move { to, shards, .. } in &mut self.moves {
            for shard in std::mem::take(shards) {
                let slot = match after.shard(shard).state {
                    ShardState::Held(slot) => slot,
                    ShardState::Releasing(_) | ShardState::Unassigned => {
                        shards.push(shard);
                        continue;
                    }
                };
                if let Some(owner) = after.executor(slot).filter(|owner| owner.id != *to) {
                    return Err(format!("wishes: shard {shard} was to move to {to}, and went to {}", owner.id));
                }
            }
        }
        self.moves.retain(|it| !it.shards.is_empty());
        Ok(())
    }

    /// A leadership publishes. While rebalancing is paused, nothing is asked back for balance; `unstarted` shards are asked back all the same.
    pub fn check_released(
        &self,
        leadership: u64,
        before: &Snapshot,
        after: &Snapshot,
        unstarted: &[ShardId],
    ) -> Result<(), String> {
        let (before, after) = (&before.state, &after.state);
        if before.meta.pause.is_none() || after.meta.pause.is_none() {
            return Ok(());
        }
        for (shard, was) in before.shards() {
            let (ShardState::Held(slot), ShardState::Releasing(_)) = (was.state, after.shard(shard).state) else { continue };
            let stays = after.executor(slot).filter(|owner| {
                owner.standing == Standing::Present && !owner.leaving && matches!(owner.wish, Wish::None | Wish::Cordon)
            });
            let Some(owner) = stays.filter(|_| !unstarted.contains(&shard)) else { continue };
            if !self.is_pending(leadership, |word| word.moves(shard)) {
                return Err(format!("wishes: shard {shard} is taken from {} though rebalancing is paused", owner.id));
            }
        }
        Ok(())
    }
}

fn refused(word: &Word, refusal: &Refusal) -> Option<&'static str> {
    match (word, refusal) {
        (Word::Demand(Demand::Move { .. }), Refusal::NotNow(_)) => Some("a move was refused"),
        (Word::Demand(Demand::Remove { dead: true, .. }), Refusal::NotNow(_)) => {
            Some("an executor was not silent for long enough to be called dead")
        }
        (_, Refusal::StoreUnavailable) => Some("an operator was told that the store takes nothing"),
        _ => None,
    }
}

/// What is wished for an id.
pub fn wished(state: &State, id: &ExecutorId) -> Wish {
    let mut wishes = state.executors().filter(|(_, record)| record.id == *id).map(|(_, record)| record.wish);
    wishes.find(|wish| *wish != Wish::None).unwrap_or_default()
}

/// Everything in the records that says who takes shards.
fn members(state: &State) -> Vec<String> {
    state
        .executors()
        .map(|(slot, it)| format!("{slot} {} {} {:?} {:?} {}", it.id, it.incarnation, it.standing, it.wish, it.leaving))
        .collect()
}

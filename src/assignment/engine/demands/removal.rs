//! Executors that leave the cluster for good, and come back.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::assignment::command::{Notice, Refusal};
use crate::assignment::record::{End, ExecutorRecord, Standing, Wish};
use crate::types::{BootInstant, ExecutorId, Slot};

use super::super::Engine;
use super::super::calls::Drafted;
use super::super::draft::{Draft, Due, Page};

impl Engine {
    /// Hangs the wish on the id; where its process is said to be `dead`, everything under the id is gone at once.
    pub(super) fn draft_removal(&mut self, now: BootInstant, draft: &mut Draft, id: &ExecutorId, dead: bool) -> Drafted {
        let records = records(draft, id);
        let Some(bearer) = bearer(&records) else { return Drafted::Refused(Refusal::UnknownExecutor { id: id.clone() }) };
        let dies = |record: &ExecutorRecord| dead && record.standing != Standing::Gone;
        let alive = records.iter().filter(|(_, record)| dies(record)).find_map(|(slot, _)| self.sign_of_life(now, *slot));
        if let Some(why) = alive {
            let what = format!("executor {id} {why}: remove it without --dead, or stop its process first and try again");
            return Drafted::Refused(Refusal::NotNow(what));
        }
        for (slot, record) in records {
            let dies = dies(&record);
            let wish = if slot == bearer { Wish::Remove } else { record.wish };
            let standing = if dies { Standing::Gone } else { record.standing };
            let next = ExecutorRecord { wish, standing, leaving: record.leaving && !dies, ..record.clone() };
            if next == record {
                continue;
            }
            if !draft.reserve([Page::of_slot(slot)].into_iter().chain(dies.then(|| Page::of_retiree(id)))) {
                // What was done so far is found done in the next draft.
                return Drafted::Full;
            }
            draft.set_executor(slot, Some(next));
            if dies {
                self.draft_end(draft, slot, &record, true);
            } else if standing == Standing::Gone {
                draft.outbox.notices.push(removed(&record, 0, false));
            } else {
                draft.outbox.notices.push(Notice::Wished { id: id.clone(), wish });
            }
        }
        Drafted::Due(Due::Current)
    }

    /// How it is known that a process is not gone: it renewed its lease, or had no time to renew it with this leader, within half a
    /// lease. Who is alive renews each third. The lease says when that was, and stalls move it (P10).
    fn sign_of_life(&self, now: BootInstant, slot: Slot) -> Option<String> {
        let Some(contact) = self.contacts.get(&slot) else { return Some("has joined just now, so it is not dead".to_owned()) };
        let own = self.settings.lease_ttl + self.settings.margin();
        let whole = if contact.heard { own } else { self.longest_lease() + self.settings.takeover_grace };
        let silence = whole.saturating_sub(contact.lease?.ends().since(now));
        let enough = self.settings.lease_ttl.max(Duration::from_millis(self.state.meta.lease_ttl_ms)) / 2;
        let why = if contact.heard {
            format!("was heard {silence:.1?} ago, so it is not dead; one that is stays silent for {enough:.1?}")
        } else {
            format!(
                "had only {silence:.1?} to speak to this leader, so it may well live; whom {enough:.1?} are not enough is dead"
            )
        };
        (silence < enough).then_some(why)
    }

    /// An incarnation is no more. Its record says so already, in this draft, which has room for the retiree.
    fn draft_end(&mut self, draft: &mut Draft, slot: Slot, record: &ExecutorRecord, dead: bool) {
        draft.retire(&record.id, record.incarnation, End::Over);
        let contact = self.contacts.get_mut(&slot);
        // Of one that was drained the last ones may have become free in this very draft.
        let shards = contact.as_ref().filter(|_| dead).map_or(0, |contact| contact.shards());
        // L1: from here on it is not renewed.
        if let Some(lease) = contact.and_then(|contact| contact.lease.as_mut()) {
            lease.end();
        }
        draft.outbox.notices.push(removed(record, shards, dead));
    }

    /// Ends the executors that are to be removed and have no shard left, nor one on its way: from then on their ids are barred.
    pub(in super::super) fn draft_ended_removals(&mut self, draft: &mut Draft) {
        let leaves = |record: &&ExecutorRecord| record.wish == Wish::Remove && record.standing == Standing::Present;
        let leaving: Vec<(Slot, ExecutorRecord)> =
            self.contacts.keys().filter_map(|&slot| Some((slot, draft.next().executor(slot).filter(leaves)?.clone()))).collect();
        if leaving.is_empty() {
            return;
        }
        // Shards of an earlier incarnation may yet come to the one that is there, where nobody else takes them.
        let owners: BTreeSet<Slot> = draft.next().shards().filter_map(|(_, record)| record.owner()).collect();
        let ids = owners.into_iter().filter_map(|slot| draft.next().executor(slot)).map(|record| record.id.clone());
        let owning: BTreeSet<ExecutorId> = ids.collect();
        let awaited = |slot: Slot| self.destinations.values().any(|it| it.succession && it.slot == slot);
        let empty: Vec<(Slot, ExecutorRecord)> =
            leaving.into_iter().filter(|(slot, record)| !owning.contains(&record.id) && !awaited(*slot)).collect();
        for (slot, record) in empty {
            if !draft.reserve([Page::of_slot(slot), Page::of_retiree(&record.id)]) {
                return;
            }
            draft.set_executor(slot, Some(ExecutorRecord { standing: Standing::Gone, leaving: false, ..record.clone() }));
            self.draft_end(draft, slot, &record, false);
        }
    }
}

/// Takes a removal back, whether it is under way or over. A record that nobody needs then is deleted in the same draft.
pub(super) fn draft_admission(draft: &mut Draft, id: &ExecutorId) -> Drafted {
    let records = records(draft, id);
    if records.is_empty() {
        return Drafted::Refused(Refusal::UnknownExecutor { id: id.clone() });
    }
    let removed: Vec<_> = records.into_iter().filter(|(_, record)| record.wish == Wish::Remove).collect();
    if removed.is_empty() {
        return Drafted::Refused(Refusal::NotNow(format!("executor {id} is not removed, so there is nothing to take back")));
    }
    for (slot, record) in removed {
        if !draft.set_executor(slot, Some(ExecutorRecord { wish: Wish::None, ..record })) {
            return Drafted::Full;
        }
    }
    draft.outbox.notices.push(Notice::Admitted { id: id.clone() });
    Drafted::Due(Due::Current)
}

fn records(draft: &Draft, id: &ExecutorId) -> Vec<(Slot, ExecutorRecord)> {
    let ours = draft.next().incarnations(id);
    ours.map(|(slot, record)| (slot, record.clone())).collect()
}

/// On which record the wish hangs: the one that counts, else one on which a wish hangs already, else any.
fn bearer(records: &[(Slot, ExecutorRecord)]) -> Option<Slot> {
    let find = |wanted: fn(&ExecutorRecord) -> bool| records.iter().find(|(_, record)| wanted(record));
    let present = find(|record| record.standing == Standing::Present);
    let found = present.or_else(|| find(|record| record.wish != Wish::None)).or_else(|| records.first());
    found.map(|(slot, _)| *slot)
}

fn removed(record: &ExecutorRecord, shards: u32, dead: bool) -> Notice {
    Notice::Removed { id: record.id.clone(), incarnation: record.incarnation, shards, dead }
}

//! An operator's pause of rebalancing. It stands in `meta`, so it outlives leaders, and it ends by itself.

use std::time::Duration;

use crate::assignment::command::Notice;
use crate::assignment::event::PAUSE_LENGTHS;
use crate::assignment::state::{Meta, Pause};
use crate::types::BootInstant;

use super::calls::Drafted;
use super::draft::{Draft, Due};
use super::{Engine, sentences};

impl Engine {
    pub(super) fn draft_pause(&self, now: BootInstant, draft: &mut Draft, length: Duration, by: &str, reason: &str) -> Drafted {
        let pause = Pause::new(self.wall.unix_ms(now.after(length)), by, reason);
        let until = pause.until_unix_ms;
        draft.outbox.notices.push(Notice::Paused { pause: pause.clone(), found: false });
        draft.change_meta(|meta| meta.pause = Some(Box::new(pause)));
        Drafted::Due(Due::Paused(until))
    }

    pub(super) fn draft_resume(&self, draft: &mut Draft) -> Drafted {
        if draft.next().meta.pause.is_some() {
            draft.change_meta(|meta| meta.pause = None);
            draft.outbox.notices.push(Notice::Resumed { asked: true });
        }
        Drafted::Due(Due::Current)
    }

    /// A pause whose time is over goes away, so that an older program can read `meta` again, and the log says so.
    pub(super) fn draft_end_of_pause(&self, now: BootInstant, draft: &mut Draft) {
        if draft.next().meta.pause.as_ref().is_some_and(|pause| self.wall.instant(pause.until_unix_ms) <= now) {
            draft.change_meta(|meta| meta.pause = None);
            draft.outbox.notices.push(Notice::Resumed { asked: false });
        }
    }

    /// When the pause in force ends.
    pub(super) fn pause_ends(&self) -> Option<BootInstant> {
        self.state.meta.pause.as_ref().map(|pause| self.wall.instant(pause.until_unix_ms))
    }

    /// The pause in force, for people.
    pub(super) fn pause_note(&self, now: BootInstant) -> Option<String> {
        let pause = self.state.meta.pause.as_ref()?;
        Some(sentences::paused(pause, self.wall.instant(pause.until_unix_ms).since(now)))
    }
}

/// A new leader takes over a pause as it is, but for an end that nobody can have asked for: then the clock of whoever wrote it was
/// far ahead of this one, and the pause is as long as one can be.
pub(super) fn take_over(meta: &mut Meta, unix_ms: u64) -> Option<Notice> {
    let pause = meta.pause.as_mut()?;
    let longest = u64::try_from(PAUSE_LENGTHS.end().as_millis()).unwrap_or(u64::MAX);
    pause.until_unix_ms = pause.until_unix_ms.min(unix_ms.saturating_add(longest));
    Some(Notice::Paused { pause: Pause::clone(pause), found: true })
}

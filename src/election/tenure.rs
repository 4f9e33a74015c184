//! For how long a leadership may be believed in that has to be renewed, and when it may be.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Belief, Pulse};
use crate::clock;
use crate::types::BootInstant;

/// The deadline of one leadership, which its renewals move, and the pulse that they depend on.
pub(super) struct Tenure {
    ttl: Duration,
    /// The send of the last acknowledged renewal, and a TTL.
    deadline: watch::Sender<BootInstant>,
    pulse: Pulse,
}

impl Tenure {
    /// One that was acknowledged, of which the request was sent then.
    pub(super) fn new(ttl: Duration, sent: BootInstant, pulse: Pulse) -> Tenure {
        Tenure { ttl, deadline: watch::Sender::new(sent.after(ttl)), pulse }
    }

    /// What a leader may believe.
    pub(super) fn belief(&self) -> Belief {
        Belief(self.deadline.subscribe())
    }

    /// From one renewal to the next.
    pub(super) fn interval(&self) -> Duration {
        self.ttl / 3
    }

    /// A renewal that was sent then is acknowledged. The deadline never goes back.
    pub(super) fn acknowledged(&self, sent: BootInstant) {
        self.deadline.send_if_modified(|deadline| {
            let later = sent.after(self.ttl) > *deadline;
            *deadline = (*deadline).max(sent.after(self.ttl));
            later
        });
    }

    /// Nothing is to be believed in any more (L4).
    pub(super) fn end(&self) {
        self.deadline.send_replace(BootInstant::default());
    }

    /// Waits until the deadline has passed.
    pub(super) async fn deadline_passed(&self) {
        loop {
            let deadline = *self.deadline.borrow();
            if clock::now() >= deadline {
                return;
            }
            clock::sleep_until(deadline).await;
        }
    }

    /// Waits until the coordinator turned within the last third of the TTL, or there is none.
    pub(super) async fn fresh_pulse(&self) {
        while self.pulse.age().is_some_and(|age| age >= self.interval()) {
            sleep(self.interval() / 20).await;
        }
    }

    /// Waits until the coordinator has not turned for a whole TTL, and says for how long it has not.
    pub(super) async fn pulse_stopped(&self) -> Duration {
        loop {
            let age = self.pulse.age().unwrap_or_default();
            if age >= self.ttl {
                return age;
            }
            sleep(self.ttl - age).await;
        }
    }
}

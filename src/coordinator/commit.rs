//! One commit, seen through until its outcome is known (L5).

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::assignment::event::Event;
use crate::assignment::state::Changes;
use crate::backend::Fence;
use crate::clock;
use crate::coordinator::Error;
use crate::election::Belief;
use crate::metrics::{CommitOutcome, Metrics};
use crate::store::{self, Store};
use crate::types::{BootInstant, Revision};

/// The pause before an unsettled commit is sent again; doubles up to the second value.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Sends a commit until it is known to have landed ([`Event::Committed`]) or known never to land ([`Event::CommitFailed`]).
///
/// A store that is not available is a plain failure only as long as nothing was sent whose outcome is open. After that it proves
/// nothing: the first copy may land at any moment, so the identical commit is sent again until the store says what became of it.
///
/// # Errors
/// The fence refused it; the belief's deadline passed before it was settled; the store takes no commit and it is past `give_up`; or the
/// stored state is not what it should be.
pub(super) async fn settle(
    store: Arc<dyn Store>,
    fence: Fence,
    belief: Belief,
    give_up: BootInstant,
    metrics: Arc<Metrics>,
    expected: Option<Revision>,
    changes: Changes,
) -> Result<Event, Error> {
    let sent = clock::now();
    let mut open = false;
    let mut pause = PAUSE.0;
    let settled = loop {
        match store.commit(&fence, expected, &changes).await {
            Ok(revision) => {
                metrics.committed(CommitOutcome::Landed);
                metrics.store_answered(clock::unix_ms() / 1000);
                break Ok(Event::Committed { revision });
            }
            Err(error @ (store::Error::Unavailable { .. } | store::Error::OutcomeUnknown { .. })) if clock::now() >= give_up => {
                metrics.committed(CommitOutcome::Failed);
                break Err(Error::StoreGone(error));
            }
            Err(error @ store::Error::Unavailable { .. }) if !open => {
                metrics.committed(CommitOutcome::Failed);
                warn!(error = &error as &dyn std::error::Error, "a commit failed; its callers are told, and it is planned anew");
                break Ok(Event::CommitFailed);
            }
            Err(error @ (store::Error::Unavailable { .. } | store::Error::OutcomeUnknown { .. })) => {
                metrics.committed(CommitOutcome::Unknown);
                open = true;
                warn!(
                    error = &error as &dyn std::error::Error,
                    attempt = changes.meta.attempt,
                    "it is unknown whether a commit landed; the identical one is sent again in {pause:?}, and nothing else before it"
                );
            }
            Err(store::Error::LeadershipLost) => {
                metrics.committed(CommitOutcome::Fenced);
                break Err(Error::LeadershipLost);
            }
            Err(
                error @ (store::Error::ConcurrentModification { .. }
                | store::Error::Corrupt { .. }
                | store::Error::Unreadable { .. }
                | store::Error::Unfit { .. }),
            ) => {
                metrics.committed(CommitOutcome::Fatal);
                break Err(Error::Store(error));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
        if clock::now() >= belief.deadline() {
            break Err(Error::Expired);
        }
    };
    metrics.commit_took(clock::now().since(sent));
    settled
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::*;
    use crate::published::tests::snapshot;
    use crate::store::{Limits, Loaded};
    use crate::types::Token;

    /// Answers commits from a list; keeps what it was sent.
    #[derive(Default)]
    struct Scripted {
        answers: Mutex<VecDeque<Result<Revision, store::Error>>>,
        sent: Mutex<Vec<(Option<Revision>, Changes)>>,
    }

    #[async_trait::async_trait]
    impl Store for Scripted {
        async fn load(&self) -> Result<Option<Loaded>, store::Error> {
            Ok(None)
        }

        async fn commit(&self, _: &Fence, expected: Option<Revision>, changes: &Changes) -> Result<Revision, store::Error> {
            self.sent.lock().unwrap().push((expected, changes.clone()));
            self.answers.lock().unwrap().pop_front().unwrap()
        }

        fn limits(&self) -> Limits {
            Limits { pages: 1 }
        }
    }

    fn unavailable() -> store::Error {
        store::Error::Unavailable { what: "test", source: "gone".into() }
    }

    fn unknown() -> store::Error {
        store::Error::OutcomeUnknown { what: "test", source: "gone".into() }
    }

    /// Longer than any of these tests.
    fn belief() -> Belief {
        Belief(tokio::sync::watch::channel(clock::now().after(Duration::from_secs(600))).1)
    }

    async fn settled(answers: Vec<Result<Revision, store::Error>>, belief: Belief) -> (Result<Event, Error>, Arc<Scripted>) {
        settled_until(clock::now().after(Duration::from_secs(600)), answers, belief).await
    }

    async fn settled_until(
        give_up: BootInstant,
        answers: Vec<Result<Revision, store::Error>>,
        belief: Belief,
    ) -> (Result<Event, Error>, Arc<Scripted>) {
        let store = Arc::new(Scripted { answers: Mutex::new(answers.into()), ..Scripted::default() });
        let fence = Fence::Sql { number: 1, token: Token(1) };
        let metrics = Arc::new(Metrics::new().unwrap());
        let changes = snapshot(3, 1, 1).state.changes_since(None);
        let expected = Some(Revision(4));
        let outcome = settle(Arc::<Scripted>::clone(&store), fence, belief, give_up, metrics, expected, changes).await;
        (outcome, store)
    }

    #[tokio::test]
    async fn a_store_that_did_not_take_it_is_a_failure_at_once() {
        let (outcome, store) = settled(vec![Err(unavailable())], belief()).await;
        assert_eq!(outcome.unwrap(), Event::CommitFailed);
        assert_eq!(store.sent.lock().unwrap().len(), 1);
    }

    /// The look-up after a lost answer says "not available", and the first copy lands late: calling it failed would let memory and
    /// store part.
    #[tokio::test]
    async fn after_an_unknown_outcome_an_unavailable_store_proves_nothing() {
        let answers = vec![Err(unknown()), Err(unavailable()), Err(unknown()), Ok(Revision(5))];
        let (outcome, store) = settled(answers, belief()).await;
        assert_eq!(outcome.unwrap(), Event::Committed { revision: Revision(5) });
        let sent = store.sent.lock().unwrap();
        assert_eq!(sent.len(), 4);
        assert!(sent.iter().all(|copy| *copy == sent[0]), "every copy is identical");
    }

    #[tokio::test]
    async fn what_was_overtaken_ends_the_leadership() {
        let (outcome, _) = settled(vec![Err(unknown()), Err(store::Error::LeadershipLost)], belief()).await;
        assert!(matches!(outcome, Err(Error::LeadershipLost)));
        let moved = store::Error::ConcurrentModification { expected: Some(Revision(4)), actual: Some(Revision(6)) };
        let (outcome, _) = settled(vec![Err(unknown()), Err(moved)], belief()).await;
        assert!(matches!(outcome, Err(Error::Store(store::Error::ConcurrentModification { .. }))));
    }

    #[tokio::test]
    async fn an_unsettled_commit_is_not_chased_beyond_the_deadline() {
        let (_renewals, deadline) = tokio::sync::watch::channel(clock::now());
        let (outcome, store) = settled(vec![Err(unknown()), Ok(Revision(5))], Belief(deadline)).await;
        assert!(matches!(outcome, Err(Error::Expired)));
        assert_eq!(store.sent.lock().unwrap().len(), 1);
    }

    /// On SQLite the leadership does not end with the store: without an end of its own a leader over a full disk would lead for ever.
    #[tokio::test]
    async fn a_store_that_takes_nothing_for_too_long_is_given_up() {
        for error in [unavailable(), unknown()] {
            let (outcome, store) = settled_until(clock::now(), vec![Err(error), Ok(Revision(5))], belief()).await;
            assert!(matches!(outcome, Err(Error::StoreGone(_))), "{outcome:?}");
            assert_eq!(store.sent.lock().unwrap().len(), 1);
        }
        let (outcome, _) = settled_until(clock::now(), vec![Ok(Revision(5))], belief()).await;
        assert_eq!(outcome.unwrap(), Event::Committed { revision: Revision(5) }, "it is never too late for an answer");
    }
}

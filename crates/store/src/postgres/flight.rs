//! Batches of a partition that are sent one right behind the other, on one connection:
//! the database begins with the next one when the one before has committed, without a
//! round trip in between (docs/postgres.md).

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::batch::Chained;
use super::commit::Whole;
use super::connection::Lease;
use crate::error::CommitError;
use crate::{Link, Passed};

/// What a batch leaves on its session when it commits. No two are the same, whichever
/// process uses the session.
#[derive(Debug, Clone)]
pub(super) struct Mark(Arc<str>);

impl Deref for Mark {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The batches under way that others may follow.
pub(super) struct Flights {
    flights: Mutex<Vec<Flight>>,
    process: u64,
    marks: AtomicU64,
}

/// A connection with batches under way.
struct Flight {
    lease: Arc<Lease>,
    newest: Link,
    mark: Mark,
}

/// Where a batch may be sent behind another one.
pub(super) struct Place {
    lease: Arc<Lease>,
    after: Mark,
}

type Outcome = Result<Option<Passed>, CommitError>;

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            flights: Mutex::default(),
            process: RandomState::new().build_hasher().finish(),
            marks: AtomicU64::new(0),
        }
    }

    fn mark(&self) -> Mark {
        let number = self.marks.fetch_add(1, Ordering::Relaxed);
        let mut mark = String::with_capacity(33);
        let _ = write!(mark, "{:x}-{number:x}", self.process);
        Mark(mark.into())
    }

    /// The place right behind the batch that `before` tells of, while it is under way and
    /// nobody else has taken that place.
    pub(super) fn behind(&self, before: &Link) -> Option<Place> {
        let flights = self.flights.lock();
        let flight = flights.iter().find(|flight| flight.newest.is(before))?;
        Some(Place {
            lease: Arc::clone(&flight.lease),
            after: flight.mark.clone(),
        })
    }

    #[cfg(test)]
    fn leads_with(&self, link: &Link) -> bool {
        self.flights.lock().iter().any(|one| one.newest.is(link))
    }

    /// Sends a batch that others may follow, and waits for its end; `own` tells of it.
    pub(super) async fn lead(&self, lease: Lease, whole: Whole<'_>, own: &Link) -> Outcome {
        let (lease, mark) = (Arc::new(lease), self.mark());
        let mut landing = Landing {
            flights: self,
            lease: &lease,
            own,
            durable: false,
        };
        let chained = Chained {
            after: None,
            mark: Some(&mark),
        };
        let sent = whole.send(&lease, chained, || {
            let mut flights = self.flights.lock();
            flights.push(Flight {
                lease: Arc::clone(&lease),
                newest: own.clone(),
                mark: mark.clone(),
            });
            Some(flights)
        });
        // Not sent is not written.
        landing.end(sent.await.unwrap_or(Err(CommitError::Unfounded)))
    }

    /// Sends a batch to its place behind the one that `before` tells of, and waits for its
    /// end; `None` when that one has ended or somebody else has the place: nothing is sent.
    pub(super) async fn follow(
        &self,
        place: Place,
        before: &Link,
        whole: Whole<'_>,
        own: &Link,
    ) -> Option<Outcome> {
        let (Place { lease, after }, mark) = (place, self.mark());
        let mut landing = Landing {
            flights: self,
            lease: &lease,
            own,
            durable: false,
        };
        let chained = Chained {
            after: Some(&after),
            mark: Some(&mark),
        };
        let sent = whole.send(&lease, chained, || {
            let mut flights = self.flights.lock();
            let flight = flights.iter_mut().find(|one| one.newest.is(before))?;
            flight.newest = own.clone();
            flight.mark = mark.clone();
            Some(flights)
        });
        match sent.await {
            Some(outcome) => Some(landing.end(outcome)),
            None => {
                // Whoever is under way there goes on.
                landing.durable = true;
                None
            }
        }
    }
}

/// The end of a batch under way, however it comes.
struct Landing<'a> {
    flights: &'a Flights,
    lease: &'a Arc<Lease>,
    own: &'a Link,
    durable: bool,
}

impl Landing<'_> {
    fn end(&mut self, outcome: Result<Option<Vec<Passed>>, CommitError>) -> Outcome {
        self.durable = outcome.is_ok();
        outcome.map(|passed| passed.and_then(|all| all.into_iter().next()))
    }
}

impl Drop for Landing<'_> {
    /// Nobody follows a batch that has ended, nor anybody of a flight in which one failed.
    fn drop(&mut self) {
        let ended = |flight: &Flight| {
            Arc::ptr_eq(&flight.lease, self.lease) && (!self.durable || flight.newest.is(self.own))
        };
        let mut flights = self.flights.flights.lock();
        let Some(at) = flights.iter().position(ended) else {
            return;
        };
        let gone = flights.swap_remove(at);
        drop(flights);
        drop(gone);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, Instant};

    use tidegate_engine::model::CommitBatch;
    use tokio::task::JoinHandle;
    use tokio_postgres::Client;

    use super::*;
    use crate::contract::fixture::{NOTES, batch, note, put};
    use crate::postgres::world::{World, until};
    use crate::{Store as _, chain};

    /// A batch that is being written, and what tells of it.
    struct Sent(JoinHandle<Outcome>, Link);

    impl World {
        /// Begins to write a batch of one note; waits until it is under way.
        async fn send(&self, expected: i64, id: &str, after: Option<&Sent>) -> Sent {
            let sent = self.start(self.one(expected, id), after);
            self.boarded(&sent.1).await;
            sent
        }

        fn one(&self, expected: i64, id: &str) -> CommitBatch {
            let note = note(id, "l1", "o1", Some(expected));
            batch(&self.schema, "p", expected, &[vec![put(NOTES, note)]])
        }

        fn start(&self, batch: CommitBatch, after: Option<&Sent>) -> Sent {
            let (settle, own) = chain();
            let (store, after) = (Arc::clone(&self.store), after.map(|sent| sent.1.clone()));
            let writing =
                tokio::spawn(
                    async move { store.commit_chained(Arc::new(batch), after, settle).await },
                );
            Sent(writing, own)
        }

        async fn boarded(&self, link: &Link) {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !self.store.writer.flights.leads_with(link) {
                assert!(Instant::now() < deadline, "it was never sent");
                tokio::task::yield_now().await;
            }
        }

        /// A partition with one commit, whose statement every connection knows.
        async fn ready() -> Self {
            let world = Self::new().await;
            for expected in 0..2 {
                let note = format!("ready{expected}");
                world
                    .start(world.one(expected, &note), None)
                    .0
                    .await
                    .unwrap()
                    .unwrap();
            }
            world
        }

        /// Another program in a transaction that holds the partition.
        async fn holder(&self) -> Client {
            let other = self.connect().await;
            other
                .batch_execute(
                    "BEGIN; SELECT 1 FROM sync_partitions WHERE partition='p' FOR UPDATE",
                )
                .await
                .unwrap();
            other
        }

        /// Two batches, the later one right behind the other, both of which wait for what
        /// another program holds.
        async fn two_under_way(&self) -> (Client, Sent, Sent) {
            let other = self.holder().await;
            let first = self.send(2, "a", None).await;
            let second = self.send(3, "b", Some(&first)).await;
            (other, first, second)
        }

        async fn notes(&self, ids: &str) -> i64 {
            self.count(&format!("SELECT count(*) FROM notes WHERE id IN ({ids})"))
                .await
        }

        /// Nothing of the batches is there, in any table.
        async fn assert_nothing_of(&self, ids: &str) {
            assert_eq!(self.notes(ids).await, 0);
            for (table, column) in [("sync_changes", "row_id"), ("sync_row_scopes", "row_id")] {
                let sql = format!("SELECT count(*) FROM {table} WHERE {column} IN ({ids})");
                assert_eq!(self.count(&sql).await, 0, "{table}");
            }
        }
    }

    async fn outcomes(all: Vec<Sent>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for sent in all {
            let outcome = sent.0.await.unwrap();
            assert_eq!(sent.1.stands(), outcome.is_ok());
            outcomes.push(outcome);
        }
        outcomes
    }

    const FOREIGN_COMMIT: &str = "UPDATE sync_partitions SET max_commit_seq=max_commit_seq+1 WHERE partition='p';
         INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
         SELECT 'p', max_commit_seq, 'other', 'other', 'other', 1, 1 FROM sync_partitions WHERE partition='p'";

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn batches_that_are_under_way_together_are_written_in_order() {
        let world = World::ready().await;
        let (other, first, second) = world.two_under_way().await;
        let third = world.send(4, "c", Some(&second)).await;
        other.batch_execute("ROLLBACK").await.unwrap();
        for (outcome, head) in outcomes(vec![first, second, third]).await.iter().zip(3..) {
            let passed = outcome.as_ref().unwrap().as_ref().unwrap();
            assert_eq!(passed.bounds.max.0, head);
        }
        assert_eq!(world.notes("'a','b','c'").await, 3);
        let flights = &world.store.writer.flights;
        assert!(flights.flights.lock().is_empty(), "all have landed");
    }

    /// The number that the later batch expects is there, by somebody else's commit.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_foreign_commit_of_the_expected_number_founds_nothing() {
        let world = World::ready().await;
        let (other, first, second) = world.two_under_way().await;
        let third = world.send(4, "c", Some(&second)).await;
        other.batch_execute(FOREIGN_COMMIT).await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
        let outcomes = outcomes(vec![first, second, third]).await;
        assert!(
            matches!(
                outcomes[..],
                [
                    Err(CommitError::SequenceMoved),
                    Err(CommitError::Unfounded),
                    Err(CommitError::Unfounded),
                ]
            ),
            "{outcomes:?}"
        );
        world.assert_nothing_of("'a','b','c'").await;
        let head = "SELECT max_commit_seq FROM sync_partitions WHERE partition='p'";
        assert_eq!(world.count(head).await, 3);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_follows_a_violated_constraint_is_unfounded() {
        let world = World::ready().await;
        let other = world.holder().await;
        // Its rank is unique in the partition, and taken.
        let note = note("a", "l1", "o1", Some(1));
        let first = batch(&world.schema, "p", 2, &[vec![put(NOTES, note)]]);
        let first = world.start(first, None);
        world.boarded(&first.1).await;
        let second = world.send(3, "b", Some(&first)).await;
        other.batch_execute("ROLLBACK").await.unwrap();
        let outcomes = outcomes(vec![first, second]).await;
        assert!(
            matches!(
                outcomes[..],
                [
                    Err(CommitError::Constraint { key: Some(_) }),
                    Err(CommitError::Unfounded)
                ]
            ),
            "{outcomes:?}"
        );
        world.assert_nothing_of("'a','b'").await;
    }

    /// Everything of it went well but its end.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_follows_a_failed_commit_is_unfounded() {
        let world = World::ready().await;
        world
            .watch
            .batch_execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                   'BEGIN RAISE EXCEPTION ''not this one''; END';
                 CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON sync_commits
                   DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
                   WHEN (NEW.commit_seq = 3) EXECUTE FUNCTION refuse()",
            )
            .await
            .unwrap();
        let (other, first, second) = world.two_under_way().await;
        other.batch_execute("ROLLBACK").await.unwrap();
        let outcomes = outcomes(vec![first, second]).await;
        assert!(
            matches!(
                outcomes[..],
                [Err(CommitError::Store(_)), Err(CommitError::Unfounded)]
            ),
            "{outcomes:?}"
        );
        world.assert_nothing_of("'a','b'").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_dies_leaves_all_that_are_under_way_unknown() {
        let world = World::ready().await;
        let (other, first, second) = world.two_under_way().await;
        let waiting =
            "FROM pg_stat_activity WHERE datname=current_database() AND wait_event_type='Lock'";
        until(&world.watch, &format!("SELECT count(*)=1 {waiting}")).await;
        let kill = format!("SELECT count(pg_terminate_backend(pid)) {waiting}");
        assert_eq!(world.count(&kill).await, 1);
        let outcomes = outcomes(vec![first, second]).await;
        for outcome in &outcomes {
            assert!(
                matches!(outcome, Err(CommitError::OutcomeUnknown(_))),
                "{outcome:?}"
            );
        }
        other.batch_execute("ROLLBACK").await.unwrap();
        world.assert_nothing_of("'a','b'").await;
        // The next one takes another connection.
        world
            .start(world.one(2, "a"), None)
            .0
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_dies_under_the_later_batch_keeps_the_earlier_one() {
        let world = World::ready().await;
        world
            .watch
            .batch_execute(
                "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
                   'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
                 CREATE CONSTRAINT TRIGGER hangs AFTER INSERT ON sync_commits
                   DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
                   WHEN (NEW.commit_seq = 4) EXECUTE FUNCTION hang()",
            )
            .await
            .unwrap();
        let (other, first, second) = world.two_under_way().await;
        other.batch_execute("ROLLBACK").await.unwrap();
        let sleeping =
            "FROM pg_stat_activity WHERE datname=current_database() AND wait_event='PgSleep'";
        until(&world.watch, &format!("SELECT count(*)=1 {sleeping}")).await;
        // It is known before the later one ends.
        assert!(first.1.clone().settled().await);
        let kill = format!("SELECT count(pg_terminate_backend(pid)) {sleeping}");
        assert_eq!(world.count(&kill).await, 1);
        let outcomes = outcomes(vec![first, second]).await;
        assert!(
            matches!(outcomes[..], [Ok(_), Err(CommitError::OutcomeUnknown(_))]),
            "{outcomes:?}"
        );
        assert_eq!(world.notes("'a'").await, 1);
        world.assert_nothing_of("'b'").await;
    }

    /// A pool between us and the database may run the later batch on another session.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_session_without_the_mark_refuses_a_batch_that_is_founded_all_the_same() {
        let world = World::ready().await;
        let other = world.holder().await;
        let first = world.send(2, "a", None).await;
        {
            let mut flights = world.store.writer.flights.flights.lock();
            flights[0].mark = Mark("of another session".into());
        }
        let second = world.send(3, "b", Some(&first)).await;
        other.batch_execute("ROLLBACK").await.unwrap();
        let outcomes = outcomes(vec![first, second]).await;
        assert!(
            matches!(outcomes[..], [Ok(_), Err(CommitError::Unfounded)]),
            "{outcomes:?}"
        );
        world.assert_nothing_of("'b'").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn batches_under_way_do_not_stall_other_partitions() {
        let world = World::ready().await;
        let (other, first, second) = world.two_under_way().await;
        for expected in 0..3 {
            let note = note(&format!("q{expected}"), "l1", "o1", Some(expected));
            let batch = batch(&world.schema, "q", expected, &[vec![put(NOTES, note)]]);
            world.start(batch, None).0.await.unwrap().unwrap();
        }
        assert!(!first.0.is_finished() && !second.0.is_finished());
        other.batch_execute("ROLLBACK").await.unwrap();
        for outcome in outcomes(vec![first, second]).await {
            outcome.unwrap();
        }
    }
}

//! Group commits on their way to the database. What waits at the same time, of
//! different partitions, becomes one transaction: one round trip and one flush for
//! all of them. What fails there is written again by itself, so that every failure
//! is its own batch's. A batch that was decided on top of one that is under way is sent
//! right behind it, unless others wait for their turn.

use std::collections::HashSet;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use bb8::Pool;
use tidegate_engine::CommitSeq;
use tidegate_engine::model::CommitBatch;
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, oneshot};

use super::batch::{Encoded, Written};
use super::commit::{self, Transaction, Whole};
use super::connection::Manager;
use super::driver::Driver;
use super::flight::{Flights, Place};
use super::plan::Plan;
use super::turns::{Turn, Turns, patiently};
use crate::error::{CommitError, StoreError};
use crate::{Link, Passed, Settle};

/// Transactions under way for as many processors, those apart that wait for somebody's
/// locks. The more batches one carries the less each of them costs, so a second one is
/// worth it only where the database has processors to spare.
const PROCESSORS_PER_TRANSACTION: usize = 2;
const MOST_TRANSACTIONS: usize = 4;
/// Commits and client records that a shared transaction carries, at most.
const SHARED_ENTRIES: usize = 2_000;
/// A batch beyond that is a transaction of its own: nobody else waits for it.
const LARGE_BYTES: usize = 256 * 1024;
const LARGE_ROWS: usize = 500;
/// A transaction that takes longer waits for somebody: the next one begins beside it.
const PATIENCE: Duration = Duration::from_millis(20);

/// Where a batch stands among those of its partition.
pub(super) struct Chained {
    /// The one that it was decided on top of.
    pub(super) after: Option<Link>,
    /// Tells its own outcome.
    pub(super) settle: Settle,
}

struct Waiting {
    encoded: Encoded,
    plan: Arc<Plan>,
    settle: Settle,
    reply: oneshot::Sender<Result<Option<Passed>, CommitError>>,
    /// Closing the store waits for it.
    guard: OwnedRwLockReadGuard<()>,
}

/// The batches that no transaction has taken yet, and those that others may follow.
#[derive(Clone)]
pub(super) struct Writer {
    turns: Arc<Turns<Waiting>>,
    pub(super) flights: Arc<Flights>,
}

impl Writer {
    /// `transactions` of them are under way at a time, at most.
    pub(super) fn new(transactions: Option<NonZero<usize>>) -> Self {
        let by_processors = || {
            let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
            (processors / PROCESSORS_PER_TRANSACTION).clamp(1, MOST_TRANSACTIONS)
        };
        Self {
            turns: Turns::new(transactions.map_or_else(by_processors, NonZero::get)),
            flights: Arc::new(Flights::new()),
        }
    }

    /// Writes a batch. A caller that stops waiting does not stop the write.
    pub(super) async fn write(
        &self,
        driver: &Driver,
        pool: Pool<Manager>,
        plan: Arc<Plan>,
        batch: Arc<CommitBatch>,
        chained: Chained,
        guard: OwnedRwLockReadGuard<()>,
    ) -> Result<Option<Passed>, CommitError> {
        let encoded = Encoded::new(&plan, batch)?;
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            encoded,
            plan,
            settle: chained.settle,
            reply,
            guard,
        };
        let work = Work {
            pool,
            driver: driver.handle(),
            flights: Arc::clone(&self.flights),
        };
        match chained.after.filter(|after| !after.stands()) {
            None => self.queue(work, waiting),
            // On the threads that learn first what became of the one before.
            Some(after) => {
                driver.spawn(self.clone().follow(work, waiting, after));
            }
        }
        // Without an answer its task came to an end it did not expect.
        answer
            .await
            .unwrap_or_else(|lost| Err(CommitError::OutcomeUnknown(Box::new(lost))))
    }

    fn queue(&self, work: Work, waiting: Waiting) {
        let driver = work.driver.clone();
        if waiting.stands_alone() {
            driver.spawn(async move { work.alone(waiting).await });
        } else if let Some(turn) = self.turns.ask(waiting) {
            driver.spawn(async move { work.work_off(turn).await });
        }
    }

    /// Writes a batch after the one that it was decided on top of.
    async fn follow(self, work: Work, one: Waiting, before: Link) {
        let place = match one.stands_alone() {
            true => None,
            false => self.flights.behind(&before),
        };
        let turn = place.as_ref().and_then(|_| self.turns.join());
        match place.zip(turn) {
            None => self.when_founded(work, one, before).await,
            Some((place, turn)) => {
                let behind = self.behind(work.clone(), one, before, place);
                patiently(PATIENCE, behind).await;
                work.work_off(turn).await;
            }
        }
    }

    async fn behind(self, work: Work, one: Waiting, before: Link, place: Place) {
        match work.follow(&one, &before, place).await {
            Some(outcome) => one.conclude(outcome),
            None => self.when_founded(work, one, before).await,
        }
    }

    async fn when_founded(self, work: Work, one: Waiting, before: Link) {
        match before.founded().await {
            Ok(()) => self.queue(work, one),
            Err(unfounded) => one.conclude(Err(unfounded)),
        }
    }
}

/// Who waits for a batch.
struct Caller {
    settle: Settle,
    reply: oneshot::Sender<Result<Option<Passed>, CommitError>>,
    guard: OwnedRwLockReadGuard<()>,
}

impl Caller {
    fn conclude(self, outcome: Result<Option<Passed>, CommitError>) {
        drop(self.guard);
        // First whoever was decided on top of it: that one is to be written next.
        self.settle.settle(outcome.is_ok());
        // A caller that stopped waiting is not told.
        let _ = self.reply.send(outcome);
    }
}

impl Waiting {
    fn conclude(self, outcome: Result<Option<Passed>, CommitError>) {
        self.apart().2.conclude(outcome);
    }

    fn apart(self) -> (Encoded, Arc<Plan>, Caller) {
        let caller = Caller {
            settle: self.settle,
            reply: self.reply,
            guard: self.guard,
        };
        (self.encoded, self.plan, caller)
    }

    /// Whether the batch takes so long, or may fail in so many ways, that no other
    /// one should share its transaction. The gate of several makes no partition's row.
    fn stands_alone(&self) -> bool {
        let batch = &self.encoded.batch;
        let first = batch.expected_max == CommitSeq(0);
        first
            || batch.advance.is_some()
            || batch.rows.len() > LARGE_ROWS
            || self.bytes() > LARGE_BYTES
    }

    fn bytes(&self) -> usize {
        let changes = self.encoded.batch.commits.iter();
        changes
            .flat_map(|commit| &commit.changes)
            .map(tidegate_engine::model::LoggedChange::bytes)
            .sum()
    }

    fn whole(&self) -> Result<Whole<'_>, Box<Written<'_>>> {
        Whole::new(&self.plan, std::slice::from_ref(&self.encoded))
    }

    fn entries(&self) -> usize {
        let batch = &self.encoded.batch;
        batch.commits.len() + batch.results.len() + batch.clients.len()
    }

    /// Whether both may be in one transaction: their gates are one call.
    fn agrees_with(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.encoded.batch, &other.encoded.batch);
        Arc::ptr_eq(&self.plan, &other.plan)
            && ours.writer_version == theirs.writer_version
            && (Arc::ptr_eq(&ours.declared, &theirs.declared) || ours.declared == theirs.declared)
    }
}

/// Divides what waits into transactions: each of batches that agree, no partition
/// twice, in the order of the partitions' names.
fn transactions(waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut all: Vec<(Vec<Waiting>, HashSet<String>, usize)> = Vec::new();
    for one in waiting {
        let partition = one.encoded.batch.partition.as_str().to_owned();
        let entries = one.entries();
        let place = all.iter_mut().find(|(group, partitions, used)| {
            *used + entries <= SHARED_ENTRIES
                && !partitions.contains(&partition)
                && group.first().is_none_or(|first| first.agrees_with(&one))
        });
        match place {
            Some((group, partitions, used)) => {
                group.push(one);
                partitions.insert(partition);
                *used += entries;
            }
            None => all.push((vec![one], HashSet::from([partition]), entries)),
        }
    }
    all.into_iter()
        .map(|(mut group, ..)| {
            group.sort_by(|a, b| a.encoded.batch.partition.cmp(&b.encoded.batch.partition));
            group
        })
        .collect()
}

/// What a turn works with.
#[derive(Clone)]
struct Work {
    pool: Pool<Manager>,
    driver: Handle,
    flights: Arc<Flights>,
}

impl Work {
    async fn work_off(&self, mut turn: Turn<Waiting>) {
        while let Some(waiting) = turn.next() {
            self.serve(waiting).await;
        }
    }

    async fn serve(&self, waiting: Vec<Waiting>) {
        for mut group in transactions(waiting) {
            match (group.pop(), group.is_empty()) {
                (None, _) => {}
                (Some(only), true) => {
                    let task = self.spawn_alone(only);
                    // What waits for somebody's lock does so beside the others.
                    let _ = tokio::time::timeout(PATIENCE, task).await;
                }
                (Some(last), false) => {
                    group.push(last);
                    let work = self.clone();
                    let task = self.driver.spawn(async move { work.together(group).await });
                    let _ = tokio::time::timeout(PATIENCE, task).await;
                }
            }
        }
    }

    fn spawn_alone(&self, one: Waiting) -> tokio::task::JoinHandle<()> {
        let work = self.clone();
        self.driver.spawn(async move { work.alone(one).await })
    }

    async fn alone(&self, one: Waiting) {
        let outcome = self.lead(&one).await;
        one.conclude(outcome);
    }

    /// Writes a batch that waits for no other one.
    async fn lead(&self, one: &Waiting) -> Result<Option<Passed>, CommitError> {
        let lease = super::take(&self.pool).await?;
        let outcome = match one.whole() {
            Ok(whole) => self.flights.lead(lease, whole, &one.settle.link()).await,
            Err(written) => {
                let mut lease = lease;
                let steps = written.steps(&one.plan);
                commit::pipelined(&mut lease, &one.plan, steps, Transaction::Fresh)
                    .await
                    .map(|()| None)
            }
        };
        self.sort_out(one, outcome).await
    }

    /// Writes a batch behind the one before; `None` when it cannot be sent there.
    async fn follow(
        &self,
        one: &Waiting,
        before: &Link,
        place: Place,
    ) -> Option<Result<Option<Passed>, CommitError>> {
        let (whole, own) = (one.whole().ok()?, one.settle.link());
        let outcome = self.flights.follow(place, before, whole, &own).await?;
        Some(self.sort_out(one, outcome).await)
    }

    /// A batch that violates a constraint is written row by row.
    async fn sort_out(
        &self,
        one: &Waiting,
        outcome: Result<Option<Passed>, CommitError>,
    ) -> Result<Option<Passed>, CommitError> {
        let Err(CommitError::Constraint { .. }) = outcome else {
            return outcome;
        };
        let mut lease = super::take(&self.pool).await?;
        commit::row_by_row(&mut lease, &one.plan, &one.encoded)
            .await
            .map(|()| None)
    }

    async fn together(&self, group: Vec<Waiting>) {
        let Some(plan) = group.first().map(|one| Arc::clone(&one.plan)) else {
            return;
        };
        let (mut encoded, mut rest) = (Vec::new(), Vec::new());
        for one in group {
            let (batch, plan, caller) = one.apart();
            encoded.push(batch);
            rest.push((plan, caller));
        }
        let outcome = match super::take(&self.pool).await {
            Ok(mut lease) => commit::write_together(&mut lease, &plan, &encoded).await,
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(passed) => {
                // They are told while the next transaction is on its way.
                self.driver.spawn(async move {
                    let mut passed = passed.into_iter().flatten();
                    for (_, caller) in rest {
                        caller.conclude(Ok(passed.next()));
                    }
                });
            }
            // Whether they stand, the stored results of each partition say.
            Err(CommitError::OutcomeUnknown(cause)) => {
                let cause = Arc::new(cause);
                for (_, caller) in rest {
                    let error = CommitError::OutcomeUnknown(Box::new(Shared(Arc::clone(&cause))));
                    caller.conclude(Err(error));
                }
            }
            // Nothing was written. Somebody's failure or lock; each finds out by itself.
            Err(_) => {
                for (encoded, (plan, caller)) in encoded.into_iter().zip(rest) {
                    self.spawn_alone(Waiting {
                        encoded,
                        plan,
                        settle: caller.settle,
                        reply: caller.reply,
                        guard: caller.guard,
                    });
                }
            }
        }
    }
}

/// A cause that several batches have in common.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Shared(Arc<crate::error::Source>);

/// What is not there because its task ended early.
pub(super) fn lost() -> StoreError {
    StoreError::Unavailable("a storage task was given up".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::contract::fixture::{NOTES, batch, note, put};
    use crate::postgres::world::{World, until};

    type Answer = oneshot::Receiver<Result<Option<Passed>, CommitError>>;

    impl World {
        fn work(&self) -> Work {
            Work {
                pool: self.store.pools().unwrap().short,
                driver: self.store.driver.handle(),
                flights: Arc::new(Flights::new()),
            }
        }

        /// A batch of one note that waits to be written, and its answer.
        async fn waiting(&self, partition: &str, expected: i64, size: i64) -> (Waiting, Answer) {
            let note = note(&format!("n{expected}"), "l1", "o1", Some(size));
            let batch = batch(&self.schema, partition, expected, &[vec![put(NOTES, note)]]);
            let plan = self.store.plan().unwrap();
            let (reply, answer) = oneshot::channel();
            let waiting = Waiting {
                encoded: Encoded::new(&plan, Arc::new(batch)).unwrap(),
                plan,
                settle: crate::chain().0,
                reply,
                guard: Arc::clone(&self.store.writes).read_owned().await,
            };
            (waiting, answer)
        }

        async fn many(&self, batches: &[(&str, i64, i64)]) -> (Vec<Waiting>, Vec<Answer>) {
            let (mut all, mut answers) = (Vec::new(), Vec::new());
            for (partition, expected, size) in batches {
                let (waiting, answer) = self.waiting(partition, *expected, *size).await;
                all.push(waiting);
                answers.push(answer);
            }
            (all, answers)
        }

        /// Writes batches, each of which must succeed.
        async fn write_all(&self, batches: &[(&str, i64, i64)]) {
            let (all, answers) = self.many(batches).await;
            self.work().serve(all).await;
            for answer in answers {
                answer.await.unwrap().unwrap();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn batches_of_several_partitions_are_one_transaction() {
        let world = World::new().await;
        world
            .write_all(&[("b", 0, 1), ("c", 0, 1), ("a", 0, 1)])
            .await;
        let (all, answers) = world.many(&[("b", 1, 2), ("c", 1, 2), ("a", 1, 2)]).await;
        world.work().serve(all).await;
        for (answer, partition) in answers.into_iter().zip(["b", "c", "a"]) {
            let passed = answer.await.unwrap().unwrap().unwrap();
            assert_eq!(passed.bounds.max, CommitSeq(2), "{partition}");
        }
        let commits = "SELECT count(*) FROM sync_commits WHERE commit_seq=2";
        assert_eq!(world.count(commits).await, 3);
        let transactions = "SELECT count(DISTINCT xmin::text) FROM sync_commits WHERE commit_seq=2";
        assert_eq!(world.count(transactions).await, 1);
        let rows = "SELECT count(*) FROM notes JOIN sync_row_scopes AS s
            ON s.partition=_sync_partition AND s.row_id=_sync_row_id WHERE s.var='list_id'";
        assert_eq!(world.count(rows).await, 6);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_batches_of_one_partition_are_never_in_one_transaction() {
        let world = World::new().await;
        let (all, _answers) = world
            .many(&[("a", 0, 1), ("a", 1, 2), ("b", 0, 1), ("a", 2, 3)])
            .await;
        let groups: Vec<Vec<String>> = transactions(all)
            .iter()
            .map(|group| {
                let names = group
                    .iter()
                    .map(|one| one.encoded.batch.partition.to_string());
                names.collect()
            })
            .collect();
        assert_eq!(groups, [vec!["a", "b"], vec!["a"], vec!["a"]]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_refusal_of_one_partition_leaves_the_others_committed() {
        let world = World::new().await;
        world.write_all(&[("unique", 0, 7)]).await;
        world
            .watch
            .batch_execute("INSERT INTO sync_writer_fence VALUES ('fenced', 99)")
            .await
            .unwrap();
        let (all, answers) = world
            .many(&[
                ("fenced", 0, 1),
                ("good", 0, 1),
                ("stale", 5, 1),
                // Its size is unique in the partition, and taken.
                ("unique", 1, 7),
                ("well", 0, 1),
            ])
            .await;
        world.work().serve(all).await;
        let mut outcomes = Vec::new();
        for answer in answers {
            outcomes.push(answer.await.unwrap());
        }
        assert!(
            matches!(
                outcomes[..],
                [
                    Err(CommitError::FenceRejected),
                    Ok(_),
                    Err(CommitError::SequenceMoved),
                    Err(CommitError::Constraint { key: Some(_) }),
                    Ok(_),
                ]
            ),
            "{outcomes:?}"
        );
        let written = "SELECT count(*) FROM sync_commits WHERE partition IN ('good', 'well')";
        assert_eq!(world.count(written).await, 2);
        assert_eq!(world.count("SELECT count(*) FROM sync_commits").await, 3);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_foreign_lock_on_one_partition_does_not_stall_the_others() {
        let world = World::new().await;
        let first = [("a", 0, 1), ("b", 0, 1), ("held", 0, 1)];
        world.write_all(&first).await;
        let other = world.connect().await;
        other
            .batch_execute("BEGIN; SELECT 1 FROM sync_partitions WHERE partition='held' FOR UPDATE")
            .await
            .unwrap();
        let next = [("a", 1, 2), ("b", 1, 2), ("held", 1, 2)];
        let (all, mut answers) = world.many(&next).await;
        let mut held = answers.pop().unwrap();
        world.work().serve(all).await;
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
        // So does a batch that has the turn to itself.
        let (alone, mut waits) = world.waiting("held", 1, 3).await;
        world.work().serve(vec![alone]).await;
        let (free, answer) = world.waiting("a", 2, 3).await;
        world.work().serve(vec![free]).await;
        answer.await.unwrap().unwrap();
        assert!(held.try_recv().is_err() && waits.try_recv().is_err());
        other.batch_execute("COMMIT").await.unwrap();
        let outcomes = [held.await.unwrap(), waits.await.unwrap()];
        let written = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(written, 1, "{outcomes:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_unknown_outcome_is_told_to_every_partition_of_the_transaction() {
        let world = World::new().await;
        world.write_all(&[("a", 0, 1), ("b", 0, 1)]).await;
        world
            .watch
            .batch_execute(
                "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
                   'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
                 CREATE CONSTRAINT TRIGGER hangs AFTER INSERT ON sync_commits
                   DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hang()",
            )
            .await
            .unwrap();
        let (all, answers) = world.many(&[("a", 1, 2), ("b", 1, 2)]).await;
        let work = world.work();
        let serving = tokio::spawn(async move { work.serve(all).await });
        let sleeping =
            "FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        until(&world.watch, &format!("SELECT count(*) = 1 {sleeping}")).await;
        world
            .watch
            .query(&format!("SELECT pg_terminate_backend(pid) {sleeping}"), &[])
            .await
            .unwrap();
        serving.await.unwrap();
        for answer in answers {
            let outcome = answer.await.unwrap();
            assert!(
                matches!(outcome, Err(CommitError::OutcomeUnknown(_))),
                "{outcome:?}"
            );
        }
        // Each partition's stored results say what became of its batch: nothing.
        assert_eq!(
            world.count("SELECT count(*) FROM sync_push_results").await,
            2
        );
        let moved = "SELECT count(*) FROM sync_partitions WHERE max_commit_seq > 1";
        assert_eq!(world.count(moved).await, 0);
    }
}

//! The one writer thread. It takes everything that is queued and runs it as one
//! `BEGIN IMMEDIATE` transaction with a savepoint per job, so that the batches
//! of all partitions share one fsync. A job that fails is undone alone; replies
//! leave only after COMMIT has returned.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::failure::shared_failure;
use crate::error::StoreError;
use crate::failpoint::failpoint;

/// Jobs that share a transaction at most, whatever the option says: bounds how
/// long the first of them waits for its COMMIT.
const MAX_JOBS_PER_TX: usize = 512;

/// Why no answer came from the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The job was never accepted: nothing happened.
    NotQueued,
    /// The thread died with the job in hand: its outcome is unknown.
    InFlight,
}

impl From<Lost> for StoreError {
    fn from(_: Lost) -> Self {
        Self::Closed
    }
}

enum Message {
    Job(Box<dyn Job>),
    /// Runs alone, outside of any transaction.
    Exclusive(Box<dyn FnOnce(&mut Connection) + Send>),
    Stop,
}

/// A unit that is kept or undone as a whole.
trait Job: Send {
    /// Commits it counts for under `max_commits_per_tx`.
    fn weight(&self) -> usize;
    /// Does the work inside its savepoint; `false` = undo it.
    fn run(&mut self, connection: &Connection) -> bool;
    /// Answers the caller: `Err` when the transaction as a whole failed.
    fn conclude(self: Box<Self>, transaction: Result<(), StoreError>);
}

struct Work<T, E, F> {
    weight: usize,
    work: Option<F>,
    result: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<T, E, F> Job for Work<T, E, F>
where
    T: Send,
    E: From<StoreError> + Send,
    F: FnOnce(&Connection) -> Result<T, E> + Send,
{
    fn weight(&self) -> usize {
        self.weight
    }

    fn run(&mut self, connection: &Connection) -> bool {
        let Some(work) = self.work.take() else {
            return false;
        };
        let result = work(connection);
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn conclude(self: Box<Self>, transaction: Result<(), StoreError>) {
        let answer = match (transaction, self.result) {
            // What the job itself reported stays true when the rest fails.
            (_, Some(Err(own))) => Err(own),
            (Err(shared), _) => Err(shared.into()),
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Ok(()), None) => {
                Err(StoreError::failed("running a write", "the write panicked").into())
            }
        };
        // The caller may have gone away; the work stands all the same.
        let _ = self.reply.send(answer);
    }
}

/// Handle to the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Message>,
    /// Gives the connection back at its end, see [`Self::join`].
    thread: Mutex<Option<JoinHandle<Connection>>>,
}

impl Writer {
    /// Starts the thread that owns `connection`.
    pub(super) fn start(
        connection: Connection,
        queue_depth: usize,
        max_commits_per_tx: Option<usize>,
    ) -> Result<Self, StoreError> {
        let (queue, inbox) = mpsc::channel(queue_depth.max(1));
        let limit = max_commits_per_tx.map_or(usize::MAX, |n| n.max(1));
        let thread = std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || serve(connection, inbox, limit))
            .map_err(|error| StoreError::failed("starting the writer thread", error))?;
        Ok(Self {
            queue,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Runs `work` in the next transaction and waits until it is durable.
    pub(super) async fn run<T, E, F>(&self, weight: usize, work: F) -> Result<Result<T, E>, Lost>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Work {
            weight,
            work: Some(work),
            result: None,
            reply,
        };
        self.queue
            .send(Message::Job(Box::new(job)))
            .await
            .map_err(|_| Lost::NotQueued)?;
        answer.await.map_err(|_| Lost::InFlight)
    }

    /// Queues `work` without waiting for it; dropped when the queue is full.
    pub(super) fn offer<F>(&self, work: F)
    where
        F: FnOnce(&Connection) -> Result<(), StoreError> + Send + 'static,
    {
        let (reply, _) = oneshot::channel();
        let job = Work {
            weight: 0,
            work: Some(work),
            result: None,
            reply,
        };
        let _ = self.queue.try_send(Message::Job(Box::new(job)));
    }

    /// Runs `work` alone on the writer's connection, which opens its own transactions.
    pub(super) async fn run_alone<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let task = Box::new(move |connection: &mut Connection| {
            let _ = reply.send(work(connection));
        });
        self.queue
            .send(Message::Exclusive(task))
            .await
            .map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| {
            StoreError::failed(
                "running a write",
                "the write panicked or the writer stopped",
            )
        })?
    }

    /// Lets the thread finish what is queued and end.
    pub(super) async fn stop(&self) {
        let _ = self.queue.send(Message::Stop).await;
        self.queue.closed().await;
    }

    /// Waits for the thread (call off the reactor, after [`Self::stop`]) and gives its
    /// connection to whom closes the database: the log is folded into the file by the
    /// last connection that closes, and by none of two that close at once.
    pub(super) fn join(&self) -> Option<Connection> {
        self.thread.lock().take()?.join().ok()
    }
}

fn serve(
    mut connection: Connection,
    mut inbox: mpsc::Receiver<Message>,
    limit: usize,
) -> Connection {
    let mut carried = None;
    while let Some(first) = carried.take().or_else(|| inbox.blocking_recv()) {
        let first = match first {
            Message::Stop => {
                // Nothing new is accepted; what is queued still runs.
                inbox.close();
                continue;
            }
            Message::Exclusive(task) => {
                let done = catch_unwind(AssertUnwindSafe(|| task(&mut connection)));
                if done.is_err() {
                    tracing::error!("an exclusive write panicked");
                }
                leave_transaction(&connection);
                continue;
            }
            Message::Job(job) => job,
        };
        let mut weight = first.weight();
        let mut jobs = vec![first];
        while weight < limit && jobs.len() < MAX_JOBS_PER_TX {
            match inbox.try_recv() {
                Ok(Message::Job(job)) if weight + job.weight() <= limit => {
                    weight += job.weight();
                    jobs.push(job);
                }
                Ok(other) => {
                    carried = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        run_transaction(&connection, jobs);
    }
    connection
}

/// Rolls back whatever a failed piece of work left open.
fn leave_transaction(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = execute(connection, "ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be rolled back");
    }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn run_transaction(connection: &Connection, mut jobs: Vec<Box<dyn Job>>) {
    let outcome = try_transaction(connection, &mut jobs);
    if outcome.is_err() {
        leave_transaction(connection);
    }
    let outcome = outcome.map_err(|(context, error)| {
        tracing::warn!(%error, context, "a write transaction failed");
        (context, Arc::new(error))
    });
    for job in jobs {
        job.conclude(match &outcome {
            Ok(()) => Ok(()),
            Err((context, error)) => Err(shared_failure(context, error)),
        });
    }
}

fn try_transaction(
    connection: &Connection,
    jobs: &mut [Box<dyn Job>],
) -> Result<(), (&'static str, rusqlite::Error)> {
    let step = |context: &'static str, sql: &str| {
        execute(connection, sql).map_err(|error| (context, error))
    };
    step("opening a write transaction", "BEGIN IMMEDIATE")?;
    let mut kept = 0_usize;
    for job in jobs.iter_mut() {
        step("setting a savepoint", "SAVEPOINT job")?;
        let keep = catch_unwind(AssertUnwindSafe(|| job.run(connection))).unwrap_or_else(|_| {
            tracing::error!("a write panicked");
            false
        });
        // A full disk or a failed read makes SQLite end the transaction by
        // itself; then the savepoint is gone and this fails for everybody.
        if keep {
            kept += 1;
        } else {
            step("undoing a write", "ROLLBACK TO job")?;
        }
        step("releasing a savepoint", "RELEASE job")?;
    }
    if kept == 0 {
        step("leaving a write transaction", "ROLLBACK")
    } else {
        failpoint("store.batch.before_commit");
        let committed = step("committing", "COMMIT");
        failpoint("store.batch.after_commit");
        committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::params;

    fn writer(limit: Option<usize>) -> Writer {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "PRAGMA foreign_keys=ON;
                 CREATE TABLE parent(id INTEGER PRIMARY KEY);
                 CREATE TABLE t(id INTEGER PRIMARY KEY,
                   parent INTEGER REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED);",
            )
            .unwrap();
        Writer::start(connection, 64, limit).unwrap()
    }

    fn insert(
        id: i64,
        parent: Option<i64>,
    ) -> impl FnOnce(&Connection) -> Result<(), StoreError> + Send {
        move |connection| {
            connection
                .execute("INSERT INTO t VALUES(?,?)", params![id, parent])
                .map(|_| ())
                .map_err(|error| StoreError::failed("test", error))
        }
    }

    async fn ids(writer: &Writer) -> Vec<i64> {
        writer
            .run_alone(|connection| {
                let mut statement = connection.prepare("SELECT id FROM t ORDER BY id").unwrap();
                let ids = statement.query_map([], |row| row.get(0)).unwrap();
                Ok(ids.map(Result::unwrap).collect())
            })
            .await
            .unwrap()
    }

    /// Holds the writer inside an exclusive task so that the jobs queue up behind it.
    async fn hold(writer: &Arc<Writer>) -> std::sync::mpsc::Sender<()> {
        let (release, wait) = std::sync::mpsc::channel();
        let (entered, inside) = oneshot::channel();
        let held = Arc::clone(writer);
        tokio::spawn(async move {
            held.run_alone(move |_| {
                let _ = entered.send(());
                let _ = wait.recv();
                Ok(())
            })
            .await
        });
        inside.await.unwrap();
        release
    }

    #[tokio::test]
    async fn a_failing_job_is_undone_alone() {
        let writer = Arc::new(writer(None));
        let release = hold(&writer).await;
        let first = writer.run(1, insert(1, None));
        let failing = writer.run(1, |connection: &Connection| {
            insert(2, None)(connection)?;
            Err::<(), _>(StoreError::Closed)
        });
        let last = writer.run(1, insert(3, None));
        let all = async {
            tokio::join!(biased; first, failing, last, async { release.send(()).unwrap() })
        };
        let (first, failing, last, ()) = all.await;
        assert!(first.unwrap().is_ok() && last.unwrap().is_ok());
        assert!(matches!(failing.unwrap(), Err(StoreError::Closed)));
        assert_eq!(ids(&writer).await, [1, 3]);
    }

    #[tokio::test]
    async fn a_failed_commit_fails_everybody_and_writes_nothing() {
        let writer = Arc::new(writer(None));
        let release = hold(&writer).await;
        let good = writer.run(1, insert(1, None));
        // The deferred foreign key is judged by COMMIT itself.
        let poison = writer.run(1, insert(2, Some(99)));
        let (good, poison, ()) =
            tokio::join!(biased; good, poison, async { release.send(()).unwrap() });
        assert!(good.unwrap().is_err());
        assert!(poison.unwrap().is_err());
        assert!(ids(&writer).await.is_empty());
        assert!(writer.run(1, insert(4, None)).await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_panicking_job_is_undone_and_answered() {
        let writer = writer(None);
        let panicked = writer
            .run(1, |connection: &Connection| {
                insert(1, None)(connection)?;
                if connection.is_autocommit() {
                    return Ok(());
                }
                panic!("deliberate")
            })
            .await;
        assert!(matches!(panicked, Ok(Err(StoreError::Failed { .. }))));
        assert!(writer.run(1, insert(2, None)).await.unwrap().is_ok());
        assert_eq!(ids(&writer).await, [2]);
    }

    #[tokio::test]
    async fn a_panicking_exclusive_task_leaves_no_open_transaction() {
        let writer = writer(None);
        let panicked: Result<(), _> = writer
            .run_alone(|connection| {
                connection
                    .execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES(1,NULL)")
                    .unwrap();
                panic!("deliberate")
            })
            .await;
        assert!(panicked.is_err());
        assert!(writer.run(1, insert(2, None)).await.unwrap().is_ok());
        assert_eq!(ids(&writer).await, [2]);
    }

    #[tokio::test]
    async fn the_commit_limit_splits_transactions() {
        for (limit, survivors) in [(Some(1), vec![1]), (None, vec![])] {
            let writer = Arc::new(writer(limit));
            let release = hold(&writer).await;
            let good = writer.run(1, insert(1, None));
            let poison = writer.run(1, insert(2, Some(99)));
            let (_, _, ()) =
                tokio::join!(biased; good, poison, async { release.send(()).unwrap() });
            assert_eq!(ids(&writer).await, survivors);
        }
    }

    #[tokio::test]
    async fn stop_finishes_queued_work_and_refuses_more() {
        let writer = Arc::new(writer(None));
        let release = hold(&writer).await;
        let queued = writer.run(1, insert(1, None));
        let (queued, (), ()) =
            tokio::join!(biased; queued, writer.stop(), async { release.send(()).unwrap() });
        assert!(queued.unwrap().is_ok());
        assert_eq!(
            writer.run(1, insert(2, None)).await.unwrap_err(),
            Lost::NotQueued
        );
        writer.join();
    }
}

//! Reader threads and snapshot connections. Short reads run on a thread that
//! owns its connection, so they never wait for a long one; a snapshot leases a
//! connection of its own, which travels to whichever thread runs its next step.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::failure::during;
use crate::error::StoreError;

type Task = Box<dyn FnOnce(&Connection) + Send>;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// Snapshot connections at rest, outside of any transaction.
    idle: Mutex<Vec<Connection>>,
    opener: Opener,
}

impl Shared {
    /// `false` after close.
    fn push(&self, task: Task) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed {
            return false;
        }
        queue.tasks.push_back(task);
        drop(queue);
        self.ready.notify_one();
        true
    }
}

/// How a reading connection is opened.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    pub(super) path: PathBuf,
    pub(super) busy_timeout: Duration,
    pub(super) statement_cache: usize,
}

impl Opener {
    /// Opens a connection that can only read.
    pub(super) fn open(&self) -> Result<Connection, StoreError> {
        let context = "opening a reading connection";
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags).map_err(during(context))?;
        connection
            .busy_timeout(self.busy_timeout)
            .map_err(during(context))?;
        connection.set_prepared_statement_cache_capacity(self.statement_cache);
        connection
            .execute_batch(
                "PRAGMA query_only=ON; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-16384;",
            )
            .map_err(during(context))?;
        Ok(connection)
    }
}

/// The pool.
pub(super) struct Readers {
    shared: Arc<Shared>,
    snapshots: Arc<Semaphore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Starts `threads` readers; `snapshots` is how many may be open at once.
    pub(super) fn start(
        opener: Opener,
        threads: usize,
        snapshots: usize,
    ) -> Result<Self, StoreError> {
        let connections = (0..threads.max(1))
            .map(|_| opener.open())
            .collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            ready: Condvar::new(),
            idle: Mutex::default(),
            opener,
        });
        let readers = Self {
            shared: Arc::clone(&shared),
            snapshots: Arc::new(Semaphore::new(snapshots.max(1))),
            threads: Mutex::default(),
        };
        for connection in connections {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("sqlite-reader".into())
                .spawn(move || serve(&connection, &shared))
                .map_err(|error| StoreError::failed("starting a reader thread", error))?;
            readers.threads.lock().push(thread);
        }
        Ok(readers)
    }

    /// Queues a short read whose answer takes its own way; `false` after a stop.
    pub(super) fn queue(&self, work: impl FnOnce(&Connection) + Send + 'static) -> bool {
        self.shared.push(Box::new(work))
    }

    /// Runs a long read on a thread and a connection of its own, so that no other
    /// read waits for it.
    pub(super) async fn run_apart<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        if self.shared.queue.lock().closed {
            return Err(StoreError::Closed);
        }
        let opener = self.shared.opener.clone();
        tokio::task::spawn_blocking(move || work(&opener.open()?))
            .await
            .unwrap_or_else(|_| Err(read_lost()))
    }

    /// Runs a short read.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let queued = self.shared.push(Box::new(move |connection| {
            if !reply.is_closed() {
                let _ = reply.send(work(connection));
            }
        }));
        if !queued {
            return Err(StoreError::Closed);
        }
        answer.await.map_err(|_| read_lost())?
    }

    /// Leases a connection and begins a read transaction on it; `work` makes the first read in it.
    pub(super) async fn lease<T, F>(&self, work: F) -> Result<(Lease, T), StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let permit = Arc::clone(&self.snapshots)
            .acquire_owned()
            .await
            .map_err(|_| StoreError::Closed)?;
        let shared = Arc::clone(&self.shared);
        let (reply, answer) = oneshot::channel();
        let queued = self.shared.push(Box::new(move |_| {
            let begin = move || {
                let idle = shared.idle.lock().pop();
                let connection = match idle {
                    Some(connection) => connection,
                    None => shared.opener.open()?,
                };
                let lease = Lease {
                    connection: Some(connection),
                    shared,
                    permit: Some(permit),
                };
                let value = lease.on(|connection| {
                    execute(connection, "BEGIN").map_err(during("opening a snapshot"))?;
                    work(connection)
                })?;
                Ok((lease, value))
            };
            let _ = reply.send(begin());
        }));
        if !queued {
            return Err(StoreError::Closed);
        }
        answer.await.map_err(|_| read_lost())?
    }

    /// Runs a step of a snapshot. The lease comes back with the answer; when the
    /// caller stops waiting, it ends by itself.
    pub(super) async fn run_leased<T, F>(
        &self,
        lease: Lease,
        work: F,
    ) -> Result<(Lease, Result<T, StoreError>), StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let queued = self.shared.push(Box::new(move |_| {
            let result = lease.on(work);
            let _ = reply.send((lease, result));
        }));
        if !queued {
            return Err(StoreError::Closed);
        }
        answer.await.map_err(|_| read_lost())
    }

    /// Ends the threads after what is queued.
    pub(super) fn stop(&self) {
        self.snapshots.close();
        self.shared.queue.lock().closed = true;
        self.shared.ready.notify_all();
    }

    /// Waits for the threads; call off the reactor, after [`Self::stop`].
    pub(super) fn join(&self) {
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        self.shared.idle.lock().clear();
    }
}

pub(super) fn read_lost() -> StoreError {
    StoreError::failed("running a read", "the read panicked or the reader stopped")
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

/// Runs `work` in one read transaction, so that all of its statements see one state.
pub(super) fn in_one_view<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let context = "reading in one view";
    execute(connection, "BEGIN").map_err(during(context))?;
    let result = work(connection);
    let end = execute(connection, "COMMIT").map_err(during(context));
    let value = result?;
    end?;
    Ok(value)
}

fn serve(connection: &Connection, shared: &Shared) {
    loop {
        let task = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(task) = queue.tasks.pop_front() {
                    break task;
                }
                if queue.closed {
                    return;
                }
                shared.ready.wait(&mut queue);
            }
        };
        if catch_unwind(AssertUnwindSafe(|| task(connection))).is_err() {
            tracing::error!("a read panicked");
        }
        if !connection.is_autocommit() {
            let _ = execute(connection, "ROLLBACK");
        }
    }
}

/// A connection inside a read transaction.
pub(super) struct Lease {
    connection: Option<Connection>,
    shared: Arc<Shared>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Lease {
    fn on<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &self.connection {
            Some(connection) => work(connection),
            None => Err(StoreError::Closed),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Ending a transaction touches the file's locks: not on the dropping
        // thread, which may be a reactor's.
        if let Some(connection) = self.connection.take() {
            let shared = Arc::clone(&self.shared);
            let permit = self.permit.take();
            self.shared.push(Box::new(move |_| {
                if connection.is_autocommit() || execute(&connection, "ROLLBACK").is_ok() {
                    shared.idle.lock().push(connection);
                }
                drop(permit);
            }));
        }
    }
}

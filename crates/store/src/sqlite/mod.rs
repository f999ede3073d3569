//! The SQLite backend: one writer thread with group commit, a few reader
//! threads, WAL. No method blocks the caller's thread.

mod catalog;
mod checkpoints;
mod commit;
mod core_schema;
mod failure;
mod maintain;
mod merge;
mod migrate;
mod operating;
mod options;
mod plan;
mod preambles;
#[cfg(test)]
mod query_plans;
mod read;
mod readers;
mod source_rows;
mod window;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::RwLock;
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::{
    ClientRecord, CommitBatch, Fetched, LogBounds, Needs, Registry, RowKey, StoredRow,
};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion};

pub use options::{Location, SqliteOptions, Synchronous};

use crate::ensured::Ensured;
use crate::error::{CommitError, StoreError};
use crate::operating::{Grant, MigrationPlan, PartitionSummary, SampleQuery, SampledRow};
use crate::preamble::View;
use crate::{
    ChangedRows, ChangedRowsQuery, Declaration, Link, MigrationObserver, OperatorStore, Passed,
    Preamble, Pruned, RangeQuery, RowPage, ScanQuery, SchemaOutcome, Settle, Snapshot, Store,
    Touch, Window, WindowQuery, chain,
};
use options::{STATEMENT_CACHE, Scratch};
use plan::Plan;
use preambles::Preambles;
use readers::{Lease, Opener, Readers};
use writer::{Lost, Writer};

/// A database file behind [`Store`].
pub struct SqliteStore {
    writer: Arc<Writer>,
    readers: Arc<Readers>,
    preambles: Preambles,
    plan: RwLock<Option<Arc<Plan>>>,
    /// Held during a run, so that concurrent callers share it.
    ensured: tokio::sync::Mutex<Option<Ensured>>,
    /// Outlives every connection of a database in memory.
    _scratch: Option<Arc<Scratch>>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens (or creates) a database and starts its threads. Blocks on file
    /// access: call it at start, or off the reactor.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the file cannot be opened.
    pub fn open(options: SqliteOptions) -> Result<Arc<Self>, StoreError> {
        let (path, scratch) = match &options.location {
            Location::File(path) => (path.clone(), None),
            Location::Memory => {
                let scratch = Scratch::create()?;
                (scratch.database(), Some(scratch))
            }
        };
        let connection = options::open_writer(&path, &options)?;
        let writer = Writer::start(connection, options.queue_depth, options.max_commits_per_tx)?;
        let opener = Opener {
            path,
            busy_timeout: options.busy_timeout,
            statement_cache: STATEMENT_CACHE,
        };
        let readers = Readers::start(opener, options.reader_threads, options.max_snapshots)?;
        Ok(Arc::new(Self {
            writer: Arc::new(writer),
            readers: Arc::new(readers),
            preambles: Preambles::default(),
            plan: RwLock::new(None),
            ensured: tokio::sync::Mutex::new(None),
            _scratch: scratch,
        }))
    }

    fn plan(&self) -> Result<Arc<Plan>, StoreError> {
        self.plan.read().clone().ok_or(StoreError::NotPrepared)
    }

    /// A write that is one job of a shared transaction.
    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection) -> Result<T, StoreError> + Send + 'static,
    {
        self.writer.run(0, work).await?
    }
}

#[async_trait]
impl OperatorStore for SqliteStore {
    async fn summarize_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionSummary>, StoreError> {
        self.plan()?;
        let after = after.cloned();
        self.readers
            .run(move |connection| {
                operating::summarize(connection, after.as_ref().map(PartitionId::as_str), limit)
            })
            .await
    }

    async fn summarize_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionSummary>, StoreError> {
        self.plan()?;
        let partition = partition.clone();
        self.readers
            .run(move |connection| operating::summarize_one(connection, partition.as_str()))
            .await
    }

    async fn read_grant(
        &self,
        partition: &PartitionId,
        actor: &ActorId,
    ) -> Result<Option<Grant>, StoreError> {
        self.plan()?;
        let (partition, actor) = (partition.clone(), actor.clone());
        self.readers
            .run(move |connection| operating::read_grant(connection, partition.as_str(), &actor))
            .await
    }

    async fn put_grant(&self, partition: &PartitionId, grant: &Grant) -> Result<(), StoreError> {
        self.plan()?;
        let (partition, grant) = (partition.clone(), grant.clone());
        self.write(move |connection| operating::put_grant(connection, partition.as_str(), &grant))
            .await
    }

    async fn delete_grant(
        &self,
        partition: &PartitionId,
        actor: &ActorId,
    ) -> Result<bool, StoreError> {
        self.plan()?;
        let (partition, actor) = (partition.clone(), actor.clone());
        self.write(move |connection| {
            operating::delete_grant(connection, partition.as_str(), &actor)
        })
        .await
    }

    async fn plan_migration(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
    ) -> Result<MigrationPlan, StoreError> {
        let list = declarations.to_vec();
        self.readers
            .run_apart(move |connection| migrate::dry_run(connection, &schema, &list))
            .await
    }

    async fn sample_rows(
        &self,
        schema: Arc<Schema>,
        query: SampleQuery,
    ) -> Result<Vec<SampledRow>, StoreError> {
        self.readers
            .run_apart(move |connection| migrate::sample_rows(connection, &schema, &query))
            .await
    }

    async fn published_version(&self) -> Result<Option<SchemaVersion>, StoreError> {
        self.readers.run(migrate::published_version).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn ensure_schema_observed(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
        now_ms: i64,
        observer: Arc<dyn MigrationObserver>,
    ) -> Result<SchemaOutcome, StoreError> {
        let mut ensured = self.ensured.lock().await;
        let wanted = Ensured::new(Arc::clone(&schema), declarations);
        if ensured.as_ref().is_some_and(|done| done.covers(&wanted)) {
            return Ok(SchemaOutcome::Verified);
        }
        let plan = Arc::new(Plan::new(schema));
        let (running, list) = (Arc::clone(&plan), declarations.to_vec());
        let outcome = self
            .writer
            .run_alone(move |connection| {
                migrate::ensure(connection, &running, &list, now_ms, &*observer)
            })
            .await?;
        *self.plan.write() = Some(plan);
        *ensured = Some(wanted);
        Ok(outcome)
    }

    async fn read_preamble_ahead(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: Touch,
        ahead: Needs,
    ) -> Result<(Preamble, Option<Fetched>), StoreError> {
        let plan = self.plan()?;
        let read = |ahead| {
            let plan = Arc::clone(&plan);
            self.preambles
                .read(&self.readers, plan, partition, Some(client), ahead)
        };
        let found = read(ahead).await?;
        let known = found.registry.is_some();
        if found.is_fresh(&touch) {
            return found.registered();
        }
        let name = partition.clone();
        let write = move |connection: &rusqlite::Connection| {
            maintain::touch(connection, name.as_str(), &touch)
        };
        if known {
            // Nobody's answer depends on the refreshed time: the request does not wait for it.
            self.writer.offer(write);
            return found.registered();
        }
        self.write(write).await?;
        read(Needs::default()).await?.registered()
    }

    async fn read_gate(
        &self,
        partition: &PartitionId,
    ) -> Result<(GateToken, LogBounds), StoreError> {
        let plan = self.plan()?;
        let found = self
            .preambles
            .read(&self.readers, plan, partition, None, Needs::default())
            .await?;
        Ok((found.gate, found.view.bounds))
    }

    async fn read_needs(
        &self,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError> {
        let plan = self.plan()?;
        let (partition, needs) = (partition.clone(), needs.clone());
        self.readers
            .run(move |connection| {
                readers::in_one_view(connection, |connection| {
                    read::needs(connection, &plan, partition.as_str(), &needs)
                })
            })
            .await
    }

    async fn commit_batch(&self, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        let (settle, _) = chain();
        self.commit_chained(batch, None, settle).await.map(|_| ())
    }

    async fn commit_chained(
        &self,
        batch: Arc<CommitBatch>,
        after: Option<Link>,
        settle: Settle,
    ) -> Result<Option<Passed>, CommitError> {
        if let Some(after) = after {
            after.founded().await?;
        }
        let plan = self.plan()?;
        let weight = batch.commits.len().max(1);
        let written = self
            .writer
            .run(weight, move |connection| {
                commit::write_batch(connection, &plan, &batch)
            })
            .await;
        settle.settle(matches!(written, Ok(Ok(_))));
        match written {
            Ok(result) => result.map(Some),
            Err(Lost::NotQueued) => Err(StoreError::Closed.into()),
            Err(Lost::InFlight) => Err(CommitError::OutcomeUnknown(
                "the writer stopped with the batch in hand".into(),
            )),
        }
    }

    async fn record_clients(
        &self,
        partition: &PartitionId,
        clients: Vec<ClientRecord>,
    ) -> Result<(), StoreError> {
        let partition = partition.clone();
        self.write(move |connection| {
            commit::record_clients(connection, partition.as_str(), &clients)
        })
        .await
    }

    async fn snapshot(&self, partition: &PartitionId) -> Result<Box<dyn Snapshot>, StoreError> {
        let plan = self.plan()?;
        let name = partition.clone();
        let (lease, view) = self
            .readers
            .lease(move |connection| read::bounds(connection, name.as_str()))
            .await?;
        Ok(Box::new(SqliteSnapshot {
            lease: Some(lease),
            readers: Arc::clone(&self.readers),
            plan,
            partition: partition.clone(),
            view,
        }))
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: LogEpoch,
        now_ms: i64,
    ) -> Result<Registry, StoreError> {
        let partition = partition.clone();
        self.write(move |connection| {
            maintain::rotate_epoch(connection, partition.as_str(), &epoch, now_ms)
        })
        .await
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        through: CommitSeq,
    ) -> Result<Pruned, StoreError> {
        let (partition, epoch) = (partition.clone(), epoch.clone());
        self.write(move |connection| {
            maintain::prune(connection, partition.as_str(), &epoch, through)
        })
        .await
    }

    async fn commit_before(
        &self,
        partition: &PartitionId,
        created_before_ms: i64,
    ) -> Result<CommitSeq, StoreError> {
        let partition = partition.clone();
        self.readers
            .run(move |connection| {
                maintain::commit_before(connection, partition.as_str(), created_before_ms)
            })
            .await
    }

    async fn list_clients(&self, partition: &PartitionId) -> Result<Vec<ClientRecord>, StoreError> {
        let partition = partition.clone();
        self.readers
            .run(move |connection| maintain::list_clients(connection, partition.as_str()))
            .await
    }

    async fn list_partitions(&self) -> Result<Vec<PartitionId>, StoreError> {
        self.readers.run(maintain::list_partitions).await
    }

    async fn probe_write(&self) -> Result<(), StoreError> {
        self.write(maintain::probe_write).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.readers
            .run(|connection| {
                connection
                    .prepare_cached("PRAGMA schema_version")
                    .and_then(|mut statement| statement.query_row([], |_| Ok(())))
                    .map_err(failure::during("pinging the database"))
            })
            .await
    }

    async fn close(&self) {
        self.writer.stop().await;
        self.readers.stop();
        let (writer, readers) = (Arc::clone(&self.writer), Arc::clone(&self.readers));
        let joined = tokio::task::spawn_blocking(move || {
            let last = writer.join();
            readers.join();
            drop(last);
        });
        let _ = joined.await;
    }
}

struct SqliteSnapshot {
    /// `None` after a step whose caller stopped waiting.
    lease: Option<Lease>,
    readers: Arc<Readers>,
    plan: Arc<Plan>,
    partition: PartitionId,
    view: View,
}

impl SqliteSnapshot {
    async fn step<T, F>(&mut self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection, &Plan, &str) -> Result<T, StoreError> + Send + 'static,
    {
        let lease = self.lease.take().ok_or(StoreError::Closed)?;
        let (plan, partition) = (Arc::clone(&self.plan), self.partition.clone());
        let (lease, result) = self
            .readers
            .run_leased(lease, move |connection| {
                work(connection, &plan, partition.as_str())
            })
            .await?;
        self.lease = Some(lease);
        result
    }
}

#[async_trait]
impl Snapshot for SqliteSnapshot {
    fn bounds(&self) -> LogBounds {
        self.view.bounds
    }

    fn layout_floor(&self) -> CommitSeq {
        self.view.layout_floor
    }

    async fn read_window(&mut self, query: WindowQuery) -> Result<Window, StoreError> {
        self.step(move |connection, plan, partition| {
            window::read_window(connection, plan, partition, &query)
        })
        .await
    }

    async fn scan_rows(&mut self, query: ScanQuery) -> Result<RowPage, StoreError> {
        self.step(move |connection, plan, partition| {
            window::scan_rows(connection, plan, partition, &query)
        })
        .await
    }

    async fn read_range(&mut self, query: RangeQuery) -> Result<RowPage, StoreError> {
        self.step(move |connection, plan, partition| {
            source_rows::range(connection, plan, partition, &query)
        })
        .await
    }

    async fn read_rows(&mut self, keys: &[RowKey]) -> Result<Vec<(RowKey, StoredRow)>, StoreError> {
        let keys = keys.to_vec();
        self.step(move |connection, plan, partition| {
            source_rows::rows(connection, plan, partition, &keys)
        })
        .await
    }

    async fn read_changed_rows(
        &mut self,
        query: ChangedRowsQuery,
    ) -> Result<ChangedRows, StoreError> {
        self.step(move |connection, plan, partition| {
            source_rows::changed(connection, plan, partition, &query)
        })
        .await
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Reader threads end after what is queued; the writer's when its queue is gone.
        self.readers.stop();
    }
}

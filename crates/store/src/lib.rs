//! Durable storage: one async trait of whole operations, a SQLite and a Postgres
//! backend, and one contract suite for both. Tables, columns and encoded values
//! are an interface (docs/storage.md): a database of the reference server opens.
#![forbid(unsafe_code)]

mod chain;
mod checkpoints;
#[cfg(feature = "contract")]
pub mod contract;
mod ensured;
pub mod error;
pub mod failpoint;
mod locked;
#[cfg(feature = "test-store")]
pub mod memory;
mod migrating;
pub mod operating;
mod pages;
mod physical;
pub mod postgres;
mod preamble;
mod source_rows;
pub mod sqlite;
pub mod stored;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::{
    ClientRecord, CommitBatch, Fetched, LogBounds, LoggedCommit, Needs, Registry, RowKey, StoredRow,
};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion, TableId};

pub use chain::{Link, Settle, chain};
pub use checkpoints::{Activate, BackfillControl, CheckpointStore};
pub use error::{CommitError, StoreError, chain as error_chain};
pub use locked::LockedPartition;
pub use operating::{MigrationObserver, OperatorStore, Unobserved};

/// Everything a request must know first, read in one step.
#[derive(Debug, Clone)]
pub struct Preamble {
    /// Registry row; created by the read when the partition was never seen.
    pub registry: Registry,
    /// Gate token.
    pub gate: GateToken,
    /// Log bounds.
    pub bounds: LogBounds,
    /// Changes at or below it may have an older row layout. A pull whose window
    /// begins below it is answered by a reset, as below the horizon (see
    /// [`Preamble::pull_floor`]).
    pub layout_floor: CommitSeq,
    /// The client's record.
    pub client: Option<ClientRecord>,
}

impl Preamble {
    /// The lowest cursor that a pull may continue from: the horizon or the layout
    /// floor, whichever is higher.
    pub fn pull_floor(&self) -> CommitSeq {
        self.bounds.horizon.max(self.layout_floor)
    }
}

/// How [`Store::read_preamble`] keeps the registry row.
#[derive(Clone)]
pub struct Touch {
    /// Now, epoch milliseconds.
    pub now_ms: i64,
    /// Makes the epoch of a partition that has none yet: random, unpredictable.
    pub new_epoch: EpochSource,
    /// `last_authenticated_at_ms` is refreshed only when older than this many milliseconds.
    pub refresh_after_ms: i64,
}

/// The partitions that a declaration is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Partitions {
    /// That one.
    One(PartitionId),
    /// Every partition that the database knows when the migration holds its barrier:
    /// one that is registered later has no old rows.
    Every,
}

impl Partitions {
    /// Whether `partition` is one of them.
    pub fn contains(&self, partition: &str) -> bool {
        match self {
            Self::One(one) => one.as_str() == partition,
            Self::Every => true,
        }
    }
}

/// Makes log epochs; asked only when one is needed.
pub type EpochSource = Arc<dyn Fn() -> Result<LogEpoch, StoreError> + Send + Sync>;

/// A declared backfill checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declaration {
    /// Partitions.
    pub partitions: Partitions,
    /// Name, unique in the partition.
    pub name: String,
    /// Schema version it belongs to.
    pub schema_version: SchemaVersion,
}

/// What `ensure_schema` did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaOutcome {
    /// Stored version equalled ours and all checks passed.
    Verified,
    /// Migrated from the version inside (`None` = a new database).
    Migrated {
        /// Version found.
        from: Option<SchemaVersion>,
    },
}

/// A window of the log for one subscription.
#[derive(Debug, Clone)]
pub struct WindowQuery {
    /// Table.
    pub table: TableId,
    /// Effective scopes, non-empty.
    pub scopes: ssp2::ScopeLists,
    /// Exclusive start.
    pub after: CommitSeq,
    /// Inclusive end.
    pub through: CommitSeq,
    /// Changes at most; the first matching commit always fits, commits are never split.
    pub max_changes: usize,
    /// Bytes at most, as [`LoggedChange::bytes`] counts them; the first matching
    /// commit always fits. What lies beyond is not read into memory.
    ///
    /// [`LoggedChange::bytes`]: tidegate_engine::model::LoggedChange::bytes
    pub max_bytes: usize,
}

/// The answer to a [`WindowQuery`].
#[derive(Debug, Clone)]
pub struct Window {
    /// Commits with only their matching changes, oldest first, none empty.
    pub commits: Vec<LoggedCommit>,
    /// Highest commit scanned: `through`, or the last delivered one when truncated.
    pub scanned_through: CommitSeq,
}

/// A page of current rows for one subscription's bootstrap.
#[derive(Debug, Clone)]
pub struct ScanQuery {
    /// Table.
    pub table: TableId,
    /// Effective scopes, non-empty.
    pub scopes: ssp2::ScopeLists,
    /// Exclusive row id to start after.
    pub after_row_id: Option<String>,
    /// Rows at most.
    pub limit: usize,
    /// Bytes at most, as [`StoredRow::bytes`] counts them; the first row always
    /// fits. What lies beyond is not read into memory.
    pub max_bytes: usize,
}

/// A page of rows in ascending row id (byte) order.
#[derive(Debug, Clone)]
pub struct RowPage {
    /// Rows.
    pub rows: Vec<(String, StoredRow)>,
    /// Whether rows remain after the last one.
    pub more: bool,
}

/// One consistent view of a partition (Postgres: REPEATABLE READ; SQLite: one read
/// transaction). Dropping it ends it.
#[async_trait]
pub trait Snapshot: Send {
    /// Bounds in this view.
    fn bounds(&self) -> LogBounds;
    /// Layout floor in this view (see [`Preamble::layout_floor`]).
    fn layout_floor(&self) -> CommitSeq;
    /// A log window.
    async fn read_window(&mut self, query: WindowQuery) -> Result<Window, StoreError>;
    /// A page of rows.
    async fn scan_rows(&mut self, query: ScanQuery) -> Result<RowPage, StoreError>;
    /// A page of all rows of a table, whatever their scopes.
    ///
    /// # Errors
    /// Storage failures; a backend without checkpoints answers
    /// [`StoreError::CheckpointUnsupported`], here and below.
    async fn read_range(&mut self, _query: RangeQuery) -> Result<RowPage, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }
    /// The rows of those keys that are stored, in any order.
    ///
    /// # Errors
    /// As [`Snapshot::read_range`].
    async fn read_rows(
        &mut self,
        _keys: &[RowKey],
    ) -> Result<Vec<(RowKey, StoredRow)>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }
    /// The rows of some tables that the log names, each change in log order.
    ///
    /// # Errors
    /// As [`Snapshot::read_range`].
    async fn read_changed_rows(
        &mut self,
        _query: ChangedRowsQuery,
    ) -> Result<ChangedRows, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }
}

/// A page of a table's rows by row id, for the server's own work.
#[derive(Debug, Clone)]
pub struct RangeQuery {
    /// Table.
    pub table: TableId,
    /// Exclusive start; `None` = the first row.
    pub after: Option<Arc<str>>,
    /// Inclusive end; `None` = the last row.
    pub through: Option<Arc<str>>,
    /// Rows at most.
    pub limit: usize,
}

/// A window of the log, for the server's own work.
#[derive(Debug, Clone)]
pub struct ChangedRowsQuery {
    /// Tables of interest.
    pub tables: Vec<TableId>,
    /// Exclusive start.
    pub after: CommitSeq,
    /// Inclusive end.
    pub through: CommitSeq,
    /// Changes at most; the first commit always fits, commits are never split.
    pub max_changes: usize,
}

/// The answer to a [`ChangedRowsQuery`].
#[derive(Debug, Clone)]
pub struct ChangedRows {
    /// Rows by commit, each commit whole.
    pub changes: Vec<(CommitSeq, RowKey)>,
    /// Highest commit read: `through`, or the last one that fitted.
    pub scanned_through: CommitSeq,
}

/// A storage backend. All methods are whole operations; none needs another to be
/// complete. Implementations are cheap to share (`Arc<dyn Store>`).
#[async_trait]
pub trait Store: CheckpointStore + OperatorStore + 'static {
    /// Prepares the database for `schema` (migrations.md rule 1): core tables,
    /// stored-layout and physical checks, or the migration itself in one transaction.
    async fn ensure_schema(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
        now_ms: i64,
    ) -> Result<SchemaOutcome, StoreError> {
        self.ensure_schema_observed(schema, declarations, now_ms, Arc::new(Unobserved))
            .await
    }

    /// [`Store::ensure_schema`], telling how far it is.
    async fn ensure_schema_observed(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
        now_ms: i64,
        observer: Arc<dyn MigrationObserver>,
    ) -> Result<SchemaOutcome, StoreError>;

    /// Registry row (created or refreshed), gate token, bounds and client record: one round trip.
    async fn read_preamble(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: Touch,
    ) -> Result<Preamble, StoreError> {
        let nothing = Needs::default();
        let read = self.read_preamble_ahead(partition, client, touch, nothing);
        Ok(read.await?.0)
    }

    /// [`Store::read_preamble`], and in the same round trip what the request's commits
    /// will need: rows and results, no children. `None` = it was not read with it; the
    /// batch reads it then. As in [`Store::read_needs`] nothing read is older than `max`.
    async fn read_preamble_ahead(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: Touch,
        ahead: Needs,
    ) -> Result<(Preamble, Option<Fetched>), StoreError>;

    /// The gate token and the bounds, fresh.
    async fn read_gate(
        &self,
        partition: &PartitionId,
    ) -> Result<(GateToken, LogBounds), StoreError>;

    /// Rows, results and children that a batch of pushes needs; `max` is read first.
    async fn read_needs(
        &self,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError>;

    /// Writes a group commit durably, or nothing of it.
    async fn commit_batch(&self, batch: Arc<CommitBatch>) -> Result<(), CommitError>;

    /// [`Store::commit_batch`] for a batch that was decided on top of another one while
    /// that was being written: it is written right after that one, and only if that one
    /// is durable. Tells its own outcome through `settle`, at the latest when it returns.
    ///
    /// # Errors
    /// [`CommitError::Unfounded`], having written nothing, when the one before is not
    /// durable; else as [`Store::commit_batch`].
    ///
    /// Returns what its gate saw, if it tells.
    async fn commit_chained(
        &self,
        batch: Arc<CommitBatch>,
        after: Option<Link>,
        settle: Settle,
    ) -> Result<Option<Passed>, CommitError> {
        if let Some(after) = after {
            after.founded().await?;
        }
        let written = self.commit_batch(batch).await;
        settle.settle(written.is_ok());
        written.map(|()| None)
    }

    /// Whether a chained batch is as a rule on its way to the database before the one
    /// before it has ended, so that it gains to be decided early. Where it waits here
    /// instead, it gains by taking more along.
    fn sends_ahead(&self) -> bool {
        false
    }

    /// Begins a pessimistic commit: where the backend can, nobody else commits to
    /// the partition until the value is committed or dropped. For a partition
    /// that others write to as well, after a lost CAS: the CAS alone starves
    /// beside a writer that locks the row first. Without such locks it is
    /// [`Store::read_needs`] and [`Store::commit_batch`].
    async fn begin_locked<'a>(
        &'a self,
        partition: &PartitionId,
    ) -> Result<Box<dyn LockedPartition + 'a>, StoreError> {
        Ok(Box::new(locked::Unlocked::new(self, partition)))
    }

    /// Upserts client records (outside of a commit). A record never changes the actor a client is bound to.
    async fn record_clients(
        &self,
        partition: &PartitionId,
        clients: Vec<ClientRecord>,
    ) -> Result<(), StoreError>;

    /// A consistent view for a pull's data.
    async fn snapshot(&self, partition: &PartitionId) -> Result<Box<dyn Snapshot>, StoreError>;

    /// Rotates the log epoch after a restore: epoch validation becomes required, client records go.
    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: LogEpoch,
        now_ms: i64,
    ) -> Result<Registry, StoreError>;

    /// Prunes the log up to `through` if the epoch still is `epoch` (storage.md).
    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        through: CommitSeq,
    ) -> Result<Pruned, StoreError>;

    /// Newest commit created strictly before that time; 0 if none.
    async fn commit_before(
        &self,
        partition: &PartitionId,
        created_before_ms: i64,
    ) -> Result<CommitSeq, StoreError>;

    /// All client records of a partition.
    async fn list_clients(&self, partition: &PartitionId) -> Result<Vec<ClientRecord>, StoreError>;

    /// All registered partitions.
    async fn list_partitions(&self) -> Result<Vec<PartitionId>, StoreError>;

    /// Answers when the database does (readiness probe).
    async fn ping(&self) -> Result<(), StoreError>;

    /// Writes something that changes nothing, durably: whether writes succeed again
    /// after one failed. Costs what a small commit costs.
    async fn probe_write(&self) -> Result<(), StoreError> {
        self.ping().await
    }

    /// Finishes queued work and closes connections.
    async fn close(&self);
}

/// What a batch's own gate saw, inside its transaction: as good as a gate token read once
/// the batch was durable, for no migration gets in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// The token.
    pub token: GateToken,
    /// The log's bounds, the batch's own commits included.
    pub bounds: LogBounds,
}

/// What a prune did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Horizon before.
    pub previous: CommitSeq,
    /// Horizon now; never lower.
    pub horizon: CommitSeq,
    /// Commits removed.
    pub removed: u64,
}

/// `(partition, name)` of every checkpoint that this process declares.
pub type Declared = Arc<BTreeSet<(String, String)>>;

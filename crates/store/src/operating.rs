//! What operating a service needs from a backend: grants, partitions at a glance,
//! and what a migration would do before it does it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ssp2::ScopeLists;
use tidegate_engine::model::{LogBounds, Registry};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, PartitionId, SchemaVersion, TableId};

use crate::error::StoreError;

/// A partition at a glance.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionSummary {
    /// Partition.
    pub id: PartitionId,
    /// Registry row; `None` for a partition that another program made.
    pub registry: Option<Registry>,
    /// Epoch milliseconds of its last authentication, coalesced to a few seconds.
    pub last_authenticated_at_ms: Option<i64>,
    /// Log bounds.
    pub bounds: LogBounds,
    /// Writer version that the fence requires.
    pub fence: Option<SchemaVersion>,
}

/// What an actor may see and write in a partition (`tidegate_grants`).
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Actor.
    pub actor: ActorId,
    /// Allowed scope values by variable; `*` is any value.
    pub scopes: ScopeLists,
    /// Epoch milliseconds of the last change.
    pub updated_at_ms: i64,
}

/// What a migration would do.
#[derive(Debug, Clone, PartialEq)]
pub struct MigrationPlan {
    /// Published version; `None` = a new database.
    pub from: Option<SchemaVersion>,
    /// Version of the schema.
    pub to: SchemaVersion,
    /// One per table that changes, in the order they are migrated.
    pub tables: Vec<TablePlan>,
    /// Statements in order, without the rewrite of rows.
    pub ddl: Vec<String>,
    /// Locks the migration takes, for people.
    pub locks: Vec<String>,
    /// Checkpoints it would install.
    pub declarations: Vec<(PartitionId, String)>,
}

/// A table of a [`MigrationPlan`].
#[derive(Debug, Clone, PartialEq)]
pub struct TablePlan {
    /// Table.
    pub table: String,
    /// What happens to it.
    pub change: TableFate,
    /// Rows whose payload is rewritten, counted.
    pub rows_to_rewrite: u64,
}

/// What happens to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFate {
    /// It is new.
    Created,
    /// Columns are appended.
    Appended,
    /// It is dropped.
    Retired,
    /// Indexes alone.
    Reindexed,
}

/// How far a running migration is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationStep {
    /// Waits for the barrier.
    WaitingForBarrier,
    /// Holds it.
    BarrierHeld,
    /// A table's rows are rewritten.
    Rewriting {
        /// Table.
        table: String,
        /// Rows done.
        rows_done: u64,
        /// Rows in all.
        rows_total: u64,
    },
    /// Everything is done, the transaction commits.
    Publishing,
}

/// Which rows [`OperatorStore::sample_rows`] reads.
#[derive(Debug, Clone)]
pub struct SampleQuery {
    /// Table.
    pub table: TableId,
    /// Of that partition alone.
    pub partition: Option<PartitionId>,
    /// Rows at most, in key order.
    pub limit: usize,
}

/// A row as the schema lays it out, whatever the database's layout is.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledRow {
    /// Partition.
    pub partition: PartitionId,
    /// Row id.
    pub row_id: String,
    /// Full row (§2.4) in the layout of the schema.
    pub payload: Bytes,
}

/// Who hears how far a migration is. Called from the store's own thread: quick.
pub trait MigrationObserver: Send + Sync {
    /// The migration came to that step.
    fn step(&self, step: MigrationStep);
}

/// Nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl MigrationObserver for Unobserved {
    fn step(&self, _: MigrationStep) {}
}

/// Operations for operators. The provided methods are those of a backend without them.
#[async_trait]
pub trait OperatorStore: Send + Sync {
    /// Partitions by id, after one, at most `limit`.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn summarize_partitions(
        &self,
        _after: Option<&PartitionId>,
        _limit: usize,
    ) -> Result<Vec<PartitionSummary>, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// One partition.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn summarize_partition(
        &self,
        _partition: &PartitionId,
    ) -> Result<Option<PartitionSummary>, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// An actor's grant; `None` = none, the actor holds nothing.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn read_grant(
        &self,
        _partition: &PartitionId,
        _actor: &ActorId,
    ) -> Result<Option<Grant>, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// Creates or replaces a grant.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn put_grant(&self, _partition: &PartitionId, _grant: &Grant) -> Result<(), StoreError> {
        Err(StoreError::Unsupported)
    }

    /// Deletes a grant; whether there was one.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn delete_grant(
        &self,
        _partition: &PartitionId,
        _actor: &ActorId,
    ) -> Result<bool, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// What `ensure_schema` would do now; changes nothing.
    ///
    /// # Errors
    /// The refusals of `ensure_schema`.
    async fn plan_migration(
        &self,
        _schema: Arc<Schema>,
        _declarations: &[crate::Declaration],
    ) -> Result<MigrationPlan, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// Rows in the layout of `schema`, also of a database that is still to be migrated
    /// to it: columns to be appended are NULL, a table to be created is empty. Needs no
    /// prepared schema and changes nothing.
    ///
    /// # Errors
    /// The refusals of `ensure_schema` for the table's layout.
    async fn sample_rows(
        &self,
        _schema: Arc<Schema>,
        _query: SampleQuery,
    ) -> Result<Vec<SampledRow>, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// The published schema version; `None` = a new database. Needs no prepared schema.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn published_version(&self) -> Result<Option<SchemaVersion>, StoreError> {
        Err(StoreError::Unsupported)
    }
}

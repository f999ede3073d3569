//! What a backend does for declared backfills (migrations.md rules 2 to 8): the
//! life of checkpoints and fences, and the reads that a worker needs.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_engine::backfill::checkpoint::{
    Activation, Advance, Checkpoint, CheckpointError, Coverage, Declare,
};
use tidegate_engine::backfill::pacing::Pace;
use tidegate_engine::backfill::scan::PageId;
use tidegate_engine::{CommitSeq, OwnerEpoch, PartitionId, SchemaVersion};

use crate::error::StoreError;

/// Asks for an activation (rule 7).
#[derive(Debug, Clone)]
pub struct Activate {
    /// Partition.
    pub partition: PartitionId,
    /// Checkpoint name.
    pub name: Arc<str>,
    /// The epoch of the caller's claim; 0 for a checkpoint that nobody claimed.
    pub owner_epoch: OwnerEpoch,
    /// The watermark to judge and to store.
    pub watermark: CommitSeq,
    /// Names of the source tables.
    pub sources: Vec<String>,
    /// Now, epoch milliseconds.
    pub now_ms: i64,
}

/// What an operator set for a checkpoint, and why its worker stopped: kept in the
/// database, so that it outlives the process.
#[derive(Debug, Clone, PartialEq)]
pub struct BackfillControl {
    /// Partition.
    pub partition: PartitionId,
    /// Checkpoint name.
    pub name: Arc<str>,
    /// Whether no worker may run.
    pub paused: bool,
    /// Workers wanted, at least 1 unless paused.
    pub workers: u32,
    /// Pace; `None` = the configured one.
    pub pace: Option<Pace>,
    /// Why the last worker stopped; gone when one goes on.
    pub last_error: Option<String>,
    /// Epoch milliseconds.
    pub updated_at_ms: i64,
}

impl From<CheckpointError> for StoreError {
    fn from(refusal: CheckpointError) -> Self {
        match refusal {
            CheckpointError::NotDeclared => Self::CheckpointNotDeclared,
            CheckpointError::FenceMissing => Self::CheckpointFenceMissing,
            CheckpointError::VersionTaken { name, existing } => Self::CheckpointVersionTaken {
                name: name.to_string(),
                existing,
            },
        }
    }
}

/// A table that the running schema does not have.
pub(crate) fn unknown_table() -> StoreError {
    StoreError::failed("finding a backfill's table", "no such table")
}

/// Checkpoints and fences of a backend. Each operation is one transaction and
/// agrees on every outcome with [`tidegate_engine::backfill::model::Model`].
///
/// A backend that cannot fence other writers keeps the provided methods: each
/// answers [`StoreError::CheckpointUnsupported`] (rule 10).
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// Declares a checkpoint and raises the fence (rule 2). The row as it is stored
    /// afterwards.
    ///
    /// # Errors
    /// [`StoreError::CheckpointVersionTaken`]; nothing changed then.
    async fn declare_checkpoint(
        &self,
        _wanted: &Declare,
        _now_ms: i64,
    ) -> Result<Checkpoint, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Claims a checkpoint (rule 4): the new owner's row.
    ///
    /// # Errors
    /// [`StoreError::CheckpointNotDeclared`]
    async fn claim_checkpoint(
        &self,
        _partition: &PartitionId,
        _name: &str,
        _version: SchemaVersion,
        _now_ms: i64,
    ) -> Result<Checkpoint, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Advances a checkpoint without a page (rule 5); `false` = superseded, nothing written.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn advance_checkpoint(
        &self,
        _partition: &PartitionId,
        _name: &str,
        _to: Advance,
        _now_ms: i64,
    ) -> Result<bool, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Activates a checkpoint (rule 7) while nobody commits to its partition: the
    /// partition's row is locked for the length of the transaction.
    ///
    /// # Errors
    /// [`StoreError::CheckpointFenceMissing`]
    async fn activate_checkpoint(&self, _request: &Activate) -> Result<Activation, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// One checkpoint.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn read_checkpoint(
        &self,
        _partition: &PartitionId,
        _name: &str,
    ) -> Result<Option<Checkpoint>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Checkpoints of one partition, or of all, by (partition, name).
    ///
    /// # Errors
    /// Storage failures alone.
    async fn list_checkpoints(
        &self,
        _partition: Option<&PartitionId>,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Highest commit in the log that touches one of `tables`; 0 = none (rule 6).
    ///
    /// # Errors
    /// Storage failures alone.
    async fn source_coverage_seq(
        &self,
        _partition: &PartitionId,
        _tables: &[&str],
    ) -> Result<CommitSeq, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Whether one of `tables` changed above `seq` (rule 6). Horizon and window are
    /// read in one statement: a prune cannot come between them.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn has_source_changes_above(
        &self,
        _partition: &PartitionId,
        _tables: &[&str],
        _seq: CommitSeq,
    ) -> Result<Coverage, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// The writer version that the fence requires; `None` = no fence.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn read_fence(
        &self,
        _partition: &PartitionId,
    ) -> Result<Option<SchemaVersion>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Raises the fence; it never falls. The version it requires afterwards.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn raise_fence(
        &self,
        _partition: &PartitionId,
        _required: SchemaVersion,
    ) -> Result<SchemaVersion, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// The pages of a backfill that were committed, oldest first, by their stored
    /// results: what [`tidegate_engine::backfill::scan::resume`] starts from. Bounded
    /// in what it holds by the pages of the newest scan and of the newest catch-up.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn backfill_pages(
        &self,
        _partition: &PartitionId,
        _name: &str,
    ) -> Result<Vec<PageId>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Rows of a table in a partition, counted.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn count_rows(&self, _partition: &PartitionId, _table: &str) -> Result<u64, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// About `wanted` row ids of a table, ascending and evenly spread over it, to
    /// split a scan among workers.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn sample_row_ids(
        &self,
        _partition: &PartitionId,
        _table: &str,
        _wanted: usize,
    ) -> Result<Vec<Arc<str>>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// What operators set, of one partition or of all, by (partition, name).
    ///
    /// # Errors
    /// Storage failures alone.
    async fn list_backfill_controls(
        &self,
        _partition: Option<&PartitionId>,
    ) -> Result<Vec<BackfillControl>, StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }

    /// Stores what an operator set, or why a worker stopped.
    ///
    /// # Errors
    /// Storage failures alone.
    async fn put_backfill_control(&self, _control: &BackfillControl) -> Result<(), StoreError> {
        Err(StoreError::CheckpointUnsupported)
    }
}

//! A small in-memory database of checkpoints, fences and source changes, with the
//! operations a backend has. It is the yardstick of backends: after the same
//! calls both answer the same and hold the same rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checkpoint::{
    self, Activation, Advance, Checkpoint, CheckpointError, Coverage, Declare,
};
use crate::gate::PendingCheckpoint;
use crate::ids::{CommitSeq, OwnerEpoch, PartitionId, SchemaVersion};

/// The writer fence refused a commit: `sync.storage.writer_fence_rejected`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the writer fence refuses this writer's version")]
pub struct FenceRejected;

/// The database.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Model {
    partitions: BTreeMap<PartitionId, Partition>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Partition {
    checkpoints: BTreeMap<Arc<str>, Checkpoint>,
    fence: Option<SchemaVersion>,
    max: CommitSeq,
    horizon: CommitSeq,
    /// The tables that each commit above the horizon changed.
    log: BTreeMap<CommitSeq, BTreeSet<String>>,
}

impl Partition {
    fn newest_change(&self, tables: &[&str]) -> Option<CommitSeq> {
        let mut newest_first = self.log.iter().rev();
        newest_first
            .find(|(_, changed)| tables.iter().any(|table| changed.contains(*table)))
            .map(|(seq, _)| *seq)
    }

    fn coverage_above(&self, tables: &[&str], seq: CommitSeq) -> Coverage {
        checkpoint::coverage(tables.len(), self.horizon, self.newest_change(tables), seq)
    }
}

impl Model {
    /// Appends a commit that changes `tables`, as the fence allows.
    ///
    /// # Errors
    /// [`FenceRejected`]; no sequence number is used.
    pub fn append(
        &mut self,
        partition: &PartitionId,
        writer: Option<SchemaVersion>,
        tables: &[&str],
    ) -> Result<CommitSeq, FenceRejected> {
        let state = self.partitions.entry(partition.clone()).or_default();
        if !checkpoint::writer_passes(state.fence, writer) {
            return Err(FenceRejected);
        }
        state.max = state.max.next();
        let tables = tables.iter().map(|table| (*table).to_owned()).collect();
        state.log.insert(state.max, tables);
        Ok(state.max)
    }

    /// Prunes the log; the horizon only rises, and never past the newest commit.
    pub fn prune(&mut self, partition: &PartitionId, through: CommitSeq) -> CommitSeq {
        let state = self.partitions.entry(partition.clone()).or_default();
        state.horizon = state.horizon.max(through.min(state.max));
        state.log = state.log.split_off(&state.horizon.next());
        state.horizon
    }

    /// The newest commit.
    pub fn max(&self, partition: &PartitionId) -> CommitSeq {
        self.partitions
            .get(partition)
            .map_or(CommitSeq(0), |state| state.max)
    }

    /// The fence of a partition.
    pub fn fence(&self, partition: &PartitionId) -> Option<SchemaVersion> {
        self.partitions.get(partition)?.fence
    }

    /// Raises a fence by hand; it never falls.
    pub fn raise_fence(
        &mut self,
        partition: &PartitionId,
        required: SchemaVersion,
    ) -> SchemaVersion {
        let state = self.partitions.entry(partition.clone()).or_default();
        let raised = checkpoint::raised_fence(state.fence, required);
        state.fence = Some(raised);
        raised
    }

    /// The checkpoints of a partition by name.
    pub fn checkpoints(&self, partition: &PartitionId) -> impl Iterator<Item = &Checkpoint> {
        self.partitions
            .get(partition)
            .into_iter()
            .flat_map(|state| state.checkpoints.values())
    }

    /// One checkpoint.
    pub fn checkpoint(&self, partition: &PartitionId, name: &str) -> Option<&Checkpoint> {
        self.partitions.get(partition)?.checkpoints.get(name)
    }

    /// Every incomplete checkpoint of that schema version in any partition, as the
    /// gate token lists them (rule 8).
    pub fn pending(&self, version: SchemaVersion) -> Vec<PendingCheckpoint> {
        self.partitions
            .values()
            .flat_map(|state| state.checkpoints.values())
            .filter(|found| found.state.is_incomplete() && found.schema_version == version)
            .map(|found| PendingCheckpoint {
                partition: found.partition.as_str().to_owned(),
                name: found.name.to_string(),
            })
            .collect()
    }

    /// Declares a checkpoint and raises the fence, together (rule 2).
    ///
    /// # Errors
    /// See [`checkpoint::declare`]; the fence then stays.
    pub fn declare(
        &mut self,
        wanted: &Declare,
        now_ms: i64,
    ) -> Result<Checkpoint, CheckpointError> {
        let existing = self.checkpoint(&wanted.partition, &wanted.name);
        let declared = checkpoint::declare(existing, wanted, now_ms)?;
        self.store(declared.clone());
        self.raise_fence(&wanted.partition, wanted.schema_version);
        Ok(declared)
    }

    /// Claims a checkpoint (rule 4).
    ///
    /// # Errors
    /// See [`checkpoint::claim`].
    pub fn claim(
        &mut self,
        partition: &PartitionId,
        name: &str,
        version: SchemaVersion,
        now_ms: i64,
    ) -> Result<Checkpoint, CheckpointError> {
        let claimed = checkpoint::claim(self.checkpoint(partition, name), version, now_ms)?;
        self.store(claimed.clone());
        Ok(claimed)
    }

    /// Advances a checkpoint (rule 5); `false` = superseded, nothing written.
    pub fn advance(
        &mut self,
        partition: &PartitionId,
        name: &str,
        to: Advance,
        now_ms: i64,
    ) -> bool {
        let advanced = checkpoint::advance(self.checkpoint(partition, name), to, now_ms);
        advanced.map(|row| self.store(row)).is_some()
    }

    /// The highest commit in the log that touches `tables`; 0 when none (rule 6).
    pub fn source_coverage_seq(&self, partition: &PartitionId, tables: &[&str]) -> CommitSeq {
        self.partitions
            .get(partition)
            .and_then(|state| state.newest_change(tables))
            .unwrap_or_default()
    }

    /// Whether a source changed above `seq` (rule 6).
    pub fn has_source_changes_above(
        &self,
        partition: &PartitionId,
        tables: &[&str],
        seq: CommitSeq,
    ) -> Coverage {
        self.partitions
            .get(partition)
            .map_or(Coverage::Clean, |state| state.coverage_above(tables, seq))
    }

    /// Activates a checkpoint (rule 7).
    ///
    /// # Errors
    /// See [`checkpoint::activate`].
    pub fn activate(
        &mut self,
        partition: &PartitionId,
        name: &str,
        owner_epoch: OwnerEpoch,
        watermark: CommitSeq,
        sources: &[&str],
        now_ms: i64,
    ) -> Result<Activation, CheckpointError> {
        let above = self.has_source_changes_above(partition, sources, watermark);
        let outcome = checkpoint::activate(
            self.checkpoint(partition, name),
            self.fence(partition),
            above,
            owner_epoch,
            watermark,
            now_ms,
        )?;
        if let Activation::Activated(row) = &outcome {
            self.store(row.clone());
        }
        Ok(outcome)
    }

    fn store(&mut self, row: Checkpoint) {
        let state = self.partitions.entry(row.partition.clone()).or_default();
        state.checkpoints.insert(Arc::clone(&row.name), row);
    }
}

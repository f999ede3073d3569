//! The serve gate (migrations.md rule 8): may this process answer, given what the
//! database says now?
//!
//! A token is read on entry, inside the push's transaction, and again after every
//! data read. [`refusal`] judges one token; [`judge_after`] judges the second one
//! of a pair, so that no answer mixes two schemas or two logs.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};
use ssp2::{ErrorCode, SyncError};

use crate::ids::{LogEpoch, SchemaVersion};

/// A gate token: read fresh on entry and again after every data read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateToken {
    /// Published schema version; 0 = none yet.
    pub stored_version: SchemaVersion,
    /// Log epoch of the request's partition.
    pub log_epoch: Option<LogEpoch>,
    /// Every incomplete checkpoint at our version, in any partition.
    pub pending: Vec<PendingCheckpoint>,
}

/// An incomplete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingCheckpoint {
    /// Partition.
    pub partition: String,
    /// Checkpoint name.
    pub name: String,
}

/// Why a request is not served. Always `sync.schema_not_ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateRefusal {
    /// The database is at a schema version that this process does not know.
    NewerSchema {
        /// Published.
        stored: SchemaVersion,
        /// Ours.
        running: SchemaVersion,
    },
    /// A checkpoint is incomplete and this process does not declare it.
    CheckpointPending(PendingCheckpoint),
    /// The published version or the log epoch changed between two reads.
    EpochChanged,
}

/// Judges one token: the schema first, then each pending checkpoint.
///
/// `declared` holds `(partition, name)` of every checkpoint that this process
/// declares; a process serves while its own checkpoints backfill.
pub fn refusal(
    token: &GateToken,
    running: SchemaVersion,
    declared: &BTreeSet<(String, String)>,
) -> Option<GateRefusal> {
    if token.stored_version > running {
        return Some(GateRefusal::NewerSchema {
            stored: token.stored_version,
            running,
        });
    }
    token
        .pending
        .iter()
        .find(|pending| {
            !declared
                .iter()
                .any(|(partition, name)| *partition == pending.partition && *name == pending.name)
        })
        .cloned()
        .map(GateRefusal::CheckpointPending)
}

/// Whether the published version or the log epoch moved between two tokens. The
/// epoch is what betrays a restore that went from a version to another and back.
/// A pending set that merely changed is no refusal.
pub fn changed(before: &GateToken, after: &GateToken) -> Option<GateRefusal> {
    (before.stored_version != after.stored_version || before.log_epoch != after.log_epoch)
        .then_some(GateRefusal::EpochChanged)
}

/// Judges the token taken after a data read: the ordinary refusals on it first,
/// then whether it moved since `before`.
pub fn judge_after(
    before: &GateToken,
    after: &GateToken,
    running: SchemaVersion,
    declared: &BTreeSet<(String, String)>,
) -> Option<GateRefusal> {
    refusal(after, running, declared).or_else(|| changed(before, after))
}

impl GateRefusal {
    /// The structured details of the error.
    pub fn details(&self) -> Map<String, Json> {
        let mut details = Map::new();
        match self {
            Self::NewerSchema { stored, running } => {
                details.insert("storedSchemaVersion".into(), stored.0.into());
                details.insert("runningSchemaVersion".into(), running.0.into());
            }
            Self::CheckpointPending(pending) => {
                details.insert("partition".into(), pending.partition.as_str().into());
                details.insert("projection".into(), pending.name.as_str().into());
            }
            Self::EpochChanged => {
                details.insert("logEpochChanged".into(), true.into());
            }
        }
        details
    }
}

impl From<GateRefusal> for SyncError {
    fn from(refusal: GateRefusal) -> Self {
        Self::new(
            ErrorCode::SchemaNotReady,
            "server schema is not ready for this request",
        )
        .with_details(refusal.details())
    }
}

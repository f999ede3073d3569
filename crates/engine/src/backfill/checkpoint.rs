//! The life of a backfill checkpoint and of the writer fence (migrations.md rules
//! 2 to 7), as functions from what is stored to what is stored next. A backend
//! runs the same transitions in SQL; [`super::model::Model`] runs these, and the
//! two must agree on every outcome.

use std::fmt;
use std::sync::Arc;

use crate::ids::{CommitSeq, OwnerEpoch, PartitionId, SchemaVersion};

/// Where a checkpoint stands. `Activated` is final for its schema version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointState {
    /// Declared and fenced, nobody works on it.
    Declared,
    /// Claimed at least once.
    Backfilling,
    /// Proven complete.
    Activated,
}

impl CheckpointState {
    /// The stored text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Backfilling => "backfilling",
            Self::Activated => "activated",
        }
    }

    /// Reads the stored text.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Declared, Self::Backfilling, Self::Activated]
            .into_iter()
            .find(|state| state.as_str() == text)
    }

    /// Whether a checkpoint in this state keeps the serve gate shut (rule 8).
    pub const fn is_incomplete(self) -> bool {
        !matches!(self, Self::Activated)
    }
}

impl fmt::Display for CheckpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A row of `sync_backfill_checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checkpoint {
    /// Partition.
    pub partition: PartitionId,
    /// Name, unique in the partition.
    pub name: Arc<str>,
    /// The one schema version it belongs to.
    pub schema_version: SchemaVersion,
    /// State.
    pub state: CheckpointState,
    /// Highest source commit that the projection is computed through; 0 while the
    /// first scan is unfinished.
    pub watermark: CommitSeq,
    /// Claim counter: only the owner that holds it may advance.
    pub owner_epoch: OwnerEpoch,
    /// Source rows seen by the running scan, a total and no increment.
    pub observed_rows: i64,
    /// Epoch milliseconds of the last change.
    pub updated_at_ms: i64,
}

/// Why a checkpoint operation is refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Nothing claimable: absent, activated or of another schema version.
    #[error("no such claimable checkpoint")]
    NotDeclared,
    /// The fence that an activation stands on is missing or too low.
    #[error("the writer fence of the checkpoint is missing or too low")]
    FenceMissing,
    /// The name belongs to another schema version.
    #[error("checkpoint {name} belongs to schema version {}", existing.0)]
    VersionTaken {
        /// Name.
        name: Arc<str>,
        /// The version it belongs to.
        existing: SchemaVersion,
    },
}

impl CheckpointError {
    /// The storage code, where the interface has one.
    pub const fn code(&self) -> Option<&'static str> {
        match self {
            Self::NotDeclared => Some("sync.storage.checkpoint_not_declared"),
            Self::FenceMissing => Some("sync.storage.checkpoint_fence_missing"),
            Self::VersionTaken { .. } => None,
        }
    }
}

/// What a declaration asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declare {
    /// Partition.
    pub partition: PartitionId,
    /// Name.
    pub name: Arc<str>,
    /// Schema version, also the fence that is raised.
    pub schema_version: SchemaVersion,
}

/// Declares a checkpoint (rule 2): an existing row of the same version stays as it
/// is, activated included. The fence is raised in the same transaction, see
/// [`raised_fence`].
///
/// # Errors
/// [`CheckpointError::VersionTaken`] when the name belongs to another version:
/// its fence would rise while nothing is pending.
pub fn declare(
    existing: Option<&Checkpoint>,
    wanted: &Declare,
    now_ms: i64,
) -> Result<Checkpoint, CheckpointError> {
    match existing {
        Some(checkpoint) if checkpoint.schema_version == wanted.schema_version => {
            Ok(checkpoint.clone())
        }
        Some(checkpoint) => Err(CheckpointError::VersionTaken {
            name: Arc::clone(&wanted.name),
            existing: checkpoint.schema_version,
        }),
        None => Ok(Checkpoint {
            partition: wanted.partition.clone(),
            name: Arc::clone(&wanted.name),
            schema_version: wanted.schema_version,
            state: CheckpointState::Declared,
            watermark: CommitSeq(0),
            owner_epoch: OwnerEpoch(0),
            observed_rows: 0,
            updated_at_ms: now_ms,
        }),
    }
}

/// The fence after a declaration (rule 2): it never falls.
pub fn raised_fence(current: Option<SchemaVersion>, required: SchemaVersion) -> SchemaVersion {
    current.map_or(required, |current| current.max(required))
}

/// Whether the fence lets a commit pass (rule 3): without a fence everything
/// passes; behind one, a writer that names no version is an old writer.
pub fn writer_passes(fence: Option<SchemaVersion>, writer: Option<SchemaVersion>) -> bool {
    match (fence, writer) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(required), Some(writer)) => writer >= required,
    }
}

/// Claims a checkpoint (rule 4): the epoch grows by one, whoever held it is
/// superseded. The watermark and the rows counted so far stay.
///
/// # Errors
/// [`CheckpointError::NotDeclared`] when it is absent, activated or of another
/// schema version than the claimer's.
pub fn claim(
    existing: Option<&Checkpoint>,
    schema_version: SchemaVersion,
    now_ms: i64,
) -> Result<Checkpoint, CheckpointError> {
    let checkpoint = existing
        .filter(|found| found.state.is_incomplete() && found.schema_version == schema_version)
        .ok_or(CheckpointError::NotDeclared)?;
    let epoch = checkpoint.owner_epoch.0.checked_add(1);
    Ok(Checkpoint {
        state: CheckpointState::Backfilling,
        owner_epoch: OwnerEpoch(epoch.ok_or(CheckpointError::NotDeclared)?),
        updated_at_ms: now_ms,
        ..checkpoint.clone()
    })
}

/// How far an owner has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Advance {
    /// The epoch of the caller's claim.
    pub owner_epoch: OwnerEpoch,
    /// Watermark to store.
    pub watermark: CommitSeq,
    /// Rows seen in all, not since the last advance.
    pub observed_rows: i64,
}

/// Advances a checkpoint (rule 5): a compare-and-set on the owner's epoch and the
/// state `backfilling`. `None` = superseded or activated: write nothing, and the
/// page that carried it is dropped whole. Never an error.
pub fn advance(existing: Option<&Checkpoint>, to: Advance, now_ms: i64) -> Option<Checkpoint> {
    let checkpoint = existing.filter(|found| {
        found.state == CheckpointState::Backfilling && found.owner_epoch == to.owner_epoch
    })?;
    Some(Checkpoint {
        watermark: to.watermark,
        observed_rows: to.observed_rows,
        updated_at_ms: now_ms,
        ..checkpoint.clone()
    })
}

/// What the log says of source changes above a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coverage {
    /// None, and the log is whole from there on.
    Clean,
    /// At least one.
    Changed,
    /// None is left, but the log was pruned past the position: nothing is proven.
    Unverifiable,
}

/// Judges the log above `seq` (rule 6) from the pruning horizon and the newest
/// commit in the log that touches a source. A pruned window is never clean.
///
/// Both must come from one snapshot, or the horizon from a later read than the
/// window: a prune between a horizon read first and the window removes the very
/// changes that are looked for, and the old horizon still vouches for them.
///
/// A list without sources has nothing to change: clean.
pub fn coverage(
    sources: usize,
    horizon: CommitSeq,
    newest: Option<CommitSeq>,
    seq: CommitSeq,
) -> Coverage {
    if sources == 0 {
        Coverage::Clean
    } else if newest.is_some_and(|newest| newest > seq) {
        Coverage::Changed
    } else if horizon > seq {
        Coverage::Unverifiable
    } else {
        Coverage::Clean
    }
}

/// The answer to an activation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activation {
    /// Complete, for good. The row to store.
    Activated(Checkpoint),
    /// A source changed above the watermark, or the caller is not the owner.
    Stale,
    /// The log no longer tells.
    Unverifiable,
}

/// Activates a checkpoint (rule 7), under the partition's serialization. The
/// watermark judged and stored is the caller's. Checks in this order: fence,
/// changed sources, pruned log, owner.
///
/// A checkpoint that nobody claimed may be activated at epoch 0 and watermark 0
/// alone: no source ever changed, so there is nothing to compute. At any other
/// watermark it is stale, for nobody computed what lies below.
///
/// # Errors
/// [`CheckpointError::FenceMissing`] when the fence is absent or below the
/// checkpoint's version, or the checkpoint is absent.
pub fn activate(
    existing: Option<&Checkpoint>,
    fence: Option<SchemaVersion>,
    above_watermark: Coverage,
    owner_epoch: OwnerEpoch,
    watermark: CommitSeq,
    now_ms: i64,
) -> Result<Activation, CheckpointError> {
    let (Some(checkpoint), Some(fence)) = (existing, fence) else {
        return Err(CheckpointError::FenceMissing);
    };
    if fence < checkpoint.schema_version {
        return Err(CheckpointError::FenceMissing);
    }
    match above_watermark {
        Coverage::Changed => return Ok(Activation::Stale),
        Coverage::Unverifiable => return Ok(Activation::Unverifiable),
        Coverage::Clean => {}
    }
    let entitled = checkpoint.owner_epoch == owner_epoch
        && match checkpoint.state {
            CheckpointState::Declared => watermark == CommitSeq(0),
            CheckpointState::Backfilling => true,
            CheckpointState::Activated => false,
        };
    Ok(if entitled {
        Activation::Activated(Checkpoint {
            state: CheckpointState::Activated,
            watermark,
            updated_at_ms: now_ms,
            ..checkpoint.clone()
        })
    } else {
        Activation::Stale
    })
}

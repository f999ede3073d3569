//! The serve gate (migrations.md rule 8): may this process answer, given what the
//! database says now?

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

//! What is not served while a backfill is incomplete (migrations.md rule 8): a
//! process that declares a checkpoint takes pushes and pulls of every table but
//! the checkpoint's target, unless that may be read half-computed.

use std::collections::BTreeMap;

use ssp2::SyncError;

use super::projection::Projection;
use crate::gate::{GateRefusal, PendingCheckpoint};
use crate::ids::{PartitionId, TableId};

/// The tables of `partition` that may not be read now, each with the pending
/// checkpoint that is in the way. `pending` is the gate token's list; checkpoints
/// of other partitions leave this one's tables alone.
///
/// A pending checkpoint without a projection here is not this function's concern:
/// a process that does not declare it serves nothing at all.
pub fn refused_tables<'p>(
    projections: impl IntoIterator<Item = &'p dyn Projection>,
    pending: &[PendingCheckpoint],
    partition: &PartitionId,
) -> BTreeMap<TableId, PendingCheckpoint> {
    if pending.is_empty() {
        return BTreeMap::new();
    }
    let mut refused = BTreeMap::new();
    for projection in projections {
        if projection.serve_while_backfilling() {
            continue;
        }
        let in_the_way = pending
            .iter()
            .find(|found| found.partition == partition.as_str() && found.name == projection.name());
        if let Some(found) = in_the_way {
            refused
                .entry(projection.target())
                .or_insert_with(|| found.clone());
        }
    }
    refused
}

/// The refusal of a request that reads `tables`: `sync.schema_not_ready` with
/// `{partition, projection}` of the first one that may not be read.
pub fn refusal(
    refused: &BTreeMap<TableId, PendingCheckpoint>,
    tables: impl IntoIterator<Item = TableId>,
) -> Option<SyncError> {
    tables
        .into_iter()
        .find_map(|table| refused.get(&table))
        .map(|found| GateRefusal::CheckpointPending(found.clone()).into())
}

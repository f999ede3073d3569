//! Which checkpoints this process declares (migrations.md rules 2 and 8): exactly the
//! incomplete ones of its schema version that it has the projection for.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_engine::backfill::checkpoint::Checkpoint;
use tidegate_engine::backfill::projection::Projection;
use tidegate_engine::gate::{self, GateRefusal, PendingCheckpoint};
use tidegate_engine::{PartitionId, SchemaVersion};
use tidegate_store::{Store, StoreError};

use crate::directory::Directory;

/// Whether one of the projections computes that checkpoint.
pub(crate) fn projection_of<'p>(
    projections: &'p [Arc<dyn Projection>],
    checkpoint: &Checkpoint,
) -> Option<&'p Arc<dyn Projection>> {
    projections.iter().find(|projection| {
        *projection.name() == *checkpoint.name
            && projection.schema_version() == checkpoint.schema_version
    })
}

/// Tells the directory what this process declares now. Serialized with [`declaring`], so
/// that a checkpoint that is just being declared is not left out. Every checkpoint, as the
/// database has it.
///
/// # Errors
/// Storage failures; what was declared before stays.
pub(crate) async fn refresh(
    directory: &Directory,
    store: &dyn Store,
    projections: &[Arc<dyn Projection>],
) -> Result<Vec<Checkpoint>, StoreError> {
    let _order = directory.declaring().await;
    let checkpoints = store.list_checkpoints(None).await?;
    let declared: BTreeSet<(String, String)> = checkpoints
        .iter()
        .filter(|found| found.state.is_incomplete())
        .filter(|found| projection_of(projections, found).is_some())
        .map(|found| (found.partition.to_string(), found.name.to_string()))
        .collect();
    if *directory.declared() != declared {
        directory.set_declared(Arc::new(declared));
    }
    Ok(checkpoints)
}

/// An incomplete checkpoint that this process does not declare: while there is one, the
/// gate refuses everybody (migrations.md rules 8 and 9).
///
/// # Errors
/// Storage failures.
pub(crate) async fn undeclared(
    directory: &Directory,
    store: &dyn Store,
    running: SchemaVersion,
) -> Result<Option<PendingCheckpoint>, StoreError> {
    // A token names what is pending in every partition, whichever one asks.
    let (token, _) = store.read_gate(&PartitionId::from("")).await?;
    Ok(
        match gate::refusal(&token, running, &directory.declared()) {
            Some(GateRefusal::CheckpointPending(pending)) => Some(pending),
            _ => None,
        },
    )
}

/// Runs a declaration while the directory already counts it as declared: between the
/// row's commit and the next look at the database nothing may be refused for it.
pub(crate) async fn declaring<T>(
    directory: &Directory,
    partition: &str,
    name: &str,
    declare: impl Future<Output = T>,
) -> T {
    let _order = directory.declaring().await;
    let mut declared = BTreeSet::clone(&directory.declared());
    declared.insert((partition.to_owned(), name.to_owned()));
    directory.set_declared(Arc::new(declared));
    // Should it fail, a pair too many is permission to serve and nothing more; the next
    // refresh takes it away.
    declare.await
}

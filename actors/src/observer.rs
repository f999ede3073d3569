//! Who hears of durable commits.

use std::sync::Arc;

use tidegate_engine::PartitionId;
use tidegate_engine::model::LoggedCommit;

/// Hears of every commit of this process, after it is durable and answered, in log
/// order per partition.
///
/// Called on a partition's task: hand the commits on and return.
pub trait CommitObserver: Send + Sync + 'static {
    /// Commits that became durable, in order, without gaps among them.
    fn committed(&self, partition: &PartitionId, commits: &[Arc<LoggedCommit>]);

    /// The log moved by commits that are not at hand: another process wrote, or an
    /// outcome was found out later. Readers must look at the database.
    fn moved_elsewhere(&self, partition: &PartitionId) {
        let _ = partition;
    }
}

/// Hears and does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl CommitObserver for NoObserver {
    fn committed(&self, _: &PartitionId, _: &[Arc<LoggedCommit>]) {}
}

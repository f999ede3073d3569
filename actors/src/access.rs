//! How one attempt of a batch reaches the database: freely, or holding the partition.

use std::sync::Arc;

use tidegate_engine::PartitionId;
use tidegate_engine::model::{CommitBatch, Fetched, Needs};
use tidegate_store::{CommitError, Link, LockedPartition, Passed, Settle, Store, StoreError};

/// Where an attempt reads and commits. Dropping it releases what it holds.
pub(crate) enum Access<'s> {
    /// Nothing is held: the CAS of the commit proves what was read.
    Free(&'s dyn Store),
    /// Nobody else commits meanwhile; reads and commit are one transaction.
    Locked(Box<dyn LockedPartition + 's>),
}

impl<'s> Access<'s> {
    pub async fn locked(store: &'s dyn Store, partition: &PartitionId) -> Result<Self, StoreError> {
        Ok(Self::Locked(store.begin_locked(partition).await?))
    }

    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked(_))
    }

    pub async fn read_needs(
        &mut self,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError> {
        match self {
            Self::Free(store) => store.read_needs(partition, needs).await,
            Self::Locked(held) => held.read_needs(needs).await,
        }
    }

    /// [`Self::commit`] for a batch that was decided on top of `after`, and on top of
    /// which the next one may be.
    pub async fn commit_chained(
        self,
        batch: Arc<CommitBatch>,
        after: Option<Link>,
        settle: Settle,
    ) -> Result<Option<Passed>, CommitError> {
        match self {
            Self::Free(store) => store.commit_chained(batch, after, settle).await,
            // Nobody's outcome is open while the partition is held.
            Self::Locked(held) => {
                let written = held.commit(batch).await;
                settle.settle(written.is_ok());
                written.map(|()| None)
            }
        }
    }

    pub async fn commit(self, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        match self {
            Self::Free(store) => store.commit_batch(batch).await,
            Self::Locked(held) => held.commit(batch).await,
        }
    }
}

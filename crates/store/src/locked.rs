//! Commits that hold the partition while they are decided.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_engine::PartitionId;
use tidegate_engine::model::{CommitBatch, Fetched, Needs};

use crate::Store;
use crate::error::{CommitError, StoreError};

/// A partition held for one batch (see [`Store::begin_locked`]). Dropping it
/// writes nothing.
#[async_trait]
pub trait LockedPartition: Send {
    /// As [`Store::read_needs`], of the held state.
    ///
    /// # Errors
    /// As [`Store::read_needs`]; nothing can be committed after one.
    async fn read_needs(&mut self, needs: &Needs) -> Result<Fetched, StoreError>;

    /// As [`Store::commit_batch`]; every check of it runs here too.
    ///
    /// # Errors
    /// As [`Store::commit_batch`].
    async fn commit(self: Box<Self>, batch: Arc<CommitBatch>) -> Result<(), CommitError>;
}

/// The way of a backend without locks: the CAS alone decides.
pub(crate) struct Unlocked<'a, S: ?Sized> {
    store: &'a S,
    partition: PartitionId,
}

impl<'a, S: ?Sized> Unlocked<'a, S> {
    pub(crate) fn new(store: &'a S, partition: &PartitionId) -> Self {
        Self {
            store,
            partition: partition.clone(),
        }
    }
}

#[async_trait]
impl<S: Store + ?Sized> LockedPartition for Unlocked<'_, S> {
    async fn read_needs(&mut self, needs: &Needs) -> Result<Fetched, StoreError> {
        self.store.read_needs(&self.partition, needs).await
    }

    async fn commit(self: Box<Self>, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        self.store.commit_batch(batch).await
    }
}

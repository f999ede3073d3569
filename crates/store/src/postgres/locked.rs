//! The pessimistic way of a partition that others write to as well: its row is
//! locked before anything is read, so that the decisions cannot be overtaken.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tidegate_engine::PartitionId;
use tidegate_engine::model::{CommitBatch, Fetched, Needs};
use tokio::runtime::Handle;
use tokio::sync::OwnedRwLockReadGuard;

use super::batch::Encoded;
use super::commit;
use super::connection::Lease;
use super::core_schema::BEGIN;
use super::failure::during;
use super::pipeline::in_order;
use super::plan::Plan;
use super::read;
use crate::LockedPartition;
use crate::error::{CommitError, StoreError};

const CONTEXT: &str = "locking a partition";
const LOCK: &str = "SELECT 1 FROM sync_partitions WHERE partition=$1 FOR UPDATE";
const CREATE: &str = "INSERT INTO sync_partitions(partition) VALUES($1) ON CONFLICT DO NOTHING";

/// A transaction that holds a partition's row.
pub(super) struct Locked {
    /// `None` once it was committed.
    lease: Option<Lease>,
    /// Closing the store waits for it.
    guard: Arc<OwnedRwLockReadGuard<()>>,
    plan: Arc<Plan>,
    partition: PartitionId,
    /// Where the write runs.
    driver: Handle,
}

/// Opens the transaction and takes the row, in one round trip.
pub(super) async fn begin(
    lease: Lease,
    guard: OwnedRwLockReadGuard<()>,
    plan: Arc<Plan>,
    partition: &PartitionId,
    driver: Handle,
) -> Result<Locked, StoreError> {
    let mut locked = Locked {
        lease: Some(lease),
        guard: Arc::new(guard),
        plan,
        partition: partition.clone(),
        driver,
    };
    let Some(session) = locked.lease.as_mut() else {
        return Err(StoreError::Closed);
    };
    let lock = session.prepare(LOCK).await.map_err(during(CONTEXT))?;
    session.in_doubt = true;
    let client = &session.client;
    let name = partition.as_str();
    let futures: Vec<BoxFuture<'_, Result<u64, _>>> = vec![
        Box::pin(async { client.batch_execute(BEGIN).await.map(|()| 0) }),
        Box::pin(client.execute_raw(&lock, [name])),
    ];
    let mut found = 0;
    for outcome in in_order(futures).await {
        found = outcome.map_err(during(CONTEXT))?;
    }
    if found == 0 {
        // Its first commit: the row must exist to be locked.
        session
            .execute(CREATE, &[&name])
            .await
            .map_err(during(CONTEXT))?;
        session
            .execute(LOCK, &[&name])
            .await
            .map_err(during(CONTEXT))?;
    }
    Ok(locked)
}

#[async_trait]
impl LockedPartition for Locked {
    async fn read_needs(&mut self, needs: &Needs) -> Result<Fetched, StoreError> {
        let session = self.lease.as_mut().ok_or(StoreError::Closed)?;
        let one = [(self.partition.as_str(), needs)];
        let fetched = read::needs(session, &self.plan, &one).await?;
        fetched.into_iter().next().ok_or(StoreError::Closed)
    }

    async fn commit(mut self: Box<Self>, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        // Dropped with the batch's fault, the transaction is rolled back.
        let encoded = Encoded::new(&self.plan, batch)?;
        let mut lease = self.lease.take().ok_or(StoreError::Closed)?;
        let (plan, guard) = (Arc::clone(&self.plan), Arc::clone(&self.guard));
        // A caller that stops waiting must not cut the write in half.
        let task = self.driver.spawn(async move {
            let _guard = guard;
            commit::write_locked(&mut lease, &plan, &encoded).await
        });
        task.await
            .unwrap_or_else(|error| Err(CommitError::OutcomeUnknown(Box::new(error))))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Some(mut lease) = self.lease.take()
            && lease.in_doubt
        {
            let guard = Arc::clone(&self.guard);
            self.driver.spawn(async move {
                lease.rollback().await;
                drop(guard);
            });
        }
    }
}

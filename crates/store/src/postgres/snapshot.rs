//! A pull's view: one REPEATABLE READ transaction whose first statement, the
//! bounds, fixes what it sees.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tidegate_engine::model::{LogBounds, RowKey, StoredRow};
use tidegate_engine::{CommitSeq, PartitionId};
use tokio_postgres::Row;

use super::connection::{Lease, release};
use super::failure::during;
use super::pipeline::in_order;
use super::plan::Plan;
use super::read::{BOUNDS, view};
use super::{source_rows, window};
use crate::error::StoreError;
use crate::preamble::View;
use crate::{
    ChangedRows, ChangedRowsQuery, RangeQuery, RowPage, ScanQuery, Snapshot, Window, WindowQuery,
};

const CONTEXT: &str = "opening a snapshot";
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

pub(super) struct PostgresSnapshot {
    /// Taken by the drop.
    lease: Option<Lease>,
    plan: Arc<Plan>,
    partition: PartitionId,
    view: View,
}

pub(super) async fn begin(
    lease: Lease,
    plan: Arc<Plan>,
    partition: &PartitionId,
) -> Result<PostgresSnapshot, StoreError> {
    let mut snapshot = PostgresSnapshot {
        lease: Some(lease),
        plan,
        partition: partition.clone(),
        view: View {
            bounds: LogBounds::default(),
            layout_floor: CommitSeq(0),
        },
    };
    let Some(session) = snapshot.lease.as_mut() else {
        return Err(StoreError::Closed);
    };
    let bounds = session.prepare(BOUNDS).await.map_err(during(CONTEXT))?;
    session.in_doubt = true;
    let client = &session.client;
    let name = partition.as_str();
    let futures: Vec<BoxFuture<'_, Result<Option<Row>, _>>> = vec![
        Box::pin(async { client.batch_execute(BEGIN).await.map(|()| None) }),
        Box::pin(async { client.query_one(&bounds, &[&name]).await.map(Some) }),
    ];
    let mut found = None;
    for outcome in in_order(futures).await {
        found = outcome.map_err(during(CONTEXT))?;
    }
    let row = found.ok_or(StoreError::Corrupt { what: "log bounds" })?;
    snapshot.view = view(&row).map_err(during(CONTEXT))?;
    Ok(snapshot)
}

#[async_trait]
impl Snapshot for PostgresSnapshot {
    fn bounds(&self) -> LogBounds {
        self.view.bounds
    }

    fn layout_floor(&self) -> CommitSeq {
        self.view.layout_floor
    }

    async fn read_window(&mut self, query: WindowQuery) -> Result<Window, StoreError> {
        let session = self.lease.as_mut().ok_or(StoreError::Closed)?;
        window::read_window(session, &self.plan, self.partition.as_str(), &query).await
    }

    async fn scan_rows(&mut self, query: ScanQuery) -> Result<RowPage, StoreError> {
        let session = self.lease.as_mut().ok_or(StoreError::Closed)?;
        window::scan_rows(session, &self.plan, self.partition.as_str(), &query).await
    }

    async fn read_range(&mut self, query: RangeQuery) -> Result<RowPage, StoreError> {
        let session = self.lease.as_mut().ok_or(StoreError::Closed)?;
        source_rows::range(session, &self.plan, self.partition.as_str(), &query).await
    }

    async fn read_rows(&mut self, keys: &[RowKey]) -> Result<Vec<(RowKey, StoredRow)>, StoreError> {
        let session = self.lease.as_mut().ok_or(StoreError::Closed)?;
        source_rows::rows(session, &self.plan, self.partition.as_str(), keys).await
    }

    async fn read_changed_rows(
        &mut self,
        query: ChangedRowsQuery,
    ) -> Result<ChangedRows, StoreError> {
        let session = self.lease.as_mut().ok_or(StoreError::Closed)?;
        source_rows::changed(session, &self.plan, self.partition.as_str(), &query).await
    }
}

impl Drop for PostgresSnapshot {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            release(lease);
        }
    }
}

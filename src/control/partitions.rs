//! Partitions: which there are, and where each stands.

use actix_web::web::Path;
use serde::Serialize;
use tidegate_engine::PartitionId;
use tidegate_store::operating::PartitionSummary;
use utoipa::ToSchema;

use super::input::{Page, PageQuery, Query, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

/// A partition at a glance.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PartitionView {
    partition: String,
    /// Null for a partition that was never authenticated.
    log_epoch: Option<String>,
    /// Whether the epoch was ever rotated; wire 1 is refused then.
    epoch_required: bool,
    /// Epoch milliseconds, a few seconds coarse.
    last_authenticated_at_ms: Option<i64>,
    /// Newest commit.
    max_commit_seq: i64,
    /// Commits up to it are pruned.
    horizon_seq: i64,
    /// Writer version that the fence requires; null = no fence.
    required_writer_version: Option<i32>,
    /// Whether an operator holds it in this process.
    held: bool,
}

impl PartitionView {
    fn of(summary: PartitionSummary, station: &Station) -> Self {
        let registry = summary.registry;
        Self {
            held: station.holds.is_held(&summary.id),
            partition: summary.id.to_string(),
            epoch_required: registry.as_ref().is_some_and(|row| row.epoch_required),
            log_epoch: registry.map(|row| row.log_epoch.to_string()),
            last_authenticated_at_ms: summary.last_authenticated_at_ms,
            max_commit_seq: summary.bounds.max.0,
            horizon_seq: summary.bounds.horizon.0,
            required_writer_version: summary.fence.map(|version| version.0),
        }
    }
}

/// A page of partitions, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PartitionPage {
    partitions: Vec<PartitionView>,
    /// The `after` of the next page; null at the end.
    next: Option<String>,
}

#[derive(Debug)]
struct ListPartitions(Page);

impl Command for ListPartitions {
    const NAME: &'static str = "list partitions";
    const CHANGES: bool = false;
    type Answer = PartitionPage;

    async fn run(self, station: &Station) -> Result<PartitionPage, ControlError> {
        let Self(Page { after, limit }) = self;
        let after = after.map(PartitionId::from);
        let mut found = station
            .parts
            .store
            .summarize_partitions(after.as_ref(), limit + 1)
            .await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more);
        Ok(PartitionPage {
            next: next.map(|last| last.id.to_string()),
            partitions: found
                .into_iter()
                .map(|summary| PartitionView::of(summary, station))
                .collect(),
        })
    }
}

/// Every partition, by name
#[utoipa::path(get, path = "/control/v1/partitions", params(PageQuery),
    responses((status = 200, body = PartitionPage)))]
pub(crate) async fn list_partitions(
    operator: OperatorData,
    Query(page): Query<PageQuery>,
) -> Answer<PartitionPage> {
    ask(&operator, ListPartitions(page.check()?)).await
}

#[derive(Debug)]
struct ReadPartition(PartitionId);

impl Command for ReadPartition {
    const NAME: &'static str = "read a partition";
    const CHANGES: bool = false;
    type Answer = PartitionView;

    async fn run(self, station: &Station) -> Result<PartitionView, ControlError> {
        let summary = station.known(&self.0).await?;
        Ok(PartitionView::of(summary, station))
    }
}

/// One partition
#[utoipa::path(get, path = "/control/v1/partitions/{p}",
    params(("p" = String, Path, description = "Partition")),
    responses((status = 200, body = PartitionView)))]
pub(crate) async fn read_partition(
    operator: OperatorData,
    path: Path<String>,
) -> Answer<PartitionView> {
    ask(&operator, ReadPartition(partition(path.into_inner())?)).await
}

//! Partitions: what they are, who holds them, their clients and fences.

use actix_web::web::Path;
use serde::{Deserialize, Serialize};
use tidegate_engine::model::ClientRecord;
use tidegate_engine::{PartitionId, SchemaVersion};
use tidegate_store::operating::PartitionSummary;
use utoipa::ToSchema;

use super::errors::{ControlCode, invalid};
use super::holds::{Begin, End};
use super::input::{Body, Page, PageQuery, Query, partition};
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

/// A device that syncs in a partition.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientView {
    client: String,
    /// The actor it is bound to.
    actor: String,
    /// Wire version of its last request.
    wire_version: u16,
    /// Its lowest cursor over all subscriptions; null before its first pull.
    cursor: Option<i64>,
    subscriptions: usize,
    /// Epoch milliseconds of its last request.
    updated_at_ms: i64,
}

impl From<ClientRecord> for ClientView {
    fn from(record: ClientRecord) -> Self {
        Self {
            client: record.client_id.to_string(),
            actor: record.actor_id.to_string(),
            wire_version: record.wire_version as u16,
            cursor: Some(record.cursor).filter(|&cursor| cursor >= 0),
            subscriptions: record.subscriptions.len(),
            updated_at_ms: record.updated_at_ms,
        }
    }
}

/// A page of clients, by id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientPage {
    clients: Vec<ClientView>,
    /// The `after` of the next page; null at the end.
    next: Option<String>,
}

#[derive(Debug)]
struct ListClients {
    partition: PartitionId,
    page: Page,
}

impl Command for ListClients {
    const NAME: &'static str = "list clients";
    const CHANGES: bool = false;
    type Answer = ClientPage;

    async fn run(self, station: &Station) -> Result<ClientPage, ControlError> {
        let Page { after, limit } = self.page;
        station.known(&self.partition).await?;
        let mut found = station.parts.store.list_clients(&self.partition).await?;
        if let Some(after) = after {
            found.retain(|record| record.client_id.as_str() > after.as_str());
        }
        found.sort_unstable_by(|a, b| a.client_id.cmp(&b.client_id));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more);
        Ok(ClientPage {
            next: next.map(|last| last.client_id.to_string()),
            clients: found.into_iter().map(ClientView::from).collect(),
        })
    }
}

/// The clients of a partition, as the database has them: a few hundred milliseconds late
#[utoipa::path(get, path = "/control/v1/partitions/{p}/clients",
    params(("p" = String, Path, description = "Partition"), PageQuery),
    responses((status = 200, body = ClientPage)))]
pub(crate) async fn list_clients(
    operator: OperatorData,
    path: Path<String>,
    Query(page): Query<PageQuery>,
) -> Answer<ClientPage> {
    let command = ListClients {
        partition: partition(path.into_inner())?,
        page: page.check()?,
    };
    ask(&operator, command).await
}

/// Whether a partition is held.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HoldView {
    partition: String,
    /// Whether it starts no batch until it is resumed, in this process.
    held: bool,
    /// Pushes that wait.
    queued_pushes: usize,
}

impl HoldView {
    fn of(partition: &PartitionId, station: &Station) -> Self {
        Self {
            held: station.holds.is_held(partition),
            queued_pushes: station.parts.directory.partition(partition).queued(),
            partition: partition.to_string(),
        }
    }
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DrainBody {
    /// Milliseconds that a running batch may take to end, 1 to 60000; 10000 without it.
    deadline_ms: Option<u64>,
}

#[derive(Debug)]
struct Drain {
    partition: PartitionId,
    deadline: std::time::Duration,
}

impl Command for Drain {
    const NAME: &'static str = "drain a partition";
    const CHANGES: bool = true;
    type Answer = HoldView;

    async fn run(self, station: &Station) -> Result<HoldView, ControlError> {
        let partition = &self.partition;
        station.known(partition).await?;
        match station.holds.begin(partition) {
            Begin::Busy => return Err(ControlCode::Busy.into()),
            Begin::Held => {}
            Begin::Drain => {
                let drained = station
                    .parts
                    .directory
                    .drain(partition, self.deadline)
                    .await;
                station.holds.drained(partition, drained.is_ok());
                drained.map_err(|_| ControlCode::Busy)?;
            }
        }
        Ok(HoldView::of(partition, station))
    }
}

/// Hold a partition: wait for its running batch, start no other; pushes queue up
#[utoipa::path(post, path = "/control/v1/partitions/{p}/drain",
    params(("p" = String, Path, description = "Partition")),
    request_body = DrainBody, responses((status = 200, body = HoldView)))]
pub(crate) async fn drain_partition(
    operator: OperatorData,
    path: Path<String>,
    Body(body): Body<DrainBody>,
) -> Answer<HoldView> {
    const DEFAULT_MS: u64 = 10_000;
    let deadline = body.deadline_ms.unwrap_or(DEFAULT_MS);
    if !(1..=60_000).contains(&deadline) {
        return Err(invalid("deadline_ms", "1 to 60000"));
    }
    let command = Drain {
        partition: partition(path.into_inner())?,
        deadline: std::time::Duration::from_millis(deadline),
    };
    ask(&operator, command).await
}

/// No members.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

#[derive(Debug)]
struct Resume(PartitionId);

impl Command for Resume {
    const NAME: &'static str = "resume a partition";
    const CHANGES: bool = true;
    type Answer = HoldView;

    async fn run(self, station: &Station) -> Result<HoldView, ControlError> {
        let partition = &self.0;
        station.known(partition).await?;
        match station.holds.end(partition) {
            End::Busy => return Err(ControlCode::Busy.into()),
            End::NotHeld => {}
            End::Resume => station.parts.directory.resume(partition),
        }
        Ok(HoldView::of(partition, station))
    }
}

/// Let a held partition go on
#[utoipa::path(post, path = "/control/v1/partitions/{p}/resume",
    params(("p" = String, Path, description = "Partition")),
    request_body = Nothing, responses((status = 200, body = HoldView)))]
pub(crate) async fn resume_partition(
    operator: OperatorData,
    path: Path<String>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<HoldView> {
    ask(&operator, Resume(partition(path.into_inner())?)).await
}

/// The writer fence of a partition.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FenceView {
    partition: String,
    /// Writers below it are denied by the database; null = no fence.
    required_writer_version: Option<i32>,
    /// The schema version that this process writes with.
    running_schema_version: i32,
}

impl FenceView {
    fn of(partition: &PartitionId, fence: Option<SchemaVersion>, station: &Station) -> Self {
        Self {
            partition: partition.to_string(),
            required_writer_version: fence.map(|version| version.0),
            running_schema_version: station.parts.schema.version().0,
        }
    }
}

#[derive(Debug)]
struct ReadFence(PartitionId);

impl Command for ReadFence {
    const NAME: &'static str = "read a fence";
    const CHANGES: bool = false;
    type Answer = FenceView;

    async fn run(self, station: &Station) -> Result<FenceView, ControlError> {
        station.known(&self.0).await?;
        let fence = station.parts.store.read_fence(&self.0).await?;
        Ok(FenceView::of(&self.0, fence, station))
    }
}

/// The writer fence
#[utoipa::path(get, path = "/control/v1/partitions/{p}/fence",
    params(("p" = String, Path, description = "Partition")),
    responses((status = 200, body = FenceView)))]
pub(crate) async fn read_fence(operator: OperatorData, path: Path<String>) -> Answer<FenceView> {
    ask(&operator, ReadFence(partition(path.into_inner())?)).await
}

/// A fence to raise.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FenceBody {
    /// The lowest schema version that may write from now on, at least 1.
    required_writer_version: i32,
    /// Needed to raise it above the version of this very server, which it stops from
    /// writing: a fence never falls.
    #[serde(default)]
    force: bool,
}

#[derive(Debug)]
struct RaiseFence {
    partition: PartitionId,
    required: SchemaVersion,
    force: bool,
}

impl Command for RaiseFence {
    const NAME: &'static str = "raise a fence";
    const CHANGES: bool = true;
    type Answer = FenceView;

    async fn run(self, station: &Station) -> Result<FenceView, ControlError> {
        if self.required > station.parts.schema.version() && !self.force {
            return Err(invalid(
                "required_writer_version",
                "at most the running schema version, or force",
            ));
        }
        station.known(&self.partition).await?;
        let stands = station
            .parts
            .store
            .raise_fence(&self.partition, self.required)
            .await?;
        Ok(FenceView::of(&self.partition, Some(stands), station))
    }
}

/// Raise the writer fence; it never falls
#[utoipa::path(post, path = "/control/v1/partitions/{p}/fence",
    params(("p" = String, Path, description = "Partition")),
    request_body = FenceBody, responses((status = 200, body = FenceView)))]
pub(crate) async fn raise_fence(
    operator: OperatorData,
    path: Path<String>,
    Body(body): Body<FenceBody>,
) -> Answer<FenceView> {
    if body.required_writer_version < 1 {
        return Err(invalid("required_writer_version", "at least 1"));
    }
    let command = RaiseFence {
        partition: partition(path.into_inner())?,
        required: SchemaVersion(body.required_writer_version),
        force: body.force,
    };
    ask(&operator, command).await
}

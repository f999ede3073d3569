//! Writer fences.

use actix_web::web::Path;
use serde::{Deserialize, Serialize};
use tidegate_engine::{PartitionId, SchemaVersion};
use utoipa::ToSchema;

use super::errors::invalid;
use super::input::{Body, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

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

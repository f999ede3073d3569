//! Holding a partition, and letting it go on.

use actix_web::web::Path;
use serde::{Deserialize, Serialize};
use tidegate_engine::PartitionId;
use utoipa::ToSchema;

use super::errors::{ControlCode, invalid};
use super::holds::{Begin, End};
use super::input::{Body, Nothing, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

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

//! Rotating a log's epoch and pruning it.

use std::time::Duration;

use actix_web::web::Path;
use serde::{Deserialize, Serialize};
use tidegate_engine::model::LogBounds;
use tidegate_engine::retention::Retention;
use tidegate_engine::{CommitSeq, LogEpoch, PartitionId};
use utoipa::ToSchema;

use super::auth::random_hex;
use super::errors::{ControlCode, invalid};
use super::input::{Body, Nothing, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

/// A running batch may take that long to end before a rotation gives up.
const ROTATION_DEADLINE: Duration = Duration::from_secs(10);
/// 100 years: beyond it times overflow into nonsense.
const MAX_AGE_MS: i64 = 100 * 366 * 24 * 60 * 60 * 1_000;

/// A partition's new log epoch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EpochView {
    partition: String,
    log_epoch: String,
    /// Always true after a rotation: wire 1 is refused from then on.
    epoch_required: bool,
}

#[derive(Debug)]
struct RotateEpoch(PartitionId);

impl Command for RotateEpoch {
    const NAME: &'static str = "rotate an epoch";
    const CHANGES: bool = true;
    type Answer = EpochView;

    async fn run(self, station: &Station) -> Result<EpochView, ControlError> {
        let partition = &self.0;
        let parts = &station.parts;
        station.known(partition).await?;
        let epoch: LogEpoch = random_hex()
            .map_err(|error| ControlError::internal(&error))?
            .into();
        // No batch that began under the old epoch ends under the new one. This hold
        // is beside one of an operator.
        parts
            .directory
            .drain(partition, ROTATION_DEADLINE)
            .await
            .map_err(|_| ControlCode::Busy)?;
        let rotated = parts
            .store
            .rotate_epoch(partition, epoch, parts.clock.now_ms())
            .await;
        if let Ok(registry) = &rotated {
            // Rows, tail, bindings and client records in memory are gone with it;
            // segments are found by epoch alone.
            parts
                .directory
                .partition(partition)
                .observe_epoch(&registry.log_epoch);
        }
        parts.directory.resume(partition);
        let registry = rotated?;
        Ok(EpochView {
            partition: partition.to_string(),
            log_epoch: registry.log_epoch.to_string(),
            epoch_required: registry.epoch_required,
        })
    }
}

/// Rotate the log epoch, as after a restore: every client starts over
#[utoipa::path(post, path = "/control/v1/partitions/{p}/rotate-epoch",
    params(("p" = String, Path, description = "Partition")),
    request_body = Nothing, responses((status = 200, body = EpochView)))]
pub(crate) async fn rotate_epoch(
    operator: OperatorData,
    path: Path<String>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<EpochView> {
    ask(&operator, RotateEpoch(partition(path.into_inner())?)).await
}

/// What a prune keeps.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PruneBody {
    /// Newest commits that stay whoever needs them; 1000 without it.
    min_retained: Option<u64>,
    /// A client heard of within that many milliseconds keeps what it has not seen;
    /// 14 days without it.
    active_window_ms: Option<i64>,
    /// Commits older than that many milliseconds go whoever has not seen them; 30 days
    /// without it.
    age_force_ms: Option<i64>,
    /// Only say what would happen.
    dry_run: bool,
}

impl PruneBody {
    fn retention(&self) -> Result<Retention, ControlError> {
        let defaults = Retention::default();
        let age = |field, value: Option<i64>, default| match value {
            None => Ok(default),
            Some(value) if (0..=MAX_AGE_MS).contains(&value) => Ok(value),
            Some(_) => Err(invalid(field, "0 to 3162240000000 (100 years)")),
        };
        Ok(Retention {
            min_retained: self.min_retained.unwrap_or(defaults.min_retained),
            active_window_ms: age(
                "active_window_ms",
                self.active_window_ms,
                defaults.active_window_ms,
            )?,
            age_force_ms: age("age_force_ms", self.age_force_ms, defaults.age_force_ms)?,
        })
    }
}

/// What a prune did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PruneView {
    partition: String,
    dry_run: bool,
    /// The lowest cursor of an active client; null = nobody holds anything back.
    active_floor_seq: Option<i64>,
    /// Newest commit older than the age force; 0 = none.
    age_forced_seq: i64,
    /// Newest commit of the log.
    max_commit_seq: i64,
    /// What the rule allows to prune through.
    target_seq: i64,
    previous_horizon_seq: i64,
    /// The horizon afterwards; in a dry run the one that stands.
    horizon_seq: i64,
    /// Commits removed; in a dry run 0.
    removed_commits: u64,
}

#[derive(Debug)]
struct Prune {
    partition: PartitionId,
    retention: Retention,
    dry_run: bool,
}

impl Command for Prune {
    const NAME: &'static str = "prune a log";
    const CHANGES: bool = true;
    type Answer = PruneView;

    async fn run(self, station: &Station) -> Result<PruneView, ControlError> {
        let Self {
            partition,
            retention,
            dry_run,
        } = self;
        let parts = &station.parts;
        // The epoch first: what follows was computed for it (§4.6).
        let summary = station.known(&partition).await?;
        let epoch = summary
            .registry
            .map(|registry| registry.log_epoch)
            .ok_or(ControlCode::UnknownPartition)?;
        let now_ms = parts.clock.now_ms();
        let clients = parts.store.list_clients(&partition).await?;
        let forced = parts
            .store
            .commit_before(&partition, retention.forced_before_ms(now_ms))
            .await?;
        let LogBounds { max, horizon } = summary.bounds;
        let floor = retention.active_floor(&clients, now_ms);
        let target = retention.target(summary.bounds, floor, forced);
        let mut view = PruneView {
            partition: partition.to_string(),
            dry_run,
            active_floor_seq: target.active_floor.map(|CommitSeq(seq)| seq),
            age_forced_seq: forced.0,
            max_commit_seq: max.0,
            target_seq: target.through.0,
            previous_horizon_seq: horizon.0,
            horizon_seq: horizon.0,
            removed_commits: 0,
        };
        if !dry_run {
            // Also when the horizon stays: an earlier pass may be unfinished.
            let pruned = parts
                .store
                .prune(&partition, &epoch, target.through)
                .await?;
            // Tombstones went too, which the partition may hold in memory.
            parts.directory.distrust(&partition);
            view.previous_horizon_seq = pruned.previous.0;
            view.horizon_seq = pruned.horizon.0;
            view.removed_commits = pruned.removed;
        }
        Ok(view)
    }
}

/// Prune the log up to what nobody needs
#[utoipa::path(post, path = "/control/v1/partitions/{p}/prune",
    params(("p" = String, Path, description = "Partition")),
    request_body = PruneBody, responses((status = 200, body = PruneView)))]
pub(crate) async fn prune_partition(
    operator: OperatorData,
    path: Path<String>,
    Body(body): Body<PruneBody>,
) -> Answer<PruneView> {
    let command = Prune {
        partition: partition(path.into_inner())?,
        retention: body.retention()?,
        dry_run: body.dry_run,
    };
    ask(&operator, command).await
}

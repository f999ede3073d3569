//! Backfill checkpoints and the workers that carry them out.

use actix_web::web::Path;
use serde::{Deserialize, Serialize};
use tidegate_actors::backfill::{
    Activated, BackfillError, Backfills, CheckpointKey, CheckpointStatus,
};
use tidegate_engine::PartitionId;
use utoipa::ToSchema;

use super::errors::ControlCode;
use super::input::{Body, Nothing, name, partition};
use super::workers::{PaceBody, PaceView};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

impl From<BackfillError> for ControlError {
    fn from(error: BackfillError) -> Self {
        use serde_json::json;
        match error {
            BackfillError::NotDeclared => ControlCode::CheckpointNotDeclared.into(),
            BackfillError::FenceMissing => ControlCode::CheckpointFenceMissing.into(),
            BackfillError::ProjectionNotLoaded => ControlCode::ProjectionNotLoaded.into(),
            BackfillError::VersionTaken { name, existing } => ControlCode::VersionTaken
                .with(json!({"checkpoint": name, "schema_version": existing.0})),
            BackfillError::Unsupported => ControlCode::CheckpointUnsupported.into(),
            BackfillError::Stopping => ControlCode::Stopping.into(),
            // The supervisor has logged the cause.
            BackfillError::Unavailable => Self::unavailable(),
        }
    }
}

/// A checkpoint, as it is stored and as this server works on it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckpointView {
    partition: String,
    name: String,
    schema_version: i32,
    /// declared, backfilling or activated.
    state: &'static str,
    /// idle, scanning, catching_up, activating, paused, failed, superseded or activated:
    /// what goes on in this server.
    phase: &'static str,
    /// Source commits that it is computed through; 0 during the first scan.
    watermark_seq: i64,
    /// Source rows seen by the scan.
    observed_rows: i64,
    /// Of the scan, while it runs here.
    rows_done: Option<u64>,
    rows_total: Option<u64>,
    /// Over the last half minute.
    rows_per_second: Option<f64>,
    /// Milliseconds left at that rate.
    left_ms: Option<u64>,
    workers_wanted: u32,
    workers_running: u32,
    /// Claims so far; the last claimer alone may write.
    owner_epoch: i64,
    /// Whether this server holds the claim.
    owned_here: bool,
    /// Whether this server can compute it.
    projection_loaded: bool,
    pace: PaceView,
    /// Share of the rate in force after yielding to pushes, 0 to 1.
    rate_share: f64,
    /// Why the last worker stopped, or what the running one waits for.
    last_error: Option<String>,
    updated_at_ms: i64,
}

impl From<CheckpointStatus> for CheckpointView {
    fn from(status: CheckpointStatus) -> Self {
        let row = status.checkpoint;
        let progress = status.progress;
        Self {
            partition: row.partition.to_string(),
            name: row.name.to_string(),
            schema_version: row.schema_version.0,
            state: row.state.as_str(),
            phase: status.phase.as_str(),
            watermark_seq: row.watermark.0,
            observed_rows: row.observed_rows,
            rows_done: progress.map(|progress| progress.rows_done),
            rows_total: progress.map(|progress| progress.rows_total),
            rows_per_second: progress.map(|progress| progress.rows_per_second),
            left_ms: progress.and_then(|progress| progress.left_ms),
            workers_wanted: status.workers_wanted,
            workers_running: status.workers_running,
            owner_epoch: row.owner_epoch.0,
            owned_here: status.owned_here,
            projection_loaded: status.projection_loaded,
            pace: status.pace.into(),
            rate_share: status.rate_share,
            last_error: status.last_error,
            updated_at_ms: row.updated_at_ms,
        }
    }
}

/// A checkpoint that was taken up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TakenUpView {
    #[serde(flatten)]
    checkpoint: CheckpointView,
    /// Whether that ended a pause, which was in force in every process.
    pause_ended: bool,
}

impl Station {
    fn backfills(&self) -> Result<&Backfills, ControlError> {
        self.parts
            .backfills
            .get()
            .ok_or_else(|| ControlCode::NotReady.into())
    }

    /// The supervisor, for a checkpoint that exists.
    async fn checkpoint(&self, key: &CheckpointKey) -> Result<&Backfills, ControlError> {
        let backfills = self.backfills()?;
        self.known(&key.partition).await?;
        let found = self
            .parts
            .store
            .read_checkpoint(&key.partition, &key.name)
            .await?;
        match found {
            Some(_) => Ok(backfills),
            None => Err(ControlCode::UnknownCheckpoint.into()),
        }
    }
}

fn key(path: Path<(String, String)>) -> Result<CheckpointKey, ControlError> {
    let (p, checkpoint) = path.into_inner();
    Ok(CheckpointKey {
        partition: partition(p)?,
        name: name("checkpoint", checkpoint)?.into(),
    })
}

/// The checkpoints of a partition, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckpointList {
    checkpoints: Vec<CheckpointView>,
}

#[derive(Debug)]
struct ListCheckpoints(PartitionId);

impl Command for ListCheckpoints {
    const NAME: &'static str = "list checkpoints";
    const CHANGES: bool = false;
    type Answer = CheckpointList;

    async fn run(self, station: &Station) -> Result<CheckpointList, ControlError> {
        let backfills = station.backfills()?;
        station.known(&self.0).await?;
        let found = backfills.list(Some(self.0)).await?;
        Ok(CheckpointList {
            checkpoints: found.into_iter().map(CheckpointView::from).collect(),
        })
    }
}

/// The checkpoints of a partition
#[utoipa::path(get, path = "/control/v1/partitions/{p}/checkpoints",
    params(("p" = String, Path, description = "Partition")),
    responses((status = 200, body = CheckpointList)))]
pub(crate) async fn list_checkpoints(
    operator: OperatorData,
    path: Path<String>,
) -> Answer<CheckpointList> {
    ask(&operator, ListCheckpoints(partition(path.into_inner())?)).await
}

/// What to declare.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeclareBody {
    /// A backfill that this server has loaded.
    name: String,
}

#[derive(Debug)]
struct Declare {
    partition: PartitionId,
    name: String,
}

impl Command for Declare {
    const NAME: &'static str = "declare a checkpoint";
    const CHANGES: bool = true;
    type Answer = CheckpointView;

    async fn run(self, station: &Station) -> Result<CheckpointView, ControlError> {
        let backfills = station.backfills()?;
        station.known(&self.partition).await?;
        let status = backfills.declare(self.partition, self.name).await?;
        Ok(status.into())
    }
}

/// Declare a checkpoint and raise the writer fence; one that exists stays as it is
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints",
    params(("p" = String, Path, description = "Partition")),
    request_body = DeclareBody, responses((status = 200, body = CheckpointView)))]
pub(crate) async fn declare_checkpoint(
    operator: OperatorData,
    path: Path<String>,
    Body(body): Body<DeclareBody>,
) -> Answer<CheckpointView> {
    let command = Declare {
        partition: partition(path.into_inner())?,
        name: name("name", body.name)?,
    };
    ask(&operator, command).await
}

/// What to do with a checkpoint.
#[derive(Debug)]
pub(super) enum Action {
    Pause,
    Abort,
    SetWorkers(u32),
    SetPace(PaceBody),
}

#[derive(Debug)]
struct Act {
    key: CheckpointKey,
    action: Action,
}

impl Command for Act {
    const NAME: &'static str = "act on a checkpoint";
    const CHANGES: bool = true;
    type Answer = CheckpointView;

    async fn run(self, station: &Station) -> Result<CheckpointView, ControlError> {
        let Self { key, action } = self;
        let backfills = station.checkpoint(&key).await?;
        let status = match action {
            Action::Pause => backfills.pause(key).await,
            Action::Abort => backfills.abort(key).await,
            Action::SetWorkers(count) => backfills.set_workers(key, count).await,
            Action::SetPace(wanted) => {
                let all = backfills.list(Some(key.partition.clone())).await?;
                let mut named = all
                    .into_iter()
                    .filter(|one| one.checkpoint.name == key.name);
                let status = named.next().ok_or(ControlCode::UnknownCheckpoint)?;
                backfills.set_pace(key, wanted.over(status.pace)).await
            }
        };
        Ok(status?.into())
    }
}

pub(super) async fn act(
    operator: &OperatorData,
    path: Path<(String, String)>,
    action: Action,
) -> Answer<CheckpointView> {
    let key = key(path)?;
    ask(operator, Act { key, action }).await
}

/// How to take a checkpoint up.
#[derive(Debug)]
enum TakeUp {
    Start,
    Resume,
    ForceClaim,
}

#[derive(Debug)]
struct ActToTakeUp {
    key: CheckpointKey,
    how: TakeUp,
}

impl Command for ActToTakeUp {
    const NAME: &'static str = "take up a checkpoint";
    const CHANGES: bool = true;
    type Answer = TakenUpView;

    async fn run(self, station: &Station) -> Result<TakenUpView, ControlError> {
        let Self { key, how } = self;
        let backfills = station.checkpoint(&key).await?;
        let store = &station.parts.store;
        let controls = store.list_backfill_controls(Some(&key.partition)).await?;
        let was_paused = controls
            .iter()
            .any(|control| control.name == key.name && control.paused);
        let status = match how {
            TakeUp::Start => backfills.start_workers(key).await,
            TakeUp::Resume => backfills.resume(key).await,
            TakeUp::ForceClaim => backfills.force_claim(key).await,
        };
        Ok(TakenUpView {
            checkpoint: status?.into(),
            pause_ended: was_paused,
        })
    }
}

async fn take_up(
    operator: &OperatorData,
    path: Path<(String, String)>,
    how: TakeUp,
) -> Answer<TakenUpView> {
    let key = key(path)?;
    ask(operator, ActToTakeUp { key, how }).await
}

/// Take up a checkpoint that was paused, aborted or failed; a pause ends
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints/{name}/start",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = Nothing, responses((status = 200, body = TakenUpView)))]
pub(crate) async fn start_checkpoint(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<TakenUpView> {
    take_up(&operator, path, TakeUp::Start).await
}

/// Pause a checkpoint in every process, durably
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints/{name}/pause",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = Nothing, responses((status = 200, body = CheckpointView)))]
pub(crate) async fn pause_checkpoint(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<CheckpointView> {
    act(&operator, path, Action::Pause).await
}

/// End a pause
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints/{name}/resume",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = Nothing, responses((status = 200, body = TakenUpView)))]
pub(crate) async fn resume_checkpoint(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<TakenUpView> {
    take_up(&operator, path, TakeUp::Resume).await
}

/// Stop the workers of this server at once; the checkpoint stays claimable
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints/{name}/abort",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = Nothing, responses((status = 200, body = CheckpointView)))]
pub(crate) async fn abort_checkpoint(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<CheckpointView> {
    act(&operator, path, Action::Abort).await
}

/// Claim a checkpoint whoever owns it, and work on; a pause ends
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints/{name}/force-claim",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = Nothing, responses((status = 200, body = TakenUpView)))]
pub(crate) async fn force_claim_checkpoint(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<TakenUpView> {
    take_up(&operator, path, TakeUp::ForceClaim).await
}

/// How an activation ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActivationView {
    partition: String,
    name: String,
    /// activated; stale = a source changed above the watermark, or the owner changed;
    /// unverifiable = the log no longer tells. But for activated nothing changed.
    outcome: &'static str,
}

#[derive(Debug)]
struct Activate(CheckpointKey);

impl Command for Activate {
    const NAME: &'static str = "activate a checkpoint";
    const CHANGES: bool = true;
    type Answer = ActivationView;

    async fn run(self, station: &Station) -> Result<ActivationView, ControlError> {
        let backfills = station.checkpoint(&self.0).await?;
        let outcome = match backfills.activate(self.0.clone()).await? {
            Activated::Activated => "activated",
            Activated::Stale => "stale",
            Activated::Unverifiable => "unverifiable",
        };
        Ok(ActivationView {
            partition: self.0.partition.to_string(),
            name: self.0.name.to_string(),
            outcome,
        })
    }
}

/// Activate a checkpoint at its watermark, if it is complete
#[utoipa::path(post, path = "/control/v1/partitions/{p}/checkpoints/{name}/activate",
    params(("p" = String, Path, description = "Partition"), ("name" = String, Path, description = "Checkpoint")),
    request_body = Nothing, responses((status = 200, body = ActivationView)))]
pub(crate) async fn activate_checkpoint(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<ActivationView> {
    ask(&operator, Activate(key(path)?)).await
}

//! The workers that carry declared backfills out (migrations.md "Actors").
//!
//! [`Backfills`] is the handle of the process's supervisor. It runs at most one run
//! per checkpoint: claim, scan with as many workers as wanted, catch up with the log,
//! activate. Who may write is decided in the database alone: a run that was superseded
//! finds out at its next page and stops.

mod board;
mod controls;
mod follow;
mod handle;
mod patience;
mod planning;
mod run;
mod scanning;
mod supervisor;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::backfill::checkpoint::Checkpoint;
use tidegate_engine::backfill::pacing::Pace;
use tidegate_engine::backfill::progress::Progress;
use tidegate_engine::backfill::projection::Projection;
use tidegate_engine::schema::Schema;
use tidegate_engine::{PartitionId, SchemaVersion};
use tidegate_store::{Store, StoreError};

use crate::clock::Clock;
use crate::directory::Directory;
use crate::failpoint::{NoSteps, Steps};

pub use handle::Backfills;

/// What the workers work with.
pub struct BackfillParts {
    /// The partitions, through which every page is committed.
    pub directory: Directory,
    /// Storage.
    pub store: Arc<dyn Store>,
    /// The running schema.
    pub schema: Arc<Schema>,
    /// The projections that this process has loaded.
    pub projections: Vec<Arc<dyn Projection>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// How backfills run unless an operator says otherwise.
#[derive(Clone)]
pub struct BackfillSettings {
    /// Source rows per page.
    pub page_rows: usize,
    /// Pace of a checkpoint.
    pub pace: Pace,
    /// Workers per checkpoint.
    pub workers: u32,
    /// Checkpoints that this process works on at once; more wait, unclaimed.
    pub runs: usize,
    /// How often the supervisor looks for checkpoints.
    pub poll: Duration,
    /// A checkpoint that its owner has not moved for that long is claimed. Owners move
    /// theirs at least three times in it, so it must be well above the time of a commit.
    pub lease: Duration,
    /// First pause after a storage failure or a crash; doubles up to [`Self::longest_pause`].
    pub first_pause: Duration,
    /// Longest such pause.
    pub longest_pause: Duration,
    /// Hears of every step; for tests.
    pub steps: Arc<dyn Steps>,
}

impl Default for BackfillSettings {
    fn default() -> Self {
        Self {
            page_rows: 500,
            pace: Pace::default(),
            workers: 1,
            runs: 8,
            poll: Duration::from_secs(1),
            lease: Duration::from_secs(15),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(30),
            steps: Arc::new(NoSteps),
        }
    }
}

/// Most workers of one checkpoint.
pub const MAX_WORKERS: u32 = 64;

/// Names a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointKey {
    /// Partition.
    pub partition: PartitionId,
    /// Name, unique in the partition.
    pub name: Arc<str>,
}

impl CheckpointKey {
    /// The key of a stored checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            partition: checkpoint.partition.clone(),
            name: Arc::clone(&checkpoint.name),
        }
    }
}

/// A checkpoint as its operator sees it.
#[derive(Debug, Clone)]
pub struct CheckpointStatus {
    /// The stored row.
    pub checkpoint: Checkpoint,
    /// Whether this process has its projection.
    pub projection_loaded: bool,
    /// What goes on here.
    pub phase: WorkerPhase,
    /// Workers wanted.
    pub workers_wanted: u32,
    /// Workers at work in this process.
    pub workers_running: u32,
    /// Whether this process holds the claim.
    pub owned_here: bool,
    /// How far the scan is, while it runs here.
    pub progress: Option<Progress>,
    /// The pace in force.
    pub pace: Pace,
    /// Share of the rate in force after yielding to pushes, 0 to 1.
    pub rate_share: f64,
    /// Why the last worker stopped, or what the running one waits for.
    pub last_error: Option<String>,
}

/// What goes on with a checkpoint in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerPhase {
    /// Nothing, or it is about to be claimed.
    Idle,
    /// Computes old rows.
    Scanning,
    /// Computes rows that changed meanwhile.
    CatchingUp,
    /// Asks for the activation.
    Activating,
    /// An operator paused it.
    Paused,
    /// A row could not be computed; see the status's last error.
    Failed,
    /// Another owner took it over.
    Superseded,
    /// Complete.
    Activated,
}

impl WorkerPhase {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Scanning => "scanning",
            Self::CatchingUp => "catching_up",
            Self::Activating => "activating",
            Self::Paused => "paused",
            Self::Failed => "failed",
            Self::Superseded => "superseded",
            Self::Activated => "activated",
        }
    }
}

/// The answer to an activation by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activated {
    /// Complete, for good.
    Activated,
    /// A source changed above the watermark, or the owner changed.
    Stale,
    /// The log no longer tells.
    Unverifiable,
}

/// Why an operation on a checkpoint was refused. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackfillError {
    /// Absent, or nothing is left to claim.
    #[error("no such claimable checkpoint")]
    NotDeclared,
    /// The fence that an activation stands on is missing or too low.
    #[error("the writer fence of the checkpoint is missing or too low")]
    FenceMissing,
    /// This process does not have the projection.
    #[error("the projection of the checkpoint is not loaded in this process")]
    ProjectionNotLoaded,
    /// The name belongs to another schema version.
    #[error("checkpoint {name} belongs to schema version {}", existing.0)]
    VersionTaken {
        /// Name.
        name: String,
        /// The version it belongs to.
        existing: SchemaVersion,
    },
    /// The backend cannot fence writers.
    #[error("this backend cannot fence writers")]
    Unsupported,
    /// The process is about to end.
    #[error("the service is stopping")]
    Stopping,
    /// Storage failed; repeating it is safe.
    #[error("the database is unavailable")]
    Unavailable,
}

impl From<StoreError> for BackfillError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::CheckpointNotDeclared => Self::NotDeclared,
            StoreError::CheckpointFenceMissing => Self::FenceMissing,
            StoreError::CheckpointVersionTaken { name, existing } => {
                Self::VersionTaken { name, existing }
            }
            StoreError::CheckpointUnsupported | StoreError::Unsupported => Self::Unsupported,
            StoreError::Closed => Self::Stopping,
            other => {
                tracing::warn!(error = ?other, "an operation on a checkpoint failed");
                Self::Unavailable
            }
        }
    }
}

/// What all runs share.
pub(crate) struct Environment {
    pub directory: Directory,
    pub store: Arc<dyn Store>,
    pub schema: Arc<Schema>,
    pub projections: Vec<Arc<dyn Projection>>,
    pub clock: Arc<dyn Clock>,
    pub settings: BackfillSettings,
    /// One change of a control at a time: each is read, changed and written.
    pub editing: tokio::sync::Mutex<()>,
}

impl Environment {
    pub fn new(parts: BackfillParts, settings: BackfillSettings) -> Self {
        Self {
            directory: parts.directory,
            store: parts.store,
            schema: parts.schema,
            projections: parts.projections,
            clock: parts.clock,
            settings,
            editing: tokio::sync::Mutex::new(()),
        }
    }
}

/// The steps of a backfill at which [`Steps`] and failpoints may intervene, in the order in
/// which an undisturbed one comes to them.
pub const STEPS: [&str; 11] = [
    "backfill.claim.before",
    "backfill.claim.after",
    "backfill.page.planned",
    "backfill.page.before_commit",
    "backfill.page.after_commit",
    "backfill.scan.before_done",
    "backfill.scan.after_done",
    "backfill.catch_up.before_advance",
    "backfill.catch_up.after_advance",
    "backfill.activate.before",
    "backfill.activate.after",
];

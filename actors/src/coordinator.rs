//! The migration coordinator (migrations.md "Actors"): brings the database to the running
//! schema behind both barriers, and watches whether another process migrates past it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, ResponseFuture,
    WrapFuture,
};
use parking_lot::Mutex;
use tidegate_engine::SchemaVersion;
use tidegate_engine::backfill::progress::{Meter, Progress};
use tidegate_engine::backfill::projection::Projection;
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::schema::Schema;
use tidegate_store::operating::{MigrationPlan, MigrationStep};
use tidegate_store::{
    Declaration, MigrationObserver, SchemaOutcome, Store, StoreError, error_chain,
};
use tokio::sync::oneshot;

use crate::clock::{Clock, timers_run};
use crate::declared;
use crate::directory::Directory;
use crate::failpoint::{NoSteps, Steps, pausing_failpoint};

/// What the coordinator works with.
pub struct CoordinatorParts {
    /// The partitions that are held while the database is migrated.
    pub directory: Directory,
    /// Storage.
    pub store: Arc<dyn Store>,
    /// The running schema.
    pub schema: Arc<Schema>,
    /// What a migration to it declares.
    pub declarations: Vec<Declaration>,
    /// The projections that this process has loaded.
    pub projections: Vec<Arc<dyn Projection>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Who hears of what the watch finds.
    pub watch: Arc<dyn MigrationWatch>,
}

/// Delays of the coordinator.
#[derive(Clone)]
pub struct CoordinatorSettings {
    /// How long partitions may take to come to rest before a migration.
    pub barrier_deadline: Duration,
    /// How often the published version and the checkpoints are looked at.
    pub poll: Duration,
    /// Hears of every step; for tests.
    pub steps: Arc<dyn Steps>,
}

impl Default for CoordinatorSettings {
    fn default() -> Self {
        Self {
            barrier_deadline: Duration::from_secs(30),
            poll: Duration::from_secs(2),
            steps: Arc::new(NoSteps),
        }
    }
}

/// Hears what the coordinator finds out. Called on its thread: hand it on and return.
pub trait MigrationWatch: Send + Sync + 'static {
    /// Another process published a newer schema version: nothing may be served any more,
    /// connections are to be drained.
    fn overtaken(&self, stored: SchemaVersion);
}

/// Hears and does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoWatch;

impl MigrationWatch for NoWatch {
    fn overtaken(&self, _: SchemaVersion) {}
}

/// Where the process stands (migrations.md rule 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MigrationPhase {
    /// The schema is loaded, the database not looked at yet.
    SchemaCompile,
    /// The database is being prepared, or could not be.
    StorageMigration,
    /// A checkpoint is incomplete that this process does not declare.
    BackfillCheckpoint,
    /// The database fits.
    Ready,
    /// Another process published a newer version.
    Newer,
}

impl MigrationPhase {
    /// The name in status answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SchemaCompile => "schema_compile",
            Self::StorageMigration => "storage_migration",
            Self::BackfillCheckpoint => "backfill_checkpoint",
            Self::Ready => "ready",
            Self::Newer => "newer",
        }
    }
}

/// How a migration stands.
#[derive(Debug, Clone, PartialEq)]
pub struct MigrationStatus {
    /// The version of the running schema.
    pub running: SchemaVersion,
    /// The published one as last seen.
    pub stored: Option<SchemaVersion>,
    /// Phase.
    pub phase: MigrationPhase,
    /// The step of the migration that runs.
    pub step: Option<MigrationStep>,
    /// Rows rewritten of the table at hand.
    pub rows_done: u64,
    /// Rows of the table at hand.
    pub rows_total: u64,
    /// Rows per second over the last half minute.
    pub rate: f64,
    /// Milliseconds left for the table at hand at that rate; `None` = not known.
    pub left_ms: Option<u64>,
    /// Why the last run failed.
    pub last_error: Option<String>,
}

/// The handle of the coordinator. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Coordinator {
    actor: Addr<MigrationCoordinator>,
    shared: Arc<Shared>,
}

/// What handle, actor and the store's thread share.
struct Shared {
    parts: CoordinatorParts,
    settings: CoordinatorSettings,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    stored: Option<SchemaVersion>,
    phase: MigrationPhase,
    step: Option<MigrationStep>,
    meter: Meter,
    /// When the log was told of the rewrite at hand.
    told_at_ms: Option<i64>,
    last_error: Option<String>,
}

/// The log hears of a rewrite at most that often, milliseconds.
const TELL_EVERY_MS: i64 = 5_000;

impl Shared {
    fn now_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn running(&self) -> SchemaVersion {
        self.parts.schema.version()
    }

    async fn step(&self, step: &'static str) {
        pausing_failpoint(step).await;
        self.settings.steps.reached(step).await;
    }

    /// Both barriers, the migration, and what it found.
    async fn prepare(self: &Arc<Self>) -> Result<SchemaOutcome, StoreError> {
        self.state.lock().phase = MigrationPhase::StorageMigration;
        let parts = &self.parts;
        self.step("coordinator.before_barrier").await;
        let held = parts
            .directory
            .hold_all(self.settings.barrier_deadline)
            .await
            .map_err(|timeout| StoreError::Unavailable(Box::new(timeout)))?;
        self.step("coordinator.barrier_held").await;
        let observer = Arc::clone(self) as Arc<dyn MigrationObserver>;
        let ensured = parts
            .store
            .ensure_schema_observed(
                Arc::clone(&parts.schema),
                &parts.declarations,
                parts.clock.now_ms(),
                observer,
            )
            .await;
        self.step("coordinator.after_ensure").await;
        if ensured.is_ok() {
            // Before anybody is served: what was just installed is declared here.
            match declared::refresh(&parts.directory, &*parts.store, &parts.projections).await {
                Ok(_) | Err(StoreError::CheckpointUnsupported) => {}
                Err(error) => return Err(error),
            }
        }
        drop(held);
        ensured
    }

    fn note(&self, ensured: &Result<SchemaOutcome, StoreError>) {
        let mut state = self.state.lock();
        state.step = None;
        match ensured {
            Ok(_) => {
                state.phase = MigrationPhase::Ready;
                state.stored = Some(self.running());
                state.last_error = None;
            }
            Err(error) => {
                state.phase = match error {
                    StoreError::CheckpointIncomplete(_) => MigrationPhase::BackfillCheckpoint,
                    StoreError::NewerSchema { .. } => MigrationPhase::Newer,
                    _ => MigrationPhase::StorageMigration,
                };
                if let StoreError::NewerSchema { stored, .. } = error {
                    state.stored = Some(*stored);
                }
                state.last_error = Some(error.to_string());
            }
        }
    }

    /// What another process may have changed.
    async fn look(&self, ready: bool) {
        let parts = &self.parts;
        match parts.store.published_version().await {
            Ok(stored) => self.saw(stored),
            Err(StoreError::Unsupported) => {}
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "the published version cannot be read");
                return;
            }
        }
        if !ready {
            return;
        }
        match self.look_at_checkpoints().await {
            Ok(undeclared) => self.saw_undeclared(undeclared),
            Err(StoreError::CheckpointUnsupported) => {}
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "checkpoints cannot be read")
            }
        }
    }

    async fn look_at_checkpoints(&self) -> Result<Option<PendingCheckpoint>, StoreError> {
        let (directory, store) = (&self.parts.directory, &*self.parts.store);
        if !self.parts.projections.is_empty() {
            declared::refresh(directory, store, &self.parts.projections).await?;
        }
        declared::undeclared(directory, store, self.running()).await
    }

    /// Another process may declare what this one cannot compute: the gate then refuses
    /// everybody here, and readiness has to say so.
    fn saw_undeclared(&self, undeclared: Option<PendingCheckpoint>) {
        let mut state = self.state.lock();
        match (undeclared, state.phase) {
            (Some(pending), MigrationPhase::Ready) => {
                state.phase = MigrationPhase::BackfillCheckpoint;
                tracing::error!(
                    partition = %pending.partition,
                    name = %pending.name,
                    "a checkpoint is incomplete that this process does not declare"
                );
            }
            (None, MigrationPhase::BackfillCheckpoint) => state.phase = MigrationPhase::Ready,
            _ => {}
        }
    }

    fn saw(&self, stored: Option<SchemaVersion>) {
        let mut state = self.state.lock();
        state.stored = stored;
        let newer = stored.filter(|stored| *stored > self.running());
        match (newer, state.phase) {
            (Some(_), MigrationPhase::Newer) => {}
            (Some(newer), MigrationPhase::Ready | MigrationPhase::BackfillCheckpoint) => {
                state.phase = MigrationPhase::Newer;
                drop(state);
                tracing::error!(
                    stored = newer.0,
                    running = self.running().0,
                    "another process published a newer schema version"
                );
                self.parts.watch.overtaken(newer);
            }
            // A restore brought our version back: the gate reads it afresh as well.
            (None, MigrationPhase::Newer) if stored == Some(self.running()) => {
                state.phase = MigrationPhase::Ready;
            }
            _ => {}
        }
    }
}

impl MigrationObserver for Shared {
    fn step(&self, step: MigrationStep) {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        match &step {
            MigrationStep::Rewriting {
                table,
                rows_done,
                rows_total,
            } => {
                let same = matches!(&state.step, Some(MigrationStep::Rewriting { table: before, .. }) if before == table);
                if !same {
                    state.meter = Meter::default();
                    state.told_at_ms = None;
                }
                state.meter.record(*rows_done, now_ms);
                if state
                    .told_at_ms
                    .is_none_or(|told| now_ms - told >= TELL_EVERY_MS)
                {
                    state.told_at_ms = Some(now_ms);
                    tracing::info!(table, rows_done, rows_total, "the migration rewrites rows");
                }
            }
            MigrationStep::WaitingForBarrier => {
                tracing::info!("the migration waits for writers to finish");
            }
            MigrationStep::BarrierHeld => tracing::info!("the migration holds all writers off"),
            MigrationStep::Publishing => tracing::info!("the migration publishes its version"),
        }
        state.step = Some(step);
    }
}

impl Coordinator {
    /// Starts the coordinator; call it inside an actix system. Nothing is looked at before
    /// [`Self::ensure`].
    pub fn start(parts: CoordinatorParts, settings: CoordinatorSettings) -> Self {
        let shared = Arc::new(Shared {
            parts,
            settings,
            started: Instant::now(),
            state: Mutex::new(State {
                stored: None,
                phase: MigrationPhase::SchemaCompile,
                step: None,
                meter: Meter::default(),
                told_at_ms: None,
                last_error: None,
            }),
        });
        let actor = MigrationCoordinator {
            shared: Arc::clone(&shared),
            ensured: None,
            waiting: None,
            looking: false,
        };
        Self {
            actor: actor.start(),
            shared,
        }
    }

    /// Brings the database to the running schema (rule 1), holding every partition of this
    /// process meanwhile. Success is remembered; a failed run is tried afresh; concurrent
    /// callers share one run. Of two processes that migrate, the database lets one wait,
    /// which then finds it done.
    ///
    /// # Errors
    /// Those of `ensure_schema`; [`StoreError::Unavailable`] also when a partition does not
    /// come to rest in time. To every caller but the first of a shared run a failure is
    /// told in its words alone.
    pub async fn ensure(&self) -> Result<SchemaOutcome, StoreError> {
        match self.actor.send(Ensure).await {
            Ok(receiver) => receiver.await.unwrap_or(Err(StoreError::Closed)),
            Err(_) => Err(StoreError::Closed),
        }
    }

    /// How it stands; at once, during a migration too.
    pub fn status(&self) -> MigrationStatus {
        let now_ms = self.shared.now_ms();
        let mut state = self.shared.state.lock();
        let rewriting = match &state.step {
            Some(MigrationStep::Rewriting { rows_total, .. }) => Some(*rows_total),
            _ => None,
        };
        let progress: Option<Progress> =
            rewriting.map(|rows_total| state.meter.progress(rows_total, now_ms));
        MigrationStatus {
            running: self.shared.running(),
            stored: state.stored,
            phase: state.phase,
            step: state.step.clone(),
            rows_done: progress.map_or(0, |progress| progress.rows_done),
            rows_total: progress.map_or(0, |progress| progress.rows_total),
            rate: progress.map_or(0.0, |progress| progress.rows_per_second),
            left_ms: progress.and_then(|progress| progress.left_ms),
            last_error: state.last_error.clone(),
        }
    }

    /// What [`Self::ensure`] would do now; changes nothing.
    ///
    /// # Errors
    /// The refusals of `ensure_schema`.
    pub async fn plan(&self) -> Result<MigrationPlan, StoreError> {
        let parts = &self.shared.parts;
        parts
            .store
            .plan_migration(Arc::clone(&parts.schema), &parts.declarations)
            .await
    }

    /// Looks at the published version and the checkpoints now instead of at the next turn.
    pub async fn look(&self) {
        // Without the actor nothing is watched any more.
        let _ = self.actor.send(Look).await;
    }
}

type Answer = oneshot::Sender<Result<SchemaOutcome, StoreError>>;

/// Owns the order of runs.
struct MigrationCoordinator {
    shared: Arc<Shared>,
    ensured: Option<SchemaOutcome>,
    /// Callers of the run under way.
    waiting: Option<Vec<Answer>>,
    looking: bool,
}

#[derive(Message)]
#[rtype(result = "oneshot::Receiver<Result<SchemaOutcome, StoreError>>")]
struct Ensure;

#[derive(Message)]
#[rtype(result = "()")]
struct Look;

impl Actor for MigrationCoordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !timers_run() {
            return;
        }
        ctx.run_interval(self.shared.settings.poll, |actor, ctx| {
            // Before the first run there is nothing to compare with.
            if actor.ensured.is_none() || actor.looking {
                return;
            }
            actor.looking = true;
            let shared = Arc::clone(&actor.shared);
            let look = async move { shared.look(true).await };
            ctx.spawn(look.into_actor(actor).map(|(), actor, _| {
                actor.looking = false;
            }));
        });
    }
}

impl Handler<Ensure> for MigrationCoordinator {
    type Result = actix::MessageResult<Ensure>;

    fn handle(&mut self, _: Ensure, ctx: &mut Context<Self>) -> Self::Result {
        let (answer, receiver) = oneshot::channel();
        if let Some(outcome) = self.ensured {
            // A caller that is gone is not told, here and below.
            let _ = answer.send(Ok(outcome));
            return actix::MessageResult(receiver);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.push(answer);
            return actix::MessageResult(receiver);
        }
        self.waiting = Some(vec![answer]);
        let shared = Arc::clone(&self.shared);
        let run = tokio::spawn(async move { shared.prepare().await });
        ctx.spawn(run.into_actor(self).map(|ran, actor, _| {
            let ensured = ran.unwrap_or_else(|failure| {
                Err(StoreError::failed(
                    "prepare the schema",
                    failure.to_string(),
                ))
            });
            actor.shared.note(&ensured);
            if let Ok(outcome) = &ensured {
                actor.ensured = Some(*outcome);
            }
            let mut waiting = actor.waiting.take().unwrap_or_default().into_iter();
            let first = waiting.next();
            for other in waiting {
                let _ = other.send(match &ensured {
                    Ok(outcome) => Ok(*outcome),
                    Err(error) => Err(told_again(error)),
                });
            }
            if let Some(first) = first {
                let _ = first.send(ensured);
            }
        }));
        actix::MessageResult(receiver)
    }
}

impl Handler<Look> for MigrationCoordinator {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Look, _: &mut Context<Self>) -> Self::Result {
        let (shared, ready) = (Arc::clone(&self.shared), self.ensured.is_some());
        Box::pin(async move { shared.look(ready).await })
    }
}

/// The failure of a shared run for one more caller; driver errors cannot be copied.
fn told_again(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(source) => StoreError::Unavailable(source.to_string().into()),
        StoreError::NewerSchema { stored, running } => StoreError::NewerSchema {
            stored: *stored,
            running: *running,
        },
        StoreError::CheckpointIncomplete(pending) => {
            StoreError::CheckpointIncomplete(pending.clone())
        }
        StoreError::CheckpointUnsupported => StoreError::CheckpointUnsupported,
        StoreError::Closed => StoreError::Closed,
        other => StoreError::failed("prepare the schema", other.to_string()),
    }
}

//! The supervisor: which checkpoints this process works on, and when.
//!
//! It never decides who owns a checkpoint, the database does. It only does not ask for one
//! that somebody else is seen to move.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, WrapFuture,
};
use tidegate_engine::PartitionId;
use tidegate_engine::backfill::checkpoint::{self, Activation, Checkpoint, CheckpointState};
use tidegate_engine::backfill::pacing::Pace;
use tidegate_engine::backfill::projection::source_names;
use tidegate_store::{BackfillControl, StoreError, error_chain};
use tokio::time::Instant;

use super::watched::{Start, Watched};
use super::{Activated, BackfillError, CheckpointKey, CheckpointStatus, Environment, MAX_WORKERS};
use crate::clock::timers_run;
use crate::declared;

/// One per process; see [`super::Backfills`].
pub(crate) struct Supervisor {
    env: Arc<Environment>,
    watched: HashMap<CheckpointKey, Watched>,
    looking: bool,
    /// Counts what changed here, commands and ends of runs: a look that began before is out
    /// of date, and would take up what is done or lost.
    changes: u64,
    stopping: bool,
    /// Numbers runs, so that a late report of an earlier one is told from the present one's.
    runs: u64,
}

/// Lists checkpoints.
#[derive(Message)]
#[rtype(result = "Result<Vec<CheckpointStatus>, BackfillError>")]
pub(crate) struct List {
    pub partition: Option<PartitionId>,
}

/// Declares a checkpoint.
#[derive(Message)]
#[rtype(result = "Result<CheckpointStatus, BackfillError>")]
pub(crate) struct Declare {
    pub key: CheckpointKey,
}

/// What an operator wants of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Command {
    Start,
    Pause,
    Resume,
    Abort,
    ForceClaim,
    SetWorkers(u32),
    SetPace(Pace),
}

impl Command {
    fn takes_up(self) -> bool {
        matches!(self, Self::Start | Self::Resume | Self::ForceClaim)
    }

    fn change(self, control: &mut BackfillControl) {
        match self {
            Self::Start | Self::Resume | Self::ForceClaim => {
                control.paused = false;
                control.last_error = None;
            }
            Self::Pause => control.paused = true,
            Self::Abort => {}
            Self::SetWorkers(count) => control.workers = count.clamp(1, MAX_WORKERS),
            Self::SetPace(pace) => control.pace = Some(pace),
        }
    }
}

/// Carries a command out.
#[derive(Message)]
#[rtype(result = "Result<CheckpointStatus, BackfillError>")]
pub(crate) struct Obey {
    pub key: CheckpointKey,
    pub command: Command,
}

/// Activates by hand.
#[derive(Message)]
#[rtype(result = "Result<Activated, BackfillError>")]
pub(crate) struct Activate {
    pub key: CheckpointKey,
}

/// Ends everything.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Stop {
    pub deadline: Duration,
}

/// A run ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct RunEnded {
    pub key: CheckpointKey,
    pub run: u64,
    pub ended: super::run::Ended,
}

/// What the database says.
type Look = Result<(Vec<Checkpoint>, Vec<BackfillControl>), StoreError>;

impl Supervisor {
    pub fn new(env: Arc<Environment>) -> Self {
        Self {
            env,
            watched: HashMap::new(),
            looking: false,
            changes: 0,
            stopping: false,
            runs: 0,
        }
    }

    /// Looks for checkpoints to take up.
    fn look(&mut self, ctx: &mut Context<Self>) {
        if self.looking || self.stopping || self.env.projections.is_empty() {
            return;
        }
        self.looking = true;
        let changes = self.changes;
        let env = Arc::clone(&self.env);
        let look = async move {
            // Its pages pass the gate only while the checkpoint counts as declared here.
            let checkpoints =
                declared::refresh(&env.directory, &*env.store, &env.projections).await?;
            with_controls(&env, None, checkpoints).await
        };
        ctx.spawn(look.into_actor(self).map(move |look, actor, ctx| {
            actor.looking = false;
            match look {
                Ok(_) if actor.changes != changes || actor.stopping => {}
                Ok((checkpoints, controls)) => actor.take_up(&checkpoints, &controls, ctx),
                Err(StoreError::CheckpointUnsupported | StoreError::Closed) => {}
                Err(error) => {
                    tracing::warn!(error = %error_chain(&error), "checkpoints cannot be read; trying again");
                }
            }
        }));
    }

    fn take_up(
        &mut self,
        checkpoints: &[Checkpoint],
        controls: &[BackfillControl],
        ctx: &mut Context<Self>,
    ) {
        for checkpoint in checkpoints {
            let key = CheckpointKey::of(checkpoint);
            if !checkpoint.state.is_incomplete() {
                // There may be thousands, of partitions and of times long past.
                self.forget_if_idle(&key);
                continue;
            }
            let control = control_of(&self.env, &key, controls);
            self.consider(&key, checkpoint, control, Start::IfFree, ctx);
        }
    }

    fn forget_if_idle(&mut self, key: &CheckpointKey) {
        if self.watched.get(key).is_some_and(Watched::is_idle) {
            self.watched.remove(key);
        }
    }

    /// Takes a checkpoint up if it is to be and may be.
    fn consider(
        &mut self,
        key: &CheckpointKey,
        checkpoint: &Checkpoint,
        control: BackfillControl,
        start: Start,
        ctx: &mut Context<Self>,
    ) {
        let lease = self.env.settings.lease;
        // The others wait for their turn unclaimed, for anybody to take.
        let running = self.watched.values().filter(|other| !other.is_idle());
        let crowded = start == Start::IfFree && running.count() >= self.env.settings.runs.max(1);
        let watched = self.watched.entry(key.clone()).or_default();
        watched.observe(checkpoint, Instant::now());
        let mut orders = self.env.orders(&control);
        orders.stop |= self.stopping;
        watched.order(orders);
        let Some(projection) = self.env.projection_of(checkpoint) else {
            return;
        };
        let wanted = !self.stopping && !control.paused && checkpoint.state.is_incomplete();
        if !wanted || crowded || !watched.may_start(start, lease, Instant::now()) {
            return;
        }
        self.runs += 1;
        watched.run(
            self.runs,
            key,
            orders,
            Arc::clone(projection),
            Arc::clone(&self.env),
            ctx.address(),
        );
    }

    fn status(&self, checkpoint: Checkpoint, control: &BackfillControl) -> CheckpointStatus {
        let projection_loaded = self.env.projection_of(&checkpoint).is_some();
        let orders = self.env.orders(control);
        match self.watched.get(&CheckpointKey::of(&checkpoint)) {
            Some(watched) => watched.status(checkpoint, control, orders, projection_loaded),
            None => Watched::default().status(checkpoint, control, orders, projection_loaded),
        }
    }
}

fn control_of(
    env: &Environment,
    key: &CheckpointKey,
    controls: &[BackfillControl],
) -> BackfillControl {
    controls
        .iter()
        .find(|found| found.name == key.name && found.partition == key.partition)
        .cloned()
        .unwrap_or_else(|| env.default_control(key))
}

async fn read_all(env: &Environment, partition: Option<&PartitionId>) -> Look {
    let checkpoints = env.store.list_checkpoints(partition).await?;
    with_controls(env, partition, checkpoints).await
}

async fn with_controls(
    env: &Environment,
    partition: Option<&PartitionId>,
    checkpoints: Vec<Checkpoint>,
) -> Look {
    let controls = if checkpoints.is_empty() {
        Vec::new()
    } else {
        env.store.list_backfill_controls(partition).await?
    };
    Ok((checkpoints, controls))
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !timers_run() {
            return;
        }
        self.look(ctx);
        ctx.run_interval(self.env.settings.poll, Self::look);
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for watched in self.watched.values_mut() {
            watched.cut_off();
        }
    }
}

impl Handler<List> for Supervisor {
    type Result = ResponseActFuture<Self, Result<Vec<CheckpointStatus>, BackfillError>>;

    fn handle(&mut self, message: List, _: &mut Context<Self>) -> Self::Result {
        let env = Arc::clone(&self.env);
        let stopping = self.stopping;
        let read = async move {
            if stopping {
                return Err(BackfillError::Stopping);
            }
            Ok(read_all(&env, message.partition.as_ref()).await?)
        };
        Box::pin(read.into_actor(self).map(|look, actor, _| {
            let (checkpoints, controls) = look?;
            Ok(checkpoints
                .into_iter()
                .map(|checkpoint| {
                    let key = CheckpointKey::of(&checkpoint);
                    let control = control_of(&actor.env, &key, &controls);
                    actor.status(checkpoint, &control)
                })
                .collect())
        }))
    }
}

impl Handler<Declare> for Supervisor {
    type Result = ResponseActFuture<Self, Result<CheckpointStatus, BackfillError>>;

    fn handle(&mut self, message: Declare, _: &mut Context<Self>) -> Self::Result {
        let (env, key) = (Arc::clone(&self.env), message.key);
        let stopping = self.stopping;
        let declare = async move {
            if stopping {
                return Err(BackfillError::Stopping);
            }
            let projection = env
                .projections
                .iter()
                .find(|projection| *projection.name() == *key.name)
                .ok_or(BackfillError::ProjectionNotLoaded)?;
            let wanted = checkpoint::Declare {
                partition: key.partition.clone(),
                name: Arc::clone(&key.name),
                schema_version: projection.schema_version(),
            };
            let declare = env.store.declare_checkpoint(&wanted, env.clock.now_ms());
            let (directory, partition) = (&env.directory, key.partition.as_str());
            let checkpoint = declared::declaring(directory, partition, &key.name, declare).await?;
            let control = env.read_control(&key).await?;
            Ok((key, checkpoint, control))
        };
        Box::pin(declare.into_actor(self).map(|declared, actor, ctx| {
            let (key, checkpoint, control) = declared?;
            actor.changes += 1;
            actor.consider(&key, &checkpoint, control.clone(), Start::IfFree, ctx);
            Ok(actor.status(checkpoint, &control))
        }))
    }
}

impl Handler<Obey> for Supervisor {
    type Result = ResponseActFuture<Self, Result<CheckpointStatus, BackfillError>>;

    fn handle(&mut self, message: Obey, _: &mut Context<Self>) -> Self::Result {
        let Obey { key, command } = message;
        let env = Arc::clone(&self.env);
        let stopping = self.stopping;
        let edit = async move {
            if stopping {
                return Err(BackfillError::Stopping);
            }
            let read = env.store.read_checkpoint(&key.partition, &key.name).await?;
            let checkpoint = read.ok_or(BackfillError::NotDeclared)?;
            if command.takes_up() {
                if !checkpoint.state.is_incomplete() {
                    return Err(BackfillError::NotDeclared);
                }
                env.projection_of(&checkpoint)
                    .ok_or(BackfillError::ProjectionNotLoaded)?;
            }
            let control = env
                .edit_control(&key, |control| command.change(control))
                .await?;
            Ok((key, checkpoint, control))
        };
        Box::pin(edit.into_actor(self).map(move |edited, actor, ctx| {
            let (key, checkpoint, control) = edited?;
            actor.changes += 1;
            let watched = actor.watched.entry(key.clone()).or_default();
            let start = match command {
                Command::Start | Command::Resume => {
                    watched.forgive();
                    Start::IfFree
                }
                Command::ForceClaim => {
                    watched.forgive();
                    watched.cut_off();
                    Start::Force
                }
                Command::Abort => {
                    watched.hold();
                    watched.cut_off();
                    Start::IfFree
                }
                Command::Pause | Command::SetWorkers(_) | Command::SetPace(_) => Start::IfFree,
            };
            actor.consider(&key, &checkpoint, control.clone(), start, ctx);
            Ok(actor.status(checkpoint, &control))
        }))
    }
}

impl Handler<Activate> for Supervisor {
    type Result = ResponseActFuture<Self, Result<Activated, BackfillError>>;

    fn handle(&mut self, message: Activate, _: &mut Context<Self>) -> Self::Result {
        let (env, key) = (Arc::clone(&self.env), message.key);
        let activate = async move {
            let read = env.store.read_checkpoint(&key.partition, &key.name).await?;
            let checkpoint = read.ok_or(BackfillError::FenceMissing)?;
            if checkpoint.state == CheckpointState::Activated {
                return Ok(Activated::Activated);
            }
            let projection = env
                .projection_of(&checkpoint)
                .ok_or(BackfillError::ProjectionNotLoaded)?;
            let request = tidegate_store::Activate {
                sources: source_names(&env.schema, &**projection)
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
                partition: key.partition,
                name: key.name,
                owner_epoch: checkpoint.owner_epoch,
                watermark: checkpoint.watermark,
                now_ms: env.clock.now_ms(),
            };
            Ok(match env.store.activate_checkpoint(&request).await? {
                Activation::Activated(_) => Activated::Activated,
                Activation::Stale => Activated::Stale,
                Activation::Unverifiable => Activated::Unverifiable,
            })
        };
        Box::pin(activate.into_actor(self))
    }
}

impl Handler<RunEnded> for Supervisor {
    type Result = ();

    fn handle(&mut self, message: RunEnded, ctx: &mut Context<Self>) {
        self.changes += 1;
        let settings = &self.env.settings;
        let Some(watched) = self.watched.get_mut(&message.key) else {
            return;
        };
        if watched.ended(message.run, message.ended, settings, Instant::now()) {
            // A resumption, or another claim, may have come while it was ending.
            self.look(ctx);
        }
    }
}

impl Handler<Stop> for Supervisor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, message: Stop, _: &mut Context<Self>) -> Self::Result {
        self.stopping = true;
        let boards: Vec<_> = self.watched.values().filter_map(Watched::board).collect();
        for board in &boards {
            board.order(|orders| orders.stop = true);
        }
        let ended = async move {
            let all = async {
                for board in boards {
                    board.finished().await;
                }
            };
            // What does not end in time is cut off below.
            let _ = tokio::time::timeout(message.deadline, all).await;
        };
        Box::pin(ended.into_actor(self).map(|(), actor, _| {
            for watched in actor.watched.values_mut() {
                watched.cut_off();
            }
        }))
    }
}

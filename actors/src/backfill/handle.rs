//! The handle of the supervisor: every operation is a message to its actor.

use std::sync::Arc;
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Arbiter, Handler, Message};
use tidegate_engine::PartitionId;
use tidegate_engine::backfill::pacing::Pace;

use super::supervisor::{Activate, Command, Declare, List, Obey, Stop, Supervisor};
use super::{
    Activated, BackfillError, BackfillParts, BackfillSettings, CheckpointKey, CheckpointStatus,
    Environment,
};

/// The backfills of this process. Cheap to clone; usable from any thread.
#[derive(Debug, Clone)]
pub struct Backfills {
    supervisor: Addr<Supervisor>,
    arbiter: actix::ArbiterHandle,
}

impl Backfills {
    /// Starts the supervisor on a thread of its own; call it inside an actix system. It
    /// takes up every incomplete checkpoint that this process has the projection for, that
    /// nobody paused and no other owner works on.
    pub fn start(parts: BackfillParts, settings: BackfillSettings) -> Self {
        let environment = Arc::new(Environment::new(parts, settings));
        let arbiter = Arbiter::new().handle();
        let supervisor = Supervisor::start_in_arbiter(&arbiter, |_| Supervisor::new(environment));
        Self {
            supervisor,
            arbiter,
        }
    }

    /// Checkpoints of one partition, or of all, by (partition, name).
    ///
    /// # Errors
    /// [`BackfillError::Unsupported`], [`BackfillError::Unavailable`]
    pub async fn list(
        &self,
        partition: Option<PartitionId>,
    ) -> Result<Vec<CheckpointStatus>, BackfillError> {
        self.ask(List { partition }).await
    }

    /// Declares a checkpoint of a loaded projection and raises the writer fence
    /// (migrations.md rule 2); it is taken up at once.
    ///
    /// # Errors
    /// [`BackfillError::ProjectionNotLoaded`], [`BackfillError::VersionTaken`]
    pub async fn declare(
        &self,
        partition: PartitionId,
        name: String,
    ) -> Result<CheckpointStatus, BackfillError> {
        let name = name.into();
        self.ask(Declare {
            key: CheckpointKey { partition, name },
        })
        .await
    }

    /// Takes a checkpoint up that was paused, aborted or failed. One that another owner
    /// works on is left to it.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`], [`BackfillError::ProjectionNotLoaded`]
    pub async fn start_workers(
        &self,
        key: CheckpointKey,
    ) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::Start).await
    }

    /// Pauses a checkpoint in every process, durably; pages in flight finish.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`]
    pub async fn pause(&self, key: CheckpointKey) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::Pause).await
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`]
    pub async fn resume(&self, key: CheckpointKey) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::Resume).await
    }

    /// Stops the work of this process at once, until it is started again; the checkpoint
    /// stays claimable.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`]
    pub async fn abort(&self, key: CheckpointKey) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::Abort).await
    }

    /// Claims a checkpoint whoever owns it, here or elsewhere, and works on.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`], [`BackfillError::ProjectionNotLoaded`]
    pub async fn force_claim(&self, key: CheckpointKey) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::ForceClaim).await
    }

    /// Asks for the activation at the stored watermark and owner (rule 7).
    ///
    /// # Errors
    /// [`BackfillError::FenceMissing`]
    pub async fn activate(&self, key: CheckpointKey) -> Result<Activated, BackfillError> {
        self.ask(Activate { key }).await
    }

    /// Sets how many workers scan, durably; a running scan is split anew. Between 1 and
    /// [`super::MAX_WORKERS`]; to have none, pause.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`]
    pub async fn set_workers(
        &self,
        key: CheckpointKey,
        count: u32,
    ) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::SetWorkers(count)).await
    }

    /// Sets the pace, durably; at once.
    ///
    /// # Errors
    /// [`BackfillError::NotDeclared`]
    pub async fn set_pace(
        &self,
        key: CheckpointKey,
        pace: Pace,
    ) -> Result<CheckpointStatus, BackfillError> {
        self.obey(key, Command::SetPace(pace)).await
    }

    /// Ends every run: nobody claims any more, pages in flight finish, what has not ended
    /// by the deadline is cut off, which is safe at any point.
    pub async fn stop(&self, deadline: Duration) {
        // Without a supervisor everything has ended already.
        let _ = self.supervisor.send(Stop { deadline }).await;
        self.arbiter.stop();
    }

    async fn obey(
        &self,
        key: CheckpointKey,
        command: Command,
    ) -> Result<CheckpointStatus, BackfillError> {
        self.ask(Obey { key, command }).await
    }

    async fn ask<M, T>(&self, message: M) -> Result<T, BackfillError>
    where
        M: Message<Result = Result<T, BackfillError>> + Send + 'static,
        T: Send + 'static,
        Supervisor: Handler<M>,
        <Supervisor as Actor>::Context: ToEnvelope<Supervisor, M>,
    {
        let answer = self.supervisor.send(message).await;
        answer.unwrap_or(Err(BackfillError::Stopping))
    }
}

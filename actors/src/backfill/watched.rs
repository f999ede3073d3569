//! What the supervisor knows of one checkpoint: whether somebody moves it, and the run of
//! this process, if there is one.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tidegate_engine::OwnerEpoch;
use tidegate_engine::backfill::checkpoint::{Checkpoint, CheckpointState};
use tidegate_engine::backfill::projection::Projection;
use tidegate_store::BackfillControl;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::board::{Board, Orders};
use super::run::{Ended, Run};
use super::supervisor::{RunEnded, Supervisor};
use super::{BackfillSettings, CheckpointKey, CheckpointStatus, Environment, WorkerPhase};

/// How a start deals with another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Leaves the checkpoint to an owner that moves it.
    IfFree,
    /// Takes it over.
    Force,
}

/// A checkpoint under watch.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The row as last seen, and since when it has been so.
    seen: Option<(Checkpoint, Instant)>,
    /// An operator stopped the work of this process.
    held: bool,
    /// Why the last run ended, unless another one began.
    ended: Option<Ended>,
    /// The last claim of this process.
    claimed: Option<OwnerEpoch>,
    crashes: u32,
    not_before: Option<Instant>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    number: u64,
    board: Arc<Board>,
    task: AbortHandle,
}

impl Watched {
    /// Notes the row. One that changed since the last look is alive.
    pub fn observe(&mut self, checkpoint: &Checkpoint, now: Instant) {
        let unchanged = self
            .seen
            .as_ref()
            .is_some_and(|(before, _)| before == checkpoint);
        if !unchanged {
            self.seen = Some((checkpoint.clone(), now));
        }
    }

    pub fn order(&self, orders: Orders) {
        if let Some(running) = &self.running {
            running.board.order(|current| *current = orders);
        }
    }

    pub fn board(&self) -> Option<Arc<Board>> {
        self.running
            .as_ref()
            .map(|running| Arc::clone(&running.board))
    }

    /// Whether nothing runs here.
    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// Stops the work of this process until [`Self::forgive`].
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Forgets what kept the work from going on.
    pub fn forgive(&mut self) {
        self.held = false;
        self.ended = None;
        self.crashes = 0;
        self.not_before = None;
    }

    /// Ends the run wherever it stands.
    pub fn cut_off(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
            running.board.finish();
            self.claimed = running.board.epoch().or(self.claimed);
        }
    }

    /// Whether a run may start now.
    pub fn may_start(&self, start: Start, lease: Duration, now: Instant) -> bool {
        if self.running.is_some() || self.held {
            return false;
        }
        if start == Start::Force {
            return true;
        }
        if matches!(self.ended, Some(Ended::Failed(_)))
            || self.not_before.is_some_and(|then| now < then)
        {
            return false;
        }
        self.seen.as_ref().is_some_and(|(checkpoint, since)| {
            let free = match checkpoint.state {
                CheckpointState::Declared => true,
                // Nobody claimed it since this process did.
                CheckpointState::Backfilling => self.claimed == Some(checkpoint.owner_epoch),
                CheckpointState::Activated => return false,
            };
            free || now.duration_since(*since) >= lease
        })
    }

    /// Starts a run.
    pub fn run(
        &mut self,
        number: u64,
        key: &CheckpointKey,
        orders: Orders,
        projection: Arc<dyn Projection>,
        env: Arc<Environment>,
        supervisor: Addr<Supervisor>,
    ) {
        let board = Arc::new(Board::new(orders));
        let run = Run::new(env, projection, key.clone(), Arc::clone(&board));
        let work = tokio::spawn(run.work_off());
        let task = work.abort_handle();
        let (key, done) = (key.clone(), Arc::clone(&board));
        tokio::spawn(async move {
            let ended = match work.await {
                Ok(ended) => ended,
                Err(failure) if failure.is_panic() => Ended::Crashed,
                Err(_) => Ended::Stopped,
            };
            done.finish();
            supervisor.do_send(RunEnded {
                key,
                run: number,
                ended,
            });
        });
        self.ended = None;
        self.running = Some(Running {
            number,
            board,
            task,
        });
    }

    /// Notes the end of a run; `false` when it was cut off before.
    pub fn ended(
        &mut self,
        number: u64,
        ended: Ended,
        settings: &BackfillSettings,
        now: Instant,
    ) -> bool {
        if self.running.as_ref().is_none_or(|run| run.number != number) {
            return false;
        }
        if let Some(running) = self.running.take() {
            self.claimed = running.board.epoch().or(self.claimed);
        }
        if ended == Ended::Superseded {
            // Whoever has it now is given a lease before anything else.
            self.claimed = None;
        }
        if ended == Ended::Crashed {
            let pause = settings.first_pause * 2_u32.saturating_pow(self.crashes.min(16));
            self.not_before = Some(now + pause.min(settings.longest_pause));
            self.crashes += 1;
        }
        self.ended = Some(ended);
        true
    }

    pub fn status(
        &self,
        checkpoint: Checkpoint,
        control: &BackfillControl,
        orders: Orders,
        projection_loaded: bool,
    ) -> CheckpointStatus {
        let board = self.running.as_ref().map(|running| &running.board);
        let phase = match (board, &self.ended) {
            _ if checkpoint.state == CheckpointState::Activated => WorkerPhase::Activated,
            (Some(board), _) => board.phase(),
            _ if control.paused => WorkerPhase::Paused,
            (None, Some(Ended::Failed(_))) => WorkerPhase::Failed,
            (None, Some(Ended::Superseded)) => WorkerPhase::Superseded,
            (None, _) => WorkerPhase::Idle,
        };
        let failure = match &self.ended {
            Some(Ended::Failed(reason)) => Some(reason.clone()),
            Some(Ended::Crashed) => Some("the worker crashed; it is restarted".to_owned()),
            _ => None,
        };
        CheckpointStatus {
            projection_loaded,
            phase,
            workers_wanted: orders.workers,
            workers_running: board.map_or(0, |board| board.running()),
            owned_here: board.is_some_and(|board| board.epoch() == Some(checkpoint.owner_epoch))
                && checkpoint.state.is_incomplete(),
            progress: board.and_then(|board| board.progress()),
            pace: orders.pace,
            rate_share: board.map_or(1.0, |board| board.rate_share()),
            last_error: board
                .and_then(|board| board.error())
                .or(failure)
                .or_else(|| control.last_error.clone()),
            checkpoint,
        }
    }
}

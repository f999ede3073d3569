//! Waiting: for storage that fails, which ends no backfill, and for the pace.

use std::time::Duration;

use ssp2::ErrorCode;
use tidegate_store::StoreError;

use super::Environment;
use super::run::{Ended, Run};
use crate::error::PushError;
use crate::failpoint::pausing_failpoint;

/// Longest wait for the pace without a look at it.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What went wrong with a step.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It may pass: try again. The reason, for the operator.
    Passing(String),
    /// It will not.
    Lasting(Ended),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::CheckpointNotDeclared => Self::Lasting(Ended::Gone),
            StoreError::Closed => Self::Lasting(Ended::Stopped),
            StoreError::CheckpointFenceMissing
            | StoreError::CheckpointUnsupported
            | StoreError::Unsupported
            | StoreError::Corrupt { .. } => Self::Lasting(Ended::Failed(error.to_string())),
            other => {
                tracing::warn!(error = ?other, "a backfill waits for storage");
                Self::Passing(other.to_string())
            }
        }
    }
}

impl From<PushError> for Trouble {
    fn from(error: PushError) -> Self {
        let passing = error.unavailable
            || matches!(
                error.error.code,
                ErrorCode::InternalError | ErrorCode::SchemaNotReady | ErrorCode::RateLimited
            );
        if passing {
            Self::Passing(error.error.message.into_owned())
        } else {
            Self::Lasting(Ended::Failed(error.error.message.into_owned()))
        }
    }
}

impl From<Ended> for Trouble {
    fn from(ended: Ended) -> Self {
        Self::Lasting(ended)
    }
}

impl Environment {
    /// The work came to a step.
    pub async fn step(&self, step: &'static str) {
        pausing_failpoint(step).await;
        self.settings.steps.reached(step).await;
    }
}

impl Run {
    /// Repeats a step until storage answers, ever more slowly, and visibly.
    pub async fn insist<T, E: Into<Trouble>, F: Future<Output = Result<T, E>>>(
        &self,
        mut step: impl FnMut() -> F,
    ) -> Result<T, Ended> {
        let settings = &self.env.settings;
        let mut pause = settings.first_pause.max(Duration::from_millis(1));
        let mut waited = false;
        loop {
            match step().await.map_err(Into::into) {
                Ok(value) => {
                    if waited {
                        self.board.set_error(None);
                    }
                    return Ok(value);
                }
                Err(Trouble::Lasting(ended)) => return Err(ended),
                Err(Trouble::Passing(reason)) => {
                    waited = true;
                    self.board.set_error(Some(reason));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.board.stopped() => return Err(Ended::Stopped),
            }
            pause = (pause * 2).min(settings.longest_pause);
        }
    }

    /// Waits until the pace allows more rows; `false` when another number of workers than
    /// `workers` is wanted before that.
    pub async fn rest(&self, workers: Option<u32>) -> Result<bool, Ended> {
        let mut orders = self.board.subscribe();
        loop {
            // Looked at after the subscription: orders that come later wake the wait.
            let wanted = orders.borrow_and_update().workers;
            self.check_orders()?;
            if workers.is_some_and(|workers| workers != wanted) {
                return Ok(false);
            }
            let wait = self.charge(0);
            if wait == 0 {
                return Ok(true);
            }
            // Now and then pushes are looked at: the pace may have changed by itself.
            let wait = Duration::from_millis(wait).min(LOOK_EVERY);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // The sender lives as long as the board.
                _ = orders.changed() => {}
            }
        }
    }

    /// Charges rows that were worked on; milliseconds until the next ones.
    pub fn charge(&self, rows: usize) -> u64 {
        let board = &self.board;
        self.partition
            .latencies(|pushes| board.charge(rows, pushes))
    }
}

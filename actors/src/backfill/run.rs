//! One owner's work on a checkpoint, from the claim to the activation.

use std::sync::Arc;

use tidegate_engine::backfill::projection::Projection;
use tidegate_store::StoreError;

use super::board::Board;
use super::{CheckpointKey, Environment};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The checkpoint is activated.
    Activated,
    /// Another owner claimed it, or it was activated by hand.
    Superseded,
    /// There is nothing to claim.
    Gone,
    /// A row cannot be computed or written; the reason, for the operator.
    Failed(String),
    /// It was told to.
    Stopped,
    /// It panicked.
    Crashed,
}

/// The run.
pub(super) struct Run {
    env: Arc<Environment>,
    projection: Arc<dyn Projection>,
    key: CheckpointKey,
    board: Arc<Board>,
}

impl Run {
    pub fn new(
        env: Arc<Environment>,
        projection: Arc<dyn Projection>,
        key: CheckpointKey,
        board: Arc<Board>,
    ) -> Self {
        Self {
            env,
            projection,
            key,
            board,
        }
    }

    pub async fn work_off(self) -> Ended {
        let version = self.projection.schema_version();
        let now_ms = self.env.clock.now_ms();
        let claim =
            self.env
                .store
                .claim_checkpoint(&self.key.partition, &self.key.name, version, now_ms);
        match claim.await {
            Ok(claimed) => self.board.claimed(claimed.owner_epoch),
            Err(StoreError::CheckpointNotDeclared) => return Ended::Gone,
            Err(error) => return Ended::Failed(error.to_string()),
        }
        self.board.stopped().await;
        Ended::Stopped
    }
}

//! What operators set, kept in the database.

use tidegate_engine::backfill::checkpoint::Checkpoint;
use tidegate_engine::backfill::projection::Projection;
use tidegate_store::{BackfillControl, StoreError};

use std::sync::Arc;

use super::board::Orders;
use super::{CheckpointKey, Environment, MAX_WORKERS};
use crate::declared::projection_of;

impl Environment {
    /// The projection that computes a checkpoint, if it is loaded.
    pub fn projection_of(&self, checkpoint: &Checkpoint) -> Option<&Arc<dyn Projection>> {
        projection_of(&self.projections, checkpoint)
    }

    /// What holds for a checkpoint that nobody set anything for.
    pub fn default_control(&self, key: &CheckpointKey) -> BackfillControl {
        BackfillControl {
            partition: key.partition.clone(),
            name: Arc::clone(&key.name),
            paused: false,
            workers: self.settings.workers.clamp(1, MAX_WORKERS),
            pace: None,
            last_error: None,
            updated_at_ms: self.clock.now_ms(),
        }
    }

    /// The control of a checkpoint.
    pub async fn read_control(&self, key: &CheckpointKey) -> Result<BackfillControl, StoreError> {
        let stored = self
            .store
            .list_backfill_controls(Some(&key.partition))
            .await?;
        Ok(stored
            .into_iter()
            .find(|control| control.name == key.name)
            .unwrap_or_else(|| self.default_control(key)))
    }

    /// Changes the control of a checkpoint durably; a change that changes nothing is not
    /// written.
    pub async fn edit_control(
        &self,
        key: &CheckpointKey,
        change: impl FnOnce(&mut BackfillControl),
    ) -> Result<BackfillControl, StoreError> {
        let _one_at_a_time = self.editing.lock().await;
        let before = self.read_control(key).await?;
        let mut control = before.clone();
        change(&mut control);
        if control != before {
            control.updated_at_ms = self.clock.now_ms();
            self.store.put_backfill_control(&control).await?;
        }
        Ok(control)
    }

    /// The orders for a run under that control.
    pub fn orders(&self, control: &BackfillControl) -> Orders {
        Orders {
            stop: control.paused,
            workers: control.workers.clamp(1, MAX_WORKERS),
            pace: control.pace.unwrap_or(self.settings.pace),
        }
    }
}

//! One owner's work on a checkpoint, from the claim to the activation.
//!
//! A run may end anywhere, with the process or without: whatever it did is in the log and
//! in the checkpoint's row, from which the next owner goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate_engine::backfill::checkpoint::Advance;
use tidegate_engine::backfill::page::{BackfillPage, RowChange};
use tidegate_engine::backfill::projection::{Projection, Shape, source_names};
use tidegate_engine::backfill::scan::{self, KeyRange, PageId, Place, Resume, SCANNING};
use tidegate_engine::{CommitSeq, OwnerEpoch, TableId};
use tokio::sync::Mutex;

use super::board::Board;
use super::follow::Followed;
use super::{CheckpointKey, Environment};
use crate::directory::PartitionHandle;
use crate::page_commit::{Moved, PageOutcome};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The checkpoint is activated.
    Activated,
    /// Another owner claimed it.
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

/// What the owner has told the database of its work. Whoever advances the checkpoint holds
/// it meanwhile, so that totals never fall.
#[derive(Debug)]
pub(super) struct Ledger {
    pub epoch: OwnerEpoch,
    pub watermark: CommitSeq,
    pub observed: i64,
    pub advanced: Instant,
}

/// The run.
pub(super) struct Run {
    pub env: Arc<Environment>,
    pub projection: Arc<dyn Projection>,
    pub key: CheckpointKey,
    pub board: Arc<Board>,
    pub sources: Vec<String>,
    pub partition: PartitionHandle,
    pub ledger: Mutex<Ledger>,
    /// Numbers the pages that follow the log: two pages never share an id, however a
    /// window is cut.
    parts: AtomicU32,
}

impl Run {
    pub fn new(
        env: Arc<Environment>,
        projection: Arc<dyn Projection>,
        key: CheckpointKey,
        board: Arc<Board>,
    ) -> Self {
        let sources = source_names(&env.schema, &*projection)
            .into_iter()
            .map(str::to_owned)
            .collect();
        Self {
            partition: env.directory.partition(&key.partition),
            ledger: Mutex::new(Ledger {
                epoch: OwnerEpoch(0),
                watermark: SCANNING,
                observed: 0,
                advanced: Instant::now(),
            }),
            parts: AtomicU32::new(0),
            env,
            projection,
            key,
            board,
            sources,
        }
    }

    /// Works until the checkpoint is activated or something ends it.
    pub async fn work_off(self) -> Ended {
        let run = Arc::new(self);
        let ended = match run.own().await {
            Ok(()) => Ended::Activated,
            Err(ended) => ended,
        };
        match &ended {
            Ended::Activated => tracing::info!(
                partition = %run.key.partition, name = %run.key.name,
                "a backfill is activated"
            ),
            Ended::Failed(reason) => run.store_failure(reason).await,
            // Its own activation may be what it stumbled over, when the answer was lost.
            Ended::Superseded if run.is_activated().await => return Ended::Activated,
            Ended::Superseded => tracing::info!(
                partition = %run.key.partition, name = %run.key.name,
                "another owner took the backfill over"
            ),
            _ => {}
        }
        ended
    }

    pub fn source_names(&self) -> Vec<&str> {
        self.sources.iter().map(String::as_str).collect()
    }

    pub fn source_tables(&self) -> &[TableId] {
        self.projection.sources()
    }

    /// What happens to a row that changed under a page: the log names a source row again,
    /// a row of a table of its own it does not.
    pub fn moved(&self) -> Moved {
        match self.projection.shape() {
            Shape::Columns(_) => Moved::LeaveOut,
            Shape::Rows => Moved::PlanAnew,
        }
    }

    pub fn check_orders(&self) -> Result<(), Ended> {
        if self.board.orders().stop {
            Err(Ended::Stopped)
        } else {
            Ok(())
        }
    }

    /// Claims the checkpoint and carries it through, keeping the claim visibly alive.
    async fn own(self: &Arc<Self>) -> Result<(), Ended> {
        let env = &self.env;
        let (partition, name) = (&self.key.partition, &*self.key.name);
        let version = self.projection.schema_version();
        env.step("backfill.claim.before").await;
        let claimed = self
            .insist(|| {
                env.store
                    .claim_checkpoint(partition, name, version, env.clock.now_ms())
            })
            .await?;
        self.board.claimed(claimed.owner_epoch);
        *self.ledger.lock().await = Ledger {
            epoch: claimed.owner_epoch,
            watermark: claimed.watermark,
            observed: claimed.observed_rows,
            advanced: Instant::now(),
        };
        tracing::info!(
            %partition, name, owner_epoch = claimed.owner_epoch.0,
            "a backfill is claimed"
        );
        env.step("backfill.claim.after").await;
        self.insist(|| env.edit_control(&self.key, |control| control.last_error = None))
            .await?;
        let pages = self
            .insist(|| env.store.backfill_pages(partition, name))
            .await?;
        let bounds = self.insist(|| self.read_bounds()).await?;
        let resume = scan::resume(
            &claimed,
            bounds.horizon,
            self.projection.fingerprint(),
            &self.source_names(),
            &pages,
        );
        tokio::select! {
            carried = self.carry_through(resume) => carried,
            ended = self.keep_alive() => Err(ended),
        }
    }

    async fn carry_through(self: &Arc<Self>, resume: Resume) -> Result<(), Ended> {
        let mut scan = match resume {
            Resume::FromTheStart => Some(self.begin_scan().await?),
            Resume::Scan { start, ranges } => Some((start, ranges)),
            Resume::CatchUp { .. } => None,
        };
        loop {
            if let Some((start, ranges)) = scan.take() {
                self.scan(start, ranges).await?;
            }
            match self.follow().await? {
                Followed::Activated => return Ok(()),
                Followed::LostTrack => {
                    let reason = "the log was pruned past the watermark: scanning anew";
                    tracing::warn!(partition = %self.key.partition, name = %self.key.name, reason);
                    self.board.set_error(Some(reason.to_owned()));
                    scan = Some(self.begin_scan().await?);
                }
            }
        }
    }

    /// Begins a scan of everything at the newest commit of a snapshot of its own.
    async fn begin_scan(&self) -> Result<(CommitSeq, Vec<KeyRange>), Ended> {
        let scanned_before = {
            let mut ledger = self.ledger.lock().await;
            ledger.observed = 0;
            ledger.watermark != SCANNING
        };
        if scanned_before {
            self.advance(SCANNING).await?;
        }
        let bounds = self.insist(|| self.read_bounds()).await?;
        let ranges = self
            .sources
            .iter()
            .map(|table| KeyRange::whole(table))
            .collect();
        Ok((bounds.max, ranges))
    }

    /// The next page that follows the log.
    pub fn next_part(&self) -> u32 {
        self.parts.fetch_add(1, Ordering::Relaxed)
    }

    /// Commits a page and its advance. `false` = it has to be planned anew.
    pub async fn commit(
        &self,
        place: Place,
        changes: Vec<RowChange>,
        watermark: CommitSeq,
        rows: usize,
    ) -> Result<bool, Ended> {
        self.env.step("backfill.page.planned").await;
        let mut ledger = self.ledger.lock().await;
        let id = PageId {
            owner_epoch: ledger.epoch,
            fingerprint: self.projection.fingerprint().into(),
            place,
        };
        let advance = Advance {
            owner_epoch: ledger.epoch,
            watermark,
            observed_rows: ledger
                .observed
                .saturating_add(i64::try_from(rows).unwrap_or(i64::MAX)),
        };
        let page = Arc::new(BackfillPage::new(&self.key.name, &id, changes, advance));
        self.env.step("backfill.page.before_commit").await;
        let outcome = self
            .insist(|| self.partition.queue_page(Arc::clone(&page), self.moved()))
            .await?;
        match outcome {
            PageOutcome::Committed { .. } | PageOutcome::AlreadyDone => {}
            PageOutcome::Superseded => return Err(Ended::Superseded),
            PageOutcome::Outdated => return Ok(false),
        }
        // At once: whoever advances next must not fall behind what is stored.
        ledger.watermark = advance.watermark;
        ledger.observed = advance.observed_rows;
        ledger.advanced = Instant::now();
        self.board.record_rows(ledger.observed);
        self.env.step("backfill.page.after_commit").await;
        Ok(true)
    }

    /// Moves the watermark without a page.
    pub async fn advance(&self, watermark: CommitSeq) -> Result<(), Ended> {
        let mut ledger = self.ledger.lock().await;
        let to = Advance {
            owner_epoch: ledger.epoch,
            watermark,
            observed_rows: ledger.observed,
        };
        if !self.insist(|| self.store_advance(to)).await? {
            return Err(Ended::Superseded);
        }
        ledger.watermark = watermark;
        ledger.advanced = Instant::now();
        Ok(())
    }

    async fn store_advance(&self, to: Advance) -> Result<bool, tidegate_store::StoreError> {
        let (partition, name) = (&self.key.partition, &*self.key.name);
        let now_ms = self.env.clock.now_ms();
        let store = &self.env.store;
        store.advance_checkpoint(partition, name, to, now_ms).await
    }

    /// Moves the checkpoint's row while nothing else does, so that no other process takes
    /// the owner for dead; ends when the row is not ours any more.
    async fn keep_alive(&self) -> Ended {
        let every = (self.env.settings.lease / 6).max(Duration::from_millis(1));
        loop {
            tokio::time::sleep(every).await;
            // Held = somebody is just advancing it.
            let Ok(mut ledger) = self.ledger.try_lock() else {
                continue;
            };
            if ledger.advanced.elapsed() < every {
                continue;
            }
            let to = Advance {
                owner_epoch: ledger.epoch,
                watermark: ledger.watermark,
                observed_rows: ledger.observed,
            };
            match self.store_advance(to).await {
                Ok(true) => ledger.advanced = Instant::now(),
                Ok(false) => return Ended::Superseded,
                // The work itself reports what is wrong with storage.
                Err(error) => tracing::debug!(error = ?error, "a claim cannot be kept alive"),
            }
        }
    }

    async fn is_activated(&self) -> bool {
        let (partition, name) = (&self.key.partition, &*self.key.name);
        let read = self.env.store.read_checkpoint(partition, name).await;
        matches!(read, Ok(Some(found)) if !found.state.is_incomplete())
    }

    /// Keeps the reason of a failure where operators of every process see it.
    async fn store_failure(&self, reason: &str) {
        tracing::error!(
            partition = %self.key.partition, name = %self.key.name, reason,
            "the backfill stopped"
        );
        let stored = self
            .insist(|| {
                self.env.edit_control(&self.key, |control| {
                    control.last_error = Some(reason.to_owned())
                })
            })
            .await;
        if let Err(ended) = stored {
            tracing::warn!(?ended, "the reason of a stopped backfill was not stored");
        }
    }
}

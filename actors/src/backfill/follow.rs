//! After the scan: source changes above the watermark are computed again until none is
//! left, then the checkpoint is activated.
//!
//! Under steady pushes there is always one more. After a few rounds the partition's pushes
//! are held back for the moment that the last rows and the activation take.

use std::time::Duration;

use tidegate_engine::CommitSeq;
use tidegate_engine::backfill::catch_up::{CatchUp, Next, after_activation, after_coverage};
use tidegate_engine::backfill::scan::Place;
use tidegate_engine::model::RowKey;
use tidegate_store::{Activate, ChangedRowsQuery};
use tokio::time::timeout;

use super::WorkerPhase;
use super::patience::Trouble;
use super::run::{Ended, Run};

/// How it went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// Done for good.
    Activated,
    /// The log was pruned past the watermark: everything is to be scanned again.
    LostTrack,
}

/// Times that the head of the log was reached, nearly, before pushes are held back.
const NEAR_MISSES: u32 = 2;
/// Rounds before they are held back anyhow: the log grows faster than it is followed.
const MOST_ROUNDS: u32 = 64;
/// How long they are held back at most.
const QUIET_LIMIT: Duration = Duration::from_secs(1);
/// Windows of the log hold this many pages at most.
const PAGES_PER_WINDOW: usize = 4;
/// A page that is outdated this often is cut in two.
const PATIENCE: u32 = 3;
/// Between rounds in which others are ahead without anything left to compute.
const BREATH: Duration = Duration::from_millis(5);

/// A window that was worked off.
struct CaughtUp {
    through: CommitSeq,
    near: bool,
}

/// What a round came to.
struct Round {
    next: Next,
    /// Whether little was left to do: the head of the log is within reach.
    near: bool,
}

impl Run {
    pub async fn follow(&self) -> Result<Followed, Ended> {
        let (mut rounds, mut near_misses) = (0, 0);
        let mut next = Next::CatchUp(self.watermark().await);
        loop {
            next = if near_misses < NEAR_MISSES && rounds < MOST_ROUNDS {
                let round = self.round(next, true).await?;
                rounds += 1;
                near_misses += u32::from(round.near && matches!(round.next, Next::CatchUp(_)));
                round.next
            } else {
                (rounds, near_misses) = (0, 0);
                let quiet = self.partition.quiet();
                // Cut off in the middle it is as if the process died there: the log and the
                // checkpoint's row say where to go on.
                let settled = timeout(QUIET_LIMIT, self.settle(next)).await;
                drop(quiet);
                match settled {
                    Ok(next) => next?,
                    Err(_) => Next::CatchUp(self.watermark().await),
                }
            };
            match next {
                Next::Done => return Ok(Followed::Activated),
                Next::ScanAgain => return Ok(Followed::LostTrack),
                Next::CatchUp(_) | Next::Activate(_) => {}
            }
        }
    }

    /// Rounds while no push of this process comes in between.
    async fn settle(&self, mut next: Next) -> Result<Next, Ended> {
        while matches!(next, Next::CatchUp(_) | Next::Activate(_)) {
            next = self.round(next, false).await?.next;
        }
        Ok(next)
    }

    async fn watermark(&self) -> CommitSeq {
        self.ledger.lock().await.watermark
    }

    /// One window of the log, or an activation.
    async fn round(&self, next: Next, paced: bool) -> Result<Round, Ended> {
        self.check_orders()?;
        let (store, partition) = (&self.env.store, &self.key.partition);
        match next {
            Next::CatchUp(after) => {
                self.board.enter(WorkerPhase::CatchingUp);
                self.board.set_running(1);
                let Some(caught_up) = self.catch_up(after, paced).await? else {
                    let (next, near) = (Next::ScanAgain, false);
                    return Ok(Round { next, near });
                };
                let watermark = caught_up.through;
                let names = self.source_names();
                let above = self
                    .insist(|| store.has_source_changes_above(partition, &names, watermark))
                    .await?;
                Ok(Round {
                    next: after_coverage(above, watermark),
                    near: caught_up.near,
                })
            }
            Next::Activate(watermark) => {
                self.board.enter(WorkerPhase::Activating);
                self.env.step("backfill.activate.before").await;
                let owner_epoch = self.ledger.lock().await.epoch;
                let request = || Activate {
                    partition: partition.clone(),
                    name: self.key.name.clone(),
                    owner_epoch,
                    watermark,
                    sources: self.sources.clone(),
                    now_ms: self.env.clock.now_ms(),
                };
                let answer = self
                    .insist(|| async { store.activate_checkpoint(&request()).await })
                    .await?;
                self.env.step("backfill.activate.after").await;
                Ok(Round {
                    next: after_activation(&answer, watermark),
                    near: true,
                })
            }
            next @ (Next::ScanAgain | Next::Done) => Ok(Round { next, near: false }),
        }
    }

    /// Computes the rows of one window of the log again and moves the watermark to its end;
    /// `None` when the log does not reach back to its start.
    async fn catch_up(&self, after: CommitSeq, paced: bool) -> Result<Option<CaughtUp>, Ended> {
        let Some(window) = self.insist(|| self.read_window(after)).await? else {
            return Ok(None);
        };
        let (CatchUp { through, pages, .. }, at_head) = window;
        let near = at_head && pages.len() <= 1;
        let mut pages: Vec<Vec<RowKey>> = pages.into_iter().rev().collect();
        let mut outdated = 0;
        let mut committed = false;
        while let Some(keys) = pages.pop() {
            if paced {
                self.rest(None).await?;
            } else {
                self.check_orders()?;
            }
            let changes = self.insist(|| self.plan_rows(&keys)).await?;
            let last = pages.is_empty();
            let watermark = if last { through } else { after };
            let place = Place::CatchUp {
                after,
                through,
                part: self.next_part(),
            };
            if self.commit(place, changes, watermark, 0).await? {
                self.charge(keys.len());
                outdated = 0;
                committed |= last;
                continue;
            }
            outdated += 1;
            if outdated >= PATIENCE && keys.len() > 1 {
                let (first, second) = keys.split_at(keys.len() / 2);
                pages.push(second.to_vec());
                pages.push(first.to_vec());
                outdated = 0;
            } else {
                pages.push(keys);
            }
        }
        if !committed {
            if through == after {
                tokio::time::sleep(BREATH).await;
            }
            self.env.step("backfill.catch_up.before_advance").await;
            self.advance(through).await?;
            self.env.step("backfill.catch_up.after_advance").await;
        }
        Ok(Some(CaughtUp { through, near }))
    }

    /// The rows that the log names above `after`, and whether it was read to its head.
    async fn read_window(&self, after: CommitSeq) -> Result<Option<(CatchUp, bool)>, Trouble> {
        let page_rows = self.env.settings.page_rows.max(1);
        let mut snapshot = self.snapshot().await?;
        let bounds = snapshot.bounds();
        if bounds.horizon > after {
            return Ok(None);
        }
        let changed = snapshot
            .read_changed_rows(ChangedRowsQuery {
                tables: self.source_tables().to_vec(),
                after,
                through: bounds.max,
                max_changes: page_rows * PAGES_PER_WINDOW,
            })
            .await?;
        let window = CatchUp::plan(
            after,
            changed.scanned_through,
            self.source_tables(),
            changed.changes,
            page_rows,
        );
        Ok(Some((window, changed.scanned_through == bounds.max)))
    }
}

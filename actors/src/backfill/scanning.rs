//! The scan: every source row once, by as many workers as wanted. They take ranges from a
//! common queue; when their number changes, what is left is split anew.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_engine::CommitSeq;
use tidegate_engine::backfill::scan::{Cursor, KeyRange, Place, SCANNING};
use tokio::task::JoinSet;

use super::WorkerPhase;
use super::planning::Planned;
use super::run::{Ended, Run};

/// Ranges per worker: the last ones to finish should be short.
const RANGES_PER_WORKER: usize = 4;
/// Sampled row ids per range: the evener the split, the shorter the wait for the last.
const SAMPLES_PER_RANGE: usize = 8;

type Queue = Arc<Mutex<VecDeque<Cursor>>>;

impl Run {
    /// Scans the ranges; then the watermark is where the scan began.
    pub async fn scan(
        self: &Arc<Self>,
        start: CommitSeq,
        ranges: Vec<KeyRange>,
    ) -> Result<(), Ended> {
        self.board.enter(WorkerPhase::Scanning);
        self.board.expect_rows(self.count_rows().await?);
        self.board.record_rows(self.ledger.lock().await.observed);
        let mut left = ranges;
        while !left.is_empty() {
            self.check_orders()?;
            let workers = self.board.orders().workers;
            let ranges = self.split(left, workers as usize).await?;
            let cursors = ranges.into_iter().map(Cursor::new);
            let queue: Queue = Arc::new(Mutex::new(cursors.collect()));
            self.work_with(workers, &queue, start).await?;
            left = queue
                .lock()
                .drain(..)
                .map(|cursor| cursor.next_page())
                .collect();
        }
        self.env.step("backfill.scan.before_done").await;
        self.advance(start).await?;
        self.env.step("backfill.scan.after_done").await;
        Ok(())
    }

    async fn count_rows(&self) -> Result<u64, Ended> {
        let (store, partition) = (&self.env.store, &self.key.partition);
        let mut rows_total: u64 = 0;
        for table in &self.sources {
            let rows = self.insist(|| store.count_rows(partition, table)).await?;
            rows_total = rows_total.saturating_add(rows);
        }
        Ok(rows_total)
    }

    /// Cuts ranges so that every worker has some.
    async fn split(&self, ranges: Vec<KeyRange>, workers: usize) -> Result<Vec<KeyRange>, Ended> {
        if workers <= 1 {
            return Ok(ranges);
        }
        let (store, partition) = (&self.env.store, &self.key.partition);
        let parts = (workers * RANGES_PER_WORKER).div_ceil(ranges.len());
        let mut split = Vec::new();
        let mut sample = None;
        for range in ranges {
            let known =
                sample.take_if(|(table, _): &mut (Arc<str>, Vec<Arc<str>>)| *table == range.table);
            let ids = match known {
                Some((_, ids)) => ids,
                None => {
                    let wanted = workers * RANGES_PER_WORKER * SAMPLES_PER_RANGE;
                    self.insist(|| store.sample_row_ids(partition, &range.table, wanted))
                        .await?
                }
            };
            split.extend(range.split(&ids, parts));
            sample = Some((range.table, ids));
        }
        Ok(split)
    }

    /// Works the queue off, or until another number of workers is wanted.
    async fn work_with(
        self: &Arc<Self>,
        workers: u32,
        queue: &Queue,
        start: CommitSeq,
    ) -> Result<(), Ended> {
        let ranges = queue.lock().len();
        let mut tasks = JoinSet::new();
        for _ in 0..ranges.min(workers as usize) {
            let (run, queue) = (Arc::clone(self), Arc::clone(queue));
            tasks.spawn(async move { run.scan_ranges(workers, &queue, start).await });
        }
        let mut stopped = Ok(());
        loop {
            self.board
                .set_running(u32::try_from(tasks.len()).unwrap_or(u32::MAX));
            let Some(joined) = tasks.join_next().await else {
                return stopped;
            };
            match joined {
                Ok(Ok(())) => {}
                // The others finish their pages as well.
                Ok(Err(Ended::Stopped)) => stopped = Err(Ended::Stopped),
                // They would fail with their next page, or must not write it.
                Ok(Err(ended)) => return Err(ended),
                Err(failure) if failure.is_panic() => {
                    std::panic::resume_unwind(failure.into_panic())
                }
                Err(_) => return Err(Ended::Stopped),
            }
        }
    }

    /// One worker.
    async fn scan_ranges(
        &self,
        workers: u32,
        queue: &Queue,
        start: CommitSeq,
    ) -> Result<(), Ended> {
        loop {
            let Some(mut cursor) = queue.lock().pop_front() else {
                return Ok(());
            };
            let mut planned = None;
            loop {
                if !self.rest(Some(workers)).await? {
                    queue.lock().push_front(cursor);
                    return Ok(());
                }
                match self.scan_page(cursor, planned.take(), start).await? {
                    Some((rest, ahead)) => (cursor, planned) = (rest, ahead),
                    None => break,
                }
            }
        }
    }

    /// One page, planned already or now; what is left of its range, and the plan of the
    /// page that begins it: it was made while this one was written.
    async fn scan_page(
        &self,
        cursor: Cursor,
        planned: Option<Planned>,
        start: CommitSeq,
    ) -> Result<Option<(Cursor, Option<Planned>)>, Ended> {
        let mut limit = self.env.settings.page_rows.max(1);
        let mut planned = planned;
        loop {
            let page = match planned.take() {
                Some(page) => page,
                None => self.plan_page(&cursor, limit).await?,
            };
            let mut done = cursor.range().clone();
            if page.more {
                done.through = page.last.clone();
            }
            let place = Place::Scan { start, done };
            let rest = cursor.clone().past(page.last.as_ref(), page.more);
            let (rows, changes) = (page.rows, page.changes);
            // What changes between a plan and its commit is noticed by its versions, or
            // stands in the log above `start`: a plan may be as old as it likes.
            let (committed, ahead) = tokio::join!(
                self.commit(place, changes, SCANNING, rows),
                self.plan_ahead(rest.as_ref(), limit)
            );
            if committed? {
                self.charge(rows);
                return match rest {
                    Some(rest) => Ok(Some((rest, ahead.transpose()?))),
                    None => Ok(None),
                };
            }
            // Rows change faster than they are computed: fewer at once will do.
            limit = (limit / 2).max(1);
        }
    }

    async fn plan_page(&self, cursor: &Cursor, limit: usize) -> Result<Planned, Ended> {
        let range = cursor.next_page();
        self.insist(|| self.plan_range(&range, limit)).await
    }

    async fn plan_ahead(
        &self,
        rest: Option<&Cursor>,
        limit: usize,
    ) -> Option<Result<Planned, Ended>> {
        match rest {
            Some(rest) => Some(self.plan_page(rest, limit).await),
            None => None,
        }
    }
}

//! Counters of all partition actors.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the partition actors did and hold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Statistics {
    /// Partitions in memory.
    pub partitions: usize,
    /// Operations queued or in flight.
    pub queued_operations: usize,
    /// Bytes queued or in flight.
    pub queued_bytes: usize,
    /// Pushes that were taken into a batch.
    pub pushes: u64,
    /// Push commits that were taken into a batch.
    pub commits: u64,
    /// Batches run.
    pub batches: u64,
    /// Batches of these that were decided while the one before was written.
    pub batches_ahead: u64,
    /// Backfill pages run.
    pub pages: u64,
    /// Push commits per batch.
    pub mean_batch: f64,
    /// Rows found in memory.
    pub cache_hits: u64,
    /// Rows read from the database.
    pub cache_misses: u64,
    /// Share of rows found in memory, 0 to 1.
    pub cache_hit_rate: f64,
    /// Reads of needs.
    pub reads: u64,
    /// Lost compare-and-set attempts, or foreign commits noticed before one.
    pub lost_races: u64,
    /// Batches that locked their partition before they read, beside other writers.
    pub pessimistic_batches: u64,
    /// Bytes of rows and commits that partitions keep.
    pub memory_bytes: usize,
    /// Partitions that forgot theirs because all together kept too much.
    pub relieved: u64,
    /// Batches that panicked or hung.
    pub restarts: u64,
    /// Pushes answered `sync.rate_limited`.
    pub rate_limited: u64,
    /// Failed writes of client records alone; retried.
    pub failed_flushes: u64,
    /// Client records dropped because too many were unwritten.
    pub dropped_records: u64,
}

/// The counters behind [`Statistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub pushes: Counter,
    pub commits: Counter,
    pub batches: Counter,
    pub batches_ahead: Counter,
    pub pages: Counter,
    pub cache_hits: Counter,
    pub cache_misses: Counter,
    pub reads: Counter,
    pub lost_races: Counter,
    pub pessimistic_batches: Counter,
    pub relieved: Counter,
    pub restarts: Counter,
    pub rate_limited: Counter,
    pub failed_flushes: Counter,
    pub dropped_records: Counter,
}

/// A monotonic count.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// Everything but the gauges.
    pub fn snapshot(&self) -> Statistics {
        let ratio = |part: u64, whole: u64| {
            if whole == 0 {
                0.0
            } else {
                part as f64 / whole as f64
            }
        };
        let (hits, misses) = (self.cache_hits.get(), self.cache_misses.get());
        Statistics {
            pushes: self.pushes.get(),
            commits: self.commits.get(),
            batches: self.batches.get(),
            batches_ahead: self.batches_ahead.get(),
            pages: self.pages.get(),
            mean_batch: ratio(self.commits.get(), self.batches.get()),
            cache_hits: hits,
            cache_misses: misses,
            cache_hit_rate: ratio(hits, hits + misses),
            reads: self.reads.get(),
            lost_races: self.lost_races.get(),
            pessimistic_batches: self.pessimistic_batches.get(),
            relieved: self.relieved.get(),
            restarts: self.restarts.get(),
            rate_limited: self.rate_limited.get(),
            failed_flushes: self.failed_flushes.get(),
            dropped_records: self.dropped_records.get(),
            ..Statistics::default()
        }
    }
}

//! Bounds and delays of the partition actors.

use std::time::Duration;

/// How much a queue may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimit {
    /// Operations.
    pub operations: usize,
    /// Bytes of operations (payloads, names and ids).
    pub bytes: usize,
}

/// Every bound and delay of the partition actors.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Threads (arbiters) that run partition actors.
    pub arbiters: usize,
    /// A batch takes queued pushes up to this; one push always fits.
    pub batch: QueueLimit,
    /// What one partition may have queued and in flight; beyond it `sync.rate_limited`.
    pub partition_queue: QueueLimit,
    /// What all partitions together may have queued and in flight.
    pub process_queue: QueueLimit,
    /// Whether a batch may be decided while the one before it is written, as soon as about
    /// as many pushes wait as the last batches held.
    pub decide_ahead: bool,
    /// Batches with more operations are decided on a blocking thread.
    pub inline_operations: usize,
    /// Operations that references may append to one commit (§6.11).
    pub cascade_cap: u32,
    /// Bytes of rows that a partition keeps in memory.
    pub row_cache_bytes: usize,
    /// Recent commits that a partition keeps in memory.
    pub tail_commits: usize,
    /// Bytes of recent commits that a partition keeps in memory.
    pub tail_bytes: usize,
    /// Bytes of rows and recent commits that all partitions keep together; beyond it the
    /// longest idle ones forget theirs.
    pub memory_bytes: usize,
    /// Attempts of a batch that loses its CAS before it is answered with `sync.internal_error`.
    pub commit_attempts: u32,
    /// After a lost CAS a partition's batches lock it before they read, until this many in
    /// a row saw no commit of another writer.
    pub quiet_batches: u32,
    /// A batch that takes longer, not counting what the one before took, counts as hung.
    /// Longer than the database lets it wait for a lock.
    pub batch_deadline: Duration,
    /// How long an unknown outcome is looked up before its callers get `sync.internal_error`.
    pub resolve_deadline: Duration,
    /// First pause between two look-ups of an unknown outcome; doubles up to one second.
    pub resolve_backoff: Duration,
    /// Longest delay of a client record's write.
    pub flush_delay: Duration,
    /// Client records a partition may hold unwritten; further clients' records are dropped.
    pub pending_clients: usize,
    /// Bytes of unwritten client records of all partitions; beyond it records are dropped.
    pub unwritten_bytes: usize,
    /// Client records written in one transaction.
    pub flush_clients: usize,
    /// A partition without work for that long leaves memory.
    pub idle_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            arbiters: 2,
            batch: QueueLimit {
                operations: 2_000,
                bytes: 8 * MIB,
            },
            partition_queue: QueueLimit {
                operations: 20_000,
                bytes: 64 * MIB,
            },
            process_queue: QueueLimit {
                operations: 100_000,
                bytes: 256 * MIB,
            },
            decide_ahead: true,
            inline_operations: 64,
            cascade_cap: tidegate_engine::push::DEFAULT_CASCADE_CAP,
            row_cache_bytes: 2 * MIB,
            tail_commits: 1_024,
            tail_bytes: 4 * MIB,
            memory_bytes: 24 * MIB,
            commit_attempts: 8,
            quiet_batches: 16,
            batch_deadline: Duration::from_secs(20),
            resolve_deadline: Duration::from_secs(15),
            resolve_backoff: Duration::from_millis(50),
            flush_delay: Duration::from_secs(1),
            pending_clients: 20_000,
            unwritten_bytes: 64 * MIB,
            flush_clients: 1_000,
            idle_after: Duration::from_secs(120),
        }
    }
}

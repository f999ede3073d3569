//! Admission: overload is an answer, never a longer queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ssp2::{OperationKind, PushCommit};

use crate::settings::QueueLimit;

/// What a push weighs in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    pub operations: usize,
    pub bytes: usize,
}

impl Load {
    /// Weighs commits. A push without operations still takes a place.
    pub fn of(commits: &[PushCommit]) -> Self {
        const OVERHEAD: usize = 64;
        let mut load = Self::default();
        for commit in commits {
            load.bytes += commit.client_commit_id.len() + OVERHEAD;
            for operation in &commit.operations {
                let payload = match &operation.kind {
                    OperationKind::Upsert(row) => row.len(),
                    OperationKind::Delete => 0,
                };
                load.operations += 1;
                load.bytes += payload + operation.table.len() + operation.row_id.len() + OVERHEAD;
            }
        }
        load.operations = load.operations.max(1);
        load
    }
}

/// A bounded amount of queued work.
#[derive(Debug)]
pub(crate) struct Gauge {
    limit: QueueLimit,
    operations: AtomicUsize,
    bytes: AtomicUsize,
}

impl Gauge {
    pub fn new(limit: QueueLimit) -> Self {
        Self {
            limit,
            operations: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    pub fn current(&self) -> Load {
        Load {
            operations: self.operations.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    fn try_add(&self, load: Load) -> bool {
        // A push bigger than the whole limit passes when nothing else waits, or it
        // could never be served.
        let fits = |counter: &AtomicUsize, add: usize, limit: usize| {
            counter
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                    (used == 0 || used.saturating_add(add) <= limit)
                        .then(|| used.saturating_add(add))
                })
                .is_ok()
        };
        if !fits(&self.operations, load.operations, self.limit.operations) {
            return false;
        }
        if !fits(&self.bytes, load.bytes, self.limit.bytes) {
            self.operations.fetch_sub(load.operations, Ordering::AcqRel);
            return false;
        }
        true
    }

    fn sub(&self, load: Load) {
        self.operations.fetch_sub(load.operations, Ordering::AcqRel);
        self.bytes.fetch_sub(load.bytes, Ordering::AcqRel);
    }
}

/// A queued push's place in its partition's and the process's gauge, given back on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    gauges: [Arc<Gauge>; 2],
    pub load: Load,
}

impl Permit {
    /// A place for `load` in both gauges, or `None` at once.
    pub fn try_acquire(gauges: [Arc<Gauge>; 2], load: Load) -> Option<Self> {
        if !gauges[0].try_add(load) {
            return None;
        }
        if !gauges[1].try_add(load) {
            gauges[0].sub(load);
            return None;
        }
        Some(Self { gauges, load })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for gauge in &self.gauges {
            gauge.sub(self.load);
        }
    }
}

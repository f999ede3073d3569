//! What the partition's last batches wrote. A read that began before them, as a
//! request's own read-ahead does while another batch is under way, is true after them
//! but for what they wrote.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidegate_engine::CommitSeq;
use tidegate_engine::model::{
    CommitBatch, Fetched, ResultKey, ResultLookup, RowKey, RowState, RowWrite, StoredPushResult,
};

/// Batches that a read may have been overtaken by.
const BATCHES: usize = 4;
/// Rows and results of theirs that are kept.
const ENTRIES: usize = 4_000;
/// Bytes of rows that are kept.
const BYTES: usize = 512 * 1024;

/// The newest batches, the last one at the back. Each began where the one before it
/// ended: whoever owns it clears it when somebody else commits.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    steps: VecDeque<Step>,
    entries: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Step {
    batch: Arc<CommitBatch>,
    after: CommitSeq,
    entries: usize,
    bytes: usize,
}

impl Trail {
    /// Adds a batch that became durable.
    pub fn append(&mut self, batch: &Arc<CommitBatch>) {
        let step = Step::new(batch);
        self.entries += step.entries;
        self.bytes += step.bytes;
        self.steps.push_back(step);
        while self.steps.len() > BATCHES || self.entries > ENTRIES || self.bytes > BYTES {
            let Some(oldest) = self.steps.pop_front() else {
                break;
            };
            self.entries -= oldest.entries;
            self.bytes -= oldest.bytes;
        }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Brings reads to the position `now`, where the last batch ended. Those that are
    /// older than everything kept here are left out.
    pub fn bring_forward(&self, reads: Vec<Fetched>, now: CommitSeq) -> Found {
        let oldest = self
            .steps
            .front()
            .map_or(now, |step| step.batch.expected_max);
        let reads = reads.into_iter().filter(|read| read.max >= oldest);
        let mut found = Found::default();
        let written = self.written();
        for read in reads {
            for (key, state) in read.rows {
                let newer = written.rows.get(&key).filter(|(at, _)| *at > read.max);
                let state = newer.map_or(state, |(_, write)| state_after(write));
                found.rows.insert(key, state);
            }
            for (key, lookup) in read.results {
                // A result has no position, but once it is stored it stays.
                let lookup = match (lookup, written.results.get(&key)) {
                    (ResultLookup::Absent, Some(result)) => ResultLookup::Found(Arc::clone(result)),
                    (lookup, _) => lookup,
                };
                found.results.insert(key, lookup);
            }
        }
        found
    }

    fn written(&self) -> Written<'_> {
        let mut written = Written::default();
        for step in &self.steps {
            let rows = step.batch.rows.iter();
            let rows = rows.map(|write| (write.key(), (step.after, write)));
            written.rows.extend(rows);
            let results = step.batch.results.iter();
            written
                .results
                .extend(results.map(|(key, result)| (key, result)));
        }
        written
    }
}

/// What reads know at the position that they were brought to.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub rows: HashMap<RowKey, RowState>,
    pub results: HashMap<ResultKey, ResultLookup>,
}

/// The last word of the kept batches on each key.
#[derive(Default)]
struct Written<'a> {
    rows: HashMap<&'a RowKey, (CommitSeq, &'a RowWrite)>,
    results: HashMap<&'a ResultKey, &'a Arc<StoredPushResult>>,
}

impl Step {
    fn new(batch: &Arc<CommitBatch>) -> Self {
        let bytes = batch.rows.iter().map(|write| match write {
            RowWrite::Put { row, .. } => row.payload.len(),
            RowWrite::Delete { .. } => 0,
        });
        Self {
            after: batch.head_after(),
            entries: batch.rows.len() + batch.results.len(),
            bytes: bytes.sum(),
            batch: Arc::clone(batch),
        }
    }
}

/// The row as a write leaves it.
pub(crate) fn state_after(write: &RowWrite) -> RowState {
    match write {
        RowWrite::Put { row, .. } => RowState::Present(Arc::clone(row)),
        RowWrite::Delete { tombstone, .. } => RowState::Absent {
            tombstone: Some(*tombstone),
        },
    }
}

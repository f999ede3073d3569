//! Following the log after a scan: source changes above the watermark name the
//! rows to compute again, until none is left and the checkpoint can be activated.
//!
//! When the target is a source too, the backfill's own pages are source changes.
//! Their rows are computed again, nothing differs, nothing is written, and the
//! watermark moves past them: the next window is empty.

use std::collections::BTreeSet;

use super::checkpoint::{Activation, Coverage};
use crate::ids::{CommitSeq, TableId};
use crate::model::RowKey;

/// One window of the log, as pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatchUp {
    /// Exclusive start: the watermark it began at.
    pub after: CommitSeq,
    /// Inclusive end: the watermark once every page is committed.
    pub through: CommitSeq,
    /// Source rows to compute again, each once. Without any there is still an
    /// advance to `through` to make, which also tells whether the owner was
    /// superseded.
    pub pages: Vec<Vec<RowKey>>,
}

impl CatchUp {
    /// Plans a window from the changes in it (any tables, any order). `through` is
    /// how far the log was read, not the last change that was found.
    pub fn plan(
        after: CommitSeq,
        through: CommitSeq,
        sources: &[TableId],
        changes: impl IntoIterator<Item = (CommitSeq, RowKey)>,
        page_rows: usize,
    ) -> Self {
        let rows: BTreeSet<RowKey> = changes
            .into_iter()
            .filter(|(seq, key)| *seq > after && *seq <= through && sources.contains(&key.table))
            .map(|(_, key)| key)
            .collect();
        let rows: Vec<RowKey> = rows.into_iter().collect();
        Self {
            after,
            through,
            pages: rows.chunks(page_rows.max(1)).map(<[_]>::to_vec).collect(),
        }
    }

    /// The watermark that goes with page `part`: only the last one completes the window.
    pub fn watermark(&self, part: usize) -> CommitSeq {
        if part + 1 >= self.pages.len() {
            self.through
        } else {
            self.after
        }
    }
}

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Read the log above that position.
    CatchUp(CommitSeq),
    /// Ask for the activation at that watermark.
    Activate(CommitSeq),
    /// The log was pruned too far: reset the watermark to 0 and scan anew.
    ScanAgain,
    /// Activated: done for good.
    Done,
}

/// After a look at the log above the watermark.
pub fn after_coverage(above: Coverage, watermark: CommitSeq) -> Next {
    match above {
        Coverage::Clean => Next::Activate(watermark),
        Coverage::Changed => Next::CatchUp(watermark),
        Coverage::Unverifiable => Next::ScanAgain,
    }
}

/// After an activation was asked for. `Stale` goes round once more: either a source
/// changed, or the owner was superseded, which the next advance finds out.
pub fn after_activation(answer: &Activation, watermark: CommitSeq) -> Next {
    match answer {
        Activation::Activated(_) => Next::Done,
        Activation::Stale => Next::CatchUp(watermark),
        Activation::Unverifiable => Next::ScanAgain,
    }
}

//! The first pass of a backfill over every source row, split among workers and
//! resumable: which key ranges are left, what to read next, and the commit id by
//! which a page is found again.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::checkpoint::Checkpoint;
use crate::ids::{ClientId, CommitSeq, OwnerEpoch};

/// The watermark that every page of a scan advances to: it tells nothing of the log
/// until all ranges are done, and then becomes the newest commit that was there
/// when the scan began. A page that stored that commit any earlier would let the
/// next owner skip the rest of the scan.
pub const SCANNING: CommitSeq = CommitSeq(0);

/// A row id. Ranges are in byte order, as the stores sort.
pub type RowId = Arc<str>;

/// Source rows of one table with `after < row id <= through`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRange {
    /// Source table.
    pub table: Arc<str>,
    /// Exclusive start; `None` = from the first row.
    pub after: Option<RowId>,
    /// Inclusive end; `None` = to the last row, and rows yet to come.
    pub through: Option<RowId>,
}

impl KeyRange {
    /// Every row of a table.
    pub fn whole(table: &str) -> Self {
        Self {
            table: table.into(),
            after: None,
            through: None,
        }
    }

    /// Whether a row of its table is in it.
    pub fn contains(&self, row_id: &str) -> bool {
        self.after.as_deref().is_none_or(|after| row_id > after)
            && self
                .through
                .as_deref()
                .is_none_or(|through| row_id <= through)
    }

    /// Splits it into at most `parts` ranges that hold every row of it exactly
    /// once, of about equal size if `sample` (row ids in ascending order, evenly
    /// taken from the table) is one.
    pub fn split(&self, sample: &[RowId], parts: usize) -> Vec<Self> {
        let mut inner: Vec<&RowId> = sample.iter().filter(|id| self.contains(id)).collect();
        inner.dedup();
        let mut ranges = Vec::new();
        let mut rest = self.clone();
        for part in 1..parts {
            // The last row of a part; the sample's last may be the range's last.
            let Some(bound) = (part * inner.len() / parts)
                .checked_sub(1)
                .map(|at| inner[at])
            else {
                continue;
            };
            if rest.after.as_ref() == Some(bound) || rest.through.as_ref() == Some(bound) {
                continue;
            }
            ranges.push(Self {
                through: Some(Arc::clone(bound)),
                ..rest.clone()
            });
            rest.after = Some(Arc::clone(bound));
        }
        ranges.push(rest);
        ranges
    }

    /// What is left of it without the rows of `done`.
    fn without(&self, done: &Self) -> Vec<Self> {
        let starts_later = |a: &Option<RowId>, b: &Option<RowId>| a > b;
        let ends_earlier = |a: &Option<RowId>, b: &Option<RowId>| match (a, b) {
            (Some(a), Some(b)) => a < b,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let apart = done.table != self.table
            || matches!((&done.through, &self.after), (Some(end), Some(start)) if end <= start)
            || matches!((&self.through, &done.after), (Some(end), Some(start)) if end <= start);
        if apart {
            return vec![self.clone()];
        }
        let mut left = Vec::new();
        if starts_later(&done.after, &self.after) {
            left.push(Self {
                through: done.after.clone(),
                ..self.clone()
            });
        }
        if ends_earlier(&done.through, &self.through) {
            left.push(Self {
                after: done.through.clone(),
                ..self.clone()
            });
        }
        left
    }
}

/// Splits the ranges of a scan among workers: each gets its list, in order.
pub fn share(ranges: Vec<KeyRange>, workers: usize) -> Vec<Vec<KeyRange>> {
    let workers = workers.max(1);
    let mut shares = vec![Vec::new(); workers];
    for (at, range) in ranges.into_iter().enumerate() {
        shares[at % workers].push(range);
    }
    shares
}

/// Reads one range page by page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    range: KeyRange,
    after: Option<RowId>,
}

impl Cursor {
    /// At the start of a range.
    pub fn new(range: KeyRange) -> Self {
        Self {
            after: range.after.clone(),
            range,
        }
    }

    /// The range it reads.
    pub fn range(&self) -> &KeyRange {
        &self.range
    }

    /// What the next page must read: rows of this range, in row id order.
    pub fn next_page(&self) -> KeyRange {
        KeyRange {
            after: self.after.clone(),
            ..self.range.clone()
        }
    }

    /// Moves past a page that ended with `last`; `None` when the range is done.
    /// `more` = whether the range holds rows after it.
    #[must_use]
    pub fn past(self, last: Option<&RowId>, more: bool) -> Option<Self> {
        let last = last.filter(|_| more)?;
        Some(Self {
            after: Some(Arc::clone(last)),
            ..self
        })
    }
}

/// The client id of a backfill's commits: a device of the server's own.
pub fn client_id(backfill: &str) -> ClientId {
    json!(["backfill", backfill]).to_string().into()
}

/// What a page is, and by that its client commit id: the same page has the same
/// id in every process, so a repeated one finds its stored result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The owner that planned it.
    pub owner_epoch: OwnerEpoch,
    /// Definition of the projection that computed it.
    pub fingerprint: Arc<str>,
    /// Its place.
    pub place: Place,
}

/// The place of a page in a backfill.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A page of a scan: all rows of `done` up to its end are computed.
    Scan {
        /// Newest commit when the scan began.
        start: CommitSeq,
        /// From the start of the worker's range through the page's last row.
        done: KeyRange,
    },
    /// A page of the rows that the log names.
    CatchUp {
        /// Exclusive start of the log window.
        after: CommitSeq,
        /// Inclusive end.
        through: CommitSeq,
        /// Which page of the window.
        part: u32,
    },
}

impl PageId {
    /// The client commit id: JSON text.
    pub fn encode(&self) -> String {
        let (epoch, print) = (self.owner_epoch.0, &*self.fingerprint);
        match &self.place {
            Place::Scan { start, done } => json!([
                "scan",
                epoch,
                print,
                start.0,
                &*done.table,
                done.after.as_deref(),
                done.through.as_deref()
            ]),
            Place::CatchUp {
                after,
                through,
                part,
            } => json!(["log", epoch, print, after.0, through.0, part]),
        }
        .to_string()
    }

    /// Reads a client commit id; `None` for a commit that is no page.
    pub fn parse(text: &str) -> Option<Self> {
        let row_id = |json: &Json| match json {
            Json::Null => Some(None),
            Json::String(text) => Some(Some(RowId::from(text.as_str()))),
            _ => None,
        };
        let json: Json = serde_json::from_str(text).ok()?;
        let [kind, epoch, print, rest @ ..] = json.as_array()?.as_slice() else {
            return None;
        };
        let place = match (kind.as_str()?, rest) {
            ("scan", [start, table, after, through]) => Place::Scan {
                start: CommitSeq(start.as_i64()?),
                done: KeyRange {
                    table: table.as_str()?.into(),
                    after: row_id(after)?,
                    through: row_id(through)?,
                },
            },
            ("log", [after, through, part]) => Place::CatchUp {
                after: CommitSeq(after.as_i64()?),
                through: CommitSeq(through.as_i64()?),
                part: u32::try_from(part.as_u64()?).ok()?,
            },
            _ => return None,
        };
        Some(Self {
            owner_epoch: OwnerEpoch(epoch.as_i64()?),
            fingerprint: print.as_str()?.into(),
            place,
        })
    }
}

/// Where a new owner goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// Scan everything, from the newest commit of a fresh snapshot.
    FromTheStart,
    /// Finish a scan that somebody began.
    Scan {
        /// Newest commit when it began: the watermark once all ranges are done.
        start: CommitSeq,
        /// What is left; may be empty.
        ranges: Vec<KeyRange>,
    },
    /// The scan is done: follow the log from there.
    CatchUp {
        /// The stored watermark.
        after: CommitSeq,
    },
}

/// Where a new owner of a checkpoint goes on, from the pages its predecessors
/// committed (oldest first) and the log's horizon.
///
/// The watermark stays 0 until a scan is complete, so a watermark above 0 is one
/// that holds for every row. Pages of another definition, or a log pruned past
/// where the work would go on, begin anew; that costs reading, and writes only
/// what differs.
pub fn resume(
    checkpoint: &Checkpoint,
    horizon: CommitSeq,
    fingerprint: &str,
    sources: &[&str],
    pages: &[PageId],
) -> Resume {
    let is_ours = |page: &&PageId| *page.fingerprint == *fingerprint;
    if !pages.last().as_ref().is_some_and(is_ours) {
        return Resume::FromTheStart;
    }
    if checkpoint.watermark > SCANNING {
        return if horizon > checkpoint.watermark {
            Resume::FromTheStart
        } else {
            Resume::CatchUp {
                after: checkpoint.watermark,
            }
        };
    }
    let scanned = |page: &PageId| match &page.place {
        Place::Scan { start, .. } => Some(*start),
        Place::CatchUp { .. } => None,
    };
    let ours = || pages.iter().filter(is_ours);
    let Some(latest) = ours().filter_map(scanned).max() else {
        return Resume::FromTheStart;
    };
    // Changes after the start are caught up with; the log must still have them.
    let foreign_since = pages
        .iter()
        .filter(|page| !is_ours(page))
        .filter_map(scanned)
        .any(|start| start >= latest);
    if horizon > latest || foreign_since {
        return Resume::FromTheStart;
    }
    let mut ranges: Vec<KeyRange> = sources.iter().map(|table| KeyRange::whole(table)).collect();
    for page in ours() {
        if let Place::Scan { start, done } = &page.place
            && *start == latest
        {
            ranges = ranges
                .iter()
                .flat_map(|range| range.without(done))
                .collect();
        }
    }
    Resume::Scan {
        start: latest,
        ranges,
    }
}

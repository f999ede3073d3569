//! Reads of a backfill's source rows, what every backend judges alike.

use tidegate_engine::CommitSeq;
use tidegate_engine::model::RowKey;

use crate::{ChangedRows, ChangedRowsQuery};

/// What a backend read of a window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Whole commits that fit.
    Fits(Vec<(CommitSeq, RowKey)>, CommitSeq),
    /// Not even the first commit fits: it must be read whole.
    FirstCommit(CommitSeq),
}

/// Ends a window at the last commit that fits. `changes` are in log order and hold
/// one more than `max_changes` when the window holds more: the commit of that one
/// may be incomplete.
pub(crate) fn cut(mut changes: Vec<(CommitSeq, RowKey)>, query: &ChangedRowsQuery) -> Cut {
    let Some((incomplete, _)) = changes.get(query.max_changes) else {
        return Cut::Fits(changes, query.through);
    };
    let incomplete = *incomplete;
    changes.truncate(changes.partition_point(|(seq, _)| *seq < incomplete));
    match changes.last() {
        Some((last, _)) => {
            let last = *last;
            Cut::Fits(changes, last)
        }
        None => Cut::FirstCommit(incomplete),
    }
}

impl ChangedRows {
    /// The answer of a window whose first commit alone fills it.
    pub(crate) fn of_first_commit(seq: CommitSeq, rows: Vec<RowKey>) -> Self {
        Self {
            changes: rows.into_iter().map(|key| (seq, key)).collect(),
            scanned_through: seq,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::TableId;

    fn changes(seqs: &[i64]) -> Vec<(CommitSeq, RowKey)> {
        let key = RowKey {
            table: TableId(0),
            row_id: "r".into(),
        };
        let with_key = |seq: &i64| (CommitSeq(*seq), key.clone());
        seqs.iter().map(with_key).collect()
    }

    fn cut_at(seqs: &[i64], max_changes: usize) -> Cut {
        let query = ChangedRowsQuery {
            tables: vec![TableId(0)],
            after: CommitSeq(0),
            through: CommitSeq(9),
            max_changes,
        };
        cut(changes(seqs), &query)
    }

    #[test]
    fn a_window_ends_between_commits() {
        let fits = |seqs: &[i64], through| Cut::Fits(changes(seqs), CommitSeq(through));
        assert_eq!(cut_at(&[], 2), fits(&[], 9));
        assert_eq!(cut_at(&[1, 2], 2), fits(&[1, 2], 9));
        assert_eq!(cut_at(&[1, 2, 2], 2), fits(&[1], 1));
        assert_eq!(cut_at(&[1, 1, 2], 2), fits(&[1, 1], 1));
        assert_eq!(cut_at(&[3, 3, 3], 2), Cut::FirstCommit(CommitSeq(3)));
        assert_eq!(cut_at(&[3], 0), Cut::FirstCommit(CommitSeq(3)));
    }
}

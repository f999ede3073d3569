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

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::TableId;
    use tidegate_engine::model::{LoggedCommit, Over, StoredRow};

    fn key(id: &str) -> RowKey {
        RowKey {
            table: TableId(0),
            row_id: id.into(),
        }
    }

    fn result_key(id: &str) -> ResultKey {
        ResultKey {
            client_id: "c".into(),
            client_commit_id: id.into(),
        }
    }

    fn present(version: i64) -> RowState {
        RowState::Present(Arc::new(StoredRow {
            server_version: version,
            scopes: ssp2::ScopeValues::default(),
            payload: bytes::Bytes::from_static(b"0123456789"),
            column_versions: None,
        }))
    }

    fn put(id: &str, version: i64) -> RowWrite {
        let RowState::Present(row) = present(version) else {
            unreachable!("it is present")
        };
        RowWrite::Put {
            key: key(id),
            row,
            values: Vec::new().into(),
            over: Over::Row,
        }
    }

    /// A batch of one commit after `expected` (none for a batch of rejections).
    fn batch(expected: i64, commits: bool, rows: Vec<RowWrite>, result: &str) -> Arc<CommitBatch> {
        let commit = LoggedCommit {
            seq: CommitSeq(expected + 1),
            client_id: "c".into(),
            client_commit_id: result.into(),
            actor_id: "a".into(),
            created_at_ms: 0,
            changes: Vec::new(),
        };
        Arc::new(CommitBatch {
            partition: "p".into(),
            expected_max: CommitSeq(expected),
            writer_version: tidegate_engine::SchemaVersion(1),
            declared: Arc::default(),
            commits: Vec::from_iter(commits.then(|| Arc::new(commit))),
            results: vec![(
                result_key(result),
                Arc::new(StoredPushResult {
                    commit_seq: None,
                    recorded_at_ms: None,
                    results: Vec::new(),
                    details: Vec::new(),
                }),
            )],
            rows,
            clients: Vec::new(),
            reactions: Vec::new(),
            advance: None,
        })
    }

    fn read(max: i64, rows: &[(&str, RowState)], results: &[&str]) -> Fetched {
        Fetched {
            max: CommitSeq(max),
            rows: rows
                .iter()
                .map(|(id, state)| (key(id), state.clone()))
                .collect(),
            results: results
                .iter()
                .map(|id| (result_key(id), ResultLookup::Absent))
                .collect(),
            children: Vec::new(),
        }
    }

    #[test]
    fn a_read_is_true_later_but_for_what_was_written_since() {
        let mut trail = Trail::default();
        trail.append(&batch(5, true, vec![put("a", 2)], "k6"));
        let deleted = RowWrite::Delete {
            key: key("b"),
            tombstone: CommitSeq(7),
        };
        trail.append(&batch(6, true, vec![put("a", 3), deleted], "k7"));
        let rows = [("a", present(1)), ("b", present(1)), ("c", present(9))];
        let found = trail.bring_forward(vec![read(5, &rows, &["k6", "k8"])], CommitSeq(7));
        assert_eq!(found.rows[&key("a")], present(3));
        let tombstone = Some(CommitSeq(7));
        assert_eq!(found.rows[&key("b")], RowState::Absent { tombstone });
        assert_eq!(found.rows[&key("c")], present(9));
        assert!(matches!(
            found.results[&result_key("k6")],
            ResultLookup::Found(_)
        ));
        assert_eq!(found.results[&result_key("k8")], ResultLookup::Absent);

        // What was read after a write is as new as that: pruning may have taken its tombstone.
        let gone = RowState::Absent { tombstone: None };
        let found = trail.bring_forward(vec![read(7, &[("b", gone.clone())], &[])], CommitSeq(7));
        assert_eq!(found.rows[&key("b")], gone);
        let found = trail.bring_forward(vec![read(6, &[("a", present(2))], &[])], CommitSeq(7));
        assert_eq!(found.rows[&key("a")], present(3));
    }

    #[test]
    fn a_read_from_before_the_trail_is_left_out() {
        let mut trail = Trail::default();
        for n in 0..5 {
            trail.append(&batch(n, true, vec![put("a", n + 1)], &format!("k{n}")));
        }
        let old = read(0, &[("x", present(1))], &["k0"]);
        let recent = read(1, &[("y", present(1))], &[]);
        let found = trail.bring_forward(vec![old, recent], CommitSeq(5));
        assert!(!found.rows.contains_key(&key("x")) && found.results.is_empty());
        assert_eq!(found.rows[&key("y")], present(1));
        // Without a trail only what was read at this very position is of use.
        trail.clear();
        let reads = vec![
            read(4, &[("x", present(1))], &[]),
            read(5, &[("y", present(1))], &[]),
        ];
        let found = trail.bring_forward(reads, CommitSeq(5));
        assert_eq!(found.rows.len(), 1);
    }

    #[test]
    fn a_rejection_moves_no_number_and_its_result_is_known_all_the_same() {
        let mut trail = Trail::default();
        trail.append(&batch(5, false, Vec::new(), "rejected"));
        let found = trail.bring_forward(vec![read(5, &[], &["rejected"])], CommitSeq(5));
        assert!(matches!(
            found.results[&result_key("rejected")],
            ResultLookup::Found(_)
        ));
    }

    #[test]
    fn it_is_bounded_in_batches_entries_and_bytes() {
        let mut trail = Trail::default();
        let many = |expected| {
            let rows = (0..ENTRIES / 2).map(|n| put(&format!("r{n}"), 1)).collect();
            batch(expected, true, rows, "k")
        };
        trail.append(&many(0));
        trail.append(&many(1));
        assert_eq!(trail.steps.len(), 1, "two are too many entries");
        assert_eq!(trail.bytes(), 10 * (ENTRIES / 2));
        trail.append(&batch(2, true, Vec::new(), "k"));
        assert_eq!(trail.steps.len(), 2);
        for n in 3..20 {
            trail.append(&batch(n, true, vec![put("a", 1)], "k"));
        }
        assert_eq!(trail.steps.len(), BATCHES);
        assert_eq!(trail.bytes(), 10 * BATCHES);
        assert_eq!(trail.entries, 2 * BATCHES);
    }
}

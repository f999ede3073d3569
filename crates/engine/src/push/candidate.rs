//! The partition's state as a batch of pushes sees it: what was read, under what
//! the batch's accepted commits have staged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ssp2::Value;

use crate::ids::{CommitSeq, PartitionId, SchemaVersion, TableId};
use crate::model::{
    ChildRows, ChildrenKey, CommitBatch, Fetched, LoggedCommit, Needs, Over, QueuedReaction,
    ResultKey, ResultLookup, RowKey, RowState, RowWrite, StoredPushResult, StoredRow,
};

use crate::schema::Schema;

use super::hooks::PlannedReaction;
use super::unique::{Before, UniqueEntries};

/// A row as the batch leaves it so far.
#[derive(Debug, Clone)]
pub(super) enum Staged {
    /// Stored.
    Put {
        row: Arc<StoredRow>,
        values: Arc<[Value]>,
    },
    /// Deleted by that commit.
    Deleted(CommitSeq),
}

/// A children set without its limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ChildrenOf {
    pub(super) child: TableId,
    pub(super) column: u16,
    pub(super) parent_row: Arc<str>,
}

impl ChildrenOf {
    /// The need for at least `limit` of them.
    pub(super) fn limited(self, limit: u32) -> ChildrenKey {
        ChildrenKey {
            child: self.child,
            column: self.column,
            parent_row: self.parent_row,
            limit,
        }
    }
}

#[derive(Debug)]
struct KnownChildren {
    limit: u32,
    rows: ChildRows,
}

/// Somebody else committed to the partition after the candidate's position: what
/// the candidate knows may be stale, and its batch would lose the CAS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the partition moved from commit {expected} to {found}")]
pub struct Moved {
    /// The candidate's position.
    pub expected: CommitSeq,
    /// The log's.
    pub found: CommitSeq,
}

/// The state of one partition for one batch of pushes.
///
/// Everything handed in with [`provide`](Self::provide) and the `seed_*` methods
/// must be true at position `max`; [`decide`](super::decide) adds what each
/// accepted commit stages. A rejected commit leaves nothing but its result.
#[derive(Debug)]
pub struct Candidate {
    partition: PartitionId,
    base: CommitSeq,
    rows: HashMap<RowKey, RowState>,
    results: HashMap<ResultKey, ResultLookup>,
    children: HashMap<ChildrenOf, KnownChildren>,
    staged: BTreeMap<RowKey, Staged>,
    unique: UniqueEntries,
    reactions: Vec<QueuedReaction>,
    commits: Vec<Arc<LoggedCommit>>,
    decided: Vec<(ResultKey, Arc<StoredPushResult>)>,
}

impl Candidate {
    /// A candidate that knows nothing yet, at log position `max`.
    pub fn new(partition: PartitionId, max: CommitSeq) -> Self {
        Self {
            partition,
            base: max,
            rows: HashMap::new(),
            results: HashMap::new(),
            children: HashMap::new(),
            staged: BTreeMap::new(),
            unique: UniqueEntries::default(),
            reactions: Vec::new(),
            commits: Vec::new(),
            decided: Vec::new(),
        }
    }

    /// Takes in what was read.
    ///
    /// # Errors
    /// [`Moved`], changing nothing, when the read saw another log position: start
    /// over with a new candidate.
    pub fn provide(&mut self, fetched: &Fetched) -> Result<(), Moved> {
        if fetched.max != self.base {
            return Err(Moved {
                expected: self.base,
                found: fetched.max,
            });
        }
        for (key, state) in &fetched.rows {
            self.rows.insert(key.clone(), state.clone());
        }
        for (key, lookup) in &fetched.results {
            self.results
                .entry(key.clone())
                .or_insert_with(|| lookup.clone());
        }
        for (key, rows) in &fetched.children {
            for (child, row) in rows {
                self.rows
                    .entry(child.clone())
                    .or_insert_with(|| RowState::Present(Arc::clone(row)));
            }
            let of = ChildrenOf {
                child: key.child,
                column: key.column,
                parent_row: Arc::clone(&key.parent_row),
            };
            let known = KnownChildren {
                limit: key.limit,
                rows: rows.clone(),
            };
            if self
                .children
                .get(&of)
                .is_none_or(|known| known.limit < key.limit)
            {
                self.children.insert(of, known);
            }
        }
        Ok(())
    }

    /// Tells of a row from a cache that is true at the candidate's position.
    pub fn seed_row(&mut self, key: RowKey, state: RowState) {
        self.rows.insert(key, state);
    }

    /// Tells of a stored result from a cache.
    pub fn seed_result(&mut self, key: ResultKey, lookup: ResultLookup) {
        self.results.entry(key).or_insert(lookup);
    }

    /// The partition.
    pub const fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// The log position that everything known is true at.
    pub const fn base(&self) -> CommitSeq {
        self.base
    }

    /// The position after the commits accepted so far.
    pub fn head(&self) -> CommitSeq {
        self.commits.last().map_or(self.base, |commit| commit.seq)
    }

    /// Whether there is nothing to write: no commit was decided, at most replayed.
    pub fn is_empty(&self) -> bool {
        self.decided.is_empty()
    }

    /// Whether the batch may hide a collision on a unique index: one commit took a
    /// value and a later one gave it up. Written together they would pass an index
    /// that the first alone might violate, so they are to be written apart.
    pub fn may_hide_a_collision(&self) -> bool {
        self.unique.may_hide()
    }

    /// What of `wanted` is not known yet.
    pub fn unknown_of(&self, wanted: Needs) -> Needs {
        let keep_row =
            |key: &RowKey| !self.staged.contains_key(key) && !self.rows.contains_key(key);
        Needs {
            rows: wanted.rows.into_iter().filter(keep_row).collect(),
            results: wanted
                .results
                .into_iter()
                .filter(|key| self.result(key).is_none())
                .collect(),
            children: wanted
                .children
                .into_iter()
                .filter(|key| {
                    let of = ChildrenOf {
                        child: key.child,
                        column: key.column,
                        parent_row: Arc::clone(&key.parent_row),
                    };
                    self.stored_children(&of, key.limit).is_none()
                })
                .collect(),
        }
    }

    /// The batch that makes everything decided durable. Client records are the
    /// caller's to add.
    pub fn into_batch(
        self,
        writer_version: SchemaVersion,
        declared: Arc<BTreeSet<(String, String)>>,
    ) -> CommitBatch {
        let known = self.rows;
        let rows = self
            .staged
            .into_iter()
            .map(|(key, staged)| match staged {
                Staged::Put { row, values } => RowWrite::Put {
                    over: match known.get(&key) {
                        Some(RowState::Absent { tombstone: None }) => Over::Nothing,
                        Some(RowState::Absent { tombstone: Some(_) }) => Over::Tombstone,
                        Some(RowState::Present(_)) | None => Over::Row,
                    },
                    key,
                    row,
                    values,
                },
                Staged::Deleted(tombstone) => RowWrite::Delete { key, tombstone },
            })
            .collect();
        CommitBatch {
            partition: self.partition,
            expected_max: self.base,
            writer_version,
            declared,
            commits: self.commits,
            results: self.decided,
            rows,
            clients: Vec::new(),
            reactions: self.reactions,
            advance: None,
        }
    }

    /// What is known of a result; one decided in this batch counts as stored.
    pub(super) fn result(&self, key: &ResultKey) -> Option<&ResultLookup> {
        self.results.get(key)
    }

    pub(super) fn staged(&self, key: &RowKey) -> Option<&Staged> {
        self.staged.get(key)
    }

    pub(super) fn known(&self, key: &RowKey) -> Option<&RowState> {
        self.rows.get(key)
    }

    /// Rows of `table` that accepted commits have staged.
    pub(super) fn staged_of(&self, table: TableId) -> impl Iterator<Item = (&RowKey, &Staged)> {
        rows_of(&self.staged, table)
    }

    /// The children as read, if all of them or at least `limit` are known.
    pub(super) fn stored_children(&self, of: &ChildrenOf, limit: u32) -> Option<&ChildRows> {
        self.children
            .get(of)
            .filter(|known| known.limit >= limit || known.rows.len() < known.limit as usize)
            .map(|known| &known.rows)
    }

    /// Takes an accepted commit in.
    pub(super) fn accept(
        &mut self,
        schema: &Schema,
        key: ResultKey,
        (result, commit): (Arc<StoredPushResult>, Arc<LoggedCommit>),
        reactions: &[PlannedReaction],
        overlay: BTreeMap<RowKey, Staged>,
    ) {
        let (staged, rows) = (&self.staged, &self.rows);
        self.unique.accept(schema, &overlay, |key| {
            let staged = staged.get(key).map(Before::Staged);
            staged.or_else(|| rows.get(key).map(Before::Read))
        });
        self.staged.extend(overlay);
        self.reactions.extend(
            reactions
                .iter()
                .map(|planned| QueuedReaction::new(&self.partition, &commit, planned.clone())),
        );
        self.commits.push(commit);
        self.record(key, result);
    }

    /// Records the outcome of a commit that left no other trace.
    pub(super) fn record(&mut self, key: ResultKey, result: Arc<StoredPushResult>) {
        self.results
            .insert(key.clone(), ResultLookup::Found(Arc::clone(&result)));
        self.decided.push((key, result));
    }
}

/// The entries of one table.
pub(super) fn rows_of(
    staged: &BTreeMap<RowKey, Staged>,
    table: TableId,
) -> impl Iterator<Item = (&RowKey, &Staged)> {
    let first = RowKey {
        table,
        row_id: "".into(),
    };
    staged
        .range(first..)
        .take_while(move |(key, _)| key.table == table)
}

//! One commit's writes before it is accepted: an overlay over the candidate that
//! is dropped when the commit is rejected (§6.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use ssp2::{RowError, Value};

use crate::ids::{CommitSeq, TableId};
use crate::keys::render_key;
use crate::model::{ChildRows, LoggedChange, RowKey, RowState, StoredRow};
use crate::schema::{Reference, Schema, Table};

use super::candidate::{Candidate, ChildrenOf, Staged, rows_of};
use super::hooks::StagedOperation;
use super::rows::decode_stored;

/// A row as the commit sees it.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub(super) row: Arc<StoredRow>,
    values: Option<Arc<[Value]>>,
}

impl Current {
    /// Its decoded values.
    pub(super) fn values(&self, table: &Table) -> Result<Arc<[Value]>, RowError> {
        self.values.as_ref().map_or_else(
            || decode_stored(table, &self.row.payload),
            |values| Ok(Arc::clone(values)),
        )
    }
}

/// What the commit knows of a row.
pub(super) enum Lookup {
    Present(Current),
    Absent { tombstone: bool },
    Unknown,
}

/// A reference column that an operation presented with a value.
pub(super) struct PresentedReference {
    pub(super) op_index: usize,
    pub(super) key: RowKey,
    pub(super) reference: Reference,
    /// Key of the parent row as presented.
    pub(super) parent_row: Arc<str>,
}

/// The overlay.
pub(super) struct Staging<'a> {
    candidate: &'a Candidate,
    overlay: BTreeMap<RowKey, Staged>,
    /// Changes in order (§2.2).
    pub(super) changes: Vec<LoggedChange>,
    /// Evidence for whole-commit rules, in order (§6.8).
    pub(super) operations: Vec<StagedOperation>,
    /// Rows that the client's operations deleted, in order.
    pub(super) deleted: Vec<(usize, RowKey)>,
    /// References to check once everything is staged (§6.11).
    pub(super) presented: Vec<PresentedReference>,
}

impl<'a> Staging<'a> {
    pub(super) const fn new(candidate: &'a Candidate) -> Self {
        Self {
            candidate,
            overlay: BTreeMap::new(),
            changes: Vec::new(),
            operations: Vec::new(),
            deleted: Vec::new(),
            presented: Vec::new(),
        }
    }

    /// The position this commit takes if it is accepted.
    pub(super) fn seq(&self) -> CommitSeq {
        self.candidate.head().next()
    }

    pub(super) fn into_parts(self) -> (BTreeMap<RowKey, Staged>, Vec<LoggedChange>) {
        (self.overlay, self.changes)
    }

    fn staged(&self, key: &RowKey) -> Option<&Staged> {
        self.overlay.get(key).or_else(|| self.candidate.staged(key))
    }

    pub(super) fn lookup(&self, key: &RowKey) -> Lookup {
        match self.staged(key) {
            Some(Staged::Put { row, values }) => Lookup::Present(Current {
                row: Arc::clone(row),
                values: Some(Arc::clone(values)),
            }),
            Some(Staged::Deleted(_)) => Lookup::Absent { tombstone: true },
            None => match self.candidate.known(key) {
                Some(RowState::Present(row)) => Lookup::Present(Current {
                    row: Arc::clone(row),
                    values: None,
                }),
                Some(RowState::Absent { tombstone }) => Lookup::Absent {
                    tombstone: tombstone.is_some(),
                },
                None => Lookup::Unknown,
            },
        }
    }

    /// Stages a row and its change.
    pub(super) fn put(&mut self, key: RowKey, row: Arc<StoredRow>, values: Arc<[Value]>) {
        self.changes.push(LoggedChange {
            key: key.clone(),
            scopes: row.scopes.clone(),
            upsert: Some((row.server_version, row.payload.clone())),
        });
        self.overlay.insert(key, Staged::Put { row, values });
    }

    /// Stages a delete and its change, which carries the scopes the row had (§2.2).
    pub(super) fn delete(&mut self, key: RowKey, row: &StoredRow) {
        self.changes.push(LoggedChange {
            key: key.clone(),
            scopes: row.scopes.clone(),
            upsert: None,
        });
        let seq = self.seq();
        self.overlay.insert(key, Staged::Deleted(seq));
    }

    /// The rows of `child` that reference `parent_row` now, in row id order: at
    /// least `wanted` of them, or all there are.
    ///
    /// # Errors
    /// The set to read first, with the limit that makes it sufficient.
    pub(super) fn children(
        &self,
        of: ChildrenOf,
        wanted: u32,
    ) -> Result<Vec<RowKey>, (ChildrenOf, u32)> {
        // Every staged row may hide one of those read, so that many more are needed.
        let overridden =
            self.candidate.staged_of(of.child).count() + rows_of(&self.overlay, of.child).count();
        let limit = wanted.saturating_add(u32::try_from(overridden).unwrap_or(u32::MAX));
        let Some(stored) = self.candidate.stored_children(&of, limit) else {
            return Err((of, limit));
        };
        let mut children = self.untouched(stored);
        let column = usize::from(of.column);
        let references = |staged: &Staged| match staged {
            Staged::Put { values, .. } => values
                .get(column)
                .and_then(render_key)
                .is_some_and(|key| *key == *of.parent_row),
            Staged::Deleted(_) => false,
        };
        children.extend(
            self.candidate
                .staged_of(of.child)
                .filter(|(key, _)| !self.overlay.contains_key(*key))
                .chain(rows_of(&self.overlay, of.child))
                .filter(|(_, staged)| references(staged))
                .map(|(key, _)| key.clone()),
        );
        children.sort_unstable();
        Ok(children)
    }

    fn untouched(&self, stored: &ChildRows) -> Vec<RowKey> {
        stored
            .iter()
            .filter(|(key, _)| self.staged(key).is_none())
            .map(|(key, _)| key.clone())
            .collect()
    }
}

/// The references of other tables (and its own) to `parent`, with the table that declares each.
pub(super) fn references_to(
    schema: &Schema,
    parent: TableId,
) -> impl Iterator<Item = (&Table, &Reference)> {
    schema.tables().iter().flat_map(move |child| {
        child
            .references
            .iter()
            .filter(move |reference| reference.parent == parent)
            .map(move |reference| (child, reference))
    })
}

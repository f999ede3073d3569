//! Whether a batch hides a collision (§6.3): its rows are written in their last
//! state, so a value that one commit duplicates and a later one removes again would
//! never meet the database's unique index. The first of the two must be rejected
//! all the same, as if it had been written alone.

use std::collections::{BTreeMap, HashSet};

use ssp2::{ColumnType, RowError, Value};

use crate::model::{RowKey, RowState};
use crate::schema::{Schema, Table};

use super::candidate::Staged;
use super::rows::decode_stored;

/// A row's place in a unique index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    table: u16,
    index: usize,
    key: Vec<u8>,
}

/// The places that a batch's commits took, and whether one was given up by a later
/// commit than the one that took it. Without that, the last state shows every
/// collision there was on the way: two rows in one place are still there.
#[derive(Debug, Default)]
pub(super) struct UniqueEntries {
    taken: HashSet<Entry>,
    hidden: bool,
}

impl UniqueEntries {
    /// Whether the batch may hide a collision.
    pub(super) const fn may_hide(&self) -> bool {
        self.hidden
    }

    /// Takes in what a commit writes. `before` is a row as the batch knew it.
    pub(super) fn accept<'a>(
        &mut self,
        schema: &Schema,
        overlay: &BTreeMap<RowKey, Staged>,
        before: impl Fn(&RowKey) -> Option<Before<'a>>,
    ) {
        let mut taken = Vec::new();
        for (key, staged) in overlay {
            let table = schema.table_at(key.table);
            if !table.indexes.iter().any(|index| index.unique) {
                continue;
            }
            let old = match before(key).map(|before| before.entries(table)).transpose() {
                Ok(old) => old.unwrap_or_default(),
                Err(_) => {
                    // Nobody knows what it gives up.
                    self.hidden = true;
                    continue;
                }
            };
            let new = match staged {
                Staged::Put { values, .. } => entries(table, values),
                Staged::Deleted(_) => Vec::new(),
            };
            self.hidden |= old
                .iter()
                .any(|entry| !new.contains(entry) && self.taken.contains(entry));
            taken.extend(new.into_iter().filter(|entry| !old.contains(entry)));
        }
        // Only now: within a commit a place may change hands.
        self.taken.extend(taken);
    }
}

/// A row before a commit.
pub(super) enum Before<'a> {
    /// Staged by an earlier commit.
    Staged(&'a Staged),
    /// Read.
    Read(&'a RowState),
}

impl Before<'_> {
    fn entries(&self, table: &Table) -> Result<Vec<Entry>, RowError> {
        Ok(match self {
            Before::Staged(Staged::Put { values, .. }) => entries(table, values),
            Before::Read(RowState::Present(row)) => {
                entries(table, &decode_stored(table, &row.payload)?)
            }
            Before::Staged(Staged::Deleted(_)) | Before::Read(RowState::Absent { .. }) => {
                Vec::new()
            }
        })
    }
}

/// A row's places in the unique indexes of its table; none where a column is NULL.
fn entries(table: &Table, values: &[Value]) -> Vec<Entry> {
    let unique = table
        .indexes
        .iter()
        .enumerate()
        .filter(|(_, index)| index.unique);
    unique
        .filter_map(|(position, index)| {
            let mut key = Vec::new();
            for &ordinal in &index.columns {
                let ty = table.columns.get(ordinal)?.ty;
                push_value(&mut key, ty, values.get(ordinal)?)?;
            }
            Some(Entry {
                table: table.id.0,
                index: position,
                key,
            })
        })
        .collect()
}

/// Appends what tells a value from others; `None` for NULL. Values that a database
/// may hold equal although they are not (documents, floats) are all taken as equal.
fn push_value(key: &mut Vec<u8>, ty: ColumnType, value: &Value) -> Option<()> {
    match (ty, value) {
        (_, Value::Null) => return None,
        (ColumnType::Integer, Value::Integer(number)) => key.extend(number.to_be_bytes()),
        (ColumnType::Boolean, Value::Boolean(flag)) => key.push(u8::from(*flag)),
        (ColumnType::String, Value::Text(text)) => {
            key.extend(text.len().to_be_bytes());
            key.extend(text.as_bytes());
        }
        (ColumnType::Bytes, Value::Bytes(bytes)) => {
            key.extend(bytes.len().to_be_bytes());
            key.extend(&bytes[..]);
        }
        _ => {}
    }
    Some(())
}

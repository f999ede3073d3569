//! The local replica: a base layer of rows as the server sent them, and above it
//! the outbox replayed (§7.1).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use ssp2::{ScopeLists, Value};

use crate::outbox::{LocalCommit, LocalOperation, LocalOperationKind};
use crate::schema::{ClientSchema, ClientTable};

/// An in-memory replica.
#[derive(Debug, Clone)]
pub struct Replica {
    schema: Arc<ClientSchema>,
    base: Vec<BTreeMap<String, BaseRow>>,
    overlay: Overlay,
}

#[derive(Debug, Clone, PartialEq)]
struct BaseRow {
    version: i64,
    values: Vec<Value>,
}

/// Rows as pending commits leave them; `None` is a row they delete. Rows without
/// a pending write are not here, so a rebuild costs as much as the outbox is long.
/// What an overlay does not hold, it shows as the replica does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay(BTreeMap<(usize, String), Option<Vec<Value>>>);

/// A row as local reads see it.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    table: &'a ClientTable,
    /// Values in column order.
    pub values: &'a [Value],
    /// Version last received from the server; `None` when it never sent the row.
    pub version: Option<i64>,
}

impl<'a> RowView<'a> {
    /// The value of a column.
    pub fn get(&self, column: &str) -> Option<&'a Value> {
        self.values.get(self.table.ordinal(column)?)
    }

    /// The text of a column, when it holds text.
    pub fn text(&self, column: &str) -> Option<&'a str> {
        match self.get(column)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl Overlay {
    pub(crate) fn values<'a>(
        &'a self,
        replica: &'a Replica,
        table: &str,
        row_id: &str,
    ) -> Option<&'a [Value]> {
        let index = replica.schema.index(table)?;
        match self.0.get(&(index, row_id.to_owned())) {
            Some(pending) => pending.as_deref(),
            None => replica.shown(index, row_id),
        }
    }

    /// Applies one operation: present columns over the row as shown so far; a
    /// partial write to an absent row leaves it absent, as the server does (§7.1).
    pub(crate) fn apply(&mut self, replica: &Replica, operation: &LocalOperation) {
        let Some(index) = replica.schema.index(&operation.table) else {
            return;
        };
        let table = &replica.schema.tables()[index];
        let shown = match &operation.kind {
            LocalOperationKind::Delete => None,
            LocalOperationKind::Upsert { columns, .. } => {
                let held = self.values(replica, &operation.table, &operation.row_id);
                let row: Option<Vec<Value>> = table
                    .columns
                    .iter()
                    .enumerate()
                    .map(|(at, column)| match (columns.get(&column.name), held) {
                        (Some(value), _) => Some(value.clone()),
                        (None, Some(held)) => held.get(at).cloned(),
                        (None, None) => None,
                    })
                    .collect();
                let Some(row) = row else { return };
                Some(row)
            }
        };
        self.0.insert((index, operation.row_id.clone()), shown);
    }
}

impl Replica {
    pub(crate) fn new(schema: Arc<ClientSchema>) -> Self {
        let base = vec![BTreeMap::new(); schema.tables().len()];
        Self {
            schema,
            base,
            overlay: Overlay::default(),
        }
    }

    /// The row as local reads see it: pending writes included.
    pub fn row(&self, table: &str, row_id: &str) -> Option<RowView<'_>> {
        let index = self.schema.index(table)?;
        Some(RowView {
            table: &self.schema.tables()[index],
            values: self.shown(index, row_id)?,
            version: self.base[index].get(row_id).map(|row| row.version),
        })
    }

    /// The version last received from the server for a row it holds.
    pub fn version(&self, table: &str, row_id: &str) -> Option<i64> {
        let index = self.schema.index(table)?;
        self.base[index].get(row_id).map(|row| row.version)
    }

    /// Ids of the rows local reads see, ascending.
    pub fn row_ids(&self, table: &str) -> Vec<&str> {
        self.schema
            .index(table)
            .map(|index| self.visible(index).map(|(id, _)| id).collect())
            .unwrap_or_default()
    }

    /// Number of rows local reads see in a table.
    pub fn len(&self, table: &str) -> usize {
        self.schema
            .index(table)
            .map_or(0, |index| self.visible(index).count())
    }

    /// Whether local reads see no row at all.
    pub fn is_empty(&self) -> bool {
        (0..self.base.len()).all(|index| self.visible(index).next().is_none())
    }

    /// All rows local reads see, as text: tables in schema order, rows by id, one
    /// line each. Two replicas with equal rows print equal text.
    pub fn canonical_dump(&self) -> String {
        self.dump(false)
    }

    /// [`Self::canonical_dump`] with each row's server version, `-` for a row that
    /// exists only locally.
    pub fn versioned_dump(&self) -> String {
        self.dump(true)
    }

    fn dump(&self, versions: bool) -> String {
        let mut out = String::new();
        for (index, table) in self.schema.tables().iter().enumerate() {
            let _ = writeln!(out, "# {}", table.name);
            for (row_id, values) in self.visible(index) {
                if versions {
                    match self.base[index].get(row_id) {
                        Some(row) => {
                            let _ = write!(out, "@{} ", row.version);
                        }
                        None => out.push_str("@- "),
                    }
                }
                for (at, (column, value)) in table.columns.iter().zip(values).enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    let _ = write!(out, "{separator}{}=", column.name);
                    render(&mut out, value);
                }
                out.push('\n');
            }
        }
        out
    }

    /// Visible rows of a table in id order: a merge of base and overlay.
    fn visible(&self, index: usize) -> impl Iterator<Item = (&str, &[Value])> {
        let pending: BTreeMap<&str, Option<&[Value]>> = self
            .overlay
            .0
            .range((index, String::new())..(index + 1, String::new()))
            .map(|((_, id), row)| (id.as_str(), row.as_deref()))
            .collect();
        let mut rows: Vec<(&str, &[Value])> = self.base[index]
            .iter()
            .filter(|(id, _)| !pending.contains_key(id.as_str()))
            .map(|(id, row)| (id.as_str(), row.values.as_slice()))
            .collect();
        if !pending.is_empty() {
            rows.extend(pending.into_iter().filter_map(|(id, row)| Some((id, row?))));
            rows.sort_unstable_by_key(|(id, _)| *id);
        }
        rows.into_iter()
    }

    fn shown(&self, index: usize, row_id: &str) -> Option<&[Value]> {
        match self.overlay.0.get(&(index, row_id.to_owned())) {
            Some(pending) => pending.as_deref(),
            None => self.base[index]
                .get(row_id)
                .map(|row| row.values.as_slice()),
        }
    }

    pub(crate) fn put(&mut self, table: usize, row_id: String, version: i64, values: Vec<Value>) {
        self.base[table].insert(row_id, BaseRow { version, values });
    }

    pub(crate) fn remove(&mut self, table: usize, row_id: &str) {
        self.base[table].remove(row_id);
    }

    /// Removes the server rows of a table that lie in `scopes`; returns how many.
    /// The caller has checked that the schema can match them.
    pub(crate) fn purge(&mut self, table: usize, scopes: &ScopeLists) -> usize {
        let declared = &self.schema.tables()[table];
        let before = self.base[table].len();
        self.base[table].retain(|_, row| !declared.row_in(scopes, |at| row.values.get(at)));
        before - self.base[table].len()
    }

    /// Replays the whole outbox over the base layer (§7.1, §7.2).
    pub(crate) fn replay<'a>(&mut self, outbox: impl Iterator<Item = &'a LocalCommit>) {
        self.overlay = Overlay::default();
        self.show(outbox);
    }

    /// Shows further pending commits above what is already shown.
    pub(crate) fn show<'a>(&mut self, commits: impl Iterator<Item = &'a LocalCommit>) {
        let mut overlay = std::mem::take(&mut self.overlay);
        for operation in commits.flat_map(|commit| &commit.operations) {
            overlay.apply(self, operation);
        }
        self.overlay = overlay;
    }
}

fn render(out: &mut String, value: &Value) {
    let _ = match value {
        Value::Null => write!(out, "null"),
        Value::Text(text) => write!(out, "{}", serde_json::Value::from(text.as_str())),
        Value::Integer(integer) => write!(out, "{integer}"),
        Value::Float(float) => write!(out, "{float:?}"),
        Value::Boolean(boolean) => write!(out, "{boolean}"),
        Value::Bytes(bytes) => {
            out.push_str("x'");
            for byte in bytes {
                let _ = write!(out, "{byte:02x}");
            }
            write!(out, "'")
        }
    };
}

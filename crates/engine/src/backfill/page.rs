//! What a page of source rows changes in the target, and the commit that carries
//! it. Rows that already are as computed are left alone: a page that is computed
//! twice writes once.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value as Json;
use ssp2::{
    ColumnType, Operation, OperationKind, PushCommit, RowError, ScopeLists, SparseRow, Value,
    canonical_json, encode_sparse_row,
};

use super::checkpoint::Advance;
use super::projection::{FailureReason, Projection, ProjectionFailure, Shape, SourceRow};
use super::scan::{PageId, client_id};
use crate::hooks::Allowed;
use crate::model::{ResultKey, RowKey};
use crate::schema::{Schema, Table};
use crate::scopes::{ANY, stored_scopes};

/// A row as a snapshot holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct RowImage {
    /// Row version.
    pub server_version: i64,
    /// Values in column order.
    pub values: Arc<[Value]>,
}

/// A source row to project; `None` = deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceImage {
    /// Row.
    pub key: RowKey,
    /// What it holds.
    pub row: Option<RowImage>,
}

/// One target row that differs from what is computed.
#[derive(Debug, Clone, PartialEq)]
pub struct RowChange {
    /// Target row.
    pub key: RowKey,
    /// The version it was planned on; `None` = the row did not exist. At any other
    /// version the change is dropped: whoever changed the row did so above the
    /// log position of the page's snapshot, and catching up meets the row again.
    pub expected_version: Option<i64>,
    /// What becomes of it.
    pub write: TargetWrite,
}

/// What becomes of a target row.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetWrite {
    /// Sets the columns that differ (each `Some`), the primary key included; a new
    /// row has all of them.
    Set(SparseRow),
    /// Deletes it: its source row is gone or left out.
    Delete,
}

/// A page to commit: through the partition's serialization, its rows and the
/// checkpoint's advance together or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct BackfillPage {
    /// The checkpoint.
    pub name: Arc<str>,
    /// Idempotency key. With a stored result the page is done: neither its rows
    /// nor its advance are written again.
    pub key: ResultKey,
    /// Target rows that differ, by ascending key; none is a page all the same, for
    /// the advance is due.
    pub changes: Vec<RowChange>,
    /// The advance; when it fails the page is dropped whole.
    pub advance: Advance,
}

impl BackfillPage {
    /// A page of a backfill.
    pub fn new(name: &str, id: &PageId, changes: Vec<RowChange>, advance: Advance) -> Self {
        Self {
            name: name.into(),
            key: ResultKey {
                client_id: client_id(name),
                client_commit_id: id.encode().into(),
            },
            changes,
            advance,
        }
    }

    /// The rows whose versions [`Self::commit`] will ask for.
    pub fn rows(&self) -> impl Iterator<Item = &RowKey> {
        self.changes.iter().map(|change| &change.key)
    }

    /// The commit (wire version 3) of those changes that still hold, given the
    /// present version of each target row. `None` = nothing to write, only the
    /// advance.
    ///
    /// # Errors
    /// When values do not fit their columns, which a checked projection rules out.
    pub fn commit(
        &self,
        schema: &Schema,
        version_of: impl Fn(&RowKey) -> Option<i64>,
    ) -> Result<Option<PushCommit>, RowError> {
        let operations: Vec<Operation> = self
            .changes
            .iter()
            .filter(|change| version_of(&change.key) == change.expected_version)
            .map(|change| {
                let table = schema.table_at(change.key.table);
                let kind = match &change.write {
                    TargetWrite::Delete => OperationKind::Delete,
                    TargetWrite::Set(row) => OperationKind::Upsert(encode_sparse_row(
                        &table.columns,
                        table.primary_key,
                        row,
                    )?),
                };
                Ok(Operation {
                    table: table.name.clone(),
                    row_id: change.key.row_id.to_string(),
                    // A base of 0 inserts, over a tombstone as well.
                    base_version: change.expected_version.is_none().then_some(0),
                    kind,
                })
            })
            .collect::<Result<_, RowError>>()?;
        Ok((!operations.is_empty()).then(|| PushCommit {
            client_commit_id: self.key.client_commit_id.to_string(),
            operations,
        }))
    }
}

/// The scopes of the server itself: any value of every variable of the table.
pub fn server_scopes(table: &Table) -> Allowed {
    let mut scopes = ScopeLists::new();
    for pattern in &table.scopes {
        scopes.insert(pattern.variable.as_str(), vec![ANY.to_owned()]);
    }
    Allowed::Resolved(Arc::new(scopes))
}

/// The target rows of a page's source rows: what [`plan_changes`] must be able to
/// look up. Empty when the projection fills columns of the source rows themselves.
///
/// # Errors
/// When a row id gives no key.
pub fn target_keys(
    schema: &Schema,
    projection: &dyn Projection,
    sources: &[SourceImage],
) -> Result<BTreeSet<RowKey>, ProjectionFailure> {
    match projection.shape() {
        Shape::Columns(_) => Ok(BTreeSet::new()),
        Shape::Rows => sources
            .iter()
            .map(|source| target_key(schema, projection, source))
            .collect(),
    }
}

fn target_key(
    schema: &Schema,
    projection: &dyn Projection,
    source: &SourceImage,
) -> Result<RowKey, ProjectionFailure> {
    let table = schema.table_at(source.key.table);
    Ok(RowKey {
        table: projection.target(),
        row_id: projection.target_row_id(table, &source.key.row_id)?,
    })
}

/// Computes the target rows of some source rows and keeps those that differ from
/// what is stored, by ascending key. `stored` answers for [`target_keys`], from the
/// snapshot that the source rows come from.
///
/// # Errors
/// The first row that cannot be projected: nothing of the page is to be written.
pub fn plan_changes(
    schema: &Schema,
    projection: &dyn Projection,
    sources: &[SourceImage],
    stored: impl Fn(&RowKey) -> Option<RowImage>,
) -> Result<Vec<RowChange>, ProjectionFailure> {
    let mut changes = Vec::new();
    let mut seen = BTreeSet::new();
    for source in sources {
        let change = match projection.shape() {
            Shape::Columns(columns) => column_change(schema, projection, columns, source)?,
            Shape::Rows => {
                let key = target_key(schema, projection, source)?;
                if !seen.insert(key.clone()) {
                    let reason = FailureReason::KeyTaken;
                    return Err(failed(schema, source, Some("key"), reason));
                }
                let target = stored(&key);
                row_change(schema, projection, source, key, target)?
            }
        };
        changes.extend(change);
    }
    changes.sort_by(|a: &RowChange, b| a.key.cmp(&b.key));
    Ok(changes)
}

fn failed(
    schema: &Schema,
    source: &SourceImage,
    part: Option<&str>,
    reason: FailureReason,
) -> ProjectionFailure {
    ProjectionFailure {
        table: schema.table_at(source.key.table).name.clone(),
        row_id: source.key.row_id.to_string(),
        part: part.map(str::to_owned),
        reason,
    }
}

fn column_change(
    schema: &Schema,
    projection: &dyn Projection,
    columns: &[usize],
    source: &SourceImage,
) -> Result<Option<RowChange>, ProjectionFailure> {
    let Some(row) = &source.row else {
        return Ok(None);
    };
    let table = schema.table_at(source.key.table);
    let key_cell = row.values.get(table.primary_key);
    let (Some(key_cell), true) = (key_cell, row.values.len() == table.columns.len()) else {
        return Err(failed(schema, source, None, FailureReason::BadRow));
    };
    let computed = projection.project(&source_row(table, source, row))?;
    let cells: Vec<(usize, Value)> = match computed {
        Some(projected) => projected.cells,
        None => columns.iter().map(|at| (*at, Value::Null)).collect(),
    };
    let mut set: SparseRow = vec![None; table.columns.len()];
    let mut differs = false;
    for (ordinal, value) in cells {
        let (Some(column), Some(stored)) = (table.columns.get(ordinal), row.values.get(ordinal))
        else {
            return Err(failed(schema, source, None, FailureReason::BadRow));
        };
        if !columns.contains(&ordinal) {
            return Err(failed(schema, source, None, FailureReason::BadRow));
        }
        if !same(column.ty, stored, &value) {
            set[ordinal] = Some(value);
            differs = true;
        }
    }
    set[table.primary_key] = Some(key_cell.clone());
    Ok(differs.then(|| RowChange {
        key: source.key.clone(),
        expected_version: Some(row.server_version),
        write: TargetWrite::Set(set),
    }))
}

fn row_change(
    schema: &Schema,
    projection: &dyn Projection,
    source: &SourceImage,
    key: RowKey,
    stored: Option<RowImage>,
) -> Result<Option<RowChange>, ProjectionFailure> {
    let fail = |reason| failed(schema, source, None, reason);
    let computed = match &source.row {
        None => None,
        Some(row) => {
            let table = schema.table_at(source.key.table);
            projection.project(&source_row(table, source, row))?
        }
    };
    let Some(computed) = computed else {
        return Ok(stored.map(|stored| RowChange {
            key,
            expected_version: Some(stored.server_version),
            write: TargetWrite::Delete,
        }));
    };
    let target = schema.table_at(key.table);
    let mut values = match &stored {
        Some(stored) => stored.values.to_vec(),
        None => vec![Value::Null; target.columns.len()],
    };
    let mut set: SparseRow = match &stored {
        Some(_) => vec![None; target.columns.len()],
        None => vec![Some(Value::Null); target.columns.len()],
    };
    let mut differs = stored.is_none();
    let has_key = computed
        .cells
        .iter()
        .any(|(at, _)| *at == target.primary_key);
    if !has_key || computed.row_id != key.row_id || values.len() != target.columns.len() {
        return Err(fail(FailureReason::BadRow));
    }
    for (ordinal, value) in computed.cells {
        let column = target.columns.get(ordinal);
        let ty = column.ok_or_else(|| fail(FailureReason::BadRow))?.ty;
        let unchanged = stored.is_some() && same(ty, &values[ordinal], &value);
        if ordinal == target.primary_key || !unchanged {
            differs |= !unchanged;
            values[ordinal] = value.clone();
            set[ordinal] = Some(value);
        }
    }
    let scopes = stored_scopes(target, &values).ok_or_else(|| fail(FailureReason::NoScope))?;
    if let Some(stored) = &stored
        && stored_scopes(target, &stored.values).is_some_and(|before| before != scopes)
    {
        return Err(fail(FailureReason::ScopeMoved));
    }
    Ok(differs.then(|| RowChange {
        key,
        expected_version: stored.map(|stored| stored.server_version),
        write: TargetWrite::Set(set),
    }))
}

fn source_row<'a>(table: &'a Table, source: &'a SourceImage, row: &'a RowImage) -> SourceRow<'a> {
    SourceRow {
        table,
        row_id: &source.key.row_id,
        values: &row.values,
    }
}

/// Whether a stored value needs no write: json compares as documents, for a client
/// may have written the same one with other white space.
fn same(ty: ColumnType, stored: &Value, computed: &Value) -> bool {
    if stored == computed {
        return true;
    }
    match (ty, stored, computed) {
        (ColumnType::Json, Value::Text(stored), Value::Text(computed)) => {
            let canonical = |text: &str| {
                let json = serde_json::from_str::<Json>(text).ok()?;
                Some(canonical_json(&json))
            };
            match (canonical(stored), canonical(computed)) {
                (Some(stored), Some(computed)) => stored == computed,
                _ => false,
            }
        }
        (ColumnType::Float, Value::Float(stored), Value::Float(computed)) => {
            stored.to_bits() == computed.to_bits()
        }
        _ => false,
    }
}

//! The FIFO outbox (§7.1): commits in creation order, each with a stable id, in a
//! form that outlives a schema or wire version.

use std::collections::{BTreeMap, VecDeque};

use ssp2::{Operation, OperationKind, PushCommit, SparseRow, Value, WireVersion};

use crate::edit::{Base, Edit, EditError, EditKind};
use crate::replica::{Overlay, Replica};
use crate::schema::{ClientSchema, ClientTable, render_scope_value};

/// A pending commit.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalCommit {
    /// Idempotency key, stable over every retry.
    pub client_commit_id: String,
    /// At least one, in order.
    pub operations: Vec<LocalOperation>,
}

/// One operation, naming its columns instead of coding them.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalOperation {
    /// Table.
    pub table: String,
    /// Rendered primary key.
    pub row_id: String,
    /// Optimistic base version.
    pub base_version: Option<i64>,
    /// What to do.
    pub kind: LocalOperationKind,
}

/// What an operation does to its row.
#[derive(Debug, Clone, PartialEq)]
pub enum LocalOperationKind {
    /// Writes these columns. `whole` marks a full row, whose missing columns are NULL.
    Upsert {
        /// Column values by name; the primary key is always there.
        columns: BTreeMap<String, Value>,
        /// Whether the operation states the whole row.
        whole: bool,
    },
    /// Removes the row.
    Delete,
}

/// Pending commits, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    commits: VecDeque<LocalCommit>,
}

/// A pending commit that the current schema or wire version cannot express.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Incompatible;

impl Outbox {
    pub(crate) fn push(&mut self, commit: LocalCommit) {
        self.commits.push_back(commit);
    }

    pub(crate) fn len(&self) -> usize {
        self.commits.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LocalCommit> {
        self.commits.iter()
    }

    /// Removes the commit of that id, if it is still pending.
    pub(crate) fn take(&mut self, client_commit_id: &str) -> Option<LocalCommit> {
        let at = self
            .commits
            .iter()
            .position(|commit| commit.client_commit_id == client_commit_id)?;
        self.commits.remove(at)
    }

    /// Removes every commit `doomed` picks; the rest keeps its order.
    pub(crate) fn take_where(
        &mut self,
        mut doomed: impl FnMut(&LocalCommit) -> bool,
    ) -> Vec<LocalCommit> {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.commits)
            .into_iter()
            .partition(|commit| doomed(commit));
        self.commits = kept.into();
        gone
    }

    /// The longest prefix of whole commits within `budget` operations; a first
    /// commit that alone exceeds it goes alone (§7.1).
    pub(crate) fn prefix(&self, budget: usize) -> impl Iterator<Item = &LocalCommit> {
        let mut spent = 0;
        self.commits
            .iter()
            .enumerate()
            .map_while(move |(at, commit)| {
                spent += commit.operations.len();
                (at == 0 || spent <= budget).then_some(commit)
            })
    }
}

impl LocalCommit {
    /// Turns edits into a commit, as the replica stands now. Wire 1 and 2 know only
    /// whole rows, so an update takes the columns it leaves alone from the replica.
    pub(crate) fn record(
        client_commit_id: String,
        edits: Vec<Edit>,
        schema: &ClientSchema,
        replica: &Replica,
        wire: WireVersion,
    ) -> Result<Self, EditError> {
        if edits.is_empty() {
            return Err(EditError::Empty);
        }
        // Later edits of the commit see the earlier ones.
        let mut shown = Overlay::default();
        let mut operations = Vec::with_capacity(edits.len());
        for edit in edits {
            let table = schema
                .table(&edit.table)
                .ok_or_else(|| EditError::UnknownTable(edit.table.clone()))?;
            let (row_id, kind) = match edit.kind {
                EditKind::Delete(row_id) => (row_id, LocalOperationKind::Delete),
                EditKind::Upsert(columns) => whole_row(table, columns)?,
                EditKind::Update(row_id, columns) => {
                    let kind = if wire >= WireVersion::V3 {
                        sparse_row(table, &row_id, columns)?
                    } else {
                        let held = shown.values(replica, &edit.table, &row_id);
                        merged_row(table, &row_id, columns, held)?
                    };
                    (row_id, kind)
                }
            };
            let base_version = match edit.base {
                Base::None => None,
                Base::Known => replica.version(&edit.table, &row_id),
                Base::Absent => Some(0),
                Base::Exact(version) => Some(version),
            };
            let operation = LocalOperation {
                table: edit.table,
                row_id,
                base_version,
                kind,
            };
            shown.apply(replica, &operation);
            operations.push(operation);
        }
        Ok(Self {
            client_commit_id,
            operations,
        })
    }

    /// The frame of this commit. The same commit always yields the same bytes
    /// under one schema and wire version, as its idempotency key demands.
    pub(crate) fn encode(
        &self,
        schema: &ClientSchema,
        wire: WireVersion,
    ) -> Result<PushCommit, Incompatible> {
        Ok(PushCommit {
            client_commit_id: self.client_commit_id.clone(),
            operations: self
                .operations
                .iter()
                .map(|operation| operation.encode(schema, wire))
                .collect::<Result<_, _>>()?,
        })
    }
}

impl LocalOperation {
    fn encode(&self, schema: &ClientSchema, wire: WireVersion) -> Result<Operation, Incompatible> {
        let table = schema.table(&self.table).ok_or(Incompatible)?;
        let kind = match &self.kind {
            LocalOperationKind::Delete => OperationKind::Delete,
            LocalOperationKind::Upsert { columns, whole } => {
                let row = self.present(table, columns, *whole)?;
                let bytes = if wire >= WireVersion::V3 {
                    ssp2::encode_sparse_row(&table.columns, table.primary_key, &row)
                } else {
                    let row: Option<Vec<Value>> = row.into_iter().collect();
                    ssp2::encode_row(&table.columns, &row.ok_or(Incompatible)?)
                };
                OperationKind::Upsert(bytes.map_err(|_| Incompatible)?)
            }
        };
        Ok(Operation {
            table: self.table.clone(),
            row_id: self.row_id.clone(),
            base_version: self.base_version,
            kind,
        })
    }

    fn present(
        &self,
        table: &ClientTable,
        columns: &BTreeMap<String, Value>,
        whole: bool,
    ) -> Result<SparseRow, Incompatible> {
        if columns.keys().any(|name| table.ordinal(name).is_none()) {
            return Err(Incompatible);
        }
        table
            .columns
            .iter()
            .map(|column| match columns.get(&column.name) {
                Some(value) => Ok(Some(value.clone())),
                None if !whole => Ok(None),
                None if column.nullable => Ok(Some(Value::Null)),
                None => Err(Incompatible),
            })
            .collect()
    }
}

fn named(
    table: &ClientTable,
    columns: Vec<(String, Value)>,
) -> Result<BTreeMap<String, Value>, EditError> {
    for (column, _) in &columns {
        if table.ordinal(column).is_none() {
            return Err(EditError::UnknownColumn {
                table: table.name.clone(),
                column: column.clone(),
            });
        }
    }
    Ok(columns.into_iter().collect())
}

fn whole_row(
    table: &ClientTable,
    columns: Vec<(String, Value)>,
) -> Result<(String, LocalOperationKind), EditError> {
    let mut columns = named(table, columns)?;
    for column in &table.columns {
        if columns.contains_key(&column.name) {
            continue;
        }
        if !column.nullable {
            return Err(EditError::MissingColumn {
                table: table.name.clone(),
                column: column.name.clone(),
            });
        }
        columns.insert(column.name.clone(), Value::Null);
    }
    let row_id = columns
        .get(&table.columns[table.primary_key].name)
        .and_then(render_scope_value)
        .ok_or_else(|| EditError::InvalidKey(table.name.clone()))?;
    Ok((
        row_id,
        LocalOperationKind::Upsert {
            columns,
            whole: true,
        },
    ))
}

fn sparse_row(
    table: &ClientTable,
    row_id: &str,
    columns: Vec<(String, Value)>,
) -> Result<LocalOperationKind, EditError> {
    let mut columns = named(table, columns)?;
    let key = &table.columns[table.primary_key];
    let value =
        key_value(key.ty, row_id).ok_or_else(|| EditError::InvalidKey(table.name.clone()))?;
    columns.insert(key.name.clone(), value);
    Ok(LocalOperationKind::Upsert {
        columns,
        whole: false,
    })
}

fn merged_row(
    table: &ClientTable,
    row_id: &str,
    columns: Vec<(String, Value)>,
    held: Option<&[Value]>,
) -> Result<LocalOperationKind, EditError> {
    let changed = named(table, columns)?;
    let held = held.ok_or_else(|| EditError::RowNotHeld {
        table: table.name.clone(),
        row_id: row_id.to_owned(),
    })?;
    let mut columns: BTreeMap<_, _> = table
        .columns
        .iter()
        .zip(held)
        .map(|(column, value)| (column.name.clone(), value.clone()))
        .collect();
    columns.extend(changed);
    Ok(LocalOperationKind::Upsert {
        columns,
        whole: true,
    })
}

/// The key value whose rendering is `row_id` (§2.3).
fn key_value(ty: ssp2::ColumnType, row_id: &str) -> Option<Value> {
    use ssp2::ColumnType;
    match ty {
        ColumnType::String | ColumnType::Json => Some(Value::Text(row_id.to_owned())),
        ColumnType::Integer => row_id.parse().ok().map(Value::Integer),
        ColumnType::Boolean => row_id.parse().ok().map(Value::Boolean),
        ColumnType::Float | ColumnType::Bytes | ColumnType::BlobRef | ColumnType::Crdt => None,
    }
}

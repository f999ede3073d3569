//! The compiled schema together with the SQL text of each app table, built once
//! so that a request only looks up prepared statements.

use std::collections::HashMap;
use std::sync::Arc;

use ssp2::ColumnType;
use tidegate_engine::model::ChildrenKey;
use tidegate_engine::schema::{Schema, Table};
use tidegate_engine::{SchemaVersion, TableId};

use super::read;
pub(super) use crate::physical::quote;
use crate::physical::{MetaColumn, meta};

/// The columns that every app table has.
pub(super) const META_COLUMNS: [MetaColumn; 6] = [
    meta("_sync_partition", "TEXT", true, 1),
    meta("_sync_row_id", "TEXT", true, 2),
    meta("_sync_server_version", "INTEGER", true, 0),
    meta("_sync_scopes", "TEXT", true, 0),
    meta("_sync_payload", "BLOB", true, 0),
    meta("_sync_column_versions", "BLOB", false, 0),
];

/// The declared SQL type of an app column.
pub(super) const fn sql_type(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::String | ColumnType::Json | ColumnType::BlobRef => "TEXT",
        ColumnType::Integer | ColumnType::Boolean => "INTEGER",
        ColumnType::Float => "REAL",
        ColumnType::Bytes | ColumnType::Crdt => "BLOB",
    }
}

/// `CREATE TABLE IF NOT EXISTS` of an app table.
pub(super) fn create_table(table: &Table) -> String {
    let meta = |column: &MetaColumn| {
        let not_null = if column.not_null { " NOT NULL" } else { "" };
        format!("{} {}{not_null}", quote(column.name), column.sql_type)
    };
    let mut columns: Vec<String> = META_COLUMNS[..2].iter().map(meta).collect();
    if table.materialize {
        columns.extend(table.columns.iter().map(|column| {
            let not_null = if column.nullable { "" } else { " NOT NULL" };
            format!("{} {}{not_null}", quote(&column.name), sql_type(column.ty))
        }));
    }
    columns.extend(META_COLUMNS[2..].iter().map(meta));
    format!(
        "CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY (\"_sync_partition\", \"_sync_row_id\"))",
        quote(&table.name),
        columns.join(", ")
    )
}

/// How the children of a parent row are found.
pub(super) enum Children {
    /// Through the reference column's own index.
    Column { sql: String, ty: ColumnType },
    /// The reference column is a scope column of a table without SQL columns.
    Scope { sql: String, variable: String },
    /// The reference column is the child's primary key.
    PrimaryKey,
    /// Nothing but the payloads knows: a keyed walk over the partition's rows.
    Payload { sql: String },
}

/// An app table's statements.
pub(super) struct TablePlan {
    /// `(version, scopes, payload, column_versions)` by `(partition, row_id)`.
    pub(super) select: String,
    /// Parameters: partition, row id, version, scopes, payload, column versions, app columns.
    pub(super) insert: String,
    /// The same for a row that may be stored already.
    pub(super) upsert: String,
    /// By `(partition, row_id)`.
    pub(super) delete: String,
    /// Whether any column is a `blob_ref`.
    pub(super) has_blobs: bool,
    children: HashMap<u16, Children>,
}

pub(super) const ROW: &str =
    "_sync_server_version, _sync_scopes, _sync_payload, _sync_column_versions";

impl TablePlan {
    fn new(table: &Table) -> Self {
        let name = quote(&table.name);
        let mut columns: Vec<String> = ["_sync_partition", "_sync_row_id"]
            .into_iter()
            .map(quote)
            .collect();
        columns.extend(META_COLUMNS[2..].iter().map(|column| quote(column.name)));
        if table.materialize {
            columns.extend(table.columns.iter().map(|column| quote(&column.name)));
        }
        let updates: Vec<String> = columns[2..]
            .iter()
            .map(|column| format!("{column}=excluded.{column}"))
            .collect();
        let children = table
            .references
            .iter()
            .filter_map(|reference| {
                let ordinal = u16::try_from(reference.column).ok()?;
                Some((ordinal, children(table, reference.column)))
            })
            .collect();
        let insert = format!(
            "INSERT INTO {name} ({}) VALUES ({})",
            columns.join(", "),
            vec!["?"; columns.len()].join(",")
        );
        Self {
            select: format!(
                "SELECT {ROW} FROM {name} WHERE _sync_partition=?1 AND _sync_row_id=?2"
            ),
            upsert: format!(
                "{insert} ON CONFLICT (_sync_partition, _sync_row_id) DO UPDATE SET {}",
                updates.join(", ")
            ),
            insert,
            delete: format!("DELETE FROM {name} WHERE _sync_partition=?1 AND _sync_row_id=?2"),
            has_blobs: table
                .columns
                .iter()
                .any(|column| column.ty == ColumnType::BlobRef),
            children,
        }
    }
}

fn children(table: &Table, column: usize) -> Children {
    let name = quote(&table.name);
    if column == table.primary_key {
        return Children::PrimaryKey;
    }
    if table.materialize {
        return Children::Column {
            // The `+` keeps SQLite from walking the whole partition in key order
            // to save the sort of a few children.
            sql: format!(
                "SELECT _sync_row_id, {ROW} FROM {name}
                 WHERE _sync_partition=?1 AND {}=?2 ORDER BY +_sync_row_id LIMIT ?3",
                quote(&table.columns[column].name)
            ),
            ty: table.columns[column].ty,
        };
    }
    if let Some(scope) = table.scopes.iter().find(|scope| scope.column == column) {
        return Children::Scope {
            sql: format!(
                "SELECT r._sync_row_id, r._sync_server_version, r._sync_scopes, r._sync_payload, r._sync_column_versions
                 FROM sync_row_scopes AS s CROSS JOIN {name} AS r
                   ON r._sync_partition=s.partition AND r._sync_row_id=s.row_id
                 WHERE s.partition=?1 AND s.tbl=?2 AND s.var=?3 AND s.value=?4
                 ORDER BY s.row_id LIMIT ?5"
            ),
            variable: scope.variable.clone(),
        };
    }
    Children::Payload {
        sql: format!(
            "SELECT _sync_row_id, {ROW} FROM {name} WHERE _sync_partition=?1 ORDER BY _sync_row_id"
        ),
    }
}

/// The schema that this process runs, with its statements.
pub(super) struct Plan {
    pub(super) schema: Arc<Schema>,
    /// See [`read::pending_statement`].
    pub(super) pending: String,
    tables: Vec<TablePlan>,
}

impl Plan {
    pub(super) fn new(schema: Arc<Schema>) -> Self {
        let tables = schema.tables().iter().map(TablePlan::new).collect();
        Self {
            pending: read::pending_statement(schema.version()),
            schema,
            tables,
        }
    }

    pub(super) fn version(&self) -> SchemaVersion {
        self.schema.version()
    }

    pub(super) fn table(&self, id: TableId) -> (&Table, &TablePlan) {
        (self.schema.table_at(id), &self.tables[usize::from(id.0)])
    }

    /// How the children of `key` are found; `None` for a column that is no reference.
    pub(super) fn children(&self, key: &ChildrenKey) -> Option<&Children> {
        self.tables[usize::from(key.child.0)]
            .children
            .get(&key.column)
    }
}

//! The compiled schema together with the SQL text of each app table, built once
//! so that a request only looks up prepared statements.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use ssp2::ColumnType;
use tidegate_engine::model::ChildrenKey;
use tidegate_engine::schema::{Schema, Table};
use tidegate_engine::{SchemaVersion, TableId};

use super::log::LOG;
use super::statement::{self, GUARD, Reading, composed};
pub(super) use crate::physical::quote;
use crate::physical::{MetaColumn, meta};

/// The columns that every app table has; types as `format_type` spells them.
pub(super) const META_COLUMNS: [MetaColumn; 6] = [
    meta("_sync_partition", "text", true, 1),
    meta("_sync_row_id", "text", true, 2),
    meta("_sync_server_version", "bigint", true, 0),
    meta("_sync_scopes", "jsonb", true, 0),
    meta("_sync_payload", "bytea", true, 0),
    meta("_sync_column_versions", "bytea", false, 0),
];

/// The declared SQL type of an app column.
pub(super) const fn sql_type(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::String | ColumnType::BlobRef => "text",
        ColumnType::Json => "jsonb",
        ColumnType::Integer => "bigint",
        ColumnType::Float => "double precision",
        ColumnType::Boolean => "boolean",
        ColumnType::Bytes | ColumnType::Crdt => "bytea",
    }
}

/// The type of the array that carries a column's values. JSON travels as text
/// and is cast on arrival.
pub(super) const fn array_type(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::String | ColumnType::BlobRef | ColumnType::Json => "text[]",
        ColumnType::Integer => "bigint[]",
        ColumnType::Float => "double precision[]",
        ColumnType::Boolean => "boolean[]",
        ColumnType::Bytes | ColumnType::Crdt => "bytea[]",
    }
}

/// Whether the SQL column may hold NULL. JSON may always: the payload keeps
/// texts that `jsonb` refuses.
pub(super) const fn sql_nullable(column: &ssp2::Column) -> bool {
    column.nullable || matches!(column.ty, ColumnType::Json)
}

/// `CREATE TABLE IF NOT EXISTS` of an app table.
pub(super) fn create_table(table: &Table) -> String {
    let meta = |column: &MetaColumn| {
        let not_null = if column.not_null { " NOT NULL" } else { "" };
        let collation = if column.name == "_sync_row_id" {
            " COLLATE \"C\""
        } else {
            ""
        };
        format!(
            "{} {}{collation}{not_null}",
            quote(column.name),
            column.sql_type
        )
    };
    let mut columns: Vec<String> = META_COLUMNS[..2].iter().map(meta).collect();
    if table.materialize {
        columns.extend(table.columns.iter().map(|column| {
            let not_null = if sql_nullable(column) {
                ""
            } else {
                " NOT NULL"
            };
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

/// How the children of parent rows are found. Parameters of the statements:
/// partition, parents, limit.
pub(super) enum Children {
    /// Through the reference column's own index.
    Column {
        /// Statement.
        sql: String,
        /// Type of the column.
        ty: ColumnType,
    },
    /// The reference column is a scope column of a table without SQL columns.
    Scope {
        /// Statement; further parameters: table, variable.
        sql: String,
        /// Scope variable.
        variable: String,
    },
    /// The reference column is the child's primary key.
    PrimaryKey,
    /// Nothing but the payloads knows: a keyed walk over the partition's rows.
    Payload,
}

/// An app table's statements.
pub(super) struct TablePlan {
    /// Rows by partitions and row ids, each with its position among them.
    pub(super) select: String,
    /// A page of rows after a row id, in the table's own order: partition, row id, limit.
    pub(super) walk: String,
    /// The same from the beginning: partition, limit.
    pub(super) walk_start: String,
    /// Parameters: arrays of partitions, row ids, versions, scopes,
    /// payloads, column versions, and of each app column.
    pub(super) insert: String,
    /// The same for rows that may be stored already.
    pub(super) upsert: String,
    /// By partitions and row ids.
    pub(super) delete: String,
    /// Whether any column is a `blob_ref`.
    pub(super) has_blobs: bool,
    children: HashMap<u16, Children>,
}

/// A stored row's columns, as [`super::read::stored_row`] reads them.
pub(super) const ROW: &str =
    "_sync_server_version, _sync_scopes::text, _sync_payload, _sync_column_versions";

impl TablePlan {
    fn new(table: &Table) -> Self {
        let name = quote(&table.name);
        let children = table
            .references
            .iter()
            .filter_map(|reference| {
                let ordinal = u16::try_from(reference.column).ok()?;
                Some((ordinal, children(table, reference.column)))
            })
            .collect();
        Self {
            // A lookup per key, whatever the planner believes of the arrays: a
            // flat join may become a scan of the partition. The order, which an
            // equality would make void, is that of the primary key alone: on a
            // table that was empty when the plan was made any index of the
            // partition would look as good.
            select: format!(
                "SELECT k.position, r.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k(partition, id, position)
                 CROSS JOIN LATERAL (SELECT {ROW} FROM {name}
                   WHERE _sync_partition=k.partition AND _sync_row_id>=k.id AND _sync_row_id<=k.id
                   ORDER BY _sync_row_id LIMIT 1) AS r"
            ),
            walk: format!(
                "SELECT _sync_row_id, {ROW} FROM {name}
                 WHERE _sync_partition=$1 AND _sync_row_id>$2 ORDER BY _sync_row_id LIMIT $3"
            ),
            walk_start: format!(
                "SELECT _sync_row_id, {ROW} FROM {name}
                 WHERE _sync_partition=$1 ORDER BY _sync_row_id LIMIT $2"
            ),
            insert: insert(table, &name, false),
            upsert: insert(table, &name, true),
            delete: format!(
                "DELETE FROM {name} WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
                   SELECT r.ctid FROM unnest($1::text[], $2::text[]) AS k(partition, id) CROSS JOIN LATERAL (
                     SELECT ctid FROM {name} WHERE _sync_partition=k.partition AND _sync_row_id>=k.id AND _sync_row_id<=k.id
                     ORDER BY _sync_row_id LIMIT 1) AS r))"
            ),
            has_blobs: table
                .columns
                .iter()
                .any(|column| column.ty == ColumnType::BlobRef),
            children,
        }
    }
}

/// The statement that puts rows; with `over` also in the place of stored ones.
fn insert(table: &Table, name: &str, over: bool) -> String {
    let mut columns = vec!["_sync_partition".to_owned(), "_sync_row_id".to_owned()];
    let mut values = vec!["u.partition".to_owned(), "u.id".to_owned()];
    let mut arrays = vec!["$1::text[]".to_owned(), "$2::text[]".to_owned()];
    let mut aliases = vec!["partition".to_owned(), "id".to_owned()];
    let mut add = |column: &str, array: &str, cast: &str| {
        let alias = format!("v{}", arrays.len());
        columns.push(quote(column));
        values.push(format!("u.{alias}{cast}"));
        arrays.push(format!("${}::{array}", arrays.len() + 1));
        aliases.push(alias);
    };
    add("_sync_server_version", "bigint[]", "");
    add("_sync_scopes", "text[]", "::jsonb");
    add("_sync_payload", "bytea[]", "");
    add("_sync_column_versions", "bytea[]", "");
    if table.materialize {
        for column in &table.columns {
            let cast = if column.ty == ColumnType::Json {
                "::jsonb"
            } else {
                ""
            };
            add(&column.name, array_type(column.ty), cast);
        }
    }
    let updates: Vec<String> = columns[2..]
        .iter()
        .map(|column| format!("{column}=excluded.{column}"))
        .collect();
    let mut sql = format!(
        "INSERT INTO {name} ({}) SELECT {} FROM unnest({}) AS u({}) WHERE {GUARD}",
        columns.join(", "),
        values.join(", "),
        arrays.join(", "),
        aliases.join(", "),
    );
    if over {
        let updates = updates.join(", ");
        sql += &format!(" ON CONFLICT (_sync_partition, _sync_row_id) DO UPDATE SET {updates}");
    }
    sql
}

fn children(table: &Table, column: usize) -> Children {
    let name = quote(&table.name);
    let ty = table.columns[column].ty;
    if column == table.primary_key {
        return Children::PrimaryKey;
    }
    // `jsonb` does not keep the text that a key is rendered from.
    if table.materialize && ty != ColumnType::Json {
        // OFFSET 0 keeps the search apart from the order of the rows: else a walk of
        // the partition in key order could look cheaper than the column's index. The
        // search has that index's order, so no other one serves it as well.
        return Children::Column {
            sql: format!(
                "SELECT k.position, r.* FROM unnest($2::{}) WITH ORDINALITY AS k(parent, position)
                 CROSS JOIN LATERAL (SELECT c.* FROM (
                     SELECT _sync_row_id COLLATE \"C\" AS row_id, {ROW} FROM {name}
                     WHERE _sync_partition=$1 AND {reference}>=k.parent AND {reference}<=k.parent
                     ORDER BY {reference} OFFSET 0) AS c
                   ORDER BY c.row_id LIMIT $3) AS r",
                array_type(ty),
                reference = quote(&table.columns[column].name)
            ),
            ty,
        };
    }
    if let Some(scope) = table.scopes.iter().find(|scope| scope.column == column) {
        return Children::Scope {
            sql: format!(
                "SELECT k.position, s.row_id, r.* FROM unnest($2::text[]) WITH ORDINALITY AS k(parent, position)
                 CROSS JOIN LATERAL (SELECT i.row_id FROM sync_row_scopes AS i
                   WHERE i.partition=$1 AND i.tbl=$4 AND i.var=$5 AND i.value=k.parent
                   ORDER BY i.row_id COLLATE \"C\" LIMIT $3) AS s
                 CROSS JOIN LATERAL (SELECT {ROW} FROM {name}
                   WHERE _sync_partition=$1 AND _sync_row_id>=s.row_id AND _sync_row_id<=s.row_id
                   ORDER BY _sync_row_id LIMIT 1) AS r"
            ),
            variable: scope.variable.clone(),
        };
    }
    Children::Payload
}

/// The schema that this process runs, with its statements.
pub(super) struct Plan {
    pub(super) schema: Arc<Schema>,
    tables: Vec<TablePlan>,
    /// The log's statements as one.
    log: String,
    /// Statements made of others, by the addresses of those, which live as long as this.
    made: RwLock<HashMap<Vec<usize>, Arc<str>>>,
}

fn address(sql: &str) -> usize {
    sql.as_ptr().addr()
}

/// Statements made of others, at most: every connection keeps all that it used.
const MADE: usize = 96;

impl Plan {
    pub(super) fn new(schema: Arc<Schema>) -> Self {
        let tables = schema.tables().iter().map(TablePlan::new).collect();
        Self {
            schema,
            tables,
            log: composed(&LOG),
            made: RwLock::default(),
        }
    }

    pub(super) fn version(&self) -> SchemaVersion {
        self.schema.version()
    }

    pub(super) fn table(&self, id: TableId) -> (&Table, &TablePlan) {
        (self.schema.table_at(id), &self.tables[usize::from(id.0)])
    }

    /// The log's statements ([`LOG`]) as one.
    pub(super) fn log(&self) -> &str {
        &self.log
    }

    /// These statements as one behind `gate` ([`statement::gated`]); `None` when there
    /// are enough of that kind.
    pub(super) fn gated(&self, gate: &str, parts: &[&str]) -> Option<Arc<str>> {
        let key = parts.iter().map(|part| address(part)).collect();
        self.made(key, || statement::gated(gate, parts))
    }

    /// These statements as one ([`statement::united`]); `None` when there are enough of
    /// that kind.
    pub(super) fn united(&self, parts: &[Reading<'_>]) -> Option<Arc<str>> {
        let key = parts.iter().map(|part| address(part.sql)).collect();
        self.made(key, || statement::united(parts))
    }

    fn made(&self, key: Vec<usize>, make: impl FnOnce() -> String) -> Option<Arc<str>> {
        if let Some(sql) = self.made.read().get(&key) {
            return Some(Arc::clone(sql));
        }
        let mut made = self.made.write();
        if made.len() >= MADE && !made.contains_key(&key) {
            return None;
        }
        let sql = made.entry(key).or_insert_with(|| make().into());
        Some(Arc::clone(sql))
    }

    /// How the children of `key` are found; `None` for a column that is no reference.
    pub(super) fn children(&self, key: &ChildrenKey) -> Option<&Children> {
        self.tables[usize::from(key.child.0)]
            .children
            .get(&key.column)
    }
}

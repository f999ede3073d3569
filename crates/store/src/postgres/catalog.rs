//! What the database itself says of an app table, and whether the row store can
//! read and write it (docs/migrations.md rule 1, `physical_layout_mismatch`).
//! Names resolve through `to_regclass`: by the session's search path, as the
//! statements' own names do.

use tidegate_engine::schema::Table;
use tokio_postgres::Client;

use super::failure::during;
use super::plan::{META_COLUMNS, quote};
use crate::error::StoreError;

const CONTEXT: &str = "reading the catalog";

/// A column as the catalog declares it.
#[derive(Debug)]
pub(super) struct PhysicalColumn {
    pub(super) name: String,
    sql_type: String,
    pub(super) not_null: bool,
    key_position: i32,
}

/// The columns of a table; empty when there is no such table.
pub(super) async fn columns(
    client: &Client,
    table: &str,
) -> Result<Vec<PhysicalColumn>, StoreError> {
    client
        .query(
            "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               coalesce((SELECT k.position::int FROM pg_index AS i,
                   unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, position)
                 WHERE i.indrelid = a.attrelid AND i.indisprimary AND k.attnum = a.attnum), 0)
             FROM pg_attribute AS a
             WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum",
            &[&quote(table)],
        )
        .await
        .and_then(|rows| {
            rows.iter()
                .map(|row| {
                    Ok(PhysicalColumn {
                        name: row.try_get(0)?,
                        sql_type: row.try_get(1)?,
                        not_null: row.try_get(2)?,
                        key_position: row.try_get(3)?,
                    })
                })
                .collect()
        })
        .map_err(during(CONTEXT))
}

/// Names of the indexes on a table that no constraint owns.
pub(super) async fn indexes(client: &Client, table: &str) -> Result<Vec<String>, StoreError> {
    client
        .query(
            "SELECT c.relname::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
             WHERE i.indrelid = to_regclass($1)
               AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid)",
            &[&quote(table)],
        )
        .await
        .and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect())
        .map_err(during(CONTEXT))
}

/// Every declared column must exist; Tidegate's own columns must also have their
/// type, nullability and place in the key. Types of app columns are the stored
/// layouts' concern: columns added later are nullable in SQL by design.
pub(super) fn verify(table: &Table, physical: &[PhysicalColumn]) -> Result<(), StoreError> {
    let mismatch = |column: Option<&str>, reason, expected: Option<&str>, actual: Option<&str>| {
        Err(StoreError::PhysicalLayoutMismatch {
            table: table.name.clone(),
            column: column.map(str::to_owned),
            reason,
            expected: expected.map(str::to_owned),
            actual: actual.map(str::to_owned),
        })
    };
    if physical.is_empty() {
        return mismatch(None, "missing_table", None, None);
    }
    let find = |name: &str| physical.iter().find(|column| column.name == name);
    let app_columns = table
        .columns
        .iter()
        .filter(|_| table.materialize)
        .map(|column| column.name.as_str());
    let names = META_COLUMNS.iter().map(|column| column.name);
    for name in names.chain(app_columns) {
        if find(name).is_none() {
            return mismatch(Some(name), "missing_column", None, None);
        }
    }
    for expected in &META_COLUMNS {
        let Some(actual) = find(expected.name) else {
            continue;
        };
        if actual.sql_type != expected.sql_type {
            return mismatch(
                Some(expected.name),
                "type",
                Some(expected.sql_type),
                Some(&actual.sql_type),
            );
        }
        if actual.not_null != expected.not_null {
            let words = |not_null| if not_null { "not_null" } else { "nullable" };
            return mismatch(
                Some(expected.name),
                "nullability",
                Some(words(expected.not_null)),
                Some(words(actual.not_null)),
            );
        }
    }
    for actual in physical {
        let expected = META_COLUMNS
            .iter()
            .find(|column| column.name == actual.name)
            .map_or(0, |column| column.key_position);
        if actual.key_position != expected {
            return mismatch(Some(&actual.name), "primary_key", None, None);
        }
    }
    Ok(())
}

//! What the database itself says of an app table.

use rusqlite::Connection;

use super::failure::during;
use crate::error::StoreError;
use crate::physical::PhysicalColumn;

const CONTEXT: &str = "reading the catalog";

/// The columns of a table; empty when there is no such table.
pub(super) fn columns(
    connection: &Connection,
    table: &str,
) -> Result<Vec<PhysicalColumn>, StoreError> {
    connection
        .prepare_cached("SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1)")
        .and_then(|mut statement| {
            statement
                .query_map([table], |row| {
                    Ok(PhysicalColumn {
                        name: row.get(0)?,
                        sql_type: row.get(1)?,
                        not_null: row.get(2)?,
                        key_position: row.get(3)?,
                    })
                })?
                .collect()
        })
        .map_err(during(CONTEXT))
}

/// Names of the indexes made by `CREATE INDEX` on a table.
pub(super) fn indexes(connection: &Connection, table: &str) -> Result<Vec<String>, StoreError> {
    connection
        .prepare_cached("SELECT name FROM pragma_index_list(?1) WHERE origin='c'")
        .and_then(|mut statement| statement.query_map([table], |row| row.get(0))?.collect())
        .map_err(during(CONTEXT))
}

//! What the database itself says of an app table. Names resolve through `to_regclass`: by the session's search path, as the
//! statements' own names do.

use tokio_postgres::Client;

use super::failure::during;
use super::plan::quote;
use crate::error::StoreError;
use crate::physical::PhysicalColumn;

const CONTEXT: &str = "reading the catalog";

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
                 WHERE i.indrelid = a.attrelid AND i.indisprimary AND k.attnum = a.attnum), 0)::bigint
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

//! The reads of a backfill's source rows, in a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params, params_from_iter};
use tidegate_engine::CommitSeq;
use tidegate_engine::model::{RowKey, StoredRow};

use super::failure::during;
use super::plan::{Plan, ROW, quote};
use super::read;
use crate::error::StoreError;
use crate::source_rows::{Cut, cut};
use crate::{ChangedRows, ChangedRowsQuery, RangeQuery, RowPage};

/// One table's changes in a window, off the index that has the table after the
/// commit: a window costs its changes of all tables. An index that begins with the
/// table would spare those, and cost every push an entry.
pub(super) const CHANGED: &str = "SELECT commit_seq, idx, row_id
 FROM sync_changes INDEXED BY sync_changes_by_table
 WHERE partition=?1 AND tbl=?2 AND commit_seq>?3 AND commit_seq<=?4 ORDER BY commit_seq LIMIT ?5";

/// A page of rows by row id: the bounds are part of the text, so that the primary
/// key serves each form of it.
pub(super) fn range_statement(table: &str, after: bool, through: bool) -> String {
    let after = if after { ">?3" } else { ">=''" };
    let through = if through { " AND _sync_row_id<=?4" } else { "" };
    format!(
        "SELECT _sync_row_id, {ROW} FROM {}
         WHERE _sync_partition=?1 AND _sync_row_id{after}{through}
         ORDER BY _sync_row_id LIMIT ?2",
        quote(table)
    )
}

/// A page of a table's rows, whatever their scopes.
pub(super) fn range(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    query: &RangeQuery,
) -> Result<RowPage, StoreError> {
    let context = "reading a range of rows";
    let (table, _) = plan.table(query.table);
    let sql = range_statement(&table.name, query.after.is_some(), query.through.is_some());
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(&sql).map_err(during(context))?;
    let text = |value: &Option<Arc<str>>| value.as_deref().map(str::to_owned);
    let mut parameters = vec![
        SqlValue::from(partition.to_owned()),
        SqlValue::from(limit.saturating_add(1)),
    ];
    if query.after.is_some() || query.through.is_some() {
        parameters.push(SqlValue::from(text(&query.after)));
    }
    if query.through.is_some() {
        parameters.push(SqlValue::from(text(&query.through)));
    }
    let mut rows = statement
        .query(params_from_iter(parameters))
        .map_err(during(context))?;
    let mut page = Vec::with_capacity(query.limit.min(1024));
    while let Some(row) = rows.next().map_err(during(context))? {
        if page.len() == query.limit {
            return Ok(RowPage {
                rows: page,
                more: true,
            });
        }
        let row_id: String = row.get(0).map_err(during(context))?;
        page.push((row_id, read::stored_row(row, 1)?));
    }
    Ok(RowPage {
        rows: page,
        more: false,
    })
}

/// The stored ones of `keys`.
pub(super) fn rows(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    keys: &[RowKey],
) -> Result<Vec<(RowKey, StoredRow)>, StoreError> {
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        if let Some(row) = read::row(connection, plan, partition, key)? {
            found.push((key.clone(), row));
        }
    }
    Ok(found)
}

/// The rows that a window of the log names.
pub(super) fn changed(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    query: &ChangedRowsQuery,
) -> Result<ChangedRows, StoreError> {
    let limit = query.max_changes.saturating_add(1);
    let changes = in_log_order(connection, plan, partition, query, query.through, limit)?;
    match cut(changes, query) {
        Cut::Fits(changes, scanned_through) => Ok(ChangedRows {
            changes,
            scanned_through,
        }),
        Cut::FirstCommit(seq) => {
            let whole = in_log_order(connection, plan, partition, query, seq, usize::MAX)?;
            let keys = whole.into_iter().map(|(_, key)| key).collect();
            Ok(ChangedRows::of_first_commit(seq, keys))
        }
    }
}

/// The first `limit` changes up to `through` in log order: each table gives as many,
/// so that its last commit alone may be incomplete.
fn in_log_order(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    query: &ChangedRowsQuery,
    through: CommitSeq,
    limit: usize,
) -> Result<Vec<(CommitSeq, RowKey)>, StoreError> {
    let context = "reading the changed rows of a backfill's sources";
    let sql_limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection
        .prepare_cached(CHANGED)
        .map_err(during(context))?;
    let mut changes: Vec<((i64, i64), RowKey)> = Vec::new();
    for table in query.tables.iter().collect::<BTreeSet<_>>() {
        let name = &plan.table(*table).0.name;
        let parameters = params![partition, name, query.after.0, through.0, sql_limit];
        let mut rows = statement.query(parameters).map_err(during(context))?;
        while let Some(row) = rows.next().map_err(during(context))? {
            let change = || -> rusqlite::Result<((i64, i64), RowKey)> {
                let key = RowKey {
                    table: *table,
                    row_id: row.get::<_, String>(2)?.into(),
                };
                Ok(((row.get(0)?, row.get(1)?), key))
            };
            changes.push(change().map_err(during(context))?);
        }
    }
    changes.sort_by_key(|(position, _)| *position);
    changes.truncate(limit);
    let in_order = changes.into_iter();
    Ok(in_order
        .map(|((seq, _), key)| (CommitSeq(seq), key))
        .collect())
}

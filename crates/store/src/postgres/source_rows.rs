//! The reads of a backfill's source rows, in a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_engine::CommitSeq;
use tidegate_engine::model::{RowKey, StoredRow};
use tidegate_engine::schema::Schema;
use tokio_postgres::Client;

use super::accepted;
use super::connection::{Param, Session, references};
use super::failure::during;
use super::plan::{Plan, ROW, quote};
use super::read::stored_row;
use crate::error::StoreError;
use crate::source_rows::{Cut, cut};
use crate::stored::byte_order_index_name;
use crate::{ChangedRows, ChangedRowsQuery, RangeQuery, RowPage};

/// The first changes of some tables in a window, in log order, each with the place
/// of its table: every table gives as many as are wanted of all.
pub(super) const CHANGED: &str = "SELECT c.commit_seq, source.place, c.row_id
 FROM unnest($2::text[]) WITH ORDINALITY AS source(tbl, place) CROSS JOIN LATERAL (
   SELECT commit_seq, idx, row_id FROM sync_changes
   WHERE partition=$1 AND tbl=source.tbl AND commit_seq>$3::bigint AND commit_seq<=$4::bigint
   ORDER BY commit_seq LIMIT $5::bigint) AS c
 ORDER BY c.commit_seq, c.idx LIMIT $5::bigint";

/// A page of rows in byte order: partition, limit, then the bounds.
pub(super) fn range_sql(table: &str, after: bool, through: bool) -> String {
    let id = "_sync_row_id COLLATE \"C\"";
    let after_clause = if after {
        format!(" AND {id} > $3")
    } else {
        String::new()
    };
    let through_clause = if through {
        format!(" AND {id} <= ${}", 3 + usize::from(after))
    } else {
        String::new()
    };
    format!(
        "SELECT _sync_row_id, {ROW} FROM {}
         WHERE _sync_partition=$1{after_clause}{through_clause} ORDER BY {id} LIMIT $2",
        quote(table)
    )
}

/// The indexes in which row ids sort by bytes that tables of another program, made
/// under a locale, lack: without them each page of a backfill sorts the partition.
pub(super) async fn byte_order_indexes(
    client: &Client,
    schema: &Schema,
) -> Result<Vec<String>, StoreError> {
    let context = "looking for indexes in byte order";
    let mut statements = Vec::new();
    for table in schema.tables() {
        let (name, index) = (
            quote(&table.name),
            quote(&byte_order_index_name(&table.name)),
        );
        let lacks = client
            .query_one(
                "SELECT to_regclass($2) IS NULL AND EXISTS (
                   SELECT 1 FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
                   WHERE a.attrelid = to_regclass($1) AND a.attname = '_sync_row_id' AND c.collname <> 'C')",
                &[&name, &index],
            )
            .await
            .and_then(|row| row.try_get::<_, bool>(0))
            .map_err(during(context))?;
        if lacks {
            statements.push(format!(
                "CREATE INDEX {index} ON {name} (_sync_partition, _sync_row_id COLLATE \"C\")"
            ));
        }
    }
    Ok(statements)
}

/// A page of a table's rows, whatever their scopes.
pub(super) async fn range(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    query: &RangeQuery,
) -> Result<RowPage, StoreError> {
    let context = "reading a range of rows";
    let (table, _) = plan.table(query.table);
    let after = query.after.as_deref().map(accepted::bound);
    let through = query.through.as_deref().map(accepted::bound);
    let sql = range_sql(&table.name, after.is_some(), through.is_some());
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut params: Vec<Param<'_>> = vec![Box::new(partition), Box::new(limit.saturating_add(1))];
    for bound in [after, through].into_iter().flatten() {
        params.push(Box::new(bound));
    }
    let rows = session
        .query(&sql, &references(&params))
        .await
        .map_err(during(context))?;
    let page = rows.iter().take(query.limit).map(|row| {
        let row_id: String = row.try_get(0).map_err(during(context))?;
        Ok((row_id, stored_row(row, 1)?))
    });
    Ok(RowPage {
        rows: page.collect::<Result<_, StoreError>>()?,
        more: rows.len() > query.limit,
    })
}

/// The stored ones of `keys`.
pub(super) async fn rows(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    keys: &[RowKey],
) -> Result<Vec<(RowKey, StoredRow)>, StoreError> {
    let context = "reading rows by key";
    let mut by_table: BTreeMap<_, Vec<&RowKey>> = BTreeMap::new();
    for key in keys.iter().filter(|key| accepted::text(&key.row_id)) {
        by_table.entry(key.table).or_default().push(key);
    }
    let mut found = Vec::with_capacity(keys.len());
    for (table, keys) in by_table {
        let ids: Vec<&str> = keys.iter().map(|key| &*key.row_id).collect();
        let rows = session
            .query(
                &plan.table(table).1.select,
                &[&vec![partition; ids.len()], &ids],
            )
            .await
            .map_err(during(context))?;
        for row in &rows {
            let position: i64 = row.try_get(0).map_err(during(context))?;
            let at = usize::try_from(position - 1).unwrap_or(usize::MAX);
            let key = keys.get(at).ok_or(StoreError::Corrupt {
                what: "an answer's position",
            })?;
            found.push(((*key).clone(), stored_row(row, 1)?));
        }
    }
    Ok(found)
}

/// The rows that a window of the log names.
pub(super) async fn changed(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    query: &ChangedRowsQuery,
) -> Result<ChangedRows, StoreError> {
    let limit = i64::try_from(query.max_changes).unwrap_or(i64::MAX);
    let limit = limit.saturating_add(1);
    let changes = in_log_order(session, plan, partition, query, query.through, limit).await?;
    match cut(changes, query) {
        Cut::Fits(changes, scanned_through) => Ok(ChangedRows {
            changes,
            scanned_through,
        }),
        Cut::FirstCommit(seq) => {
            let whole = in_log_order(session, plan, partition, query, seq, i64::MAX).await?;
            let keys = whole.into_iter().map(|(_, key)| key).collect();
            Ok(ChangedRows::of_first_commit(seq, keys))
        }
    }
}

async fn in_log_order(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    query: &ChangedRowsQuery,
    through: CommitSeq,
    limit: i64,
) -> Result<Vec<(CommitSeq, RowKey)>, StoreError> {
    let context = "reading the changed rows of a backfill's sources";
    let tables: Vec<_> = query
        .tables
        .iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let names: Vec<&str> = tables
        .iter()
        .map(|table| plan.table(**table).0.name.as_str())
        .collect();
    let rows = session
        .query(
            CHANGED,
            &[&partition, &names, &query.after.0, &through.0, &limit],
        )
        .await
        .map_err(during(context))?;
    rows.iter()
        .map(|row| {
            let seq = row.try_get(0).map_err(during(context))?;
            let place: i64 = row.try_get(1).map_err(during(context))?;
            let at = usize::try_from(place - 1).unwrap_or(usize::MAX);
            let table = tables.get(at).ok_or(StoreError::Corrupt {
                what: "an answer's position",
            })?;
            let row_id: &str = row.try_get(2).map_err(during(context))?;
            let key = RowKey {
                table: **table,
                row_id: row_id.into(),
            };
            Ok((CommitSeq(seq), key))
        })
        .collect()
}

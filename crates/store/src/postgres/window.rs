//! The data of a pull: windows of the log and pages of current rows (§4.5, §4.7).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bytes::Bytes;
use ssp2::ScopeLists;
use tidegate_engine::model::{LoggedChange, LoggedCommit, RowKey};
use tidegate_engine::scopes;
use tidegate_engine::{ActorId, ClientId, CommitSeq};
use tokio_postgres::Row;

use super::accepted;
use super::connection::{Param, Session, references};
use super::failure::during;
use super::plan::{Plan, ROW, quote};
use super::read::stored_row;
use crate::error::StoreError;
use crate::stored::decode_scopes;
use crate::{RowPage, ScanQuery, Window, WindowQuery};

const CONTEXT: &str = "reading a window of the log";
/// Commits per step of a window, at first and at most.
const FIRST_STEP: i64 = 64;
const MAX_STEP: i64 = 512;

/// What each change or row counts for beside its variable parts, bytes.
const OVERHEAD: usize = 64;

/// A limit as a parameter.
fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The wanted values per variable, each once and storable; the variable with the
/// fewest leads. `None` when nothing can match.
fn wanted(scopes: &ScopeLists) -> Option<Vec<(&str, Vec<&str>)>> {
    let mut wanted: Vec<(&str, Vec<&str>)> = scopes
        .iter()
        .map(|(variable, values)| {
            let values: BTreeSet<&str> = values
                .iter()
                .map(String::as_str)
                .filter(|value| accepted::text(value))
                .collect();
            (variable, values.into_iter().collect())
        })
        .collect();
    wanted.sort_by_key(|(_, values)| values.len());
    let matchable = wanted.first().is_some_and(|(_, values)| !values.is_empty());
    matchable.then_some(wanted)
}

fn push_wanted<'a>(params: &mut Vec<Param<'a>>, wanted: &[(&'a str, Vec<&'a str>)]) {
    for (variable, values) in wanted {
        params.push(Box::new(*variable));
        params.push(Box::new(values.clone()));
    }
}

/// Conditions that the index `index` (by `position`) also holds a wanted value
/// of every further variable at the same position. A scalar subquery is a
/// lookup per candidate; an EXISTS might become a join over the whole index.
fn also(index: &str, position: &str, variables: usize, first_param: usize) -> String {
    let mut sql = String::new();
    for n in 1..variables {
        let at = first_param + 2 * n;
        let _ = write!(
            sql,
            " AND (SELECT 1 FROM {index} AS o WHERE o.partition=$1 AND o.tbl=$2 AND o.var=${at}
               AND o.value=ANY(${}) AND o.{position}=s.{position} LIMIT 1) IS NOT NULL",
            at + 1
        );
    }
    sql
}

/// Matching commits of `(after, through]`, the first of them at most `limit`,
/// each with its matching changes; of these the first and what else keeps within a
/// number of bytes, and beside each the last commit that matches: sizes are known
/// without reading what is large. Parameters: partition, table, after, through,
/// limit, bytes, then variable and values of each scope variable.
pub(super) fn window_sql(variables: usize) -> String {
    let also = also("sync_change_scopes", "commit_seq", variables, 7);
    let mut matching = String::new();
    for n in 0..variables {
        let at = 7 + 2 * n;
        let _ = write!(matching, " AND (scopes ->> ${at})=ANY(${})", at + 1);
    }
    format!(
        "WITH k AS MATERIALIZED (
           SELECT DISTINCT c.commit_seq AS seq FROM unnest($8::text[]) AS v(value) CROSS JOIN LATERAL (
             SELECT s.commit_seq FROM sync_change_scopes AS s
             WHERE s.partition=$1 AND s.tbl=$2 AND s.var=$7 AND s.value=v.value
               AND s.commit_seq>$3 AND s.commit_seq<=$4{also}
             ORDER BY s.commit_seq LIMIT $5) AS c
           ORDER BY 1 LIMIT $5)
         SELECT seq, client_id, client_commit_id, actor_id, created_at_ms,
           row_id, op, row_version, scopes, payload, last FROM (
         SELECT k.seq, m.client_id, m.client_commit_id, m.actor_id, m.created_at_ms,
           c.row_id, c.op, c.row_version, c.scopes, c.payload, c.idx, max(k.seq) OVER () AS last,
           sum(coalesce(c.bytes, 0)) OVER (ORDER BY k.seq) AS upto,
           sum(coalesce(c.bytes, 0)) OVER (PARTITION BY k.seq) AS own
         FROM k LEFT JOIN LATERAL (
           SELECT client_id, client_commit_id, actor_id, created_at_ms FROM sync_commits
           WHERE partition=$1 AND commit_seq=k.seq LIMIT 1) AS m ON true
         LEFT JOIN LATERAL (
           SELECT idx, row_id, op, row_version, scopes::text AS scopes, payload,
             {OVERHEAD} + octet_length(row_id) + octet_length(scopes::text)
               + coalesce(octet_length(payload), 0) AS bytes FROM sync_changes
           WHERE partition=$1 AND commit_seq=k.seq AND tbl=$2{matching} ORDER BY idx OFFSET 0) AS c ON true
         ) AS sized WHERE upto<=$6::bigint OR upto=own ORDER BY seq, idx"
    )
}

/// Matching rows after a row id in byte order, the first of them at most `limit`; of
/// these the first and what else keeps within a number of bytes, and beside each how
/// many match. Parameters: partition, table, limit, bytes, variable and values of
/// each scope variable, then the row id.
pub(super) fn scan_sql(table: &str, variables: usize, continues: bool) -> String {
    let also = also("sync_row_scopes", "row_id", variables, 5);
    let after = if continues {
        format!(" AND s.row_id COLLATE \"C\" > ${}", 5 + 2 * variables)
    } else {
        String::new()
    };
    format!(
        "WITH k AS MATERIALIZED (
           SELECT c.row_id FROM unnest($6::text[]) AS v(value) CROSS JOIN LATERAL (
             SELECT s.row_id COLLATE \"C\" AS row_id FROM sync_row_scopes AS s
             WHERE s.partition=$1 AND s.tbl=$2 AND s.var=$5 AND s.value=v.value{after}{also}
             ORDER BY s.row_id COLLATE \"C\" LIMIT $3) AS c
           ORDER BY c.row_id LIMIT $3)
         SELECT row_id, _sync_server_version, _sync_scopes, _sync_payload, _sync_column_versions,
           matching FROM (
         SELECT k.row_id, r.*, count(*) OVER () AS matching, row_number() OVER page AS n,
           sum({OVERHEAD} + octet_length(k.row_id) + coalesce(octet_length(r._sync_scopes), 0)
             + coalesce(octet_length(r._sync_payload), 0)) OVER page AS upto
         FROM k LEFT JOIN LATERAL (
           SELECT {ROW} FROM {table} WHERE _sync_partition=$1 AND _sync_row_id=k.row_id LIMIT 1) AS r ON true
         WINDOW page AS (ORDER BY k.row_id)
         ) AS sized WHERE upto<=$4::bigint OR n=1 ORDER BY row_id",
        table = quote(table)
    )
}

/// The matching part of `(after, through]`, whole commits only.
pub(super) async fn read_window(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    query: &WindowQuery,
) -> Result<Window, StoreError> {
    let mut window = Window {
        commits: Vec::new(),
        scanned_through: query.through,
    };
    let Some(wanted) = wanted(&query.scopes) else {
        return Ok(window);
    };
    let (table, _) = plan.table(query.table);
    let sql = window_sql(wanted.len());
    let max_changes = limit(query.max_changes);
    let mut after = query.after.0;
    let mut step = FIRST_STEP.min(max_changes.saturating_add(1)).max(1);
    let (mut total, mut bytes) = (0_usize, 0_usize);
    while after < query.through.0 {
        let mut params: Vec<Param<'_>> = vec![
            Box::new(partition),
            Box::new(table.name.as_str()),
            Box::new(after),
            Box::new(query.through.0),
            Box::new(step),
            Box::new(limit(query.max_bytes.saturating_sub(bytes))),
        ];
        push_wanted(&mut params, &wanted);
        let rows = session
            .query(&sql, &references(&params))
            .await
            .map_err(during(CONTEXT))?;
        let Some(last) = rows.first() else {
            break;
        };
        let last: i64 = last.try_get(10).map_err(during(CONTEXT))?;
        let (mut candidates, mut at) = (0, 0);
        while let Some(row) = rows.get(at) {
            let seq: i64 = row.try_get(0).map_err(during(CONTEXT))?;
            candidates += 1;
            after = seq;
            let mut changes = Vec::new();
            let first = row;
            while let Some(row) = rows.get(at) {
                if row.try_get::<_, i64>(0).map_err(during(CONTEXT))? != seq {
                    break;
                }
                changes.extend(change(row, query)?);
                at += 1;
            }
            if changes.is_empty() {
                continue;
            }
            total += changes.len();
            bytes += changes.iter().map(LoggedChange::bytes).sum::<usize>();
            if let Some(last) = window.commits.last()
                && (total > query.max_changes || bytes > query.max_bytes)
            {
                // This commit does not fit: the window ends with the one before it.
                window.scanned_through = last.seq;
                return Ok(window);
            }
            window.commits.push(commit(first, CommitSeq(seq), changes)?);
        }
        if after < last {
            // The database held back what is beyond the bytes wanted.
            if let Some(last) = window.commits.last() {
                window.scanned_through = last.seq;
                return Ok(window);
            }
            continue;
        }
        if candidates < step {
            break;
        }
        step = (step * 2).min(MAX_STEP);
    }
    Ok(window)
}

/// The change of a row, unless the commit has none there or it does not match.
fn change(row: &Row, query: &WindowQuery) -> Result<Option<LoggedChange>, StoreError> {
    let Some(row_id) = row.try_get::<_, Option<&str>>(5).map_err(during(CONTEXT))? else {
        return Ok(None);
    };
    let scopes = decode_scopes(row.try_get(8).map_err(during(CONTEXT))?)?;
    if !scopes::matches(&query.scopes, &scopes) {
        return Ok(None);
    }
    let op: i16 = row.try_get(6).map_err(during(CONTEXT))?;
    let version: Option<i64> = row.try_get(7).map_err(during(CONTEXT))?;
    let payload: Option<&[u8]> = row.try_get(9).map_err(during(CONTEXT))?;
    let upsert = match (op, version, payload) {
        (2, _, _) => None,
        (1, Some(version), Some(payload)) => Some((version, Bytes::copy_from_slice(payload))),
        _ => {
            return Err(StoreError::Corrupt {
                what: "a change of the log",
            });
        }
    };
    Ok(Some(LoggedChange {
        key: RowKey {
            table: query.table,
            row_id: row_id.into(),
        },
        scopes,
        upsert,
    }))
}

fn commit(
    row: &Row,
    seq: CommitSeq,
    changes: Vec<LoggedChange>,
) -> Result<LoggedCommit, StoreError> {
    let text = |at: usize| -> Result<&str, StoreError> {
        row.try_get::<_, Option<&str>>(at)
            .map_err(during(CONTEXT))?
            .ok_or(StoreError::Corrupt {
                what: "the change index: it names a commit that is not stored",
            })
    };
    Ok(LoggedCommit {
        seq,
        client_id: ClientId::from(text(1)?),
        client_commit_id: text(2)?.into(),
        actor_id: ActorId::from(text(3)?),
        created_at_ms: row.try_get(4).map_err(during(CONTEXT))?,
        changes,
    })
}

/// A page of rows in row id order.
pub(super) async fn scan_rows(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    query: &ScanQuery,
) -> Result<RowPage, StoreError> {
    let context = "reading a page of rows";
    let mut page = RowPage {
        rows: Vec::new(),
        more: false,
    };
    let Some(wanted) = wanted(&query.scopes) else {
        return Ok(page);
    };
    let (table, _) = plan.table(query.table);
    let after = query.after_row_id.as_deref().map(accepted::bound);
    let most = limit(query.limit).saturating_add(1);
    let sql = scan_sql(&table.name, wanted.len(), after.is_some());
    let mut params: Vec<Param<'_>> = vec![
        Box::new(partition),
        Box::new(table.name.as_str()),
        Box::new(most),
        Box::new(limit(query.max_bytes)),
    ];
    push_wanted(&mut params, &wanted);
    if let Some(after) = after {
        params.push(Box::new(after));
    }
    let rows = session
        .query(&sql, &references(&params))
        .await
        .map_err(during(context))?;
    let matching = match rows.first() {
        Some(row) => row.try_get(5).map_err(during(context))?,
        None => 0_i64,
    };
    let mut bytes = 0_usize;
    for row in rows.iter().take(query.limit) {
        let row_id: String = row.try_get(0).map_err(during(context))?;
        if row
            .try_get::<_, Option<i64>>(1)
            .map_err(during(context))?
            .is_none()
        {
            return Err(StoreError::Corrupt {
                what: "the scope index: it names a row that is not stored",
            });
        }
        let stored = stored_row(row, 1)?;
        bytes += stored.bytes(&row_id);
        if !page.rows.is_empty() && bytes > query.max_bytes {
            break;
        }
        page.rows.push((row_id, stored));
    }
    page.more = usize::try_from(matching).is_ok_and(|matching| matching > page.rows.len());
    Ok(page)
}

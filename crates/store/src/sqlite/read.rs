//! The short reads: the preamble of a request, the gate and what a batch needs.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OptionalExtension, Row, params};
use ssp2::ColumnType;
use tidegate_engine::gate::{GateToken, PendingCheckpoint};
use tidegate_engine::keys::render_key;
use tidegate_engine::model::{
    ChildrenKey, ClientRecord, Fetched, LogBounds, Needs, Registry, ResultKey, ResultLookup,
    RowKey, RowState, StoredRow,
};
use tidegate_engine::push::decode_push_result;
use tidegate_engine::{ActorId, ClientId, CommitSeq, LogEpoch, SchemaVersion};

use super::failure::during;
use super::plan::{Children, Plan};
use crate::error::StoreError;
use crate::preamble::{Found, View};
use crate::stored::{decode_scopes, decode_subscriptions, wire_version};

/// The published schema version, NULL when there is none.
pub(super) const STORED_VERSION: &str =
    "SELECT (SELECT schema_version FROM sync_schema_meta WHERE id=1)";
/// Incomplete checkpoints at a version, through the partial index. The version is
/// part of the text: a parameter beside a partial index makes SQLite plan the
/// statement again with every binding.
pub(super) fn pending_statement(version: SchemaVersion) -> String {
    format!(
        "SELECT partition, name FROM sync_backfill_checkpoints
         WHERE schema_version={} AND state <> 'activated'",
        version.0
    )
}
const BOUNDS: &str = "SELECT max_commit_seq, horizon_seq FROM sync_partitions WHERE partition=?1";
/// One row per migration; the highest counts.
const LAYOUTS: &str = "SELECT head_seq FROM tidegate_layouts WHERE partition=?1";
const REGISTRY: &str = "SELECT log_epoch, epoch_required, last_authenticated_at_ms
 FROM sync_partition_registry WHERE partition=?1";
const CLIENT: &str =
    "SELECT client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms
 FROM sync_clients WHERE partition=?1 AND client_id=?2";
pub(super) const PUSH_RESULT: &str = "SELECT result FROM sync_push_results
 WHERE partition=?1 AND client_id=?2 AND client_commit_id=?3";
pub(super) const TOMBSTONE: &str =
    "SELECT commit_seq FROM sync_tombstones WHERE partition=?1 AND tbl=?2 AND row_id=?3";
pub(super) const HEAD: &str = "SELECT max_commit_seq FROM sync_partitions WHERE partition=?1";

/// Reads the bounds: the first statement of a snapshot.
pub(super) fn bounds(connection: &Connection, partition: &str) -> Result<View, StoreError> {
    let read = || {
        let bounds: Option<(i64, i64)> = connection
            .prepare_cached(BOUNDS)?
            .query_row([partition], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let (max, horizon) = bounds.unwrap_or_default();
        let mut floor = 0;
        let mut statement = connection.prepare_cached(LAYOUTS)?;
        let mut rows = statement.query([partition])?;
        while let Some(row) = rows.next()? {
            floor = floor.max(row.get(0)?);
        }
        Ok(View {
            bounds: LogBounds {
                max: CommitSeq(max),
                horizon: CommitSeq(horizon),
            },
            layout_floor: CommitSeq(floor),
        })
    };
    read().map_err(during("reading log bounds"))
}

/// The incomplete checkpoints of the running version, sorted.
pub(super) fn pending(
    connection: &Connection,
    plan: &Plan,
) -> rusqlite::Result<Vec<PendingCheckpoint>> {
    let mut pending: Vec<PendingCheckpoint> = connection
        .prepare_cached(&plan.pending)?
        .query_map([], |row| {
            Ok(PendingCheckpoint {
                partition: row.get(0)?,
                name: row.get(1)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    pending.sort();
    Ok(pending)
}

/// Everything a request must know first; the caller wraps it in one view. Small
/// statements on purpose: SQLite would plan one large statement again with every
/// binding, which costs more than all of these. `client` is `None` for the gate alone.
pub(super) fn preamble(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    client: Option<&str>,
) -> Result<Found, StoreError> {
    let view = bounds(connection, partition)?;
    let read = || {
        let stored_version: Option<i32> = connection
            .prepare_cached(STORED_VERSION)?
            .query_row([], |row| row.get(0))?;
        let pending = pending(connection, plan)?;
        let registry = connection
            .prepare_cached(REGISTRY)?
            .query_row([partition], |row| {
                let registry = Registry {
                    log_epoch: LogEpoch::from(row.get::<_, String>(0)?),
                    epoch_required: row.get(1)?,
                };
                Ok((registry, row.get(2)?))
            })
            .optional()?;
        Ok(Found {
            view,
            gate: GateToken {
                stored_version: SchemaVersion(stored_version.unwrap_or(0)),
                log_epoch: registry
                    .as_ref()
                    .map(|(registry, _): &(Registry, i64)| registry.log_epoch.clone()),
                pending,
            },
            registry,
            client: None,
            ahead: None,
        })
    };
    let mut found = read().map_err(during("reading a preamble"))?;
    if let Some(id) = client {
        found.client = self::client(connection, partition, id)?;
    }
    Ok(found)
}

/// A client's record.
pub(super) fn client(
    connection: &Connection,
    partition: &str,
    id: &str,
) -> Result<Option<ClientRecord>, StoreError> {
    connection
        .prepare_cached(CLIENT)
        .and_then(|mut statement| {
            statement
                .query_row([partition, id], |row| client_record(row, 0))
                .optional()
        })
        .map_err(during("reading a client record"))
}

/// Columns `client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms` from `at` on.
pub(super) fn client_record(row: &Row<'_>, at: usize) -> rusqlite::Result<ClientRecord> {
    let text: String = row.get(at + 4)?;
    let subscriptions = decode_subscriptions(&text).unwrap_or_else(|| {
        tracing::warn!("the stored subscriptions of a client are unreadable");
        Vec::new()
    });
    Ok(ClientRecord {
        client_id: ClientId::from(row.get::<_, String>(at)?),
        actor_id: ActorId::from(row.get::<_, String>(at + 1)?),
        wire_version: wire_version(row.get(at + 2)?),
        cursor: row.get(at + 3)?,
        subscriptions,
        updated_at_ms: row.get(at + 5)?,
    })
}

/// Columns `server_version, scopes, payload, column_versions` from `at` on.
pub(super) fn stored_row(row: &Row<'_>, at: usize) -> Result<StoredRow, StoreError> {
    let context = "reading a row";
    let text = row
        .get_ref(at + 1)
        .and_then(|value| Ok(value.as_str()?))
        .map_err(during(context))?;
    let scopes = decode_scopes(text)?;
    let payload = row
        .get_ref(at + 2)
        .and_then(|value| Ok(value.as_blob()?))
        .map_err(during(context))?;
    let column_versions = row
        .get_ref(at + 3)
        .and_then(|value| Ok(value.as_blob_or_null()?))
        .map_err(during(context))?;
    Ok(StoredRow {
        server_version: row.get(at).map_err(during(context))?,
        scopes,
        payload: Bytes::copy_from_slice(payload),
        column_versions: column_versions.map(Bytes::copy_from_slice),
    })
}

/// Reads everything a batch asked for. The caller wraps this in one view, whose
/// first statement is the head: no row can be newer than it.
pub(super) fn needs(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    needs: &Needs,
) -> Result<Fetched, StoreError> {
    let max = connection
        .prepare_cached(HEAD)
        .and_then(|mut statement| {
            statement
                .query_row([partition], |row| row.get(0))
                .optional()
        })
        .map_err(during("reading the head of a log"))?;
    let mut fetched = Fetched {
        max: CommitSeq(max.unwrap_or(0)),
        rows: Vec::with_capacity(needs.rows.len()),
        results: Vec::with_capacity(needs.results.len()),
        children: Vec::with_capacity(needs.children.len()),
    };
    for key in &needs.rows {
        let state = row_state(connection, plan, partition, key)?;
        fetched.rows.push((key.clone(), state));
    }
    for key in &needs.results {
        let found = push_result(connection, partition, key)?;
        fetched.results.push((key.clone(), found));
    }
    for key in &needs.children {
        let found = children(connection, plan, partition, key)?;
        fetched.children.push((key.clone(), found));
    }
    Ok(fetched)
}

/// A row by key.
pub(super) fn row(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &RowKey,
) -> Result<Option<StoredRow>, StoreError> {
    let context = "reading a row";
    let (_, sql) = plan.table(key.table);
    let mut statement = connection
        .prepare_cached(&sql.select)
        .map_err(during(context))?;
    let mut rows = statement
        .query([partition, &*key.row_id])
        .map_err(during(context))?;
    match rows.next().map_err(during(context))? {
        Some(row) => stored_row(row, 0).map(Some),
        None => Ok(None),
    }
}

fn row_state(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &RowKey,
) -> Result<RowState, StoreError> {
    if let Some(row) = row(connection, plan, partition, key)? {
        return Ok(RowState::Present(Arc::new(row)));
    }
    let (table, _) = plan.table(key.table);
    let tombstone = connection
        .prepare_cached(TOMBSTONE)
        .and_then(|mut statement| {
            statement
                .query_row([partition, &table.name, &*key.row_id], |row| row.get(0))
                .optional()
        })
        .map_err(during("reading a tombstone"))?;
    Ok(RowState::Absent {
        tombstone: tombstone.map(CommitSeq),
    })
}

fn push_result(
    connection: &Connection,
    partition: &str,
    key: &ResultKey,
) -> Result<ResultLookup, StoreError> {
    let context = "reading a push result";
    let mut statement = connection
        .prepare_cached(PUSH_RESULT)
        .map_err(during(context))?;
    let mut rows = statement
        .query([partition, key.client_id.as_str(), &*key.client_commit_id])
        .map_err(during(context))?;
    let Some(row) = rows.next().map_err(during(context))? else {
        return Ok(ResultLookup::Absent);
    };
    let text = row.get_ref(0).map_err(during(context))?;
    let result = text.as_str().ok().and_then(decode_push_result);
    Ok(result.map_or(ResultLookup::Unreadable, |result| {
        ResultLookup::Found(Arc::new(result))
    }))
}

type Rows = Vec<(RowKey, Arc<StoredRow>)>;

fn children(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &ChildrenKey,
) -> Result<Rows, StoreError> {
    let parent = &*key.parent_row;
    match plan.children(key) {
        None => Ok(Vec::new()),
        Some(Children::PrimaryKey) => {
            let key = RowKey {
                table: key.child,
                row_id: Arc::clone(&key.parent_row),
            };
            let found = row(connection, plan, partition, &key)?;
            Ok(found.map(|row| (key, Arc::new(row))).into_iter().collect())
        }
        Some(Children::Column { sql, ty }) => match key_value(*ty, parent) {
            Some(value) => child_rows(connection, key, sql, params![partition, value, key.limit]),
            None => Ok(Vec::new()),
        },
        Some(Children::Scope { sql, variable }) => {
            let table = &plan.table(key.child).0.name;
            let parameters = params![partition, table, variable, parent, key.limit];
            child_rows(connection, key, sql, parameters)
        }
        Some(Children::Payload { sql }) => payload_children(connection, plan, partition, key, sql),
    }
}

/// The SQL value of a rendered key; `None` when no value of that type renders so.
fn key_value(ty: ColumnType, rendered: &str) -> Option<SqlValue> {
    match ty {
        ColumnType::Integer => {
            let number: i64 = rendered.parse().ok()?;
            (number.to_string() == rendered).then_some(SqlValue::Integer(number))
        }
        ColumnType::Boolean => match rendered {
            "true" => Some(SqlValue::Integer(1)),
            "false" => Some(SqlValue::Integer(0)),
            _ => None,
        },
        _ => Some(SqlValue::Text(rendered.to_owned())),
    }
}

fn child_rows(
    connection: &Connection,
    key: &ChildrenKey,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> Result<Rows, StoreError> {
    let context = "reading child rows";
    let mut statement = connection.prepare_cached(sql).map_err(during(context))?;
    let mut rows = statement.query(parameters).map_err(during(context))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(during(context))? {
        found.push(child_row(row, key)?);
    }
    Ok(found)
}

fn child_row(row: &Row<'_>, key: &ChildrenKey) -> Result<(RowKey, Arc<StoredRow>), StoreError> {
    let row_id: String = row.get(0).map_err(during("reading child rows"))?;
    let key = RowKey {
        table: key.child,
        row_id: row_id.into(),
    };
    Ok((key, Arc::new(stored_row(row, 1)?)))
}

fn payload_children(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &ChildrenKey,
    sql: &str,
) -> Result<Rows, StoreError> {
    let context = "reading child rows";
    let (table, _) = plan.table(key.child);
    let mut statement = connection.prepare_cached(sql).map_err(during(context))?;
    let mut rows = statement.query([partition]).map_err(during(context))?;
    let limit = usize::try_from(key.limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    while found.len() < limit
        && let Some(row) = rows.next().map_err(during(context))?
    {
        let (child, stored) = child_row(row, key)?;
        let values = ssp2::row::decode_row(&table.columns, &stored.payload).map_err(|_| {
            StoreError::Corrupt {
                what: "the payload of a row",
            }
        })?;
        let points_here = values
            .get(usize::from(key.column))
            .and_then(render_key)
            .is_some_and(|rendered| rendered == *key.parent_row);
        if points_here {
            found.push((child, stored));
        }
    }
    Ok(found)
}

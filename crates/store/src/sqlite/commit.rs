//! A group commit as SQL: the gate first, then every row of it.

use rusqlite::{Connection, OptionalExtension as _, Statement, params};
use ssp2::{ScopeValues, Value};
use tidegate_engine::gate::{GateToken, PendingCheckpoint};
use tidegate_engine::model::{
    ClientRecord, CommitBatch, LogBounds, LoggedCommit, Over, RowKey, RowWrite, StoredRow,
};
use tidegate_engine::push::encode_push_result;
use tidegate_engine::{CommitSeq, LogEpoch, SchemaVersion};

use super::checkpoints;
use super::failure::{commit_row_error, during, is_row_constraint, store_error};
use super::plan::Plan;
use super::read::{self, STORED_VERSION};
use crate::Passed;
use crate::error::{CommitError, StoreError};
use crate::stored::{blob_ids, encode_scopes, encode_subscriptions};

const CONTEXT: &str = "writing a batch";

/// Writes `batch` inside the caller's savepoint.
pub(super) fn write_batch(
    connection: &Connection,
    plan: &Plan,
    batch: &CommitBatch,
) -> Result<Passed, CommitError> {
    let passed = pass_gate(connection, plan, batch)?;
    advance_checkpoint(connection, batch)?;
    for commit in &batch.commits {
        write_commit(connection, plan, batch, commit)?;
    }
    write_results(connection, batch)?;
    queue_reactions(connection, batch)?;
    write_rows(connection, plan, batch)?;
    record_clients(connection, batch.partition.as_str(), &batch.clients)?;
    Ok(passed)
}

/// The commit gate (docs/architecture.md): the CAS first, then, on the state it
/// has serialized with, the published version and the pending checkpoints.
fn pass_gate(
    connection: &Connection,
    plan: &Plan,
    batch: &CommitBatch,
) -> Result<Passed, CommitError> {
    let horizon = advance_head(connection, batch)?;
    let bounds = LogBounds {
        max: batch.head_after(),
        horizon,
    };
    // The build that measures what the gate costs (docs/benchmarks.md).
    if cfg!(tidegate_ungated) {
        let token = GateToken {
            stored_version: batch.writer_version,
            log_epoch: None,
            pending: Vec::new(),
        };
        return Ok(Passed { token, bounds });
    }
    let stored: Option<i32> = connection
        .prepare_cached(STORED_VERSION)
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(during(CONTEXT))?;
    let stored = SchemaVersion(stored.unwrap_or(0));
    if stored != batch.writer_version || stored != plan.version() {
        return Err(CommitError::SchemaChanged { stored });
    }
    let pending = read::pending(connection, plan).map_err(during(CONTEXT))?;
    let declares = |checkpoint: &&PendingCheckpoint| {
        let (partition, name) = (checkpoint.partition.clone(), checkpoint.name.clone());
        batch.declared.contains(&(partition, name))
    };
    if let Some(undeclared) = pending.iter().find(|checkpoint| !declares(checkpoint)) {
        return Err(CommitError::CheckpointPending(undeclared.clone()));
    }
    // The trigger judges commit rows; a batch of rejections alone has none.
    if batch.commits.is_empty() {
        let fenced = connection
            .prepare_cached(
                "SELECT 1 FROM sync_writer_fence WHERE partition=?1 AND required_writer_version>?2",
            )
            .and_then(|mut statement| {
                statement.exists(params![batch.partition.as_str(), batch.writer_version.0])
            })
            .map_err(during(CONTEXT))?;
        if fenced {
            return Err(CommitError::FenceRejected);
        }
    }
    let log_epoch: Option<String> = connection
        .prepare_cached("SELECT log_epoch FROM sync_partition_registry WHERE partition=?1")
        .and_then(|mut statement| {
            statement
                .query_row([batch.partition.as_str()], |row| row.get(0))
                .optional()
        })
        .map_err(during(CONTEXT))?;
    let token = GateToken {
        stored_version: stored,
        log_epoch: log_epoch.map(LogEpoch::from),
        pending,
    };
    Ok(Passed { token, bounds })
}

/// A page advances its checkpoint in its own transaction, and before it writes
/// anything: a superseded owner's page is dropped whole (migrations.md rule 5).
fn advance_checkpoint(connection: &Connection, batch: &CommitBatch) -> Result<(), CommitError> {
    let Some(page) = &batch.advance else {
        return Ok(());
    };
    let partition = batch.partition.as_str();
    if checkpoints::advance(connection, partition, &page.name, page.to, page.now_ms)? {
        Ok(())
    } else {
        Err(CommitError::Superseded)
    }
}

/// `UPDATE … WHERE max_commit_seq = expected`; a partition without a row is at 0. Returns
/// the horizon.
fn advance_head(connection: &Connection, batch: &CommitBatch) -> Result<CommitSeq, CommitError> {
    let partition = batch.partition.as_str();
    let expected = batch.expected_max.0;
    let count = i64::try_from(batch.commits.len()).unwrap_or(i64::MAX);
    let moved = connection
        .prepare_cached(
            "UPDATE sync_partitions SET max_commit_seq=max_commit_seq+?3
             WHERE partition=?1 AND max_commit_seq=?2 RETURNING horizon_seq",
        )
        .and_then(|mut statement| {
            statement
                .query_row(params![partition, expected, count], |row| row.get(0))
                .optional()
        })
        .map_err(during(CONTEXT))?;
    if let Some(horizon) = moved {
        return Ok(CommitSeq(horizon));
    }
    if expected == 0 {
        let inserted = connection
            .prepare_cached(
                "INSERT INTO sync_partitions(partition, max_commit_seq) VALUES(?1, ?2)
                 ON CONFLICT(partition) DO NOTHING",
            )
            .and_then(|mut statement| statement.execute(params![partition, count]))
            .map_err(during(CONTEXT))?;
        if inserted == 1 {
            return Ok(CommitSeq(0));
        }
    }
    Err(CommitError::SequenceMoved)
}

fn write_commit(
    connection: &Connection,
    plan: &Plan,
    batch: &CommitBatch,
    commit: &LoggedCommit,
) -> Result<(), CommitError> {
    let partition = batch.partition.as_str();
    connection
        .prepare_cached(
            "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
             VALUES(?1,?2,?3,?4,?5,?6,?7)",
        )
        .map_err(during(CONTEXT))?
        .execute(params![
            partition,
            commit.seq.0,
            commit.client_id.as_str(),
            &*commit.client_commit_id,
            commit.actor_id.as_str(),
            commit.created_at_ms,
            batch.writer_version.0,
        ])
        .map_err(commit_row_error)?;
    let mut change_row = connection
        .prepare_cached(
            "INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
        )
        .map_err(during(CONTEXT))?;
    let mut scope_row = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
             VALUES(?1,?2,?3,?4,?5)",
        )
        .map_err(during(CONTEXT))?;
    let mut previous: Option<(&RowKey, &ScopeValues)> = None;
    for (index, change) in commit.changes.iter().enumerate() {
        let (table, _) = plan.table(change.key.table);
        let (op, version, payload) = match &change.upsert {
            Some((version, payload)) => (1, Some(*version), Some(&payload[..])),
            None => (2, None, None),
        };
        change_row
            .execute(params![
                partition,
                commit.seq.0,
                i64::try_from(index).unwrap_or(i64::MAX),
                table.name,
                &*change.key.row_id,
                op,
                version,
                encode_scopes(&change.scopes),
                payload,
            ])
            .map_err(during(CONTEXT))?;
        let indexed = previous
            .is_some_and(|(key, scopes)| key.table == change.key.table && *scopes == change.scopes);
        if !indexed {
            for (variable, value) in change.scopes.iter() {
                scope_row
                    .execute(params![
                        partition,
                        table.name,
                        variable,
                        value,
                        commit.seq.0
                    ])
                    .map_err(during(CONTEXT))?;
            }
        }
        previous = Some((&change.key, &change.scopes));
    }
    Ok(())
}

/// A result that somebody else has recorded since is never overwritten: a
/// rejection moves no sequence number, so the CAS alone does not see it.
fn write_results(connection: &Connection, batch: &CommitBatch) -> Result<(), CommitError> {
    let mut statement = connection
        .prepare_cached(
            "INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
             VALUES(?1,?2,?3,?4) ON CONFLICT(partition, client_id, client_commit_id) DO NOTHING",
        )
        .map_err(during(CONTEXT))?;
    for (key, result) in &batch.results {
        let recorded = statement
            .execute(params![
                batch.partition.as_str(),
                key.client_id.as_str(),
                &*key.client_commit_id,
                encode_push_result(result),
            ])
            .map_err(during(CONTEXT))?;
        if recorded == 0 {
            return Err(CommitError::SequenceMoved);
        }
    }
    Ok(())
}

/// Reactions wait in the same transaction as the commit they follow (§6.9).
fn queue_reactions(connection: &Connection, batch: &CommitBatch) -> Result<(), CommitError> {
    for reaction in &batch.reactions {
        let (planned, source) = (&reaction.planned, &reaction.source);
        connection
            .prepare_cached(
                "INSERT INTO sync_reactions(partition, idempotency_key, type, version, payload,
                   source_client_id, source_client_commit_id, source_commit_seq, created_at_ms,
                   available_at_ms, status, attempts, max_attempts)
                 VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?9,'pending',0,?10)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    batch.partition.as_str(),
                    reaction.idempotency_key,
                    planned.kind,
                    planned.version,
                    planned.payload.to_string(),
                    source.client_id.as_str(),
                    &*source.client_commit_id,
                    source.seq.0,
                    source.created_at_ms,
                    planned.max_attempts,
                ])
            })
            .map_err(during(CONTEXT))?;
    }
    Ok(())
}

fn write_rows(
    connection: &Connection,
    plan: &Plan,
    batch: &CommitBatch,
) -> Result<(), CommitError> {
    let partition = batch.partition.as_str();
    // Rows stand in their final state, so one may hold a unique value that
    // another one gives up later in this list: deletes go first, and a refused
    // write is tried again as long as others still make progress.
    let mut waiting = Vec::new();
    for write in &batch.rows {
        match write {
            RowWrite::Delete { key, tombstone } => {
                delete_row(connection, plan, partition, key, tombstone.0)?;
            }
            RowWrite::Put {
                key,
                row,
                values,
                over,
            } => waiting.push((key, row, values, *over)),
        }
    }
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut refused = Vec::new();
        for put in waiting {
            let (key, row, values, over) = put;
            match put_row(connection, plan, partition, key, row, values, over) {
                Ok(()) => index_row(connection, plan, partition, key, row, values, over)?,
                Err(error) if is_row_constraint(&error) => refused.push(put),
                Err(error) => return Err(store_error("writing a row", error).into()),
            }
        }
        if refused.len() == before {
            return Err(CommitError::Constraint {
                key: Some(refused[0].0.clone()),
            });
        }
        waiting = refused;
    }
    Ok(())
}

fn put_row(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &RowKey,
    row: &StoredRow,
    values: &[Value],
    over: Over,
) -> rusqlite::Result<()> {
    let (table, sql) = plan.table(key.table);
    let mut statement = connection.prepare_cached(match over {
        Over::Row => &sql.upsert,
        Over::Nothing | Over::Tombstone => &sql.insert,
    })?;
    statement.raw_bind_parameter(1, partition)?;
    statement.raw_bind_parameter(2, &*key.row_id)?;
    statement.raw_bind_parameter(3, row.server_version)?;
    statement.raw_bind_parameter(4, encode_scopes(&row.scopes))?;
    statement.raw_bind_parameter(5, &row.payload[..])?;
    statement.raw_bind_parameter(6, row.column_versions.as_deref())?;
    if table.materialize {
        for (at, value) in values.iter().enumerate() {
            bind_value(&mut statement, 7 + at, value)?;
        }
    }
    statement.raw_execute().map(|_| ())
}

/// Binds an app column's value.
pub(super) fn bind_value(
    statement: &mut Statement<'_>,
    at: usize,
    value: &Value,
) -> rusqlite::Result<()> {
    match value {
        Value::Null => statement.raw_bind_parameter(at, rusqlite::types::Null),
        Value::Text(text) => statement.raw_bind_parameter(at, text.as_str()),
        Value::Integer(number) => statement.raw_bind_parameter(at, number),
        Value::Float(number) => statement.raw_bind_parameter(at, number),
        Value::Boolean(flag) => statement.raw_bind_parameter(at, flag),
        Value::Bytes(bytes) => statement.raw_bind_parameter(at, &bytes[..]),
    }
}

/// The entries of a written row in the scope and blob indexes, and its tombstone.
fn index_row(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &RowKey,
    row: &StoredRow,
    values: &[Value],
    over: Over,
) -> Result<(), StoreError> {
    let (table, sql) = plan.table(key.table);
    let row_id = &*key.row_id;
    let stored = over == Over::Row;
    if !(stored && scopes_indexed(connection, partition, &table.name, row_id, &row.scopes)?) {
        if stored {
            clear_row_index(connection, CLEAR_ROW_SCOPES, partition, &table.name, row_id)?;
        }
        let mut statement = connection
            .prepare_cached(
                "INSERT OR IGNORE INTO sync_row_scopes(partition, tbl, var, value, row_id) VALUES(?1,?2,?3,?4,?5)",
            )
            .map_err(during(CONTEXT))?;
        for (variable, value) in row.scopes.iter() {
            statement
                .execute(params![partition, table.name, variable, value, row_id])
                .map_err(during(CONTEXT))?;
        }
    }
    if sql.has_blobs {
        if stored {
            clear_row_index(connection, CLEAR_BLOB_REFS, partition, &table.name, row_id)?;
        }
        let mut statement = connection
            .prepare_cached(
                "INSERT INTO sync_blob_refs(partition, tbl, row_id, blob_id) VALUES(?1,?2,?3,?4)",
            )
            .map_err(during(CONTEXT))?;
        for blob in blob_ids(table, values) {
            statement
                .execute(params![partition, table.name, row_id, blob])
                .map_err(during(CONTEXT))?;
        }
    }
    if over == Over::Tombstone {
        clear_row_index(connection, CLEAR_TOMBSTONE, partition, &table.name, row_id)?;
    }
    Ok(())
}

const CLEAR_ROW_SCOPES: &str =
    "DELETE FROM sync_row_scopes WHERE partition=?1 AND tbl=?2 AND row_id=?3";
const CLEAR_BLOB_REFS: &str =
    "DELETE FROM sync_blob_refs WHERE partition=?1 AND tbl=?2 AND row_id=?3";
const CLEAR_TOMBSTONE: &str =
    "DELETE FROM sync_tombstones WHERE partition=?1 AND tbl=?2 AND row_id=?3";

fn clear_row_index(
    connection: &Connection,
    sql: &str,
    partition: &str,
    table: &str,
    row_id: &str,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute([partition, table, row_id]))
        .map(|_| ())
        .map_err(during(CONTEXT))
}

/// Whether the index already holds exactly these entries, as for most updates.
fn scopes_indexed(
    connection: &Connection,
    partition: &str,
    table: &str,
    row_id: &str,
    scopes: &ScopeValues,
) -> Result<bool, StoreError> {
    let mut statement = connection
        .prepare_cached(
            // Without the hint SQLite prefers the covering primary key, and walks the
            // whole table's entries for one row.
            "SELECT var, value FROM sync_row_scopes INDEXED BY sync_row_scopes_by_row
             WHERE partition=?1 AND tbl=?2 AND row_id=?3",
        )
        .map_err(during(CONTEXT))?;
    let mut rows = statement
        .query([partition, table, row_id])
        .map_err(during(CONTEXT))?;
    let mut found = 0;
    while let Some(row) = rows.next().map_err(during(CONTEXT))? {
        let entry = row
            .get_ref(0)
            .and_then(|variable| Ok((variable.as_str()?, row.get_ref(1)?.as_str()?)));
        let (variable, value) = entry.map_err(during(CONTEXT))?;
        if scopes.get(variable).is_none_or(|wanted| wanted != value) {
            return Ok(false);
        }
        found += 1;
    }
    Ok(found == scopes.len())
}

fn delete_row(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    key: &RowKey,
    tombstone: i64,
) -> Result<(), StoreError> {
    let (table, sql) = plan.table(key.table);
    let row_id = &*key.row_id;
    connection
        .prepare_cached(&sql.delete)
        .and_then(|mut statement| statement.execute([partition, row_id]))
        .map_err(during(CONTEXT))?;
    clear_row_index(connection, CLEAR_ROW_SCOPES, partition, &table.name, row_id)?;
    if sql.has_blobs {
        clear_row_index(connection, CLEAR_BLOB_REFS, partition, &table.name, row_id)?;
    }
    connection
        .prepare_cached(
            "INSERT INTO sync_tombstones(partition, tbl, row_id, commit_seq) VALUES(?1,?2,?3,?4)
             ON CONFLICT(partition, tbl, row_id) DO UPDATE SET commit_seq=excluded.commit_seq",
        )
        .and_then(|mut statement| {
            statement.execute(params![partition, table.name, row_id, tombstone])
        })
        .map(|_| ())
        .map_err(during(CONTEXT))
}

/// Upserts client records; one bound to another actor stays as it is.
pub(super) fn record_clients(
    connection: &Connection,
    partition: &str,
    clients: &[ClientRecord],
) -> Result<(), StoreError> {
    let context = "recording clients";
    for client in clients {
        connection
            .prepare_cached(
                "INSERT INTO sync_clients(partition, client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms)
                 VALUES(?1,?2,?3,?4,?5,?6,?7)
                 ON CONFLICT(partition, client_id) DO UPDATE SET
                   wire_version=excluded.wire_version, cursor=excluded.cursor,
                   subscriptions=excluded.subscriptions, updated_at_ms=excluded.updated_at_ms
                 WHERE actor_id=excluded.actor_id",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    partition,
                    client.client_id.as_str(),
                    client.actor_id.as_str(),
                    client.wire_version as i64,
                    client.cursor,
                    encode_subscriptions(&client.subscriptions),
                    client.updated_at_ms,
                ])
            })
            .map_err(during(context))?;
    }
    Ok(())
}

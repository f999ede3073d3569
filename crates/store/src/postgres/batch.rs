//! A group commit as statements: every row of it as arrays, one statement per
//! table and kind.
//!
//! Every statement writes only where `tidegate.tx` is set, as the transaction's
//! own BEGIN does. Should that BEGIN fail, each statement behind it would be a
//! transaction of its own: then none of them writes.

use std::collections::{BTreeMap, BTreeSet};

use ssp2::{ColumnType, Value};
use tidegate_engine::TableId;
use tidegate_engine::model::{ClientRecord, CommitBatch, RowKey, RowWrite, StoredRow};
use tidegate_engine::push::encode_push_result;

use super::accepted;
use super::connection::Param;
use super::core_schema::{CALL_ADVANCE, CALL_GATE};
use super::plan::Plan;
use crate::stored::{blob_ids, encode_scopes, encode_subscriptions};

/// A statement with its parameters.
pub(super) struct Step<'a> {
    pub(super) sql: &'a str,
    pub(super) params: Vec<Param<'a>>,
}

/// A row to be put.
#[derive(Clone, Copy)]
pub(super) struct Put<'a> {
    pub(super) key: &'a RowKey,
    row: &'a StoredRow,
    values: &'a [Value],
    clears_tombstone: bool,
}

const COMMITS: &str = "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
 SELECT $1, u.seq, u.client, u.commit, u.actor, u.at, $2
 FROM unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[]) AS u(seq, client, commit, actor, at)
 WHERE current_setting('tidegate.tx', true)='1'";
const CHANGES: &str = "INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
 SELECT $1, u.seq, u.idx, u.tbl, u.id, u.op, u.version, u.scopes::jsonb, u.payload
 FROM unnest($2::bigint[], $3::int[], $4::text[], $5::text[], $6::smallint[], $7::bigint[], $8::text[], $9::bytea[])
   AS u(seq, idx, tbl, id, op, version, scopes, payload)
 WHERE current_setting('tidegate.tx', true)='1'";
const CHANGE_SCOPES: &str = "INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
 SELECT $1, u.tbl, u.var, u.value, u.seq
 FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) AS u(tbl, var, value, seq)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT DO NOTHING";
/// Entries of rows that their scopes no longer say.
pub(super) const STALE_ROW_SCOPES: &str = "DELETE FROM sync_row_scopes WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT s.ctid FROM unnest($2::text[], $3::text[], $4::text[]) AS k(tbl, id, scopes)
   CROSS JOIN LATERAL (SELECT ctid, var, value FROM sync_row_scopes
     WHERE partition=$1 AND tbl=k.tbl AND row_id>=k.id AND row_id<=k.id ORDER BY row_id OFFSET 0) AS s
   WHERE (k.scopes::jsonb ->> s.var) IS DISTINCT FROM s.value))";
const ROW_SCOPES: &str = "INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
 SELECT $1, u.tbl, u.var, u.value, u.id
 FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS u(tbl, var, value, id)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT DO NOTHING";
pub(super) const CLEAR_ROW_SCOPES: &str = "DELETE FROM sync_row_scopes WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT s.ctid FROM unnest($2::text[], $3::text[]) AS k(tbl, id)
   CROSS JOIN LATERAL (SELECT ctid FROM sync_row_scopes
     WHERE partition=$1 AND tbl=k.tbl AND row_id>=k.id AND row_id<=k.id ORDER BY row_id OFFSET 0) AS s))";
pub(super) const CLEAR_BLOB_REFS: &str = "DELETE FROM sync_blob_refs WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT b.ctid FROM unnest($2::text[], $3::text[]) AS k(tbl, id)
   CROSS JOIN LATERAL (SELECT ctid FROM sync_blob_refs
     WHERE partition=$1 AND tbl=k.tbl AND row_id>=k.id AND row_id<=k.id ORDER BY row_id OFFSET 0) AS b))";
const BLOB_REFS: &str = "INSERT INTO sync_blob_refs(partition, tbl, row_id, blob_id)
 SELECT $1, u.tbl, u.id, u.blob FROM unnest($2::text[], $3::text[], $4::text[]) AS u(tbl, id, blob)
 WHERE current_setting('tidegate.tx', true)='1'";
pub(super) const CLEAR_TOMBSTONES: &str = "DELETE FROM sync_tombstones WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT t.ctid FROM unnest($2::text[], $3::text[]) AS k(tbl, id)
   CROSS JOIN LATERAL (SELECT ctid FROM sync_tombstones
     WHERE partition=$1 AND tbl=k.tbl AND row_id=k.id LIMIT 1) AS t))";
const TOMBSTONES: &str = "INSERT INTO sync_tombstones(partition, tbl, row_id, commit_seq)
 SELECT $1, u.tbl, u.id, u.seq FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u(tbl, id, seq)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT (partition, tbl, row_id) DO UPDATE SET commit_seq=excluded.commit_seq";
/// A result that somebody else has recorded since is never overwritten: the
/// insert fails, and the batch with it. A rejection moves no sequence number,
/// so the CAS alone does not see it.
const RESULTS: &str =
    "INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
 SELECT $1, u.client, u.commit, u.result::jsonb
 FROM unnest($2::text[], $3::text[], $4::text[]) AS u(client, commit, result)
 WHERE current_setting('tidegate.tx', true)='1'";
/// A record bound to another actor stays as it is.
const CLIENTS: &str = "INSERT INTO sync_clients(partition, client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms)
 SELECT $1, u.client, u.actor, u.wire, u.cursor, u.subscriptions::jsonb, u.at
 FROM unnest($2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::bigint[])
   AS u(client, actor, wire, cursor, subscriptions, at)
 ON CONFLICT (partition, client_id) DO UPDATE SET
   wire_version=excluded.wire_version, cursor=excluded.cursor,
   subscriptions=excluded.subscriptions, updated_at_ms=excluded.updated_at_ms
 WHERE sync_clients.actor_id=excluded.actor_id";

/// The puts of a batch.
pub(super) fn puts(batch: &CommitBatch) -> Vec<Put<'_>> {
    batch
        .rows
        .iter()
        .filter_map(|write| match write {
            RowWrite::Put {
                key,
                row,
                values,
                clears_tombstone,
            } => Some(Put {
                key,
                row,
                values,
                clears_tombstone: *clears_tombstone,
            }),
            RowWrite::Delete { .. } => None,
        })
        .collect()
}

/// What the database could not store, found before it is asked: a text with a
/// NUL. `Some(None)` when it is in no row.
pub(super) fn unstorable<'a>(plan: &Plan, batch: &'a CommitBatch) -> Option<Option<&'a RowKey>> {
    let text = accepted::text;
    for put in puts(batch) {
        let (table, _) = plan.table(put.key.table);
        let holds = text(&put.key.row_id)
            && put.row.scopes.iter().all(|(_, value)| text(value))
            && (!table.materialize
                || table.columns.iter().zip(put.values).all(|(column, value)| {
                    match (column.ty, value) {
                        (ColumnType::String | ColumnType::BlobRef, Value::Text(value)) => {
                            text(value)
                        }
                        _ => true,
                    }
                }));
        if !holds {
            return Some(Some(put.key));
        }
    }
    for commit in &batch.commits {
        let holds = text(commit.client_id.as_str())
            && text(&commit.client_commit_id)
            && text(commit.actor_id.as_str());
        if !holds {
            return Some(None);
        }
        let lost = commit.changes.iter().find(|change| {
            !text(&change.key.row_id) || !change.scopes.iter().all(|(_, value)| text(value))
        });
        if let Some(change) = lost {
            return Some(Some(&change.key));
        }
    }
    let results = batch.results.iter().all(|(key, result)| {
        text(key.client_id.as_str())
            && text(&key.client_commit_id)
            && accepted::jsonb(&encode_push_result(result))
    });
    (!results).then_some(None)
}

/// The gate call.
pub(super) fn gate(batch: &CommitBatch) -> Step<'_> {
    let (partitions, names): (Vec<&str>, Vec<&str>) = batch
        .declared
        .iter()
        .map(|(partition, name)| (partition.as_str(), name.as_str()))
        .unzip();
    Step {
        sql: CALL_GATE,
        params: vec![
            Box::new(batch.partition.as_str()),
            Box::new(batch.expected_max.0),
            Box::new(i64::try_from(batch.commits.len()).unwrap_or(i64::MAX)),
            Box::new(i64::from(batch.writer_version.0)),
            Box::new(partitions),
            Box::new(names),
        ],
    }
}

/// The advance of a backfill page: it fails, and the batch with it, when the page's
/// owner was superseded.
fn advance(batch: &CommitBatch) -> Option<Step<'_>> {
    let page = batch.advance.as_ref()?;
    Some(Step {
        sql: CALL_ADVANCE,
        params: vec![
            Box::new(batch.partition.as_str()),
            Box::new(&*page.name),
            Box::new(page.to.owner_epoch.0),
            Box::new(page.to.watermark.0),
            Box::new(page.to.observed_rows),
            Box::new(page.now_ms),
        ],
    })
}

/// Everything but the gate and the puts' own rows, deletes before what may
/// need their place.
pub(super) fn steps<'a>(plan: &'a Plan, batch: &'a CommitBatch) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    steps.extend(advance(batch));
    commits(plan, batch, &mut steps);
    deletes(plan, batch, &mut steps);
    indexes(plan, batch, &mut steps);
    results(batch, &mut steps);
    if !batch.clients.is_empty() {
        steps.push(clients(batch.partition.as_str(), &batch.clients));
    }
    steps
}

fn commits<'a>(plan: &'a Plan, batch: &'a CommitBatch, steps: &mut Vec<Step<'a>>) {
    let partition = batch.partition.as_str();
    let all = &batch.commits;
    if all.is_empty() {
        return;
    }
    let each = |read: fn(&'a tidegate_engine::model::LoggedCommit) -> &'a str| -> Vec<&'a str> {
        all.iter().map(|commit| read(commit)).collect()
    };
    steps.push(Step {
        sql: COMMITS,
        params: vec![
            Box::new(partition),
            Box::new(i64::from(batch.writer_version.0)),
            Box::new(all.iter().map(|commit| commit.seq.0).collect::<Vec<_>>()),
            Box::new(each(|commit| commit.client_id.as_str())),
            Box::new(each(|commit| &commit.client_commit_id)),
            Box::new(each(|commit| commit.actor_id.as_str())),
            Box::new(all.iter().map(|c| c.created_at_ms).collect::<Vec<_>>()),
        ],
    });
    let changes: Vec<_> = all
        .iter()
        .flat_map(|commit| {
            commit
                .changes
                .iter()
                .zip(0_i32..)
                .map(|(change, n)| (commit.seq.0, n, change))
        })
        .collect();
    if changes.is_empty() {
        return;
    }
    let name = |table: TableId| plan.table(table).0.name.as_str();
    let upserts = || changes.iter().map(|(_, _, change)| change.upsert.as_ref());
    steps.push(Step {
        sql: CHANGES,
        params: vec![
            Box::new(partition),
            Box::new(changes.iter().map(|(seq, _, _)| *seq).collect::<Vec<_>>()),
            Box::new(changes.iter().map(|(_, n, _)| *n).collect::<Vec<_>>()),
            Box::new(
                changes
                    .iter()
                    .map(|(_, _, c)| name(c.key.table))
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                changes
                    .iter()
                    .map(|(_, _, c)| &*c.key.row_id)
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                upserts()
                    .map(|up| if up.is_some() { 1_i16 } else { 2 })
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                upserts()
                    .map(|up| up.map(|(version, _)| *version))
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                changes
                    .iter()
                    .map(|(_, _, c)| encode_scopes(&c.scopes))
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                upserts()
                    .map(|up| up.map(|(_, payload)| &payload[..]))
                    .collect::<Vec<_>>(),
            ),
        ],
    });
    // Sorted: neighbours in the index are inserted together.
    let entries: BTreeSet<(&str, &str, &str, i64)> = changes
        .iter()
        .flat_map(|(seq, _, change)| {
            let table = name(change.key.table);
            change
                .scopes
                .iter()
                .map(move |(variable, value)| (table, variable, value.as_str(), *seq))
        })
        .collect();
    if !entries.is_empty() {
        steps.push(Step {
            sql: CHANGE_SCOPES,
            params: vec![
                Box::new(partition),
                Box::new(entries.iter().map(|entry| entry.0).collect::<Vec<_>>()),
                Box::new(entries.iter().map(|entry| entry.1).collect::<Vec<_>>()),
                Box::new(entries.iter().map(|entry| entry.2).collect::<Vec<_>>()),
                Box::new(entries.iter().map(|entry| entry.3).collect::<Vec<_>>()),
            ],
        });
    }
}

/// Pairs of (table, row id) as a statement's arrays.
fn keyed<'a>(partition: &'a str, sql: &'a str, keys: &[(&'a str, &'a str)]) -> Option<Step<'a>> {
    if keys.is_empty() {
        return None;
    }
    let (tables, ids): (Vec<&str>, Vec<&str>) = keys.iter().copied().unzip();
    Some(Step {
        sql,
        params: vec![Box::new(partition), Box::new(tables), Box::new(ids)],
    })
}

fn deletes<'a>(plan: &'a Plan, batch: &'a CommitBatch, steps: &mut Vec<Step<'a>>) {
    let partition = batch.partition.as_str();
    let mut per_table: BTreeMap<TableId, Vec<&str>> = BTreeMap::new();
    let (mut all, mut with_blobs, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
    for write in &batch.rows {
        let RowWrite::Delete { key, tombstone } = write else {
            continue;
        };
        let (table, sql) = plan.table(key.table);
        per_table.entry(key.table).or_default().push(&key.row_id);
        all.push((table.name.as_str(), &*key.row_id));
        if sql.has_blobs {
            with_blobs.push((table.name.as_str(), &*key.row_id));
        }
        seqs.push(tombstone.0);
    }
    for (table, ids) in per_table {
        steps.push(Step {
            sql: &plan.table(table).1.delete,
            params: vec![Box::new(partition), Box::new(ids)],
        });
    }
    steps.extend(keyed(partition, CLEAR_ROW_SCOPES, &all));
    steps.extend(keyed(partition, CLEAR_BLOB_REFS, &with_blobs));
    if let Some(mut step) = keyed(partition, TOMBSTONES, &all) {
        step.params.push(Box::new(seqs));
        steps.push(step);
    }
}

/// The puts' entries in the scope and blob indexes, and their tombstones.
fn indexes<'a>(plan: &'a Plan, batch: &'a CommitBatch, steps: &mut Vec<Step<'a>>) {
    let partition = batch.partition.as_str();
    let (mut stale, mut stale_scopes, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    let (mut with_blobs, mut blobs, mut cleared) = (Vec::new(), Vec::new(), Vec::new());
    for put in puts(batch) {
        let (table, sql) = plan.table(put.key.table);
        let key = (table.name.as_str(), &*put.key.row_id);
        // A row's first version has no entries yet.
        if put.row.server_version > 1 {
            stale.push(key);
            stale_scopes.push(encode_scopes(&put.row.scopes));
        }
        for (variable, value) in put.row.scopes.iter() {
            entries.push((key.0, variable, value.as_str(), key.1));
        }
        if sql.has_blobs {
            with_blobs.push(key);
            blobs.extend(
                blob_ids(table, put.values)
                    .into_iter()
                    .map(|blob| (key, blob)),
            );
        }
        if put.clears_tombstone {
            cleared.push(key);
        }
    }
    if let Some(mut step) = keyed(partition, STALE_ROW_SCOPES, &stale) {
        step.params.push(Box::new(stale_scopes));
        steps.push(step);
    }
    if !entries.is_empty() {
        entries.sort_unstable();
        steps.push(Step {
            sql: ROW_SCOPES,
            params: vec![
                Box::new(partition),
                Box::new(entries.iter().map(|entry| entry.0).collect::<Vec<_>>()),
                Box::new(entries.iter().map(|entry| entry.1).collect::<Vec<_>>()),
                Box::new(entries.iter().map(|entry| entry.2).collect::<Vec<_>>()),
                Box::new(entries.iter().map(|entry| entry.3).collect::<Vec<_>>()),
            ],
        });
    }
    steps.extend(keyed(partition, CLEAR_BLOB_REFS, &with_blobs));
    if !blobs.is_empty() {
        let keys: Vec<(&str, &str)> = blobs.iter().map(|(key, _)| *key).collect();
        let ids: Vec<String> = blobs.into_iter().map(|(_, blob)| blob).collect();
        if let Some(mut step) = keyed(partition, BLOB_REFS, &keys) {
            step.params.push(Box::new(ids));
            steps.push(step);
        }
    }
    steps.extend(keyed(partition, CLEAR_TOMBSTONES, &cleared));
}

fn results<'a>(batch: &'a CommitBatch, steps: &mut Vec<Step<'a>>) {
    let all = &batch.results;
    if all.is_empty() {
        return;
    }
    steps.push(Step {
        sql: RESULTS,
        params: vec![
            Box::new(batch.partition.as_str()),
            Box::new(
                all.iter()
                    .map(|(key, _)| key.client_id.as_str())
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                all.iter()
                    .map(|(key, _)| &*key.client_commit_id)
                    .collect::<Vec<_>>(),
            ),
            Box::new(
                all.iter()
                    .map(|(_, result)| encode_push_result(result))
                    .collect::<Vec<_>>(),
            ),
        ],
    });
}

/// Client records: each client once, the last record of it, in one order for
/// every writer.
pub(super) fn clients<'a>(partition: &'a str, records: &'a [ClientRecord]) -> Step<'a> {
    let last: BTreeMap<&str, &ClientRecord> = records
        .iter()
        .filter(|record| {
            accepted::text(record.client_id.as_str()) && accepted::text(record.actor_id.as_str())
        })
        .map(|record| (record.client_id.as_str(), record))
        .collect();
    let all: Vec<&ClientRecord> = last.into_values().collect();
    Step {
        sql: CLIENTS,
        params: vec![
            Box::new(partition),
            Box::new(all.iter().map(|r| r.client_id.as_str()).collect::<Vec<_>>()),
            Box::new(all.iter().map(|r| r.actor_id.as_str()).collect::<Vec<_>>()),
            Box::new(
                all.iter()
                    .map(|r| r.wire_version as i32)
                    .collect::<Vec<_>>(),
            ),
            Box::new(all.iter().map(|r| r.cursor).collect::<Vec<_>>()),
            Box::new(all.iter().map(|r| subscriptions(r)).collect::<Vec<_>>()),
            Box::new(all.iter().map(|r| r.updated_at_ms).collect::<Vec<_>>()),
        ],
    }
}

/// The stored subscriptions, without those that `jsonb` refuses: no stored row
/// can match them, and the client registers them anew with every pull.
fn subscriptions(record: &ClientRecord) -> String {
    let all = encode_subscriptions(&record.subscriptions);
    if accepted::jsonb(&all) {
        return all;
    }
    let storable: Vec<_> = record
        .subscriptions
        .iter()
        .filter(|one| accepted::jsonb(&encode_subscriptions(std::slice::from_ref(*one))))
        .cloned()
        .collect();
    encode_subscriptions(&storable)
}

/// The puts' rows, one statement per table.
pub(super) fn upserts<'a>(plan: &'a Plan, partition: &'a str, puts: &[Put<'a>]) -> Vec<Step<'a>> {
    let mut per_table: BTreeMap<TableId, Vec<Put<'a>>> = BTreeMap::new();
    for put in puts {
        per_table.entry(put.key.table).or_default().push(*put);
    }
    per_table
        .into_iter()
        .map(|(table, puts)| upsert(plan, partition, table, &puts))
        .collect()
}

fn upsert<'a>(plan: &'a Plan, partition: &'a str, id: TableId, puts: &[Put<'a>]) -> Step<'a> {
    let (table, sql) = plan.table(id);
    let mut params: Vec<Param<'a>> = vec![
        Box::new(partition),
        Box::new(puts.iter().map(|put| &*put.key.row_id).collect::<Vec<_>>()),
        Box::new(
            puts.iter()
                .map(|put| put.row.server_version)
                .collect::<Vec<_>>(),
        ),
        Box::new(
            puts.iter()
                .map(|put| encode_scopes(&put.row.scopes))
                .collect::<Vec<_>>(),
        ),
        Box::new(
            puts.iter()
                .map(|put| &put.row.payload[..])
                .collect::<Vec<_>>(),
        ),
        Box::new(
            puts.iter()
                .map(|put| put.row.column_versions.as_deref())
                .collect::<Vec<_>>(),
        ),
    ];
    if table.materialize {
        for (ordinal, column) in table.columns.iter().enumerate() {
            let values: Vec<Option<&Value>> =
                puts.iter().map(|put| put.values.get(ordinal)).collect();
            params.push(column_array(column.ty, &values));
        }
    }
    Step {
        sql: &sql.upsert,
        params,
    }
}

/// A column's values as an array; a value that the column cannot hold as NULL.
pub(super) fn column_array<'a>(ty: ColumnType, values: &[Option<&'a Value>]) -> Param<'a> {
    fn each<'a, T>(
        values: &[Option<&'a Value>],
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Vec<Option<T>> {
        values.iter().map(|value| value.and_then(&read)).collect()
    }
    match ty {
        ColumnType::String | ColumnType::BlobRef => Box::new(each(values, |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })),
        ColumnType::Json => Box::new(each(values, |value| match value {
            Value::Text(text) if accepted::jsonb(text) => Some(text.as_str()),
            _ => None,
        })),
        ColumnType::Integer => Box::new(each(values, |value| match value {
            Value::Integer(number) => Some(*number),
            _ => None,
        })),
        ColumnType::Float => Box::new(each(values, |value| match value {
            Value::Float(number) => Some(*number),
            _ => None,
        })),
        ColumnType::Boolean => Box::new(each(values, |value| match value {
            Value::Boolean(flag) => Some(*flag),
            _ => None,
        })),
        ColumnType::Bytes | ColumnType::Crdt => Box::new(each(values, |value| match value {
            Value::Bytes(bytes) => Some(&bytes[..]),
            _ => None,
        })),
    }
}

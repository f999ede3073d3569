//! Group commits as statements: every row of them as arrays, one statement for
//! what every commit has and one per app table. Several partitions' batches may
//! share the arrays, and so the transaction.
//!
//! Every statement writes only where `tidegate.tx` is set, as the transaction's
//! own BEGIN does. Should that BEGIN fail, each statement behind it would be a
//! transaction of its own: then none of them writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ssp2::{ColumnType, Value};
use tidegate_engine::TableId;
use tidegate_engine::model::{
    ClientRecord, CommitBatch, LoggedChange, LoggedCommit, QueuedReaction, RowKey, RowWrite,
    StoredRow,
};
use tidegate_engine::push::encode_push_result;
use tokio_postgres::types::ToSql;

use super::accepted;
use super::connection::Param;
use super::core_schema::{CALL_ADVANCE, CALL_GATE};
use super::plan::Plan;
use crate::error::CommitError;
use crate::stored::{blob_ids, encode_scopes, encode_subscriptions};

/// A statement with its parameters.
pub(super) struct Step<'a> {
    pub(super) sql: &'a str,
    pub(super) params: Vec<Param<'a>>,
}

/// A batch that the database can hold, its results encoded.
pub(super) struct Encoded {
    pub(super) batch: Arc<CommitBatch>,
    results: Vec<String>,
}

/// A row to be put.
#[derive(Clone, Copy)]
pub(super) struct Put<'a> {
    partition: &'a str,
    pub(super) key: &'a RowKey,
    row: &'a StoredRow,
    values: &'a [Value],
    clears_tombstone: bool,
}

/// What every commit has, as one statement: its parts have no row in common.
///
/// A result that somebody else has recorded since is never overwritten: the
/// insert fails, and the batch with it. A rejection moves no sequence number,
/// so the CAS alone does not see it.
const LOG: &str = "WITH commits AS (
 INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
 SELECT u.partition, u.seq, u.client, u.commit, u.actor, u.at, $1
 FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[])
   AS u(partition, seq, client, commit, actor, at)
 WHERE current_setting('tidegate.tx', true)='1'
), changes AS (
 INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
 SELECT u.partition, u.seq, u.idx, u.tbl, u.id, u.op, u.version, u.scopes::jsonb, u.payload
 FROM unnest($8::text[], $9::bigint[], $10::int[], $11::text[], $12::text[], $13::smallint[], $14::bigint[], $15::text[], $16::bytea[])
   AS u(partition, seq, idx, tbl, id, op, version, scopes, payload)
 WHERE current_setting('tidegate.tx', true)='1'
), change_scopes AS (
 INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
 SELECT u.partition, u.tbl, u.var, u.value, u.seq
 FROM unnest($17::text[], $18::text[], $19::text[], $20::text[], $21::bigint[]) AS u(partition, tbl, var, value, seq)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT DO NOTHING
), row_scopes AS (
 INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
 SELECT u.partition, u.tbl, u.var, u.value, u.id
 FROM unnest($22::text[], $23::text[], $24::text[], $25::text[], $26::text[]) AS u(partition, tbl, var, value, id)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT DO NOTHING
)
INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
 SELECT u.partition, u.client, u.commit, u.result::jsonb
 FROM unnest($27::text[], $28::text[], $29::text[], $30::text[]) AS u(partition, client, commit, result)
 WHERE current_setting('tidegate.tx', true)='1'";
/// Entries of rows that their scopes no longer say.
pub(super) const STALE_ROW_SCOPES: &str = "DELETE FROM sync_row_scopes WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT s.ctid FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS k(partition, tbl, id, scopes)
   CROSS JOIN LATERAL (SELECT ctid, var, value FROM sync_row_scopes
     WHERE partition=k.partition AND tbl=k.tbl AND row_id>=k.id AND row_id<=k.id ORDER BY row_id OFFSET 0) AS s
   WHERE (k.scopes::jsonb ->> s.var) IS DISTINCT FROM s.value))";
pub(super) const CLEAR_ROW_SCOPES: &str = "DELETE FROM sync_row_scopes WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT s.ctid FROM unnest($1::text[], $2::text[], $3::text[]) AS k(partition, tbl, id)
   CROSS JOIN LATERAL (SELECT ctid FROM sync_row_scopes
     WHERE partition=k.partition AND tbl=k.tbl AND row_id>=k.id AND row_id<=k.id ORDER BY row_id OFFSET 0) AS s))";
pub(super) const CLEAR_BLOB_REFS: &str = "DELETE FROM sync_blob_refs WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT b.ctid FROM unnest($1::text[], $2::text[], $3::text[]) AS k(partition, tbl, id)
   CROSS JOIN LATERAL (SELECT ctid FROM sync_blob_refs
     WHERE partition=k.partition AND tbl=k.tbl AND row_id>=k.id AND row_id<=k.id ORDER BY row_id OFFSET 0) AS b))";
const BLOB_REFS: &str = "INSERT INTO sync_blob_refs(partition, tbl, row_id, blob_id)
 SELECT u.partition, u.tbl, u.id, u.blob FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS u(partition, tbl, id, blob)
 WHERE current_setting('tidegate.tx', true)='1'";
pub(super) const CLEAR_TOMBSTONES: &str = "DELETE FROM sync_tombstones WHERE current_setting('tidegate.tx', true)='1' AND ctid = ANY(ARRAY(
   SELECT t.ctid FROM unnest($1::text[], $2::text[], $3::text[]) AS k(partition, tbl, id)
   CROSS JOIN LATERAL (SELECT ctid FROM sync_tombstones
     WHERE partition=k.partition AND tbl=k.tbl AND row_id=k.id LIMIT 1) AS t))";
const TOMBSTONES: &str = "INSERT INTO sync_tombstones(partition, tbl, row_id, commit_seq)
 SELECT u.partition, u.tbl, u.id, u.seq FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS u(partition, tbl, id, seq)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT (partition, tbl, row_id) DO UPDATE SET commit_seq=excluded.commit_seq";
/// Pending, never attempted, due at once (§6.9).
const REACTIONS: &str = "INSERT INTO sync_reactions(partition, idempotency_key, type, version, payload, source_client_id, source_client_commit_id, source_commit_seq, created_at_ms, available_at_ms, status, attempts, max_attempts)
 SELECT u.partition, u.key, u.kind, u.version, u.payload::jsonb, u.client, u.commit, u.seq, u.at, u.at, 'pending', 0, u.attempts
 FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::int[])
   AS u(partition, key, kind, version, payload, client, commit, seq, at, attempts)
 WHERE current_setting('tidegate.tx', true)='1'";
/// A record bound to another actor stays as it is.
const CLIENTS: &str = "INSERT INTO sync_clients(partition, client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms)
 SELECT u.partition, u.client, u.actor, u.wire, u.cursor, u.subscriptions::jsonb, u.at
 FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::bigint[])
   AS u(partition, client, actor, wire, cursor, subscriptions, at)
 ON CONFLICT (partition, client_id) DO UPDATE SET
   wire_version=excluded.wire_version, cursor=excluded.cursor,
   subscriptions=excluded.subscriptions, updated_at_ms=excluded.updated_at_ms
 WHERE sync_clients.actor_id=excluded.actor_id";

impl Encoded {
    /// # Errors
    /// [`CommitError::Constraint`] for what the database could not store, found
    /// before it is asked: a text with a NUL.
    pub(super) fn new(plan: &Plan, batch: Arc<CommitBatch>) -> Result<Self, CommitError> {
        if let Some(key) = unstorable(plan, &batch) {
            let key = key.cloned();
            return Err(CommitError::Constraint { key });
        }
        let results: Vec<String> = batch
            .results
            .iter()
            .map(|(_, result)| encode_push_result(result))
            .collect();
        let reactions = batch
            .reactions
            .iter()
            .all(|queued| accepted::jsonb(&queued.planned.payload.to_string()));
        if !reactions || !results.iter().all(|result| accepted::jsonb(result)) {
            return Err(CommitError::Constraint { key: None });
        }
        Ok(Self { batch, results })
    }

    fn partition(&self) -> &str {
        self.batch.partition.as_str()
    }
}

/// The puts of batches.
pub(super) fn puts(all: &[Encoded]) -> Vec<Put<'_>> {
    all.iter().flat_map(|one| batch_puts(&one.batch)).collect()
}

fn batch_puts(batch: &CommitBatch) -> impl Iterator<Item = Put<'_>> {
    batch.rows.iter().filter_map(|write| match write {
        RowWrite::Put {
            key,
            row,
            values,
            clears_tombstone,
        } => Some(Put {
            partition: batch.partition.as_str(),
            key,
            row,
            values,
            clears_tombstone: *clears_tombstone,
        }),
        RowWrite::Delete { .. } => None,
    })
}

/// `Some(None)` when it is in no row.
fn unstorable<'a>(plan: &Plan, batch: &'a CommitBatch) -> Option<Option<&'a RowKey>> {
    let text = accepted::text;
    for put in batch_puts(batch) {
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
    let results = batch
        .results
        .iter()
        .all(|(key, _)| text(key.client_id.as_str()) && text(&key.client_commit_id));
    (!results).then_some(None)
}

/// One parameter: something of each element, as an array.
pub(super) fn array<'a, T, U>(all: &[T], read: impl Fn(&T) -> U) -> Param<'a>
where
    U: ToSql + Sync + Send + fmt::Debug + 'a,
{
    Box::new(all.iter().map(read).collect::<Vec<U>>())
}

/// The gate call. The batches are sorted by partition: every writer takes the rows
/// of several partitions in that order.
pub(super) fn gate(all: &[Encoded]) -> Step<'_> {
    let first = all.first().map(|one| &*one.batch);
    let (partitions, names): (Vec<&str>, Vec<&str>) = first
        .into_iter()
        .flat_map(|batch| batch.declared.iter())
        .map(|(partition, name)| (partition.as_str(), name.as_str()))
        .unzip();
    let each: Vec<&Encoded> = all.iter().collect();
    let count = |one: &&Encoded| i64::try_from(one.batch.commits.len()).unwrap_or(i64::MAX);
    Step {
        sql: CALL_GATE,
        params: vec![
            array(&each, |one| one.partition()),
            array(&each, |one| one.batch.expected_max.0),
            array(&each, count),
            Box::new(first.map_or(0, |batch| i64::from(batch.writer_version.0))),
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
pub(super) fn steps<'a>(plan: &'a Plan, all: &'a [Encoded]) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    steps.extend(all.iter().filter_map(|one| advance(&one.batch)));
    deletes(plan, all, &mut steps);
    let entries = indexes(plan, all, &mut steps);
    steps.push(log(plan, all, &entries));
    steps.extend(reactions(all));
    let records: Vec<(&str, &ClientRecord)> = all
        .iter()
        .flat_map(|one| {
            one.batch
                .clients
                .iter()
                .map(|record| (one.partition(), record))
        })
        .collect();
    if !records.is_empty() {
        steps.push(clients(&records));
    }
    steps
}

fn reactions(all: &[Encoded]) -> Option<Step<'_>> {
    let queued: Vec<(&str, &QueuedReaction)> = all
        .iter()
        .flat_map(|one| {
            let queued = one.batch.reactions.iter();
            queued.map(|reaction| (one.partition(), reaction))
        })
        .collect();
    (!queued.is_empty()).then(|| Step {
        sql: REACTIONS,
        params: vec![
            array(&queued, |(partition, _)| *partition),
            array(&queued, |(_, queued)| queued.idempotency_key.as_str()),
            array(&queued, |(_, queued)| queued.planned.kind.as_str()),
            array(&queued, |(_, queued)| queued.planned.version),
            array(&queued, |(_, queued)| queued.planned.payload.to_string()),
            array(&queued, |(_, queued)| queued.source.client_id.as_str()),
            array(&queued, |(_, queued)| &*queued.source.client_commit_id),
            array(&queued, |(_, queued)| queued.source.seq.0),
            array(&queued, |(_, queued)| queued.source.created_at_ms),
            array(&queued, |(_, queued)| queued.planned.max_attempts),
        ],
    })
}

/// A row's entry in the scope index: partition, table, variable, value, row id.
type ScopeEntry<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

fn log<'a>(plan: &'a Plan, all: &'a [Encoded], row_scopes: &[ScopeEntry<'a>]) -> Step<'a> {
    let commits: Vec<(&str, &LoggedCommit)> = all
        .iter()
        .flat_map(|one| {
            one.batch
                .commits
                .iter()
                .map(|commit| (one.partition(), &**commit))
        })
        .collect();
    let changes: Vec<(&str, i64, i32, &LoggedChange)> = commits
        .iter()
        .flat_map(|(partition, commit)| {
            commit
                .changes
                .iter()
                .zip(0_i32..)
                .map(|(change, n)| (*partition, commit.seq.0, n, change))
        })
        .collect();
    let name = |table: TableId| plan.table(table).0.name.as_str();
    // Sorted: neighbours in the index are inserted together.
    let change_scopes: BTreeSet<(&str, &str, &str, &str, i64)> = changes
        .iter()
        .flat_map(|(partition, seq, _, change)| {
            let table = name(change.key.table);
            change
                .scopes
                .iter()
                .map(move |(variable, value)| (*partition, table, variable, value.as_str(), *seq))
        })
        .collect();
    let change_scopes: Vec<_> = change_scopes.into_iter().collect();
    let results: Vec<_> = all
        .iter()
        .flat_map(|one| {
            let keys = one.batch.results.iter().map(|(key, _)| key);
            keys.zip(&one.results)
                .map(|(key, result)| (one.partition(), key, result.as_str()))
        })
        .collect();
    let version = all.first().map_or(0, |one| one.batch.writer_version.0);
    Step {
        sql: LOG,
        params: vec![
            Box::new(i64::from(version)),
            array(&commits, |(partition, _)| *partition),
            array(&commits, |(_, commit)| commit.seq.0),
            array(&commits, |(_, commit)| commit.client_id.as_str()),
            array(&commits, |(_, commit)| &*commit.client_commit_id),
            array(&commits, |(_, commit)| commit.actor_id.as_str()),
            array(&commits, |(_, commit)| commit.created_at_ms),
            array(&changes, |(partition, ..)| *partition),
            array(&changes, |(_, seq, ..)| *seq),
            array(&changes, |(_, _, n, _)| *n),
            array(&changes, |(.., change)| name(change.key.table)),
            array(&changes, |(.., change)| &*change.key.row_id),
            array(
                &changes,
                |(.., change)| {
                    if change.upsert.is_some() { 1_i16 } else { 2 }
                },
            ),
            array(&changes, |(.., change)| {
                change.upsert.as_ref().map(|(version, _)| *version)
            }),
            array(&changes, |(.., change)| encode_scopes(&change.scopes)),
            array(&changes, |(.., change)| {
                change.upsert.as_ref().map(|(_, payload)| &payload[..])
            }),
            array(&change_scopes, |entry| entry.0),
            array(&change_scopes, |entry| entry.1),
            array(&change_scopes, |entry| entry.2),
            array(&change_scopes, |entry| entry.3),
            array(&change_scopes, |entry| entry.4),
            array(row_scopes, |entry| entry.0),
            array(row_scopes, |entry| entry.1),
            array(row_scopes, |entry| entry.2),
            array(row_scopes, |entry| entry.3),
            array(row_scopes, |entry| entry.4),
            array(&results, |(partition, ..)| *partition),
            array(&results, |(_, key, _)| key.client_id.as_str()),
            array(&results, |(_, key, _)| &*key.client_commit_id),
            array(&results, |(.., result)| *result),
        ],
    }
}

/// Partition, table and row id.
type Key<'a> = (&'a str, &'a str, &'a str);

/// Keys as a statement's arrays.
fn keyed<'a>(sql: &'a str, keys: &[Key<'a>]) -> Option<Step<'a>> {
    if keys.is_empty() {
        return None;
    }
    Some(Step {
        sql,
        params: vec![
            array(keys, |key| key.0),
            array(keys, |key| key.1),
            array(keys, |key| key.2),
        ],
    })
}

fn deletes<'a>(plan: &'a Plan, batches: &'a [Encoded], steps: &mut Vec<Step<'a>>) {
    let mut per_table: BTreeMap<TableId, (Vec<&str>, Vec<&str>)> = BTreeMap::new();
    let (mut all, mut with_blobs, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
    for one in batches {
        for write in &one.batch.rows {
            let RowWrite::Delete { key, tombstone } = write else {
                continue;
            };
            let (table, sql) = plan.table(key.table);
            let (partitions, ids) = per_table.entry(key.table).or_default();
            partitions.push(one.partition());
            ids.push(&*key.row_id);
            let key = (one.partition(), table.name.as_str(), &*key.row_id);
            all.push(key);
            if sql.has_blobs {
                with_blobs.push(key);
            }
            seqs.push(tombstone.0);
        }
    }
    for (table, (partitions, ids)) in per_table {
        steps.push(Step {
            sql: &plan.table(table).1.delete,
            params: vec![Box::new(partitions), Box::new(ids)],
        });
    }
    steps.extend(keyed(CLEAR_ROW_SCOPES, &all));
    steps.extend(keyed(CLEAR_BLOB_REFS, &with_blobs));
    if let Some(mut step) = keyed(TOMBSTONES, &all) {
        step.params.push(Box::new(seqs));
        steps.push(step);
    }
}

/// The puts' entries in the blob index, their tombstones, and what their scopes no
/// longer say; returns what they say now, sorted.
fn indexes<'a>(
    plan: &'a Plan,
    all: &'a [Encoded],
    steps: &mut Vec<Step<'a>>,
) -> Vec<ScopeEntry<'a>> {
    let (mut stale, mut stale_scopes, mut entries) = (Vec::new(), Vec::new(), Vec::new());
    let (mut with_blobs, mut blobs, mut cleared) = (Vec::new(), Vec::new(), Vec::new());
    for put in puts(all) {
        let (table, sql) = plan.table(put.key.table);
        let key = (put.partition, table.name.as_str(), &*put.key.row_id);
        // A row's first version has no entries yet.
        if put.row.server_version > 1 {
            stale.push(key);
            stale_scopes.push(encode_scopes(&put.row.scopes));
        }
        for (variable, value) in put.row.scopes.iter() {
            entries.push((key.0, key.1, variable, value.as_str(), key.2));
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
    if let Some(mut step) = keyed(STALE_ROW_SCOPES, &stale) {
        step.params.push(Box::new(stale_scopes));
        steps.push(step);
    }
    steps.extend(keyed(CLEAR_BLOB_REFS, &with_blobs));
    if !blobs.is_empty() {
        let keys: Vec<Key<'_>> = blobs.iter().map(|(key, _)| *key).collect();
        let ids: Vec<String> = blobs.into_iter().map(|(_, blob)| blob).collect();
        if let Some(mut step) = keyed(BLOB_REFS, &keys) {
            step.params.push(Box::new(ids));
            steps.push(step);
        }
    }
    steps.extend(keyed(CLEAR_TOMBSTONES, &cleared));
    entries.sort_unstable();
    entries
}

/// Client records: each client once, the last record of it, in one order for
/// every writer.
pub(super) fn clients<'a>(records: &[(&'a str, &'a ClientRecord)]) -> Step<'a> {
    let last: BTreeMap<(&str, &str), &ClientRecord> = records
        .iter()
        .filter(|(_, record)| {
            accepted::text(record.client_id.as_str()) && accepted::text(record.actor_id.as_str())
        })
        .map(|(partition, record)| ((*partition, record.client_id.as_str()), *record))
        .collect();
    let (partitions, all): (Vec<&str>, Vec<&ClientRecord>) = last
        .into_iter()
        .map(|((partition, _), record)| (partition, record))
        .unzip();
    Step {
        sql: CLIENTS,
        params: vec![
            Box::new(partitions),
            array(&all, |r| r.client_id.as_str()),
            array(&all, |r| r.actor_id.as_str()),
            array(&all, |r| r.wire_version as i32),
            array(&all, |r| r.cursor),
            array(&all, |r| subscriptions(r)),
            array(&all, |r| r.updated_at_ms),
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
pub(super) fn upserts<'a>(plan: &'a Plan, puts: &[Put<'a>]) -> Vec<Step<'a>> {
    let mut per_table: BTreeMap<TableId, Vec<Put<'a>>> = BTreeMap::new();
    for put in puts {
        per_table.entry(put.key.table).or_default().push(*put);
    }
    per_table
        .into_iter()
        .map(|(table, puts)| upsert(plan, table, &puts))
        .collect()
}

fn upsert<'a>(plan: &'a Plan, id: TableId, puts: &[Put<'a>]) -> Step<'a> {
    let (table, sql) = plan.table(id);
    let mut params: Vec<Param<'a>> = vec![
        array(puts, |put| put.partition),
        array(puts, |put| &*put.key.row_id),
        array(puts, |put| put.row.server_version),
        array(puts, |put| encode_scopes(&put.row.scopes)),
        array(puts, |put| &put.row.payload[..]),
        array(puts, |put| put.row.column_versions.as_deref()),
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

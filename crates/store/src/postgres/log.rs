//! The log's part of group commits: commits, changes, their scope entries, results,
//! reactions, client records.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_engine::TableId;
use tidegate_engine::model::{ClientRecord, LoggedChange, LoggedCommit, QueuedReaction};

use super::accepted;
use super::batch::Encoded;
use super::plan::Plan;
use super::rows::ScopeEntry;
use super::statement::{Step, array};
use crate::stored::{encode_scopes, encode_subscriptions};

const COMMITS: &str = "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
 SELECT u.partition, u.seq, u.client, u.commit, u.actor, u.at, $1
 FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[])
 AS u(partition, seq, client, commit, actor, at)
 WHERE current_setting('tidegate.tx', true)='1'";
const CHANGES: &str = "INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
 SELECT u.partition, u.seq, u.idx, u.tbl, u.id, u.op, u.version, u.scopes::jsonb, u.payload
 FROM unnest($1::text[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::smallint[], $7::bigint[], $8::text[], $9::bytea[])
 AS u(partition, seq, idx, tbl, id, op, version, scopes, payload)
 WHERE current_setting('tidegate.tx', true)='1'";
/// No commit of that number was there before, and each entry comes once.
const CHANGE_SCOPES: &str = "INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
 SELECT u.partition, u.tbl, u.var, u.value, u.seq
 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS u(partition, tbl, var, value, seq)
 WHERE current_setting('tidegate.tx', true)='1'";
/// Entries of rows that were not there before: they have none.
const NEW_ROW_SCOPES: &str = "INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
 SELECT u.partition, u.tbl, u.var, u.value, u.id
 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS u(partition, tbl, var, value, id)
 WHERE current_setting('tidegate.tx', true)='1'";
/// Entries of any rows.
const ROW_SCOPES: &str = "INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
 SELECT u.partition, u.tbl, u.var, u.value, u.id
 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS u(partition, tbl, var, value, id)
 WHERE current_setting('tidegate.tx', true)='1' ON CONFLICT DO NOTHING";
/// A result that somebody else has recorded since is never overwritten: the
/// insert fails, and the batch with it. A rejection moves no sequence number,
/// so the CAS alone does not see it.
const RESULTS: &str =
    "INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
 SELECT u.partition, u.client, u.commit, u.result::jsonb
 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS u(partition, client, commit, result)
 WHERE current_setting('tidegate.tx', true)='1'";
/// The parts of [`log`], in order, and the entries of its rows ([`row_scopes`]).
pub(super) const LOG: [&str; 5] = [COMMITS, CHANGES, CHANGE_SCOPES, RESULTS, ROW_SCOPES];
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

/// What every commit has. Its parts have no row in common.
pub(super) fn log<'a>(plan: &'a Plan, all: &'a [Encoded]) -> Vec<Step<'a>> {
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
    vec![
        Step {
            sql: COMMITS,
            params: vec![
                Box::new(i64::from(version)),
                array(&commits, |(partition, _)| *partition),
                array(&commits, |(_, commit)| commit.seq.0),
                array(&commits, |(_, commit)| commit.client_id.as_str()),
                array(&commits, |(_, commit)| &*commit.client_commit_id),
                array(&commits, |(_, commit)| commit.actor_id.as_str()),
                array(&commits, |(_, commit)| commit.created_at_ms),
            ],
        },
        Step {
            sql: CHANGES,
            params: vec![
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
            ],
        },
        Step {
            sql: CHANGE_SCOPES,
            params: vec![
                array(&change_scopes, |entry| entry.0),
                array(&change_scopes, |entry| entry.1),
                array(&change_scopes, |entry| entry.2),
                array(&change_scopes, |entry| entry.3),
                array(&change_scopes, |entry| entry.4),
            ],
        },
        Step {
            sql: RESULTS,
            params: vec![
                array(&results, |(partition, ..)| *partition),
                array(&results, |(_, key, _)| key.client_id.as_str()),
                array(&results, |(_, key, _)| &*key.client_commit_id),
                array(&results, |(.., result)| *result),
            ],
        },
    ]
}

/// Entries in the index of rows' scopes, each of which may be there already.
pub(super) fn row_scopes<'a>(entries: &[ScopeEntry<'a>]) -> Step<'a> {
    Step {
        sql: ROW_SCOPES,
        params: vec![
            array(entries, |entry| entry.0),
            array(entries, |entry| entry.1),
            array(entries, |entry| entry.2),
            array(entries, |entry| entry.3),
            array(entries, |entry| entry.4),
        ],
    }
}

/// The same of rows that are new. Should one be there all the same, the statement fails.
pub(super) fn new_row_scopes<'a>(entries: &[ScopeEntry<'a>]) -> Step<'a> {
    Step {
        sql: NEW_ROW_SCOPES,
        ..row_scopes(entries)
    }
}

pub(super) fn reactions(all: &[Encoded]) -> Option<Step<'_>> {
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

/// The client records that batches take along.
pub(super) fn batch_clients(all: &[Encoded]) -> Option<Step<'_>> {
    let records: Vec<(&str, &ClientRecord)> = all
        .iter()
        .flat_map(|one| {
            let records = one.batch.clients.iter();
            records.map(|record| (one.partition(), record))
        })
        .collect();
    (!records.is_empty()).then(|| clients(&records))
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

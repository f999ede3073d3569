//! The rows of group commits: their tables, scope and blob indexes, tombstones.

use std::collections::BTreeMap;

use ssp2::{ColumnType, Value};
use tidegate_engine::TableId;
use tidegate_engine::model::{Over, RowWrite};

use super::accepted;
use super::batch::{Encoded, Put, puts};
use super::connection::Param;
use super::plan::Plan;
use super::statement::{Step, array};
use crate::stored::{blob_ids, encode_scopes};

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
/// A row's entry in the scope index: partition, table, variable, value, row id.
pub(super) type ScopeEntry<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

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

/// Deletes, each a statement of its own: what is put may need their place.
pub(super) fn deletes<'a>(plan: &'a Plan, batches: &'a [Encoded]) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
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
    steps
}

/// What puts do to the indexes of rows.
pub(super) struct Indexes<'a> {
    /// What the scopes of rows say that were not there before, sorted.
    pub(super) new: Vec<ScopeEntry<'a>>,
    /// What the scopes of the others say now, sorted.
    pub(super) kept: Vec<ScopeEntry<'a>>,
    /// What their scopes no longer say, and their tombstones: no two of these touch the
    /// same row, nor one that anything else of a batch touches.
    pub(super) outdated: Vec<Step<'a>>,
    /// Their entries in the blob index, one statement after the other.
    pub(super) blobs: Vec<Step<'a>>,
}

pub(super) fn indexes<'a>(plan: &'a Plan, all: &'a [Encoded]) -> Indexes<'a> {
    let (mut new, mut kept) = (Vec::new(), Vec::new());
    let (mut stale, mut stale_scopes) = (Vec::new(), Vec::new());
    let (mut with_blobs, mut blob_refs, mut cleared) = (Vec::new(), Vec::new(), Vec::new());
    for put in puts(all) {
        let (table, sql) = plan.table(put.key.table);
        let key = (put.partition, table.name.as_str(), &*put.key.row_id);
        let scopes = put.row.scopes.iter();
        let entries = scopes.map(|(name, value)| (key.0, key.1, name, value.as_str(), key.2));
        match put.over {
            Over::Row => kept.extend(entries),
            Over::Nothing | Over::Tombstone => new.extend(entries),
        }
        if sql.has_blobs {
            let blobs = blob_ids(table, put.values).into_iter();
            blob_refs.extend(blobs.map(|blob| (key, blob)));
        }
        match put.over {
            Over::Nothing => {}
            Over::Tombstone => cleared.push(key),
            Over::Row => {
                stale.push(key);
                stale_scopes.push(encode_scopes(&put.row.scopes));
                with_blobs.extend(sql.has_blobs.then_some(key));
            }
        }
    }
    let mut outdated = Vec::new();
    if let Some(mut step) = keyed(STALE_ROW_SCOPES, &stale) {
        step.params.push(Box::new(stale_scopes));
        outdated.push(step);
    }
    outdated.extend(keyed(CLEAR_TOMBSTONES, &cleared));
    let mut blobs = Vec::from_iter(keyed(CLEAR_BLOB_REFS, &with_blobs));
    let keys: Vec<Key<'_>> = blob_refs.iter().map(|(key, _)| *key).collect();
    if let Some(mut step) = keyed(BLOB_REFS, &keys) {
        let ids: Vec<String> = blob_refs.into_iter().map(|(_, blob)| blob).collect();
        step.params.push(Box::new(ids));
        blobs.push(step);
    }
    new.sort_unstable();
    kept.sort_unstable();
    Indexes {
        new,
        kept,
        outdated,
        blobs,
    }
}

/// The puts' rows: one statement per table for new ones, one for those that may be there.
pub(super) fn writes<'a>(plan: &'a Plan, puts: &[Put<'a>]) -> Vec<Step<'a>> {
    let mut groups: BTreeMap<(TableId, bool), Vec<Put<'a>>> = BTreeMap::new();
    for put in puts {
        let stored = put.over == Over::Row;
        groups
            .entry((put.key.table, stored))
            .or_default()
            .push(*put);
    }
    groups
        .into_iter()
        .map(|((table, stored), puts)| write(plan, table, stored, &puts))
        .collect()
}

fn write<'a>(plan: &'a Plan, id: TableId, stored: bool, puts: &[Put<'a>]) -> Step<'a> {
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
        sql: if stored { &sql.upsert } else { &sql.insert },
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

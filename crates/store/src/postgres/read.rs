//! What a batch needs, and how stored rows and records are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ssp2::ColumnType;
use tidegate_engine::keys::render_key;
use tidegate_engine::model::{
    ChildRows, ChildrenKey, ClientRecord, Fetched, LogBounds, Needs, ResultKey, ResultLookup,
    RowKey, RowState, StoredRow,
};
use tidegate_engine::push::decode_push_result;
use tidegate_engine::{ActorId, ClientId, CommitSeq, SchemaVersion, TableId};
use tokio_postgres::{Error, Row};

use super::accepted;
use super::connection::{Param, Session, references};
use super::failure::during;
use super::pipeline::in_order;
use super::plan::{Children, Plan};
use crate::error::StoreError;
use crate::preamble::View;
use crate::stored::{decode_scopes, decode_subscriptions, wire_version};

/// Log bounds and layout floor of a partition.
pub(super) const BOUNDS: &str = "SELECT p.max_commit_seq, p.horizon_seq,
 (SELECT max(head_seq) FROM tidegate_layouts WHERE partition=$1)
 FROM (SELECT 1) AS one LEFT JOIN sync_partitions AS p ON p.partition=$1";
pub(super) const HEAD: &str = "SELECT max_commit_seq FROM sync_partitions WHERE partition=$1";
/// Results by `(partition, clients, commit ids)`.
pub(super) const RESULTS: &str = "SELECT k.position, r.result
 FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS k(client, commit, position)
 CROSS JOIN LATERAL (SELECT result::text FROM sync_push_results
   WHERE partition=$1 AND client_id=k.client AND client_commit_id=k.commit LIMIT 1) AS r";
/// Tombstones by `(partition, tables, row ids)`.
pub(super) const TOMBSTONES: &str = "SELECT k.position, t.commit_seq
 FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS k(tbl, id, position)
 CROSS JOIN LATERAL (SELECT commit_seq FROM sync_tombstones
   WHERE partition=$1 AND tbl=k.tbl AND row_id=k.id LIMIT 1) AS t";

pub(super) fn view(row: &Row) -> Result<View, Error> {
    let seq = |at: usize| -> Result<CommitSeq, Error> {
        Ok(CommitSeq(row.try_get::<_, Option<i64>>(at)?.unwrap_or(0)))
    };
    Ok(View {
        bounds: LogBounds {
            max: seq(0)?,
            horizon: seq(1)?,
        },
        layout_floor: seq(2)?,
    })
}

/// A stored version; one that no program of ours counts to is newer than any.
pub(super) fn schema_version(stored: i64) -> SchemaVersion {
    SchemaVersion(i32::try_from(stored).unwrap_or(i32::MAX))
}

/// Columns `client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms` from `at` on.
pub(super) fn client_record(row: &Row, at: usize) -> Result<ClientRecord, Error> {
    let text: &str = row.try_get(at + 4)?;
    let subscriptions = decode_subscriptions(text).unwrap_or_else(|| {
        tracing::warn!("the stored subscriptions of a client are unreadable");
        Vec::new()
    });
    Ok(ClientRecord {
        client_id: ClientId::from(row.try_get::<_, &str>(at)?),
        actor_id: ActorId::from(row.try_get::<_, &str>(at + 1)?),
        wire_version: wire_version(i64::from(row.try_get::<_, i32>(at + 2)?)),
        cursor: row.try_get(at + 3)?,
        subscriptions,
        updated_at_ms: row.try_get(at + 5)?,
    })
}

/// Columns of [`super::plan::ROW`] from `at` on.
pub(super) fn stored_row(row: &Row, at: usize) -> Result<StoredRow, StoreError> {
    let context = "reading a row";
    let scopes: &str = row.try_get(at + 1).map_err(during(context))?;
    let payload: &[u8] = row.try_get(at + 2).map_err(during(context))?;
    let column_versions: Option<&[u8]> = row.try_get(at + 3).map_err(during(context))?;
    Ok(StoredRow {
        server_version: row.try_get(at).map_err(during(context))?,
        scopes: decode_scopes(scopes)?,
        payload: Bytes::copy_from_slice(payload),
        column_versions: column_versions.map(Bytes::copy_from_slice),
    })
}

/// One statement of the read pipeline and what its rows answer.
struct Read<'a> {
    sql: &'a str,
    params: Vec<Param<'a>>,
    answers: Answers<'a>,
}

enum Answers<'a> {
    Head,
    Rows(Vec<&'a RowKey>),
    Tombstones(Vec<&'a RowKey>),
    Results(Vec<&'a ResultKey>),
    /// The children of keys; the row id's column, and the row's after it.
    Children(Vec<&'a ChildrenKey>),
}

/// Reads everything a batch asked for, in one round trip. The head is the first
/// statement: no row can be older than it says. A row may be newer; then the
/// CAS refuses the batch that was decided on it.
pub(super) async fn needs(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    needs: &Needs,
) -> Result<Fetched, StoreError> {
    let context = "reading what a batch needs";
    let reads = reads(plan, partition, needs);
    let statements = session
        .prepare_all(reads.iter().map(|read| read.sql))
        .await
        .map_err(during(context))?;
    let client = &session.client;
    let futures = reads
        .iter()
        .zip(&statements)
        .map(
            |(read, statement)| -> BoxFuture<'_, Result<Vec<Row>, Error>> {
                Box::pin(async move { client.query(statement, &references(&read.params)).await })
            },
        )
        .collect();
    let mut found = Collected::default();
    let mut max = CommitSeq(0);
    for (read, rows) in reads.iter().zip(in_order(futures).await) {
        for row in rows.map_err(during(context))? {
            if let Answers::Head = read.answers {
                max = CommitSeq(row.try_get(0).map_err(during(context))?);
            } else {
                found.take(&read.answers, &row)?;
            }
        }
    }
    let mut fetched = found.answer(needs);
    fetched.max = max;
    for (key, rows) in &mut fetched.children {
        if matches!(plan.children(key), Some(Children::Payload)) && accepted::text(&key.parent_row)
        {
            *rows = payload_children(session, plan, partition, key).await?;
        }
    }
    Ok(fetched)
}

fn reads<'a>(plan: &'a Plan, partition: &'a str, needs: &'a Needs) -> Vec<Read<'a>> {
    let mut reads = vec![Read {
        sql: HEAD,
        params: vec![Box::new(partition)],
        answers: Answers::Head,
    }];
    // The children under a child's primary key are rows like any other.
    let mut tables: BTreeMap<TableId, Vec<&str>> = BTreeMap::new();
    let mut row_keys: BTreeMap<TableId, Vec<&RowKey>> = BTreeMap::new();
    for key in needs.rows.iter().filter(|key| accepted::text(&key.row_id)) {
        row_keys.entry(key.table).or_default().push(key);
        tables.entry(key.table).or_default().push(&key.row_id);
    }
    for (table, ids) in tables {
        let keys = row_keys.remove(&table).unwrap_or_default();
        reads.push(Read {
            sql: &plan.table(table).1.select,
            params: vec![Box::new(partition), Box::new(ids)],
            answers: Answers::Rows(keys),
        });
    }
    let rows: Vec<&RowKey> = needs
        .rows
        .iter()
        .filter(|key| accepted::text(&key.row_id))
        .collect();
    if !rows.is_empty() {
        let names: Vec<&str> = rows
            .iter()
            .map(|key| plan.table(key.table).0.name.as_str())
            .collect();
        let ids: Vec<&str> = rows.iter().map(|key| &*key.row_id).collect();
        reads.push(Read {
            sql: TOMBSTONES,
            params: vec![Box::new(partition), Box::new(names), Box::new(ids)],
            answers: Answers::Tombstones(rows),
        });
    }
    let results: Vec<&ResultKey> = needs
        .results
        .iter()
        .filter(|key| {
            accepted::text(key.client_id.as_str()) && accepted::text(&key.client_commit_id)
        })
        .collect();
    if !results.is_empty() {
        let clients: Vec<&str> = results.iter().map(|key| key.client_id.as_str()).collect();
        let commits: Vec<&str> = results.iter().map(|key| &*key.client_commit_id).collect();
        reads.push(Read {
            sql: RESULTS,
            params: vec![Box::new(partition), Box::new(clients), Box::new(commits)],
            answers: Answers::Results(results),
        });
    }
    let mut groups: BTreeMap<(TableId, u16, u32), Vec<&ChildrenKey>> = BTreeMap::new();
    for key in needs
        .children
        .iter()
        .filter(|key| accepted::text(&key.parent_row))
    {
        groups
            .entry((key.child, key.column, key.limit))
            .or_default()
            .push(key);
    }
    for keys in groups.into_values() {
        reads.extend(children(plan, partition, keys));
    }
    reads
}

fn children<'a>(
    plan: &'a Plan,
    partition: &'a str,
    keys: Vec<&'a ChildrenKey>,
) -> Option<Read<'a>> {
    let first = *keys.first()?;
    let limit = i64::from(first.limit);
    match plan.children(first)? {
        Children::Payload => None,
        Children::PrimaryKey => {
            let ids: Vec<&str> = keys.iter().map(|key| &*key.parent_row).collect();
            Some(Read {
                sql: &plan.table(first.child).1.select,
                params: vec![Box::new(partition), Box::new(ids)],
                answers: Answers::Children(keys),
            })
        }
        Children::Scope { sql, variable } => {
            let parents: Vec<&str> = keys.iter().map(|key| &*key.parent_row).collect();
            Some(Read {
                sql,
                params: vec![
                    Box::new(partition),
                    Box::new(parents),
                    Box::new(limit),
                    Box::new(plan.table(first.child).0.name.as_str()),
                    Box::new(variable.as_str()),
                ],
                answers: Answers::Children(keys),
            })
        }
        Children::Column { sql, ty } => {
            // A parent key that no value of the column renders to has no children.
            let (parents, keys) = parents(*ty, keys);
            Some(Read {
                sql,
                params: vec![Box::new(partition), parents, Box::new(limit)],
                answers: Answers::Children(keys),
            })
        }
    }
}

fn parents(ty: ColumnType, keys: Vec<&ChildrenKey>) -> (Param<'_>, Vec<&ChildrenKey>) {
    match ty {
        ColumnType::Integer => {
            let (numbers, keys): (Vec<i64>, Vec<&ChildrenKey>) = keys
                .into_iter()
                .filter_map(|key| {
                    let number: i64 = key.parent_row.parse().ok()?;
                    (number.to_string() == *key.parent_row).then_some((number, key))
                })
                .unzip();
            (Box::new(numbers), keys)
        }
        ColumnType::Boolean => {
            let (flags, keys): (Vec<bool>, Vec<&ChildrenKey>) = keys
                .into_iter()
                .filter_map(|key| match &*key.parent_row {
                    "true" => Some((true, key)),
                    "false" => Some((false, key)),
                    _ => None,
                })
                .unzip();
            (Box::new(flags), keys)
        }
        _ => {
            let texts: Vec<&str> = keys.iter().map(|key| &*key.parent_row).collect();
            (Box::new(texts), keys)
        }
    }
}

/// Rows as they come, by key.
#[derive(Default)]
struct Collected<'a> {
    rows: BTreeMap<&'a RowKey, Arc<StoredRow>>,
    tombstones: BTreeMap<&'a RowKey, CommitSeq>,
    results: BTreeMap<&'a ResultKey, ResultLookup>,
    children: BTreeMap<&'a ChildrenKey, ChildRows>,
}

impl<'a> Collected<'a> {
    fn take(&mut self, answers: &Answers<'a>, row: &Row) -> Result<(), StoreError> {
        let context = "reading what a batch needs";
        let position: i64 = row.try_get(0).map_err(during(context))?;
        let at = usize::try_from(position - 1).unwrap_or(usize::MAX);
        let lost = StoreError::Corrupt {
            what: "an answer's position",
        };
        match answers {
            Answers::Head => {}
            Answers::Rows(keys) => {
                let key = keys.get(at).ok_or(lost)?;
                self.rows.insert(key, Arc::new(stored_row(row, 1)?));
            }
            Answers::Tombstones(keys) => {
                let key = keys.get(at).ok_or(lost)?;
                let seq = row.try_get(1).map_err(during(context))?;
                self.tombstones.insert(key, CommitSeq(seq));
            }
            Answers::Results(keys) => {
                let key = keys.get(at).ok_or(lost)?;
                let text: &str = row.try_get(1).map_err(during(context))?;
                let found = decode_push_result(text).map_or(ResultLookup::Unreadable, |result| {
                    ResultLookup::Found(Arc::new(result))
                });
                self.results.insert(key, found);
            }
            Answers::Children(keys) => {
                let key = keys.get(at).ok_or(lost)?;
                // By primary key there is no row id among the columns: it is the parent's.
                let (row_id, start) = if row.len() == 5 {
                    (Arc::clone(&key.parent_row), 1)
                } else {
                    let row_id: &str = row.try_get(1).map_err(during(context))?;
                    (row_id.into(), 2)
                };
                let child = RowKey {
                    table: key.child,
                    row_id,
                };
                self.children
                    .entry(key)
                    .or_default()
                    .push((child, Arc::new(stored_row(row, start)?)));
            }
        }
        Ok(())
    }

    /// One entry per key that was asked for.
    fn answer(mut self, needs: &Needs) -> Fetched {
        let rows = needs.rows.iter().map(|key| {
            let state = match self.rows.remove(key) {
                Some(row) => RowState::Present(row),
                None => RowState::Absent {
                    tombstone: self.tombstones.remove(key),
                },
            };
            (key.clone(), state)
        });
        let rows = rows.collect();
        let results = needs.results.iter().map(|key| {
            let found = self.results.remove(key);
            (key.clone(), found.unwrap_or(ResultLookup::Absent))
        });
        let results = results.collect();
        let children = needs.children.iter().map(|key| {
            let mut rows = self.children.remove(key).unwrap_or_default();
            rows.sort_by(|(a, _), (b, _)| a.row_id.cmp(&b.row_id));
            (key.clone(), rows)
        });
        Fetched {
            max: CommitSeq(0),
            rows,
            results,
            children: children.collect(),
        }
    }
}

/// Rows per page of a walk.
const WALK_PAGE: i64 = 1000;

async fn payload_children(
    session: &mut Session,
    plan: &Plan,
    partition: &str,
    key: &ChildrenKey,
) -> Result<ChildRows, StoreError> {
    let context = "reading child rows";
    let (table, sql) = plan.table(key.child);
    let mut found = ChildRows::new();
    let mut after: Option<String> = None;
    loop {
        let page = match &after {
            None => {
                session
                    .query(&sql.walk_start, &[&partition, &WALK_PAGE])
                    .await
            }
            Some(after) => {
                session
                    .query(&sql.walk, &[&partition, after, &WALK_PAGE])
                    .await
            }
        };
        let page = page.map_err(during(context))?;
        let Some(last) = page.last() else { break };
        after = Some(last.try_get(0).map_err(during(context))?);
        for row in &page {
            let stored = stored_row(row, 1)?;
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
                let row_id: &str = row.try_get(0).map_err(during(context))?;
                let child = RowKey {
                    table: key.child,
                    row_id: row_id.into(),
                };
                found.push((child, Arc::new(stored)));
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.row_id.cmp(&b.row_id));
    found.truncate(usize::try_from(key.limit).unwrap_or(usize::MAX));
    Ok(found)
}

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
use super::statement::{Reading, array, offsets};
use crate::error::StoreError;
use crate::preamble::View;
use crate::stored::{decode_scopes, decode_subscriptions, wire_version};

/// Log bounds and layout floor of a partition.
pub(super) const BOUNDS: &str = "SELECT p.max_commit_seq, p.horizon_seq,
 (SELECT max(head_seq) FROM tidegate_layouts WHERE partition=$1)
 FROM (SELECT 1) AS one LEFT JOIN sync_partitions AS p ON p.partition=$1";
/// What every batch needs, as one statement: a head for each partition, results by
/// their keys, tombstones by theirs.
pub(super) const NEEDS: &str = "SELECT 0, k.position, p.max_commit_seq, NULL::text
 FROM unnest($1::text[]) WITH ORDINALITY AS k(partition, position)
 CROSS JOIN LATERAL (SELECT max_commit_seq FROM sync_partitions
   WHERE partition=k.partition LIMIT 1) AS p
 UNION ALL SELECT 1, k.position, NULL, r.result
 FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k(partition, client, commit, position)
 CROSS JOIN LATERAL (SELECT result::text FROM sync_push_results
   WHERE partition=k.partition AND client_id=k.client AND client_commit_id=k.commit LIMIT 1) AS r
 UNION ALL SELECT 2, k.position, t.commit_seq, NULL
 FROM unnest($5::text[], $6::text[], $7::text[]) WITH ORDINALITY AS k(partition, tbl, id, position)
 CROSS JOIN LATERAL (SELECT commit_seq FROM sync_tombstones
   WHERE partition=k.partition AND tbl=k.tbl AND row_id=k.id LIMIT 1) AS t";

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

const CONTEXT: &str = "reading what a batch needs";

/// What one partition's batch asks for.
pub(super) type Asked<'a> = (&'a str, &'a Needs);

/// A key with the place of its question among those read together.
type Placed<'a, K> = (usize, &'a K);

/// One statement of the read pipeline and what its rows answer.
struct Read<'a> {
    sql: &'a str,
    params: Vec<Param<'a>>,
    answers: Answers<'a>,
}

enum Answers<'a> {
    /// Heads in the order of the questions, results and tombstones by key.
    Needs {
        results: Vec<Placed<'a, ResultKey>>,
        tombstones: Vec<Placed<'a, RowKey>>,
    },
    Rows(Vec<Placed<'a, RowKey>>),
    /// The children of keys; the row id's column, and the row's after it.
    Children(Vec<Placed<'a, ChildrenKey>>),
}

/// Reads everything that batches of different partitions asked for, in one round
/// trip; one answer per question. The heads come with the first statement: no row
/// can be older than its head says. A row may be newer; then the CAS refuses the
/// batch that was decided on it.
pub(super) async fn needs(
    session: &mut Session,
    plan: &Plan,
    asked: &[Asked<'_>],
) -> Result<Vec<Fetched>, StoreError> {
    let reads = reads(plan, asked);
    let steps = reads.iter().map(|read| (read.sql, &*read.params));
    let answers = pipelined(session, steps).await?;
    let found = collect(asked, &reads, answers)?;
    let mut all = Vec::with_capacity(asked.len());
    for (found, (partition, needs)) in found.into_iter().zip(asked) {
        let mut fetched = found.answer(needs);
        for (key, rows) in &mut fetched.children {
            if matches!(plan.children(key), Some(Children::Payload))
                && accepted::text(&key.parent_row)
            {
                *rows = payload_children(session, plan, partition, key).await?;
            }
        }
        all.push(fetched);
    }
    Ok(all)
}

/// [`needs`] together with another statement, in one statement, or at least in one round
/// trip. Nobody asks for children here.
pub(super) async fn with_needs(
    session: &mut Session,
    plan: &Plan,
    first: Reading<'_>,
    first_params: &[Param<'_>],
    asked: &[Asked<'_>],
) -> Result<First, StoreError> {
    let reads = if asked.is_empty() {
        Vec::new()
    } else {
        reads(plan, asked)
    };
    let parts: Vec<Reading<'_>> = std::iter::once(first)
        .chain(reads.iter().map(|read| Reading {
            sql: read.sql,
            types: read.answers.types(),
        }))
        .collect();
    let united = match parts.len() {
        2..=MOST_UNITED => plan.united(&parts),
        _ => None,
    };
    let offset = usize::from(united.is_some());
    let (rows, found) = if let Some(sql) = united {
        let mut params = references(first_params);
        params.extend(reads.iter().flat_map(|read| references(&read.params)));
        let all = session
            .query(&sql, &params)
            .await
            .map_err(during(CONTEXT))?;
        apart(asked, &reads, &offsets(&parts), all)?
    } else {
        let steps = std::iter::once((first.sql, first_params))
            .chain(reads.iter().map(|read| (read.sql, &*read.params)));
        let mut answers = pipelined(session, steps).await?.into_iter();
        let rows = answers.next().unwrap_or_default();
        (rows, collect(asked, &reads, answers)?)
    };
    let fetched = found.into_iter().zip(asked);
    let fetched = fetched.map(|(found, (_, needs))| found.answer(needs));
    Ok(First {
        rows,
        offset,
        fetched: fetched.collect(),
    })
}

/// Statements that are united into one, at most.
const MOST_UNITED: usize = 8;

/// What came of reading needs together with another statement.
pub(super) struct First {
    /// The other statement's rows.
    pub(super) rows: Vec<Row>,
    /// Where their columns begin.
    pub(super) offset: usize,
    pub(super) fetched: Vec<Fetched>,
}

/// The rows of the first of united statements, whose columns begin at 1, and what the
/// others read.
fn apart<'a>(
    asked: &[Asked<'a>],
    reads: &[Read<'a>],
    offsets: &[usize],
    all: Vec<Row>,
) -> Result<(Vec<Row>, Vec<Collected<'a>>), StoreError> {
    let misplaced = || StoreError::Corrupt {
        what: "an answer's part",
    };
    let mut found: Vec<Collected<'a>> = asked.iter().map(|_| Collected::default()).collect();
    let mut first = Vec::new();
    for row in all {
        let part: i32 = row.try_get(0).map_err(during(CONTEXT))?;
        let part = usize::try_from(part).map_err(|_| misplaced())?;
        let Some(read) = part.checked_sub(1) else {
            first.push(row);
            continue;
        };
        let answers = &reads.get(read).ok_or_else(misplaced)?.answers;
        let offset = *offsets.get(part).ok_or_else(misplaced)?;
        take(&mut found, answers, &row, offset)?;
    }
    Ok((first, found))
}

impl Answers<'_> {
    fn types(&self) -> &'static [&'static str] {
        match self {
            Self::Needs { .. } => &["int", "bigint", "bigint", "text"],
            Self::Rows(_) => &["bigint", "bigint", "text", "bytea", "bytea"],
            // They are not read together with others.
            Self::Children(_) => &[],
        }
    }
}

/// The rows of statements that are sent together.
async fn pipelined<'a>(
    session: &mut Session,
    steps: impl Iterator<Item = (&'a str, &'a [Param<'a>])> + Clone,
) -> Result<Vec<Vec<Row>>, StoreError> {
    let statements = session
        .prepare_all(steps.clone().map(|(sql, _)| sql))
        .await
        .map_err(during(CONTEXT))?;
    let client = &session.client;
    let futures = steps
        .zip(&statements)
        .map(
            |((_, params), statement)| -> BoxFuture<'_, Result<Vec<Row>, Error>> {
                Box::pin(async move { client.query(statement, &references(params)).await })
            },
        )
        .collect();
    in_order(futures)
        .await
        .into_iter()
        .map(|rows| rows.map_err(during(CONTEXT)))
        .collect()
}

fn collect<'a>(
    asked: &[Asked<'a>],
    reads: &[Read<'a>],
    answers: impl IntoIterator<Item = Vec<Row>>,
) -> Result<Vec<Collected<'a>>, StoreError> {
    let mut found: Vec<Collected<'a>> = asked.iter().map(|_| Collected::default()).collect();
    for (read, rows) in reads.iter().zip(answers) {
        for row in rows {
            take(&mut found, &read.answers, &row, 0)?;
        }
    }
    Ok(found)
}

fn reads<'a>(plan: &'a Plan, asked: &[Asked<'a>]) -> Vec<Read<'a>> {
    let partition_of = |at: usize| asked.get(at).map_or("", |(partition, _)| *partition);
    let every = || asked.iter().map(|(_, needs)| *needs).enumerate();
    let rows: Vec<Placed<'a, RowKey>> = every()
        .flat_map(|(at, needs)| needs.rows.iter().map(move |key| (at, key)))
        .filter(|(_, key)| accepted::text(&key.row_id))
        .collect();
    let results: Vec<Placed<'a, ResultKey>> = every()
        .flat_map(|(at, needs)| needs.results.iter().map(move |key| (at, key)))
        .filter(|(_, key)| {
            accepted::text(key.client_id.as_str()) && accepted::text(&key.client_commit_id)
        })
        .collect();
    let mut reads = vec![Read {
        sql: NEEDS,
        params: vec![
            array(asked, |(partition, _)| *partition),
            array(&results, |(at, _)| partition_of(*at)),
            array(&results, |(_, key)| key.client_id.as_str()),
            array(&results, |(_, key)| &*key.client_commit_id),
            array(&rows, |(at, _)| partition_of(*at)),
            array(&rows, |(_, key)| plan.table(key.table).0.name.as_str()),
            array(&rows, |(_, key)| &*key.row_id),
        ],
        answers: Answers::Needs {
            results,
            tombstones: rows.clone(),
        },
    }];
    let mut tables: BTreeMap<TableId, Vec<Placed<'a, RowKey>>> = BTreeMap::new();
    for (at, key) in rows {
        tables.entry(key.table).or_default().push((at, key));
    }
    for (table, keys) in tables {
        reads.push(Read {
            sql: &plan.table(table).1.select,
            params: vec![
                array(&keys, |(at, _)| partition_of(*at)),
                array(&keys, |(_, key)| &*key.row_id),
            ],
            answers: Answers::Rows(keys),
        });
    }
    for (at, (partition, needs)) in asked.iter().enumerate() {
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
            reads.extend(children(plan, partition, at, keys));
        }
    }
    reads
}

fn children<'a>(
    plan: &'a Plan,
    partition: &'a str,
    at: usize,
    keys: Vec<&'a ChildrenKey>,
) -> Option<Read<'a>> {
    let first = *keys.first()?;
    let limit = i64::from(first.limit);
    let placed = |keys: Vec<&'a ChildrenKey>| {
        Answers::Children(keys.into_iter().map(|key| (at, key)).collect())
    };
    match plan.children(first)? {
        Children::Payload => None,
        Children::PrimaryKey => {
            let ids: Vec<&str> = keys.iter().map(|key| &*key.parent_row).collect();
            Some(Read {
                sql: &plan.table(first.child).1.select,
                params: vec![Box::new(vec![partition; ids.len()]), Box::new(ids)],
                answers: placed(keys),
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
                answers: placed(keys),
            })
        }
        Children::Column { sql, ty } => {
            // A parent key that no value of the column renders to has no children.
            let (parents, keys) = parents(*ty, keys);
            Some(Read {
                sql,
                params: vec![Box::new(partition), parents, Box::new(limit)],
                answers: placed(keys),
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
    max: CommitSeq,
    rows: BTreeMap<&'a RowKey, Arc<StoredRow>>,
    tombstones: BTreeMap<&'a RowKey, CommitSeq>,
    results: BTreeMap<&'a ResultKey, ResultLookup>,
    children: BTreeMap<&'a ChildrenKey, ChildRows>,
}

/// Takes one row of an answer to where it was asked for.
fn take<'a>(
    found: &mut [Collected<'a>],
    answers: &Answers<'a>,
    row: &Row,
    offset: usize,
) -> Result<(), StoreError> {
    let lost = || StoreError::Corrupt {
        what: "an answer's position",
    };
    let place = |column: usize| -> Result<usize, StoreError> {
        let position: i64 = row.try_get(offset + column).map_err(during(CONTEXT))?;
        usize::try_from(position - 1).map_err(|_| lost())
    };
    match answers {
        Answers::Needs {
            results,
            tombstones,
        } => {
            let at = place(1)?;
            let seq = || {
                let seq = row.try_get(offset + 2);
                seq.map(CommitSeq).map_err(during(CONTEXT))
            };
            match row.try_get::<_, i32>(offset).map_err(during(CONTEXT))? {
                0 => found.get_mut(at).ok_or_else(lost)?.max = seq()?,
                1 => {
                    let (at, key) = results.get(at).ok_or_else(lost)?;
                    let text: &str = row.try_get(offset + 3).map_err(during(CONTEXT))?;
                    let result = decode_push_result(text)
                        .map_or(ResultLookup::Unreadable, |result| {
                            ResultLookup::Found(Arc::new(result))
                        });
                    let of = found.get_mut(*at).ok_or_else(lost)?;
                    of.results.insert(key, result);
                }
                _ => {
                    let (at, key) = tombstones.get(at).ok_or_else(lost)?;
                    let of = found.get_mut(*at).ok_or_else(lost)?;
                    of.tombstones.insert(key, seq()?);
                }
            }
        }
        Answers::Rows(keys) => {
            let (at, key) = keys.get(place(0)?).ok_or_else(lost)?;
            let of = found.get_mut(*at).ok_or_else(lost)?;
            of.rows.insert(key, Arc::new(stored_row(row, offset + 1)?));
        }
        Answers::Children(keys) => {
            let (at, key) = keys.get(place(0)?).ok_or_else(lost)?;
            // By primary key there is no row id among the columns: it is the parent's.
            let (row_id, start) = if row.len() == 5 {
                (Arc::clone(&key.parent_row), 1)
            } else {
                let row_id: &str = row.try_get(1).map_err(during(CONTEXT))?;
                (row_id.into(), 2)
            };
            let child = RowKey {
                table: key.child,
                row_id,
            };
            let of = found.get_mut(*at).ok_or_else(lost)?;
            of.children
                .entry(key)
                .or_default()
                .push((child, Arc::new(stored_row(row, start)?)));
        }
    }
    Ok(())
}

impl Collected<'_> {
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
            max: self.max,
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

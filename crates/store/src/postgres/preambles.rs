//! Preambles and gate tokens for many requests at once. Requests that wait at the
//! same time share one statement, so one view and one round trip: each partition's
//! token and bounds are read once for all of them. The statement is sent only after
//! the last request that it answers has asked, so every answer is as fresh as a
//! read of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bb8::Pool;
use tidegate_engine::gate::{GateToken, PendingCheckpoint};
use tidegate_engine::model::{ClientRecord, LogBounds, Needs, Registry};
use tidegate_engine::{CommitSeq, LogEpoch};
use tokio::sync::oneshot;
use tokio_postgres::{Error, Row};

use super::accepted;
use super::connection::{Manager, Param, Session};
use super::driver::Driver;
use super::failure::during;
use super::plan::Plan;
use super::read::{self as read, client_record, schema_version};
use super::statement::Reading;
use super::turns::{Turns, patiently};
use super::writer::lost;
use crate::error::StoreError;
use crate::preamble::{AHEAD_KEYS, Found, View, keys};

/// Parameters: running version, partitions, then partitions and clients as pairs.
/// A partition's row has its position among the partitions, a client's the negative
/// of its position among the pairs.
pub(super) const PREAMBLES: &str = "SELECT k.position, p.max_commit_seq, p.horizon_seq,
 (SELECT max(l.head_seq) FROM tidegate_layouts AS l WHERE l.partition=k.partition),
 (SELECT schema_version FROM sync_schema_meta WHERE id=1),
 (SELECT json_agg(json_build_array(partition, name))::text FROM sync_backfill_checkpoints
  WHERE schema_version=$1::bigint AND state <> 'activated'),
 r.log_epoch, r.epoch_required, r.last_authenticated_at_ms,
 NULL::text, NULL::text, NULL::int, NULL::bigint, NULL::text, NULL::bigint
 FROM unnest($2::text[]) WITH ORDINALITY AS k(partition, position)
 LEFT JOIN LATERAL (SELECT max_commit_seq, horizon_seq FROM sync_partitions
   WHERE partition=k.partition LIMIT 1) AS p ON true
 LEFT JOIN LATERAL (SELECT log_epoch, epoch_required, last_authenticated_at_ms
   FROM sync_partition_registry WHERE partition=k.partition LIMIT 1) AS r ON true
 UNION ALL
 SELECT -k.position, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
 c.client_id, c.actor_id, c.wire_version, c.cursor, c.subscriptions::text, c.updated_at_ms
 FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS k(partition, client, position)
 CROSS JOIN LATERAL (SELECT client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms
   FROM sync_clients WHERE partition=k.partition AND client_id=k.client LIMIT 1) AS c";

/// The types of its columns.
const COLUMNS: [&str; 15] = [
    "bigint", "bigint", "bigint", "bigint", "bigint", "text", "text", "boolean", "bigint", "text",
    "text", "int", "bigint", "text", "bigint",
];

const CONTEXT: &str = "reading a preamble";
/// A read that takes longer no longer holds up the next one.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a request wants to know.
pub(super) struct Question {
    /// Of the running version.
    pub(super) plan: Arc<Plan>,
    pub(super) partition: String,
    /// `None` for the gate alone.
    pub(super) client: Option<String>,
    /// What is read along for the request's commits.
    pub(super) ahead: Needs,
}

struct Waiting {
    question: Question,
    reply: oneshot::Sender<Result<Found, StoreError>>,
}

/// The requests that no statement was sent for yet.
#[derive(Clone)]
pub(super) struct Preambles(Arc<Turns<Waiting>>);

impl Preambles {
    pub(super) fn new() -> Self {
        // One at a time: what arrives meanwhile makes the next one worth its trip.
        Self(Turns::new(1))
    }

    /// Reads a preamble on a connection of `pool`.
    pub(super) async fn read(
        &self,
        driver: &Driver,
        pool: Pool<Manager>,
        question: Question,
    ) -> Result<Found, StoreError> {
        let (reply, answer) = oneshot::channel();
        if let Some(mut turn) = self.0.ask(Waiting { question, reply }) {
            driver.spawn(async move {
                while let Some(waiting) = turn.next() {
                    let pool = pool.clone();
                    patiently(PATIENCE, async move { serve(&pool, waiting).await }).await;
                }
            });
        }
        answer.await.map_err(|_| lost())?
    }
}

async fn serve(pool: &Pool<Manager>, mut waiting: Vec<Waiting>) {
    waiting.retain(|request| !request.reply.is_closed());
    // One version runs but for the moment of a schema's change.
    while let Some(first) = waiting.first() {
        let plan = Arc::clone(&first.question.plan);
        let (these, others) = waiting
            .into_iter()
            .partition(|request| Arc::ptr_eq(&request.question.plan, &plan));
        waiting = others;
        serve_version(pool, &plan, these).await;
    }
}

async fn serve_version(pool: &Pool<Manager>, plan: &Plan, waiting: Vec<Waiting>) {
    let (questions, replies): (Vec<Question>, Vec<_>) = waiting
        .into_iter()
        .map(|request| (request.question, request.reply))
        .unzip();
    let mut lease = match super::take(pool).await {
        Ok(lease) => lease,
        Err(error) => return refuse(replies, error),
    };
    match read(&mut lease, plan, &questions).await {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                // A caller that hung up is not told.
                let _ = reply.send(Ok(answer));
            }
        }
        Err(error @ (StoreError::Unavailable(_) | StoreError::Closed)) => refuse(replies, error),
        // A failure of the shared statements is nobody's own: each reads for itself, and
        // nothing ahead, which may have been what failed.
        Err(_) => {
            for (reply, mut question) in replies.into_iter().zip(questions) {
                question.ahead = Needs::default();
                let answer = read(&mut lease, plan, std::slice::from_ref(&question)).await;
                let one = answer.and_then(|all| all.into_iter().next().ok_or_else(lost));
                let _ = reply.send(one);
            }
        }
    }
}

/// All of them are told of the same failure.
fn refuse(replies: Vec<oneshot::Sender<Result<Found, StoreError>>>, error: StoreError) {
    let cause = Arc::new(error);
    for reply in replies {
        let _ = reply.send(Err(StoreError::Unavailable(Box::new(Arc::clone(&cause)))));
    }
}

/// One answer per question, in order.
pub(super) async fn read(
    session: &mut Session,
    plan: &Plan,
    questions: &[Question],
) -> Result<Vec<Found>, StoreError> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut partitions: Vec<&str> = Vec::new();
    for question in questions {
        places.entry(&question.partition).or_insert_with(|| {
            partitions.push(&question.partition);
            partitions.len() - 1
        });
    }
    let mut asked: HashMap<(&str, &str), usize> = HashMap::new();
    let (mut client_partitions, mut clients): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for question in questions {
        let Some(client) = known_client(question) else {
            continue;
        };
        asked
            .entry((&question.partition, client))
            .or_insert_with(|| {
                client_partitions.push(&question.partition);
                clients.push(client);
                clients.len() - 1
            });
    }
    let preambles = Reading {
        sql: PREAMBLES,
        types: &COLUMNS,
    };
    let params: [Param<'_>; 4] = [
        Box::new(i64::from(plan.version().0)),
        Box::new(partitions.clone()),
        Box::new(client_partitions),
        Box::new(clients.clone()),
    ];
    let ahead = read_ahead(questions);
    let wanted: Vec<read::Asked<'_>> = ahead.iter().flatten().copied().collect();
    let first = read::with_needs(session, plan, preambles, &params, &wanted).await?;
    let (rows, offset) = (first.rows, first.offset);
    let mut fetched = first.fetched.into_iter();
    let mut found: Vec<Option<Found>> = vec![None; partitions.len()];
    let mut records: Vec<Option<ClientRecord>> = vec![None; clients.len()];
    for row in &rows {
        let position: i64 = row.try_get(offset).map_err(during(CONTEXT))?;
        let at = usize::try_from(position.unsigned_abs() - 1).unwrap_or(usize::MAX);
        let misplaced = StoreError::Corrupt { what: "a preamble" };
        if position > 0 {
            *found.get_mut(at).ok_or(misplaced)? = Some(partition(row, offset)?);
        } else {
            let record = client_record(row, offset + 9).map_err(during(CONTEXT))?;
            *records.get_mut(at).ok_or(misplaced)? = Some(record);
        }
    }
    questions
        .iter()
        .zip(ahead)
        .map(|(question, ahead)| {
            let shared = places
                .get(&*question.partition)
                .and_then(|at| found.get(*at)?.clone())
                .ok_or(StoreError::Corrupt { what: "a preamble" })?;
            let client = known_client(question)
                .and_then(|client| asked.get(&(&*question.partition, client)))
                .and_then(|at| records.get(*at)?.clone());
            Ok(Found {
                client,
                ahead: ahead.and_then(|_| fetched.next()),
                ..shared
            })
        })
        .collect()
}

/// What is read ahead for each question, as much as one trip may read.
fn read_ahead(questions: &[Question]) -> Vec<Option<read::Asked<'_>>> {
    let mut left = AHEAD_KEYS;
    questions
        .iter()
        .map(|question| {
            let keys = keys(&question.ahead);
            let taken = keys > 0 && keys <= left;
            left -= if taken { keys } else { 0 };
            taken.then_some((&*question.partition, &question.ahead))
        })
        .collect()
}

/// An id that the database could hold.
fn known_client(question: &Question) -> Option<&str> {
    question.client.as_deref().filter(|id| accepted::text(id))
}

fn partition(row: &Row, offset: usize) -> Result<Found, StoreError> {
    let read = || -> Result<Found, Error> {
        let seq = |at: usize| -> Result<CommitSeq, Error> {
            let seq = row.try_get::<_, Option<i64>>(offset + at)?;
            Ok(CommitSeq(seq.unwrap_or(0)))
        };
        let log_epoch = row
            .try_get::<_, Option<&str>>(offset + 6)?
            .map(LogEpoch::from);
        let registry = match &log_epoch {
            Some(epoch) => {
                let registry = Registry {
                    log_epoch: epoch.clone(),
                    epoch_required: row.try_get(offset + 7)?,
                };
                Some((registry, row.try_get(offset + 8)?))
            }
            None => None,
        };
        let stored = row.try_get::<_, Option<i64>>(offset + 4)?.unwrap_or(0);
        Ok(Found {
            view: View {
                bounds: LogBounds {
                    max: seq(1)?,
                    horizon: seq(2)?,
                },
                layout_floor: seq(3)?,
            },
            gate: GateToken {
                stored_version: schema_version(stored),
                log_epoch,
                pending: Vec::new(),
            },
            registry,
            client: None,
            ahead: None,
        })
    };
    let mut found = read().map_err(during(CONTEXT))?;
    let pending = row.try_get::<_, Option<&str>>(offset + 5);
    if let Some(pending) = pending.map_err(during(CONTEXT))? {
        found.gate.pending = decode_pending(pending)?;
    }
    Ok(found)
}

pub(super) fn decode_pending(json: &str) -> Result<Vec<PendingCheckpoint>, StoreError> {
    let pairs: Vec<(String, String)> =
        serde_json::from_str(json).map_err(|_| StoreError::Corrupt {
            what: "the list of pending checkpoints",
        })?;
    let mut pending: Vec<PendingCheckpoint> = pairs
        .into_iter()
        .map(|(partition, name)| PendingCheckpoint { partition, name })
        .collect();
    pending.sort();
    Ok(pending)
}

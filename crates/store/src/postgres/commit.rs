//! The write of a group commit, in one network round trip (docs/postgres.md): as one
//! statement that is the whole transaction, or, for rarer kinds of batches, as BEGIN, the
//! gate, every statement and COMMIT.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::LogBounds;
use tidegate_engine::{CommitSeq, LogEpoch};
use tokio_postgres::{Error, Row, Statement};

use super::batch::{self, Chained, Encoded, Put, Written};
use super::connection::{Session, is_echo, references};
use super::core_schema::{BEGIN, GATE};
use super::failure::{commit_error, during, ended_session, is_row_constraint};
use super::pipeline::in_order;
use super::plan::Plan;
use super::preambles::decode_pending;
use super::rows;
use super::statement::Step;
use crate::Passed;
use crate::error::CommitError;
use crate::failpoint::pausing_failpoint;

const CONTEXT: &str = "writing a batch";

/// Whose transaction it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transaction {
    /// A new one.
    Fresh,
    /// A locked partition's, open already.
    Open,
}

/// Writes one batch in the open transaction of a locked partition; when this returns, no
/// transaction is open on the session, or the session is in doubt.
pub(super) async fn write_locked(
    session: &mut Session,
    plan: &Plan,
    one: &Encoded,
) -> Result<(), CommitError> {
    let written = Written::new(plan, std::slice::from_ref(one));
    match pipelined(session, plan, written.steps(plan), Transaction::Open).await {
        Err(CommitError::Constraint { .. }) => row_by_row(session, plan, one).await,
        outcome => outcome,
    }
}

/// Writes batches of different partitions, sorted by partition, as one transaction:
/// all of them or none. As [`write_locked`] otherwise.
pub(super) async fn write_together(
    session: &mut Session,
    plan: &Plan,
    all: &[Encoded],
) -> Result<Option<Vec<Passed>>, CommitError> {
    match Whole::new(plan, all) {
        Ok(whole) => {
            let sent = whole.send(session, Chained::default(), || Some(())).await;
            // Not sent is not written.
            sent.unwrap_or(Err(CommitError::Unfounded))
        }
        Err(written) => {
            pipelined(session, plan, written.steps(plan), Transaction::Fresh).await?;
            Ok(None)
        }
    }
}

/// Batches as one statement, which is a transaction by itself.
pub(super) struct Whole<'a> {
    plan: &'a Plan,
    all: &'a [Encoded],
    sql: Arc<str>,
    parts: Vec<Step<'a>>,
}

impl<'a> Whole<'a> {
    /// The statements that are one by one, where there are rarer ones among them.
    pub(super) fn new(plan: &'a Plan, all: &'a [Encoded]) -> Result<Self, Box<Written<'a>>> {
        let written = Written::new(plan, all);
        if !written.is_plain() {
            return Err(Box::new(written));
        }
        let parts = written.into_parts();
        let texts: Vec<&str> = parts.iter().map(|part| part.sql).collect();
        match plan.gated(GATE, &texts) {
            Some(sql) => Ok(Self {
                plan,
                all,
                sql,
                parts,
            }),
            // There are enough of that kind.
            None => Err(Box::new(Written::new(plan, all))),
        }
    }

    /// Sends it and waits for its end. `board` is asked at the last moment; what it gives is
    /// kept until the statement is on its way. `None` when it gives nothing: nothing is sent.
    pub(super) async fn send<B>(
        self,
        session: &Session,
        chained: Chained<'a>,
        board: impl FnOnce() -> Option<B>,
    ) -> Option<Result<Option<Vec<Passed>>, CommitError>> {
        let Self {
            plan,
            all,
            sql,
            parts,
        } = self;
        let statement = match session.prepare(&sql).await {
            Ok(statement) => statement,
            Err(error) => return Some(Err(during(CONTEXT)(error).into())),
        };
        let mut params = batch::gate(all);
        params.push(Box::new(chained.after.map(|mark| &**mark)));
        params.push(Box::new(chained.mark.map(|mark| &**mark)));
        params.extend(parts.into_iter().flat_map(|part| part.params));
        let params = references(&params);
        pausing_failpoint("store.batch.before_commit").await;
        let mut query = pin!(session.client.query(&statement, &params));
        let mut board = Some(board);
        let outcome = poll_fn(|context| {
            // The driver sends a statement when it is first polled.
            let boarded = match board.take() {
                None => None,
                Some(board) => match board() {
                    None => return Poll::Ready(None),
                    boarded => {
                        session.departed();
                        boarded
                    }
                },
            };
            let outcome = query.as_mut().poll(context).map(Some);
            drop(boarded);
            outcome
        })
        .await?;
        pausing_failpoint("store.batch.after_commit").await;
        let error = match outcome {
            Ok(rows) => {
                session.landed();
                // It is durable, whatever it tells.
                return Some(Ok(passed(plan, all, &rows)));
            }
            Err(error) => error,
        };
        // The statement commits by itself: a session that ended meanwhile may have done so.
        Some(Err(if error.as_db_error().is_none_or(ended_session) {
            CommitError::OutcomeUnknown(Box::new(error))
        } else {
            session.landed();
            commit_error(plan, CONTEXT, error)
        }))
    }
}

/// What the gate saw for each batch.
fn passed(plan: &Plan, all: &[Encoded], rows: &[Row]) -> Option<Vec<Passed>> {
    let (each, rest) = rows.split_at_checked(all.len())?;
    let pending = match rest.first() {
        Some(row) => decode_pending(row.try_get(2).ok()?).ok()?,
        None => Vec::new(),
    };
    let passed = all.iter().zip(each).map(|(one, row)| {
        let epoch: Option<&str> = row.try_get(1).ok()?;
        Some(Passed {
            token: GateToken {
                stored_version: plan.version(),
                log_epoch: epoch.map(LogEpoch::from),
                pending: pending.clone(),
            },
            bounds: LogBounds {
                max: one.batch.head_after(),
                horizon: CommitSeq(row.try_get(0).ok()?),
            },
        })
    });
    passed.collect()
}

/// Writes what is more than one statement, all of them in one round trip.
pub(super) async fn pipelined(
    session: &mut Session,
    plan: &Plan,
    steps: Vec<Step<'_>>,
    transaction: Transaction,
) -> Result<(), CommitError> {
    let statements = match session.prepare_all(steps.iter().map(|step| step.sql)).await {
        Ok(statements) => statements,
        Err(error) => {
            if transaction == Transaction::Open {
                session.rollback().await;
            }
            return Err(during(CONTEXT)(error).into());
        }
    };
    session.in_doubt = true;
    let client = &session.client;
    let mut futures: Vec<BoxFuture<'_, Result<(), Error>>> = Vec::with_capacity(steps.len() + 2);
    match transaction {
        Transaction::Fresh => futures.push(Box::pin(client.batch_execute(BEGIN))),
        Transaction::Open => {}
    }
    for (step, statement) in steps.iter().zip(&statements) {
        futures.push(Box::pin(run(session, step, statement)));
    }
    futures.push(Box::pin(client.batch_execute("COMMIT")));
    let steps_sent = futures.len();
    pausing_failpoint("store.batch.before_commit").await;
    let outcomes = in_order(futures).await;
    pausing_failpoint("store.batch.after_commit").await;
    let commit_sent = outcomes.len() == steps_sent;
    // The COMMIT of a failed transaction ends it.
    let commit_ended = commit_sent && outcomes.last().is_some_and(Result::is_ok);
    // The driver calls COMMIT of a failed transaction a success: only all
    // successes together are one. What follows the first failure is its echo.
    let failure = outcomes
        .into_iter()
        .enumerate()
        .filter_map(|(at, outcome)| outcome.err().map(|error| (at, error)))
        .find(|(_, error)| !is_echo(error));
    let Some((at, error)) = failure else {
        session.in_doubt = false;
        return Ok(());
    };
    let lost = match error.as_db_error() {
        None => commit_sent,
        // A session that ended at an earlier step did not commit; one that ended
        // at COMMIT may have.
        Some(db) => commit_sent && ended_session(db) && at + 1 == steps_sent,
    };
    if lost {
        return Err(CommitError::OutcomeUnknown(Box::new(error)));
    }
    if commit_ended {
        session.in_doubt = false;
    } else {
        session.rollback().await;
    }
    Err(commit_error(plan, CONTEXT, error))
}

async fn run(session: &Session, step: &Step<'_>, statement: &Statement) -> Result<(), Error> {
    session
        .client
        .execute(statement, &references(&step.params))
        .await
        .map(|_| ())
}

/// A batch that violates a constraint, with savepoints around its rows: they stand in
/// their final state, and one may hold a unique value that another one gives up. One
/// statement per table cannot sort that out. A refused row is tried again as long as others
/// still make progress, and the last one refused is named.
pub(super) async fn row_by_row(
    session: &mut Session,
    plan: &Plan,
    one: &Encoded,
) -> Result<(), CommitError> {
    match attempt_rows(session, plan, std::slice::from_ref(one)).await {
        Ok(()) => {}
        Err(error) => {
            session.rollback().await;
            return Err(error);
        }
    }
    match session.commit().await {
        Ok(()) => Ok(()),
        Err(error) => {
            if error.as_db_error().is_some_and(|db| !ended_session(db)) {
                session.rollback().await;
                return Err(commit_error(plan, CONTEXT, error));
            }
            Err(CommitError::OutcomeUnknown(Box::new(error)))
        }
    }
}

async fn attempt_rows(
    session: &mut Session,
    plan: &Plan,
    all: &[Encoded],
) -> Result<(), CommitError> {
    session.begin(BEGIN).await.map_err(during(CONTEXT))?;
    let (steps, _) = Written::new(plan, all).rows_apart(plan);
    let texts = steps.iter().map(|step| step.sql);
    let statements = session.prepare_all(texts).await.map_err(during(CONTEXT))?;
    let futures = steps.iter().zip(&statements);
    let futures = futures
        .map(|(step, statement)| -> BoxFuture<'_, _> { Box::pin(run(session, step, statement)) });
    let outcomes = in_order(futures.collect()).await;
    if let Some(error) = outcomes.into_iter().find_map(Result::err) {
        return Err(commit_error(plan, CONTEXT, error));
    }
    let mut waiting = batch::puts(all);
    while !waiting.is_empty() {
        let before = waiting.len();
        let refused = attempt_puts(session, plan, waiting).await?;
        if refused.len() == before {
            return Err(CommitError::Constraint {
                key: refused.first().map(|put| put.key.clone()),
            });
        }
        // Values that moved on by one row each are free from the other end.
        waiting = refused;
        waiting.reverse();
    }
    Ok(())
}

/// Rows that travel together, at most.
const ROWS_PER_TRIP: usize = 100;

/// Writes rows in their order, and returns those that were refused. Rows that are not
/// travel many at a time, one that is takes two trips; after it they are few at first, as
/// what follows a refused row has travelled in vain.
async fn attempt_puts<'a>(
    session: &Session,
    plan: &Plan,
    puts: Vec<Put<'a>>,
) -> Result<Vec<Put<'a>>, CommitError> {
    let mut refused = Vec::new();
    let mut rest = &puts[..];
    let mut trip = ROWS_PER_TRIP;
    while !rest.is_empty() {
        let together = &rest[..rest.len().min(trip)];
        let done = match first_refused(session, plan, together).await? {
            None => {
                trip = (trip * 4).min(ROWS_PER_TRIP);
                together.len()
            }
            Some(at) => {
                trip = 1;
                refused.extend(together.get(at).copied());
                at + 1
            }
        };
        rest = rest.get(done..).unwrap_or_default();
    }
    Ok(refused)
}

/// Writes rows up to the first that is refused, and says which one that is.
async fn first_refused(
    session: &Session,
    plan: &Plan,
    puts: &[Put<'_>],
) -> Result<Option<usize>, CommitError> {
    let client = &session.client;
    let steps: Vec<Step<'_>> = puts
        .iter()
        .flat_map(|put| rows::writes(plan, std::slice::from_ref(put)))
        .collect();
    let texts = steps.iter().map(|step| step.sql);
    let statements = session.prepare_all(texts).await.map_err(during(CONTEXT))?;
    let mut futures: Vec<BoxFuture<'_, Result<(), Error>>> = Vec::new();
    for (step, statement) in steps.iter().zip(&statements) {
        futures.push(Box::pin(client.batch_execute("SAVEPOINT tidegate_row")));
        futures.push(Box::pin(run(session, step, statement)));
        futures.push(Box::pin(
            client.batch_execute("RELEASE SAVEPOINT tidegate_row"),
        ));
    }
    let per_row = futures.len() / steps.len().max(1);
    // What follows a refused row fails as its echo, and is sent again.
    let outcomes = in_order(futures).await.into_iter().enumerate();
    let mut failures = outcomes.filter_map(|(at, outcome)| outcome.err().map(|error| (at, error)));
    match failures.next() {
        None => Ok(None),
        Some((at, error)) if is_row_constraint(plan, &error) => {
            let back = "ROLLBACK TO SAVEPOINT tidegate_row; RELEASE SAVEPOINT tidegate_row";
            let undone = client.batch_execute(back).await;
            undone.map_err(during(CONTEXT))?;
            Ok(Some(at / per_row))
        }
        Some((_, error)) => Err(commit_error(plan, CONTEXT, error)),
    }
}

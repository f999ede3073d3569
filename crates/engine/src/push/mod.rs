//! How a push is decided (§6): a pure function over a [`Candidate`].
//!
//! A caller makes a candidate at the partition's log position, reads what
//! [`initial_needs`] names for a whole batch, and calls [`decide`] for each commit
//! in order. A [`Step::Need`] is read, provided and decided again. At the end
//! [`Candidate::into_batch`] is what must become durable together before anyone
//! is answered.
//!
//! The order of the checks is fixed: recorded result, then for each operation
//! table, resolver, payload, stored row, authorization, conflict rules, CRDT
//! merge, blobs and row rule; then references, whole-commit rule and reactions.

mod candidate;
mod conflict;
mod decision;
mod details;
mod hooks;
mod needs;
mod operation;
mod references;
mod row_rules;
mod rows;
mod staging;
mod stored_result;
mod unique;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ssp2::{ErrorCode, OperationOutcome, OperationResult, PushCommit, WireVersion};

use crate::hooks::Allowed;
use crate::ids::{ActorId, ClientId, PartitionId};
use crate::model::{LoggedCommit, Needs, ResultKey, ResultLookup, RowKey, StoredPushResult};
use crate::schema::Schema;

use decision::{Refusal, Stop, replayed, wire_index};
use staging::Staging;

pub use candidate::{Candidate, Moved};
pub use decision::{Decision, Step};
pub use details::normalize_details;
pub use hooks::{
    BlobLookup, CandidateReader, CandidateRow, CommitRefusal, PlanFailure, PlanReactions,
    PlannedReaction, PushHooks, StagedCommit, StagedOperation, Unread, ValidateCommit,
};
pub use needs::{initial_needs, needs_ahead, referenced_blobs};
pub use stored_result::{decode_push_result, encode_push_result};

/// How many operations references may append to one commit by default (§6.11).
pub const DEFAULT_CASCADE_CAP: u32 = 1_000;

/// Message of a whole-commit rule that failed instead of deciding (§6.8).
const COMMIT_VALIDATOR_FAILED: &str = "whole-commit validator failed";

/// What every decision of a process shares.
#[derive(Clone, Copy)]
pub struct PushEnv<'a> {
    /// The served schema.
    pub schema: &'a Schema,
    /// Host rules.
    pub hooks: &'a PushHooks,
    /// Now, epoch milliseconds.
    pub now_ms: i64,
    /// Most operations that references may append to one commit.
    pub cascade_cap: u32,
}

impl<'a> PushEnv<'a> {
    /// With the default cascade cap.
    pub const fn new(schema: &'a Schema, hooks: &'a PushHooks, now_ms: i64) -> Self {
        Self {
            schema,
            hooks,
            now_ms,
            cascade_cap: DEFAULT_CASCADE_CAP,
        }
    }
}

/// One commit to decide.
#[derive(Clone, Copy)]
pub struct PushInput<'a> {
    /// Device.
    pub client_id: &'a ClientId,
    /// Actor.
    pub actor_id: &'a ActorId,
    /// Wire version of the request, which sets the payload format and the conflict rules.
    pub wire: WireVersion,
    /// What the actor's scopes are.
    pub allowed: &'a Allowed,
    /// The commit.
    pub commit: &'a PushCommit,
}

impl PushInput<'_> {
    /// Its idempotency key (§2.3).
    pub fn result_key(&self) -> ResultKey {
        ResultKey {
            client_id: self.client_id.clone(),
            client_commit_id: self.commit.client_commit_id.as_str().into(),
        }
    }
}

struct Context<'a> {
    env: &'a PushEnv<'a>,
    push: &'a PushInput<'a>,
    partition: &'a PartitionId,
}

impl Context<'_> {
    /// Whether a rule will look at rows that the pipeline itself need not decode.
    fn wants_evidence(&self) -> bool {
        let hooks = self.env.hooks;
        hooks.row_validator.is_some()
            || hooks.commit_validator.is_some()
            || hooks.reactions.is_some()
    }
}

/// Decides one commit and stages it in the candidate (§6.2 to §6.11).
///
/// When something it must know is unknown, it names all of that it can tell and
/// leaves the candidate as it was.
pub fn decide(env: &PushEnv<'_>, candidate: &mut Candidate, push: &PushInput<'_>) -> Step {
    let key = push.result_key();
    match candidate.result(&key) {
        Some(ResultLookup::Found(stored)) => {
            return Step::Done(replayed(env.schema, push.commit, stored));
        }
        Some(ResultLookup::Unreadable) => return Step::Done(Decision::Unreadable),
        Some(ResultLookup::Absent) | None => {}
    }
    let unknown = candidate.unknown_of(initial_needs(env, push));
    // Children are wanted only if the delete gets that far.
    if !unknown.rows.is_empty() || !unknown.results.is_empty() {
        return Step::Need(unknown);
    }
    let mut staging = Staging::new(candidate);
    let cx = Context {
        env,
        push,
        partition: candidate.partition(),
    };
    let stop = match stage(&cx, &mut staging) {
        Ok(reactions) => {
            let seq = staging.seq();
            let (overlay, changes) = staging.into_parts();
            let result = Arc::new(StoredPushResult {
                commit_seq: Some(seq),
                recorded_at_ms: Some(env.now_ms),
                results: (0..push.commit.operations.len())
                    .map(|op_index| OperationResult {
                        op_index: wire_index(op_index),
                        outcome: OperationOutcome::Applied,
                    })
                    .collect(),
                details: Vec::new(),
            });
            let commit = Arc::new(LoggedCommit {
                seq,
                client_id: key.client_id.clone(),
                client_commit_id: Arc::clone(&key.client_commit_id),
                actor_id: push.actor_id.clone(),
                created_at_ms: env.now_ms,
                changes,
            });
            let accepted = (Arc::clone(&result), Arc::clone(&commit));
            candidate.accept(env.schema, key, accepted, &reactions, overlay);
            return Step::Done(Decision::Applied {
                result,
                commit,
                reactions,
            });
        }
        Err(stop) => stop,
    };
    match stop {
        Stop::Unknown(needs) => Step::Need(needs),
        Stop::Failed(error) => Step::Failed(*error),
        Stop::Refused(refusal) => Step::Done(reject(candidate, key, *refusal, env.now_ms)),
    }
}

/// Rejects a commit whose write the database refused: `sync.constraint_violation`
/// at the operation that wrote `violated`, or at the first one when that is not
/// known or was none of the client's.
///
/// The candidate must be one that did not accept this commit.
pub fn reject_constraint(
    env: &PushEnv<'_>,
    candidate: &mut Candidate,
    push: &PushInput<'_>,
    violated: Option<&RowKey>,
) -> Decision {
    let op_index = violated
        .and_then(|key| {
            // The last write of a row is the one the database saw.
            push.commit.operations.iter().rposition(|operation| {
                *operation.row_id == *key.row_id
                    && operation.table == env.schema.table_at(key.table).name
            })
        })
        .unwrap_or(0);
    let refusal = Refusal::error(
        op_index,
        ErrorCode::ConstraintViolation,
        "a database constraint refused the write",
    );
    reject(candidate, push.result_key(), refusal, env.now_ms)
}

fn reject(candidate: &mut Candidate, key: ResultKey, refusal: Refusal, now_ms: i64) -> Decision {
    let result = Arc::new(refusal.into_result(now_ms));
    candidate.record(key, Arc::clone(&result));
    Decision::Rejected { result }
}

fn stage(cx: &Context<'_>, staging: &mut Staging<'_>) -> Result<Vec<PlannedReaction>, Stop> {
    for (op_index, operation) in cx.push.commit.operations.iter().enumerate() {
        operation::apply(cx, staging, op_index, operation)?;
    }
    references::enforce(cx, staging)?;
    validate_commit(cx, staging)?;
    plan_reactions(cx, staging)
}

/// Runs a rule over the staged commit. Rows that it asked for and that are not
/// known stop the commit, whatever the rule said without them. `None` = it panicked.
fn with_evidence<T>(
    cx: &Context<'_>,
    staging: &Staging<'_>,
    rule: impl FnOnce(&StagedCommit<'_>) -> T,
) -> Result<Option<T>, Stop> {
    let reader = CandidateReader::new(cx.env.schema, staging);
    let evidence = StagedCommit {
        partition: cx.partition,
        actor: cx.push.actor_id,
        client: cx.push.client_id,
        client_commit_id: &cx.push.commit.client_commit_id,
        schema: cx.env.schema,
        operations: &staging.operations,
        reader: &reader,
    };
    let verdict = catch_unwind(AssertUnwindSafe(|| rule(&evidence))).ok();
    if reader.met_corruption() {
        return Err(Stop::corrupt());
    }
    let missing = reader.into_missing();
    if missing == Needs::default() {
        Ok(verdict)
    } else {
        Err(Stop::Unknown(missing))
    }
}

fn validate_commit(cx: &Context<'_>, staging: &Staging<'_>) -> Result<(), Stop> {
    let Some(validator) = &cx.env.hooks.commit_validator else {
        return Ok(());
    };
    match with_evidence(cx, staging, |commit| validator.validate(commit))? {
        Some(Ok(())) => Ok(()),
        Some(Err(CommitRefusal::Rejected {
            op_index,
            rejection,
        })) if op_index < cx.push.commit.operations.len() => {
            Err(Refusal::host(op_index, rejection, COMMIT_VALIDATOR_FAILED).into())
        }
        // A panic, an operation that the commit does not have, or an unread row
        // that nobody asked for: the rule is broken, and nothing is written.
        _ => Err(Refusal::error(0, ErrorCode::ConstraintViolation, COMMIT_VALIDATOR_FAILED).into()),
    }
}

fn plan_reactions(cx: &Context<'_>, staging: &Staging<'_>) -> Result<Vec<PlannedReaction>, Stop> {
    let Some(planner) = &cx.env.hooks.reactions else {
        return Ok(Vec::new());
    };
    match with_evidence(cx, staging, |commit| planner.plan(commit))? {
        Some(Ok(plan)) if hooks::plan_is_valid(&plan) => Ok(plan),
        _ => Err(Stop::failed("the reaction planner failed")),
    }
}

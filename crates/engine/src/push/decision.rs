//! Outcomes: what ends a commit, what a decision is, and how it reads on the wire
//! (§6.3).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ssp2::{
    ColumnSet, DetailEntry, ErrorCode, OperationOutcome, OperationResult, PushCommit, PushResult,
    PushResultDetails, PushStatus, ResponseFrame, SyncError,
};

use crate::hooks::HostRejection;
use crate::model::{LoggedCommit, Needs, StoredPushResult};
use crate::schema::Schema;

use super::details::normalize_details;
use super::hooks::PlannedReaction;
use super::rows::comparable_columns;

/// Families of protocol codes, which a host code must not join (§6.7).
const RESERVED_PREFIXES: [&str; 5] = ["sync.", "blob.", "operation.", "presence.", "client."];

/// What [`super::decide`] came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Unknown yet: read all of it, hand it to the candidate, decide again. The
    /// candidate is as it was.
    Need(Needs),
    /// Decided.
    Done(Decision),
    /// The server could not decide (a stored row does not decode, a reaction
    /// planner failed): nothing is recorded, the round fails with this.
    Failed(SyncError),
}

/// The outcome of a push commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Newly applied.
    Applied {
        /// What is stored and answered.
        result: Arc<StoredPushResult>,
        /// Its entry in the log.
        commit: Arc<LoggedCommit>,
        /// What the host planned to follow (§6.9).
        reactions: Vec<PlannedReaction>,
    },
    /// Newly rejected; only the result is stored.
    Rejected {
        /// What is stored and answered.
        result: Arc<StoredPushResult>,
    },
    /// Decided before: the stored outcome, answered as `cached` or as the
    /// rejection it was (§2.3).
    Replayed {
        /// What was stored.
        result: Arc<StoredPushResult>,
    },
    /// Decided before, but the stored outcome is unreadable:
    /// `sync.idempotency_cache_miss`, never stored (§6.3).
    Unreadable,
}

impl Decision {
    /// The stored outcome, unless it is unreadable.
    pub const fn result(&self) -> Option<&Arc<StoredPushResult>> {
        match self {
            Self::Applied { result, .. }
            | Self::Rejected { result }
            | Self::Replayed { result } => Some(result),
            Self::Unreadable => None,
        }
    }

    /// The new commit, when this decision made one.
    pub const fn commit(&self) -> Option<&Arc<LoggedCommit>> {
        match self {
            Self::Applied { commit, .. } => Some(commit),
            Self::Rejected { .. } | Self::Replayed { .. } | Self::Unreadable => None,
        }
    }

    /// Whether the batch holds something new that must become durable before the answer.
    pub const fn is_new(&self) -> bool {
        matches!(self, Self::Applied { .. } | Self::Rejected { .. })
    }

    /// PUSH_RESULT, and PUSH_RESULT_DETAILS when a rejection carries details.
    /// The encoder leaves conflict columns out below wire version 3.
    pub fn to_frames(&self, client_commit_id: &str) -> Vec<ResponseFrame> {
        let Some(result) = self.result() else {
            let record = OperationResult {
                op_index: 0,
                outcome: error_outcome(
                    ErrorCode::IdempotencyCacheMiss,
                    "the recorded result is unreadable",
                ),
            };
            return vec![push_result(
                client_commit_id,
                PushStatus::Rejected,
                vec![record],
            )];
        };
        let status = match (result.commit_seq, self) {
            (None, _) => PushStatus::Rejected,
            (Some(seq), Self::Replayed { .. }) => PushStatus::Cached(seq.0),
            (Some(seq), _) => PushStatus::Applied(seq.0),
        };
        let mut frames = vec![push_result(
            client_commit_id,
            status,
            result.results.clone(),
        )];
        if status == PushStatus::Rejected && !result.details.is_empty() {
            frames.push(ResponseFrame::PushResultDetails(PushResultDetails {
                client_commit_id: client_commit_id.to_owned(),
                entries: result
                    .details
                    .iter()
                    .map(|(op_index, json)| DetailEntry {
                        op_index: *op_index,
                        details_json: json.clone(),
                    })
                    .collect(),
            }));
        }
        frames
    }
}

fn push_result(
    client_commit_id: &str,
    status: PushStatus,
    results: Vec<OperationResult>,
) -> ResponseFrame {
    ResponseFrame::PushResult(PushResult {
        client_commit_id: client_commit_id.to_owned(),
        status,
        results,
    })
}

/// A stored outcome as it is replayed: a conflict recorded before conflict
/// columns existed marks every column that can conflict (§6.3).
pub(super) fn replayed(
    schema: &Schema,
    commit: &PushCommit,
    stored: &Arc<StoredPushResult>,
) -> Decision {
    let lacks_columns = |record: &OperationResult| {
        matches!(&record.outcome, OperationOutcome::Conflict { conflict_columns, .. }
            if conflict_columns.is_empty())
    };
    if !stored.results.iter().any(lacks_columns) {
        return Decision::Replayed {
            result: Arc::clone(stored),
        };
    }
    let mut result = StoredPushResult::clone(stored);
    for record in &mut result.results {
        let columns = every_comparable(schema, commit, record.op_index);
        if let OperationOutcome::Conflict {
            conflict_columns, ..
        } = &mut record.outcome
            && conflict_columns.is_empty()
        {
            *conflict_columns = columns;
        }
    }
    Decision::Replayed {
        result: Arc::new(result),
    }
}

fn every_comparable(schema: &Schema, commit: &PushCommit, op_index: i32) -> Bytes {
    let table = usize::try_from(op_index)
        .ok()
        .and_then(|at| commit.operations.get(at))
        .and_then(|operation| schema.table(&operation.table));
    table.map_or_else(Bytes::new, |table| {
        let mut columns = ColumnSet::new(table.columns.len());
        comparable_columns(table).for_each(|column| columns.insert(column));
        columns.to_bytes()
    })
}

/// Why a commit did not go through.
pub(super) enum Stop {
    /// The terminating record.
    Refused(Box<Refusal>),
    /// Something must be read first.
    Unknown(Needs),
    /// The server's own failure.
    Failed(Box<SyncError>),
}

impl Stop {
    /// A failure that is not the client's.
    pub(super) fn failed(message: &'static str) -> Self {
        Self::Failed(Box::new(SyncError::new(ErrorCode::InternalError, message)))
    }

    /// A stored row or an internal encoding broke a rule that this server keeps.
    pub(super) fn corrupt() -> Self {
        Self::failed("a stored row is unreadable")
    }
}

/// The terminating record of a rejected commit.
pub(super) struct Refusal {
    pub(super) op_index: usize,
    pub(super) outcome: OperationOutcome,
    pub(super) details: Option<String>,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl Refusal {
    /// An error of the catalogue.
    pub(super) fn error(
        op_index: usize,
        code: ErrorCode,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            op_index,
            outcome: error_outcome(code, message),
            details: None,
        }
    }

    pub(super) fn forbidden(op_index: usize) -> Self {
        Self::error(
            op_index,
            ErrorCode::Forbidden,
            "the actor may not write this row",
        )
    }

    /// A deliberate rejection by a host rule. A code of a protocol family or
    /// malformed details are the host's bug: the generic constraint code then
    /// says that nothing was written, with `fallback` as its message (§6.7).
    pub(super) fn host(op_index: usize, rejection: HostRejection, fallback: &'static str) -> Self {
        let reserved = RESERVED_PREFIXES
            .iter()
            .any(|prefix| rejection.code.starts_with(prefix));
        let details = match rejection.details.as_deref().map(normalize_details) {
            Some(None) => None,
            Some(Some(details)) => Some(Some(details)),
            None => Some(None),
        };
        match details {
            Some(details) if !reserved && !rejection.code.is_empty() => Self {
                op_index,
                outcome: OperationOutcome::Error {
                    code: rejection.code,
                    message: rejection.message,
                    retryable: false,
                },
                details,
            },
            _ => Self::error(op_index, ErrorCode::ConstraintViolation, fallback),
        }
    }

    /// The outcome to store.
    pub(super) fn into_result(self, now_ms: i64) -> StoredPushResult {
        let op_index = wire_index(self.op_index);
        StoredPushResult {
            commit_seq: None,
            recorded_at_ms: Some(now_ms),
            results: vec![OperationResult {
                op_index,
                outcome: self.outcome,
            }],
            details: self
                .details
                .map(|json| (op_index, json))
                .into_iter()
                .collect(),
        }
    }
}

fn error_outcome(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> OperationOutcome {
    OperationOutcome::Error {
        code: code.as_str().to_owned(),
        message: message.into().into_owned(),
        retryable: code.retryable(),
    }
}

/// An operation index as the wire has it; a request never holds that many.
pub(super) fn wire_index(op_index: usize) -> i32 {
    i32::try_from(op_index).unwrap_or(i32::MAX)
}

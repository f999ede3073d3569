//! Final outcomes of pushed commits (§6.3, §7.2.1) and what an application may do
//! about the ones that failed.

use ssp2::Value;

use crate::outbox::{LocalCommit, LocalOperation};

/// The final outcome of one commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The commit.
    pub client_commit_id: String,
    /// How it ended.
    pub status: OutcomeStatus,
}

/// How a commit ended.
#[derive(Debug, Clone, PartialEq)]
pub enum OutcomeStatus {
    /// Applied under this sequence number.
    Applied(i64),
    /// Had been applied before under this sequence number: a replay.
    Cached(i64),
    /// Rejected by a conflict.
    Conflict(Conflict),
    /// Rejected by an error.
    Rejected(Rejection),
    /// Dropped locally, never to be pushed again: it wrote into a revoked scope
    /// (`sync.scope_revoked`), or the schema can no longer express it
    /// (`sync.outbox_incompatible`).
    Dropped {
        /// The code.
        code: &'static str,
        /// The commit, whole.
        commit: LocalCommit,
    },
}

/// A commit rejected because a row changed meanwhile (§6.2).
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// Index of the operation that lost.
    pub op_index: usize,
    /// `sync.version_conflict`, or a host's code.
    pub code: String,
    /// Public message.
    pub message: String,
    /// The row's version on the server.
    pub server_version: i64,
    /// The row as the server holds it, in column order.
    pub server_row: Vec<Value>,
    /// Names of the conflicting columns; wire 1 and 2 do not tell them.
    pub conflict_columns: Vec<String>,
    /// The whole failed commit.
    pub commit: LocalCommit,
}

/// A commit rejected for any other reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Rejection {
    /// Index of the operation at fault.
    pub op_index: usize,
    /// Catalogue or host code.
    pub code: String,
    /// Public message.
    pub message: String,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// Details of §6.3.1: the JSON text, when the server sent any.
    pub details: Option<String>,
    /// The whole failed commit.
    pub commit: LocalCommit,
}

/// How to settle a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Drop the local commit; the server's row stands.
    KeepServer,
    /// Queue the commit again under a new id, based on the server's version.
    KeepLocal,
}

/// What the client does by itself when a conflict comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConflictPolicy {
    /// Keeps it in the list of open conflicts until it is settled.
    #[default]
    Surface,
    /// Settles every conflict this way at once.
    Always(Resolution),
}

impl Outcome {
    /// Whether the commit is in the server's log.
    pub fn is_success(&self) -> bool {
        matches!(
            self.status,
            OutcomeStatus::Applied(_) | OutcomeStatus::Cached(_)
        )
    }

    /// The code of a failed commit.
    pub fn code(&self) -> Option<&str> {
        match &self.status {
            OutcomeStatus::Applied(_) | OutcomeStatus::Cached(_) => None,
            OutcomeStatus::Conflict(conflict) => Some(&conflict.code),
            OutcomeStatus::Rejected(rejection) => Some(&rejection.code),
            OutcomeStatus::Dropped { code, .. } => Some(code),
        }
    }
}

impl Conflict {
    /// The operation that lost, when the server named one of the commit's.
    pub fn operation(&self) -> Option<&LocalOperation> {
        self.commit.operations.get(self.op_index)
    }

    /// The commit again, the losing operation now based on the server's version.
    pub(crate) fn rebased(&self, client_commit_id: String) -> LocalCommit {
        let mut commit = self.commit.clone();
        commit.client_commit_id = client_commit_id;
        if let Some(operation) = commit.operations.get_mut(self.op_index) {
            operation.base_version = Some(self.server_version);
        }
        commit
    }
}

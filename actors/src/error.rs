//! Why a push was not answered with decisions.

use ssp2::{ErrorCode, SyncError};
use tidegate_engine::gate::GateRefusal;
use tidegate_engine::{PartitionId, SchemaVersion};
use tidegate_store::{CommitError, StoreError, error_chain};

/// A push that failed as a whole. None of its commits is known to be undecided and
/// durable at once: repeating it is always safe (§6.1, idempotency by commit id).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct PushError {
    /// What the client is told.
    pub error: SyncError,
    /// Whether storage cannot be reached or the service is stopping: HTTP 503
    /// instead of the code's usual status.
    pub unavailable: bool,
}

impl PushError {
    fn of(code: ErrorCode, message: &'static str) -> Self {
        Self {
            error: SyncError::new(code, message),
            unavailable: false,
        }
    }

    /// Too much is queued already (§10.2).
    pub(crate) fn overloaded() -> Self {
        Self::of(
            ErrorCode::RateLimited,
            "Too many pushes are queued; try again shortly",
        )
    }

    /// The client id belongs to another actor (§1.5).
    pub(crate) fn bound_elsewhere() -> Self {
        Self::of(
            ErrorCode::InvalidClientId,
            "The client id belongs to another actor",
        )
    }

    /// Nothing can be reached or the service stops.
    pub(crate) fn unavailable() -> Self {
        Self {
            unavailable: true,
            ..Self::of(
                ErrorCode::InternalError,
                "The service is temporarily unavailable; try again",
            )
        }
    }

    /// Any other failure of ours.
    pub(crate) fn internal() -> Self {
        Self::of(
            ErrorCode::InternalError,
            "The push could not be completed; try again",
        )
    }

    /// The engine could not decide a commit.
    pub(crate) fn undecidable(error: SyncError) -> Self {
        Self {
            error,
            unavailable: false,
        }
    }

    /// The serve gate refused inside the push's transaction (migrations, rule 8).
    pub(crate) fn not_ready(error: SyncError) -> Self {
        Self {
            error,
            unavailable: false,
        }
    }
}

impl PushError {
    /// What the callers of a batch are told when nothing of it was written; the log is
    /// told why.
    pub(crate) fn refused(
        partition: &PartitionId,
        running: SchemaVersion,
        error: CommitError,
    ) -> Self {
        match error {
            CommitError::SchemaChanged { stored } => {
                Self::not_ready(GateRefusal::NewerSchema { stored, running }.into())
            }
            CommitError::CheckpointPending(pending) => {
                Self::not_ready(GateRefusal::CheckpointPending(pending).into())
            }
            CommitError::FenceRejected => Self::fenced(),
            CommitError::Store(StoreError::Unavailable(source)) => {
                let error = error_chain(&*source);
                tracing::warn!(%partition, error, "the database is unavailable");
                Self::unavailable()
            }
            CommitError::Store(StoreError::Closed) => Self::unavailable(),
            other => {
                let error = error_chain(&other);
                tracing::error!(%partition, error, "a batch failed");
                Self::internal()
            }
        }
    }

    /// The writer fence of the database refused this program's schema version.
    pub(crate) fn fenced() -> Self {
        Self::of(
            ErrorCode::SchemaNotReady,
            "server schema is not ready for this request",
        )
    }
}

impl From<PushError> for SyncError {
    fn from(error: PushError) -> Self {
        error.error
    }
}

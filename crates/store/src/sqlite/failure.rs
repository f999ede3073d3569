//! From SQLite's result codes to this crate's errors.

use std::sync::Arc;

use rusqlite::{Error, ErrorCode, ffi};

use crate::error::{CommitError, StoreError};

/// What the fence trigger raises.
pub(super) const FENCE_MESSAGE: &str = "sync.storage.writer_fence_rejected";

/// Whether the database as a whole is out of reach, not this statement.
fn unavailable(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
        )
    )
}

/// The error of operation `context`.
pub(super) fn store_error(context: &'static str, error: Error) -> StoreError {
    if unavailable(&error) {
        StoreError::Unavailable(Box::new(error))
    } else {
        StoreError::failed(context, error)
    }
}

/// Maps a driver error with what was being done: `.map_err(during("..."))`.
pub(super) fn during(context: &'static str) -> impl Fn(Error) -> StoreError {
    move |error| store_error(context, error)
}

/// The failure of a whole transaction: every job in it gets its own copy.
pub(super) fn shared_failure(context: &'static str, error: &Arc<Error>) -> StoreError {
    if unavailable(error) {
        StoreError::Unavailable(Box::new(Arc::clone(error)))
    } else {
        StoreError::failed(context, Arc::clone(error))
    }
}

/// The error of inserting a commit row: the fence speaks through it.
pub(super) fn commit_row_error(error: Error) -> CommitError {
    match &error {
        Error::SqliteFailure(code, Some(message))
            if code.code == ErrorCode::ConstraintViolation && message == FENCE_MESSAGE =>
        {
            CommitError::FenceRejected
        }
        _ => store_error("writing a commit", error).into(),
    }
}

/// Whether an app table's own constraint refused a row: its key among them, when somebody
/// else has put the row meanwhile.
pub(super) fn is_row_constraint(error: &Error) -> bool {
    matches!(
        error.sqlite_extended_error_code(),
        Some(
            ffi::SQLITE_CONSTRAINT_UNIQUE
                | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
                | ffi::SQLITE_CONSTRAINT_NOTNULL
        )
    )
}

//! From the driver's errors to this crate's.

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use tidegate_engine::SchemaVersion;
use tidegate_engine::gate::PendingCheckpoint;

use super::core_schema::{FENCE_MESSAGE, Refusal};
use super::plan::Plan;
use crate::error::{CommitError, StoreError};

/// Whether the database as a whole is out of reach, or busy: a later try may succeed.
fn unavailable(error: &Error) -> bool {
    let Some(code) = error.code() else {
        // No answer of the server: the connection, unless the driver could not
        // convert a value.
        return error.is_closed()
            || std::error::Error::source(error)
                .is_some_and(|source| source.is::<std::io::Error>());
    };
    // Class 08 connection, 53 resources, 57 operator intervention and timeouts,
    // 40 rollback by the server, 55P03 lock timeout, 25006 read-only.
    matches!(&code.code()[..2], "08" | "53" | "57" | "40")
        || *code == SqlState::LOCK_NOT_AVAILABLE
        || *code == SqlState::READ_ONLY_SQL_TRANSACTION
        || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
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

/// The error of a preparation, told apart where the role is what fails it.
pub(super) fn while_preparing(error: StoreError) -> StoreError {
    match error {
        StoreError::Failed { source, .. } if lacks_privilege(&*source) => {
            StoreError::NotPermitted(source)
        }
        other => other,
    }
}

fn lacks_privilege(source: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    source
        .downcast_ref::<Error>()
        .is_some_and(|error| error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE))
}

/// Whether the session ended with this error.
pub(super) fn ended_session(error: &DbError) -> bool {
    matches!(
        error.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    )
}

/// Whether an app table's own constraint, or a limit of its indexes, refused a row.
pub(super) fn is_row_constraint(plan: &Plan, error: &Error) -> bool {
    let Some(db) = error.as_db_error() else {
        return false;
    };
    // "index row size exceeds maximum" names no table.
    if *db.code() == SqlState::PROGRAM_LIMIT_EXCEEDED {
        return true;
    }
    db.code().code().starts_with("23")
        && db
            .table()
            .is_some_and(|table| plan.schema.table(table).is_some())
}

/// The cause of a failed batch, told by the server: nothing was written.
pub(super) fn commit_error(plan: &Plan, context: &'static str, error: Error) -> CommitError {
    let Some(db) = error.as_db_error() else {
        return store_error(context, error).into();
    };
    if let Some(refusal) = Refusal::of(db.code()) {
        return match refusal {
            Refusal::SequenceMoved => CommitError::SequenceMoved,
            Refusal::SchemaChanged => CommitError::SchemaChanged {
                stored: SchemaVersion(db.detail().and_then(|n| n.parse().ok()).unwrap_or(0)),
            },
            Refusal::CheckpointPending => match pending(db) {
                Some(pending) => CommitError::CheckpointPending(pending),
                None => store_error(context, error).into(),
            },
            Refusal::Fenced => CommitError::FenceRejected,
            Refusal::Superseded => CommitError::Superseded,
            Refusal::Unfounded => CommitError::Unfounded,
            Refusal::OutsideTransaction => store_error(context, error).into(),
        };
    }
    if db.message() == FENCE_MESSAGE {
        return CommitError::FenceRejected;
    }
    if is_row_constraint(plan, &error) {
        return CommitError::Constraint { key: None };
    }
    let code = db.code();
    // A row that is not there has left an entry behind, by another program's hand. The
    // way that writes row by row takes it over.
    if *code == SqlState::UNIQUE_VIOLATION && db.table() == Some("sync_row_scopes") {
        return CommitError::Constraint { key: None };
    }
    // A result recorded since, or a victim of somebody else's locks: decide again.
    let recorded = *code == SqlState::UNIQUE_VIOLATION && db.table() == Some("sync_push_results");
    if recorded
        || *code == SqlState::T_R_DEADLOCK_DETECTED
        || *code == SqlState::T_R_SERIALIZATION_FAILURE
    {
        return CommitError::SequenceMoved;
    }
    store_error(context, error).into()
}

fn pending(error: &DbError) -> Option<PendingCheckpoint> {
    let (partition, name): (String, String) = serde_json::from_str(error.detail()?).ok()?;
    Some(PendingCheckpoint { partition, name })
}

#[cfg(test)]
mod tests {
    use tokio_postgres::{NoTls, connect};

    #[tokio::test]
    async fn the_log_hears_the_cause_of_a_failure() {
        let Err(error) = connect("host=127.0.0.1 port=1 user=x", NoTls).await else {
            panic!("nobody listens there");
        };
        let cause = std::error::Error::source(&error).expect("it has a cause");
        assert_eq!(crate::error_chain(&error), format!("{error}: {cause}"));
    }
}

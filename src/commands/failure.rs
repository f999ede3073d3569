//! Why a command failed, and in which phase of the start.

use crate::server::ServeError;

/// An error of a command that uses the database.
///
/// The same storage error is one of the storage migration or not by when it happened,
/// which the error itself does not know.
#[derive(Debug)]
pub(super) struct Failure {
    pub phase: Option<&'static str>,
    pub error: ServeError,
}

impl Failure {
    /// A failure outside of every phase: the migration has not begun, or there is none.
    pub fn outside(error: impl Into<ServeError>) -> Self {
        Self {
            phase: None,
            error: error.into(),
        }
    }
}

impl<E: Into<ServeError>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        Self {
            phase: error.phase(),
            error,
        }
    }
}

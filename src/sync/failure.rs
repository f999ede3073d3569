//! How a request fails as a whole, with what only the log may know.

use ssp2::{DecodeError, EncodeError, ErrorCode, SyncError};
use tidegate_actors::{NotServed, PushError};
use tidegate_engine::gate::GateRefusal;
use tidegate_store::StoreError;

use super::segments::Collision;

/// What everybody is told, with 503, while the database or the service is away.
pub(crate) fn out_of_reach() -> SyncError {
    SyncError::new(
        ErrorCode::InternalError,
        "the service is temporarily unavailable; try again",
    )
}

/// A failed request: the public error, and its cause for the log.
#[derive(Debug)]
pub struct Failure {
    error: Box<SyncError>,
    unavailable: bool,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    /// A failure of ours, `sync.internal_error`.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            error: Box::new(SyncError::new(
                ErrorCode::InternalError,
                "the server could not complete the request",
            )),
            unavailable: false,
            cause: Some(cause.into()),
        }
    }

    /// Something the request needs is out of reach for now: 503.
    pub fn unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            error: Box::new(out_of_reach()),
            unavailable: true,
            cause: Some(cause.into()),
        }
    }

    /// The public error.
    pub fn error(&self) -> &SyncError {
        &self.error
    }

    /// The public error, alone.
    pub fn into_error(self) -> SyncError {
        *self.error
    }

    /// The HTTP status: its code's, or 503 while storage cannot be reached.
    pub fn status(&self) -> u16 {
        if self.unavailable {
            503
        } else {
            self.error.code.http_status()
        }
    }

    /// The cause with its own causes on one line; never for a client.
    pub fn cause(&self) -> Option<String> {
        self.cause
            .as_deref()
            .map(|cause| crate::serve_error::chain(cause))
    }
}

impl From<SyncError> for Failure {
    fn from(error: SyncError) -> Self {
        Self {
            error: Box::new(error),
            unavailable: false,
            cause: None,
        }
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        SyncError::from(error).into()
    }
}

impl From<GateRefusal> for Failure {
    fn from(refusal: GateRefusal) -> Self {
        SyncError::from(refusal).into()
    }
}

impl From<NotServed> for Failure {
    fn from(refused: NotServed) -> Self {
        match refused {
            NotServed::Refused(refusal) => refusal.into(),
            NotServed::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Closed => Self::unavailable(error),
            _ => Self::internal(error),
        }
    }
}

impl From<PushError> for Failure {
    fn from(failed: PushError) -> Self {
        let error = if failed.unavailable {
            out_of_reach()
        } else {
            failed.error
        };
        Self {
            error: Box::new(error),
            unavailable: failed.unavailable,
            cause: None,
        }
    }
}

impl From<EncodeError> for Failure {
    fn from(error: EncodeError) -> Self {
        Self::internal(error)
    }
}

impl From<Collision> for Failure {
    fn from(error: Collision) -> Self {
        Self::internal(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_trouble_is_503_when_it_is_out_of_reach_and_500_otherwise() {
        let unreachable = Failure::from(StoreError::Unavailable("host db.internal".into()));
        assert_eq!(unreachable.status(), 503);
        assert_eq!(unreachable.error().code, ErrorCode::InternalError);
        assert!(!unreachable.error().message.contains("db.internal"));
        assert!(unreachable.cause().unwrap().contains("db.internal"));
        let push = Failure::from(PushError {
            error: SyncError::new(ErrorCode::InternalError, "in other words"),
            unavailable: true,
        });
        assert_eq!((push.status(), push.error()), (503, unreachable.error()));
        let broken = Failure::from(StoreError::failed("reading", "SELECT secret"));
        assert_eq!(broken.status(), 500);
        assert!(!broken.error().message.contains("SELECT"));
    }
}

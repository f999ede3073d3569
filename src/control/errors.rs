//! Errors of the control endpoint, in the shape of the wire's (§10.1).

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde_json::{Map, Value as Json, json};
use ssp2::{Action, Category, ErrorCode, SyncError};
use tidegate_store::StoreError;

use crate::serve_error::chain;
use crate::sync::out_of_reach;

macro_rules! codes {
    ($( $variant:ident = $code:literal, $category:ident, $retryable:literal, $action:ident, $status:literal, $message:literal; )*) => {
        /// The codes that the control endpoint has beside the wire's.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum ControlCode {
            $( #[doc = $message] $variant, )*
        }

        impl ControlCode {
            /// All of them.
            #[cfg(test)]
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )* ];

            /// The code in an answer.
            #[cfg(test)]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $code, )* }
            }

            /// Its HTTP status.
            #[cfg(test)]
            pub const fn status(self) -> u16 {
                match self { $( Self::$variant => $status, )* }
            }

            fn error(self) -> ControlError {
                match self {
                    $( Self::$variant => ControlError::of(Failure {
                        status: $status,
                        code: $code,
                        category: Category::$category,
                        retryable: $retryable,
                        action: Action::$action,
                        message: $message.into(),
                        details: None,
                        cause: None,
                    }), )*
                }
            }
        }
    };
}

codes! {
    UnknownPartition = "control.unknown_partition", NotFound, false, FixRequest, 404, "there is no such partition";
    UnknownTable = "control.unknown_table", NotFound, false, FixRequest, 404, "the schema has no such table";
    UnknownCheckpoint = "control.unknown_checkpoint", NotFound, false, FixRequest, 404, "the partition has no such checkpoint";
    NoGrant = "control.no_grant", NotFound, false, FixRequest, 404, "the actor has no grant in this partition";
    InvalidValue = "control.invalid_value", InvalidRequest, false, FixRequest, 422, "a value is out of its range";
    BodyTooLarge = "control.body_too_large", InvalidRequest, false, FixRequest, 413, "the request body is too large";
    Busy = "control.busy", Conflict, true, RetryLater, 409, "something else is going on in the partition";
    ProjectionNotLoaded = "control.projection_not_loaded", Conflict, false, FixRequest, 409, "this server has not loaded that backfill";
    VersionTaken = "control.version_taken", Conflict, false, FixRequest, 409, "the name belongs to a checkpoint of another schema version";
    MigrationRefused = "control.migration_refused", Conflict, false, FixRequest, 409, "the schema change is not allowed";
    BadDeclaration = "control.bad_declaration", InvalidRequest, false, FixRequest, 422, "the declaration cannot stand";
    CheckpointNotDeclared = "sync.storage.checkpoint_not_declared", Conflict, false, FixRequest, 409, "there is no such claimable checkpoint";
    CheckpointFenceMissing = "sync.storage.checkpoint_fence_missing", Conflict, false, InspectServer, 409, "the writer fence of the checkpoint is missing or too low";
    CheckpointIncomplete = "sync.storage.checkpoint_incomplete", Conflict, false, InspectServer, 409, "a checkpoint is incomplete and not declared here";
    StoredLayoutMismatch = "sync.storage.stored_layout_mismatch", Conflict, false, InspectServer, 409, "the schema changed without a new version";
    PhysicalLayoutMismatch = "sync.storage.physical_layout_mismatch", Conflict, false, InspectServer, 409, "a table in the database differs from its storage layout";
    CheckpointUnsupported = "sync.storage.checkpoint_unsupported", Internal, false, InspectServer, 501, "the database cannot fence writers";
    Unsupported = "control.unsupported", Internal, false, InspectServer, 501, "the database does not support this";
    NotReady = "control.not_ready", Internal, true, RetryLater, 503, "the database is still being prepared";
    Stopping = "control.stopping", Internal, true, RetryLater, 503, "the server is stopping";
}

impl ControlCode {
    /// The error with structured details.
    pub fn with(self, details: Json) -> ControlError {
        let mut error = self.error();
        if let Json::Object(details) = details {
            error.0.details = Some(details);
        }
        error
    }
}

impl From<ControlCode> for ControlError {
    fn from(code: ControlCode) -> Self {
        code.error()
    }
}

/// A value that is out of its range, and what it must be.
pub(crate) fn invalid(field: &'static str, expected: &'static str) -> ControlError {
    ControlCode::InvalidValue.with(json!({"field": field, "expected": expected}))
}

/// A request that ends with an error.
#[derive(Debug)]
pub struct ControlError(Box<Failure>);

#[derive(Debug)]
struct Failure {
    status: u16,
    code: &'static str,
    category: Category,
    retryable: bool,
    action: Action,
    message: std::borrow::Cow<'static, str>,
    details: Option<Map<String, Json>>,
    cause: Option<String>,
}

impl ControlError {
    fn of(failure: Failure) -> Self {
        Self(Box::new(failure))
    }

    /// Its code.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// What only the log may know.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }

    /// The same error with a status other than its code's.
    #[must_use]
    pub(crate) fn with_status(mut self, status: u16) -> Self {
        self.0.status = status;
        self
    }

    /// The database is away, which the log knows already.
    pub(crate) fn unavailable() -> Self {
        Self::from(out_of_reach()).with_status(503)
    }

    /// A failure of ours; `cause` is for the log.
    pub(crate) fn internal(cause: &(dyn std::error::Error + 'static)) -> Self {
        let mut error = Self::from(SyncError::new(
            ErrorCode::InternalError,
            "the server could not complete the request",
        ));
        error.0.cause = Some(chain(cause));
        error
    }

    fn body(&self) -> Json {
        let mut body = json!({
            "code": self.0.code,
            "category": self.0.category.as_str(),
            "retryable": self.0.retryable,
            "recommendedAction": self.0.action.as_str(),
            "message": self.0.message,
        });
        if let (Some(details), Json::Object(body)) = (&self.0.details, &mut body) {
            body.insert("details".to_owned(), details.clone().into());
        }
        body
    }
}

impl From<SyncError> for ControlError {
    fn from(error: SyncError) -> Self {
        Self::of(Failure {
            status: error.code.http_status(),
            code: error.code.as_str(),
            category: error.code.category(),
            retryable: error.code.retryable(),
            action: error.code.action(),
            message: error.message,
            details: error.details,
            cause: None,
        })
    }
}

impl From<StoreError> for ControlError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::UnknownPartition => ControlCode::UnknownPartition.into(),
            StoreError::CheckpointNotDeclared => ControlCode::CheckpointNotDeclared.into(),
            StoreError::CheckpointFenceMissing => ControlCode::CheckpointFenceMissing.into(),
            StoreError::CheckpointUnsupported => ControlCode::CheckpointUnsupported.into(),
            StoreError::Unsupported => ControlCode::Unsupported.into(),
            StoreError::EpochChanged => ControlCode::Busy.into(),
            StoreError::CheckpointIncomplete(pending) => ControlCode::CheckpointIncomplete
                .with(json!({"partition": pending.partition, "checkpoint": pending.name})),
            StoreError::CheckpointVersionTaken { name, existing } => ControlCode::VersionTaken
                .with(json!({"checkpoint": name, "schema_version": existing.0})),
            StoreError::BadDeclaration { name, reason } => {
                ControlCode::BadDeclaration.with(json!({"checkpoint": name, "reason": reason}))
            }
            StoreError::RefusedMigration { table, reason } => {
                ControlCode::MigrationRefused.with(json!({"table": table, "reason": reason}))
            }
            StoreError::StoredLayoutMismatch { table, column } => {
                ControlCode::StoredLayoutMismatch.with(json!({"table": table, "column": column}))
            }
            StoreError::PhysicalLayoutMismatch {
                table,
                column,
                reason,
                expected,
                actual,
            } => ControlCode::PhysicalLayoutMismatch.with(json!({
                "table": table, "column": column, "reason": reason,
                "expected": expected, "actual": actual,
            })),
            StoreError::NewerSchema { stored, running } => {
                SyncError::from(tidegate_engine::gate::GateRefusal::NewerSchema {
                    stored: *stored,
                    running: *running,
                })
                .into()
            }
            StoreError::NotPrepared => ControlCode::NotReady.into(),
            StoreError::Unavailable(_) | StoreError::Closed => {
                let mut away = Self::unavailable();
                away.0.cause = Some(chain(&error));
                away
            }
            StoreError::Failed { .. }
            | StoreError::Corrupt { .. }
            | StoreError::NotPermitted(_) => Self::internal(&error),
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)
    }
}

impl ResponseError for ControlError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        response.insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")));
        if self.0.status == 401 {
            response.insert_header((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        if self.0.status == 503 {
            response.insert_header((RETRY_AFTER, HeaderValue::from_static("1")));
        }
        response
            .content_type("application/json")
            .body(self.body().to_string())
    }
}

/// The error for what is no route.
pub(crate) fn no_route() -> ControlError {
    SyncError::new(ErrorCode::NotFound, "there is no such route").into()
}

/// 404 for everything that is no route.
pub(crate) async fn unknown_route(_: HttpRequest) -> Result<HttpResponse, ControlError> {
    Err(no_route())
}

/// 405 for a route's wrong method.
pub(crate) async fn wrong_method(_: HttpRequest) -> Result<HttpResponse, ControlError> {
    let error = SyncError::new(
        ErrorCode::InvalidRequest,
        "the route does not take this method",
    );
    Err(ControlError::from(error).with_status(405))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_text_stays_in_the_log() {
        let error = ControlError::from(StoreError::failed("reading", "SELECT secret"));
        assert_eq!(error.0.status, 500);
        assert!(!error.body().to_string().contains("SELECT"));
        assert!(error.cause().unwrap().contains("SELECT"));
        let away = ControlError::from(StoreError::Unavailable("host db.internal".into()));
        assert_eq!(away.0.status, 503);
        assert!(!away.body().to_string().contains("db.internal"));
    }

    #[test]
    fn every_code_is_documented() {
        let document = include_str!("../../docs/control.md");
        for code in ControlCode::ALL {
            let line = format!("| `{}` | {} |", code.as_str(), code.status());
            assert!(document.contains(&line), "docs/control.md lacks {line}");
        }
    }
}

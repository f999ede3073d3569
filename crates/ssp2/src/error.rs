//! The error catalogue (§10): one table, one row per code.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::message::ErrorFrame;

/// What kind of failure a code names (§10.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    /// The caller must authenticate again.
    AuthRequired,
    /// The actor may not do this.
    Forbidden,
    /// The request itself is wrong.
    InvalidRequest,
    /// Client and server schemas do not fit.
    SchemaMismatch,
    /// The thing named does not exist.
    NotFound,
    /// An optimistic-concurrency conflict.
    Conflict,
    /// The client must bootstrap again.
    ResetRequired,
    /// A granted scope is gone.
    ScopeRevoked,
    /// Too much, too fast.
    RateLimited,
    /// The server's own failure.
    Internal,
}

/// What a client should do about it (§10.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `refreshAuth`
    RefreshAuth,
    /// `checkPermissions`
    CheckPermissions,
    /// `fixRequest`
    FixRequest,
    /// `resetClientId`
    ResetClientId,
    /// `splitBatch`
    SplitBatch,
    /// `regenerateClient`
    RegenerateClient,
    /// `upgradeClient`
    UpgradeClient,
    /// `forceResync`
    ForceResync,
    /// `retryLater`
    RetryLater,
    /// `resolveConflict`
    ResolveConflict,
    /// `rebootstrap`
    Rebootstrap,
    /// `inspectServer`
    InspectServer,
}

impl Category {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthRequired => "auth-required",
            Self::Forbidden => "forbidden",
            Self::InvalidRequest => "invalid-request",
            Self::SchemaMismatch => "schema-mismatch",
            Self::NotFound => "not-found",
            Self::Conflict => "conflict",
            Self::ResetRequired => "reset-required",
            Self::ScopeRevoked => "scope-revoked",
            Self::RateLimited => "rate-limited",
            Self::Internal => "internal",
        }
    }
}

impl Action {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RefreshAuth => "refreshAuth",
            Self::CheckPermissions => "checkPermissions",
            Self::FixRequest => "fixRequest",
            Self::ResetClientId => "resetClientId",
            Self::SplitBatch => "splitBatch",
            Self::RegenerateClient => "regenerateClient",
            Self::UpgradeClient => "upgradeClient",
            Self::ForceResync => "forceResync",
            Self::RetryLater => "retryLater",
            Self::ResolveConflict => "resolveConflict",
            Self::Rebootstrap => "rebootstrap",
            Self::InspectServer => "inspectServer",
        }
    }
}

macro_rules! catalogue {
    ($( $variant:ident = $code:literal, $category:ident, $retryable:literal, $action:ident, $status:literal; )*) => {
        /// Every code of the catalogue (§10.2).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $( #[doc = concat!("`", $code, "`")] $variant, )*
        }

        impl ErrorCode {
            /// All codes, in catalogue order.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )* ];

            /// The code on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $code, )* }
            }
            /// Its category.
            pub const fn category(self) -> Category {
                match self { $( Self::$variant => Category::$category, )* }
            }
            /// Whether the same request may succeed later.
            pub const fn retryable(self) -> bool {
                match self { $( Self::$variant => $retryable, )* }
            }
            /// What the client should do.
            pub const fn action(self) -> Action {
                match self { $( Self::$variant => Action::$action, )* }
            }
            /// The HTTP status of a request that fails with this code.
            pub const fn http_status(self) -> u16 {
                match self { $( Self::$variant => $status, )* }
            }
            /// The code of that name.
            pub fn parse(code: &str) -> Option<Self> {
                match code { $( $code => Some(Self::$variant), )* _ => None }
            }
        }
    };
}

catalogue! {
    AuthRequired = "sync.auth_required", AuthRequired, true, RefreshAuth, 401;
    AuthLeaseRequired = "sync.auth_lease_required", AuthRequired, true, RefreshAuth, 401;
    AuthLeaseRevoked = "sync.auth_lease_revoked", AuthRequired, true, RefreshAuth, 401;
    Forbidden = "sync.forbidden", Forbidden, false, CheckPermissions, 403;
    OperationForbidden = "operation.forbidden", Forbidden, false, CheckPermissions, 403;
    BlobForbidden = "blob.forbidden", Forbidden, false, CheckPermissions, 403;
    InvalidRequest = "sync.invalid_request", InvalidRequest, false, FixRequest, 400;
    InvalidSubscription = "sync.invalid_subscription", InvalidRequest, false, FixRequest, 400;
    EmptyCommit = "sync.empty_commit", InvalidRequest, false, FixRequest, 400;
    ConstraintViolation = "sync.constraint_violation", InvalidRequest, false, FixRequest, 400;
    ReferenceViolation = "sync.reference_violation", InvalidRequest, false, FixRequest, 400;
    OperationInvalidRequest = "operation.invalid_request", InvalidRequest, false, FixRequest, 400;
    OperationResultTooLarge = "operation.result_too_large", InvalidRequest, false, FixRequest, 400;
    BlobHashMismatch = "blob.hash_mismatch", InvalidRequest, false, FixRequest, 400;
    BlobTooLarge = "blob.too_large", InvalidRequest, false, FixRequest, 413;
    InvalidClientId = "sync.invalid_client_id", InvalidRequest, false, ResetClientId, 400;
    TooManyOperations = "sync.too_many_operations", InvalidRequest, false, SplitBatch, 400;
    UnknownTable = "sync.unknown_table", SchemaMismatch, false, RegenerateClient, 400;
    SchemaMismatch = "sync.schema_mismatch", SchemaMismatch, false, RegenerateClient, 400;
    ClientSchemaUnsupported = "sync.client_schema_unsupported", SchemaMismatch, false, UpgradeClient, 400;
    ClientWireUnsupported = "sync.client_wire_unsupported", SchemaMismatch, false, UpgradeClient, 400;
    RowMissing = "sync.row_missing", NotFound, false, ForceResync, 404;
    NotFound = "sync.not_found", NotFound, false, ForceResync, 404;
    RowDeleted = "sync.row_deleted", NotFound, false, FixRequest, 400;
    BlobNotFound = "blob.not_found", NotFound, false, FixRequest, 404;
    OperationUnknown = "operation.unknown", NotFound, false, RegenerateClient, 404;
    SegmentExpired = "sync.segment_expired", NotFound, true, RetryLater, 404;
    VersionConflict = "sync.version_conflict", Conflict, false, ResolveConflict, 409;
    CursorExpired = "sync.cursor_expired", ResetRequired, false, Rebootstrap, 400;
    ScopeRevoked = "sync.scope_revoked", ScopeRevoked, false, CheckPermissions, 403;
    RateLimited = "sync.rate_limited", RateLimited, true, RetryLater, 429;
    WebsocketConnectionLimit = "sync.websocket_connection_limit", RateLimited, true, RetryLater, 429;
    MissingScopes = "sync.missing_scopes", Internal, false, InspectServer, 500;
    CrdtMergeFailed = "sync.crdt_merge_failed", Internal, false, InspectServer, 500;
    OperationQueryFailed = "operation.query_failed", Internal, false, InspectServer, 500;
    OperationExecutionFailed = "operation.execution_failed", Internal, false, InspectServer, 500;
    OperationStorageUnsupported = "operation.storage_unsupported", Internal, false, InspectServer, 500;
    IdempotencyCacheMiss = "sync.idempotency_cache_miss", Internal, true, RetryLater, 500;
    InternalError = "sync.internal_error", Internal, true, RetryLater, 500;
    SchemaNotReady = "sync.schema_not_ready", Internal, true, RetryLater, 503;
}

/// A catalogued failure of a whole request.
///
/// `message` never holds driver text, SQL, a path or a secret; values that vary
/// go into `details`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct SyncError {
    /// The catalogue code.
    pub code: ErrorCode,
    /// A static, public message.
    pub message: Cow<'static, str>,
    /// Structured details: a JSON object.
    pub details: Option<serde_json::Map<String, serde_json::Value>>,
}

impl SyncError {
    /// A failure without details.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
        }
    }

    /// The same failure with structured details.
    #[must_use]
    pub fn with_details(mut self, details: serde_json::Map<String, serde_json::Value>) -> Self {
        self.details = Some(details);
        self
    }
}

/// Bytes that are not a message (§1.7). `code` is `sync.invalid_request` unless
/// the specification names another one (`sync.empty_commit`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (at byte {offset})")]
pub struct DecodeError {
    /// The catalogue code.
    pub code: ErrorCode,
    /// What rule the bytes break.
    pub message: &'static str,
    /// Where in the input, in bytes from its start.
    pub offset: usize,
}

impl From<DecodeError> for SyncError {
    fn from(error: DecodeError) -> Self {
        Self::new(error.code, error.message)
    }
}

impl SyncError {
    /// The JSON body of a failed HTTP request (§10.1), members in the order of
    /// the specification; `details` only when there are any.
    pub fn to_json(&self) -> Value {
        let mut body = Map::new();
        let mut put = |key: &str, value: Value| body.insert(key.to_owned(), value);
        put("code", self.code.as_str().into());
        put("category", self.code.category().as_str().into());
        put("retryable", self.code.retryable().into());
        put("recommendedAction", self.code.action().as_str().into());
        put("message", self.message.as_ref().into());
        if let Some(details) = &self.details {
            put("details", Value::Object(details.clone()));
        }
        Value::Object(body)
    }
}

impl From<&SyncError> for ErrorFrame {
    fn from(error: &SyncError) -> Self {
        let details = error.details.as_ref();
        Self {
            code: error.code.as_str().to_owned(),
            message: error.message.clone().into_owned(),
            category: error.code.category().as_str().to_owned(),
            retryable: error.code.retryable(),
            recommended_action: error.code.action().as_str().to_owned(),
            details: details.map(|details| Value::Object(details.clone()).to_string()),
        }
    }
}

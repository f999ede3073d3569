//! The frames of both message kinds (§1.5, §1.6), as values.

use bytes::Bytes;

use crate::scope_map::{ScopeLists, ScopeValues};

/// The content type of a sync body.
pub const SYNC_CONTENT_TYPE: &str = "application/vnd.syncular.sync.v2";

/// A wire version this crate speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WireVersion {
    /// Full rows, no log epoch.
    V1 = 1,
    /// Full rows, log epoch.
    V2 = 2,
    /// Sparse push rows, conflict columns.
    V3 = 3,
}

/// A decoded request: frames between the envelope and END, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Wire version of the envelope.
    pub version: WireVersion,
    /// The frames; the first one is the header.
    pub frames: Vec<RequestFrame>,
}

/// A decoded response.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// Wire version of the envelope.
    pub version: WireVersion,
    /// The frames; the first one is the header.
    pub frames: Vec<ResponseFrame>,
}

/// A frame of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestFrame {
    /// 0x01
    Header(RequestHeader),
    /// 0x02
    PushCommit(PushCommit),
    /// 0x03
    PullHeader(PullHeader),
    /// 0x04
    Subscription(Subscription),
    /// A frame type without a layout: skipped and preserved (§1.2 rule 2).
    Unknown(UnknownFrame),
}

/// A frame of a response.
#[derive(Debug, Clone, PartialEq)]
pub enum ResponseFrame {
    /// 0x10
    Header(ResponseHeader),
    /// 0x19
    Lease(Lease),
    /// 0x11
    PushResult(PushResult),
    /// 0x1B
    PushResultDetails(PushResultDetails),
    /// 0x12
    SubStart(SubStart),
    /// 0x13
    Commit(Commit),
    /// 0x14
    SegmentRef(SegmentRef),
    /// 0x15: a whole SSG2 rows segment.
    SegmentInline(Bytes),
    /// 0x16
    SubEnd(SubEnd),
    /// 0x1F
    Error(ErrorFrame),
    /// A frame type without a layout: skipped and preserved.
    Unknown(UnknownFrame),
}

/// A preserved frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFrame {
    /// Its type byte.
    pub frame_type: u8,
    /// Its payload, untouched.
    pub payload: Bytes,
}

/// REQ_HEADER (§1.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// Stable device id, non-empty.
    pub client_id: String,
    /// The client's schema version, ≥ 1.
    pub schema_version: i32,
    /// v2+: the log epoch last accepted; absent asks for it.
    pub log_epoch: Option<String>,
}

/// PUSH_COMMIT (§6.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushCommit {
    /// Client-generated id, non-empty.
    pub client_commit_id: String,
    /// At least one.
    pub operations: Vec<Operation>,
}

/// One operation of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Target table.
    pub table: String,
    /// Rendered primary key.
    pub row_id: String,
    /// Optimistic base version.
    pub base_version: Option<i64>,
    /// What to do.
    pub kind: OperationKind,
}

/// Upsert with its row bytes (v1/v2 full, v3 sparse), or delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationKind {
    /// 1
    Upsert(Bytes),
    /// 2
    Delete,
}

/// PULL_HEADER (§4.2). Limits as sent, not clamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullHeader {
    /// Changes per subscription; 0 = default.
    pub limit_commits: i32,
    /// Rows per bootstrap page; 0 = default.
    pub limit_snapshot_rows: i32,
    /// Bootstrap pages per pull; 0 = default.
    pub max_snapshot_pages: i32,
    /// Capability bits 0..=3.
    pub accept: u8,
}

/// `accept` bit: rows segments inline.
pub const ACCEPT_INLINE_ROWS: u8 = 1;
/// `accept` bit: rows segments by reference.
pub const ACCEPT_EXTERNAL_ROWS: u8 = 1 << 1;
/// `accept` bit: SQLite images.
pub const ACCEPT_SQLITE: u8 = 1 << 2;
/// `accept` bit: signed URLs.
pub const ACCEPT_SIGNED_URLS: u8 = 1 << 3;

/// SUBSCRIPTION (§4.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Client-chosen id.
    pub id: String,
    /// Table.
    pub table: String,
    /// Requested scopes.
    pub scopes: ScopeLists,
    /// Raw JSON, kept byte for byte.
    pub params: Option<String>,
    /// Last applied commit; -1 = never.
    pub cursor: i64,
    /// Raw JSON resume token, kept byte for byte.
    pub bootstrap_state: Option<String>,
}

/// RESP_HEADER (§1.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Only in a schema-floor answer.
    pub required_schema_version: Option<i32>,
    /// Newest schema the server knows.
    pub latest_schema_version: Option<i32>,
    /// v2+ (both or neither by version).
    pub epoch: Option<EpochHeader>,
}

/// The v2+ part of RESP_HEADER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochHeader {
    /// Current log epoch.
    pub log_epoch: String,
    /// The client must reset first.
    pub reset_required: bool,
}

/// LEASE (§7.3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Opaque id.
    pub lease_id: String,
    /// Epoch milliseconds.
    pub expires_at_ms: i64,
}

/// PUSH_RESULT (§6.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushResult {
    /// Echo.
    pub client_commit_id: String,
    /// Outcome.
    pub status: PushStatus,
    /// Per-operation records.
    pub results: Vec<OperationResult>,
}

/// Outcome of a commit; the sequence number is present iff not rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushStatus {
    /// 1
    Applied(i64),
    /// 2
    Cached(i64),
    /// 3
    Rejected,
}

/// One result record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationResult {
    /// Index into the commit's operations.
    pub op_index: i32,
    /// Outcome.
    pub outcome: OperationOutcome,
}

/// Tagged outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationOutcome {
    /// 1
    Applied,
    /// 2
    Conflict {
        /// Code, e.g. `sync.version_conflict`.
        code: String,
        /// Public message.
        message: String,
        /// Current row version.
        server_version: i64,
        /// Current full row.
        server_row: Bytes,
        /// v3: bitmap of conflicting columns; left out of v1/v2 bytes.
        conflict_columns: Bytes,
    },
    /// 3
    Error {
        /// Catalogue or host code.
        code: String,
        /// Public message.
        message: String,
        /// Whether a retry may succeed.
        retryable: bool,
    },
}

/// PUSH_RESULT_DETAILS (§6.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushResultDetails {
    /// Echo of the preceding rejected result.
    pub client_commit_id: String,
    /// Non-empty.
    pub entries: Vec<DetailEntry>,
}

/// One detail entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetailEntry {
    /// Index of an error record.
    pub op_index: i32,
    /// Normalized JSON object of at most 4,096 bytes.
    pub details_json: String,
}

/// SUB_START (§4.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubStart {
    /// Echo.
    pub id: String,
    /// Status.
    pub status: SubStatus,
    /// Empty for active.
    pub reason_code: String,
    /// Empty unless active.
    pub effective_scopes: ScopeLists,
    /// Segments follow.
    pub bootstrap: bool,
}

/// Status of a subscription answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubStatus {
    /// 1
    Active,
    /// 2
    Revoked,
    /// 3
    Reset,
}

/// COMMIT (§4.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Sequence number.
    pub commit_seq: i64,
    /// Epoch milliseconds.
    pub created_at_ms: i64,
    /// Pushing actor.
    pub actor_id: String,
    /// Frame-local table dictionary.
    pub tables: Vec<String>,
    /// Matching changes.
    pub changes: Vec<Change>,
}

/// One change record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Index into `tables`.
    pub table_index: u16,
    /// Rendered primary key.
    pub row_id: String,
    /// Stored scopes.
    pub scopes: ScopeValues,
    /// What happened.
    pub kind: ChangeKind,
}

/// Upsert with its row, or delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// 1
    Upsert {
        /// Row version after the write.
        row_version: i64,
        /// Full row.
        row: Bytes,
    },
    /// 2
    Delete,
}

/// Media type of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaType {
    /// 1
    Rows,
    /// 2
    Sqlite,
}

/// SEGMENT_REF (§5.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRef {
    /// `sha256:` + hex.
    pub segment_id: String,
    /// Format of the bytes.
    pub media_type: MediaType,
    /// Table.
    pub table: String,
    /// Uncompressed bytes.
    pub byte_length: i64,
    /// Rows inside.
    pub row_count: i64,
    /// Pin.
    pub as_of_commit_seq: i64,
    /// Digest of the effective scopes.
    pub scope_digest: String,
    /// First page position.
    pub row_cursor: Option<String>,
    /// Next page position.
    pub next_row_cursor: Option<String>,
    /// Signed URL with its expiry in epoch milliseconds.
    pub url: Option<(String, i64)>,
}

/// SUB_END (§4.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubEnd {
    /// Cursor to persist.
    pub next_cursor: i64,
    /// Raw JSON resume token; absent = complete.
    pub bootstrap_state: Option<String>,
}

/// ERROR (§1.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFrame {
    /// Catalogue code.
    pub code: String,
    /// Public message.
    pub message: String,
    /// Category name.
    pub category: String,
    /// Whether a retry may succeed.
    pub retryable: bool,
    /// Action name.
    pub recommended_action: String,
    /// Raw JSON.
    pub details: Option<String>,
}

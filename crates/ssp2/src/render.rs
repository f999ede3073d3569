//! The canonical debug rendering (§11.1) of messages, segments and sparse rows.
//!
//! Members stand in the order of the field tables; absent optionals are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value as Json};

use crate::error::DecodeError;
use crate::inspect::render_bytes;
use crate::json_value;
use crate::message::*;
use crate::row::{Column, ColumnType, RowError, Value, decode_sparse_row};
use crate::scope_map::ScopeMap;
use crate::segment::Segment;

/// A JSON object under construction.
#[derive(Default)]
struct Object(Map<String, Json>);

impl Object {
    fn frame(name: &str) -> Self {
        Self::default().with("type", name)
    }
    fn with(mut self, key: &str, value: impl Into<Json>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }
    fn with_opt(self, key: &str, value: Option<impl Into<Json>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }
    fn with_json(self, key: &str, text: Option<&String>) -> Self {
        self.with_opt(key, text.map(|text| json_value::parse(text)))
    }
    fn done(self) -> Json {
        Json::Object(self.0)
    }
}

fn binary(bytes: &[u8]) -> Json {
    Json::String(STANDARD.encode(bytes))
}

fn list<T>(items: &[T], render: impl FnMut(&T) -> Json) -> Json {
    items.iter().map(render).collect()
}

fn scopes<V: Clone + Into<Json>>(map: &ScopeMap<V>) -> Json {
    let entries = map.iter();
    Json::Object(
        entries
            .map(|(key, value)| (key.to_owned(), value.clone().into()))
            .collect(),
    )
}

fn message(version: WireVersion, kind: &str, frames: Json) -> Json {
    Object::default()
        .with("magic", "SSP2")
        .with("wireVersion", version as u16)
        .with("msgKind", kind)
        .with("frames", frames)
        .done()
}

/// Renders a request.
pub fn render_request(request: &Request) -> Json {
    message(
        request.version,
        "request",
        list(&request.frames, request_frame),
    )
}

/// Renders a response. `conflictColumns` shows from wire version 3 on.
pub fn render_response(response: &Response) -> Json {
    let version = response.version;
    message(
        version,
        "response",
        list(&response.frames, |frame| response_frame(version, frame)),
    )
}

/// Renders whatever the bytes are: a request, a response or a rows segment.
///
/// # Errors
/// They are none of these, or not a valid one.
pub fn render_message_json(bytes: Bytes) -> Result<Json, DecodeError> {
    render_bytes(bytes).map(|(_, rendered)| rendered)
}

fn unknown(frame: &UnknownFrame) -> Json {
    Object::frame("UNKNOWN")
        .with("frameType", frame.frame_type)
        .with("payload", binary(&frame.payload))
        .done()
}

fn request_frame(frame: &RequestFrame) -> Json {
    match frame {
        RequestFrame::Header(header) => Object::frame("REQ_HEADER")
            .with("clientId", header.client_id.as_str())
            .with("schemaVersion", header.schema_version)
            .with_opt("logEpoch", header.log_epoch.as_deref())
            .done(),
        RequestFrame::PushCommit(commit) => Object::frame("PUSH_COMMIT")
            .with("clientCommitId", commit.client_commit_id.as_str())
            .with("operations", list(&commit.operations, operation))
            .done(),
        RequestFrame::PullHeader(pull) => Object::frame("PULL_HEADER")
            .with("limitCommits", pull.limit_commits)
            .with("limitSnapshotRows", pull.limit_snapshot_rows)
            .with("maxSnapshotPages", pull.max_snapshot_pages)
            .with("accept", pull.accept)
            .done(),
        RequestFrame::Subscription(subscription) => Object::frame("SUBSCRIPTION")
            .with("id", subscription.id.as_str())
            .with("table", subscription.table.as_str())
            .with("scopes", scopes(&subscription.scopes))
            .with_json("params", subscription.params.as_ref())
            .with("cursor", subscription.cursor)
            .with_json("bootstrapState", subscription.bootstrap_state.as_ref())
            .done(),
        RequestFrame::Unknown(frame) => unknown(frame),
    }
}

fn operation(operation: &Operation) -> Json {
    let (op, payload) = match &operation.kind {
        OperationKind::Upsert(payload) => ("upsert", Some(binary(payload))),
        OperationKind::Delete => ("delete", None),
    };
    Object::default()
        .with("table", operation.table.as_str())
        .with("rowId", operation.row_id.as_str())
        .with("op", op)
        .with_opt("baseVersion", operation.base_version)
        .with_opt("payload", payload)
        .done()
}

fn response_frame(version: WireVersion, frame: &ResponseFrame) -> Json {
    match frame {
        ResponseFrame::Header(header) => {
            let epoch = header.epoch.as_ref();
            Object::frame("RESP_HEADER")
                .with_opt("requiredSchemaVersion", header.required_schema_version)
                .with_opt("latestSchemaVersion", header.latest_schema_version)
                .with_opt("logEpoch", epoch.map(|epoch| epoch.log_epoch.as_str()))
                .with_opt("resetRequired", epoch.map(|epoch| epoch.reset_required))
                .done()
        }
        ResponseFrame::Lease(lease) => Object::frame("LEASE")
            .with("leaseId", lease.lease_id.as_str())
            .with("expiresAtMs", lease.expires_at_ms)
            .done(),
        ResponseFrame::PushResult(result) => push_result(version, result),
        ResponseFrame::PushResultDetails(details) => Object::frame("PUSH_RESULT_DETAILS")
            .with("clientCommitId", details.client_commit_id.as_str())
            .with("entries", list(&details.entries, detail_entry))
            .done(),
        ResponseFrame::SubStart(start) => Object::frame("SUB_START")
            .with("id", start.id.as_str())
            .with(
                "status",
                match start.status {
                    SubStatus::Active => "active",
                    SubStatus::Revoked => "revoked",
                    SubStatus::Reset => "reset",
                },
            )
            .with("reasonCode", start.reason_code.as_str())
            .with("effectiveScopes", scopes(&start.effective_scopes))
            .with("bootstrap", start.bootstrap)
            .done(),
        ResponseFrame::Commit(commit) => Object::frame("COMMIT")
            .with("commitSeq", commit.commit_seq)
            .with("createdAtMs", commit.created_at_ms)
            .with("actorId", commit.actor_id.as_str())
            .with("tables", commit.tables.clone())
            .with("changes", list(&commit.changes, change))
            .done(),
        ResponseFrame::SegmentRef(reference) => segment_ref(reference),
        ResponseFrame::SegmentInline(segment) => Object::frame("SEGMENT_INLINE")
            .with("payload", binary(segment))
            .done(),
        ResponseFrame::SubEnd(end) => Object::frame("SUB_END")
            .with("nextCursor", end.next_cursor)
            .with_json("bootstrapState", end.bootstrap_state.as_ref())
            .done(),
        ResponseFrame::Error(error) => Object::frame("ERROR")
            .with("code", error.code.as_str())
            .with("message", error.message.as_str())
            .with("category", error.category.as_str())
            .with("retryable", error.retryable)
            .with("recommendedAction", error.recommended_action.as_str())
            .with_json("details", error.details.as_ref())
            .done(),
        ResponseFrame::Unknown(frame) => unknown(frame),
    }
}

fn push_result(version: WireVersion, result: &PushResult) -> Json {
    let (status, commit_seq) = match result.status {
        PushStatus::Applied(seq) => ("applied", Some(seq)),
        PushStatus::Cached(seq) => ("cached", Some(seq)),
        PushStatus::Rejected => ("rejected", None),
    };
    Object::frame("PUSH_RESULT")
        .with("clientCommitId", result.client_commit_id.as_str())
        .with("status", status)
        .with_opt("commitSeq", commit_seq)
        .with(
            "results",
            list(&result.results, |record| result_record(version, record)),
        )
        .done()
}

fn result_record(version: WireVersion, record: &OperationResult) -> Json {
    let object = Object::default().with("opIndex", record.op_index);
    match &record.outcome {
        OperationOutcome::Applied => object.with("status", "applied"),
        OperationOutcome::Conflict {
            code,
            message,
            server_version,
            server_row,
            conflict_columns,
        } => object
            .with("status", "conflict")
            .with("code", code.as_str())
            .with("message", message.as_str())
            .with("serverVersion", *server_version)
            .with("serverRow", binary(server_row))
            .with_opt(
                "conflictColumns",
                (version >= WireVersion::V3).then(|| binary(conflict_columns)),
            ),
        OperationOutcome::Error {
            code,
            message,
            retryable,
        } => object
            .with("status", "error")
            .with("code", code.as_str())
            .with("message", message.as_str())
            .with("retryable", *retryable),
    }
    .done()
}

/// `detailsJson` is a `str` field, not a `json` one, and shows as its text.
fn detail_entry(entry: &DetailEntry) -> Json {
    Object::default()
        .with("opIndex", entry.op_index)
        .with("detailsJson", entry.details_json.as_str())
        .done()
}

fn change(change: &Change) -> Json {
    let object = Object::default()
        .with("tableIndex", change.table_index)
        .with("rowId", change.row_id.as_str());
    match &change.kind {
        ChangeKind::Upsert { row_version, row } => object
            .with("op", "upsert")
            .with("rowVersion", *row_version)
            .with("scopes", scopes(&change.scopes))
            .with("row", binary(row)),
        ChangeKind::Delete => object
            .with("op", "delete")
            .with("scopes", scopes(&change.scopes)),
    }
    .done()
}

fn segment_ref(reference: &SegmentRef) -> Json {
    let url = reference.url.as_ref();
    Object::frame("SEGMENT_REF")
        .with("segmentId", reference.segment_id.as_str())
        .with(
            "mediaType",
            match reference.media_type {
                MediaType::Rows => "rows",
                MediaType::Sqlite => "sqlite",
            },
        )
        .with("table", reference.table.as_str())
        .with("byteLength", reference.byte_length)
        .with("rowCount", reference.row_count)
        .with("asOfCommitSeq", reference.as_of_commit_seq)
        .with("scopeDigest", reference.scope_digest.as_str())
        .with_opt("rowCursor", reference.row_cursor.as_deref())
        .with_opt("nextRowCursor", reference.next_row_cursor.as_deref())
        .with_opt("url", url.map(|(url, _)| url.as_str()))
        .with_opt("urlExpiresAtMs", url.map(|(_, expires)| *expires))
        .done()
}

/// Renders a rows segment (rule 8).
pub fn render_segment(segment: &Segment) -> Json {
    let header = &segment.header;
    let blocks = list(&segment.blocks, |rows| {
        list(rows, |row| {
            let cells = row.values.iter().map(Some);
            Object::default()
                .with("serverVersion", row.server_version)
                .with("values", values(&header.columns, cells))
                .done()
        })
    });
    Object::default()
        .with("magic", "SSG2")
        .with("formatVersion", 1)
        .with("table", header.table.as_str())
        .with("schemaVersion", header.schema_version)
        .with("columns", list(&header.columns, column))
        .with("blocks", blocks)
        .done()
}

/// Renders a sparse row payload (rule 11): absent columns have no member.
///
/// # Errors
/// The bytes are not a sparse row of these columns.
pub fn render_sparse_row(
    columns: &[Column],
    primary_key: usize,
    payload: &Bytes,
) -> Result<Json, RowError> {
    let row = decode_sparse_row(columns, primary_key, payload)?;
    Ok(Object::default()
        .with("columns", list(columns, column))
        .with("values", values(columns, row.iter().map(Option::as_ref)))
        .done())
}

fn column(column: &Column) -> Json {
    Object::default()
        .with("name", column.name.as_str())
        .with("type", column.ty.name())
        .with("nullable", column.nullable)
        .done()
}

fn values<'a>(columns: &[Column], cells: impl Iterator<Item = Option<&'a Value>>) -> Json {
    columns
        .iter()
        .zip(cells)
        .fold(Object::default(), |object, (column, cell)| {
            object.with_opt(&column.name, cell.map(|value| cell_value(column.ty, value)))
        })
        .done()
}

fn cell_value(ty: ColumnType, value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Text(text) if matches!(ty, ColumnType::Json | ColumnType::BlobRef) => {
            json_value::parse(text)
        }
        Value::Text(text) => text.as_str().into(),
        Value::Integer(value) => (*value).into(),
        Value::Float(value) => json_value::number(*value),
        Value::Boolean(value) => (*value).into(),
        Value::Bytes(bytes) => binary(bytes),
    }
}

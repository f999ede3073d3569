//! Encoding: whole messages and frame by frame, lengths back-patched in place.

use bytes::{BufMut, Bytes, BytesMut};

use crate::details::check_entries;
use crate::frame::{Envelope, FrameType, Grammar, MessageKind, is_registered};
use crate::json::is_valid_json;
use crate::message::*;
use crate::primitives::{
    MAX_SAFE_INTEGER, put_bool, put_bytes, put_count, put_opt, put_scope_lists, put_scope_values,
    put_text,
};

/// Why a value is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The frame may not stand here (§1.5, §1.6).
    #[error("{0}")]
    Order(&'static str),
    /// An unknown frame carries a registered type byte (§1.2 rule 2).
    #[error("frame type {0:#04x} is registered and cannot be carried as unknown")]
    RegisteredUnknown(u8),
    /// The frame's payload is above 4 GiB − 1.
    #[error("a frame is too large")]
    TooLarge,
    /// A field breaks its field table; the decoder would refuse it.
    #[error("{0}")]
    Field(&'static str),
}

/// Encodes a whole request.
///
/// # Errors
/// When the frames are no message.
pub fn encode_request(request: &Request) -> Result<Bytes, EncodeError> {
    let mut encoder = RequestEncoder::new(request.version);
    for frame in &request.frames {
        encoder.frame(frame)?;
    }
    encoder.finish()
}

/// Encodes a whole response.
///
/// # Errors
/// When the frames are no message.
pub fn encode_response(response: &Response) -> Result<Bytes, EncodeError> {
    let mut encoder = ResponseEncoder::new(response.version);
    for frame in &response.frames {
        encoder.frame(frame)?;
    }
    encoder.finish()
}

macro_rules! encoder {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $frame:ty, $accept:ident, $encode:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            version: WireVersion,
            grammar: Grammar,
            out: BytesMut,
        }

        impl $name {
            /// Starts a message: the envelope is written.
            pub fn new(version: WireVersion) -> Self {
                let mut out = BytesMut::with_capacity(512);
                out.put_slice(&Envelope { version, kind: MessageKind::$kind }.to_bytes());
                Self { version, grammar: Grammar::new(MessageKind::$kind), out }
            }

            /// Appends a frame.
            ///
            /// # Errors
            /// When it may not stand here or breaks its field table; the encoder is
            /// then as before.
            pub fn frame(&mut self, frame: &$frame) -> Result<(), EncodeError> {
                let mut grammar = self.grammar;
                $accept(&mut grammar, frame).map_err(EncodeError::Order)?;
                $encode(self.version, frame, &mut self.out)?;
                self.grammar = grammar;
                Ok(())
            }

            /// Takes what is written so far, for sending.
            pub fn take(&mut self) -> Bytes {
                self.out.split().freeze()
            }

            /// Bytes written and not taken.
            pub fn buffered(&self) -> usize {
                self.out.len()
            }

            /// Ends the message and returns the bytes not taken yet.
            ///
            /// # Errors
            /// When END may not stand here.
            pub fn finish(mut self) -> Result<Bytes, EncodeError> {
                self.grammar.accept(FrameType::End).map_err(EncodeError::Order)?;
                self.out.put_slice(&[0; 5]);
                Ok(self.out.freeze())
            }
        }
    };
}

encoder!(
    /// Writes a request frame by frame.
    RequestEncoder, Request, RequestFrame, accept_request, encode_request_frame
);
encoder!(
    /// Writes a response frame by frame.
    ResponseEncoder, Response, ResponseFrame, accept_response, encode_response_frame
);

impl ResponseEncoder {
    /// Appends a COMMIT frame that [`encode_response_frame`] wrote earlier for the same wire version.
    ///
    /// # Errors
    /// When a COMMIT may not stand here.
    pub fn encoded_commit(&mut self, frame: &[u8]) -> Result<(), EncodeError> {
        self.grammar
            .accept(FrameType::Commit)
            .map_err(EncodeError::Order)?;
        self.out.put_slice(frame);
        Ok(())
    }
}

fn accept_request(grammar: &mut Grammar, frame: &RequestFrame) -> Result<(), &'static str> {
    grammar.accept(request_type(frame))
}

fn accept_response(grammar: &mut Grammar, frame: &ResponseFrame) -> Result<(), &'static str> {
    grammar.accept(response_type(frame))?;
    if let ResponseFrame::PushResult(result) = frame {
        grammar.push_result(result.status == PushStatus::Rejected);
    }
    Ok(())
}

fn request_type(frame: &RequestFrame) -> FrameType {
    match frame {
        RequestFrame::Header(_) => FrameType::RequestHeader,
        RequestFrame::PushCommit(_) => FrameType::PushCommit,
        RequestFrame::PullHeader(_) => FrameType::PullHeader,
        RequestFrame::Subscription(_) => FrameType::Subscription,
        RequestFrame::Unknown(frame) => FrameType::Unknown(frame.frame_type),
    }
}

fn response_type(frame: &ResponseFrame) -> FrameType {
    match frame {
        ResponseFrame::Header(_) => FrameType::ResponseHeader,
        ResponseFrame::Lease(_) => FrameType::Lease,
        ResponseFrame::PushResult(_) => FrameType::PushResult,
        ResponseFrame::PushResultDetails(_) => FrameType::PushResultDetails,
        ResponseFrame::SubStart(_) => FrameType::SubStart,
        ResponseFrame::Commit(_) => FrameType::Commit,
        ResponseFrame::SegmentRef(_) => FrameType::SegmentRef,
        ResponseFrame::SegmentInline(_) => FrameType::SegmentInline,
        ResponseFrame::SubEnd(_) => FrameType::SubEnd,
        ResponseFrame::Error(_) => FrameType::Error,
        ResponseFrame::Unknown(frame) => FrameType::Unknown(frame.frame_type),
    }
}

/// Writes type, length and payload. On an error the buffer is as before.
fn framed(
    out: &mut BytesMut,
    frame_type: FrameType,
    write: impl FnOnce(&mut BytesMut) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.put_u8(frame_type.byte());
    out.put_u32_le(0);
    let written = write(out).and_then(|()| {
        let length = out.len() - start - 5;
        u32::try_from(length).map_err(|_| EncodeError::TooLarge)
    });
    match written {
        Ok(length) => {
            out[start + 1..start + 5].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

fn unknown(frame: &UnknownFrame, out: &mut BytesMut) -> Result<(), EncodeError> {
    if is_registered(frame.frame_type) {
        return Err(EncodeError::RegisteredUnknown(frame.frame_type));
    }
    framed(out, FrameType::Unknown(frame.frame_type), |out| {
        out.put_slice(&frame.payload);
        Ok(())
    })
}

fn put_i64(out: &mut BytesMut, value: i64) -> Result<(), EncodeError> {
    if !(-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(&value) {
        return Err(EncodeError::Field("an integer is outside the safe range"));
    }
    out.put_i64_le(value);
    Ok(())
}

fn put_opt_i64(out: &mut BytesMut, value: Option<i64>) -> Result<(), EncodeError> {
    match value {
        None => out.put_u8(0),
        Some(value) => {
            out.put_u8(1);
            put_i64(out, value)?;
        }
    }
    Ok(())
}

fn put_opt_text(out: &mut BytesMut, value: Option<&String>) {
    put_opt(out, value, |out, text| put_text(out, text));
}

fn put_opt_json(out: &mut BytesMut, value: Option<&String>) -> Result<(), EncodeError> {
    if value.is_some_and(|text| !is_valid_json(text)) {
        return Err(EncodeError::Field("a json value does not parse"));
    }
    put_opt_text(out, value);
    Ok(())
}

/// Appends one request frame, header included.
///
/// # Errors
/// When a field breaks its field table.
pub fn encode_request_frame(
    version: WireVersion,
    frame: &RequestFrame,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    match frame {
        RequestFrame::Unknown(frame) => unknown(frame, out),
        RequestFrame::Header(header) => framed(out, FrameType::RequestHeader, |out| {
            if header.log_epoch.is_some() && version < WireVersion::V2 {
                return Err(EncodeError::Field(
                    "the log epoch does not fit the wire version",
                ));
            }
            if header.client_id.is_empty() || header.schema_version < 1 {
                return Err(EncodeError::Field(
                    "clientId is empty or schemaVersion is below 1",
                ));
            }
            put_text(out, &header.client_id);
            out.put_i32_le(header.schema_version);
            if version >= WireVersion::V2 {
                put_opt_text(out, header.log_epoch.as_ref());
            }
            Ok(())
        }),
        RequestFrame::PushCommit(commit) => framed(out, FrameType::PushCommit, |out| {
            if commit.client_commit_id.is_empty() || commit.operations.is_empty() {
                return Err(EncodeError::Field("clientCommitId or operations are empty"));
            }
            put_text(out, &commit.client_commit_id);
            put_count(out, commit.operations.len());
            for operation in &commit.operations {
                put_text(out, &operation.table);
                put_text(out, &operation.row_id);
                match &operation.kind {
                    OperationKind::Upsert(payload) => {
                        out.put_u8(1);
                        put_opt_i64(out, operation.base_version)?;
                        out.put_u8(1);
                        put_bytes(out, payload);
                    }
                    OperationKind::Delete => {
                        out.put_u8(2);
                        put_opt_i64(out, operation.base_version)?;
                        out.put_u8(0);
                    }
                }
            }
            Ok(())
        }),
        RequestFrame::PullHeader(header) => framed(out, FrameType::PullHeader, |out| {
            if header.accept & 0xF0 != 0 {
                return Err(EncodeError::Field("accept has an unknown bit set"));
            }
            out.put_i32_le(header.limit_commits);
            out.put_i32_le(header.limit_snapshot_rows);
            out.put_i32_le(header.max_snapshot_pages);
            out.put_u8(header.accept);
            Ok(())
        }),
        RequestFrame::Subscription(sub) => framed(out, FrameType::Subscription, |out| {
            put_text(out, &sub.id);
            put_text(out, &sub.table);
            put_scope_lists(out, &sub.scopes);
            put_opt_json(out, sub.params.as_ref())?;
            put_i64(out, sub.cursor)?;
            put_opt_json(out, sub.bootstrap_state.as_ref())
        }),
    }
}

/// Appends one response frame, header included. A SEGMENT_INLINE payload is taken
/// as it is: [`crate::SegmentWriter`] made it.
///
/// # Errors
/// When a field breaks its field table.
pub fn encode_response_frame(
    version: WireVersion,
    frame: &ResponseFrame,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let frame_type = response_type(frame);
    match frame {
        ResponseFrame::Unknown(frame) => unknown(frame, out),
        ResponseFrame::Header(header) => framed(out, frame_type, |out| {
            put_opt(out, header.required_schema_version, BytesMut::put_i32_le);
            put_opt(out, header.latest_schema_version, BytesMut::put_i32_le);
            match (&header.epoch, version >= WireVersion::V2) {
                (Some(epoch), true) => {
                    put_text(out, &epoch.log_epoch);
                    put_bool(out, epoch.reset_required);
                    Ok(())
                }
                (None, false) => Ok(()),
                _ => Err(EncodeError::Field(
                    "the log epoch does not fit the wire version",
                )),
            }
        }),
        ResponseFrame::Lease(lease) => framed(out, frame_type, |out| {
            put_text(out, &lease.lease_id);
            put_i64(out, lease.expires_at_ms)
        }),
        ResponseFrame::PushResult(result) => {
            framed(out, frame_type, |out| push_result(version, result, out))
        }
        ResponseFrame::PushResultDetails(details) => framed(out, frame_type, |out| {
            check_entries(&details.entries).map_err(EncodeError::Field)?;
            put_text(out, &details.client_commit_id);
            put_count(out, details.entries.len());
            for entry in &details.entries {
                out.put_i32_le(entry.op_index);
                put_text(out, &entry.details_json);
            }
            Ok(())
        }),
        ResponseFrame::SubStart(start) => framed(out, frame_type, |out| {
            put_text(out, &start.id);
            out.put_u8(match start.status {
                SubStatus::Active => 1,
                SubStatus::Revoked => 2,
                SubStatus::Reset => 3,
            });
            put_text(out, &start.reason_code);
            put_scope_lists(out, &start.effective_scopes);
            put_bool(out, start.bootstrap);
            Ok(())
        }),
        ResponseFrame::Commit(commit) => framed(out, frame_type, |out| put_commit(commit, out)),
        ResponseFrame::SegmentRef(segment) => {
            framed(out, frame_type, |out| segment_ref(segment, out))
        }
        ResponseFrame::SegmentInline(bytes) => framed(out, frame_type, |out| {
            out.put_slice(bytes);
            Ok(())
        }),
        ResponseFrame::SubEnd(end) => framed(out, frame_type, |out| {
            put_i64(out, end.next_cursor)?;
            put_opt_json(out, end.bootstrap_state.as_ref())
        }),
        ResponseFrame::Error(error) => framed(out, frame_type, |out| {
            put_text(out, &error.code);
            put_text(out, &error.message);
            put_text(out, &error.category);
            put_bool(out, error.retryable);
            put_text(out, &error.recommended_action);
            put_opt_json(out, error.details.as_ref())
        }),
    }
}

fn push_result(
    version: WireVersion,
    result: &PushResult,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    put_text(out, &result.client_commit_id);
    let (status, seq) = match result.status {
        PushStatus::Applied(seq) => (1, Some(seq)),
        PushStatus::Cached(seq) => (2, Some(seq)),
        PushStatus::Rejected => (3, None),
    };
    out.put_u8(status);
    put_opt_i64(out, seq)?;
    put_count(out, result.results.len());
    for record in &result.results {
        out.put_i32_le(record.op_index);
        match &record.outcome {
            OperationOutcome::Applied => out.put_u8(1),
            OperationOutcome::Conflict {
                code,
                message,
                server_version,
                server_row,
                conflict_columns,
            } => {
                out.put_u8(2);
                put_text(out, code);
                put_text(out, message);
                put_i64(out, *server_version)?;
                put_bytes(out, server_row);
                if version >= WireVersion::V3 {
                    put_bytes(out, conflict_columns);
                }
            }
            OperationOutcome::Error {
                code,
                message,
                retryable,
            } => {
                out.put_u8(3);
                put_text(out, code);
                put_text(out, message);
                put_bool(out, *retryable);
            }
        }
    }
    Ok(())
}

fn put_commit(commit: &Commit, out: &mut BytesMut) -> Result<(), EncodeError> {
    put_i64(out, commit.commit_seq)?;
    put_i64(out, commit.created_at_ms)?;
    put_text(out, &commit.actor_id);
    put_count(out, commit.tables.len());
    for table in &commit.tables {
        put_text(out, table);
    }
    put_count(out, commit.changes.len());
    for change in &commit.changes {
        if usize::from(change.table_index) >= commit.tables.len() {
            return Err(EncodeError::Field("a change's tableIndex is out of range"));
        }
        out.put_u16_le(change.table_index);
        put_text(out, &change.row_id);
        match &change.kind {
            ChangeKind::Upsert { row_version, row } => {
                out.put_u8(1);
                put_opt_i64(out, Some(*row_version))?;
                put_scope_values(out, &change.scopes);
                out.put_u8(1);
                put_bytes(out, row);
            }
            ChangeKind::Delete => {
                out.put_u8(2);
                out.put_u8(0);
                put_scope_values(out, &change.scopes);
                out.put_u8(0);
            }
        }
    }
    Ok(())
}

fn segment_ref(segment: &SegmentRef, out: &mut BytesMut) -> Result<(), EncodeError> {
    put_text(out, &segment.segment_id);
    out.put_u8(match segment.media_type {
        MediaType::Rows => 1,
        MediaType::Sqlite => 2,
    });
    put_text(out, &segment.table);
    put_i64(out, segment.byte_length)?;
    put_i64(out, segment.row_count)?;
    put_i64(out, segment.as_of_commit_seq)?;
    put_text(out, &segment.scope_digest);
    put_opt_text(out, segment.row_cursor.as_ref());
    put_opt_text(out, segment.next_row_cursor.as_ref());
    put_opt(out, segment.url.as_ref(), |out, (url, _)| {
        put_text(out, url)
    });
    put_opt_i64(out, segment.url.as_ref().map(|(_, expires)| *expires))
}

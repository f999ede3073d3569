//! Decoding: whole messages and frame payloads.
//!
//! What is rejected here is exactly the list of §1.7; everything that needs a
//! schema or other frames' content is request validation and not decided here.

use bytes::Bytes;

use crate::details::check_entries;
use crate::error::{DecodeError, ErrorCode};
use crate::frame::{
    ENVELOPE_LENGTH, Envelope, FRAME_HEADER_LENGTH, FrameType, Grammar, MessageKind,
};
use crate::message::*;
use crate::primitives::{Decoded, Reader};
use crate::segment;

/// Decodes a whole request. Payloads are slices of `bytes`.
///
/// # Errors
/// Any violation of §1.7.
pub fn decode_request(bytes: Bytes) -> Result<Request, DecodeError> {
    let mut frames = Vec::new();
    let envelope = decode_whole(bytes, MessageKind::Request, |frame| match frame {
        Frame::Request(frame) => frames.push(frame),
        Frame::Response(_) => {}
    })?;
    Ok(Request {
        version: envelope.version,
        frames,
    })
}

/// Decodes a whole response. Payloads are slices of `bytes`.
///
/// # Errors
/// Any violation of §1.7.
pub fn decode_response(bytes: Bytes) -> Result<Response, DecodeError> {
    let mut frames = Vec::new();
    let envelope = decode_whole(bytes, MessageKind::Response, |frame| match frame {
        Frame::Response(frame) => frames.push(frame),
        Frame::Request(_) => {}
    })?;
    Ok(Response {
        version: envelope.version,
        frames,
    })
}

/// A decoded frame of either kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Of a request.
    Request(RequestFrame),
    /// Of a response.
    Response(ResponseFrame),
}

pub(crate) fn invalid(message: &'static str, offset: usize) -> DecodeError {
    DecodeError {
        code: ErrorCode::InvalidRequest,
        message,
        offset,
    }
}

fn decode_whole(
    bytes: Bytes,
    kind: MessageKind,
    mut sink: impl FnMut(Frame),
) -> Result<Envelope, DecodeError> {
    let mut messages = MessageState::new();
    let Some(header) = bytes.first_chunk::<ENVELOPE_LENGTH>() else {
        return Err(invalid("the envelope is truncated", bytes.len()));
    };
    let envelope = Envelope::parse(*header)?;
    if envelope.kind != kind {
        return Err(invalid("the message is of the other kind", 6));
    }
    messages.open(envelope);
    let mut at = ENVELOPE_LENGTH;
    while !messages.ended() {
        let Some(head) = bytes.get(at..at + FRAME_HEADER_LENGTH) else {
            return Err(invalid("the message ends without END", bytes.len()));
        };
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let start = at + FRAME_HEADER_LENGTH;
        if length > bytes.len() - start {
            return Err(invalid("a frame is longer than the message", at));
        }
        let payload = bytes.slice(start..start + length);
        if let Some(frame) = messages.frame(head[0], payload, at)? {
            sink(frame);
        }
        at = start + length;
    }
    if at != bytes.len() {
        return Err(invalid("bytes follow END", at));
    }
    Ok(envelope)
}

/// The part of decoding that whole-message and streaming decoders share.
#[derive(Debug, Clone)]
pub(crate) struct MessageState {
    open: Option<(Envelope, Grammar)>,
}

impl MessageState {
    pub(crate) const fn new() -> Self {
        Self { open: None }
    }

    pub(crate) fn open(&mut self, envelope: Envelope) {
        self.open = Some((envelope, Grammar::new(envelope.kind)));
    }

    /// Whether the envelope was read.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn ended(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|(_, grammar)| grammar.ended())
    }

    /// Decodes one frame; `None` for END. `at` is the offset of the frame header.
    pub(crate) fn frame(&mut self, byte: u8, payload: Bytes, at: usize) -> Decoded<Option<Frame>> {
        let Some((envelope, grammar)) = &mut self.open else {
            return Err(invalid("a frame precedes the envelope", at));
        };
        let frame_type = FrameType::of(byte);
        grammar
            .accept(frame_type)
            .map_err(|message| invalid(message, at))?;
        if frame_type == FrameType::End {
            return if payload.is_empty() {
                Ok(None)
            } else {
                Err(invalid("END carries a payload", at))
            };
        }
        let base = at + FRAME_HEADER_LENGTH;
        if let FrameType::Unknown(frame_type) = frame_type {
            let frame = UnknownFrame {
                frame_type,
                payload,
            };
            return Ok(Some(match envelope.kind {
                MessageKind::Request => Frame::Request(RequestFrame::Unknown(frame)),
                MessageKind::Response => Frame::Response(ResponseFrame::Unknown(frame)),
            }));
        }
        let version = envelope.version;
        let mut reader = Reader::new(payload, base);
        let frame = match envelope.kind {
            MessageKind::Request => {
                Frame::Request(request_frame(frame_type, version, &mut reader)?)
            }
            MessageKind::Response => {
                let frame = response_frame(frame_type, version, &mut reader)?;
                if let ResponseFrame::PushResult(result) = &frame {
                    grammar.push_result(result.status == PushStatus::Rejected);
                }
                Frame::Response(frame)
            }
        };
        reader.finish("a frame has trailing bytes")?;
        Ok(Some(frame))
    }
}

fn request_frame(frame: FrameType, version: WireVersion, r: &mut Reader) -> Decoded<RequestFrame> {
    Ok(match frame {
        FrameType::RequestHeader => RequestFrame::Header(request_header(version, r)?),
        FrameType::PushCommit => RequestFrame::PushCommit(push_commit(r)?),
        FrameType::PullHeader => {
            let header = PullHeader {
                limit_commits: r.i32()?,
                limit_snapshot_rows: r.i32()?,
                max_snapshot_pages: r.i32()?,
                accept: r.u8()?,
            };
            if header.accept & 0xF0 != 0 {
                return Err(r.error("accept has an unknown bit set"));
            }
            RequestFrame::PullHeader(header)
        }
        FrameType::Subscription => RequestFrame::Subscription(Subscription {
            id: r.string()?,
            table: r.string()?,
            scopes: r.scope_lists()?,
            params: r.opt(Reader::json)?,
            cursor: r.i64()?,
            bootstrap_state: r.opt(Reader::json)?,
        }),
        _ => return Err(r.error("a frame belongs to the other message kind")),
    })
}

fn request_header(version: WireVersion, r: &mut Reader) -> Decoded<RequestHeader> {
    let client_id = r.string()?;
    if client_id.is_empty() {
        return Err(r.error("clientId is empty"));
    }
    let schema_version = r.i32()?;
    if schema_version < 1 {
        return Err(r.error("schemaVersion is below 1"));
    }
    let log_epoch = if version >= WireVersion::V2 {
        r.opt(Reader::string)?
    } else {
        None
    };
    Ok(RequestHeader {
        client_id,
        schema_version,
        log_epoch,
    })
}

fn push_commit(r: &mut Reader) -> Decoded<PushCommit> {
    let client_commit_id = r.string()?;
    if client_commit_id.is_empty() {
        return Err(r.error("clientCommitId is empty"));
    }
    let operations = r.list(11, |r| {
        let table = r.string()?;
        let row_id = r.string()?;
        let op = r.u8()?;
        let base_version = r.opt(Reader::i64)?;
        let payload = r.opt(Reader::bytes)?;
        let kind = match (op, payload) {
            (1, Some(payload)) => OperationKind::Upsert(payload),
            (2, None) => OperationKind::Delete,
            (1, None) => return Err(r.error("an upsert carries no payload")),
            (2, Some(_)) => return Err(r.error("a delete carries a payload")),
            _ => return Err(r.error("the operation is unknown")),
        };
        Ok(Operation {
            table,
            row_id,
            base_version,
            kind,
        })
    })?;
    if operations.is_empty() {
        return Err(DecodeError {
            code: ErrorCode::EmptyCommit,
            ..r.error("a commit has no operations")
        });
    }
    Ok(PushCommit {
        client_commit_id,
        operations,
    })
}

fn response_frame(
    frame: FrameType,
    version: WireVersion,
    r: &mut Reader,
) -> Decoded<ResponseFrame> {
    Ok(match frame {
        FrameType::ResponseHeader => ResponseFrame::Header(ResponseHeader {
            required_schema_version: r.opt(Reader::i32)?,
            latest_schema_version: r.opt(Reader::i32)?,
            epoch: if version >= WireVersion::V2 {
                Some(EpochHeader {
                    log_epoch: r.string()?,
                    reset_required: r.bool()?,
                })
            } else {
                None
            },
        }),
        FrameType::Lease => ResponseFrame::Lease(Lease {
            lease_id: r.string()?,
            expires_at_ms: r.i64()?,
        }),
        FrameType::PushResult => ResponseFrame::PushResult(push_result(version, r)?),
        FrameType::PushResultDetails => ResponseFrame::PushResultDetails(push_result_details(r)?),
        FrameType::SubStart => ResponseFrame::SubStart(SubStart {
            id: r.string()?,
            status: match r.u8()? {
                1 => SubStatus::Active,
                2 => SubStatus::Revoked,
                3 => SubStatus::Reset,
                _ => return Err(r.error("the subscription status is unknown")),
            },
            reason_code: r.string()?,
            effective_scopes: r.scope_lists()?,
            bootstrap: r.bool()?,
        }),
        FrameType::Commit => ResponseFrame::Commit(commit(r)?),
        FrameType::SegmentRef => ResponseFrame::SegmentRef(segment_ref(r)?),
        FrameType::SegmentInline => {
            let start = r.offset();
            let bytes = r.take(r.remaining())?;
            segment::validate(&bytes).map_err(|error| DecodeError {
                offset: start + error.offset,
                ..error
            })?;
            ResponseFrame::SegmentInline(bytes)
        }
        FrameType::SubEnd => ResponseFrame::SubEnd(SubEnd {
            next_cursor: r.i64()?,
            bootstrap_state: r.opt(Reader::json)?,
        }),
        FrameType::Error => ResponseFrame::Error(ErrorFrame {
            code: r.string()?,
            message: r.string()?,
            category: r.string()?,
            retryable: r.bool()?,
            recommended_action: r.string()?,
            details: r.opt(Reader::json)?,
        }),
        _ => return Err(r.error("a frame belongs to the other message kind")),
    })
}

fn push_result(version: WireVersion, r: &mut Reader) -> Decoded<PushResult> {
    let client_commit_id = r.string()?;
    let status = r.u8()?;
    let commit_seq = r.opt(Reader::i64)?;
    let status = match (status, commit_seq) {
        (1, Some(seq)) => PushStatus::Applied(seq),
        (2, Some(seq)) => PushStatus::Cached(seq),
        (3, None) => PushStatus::Rejected,
        (1 | 2, None) => return Err(r.error("an applied result has no commitSeq")),
        (3, Some(_)) => return Err(r.error("a rejected result has a commitSeq")),
        _ => return Err(r.error("the push status is unknown")),
    };
    let results = r.list(5, |r| {
        let op_index = r.i32()?;
        let outcome = match r.u8()? {
            1 => OperationOutcome::Applied,
            2 => OperationOutcome::Conflict {
                code: r.string()?,
                message: r.string()?,
                server_version: r.i64()?,
                server_row: r.bytes()?,
                conflict_columns: if version >= WireVersion::V3 {
                    r.bytes()?
                } else {
                    Bytes::new()
                },
            },
            3 => OperationOutcome::Error {
                code: r.string()?,
                message: r.string()?,
                retryable: r.bool()?,
            },
            _ => return Err(r.error("the result status is unknown")),
        };
        Ok(OperationResult { op_index, outcome })
    })?;
    Ok(PushResult {
        client_commit_id,
        status,
        results,
    })
}

fn push_result_details(r: &mut Reader) -> Decoded<PushResultDetails> {
    let client_commit_id = r.string()?;
    let entries: Vec<DetailEntry> = r.list(8, |r| {
        Ok(DetailEntry {
            op_index: r.i32()?,
            details_json: r.string()?,
        })
    })?;
    check_entries(&entries).map_err(|message| r.error(message))?;
    Ok(PushResultDetails {
        client_commit_id,
        entries,
    })
}

fn commit(r: &mut Reader) -> Decoded<Commit> {
    let commit_seq = r.i64()?;
    let created_at_ms = r.i64()?;
    let actor_id = r.string()?;
    let tables: Vec<String> = r.list(4, Reader::string)?;
    let table_count = tables.len();
    let changes = r.list(13, |r| {
        let table_index = r.u16()?;
        if usize::from(table_index) >= table_count {
            return Err(r.error("a change's tableIndex is out of range"));
        }
        let row_id = r.string()?;
        let op = r.u8()?;
        let row_version = r.opt(Reader::i64)?;
        let scopes = r.scope_values()?;
        let row = r.opt(Reader::bytes)?;
        let kind = match (op, row_version, row) {
            (1, Some(row_version), Some(row)) => ChangeKind::Upsert { row_version, row },
            (2, None, None) => ChangeKind::Delete,
            (1 | 2, _, _) => {
                return Err(r.error("a change's row and version do not fit its operation"));
            }
            _ => return Err(r.error("the change operation is unknown")),
        };
        Ok(Change {
            table_index,
            row_id,
            scopes,
            kind,
        })
    })?;
    Ok(Commit {
        commit_seq,
        created_at_ms,
        actor_id,
        tables,
        changes,
    })
}

fn segment_ref(r: &mut Reader) -> Decoded<SegmentRef> {
    let segment_id = r.string()?;
    let media_type = match r.u8()? {
        1 => MediaType::Rows,
        2 => MediaType::Sqlite,
        _ => return Err(r.error("the media type is unknown")),
    };
    let table = r.string()?;
    let (byte_length, row_count, as_of_commit_seq) = (r.i64()?, r.i64()?, r.i64()?);
    let scope_digest = r.string()?;
    let row_cursor = r.opt(Reader::string)?;
    let next_row_cursor = r.opt(Reader::string)?;
    let url = match (r.opt(Reader::string)?, r.opt(Reader::i64)?) {
        (Some(url), Some(expires)) => Some((url, expires)),
        (None, None) => None,
        _ => return Err(r.error("url and urlExpiresAtMs do not stand together")),
    };
    Ok(SegmentRef {
        segment_id,
        media_type,
        table,
        byte_length,
        row_count,
        as_of_commit_seq,
        scope_digest,
        row_cursor,
        next_row_cursor,
        url,
    })
}

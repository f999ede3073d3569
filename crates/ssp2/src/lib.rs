//! The SSP2 wire codec: envelope, frames, rows, SSG2 segments, realtime control
//! messages, canonical rendering and the error catalogue.
//!
//! No I/O, no clock, no schema knowledge beyond what a caller hands in. Section
//! numbers (§) refer to the public SSP2 specification.
#![forbid(unsafe_code)]

pub mod blob_ref;
pub mod decode;
pub mod details;
pub mod digest;
pub mod encode;
pub mod error;
pub mod frame;
pub mod inspect;
pub mod json;
mod json_value;
pub mod message;
mod primitives;
pub mod realtime;
pub mod render;
pub mod row;
pub mod scope_map;
pub mod segment;
pub mod stream;

pub use decode::{Frame, decode_request, decode_response};
pub use details::{DetailsError, RejectionDetails};
pub use digest::{canonical_json, canonical_scopes, js_number, scope_digest};
pub use encode::{
    EncodeError, RequestEncoder, ResponseEncoder, encode_request, encode_request_frame,
    encode_response, encode_response_frame,
};
pub use error::{Action, Category, DecodeError, ErrorCode, SyncError};
pub use frame::{Envelope, MessageKind};
pub use inspect::{Kind, ReencodeError, reencode, render_bytes};
pub use json::is_valid_json;
pub use message::*;
pub use primitives::MAX_SAFE_INTEGER;
pub use realtime::{ClientMessage, ServerEvent};
pub use render::{
    render_message_json, render_request, render_response, render_segment, render_sparse_row,
};
pub use row::{
    Column, ColumnSet, ColumnType, RowError, SparseRow, Value, decode_row, decode_sparse_row,
    encode_row, encode_row_into, encode_sparse_row,
};
pub use scope_map::{ScopeLists, ScopeMap, ScopeValues};
pub use segment::{
    Segment, SegmentHeader, SegmentReader, SegmentRow, SegmentWriter, decode_segment,
    encode_segment, segment_id,
};
pub use stream::{Event, FrameDecoder};

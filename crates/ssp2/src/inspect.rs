//! Any bytes of the protocol, told apart by their magic: what is this, how does it
//! read, and is it the one encoding of what it says.

use bytes::Bytes;

use crate::decode::{decode_request, decode_response};
use crate::encode::{EncodeError, encode_request, encode_response};
use crate::error::{DecodeError, ErrorCode};
use crate::frame::{ENVELOPE_LENGTH, Envelope, MessageKind};
use crate::render::{render_request, render_response, render_segment};
use crate::row::RowError;
use crate::segment::{SEGMENT_MAGIC, decode_segment, encode_segment};

/// What a byte string was found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An SSP2 request (§1.5).
    Request,
    /// An SSP2 response (§1.6).
    Response,
    /// An SSG2 rows segment (§5.2).
    Segment,
}

impl Kind {
    /// Judges by magic and, for a message, its kind byte.
    ///
    /// # Errors
    /// When the bytes begin with neither magic, or the envelope is not valid (§1.2).
    pub fn detect(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.starts_with(&SEGMENT_MAGIC) {
            return Ok(Self::Segment);
        }
        let Some(header) = bytes.first_chunk::<ENVELOPE_LENGTH>() else {
            return Err(DecodeError {
                code: ErrorCode::InvalidRequest,
                message: "the envelope is truncated",
                offset: bytes.len(),
            });
        };
        Ok(match Envelope::parse(*header)?.kind {
            MessageKind::Request => Self::Request,
            MessageKind::Response => Self::Response,
        })
    }
}

/// Why [`reencode`] gives no bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReencodeError {
    /// The bytes do not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The decoded message does not encode.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The decoded segment does not encode.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Decodes a message or segment and renders it (§11.1).
///
/// # Errors
/// Any violation of §1.7 or §5.2.
pub fn render_bytes(bytes: Bytes) -> Result<(Kind, serde_json::Value), DecodeError> {
    let kind = Kind::detect(&bytes)?;
    let rendered = match kind {
        Kind::Request => render_request(&decode_request(bytes)?),
        Kind::Response => render_response(&decode_response(bytes)?),
        Kind::Segment => render_segment(&decode_segment(bytes)?),
    };
    Ok((kind, rendered))
}

/// Decodes a message or segment and encodes it again. Every valid input gives its
/// own bytes: there is one encoding per value, unknown frames included (§1.2).
///
/// # Errors
/// When the bytes do not decode.
pub fn reencode(bytes: Bytes) -> Result<Bytes, ReencodeError> {
    Ok(match Kind::detect(&bytes)? {
        Kind::Request => encode_request(&decode_request(bytes)?)?,
        Kind::Response => encode_response(&decode_response(bytes)?)?,
        Kind::Segment => encode_segment(&decode_segment(bytes)?)?,
    })
}

//! A response message, encoded at once when it is small and piece by piece when
//! it is large.

use std::io;

use bytes::Bytes;
use ssp2::{EncodeError, ResponseEncoder, ResponseFrame, ResponseHeader, WireVersion};

use super::budget::Reservation;
use crate::http::compression::{Coding, Compressor, compress};

/// Pieces of a large message have about that many bytes before compression.
const PIECE_BYTES: usize = 128 * 1024;

/// A complete response, all of its data read and verified.
#[derive(Debug)]
pub struct Answer {
    /// Wire version of the request.
    pub version: WireVersion,
    /// Frames up to END.
    pub frames: Vec<ResponseFrame>,
    /// What they hold of the process's memory for pulls.
    pub held: Option<Reservation>,
}

impl Answer {
    /// An answer that ends after its header.
    pub fn header_only(version: WireVersion, header: ResponseHeader) -> Self {
        Self {
            version,
            frames: vec![ResponseFrame::Header(header)],
            held: None,
        }
    }

    /// Whether encoding it takes so long that it belongs on another thread.
    pub fn is_large(&self) -> bool {
        let mut bytes = 0;
        self.frames.iter().any(|frame| {
            bytes += weight(frame);
            bytes > PIECE_BYTES
        })
    }

    /// The whole message.
    ///
    /// # Errors
    /// When a value cannot be encoded.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut encoder = ResponseEncoder::new(self.version);
        for frame in &self.frames {
            encoder.frame(frame)?;
        }
        encoder.finish()
    }

    /// The whole message in a content coding.
    ///
    /// # Errors
    /// When a value cannot be encoded, or the coding fails.
    pub fn encode_compressed(
        &self,
        coding: Coding,
        min_bytes: usize,
    ) -> io::Result<(Bytes, Coding)> {
        let message = self.encode().map_err(io::Error::other)?;
        if coding == Coding::Identity || message.len() < min_bytes {
            return Ok((message, Coding::Identity));
        }
        Ok((compress(coding, &message)?, coding))
    }

    /// The message piece by piece.
    ///
    /// # Errors
    /// When the coding cannot start.
    pub fn into_pieces(self, coding: Coding) -> io::Result<Pieces> {
        Ok(Pieces {
            encoder: ResponseEncoder::new(self.version),
            compressor: Compressor::new(coding)?,
            frames: self.frames.into_iter(),
            _held: self.held,
        })
    }
}

/// About the encoded size of a frame, bytes.
pub(super) fn weight(frame: &ResponseFrame) -> usize {
    const SMALL: usize = 128;
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let large = match frame {
        ResponseFrame::SegmentInline(bytes) => bytes.len(),
        ResponseFrame::SegmentRef(reference) => {
            text(&reference.row_cursor) + text(&reference.next_row_cursor)
        }
        ResponseFrame::SubEnd(end) => text(&end.bootstrap_state),
        ResponseFrame::Commit(commit) => commit
            .changes
            .iter()
            .map(|change| {
                let scopes = change
                    .scopes
                    .iter()
                    .map(|(name, value)| name.len() + value.len());
                let row = match &change.kind {
                    ssp2::ChangeKind::Upsert { row, .. } => row.len(),
                    ssp2::ChangeKind::Delete => 0,
                };
                SMALL + change.row_id.len() + scopes.sum::<usize>() + row
            })
            .sum(),
        _ => 0,
    };
    SMALL + large
}

/// A message on its way out.
pub struct Pieces {
    encoder: ResponseEncoder,
    compressor: Compressor,
    frames: std::vec::IntoIter<ResponseFrame>,
    _held: Option<Reservation>,
}

impl Pieces {
    /// The next piece, and the rest if there is one. Blocks for as long as encoding takes.
    ///
    /// # Errors
    /// When a value cannot be encoded, or the coding fails: the message is cut off.
    pub fn next(mut self) -> io::Result<(Bytes, Option<Self>)> {
        loop {
            let Some(frame) = self.frames.next() else {
                let rest = self.encoder.finish().map_err(io::Error::other)?;
                self.compressor.write(&rest)?;
                return Ok((self.compressor.finish()?, None));
            };
            self.encoder.frame(&frame).map_err(io::Error::other)?;
            if self.encoder.buffered() < PIECE_BYTES {
                continue;
            }
            self.compressor.write(&self.encoder.take())?;
            // A coding may keep everything to itself for a while.
            let piece = self.compressor.take();
            if !piece.is_empty() {
                return Ok((piece, Some(self)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssp2::{EpochHeader, ScopeLists, SubEnd, SubStart, SubStatus};

    fn answer(segments: usize) -> Answer {
        let mut frames = vec![
            ResponseFrame::Header(ResponseHeader {
                required_schema_version: None,
                latest_schema_version: Some(1),
                epoch: Some(EpochHeader {
                    log_epoch: "e".to_owned(),
                    reset_required: false,
                }),
            }),
            ResponseFrame::SubStart(SubStart {
                id: "s".to_owned(),
                status: SubStatus::Active,
                reason_code: String::new(),
                effective_scopes: ScopeLists::new(),
                bootstrap: true,
            }),
        ];
        let header = ssp2::SegmentHeader {
            table: "t".to_owned(),
            schema_version: 1,
            columns: vec![ssp2::Column {
                name: "id".to_owned(),
                ty: ssp2::ColumnType::String,
                nullable: false,
            }],
        };
        for segment in 0..segments {
            let mut writer = ssp2::SegmentWriter::new(&header);
            for row in 0..500 {
                let text = format!("{segment}-{row}").repeat(10);
                writer.row_values(1, &[ssp2::Value::Text(text)]).unwrap();
            }
            frames.push(ResponseFrame::SegmentInline(writer.finish()));
        }
        frames.push(ResponseFrame::SubEnd(SubEnd {
            next_cursor: 7,
            bootstrap_state: None,
        }));
        Answer {
            version: WireVersion::V3,
            frames,
            held: None,
        }
    }

    #[test]
    fn pieces_are_the_message() {
        for coding in [Coding::Identity, Coding::Gzip, Coding::Zstd] {
            let message = answer(40).encode().unwrap();
            assert!(answer(40).is_large());
            let mut sent = Vec::new();
            let mut count = 0;
            let mut pieces = answer(40).into_pieces(coding).unwrap();
            loop {
                let (piece, rest) = pieces.next().unwrap();
                count += 1;
                sent.extend_from_slice(&piece);
                match rest {
                    Some(rest) => pieces = rest,
                    None => break,
                }
            }
            let body = match coding {
                Coding::Identity => {
                    assert!(count > 3);
                    sent
                }
                Coding::Zstd => zstd::decode_all(&sent[..]).unwrap(),
                Coding::Gzip => {
                    let mut body = Vec::new();
                    io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&sent[..]), &mut body)
                        .unwrap();
                    body
                }
            };
            assert!(body == message, "{coding:?}");
            ssp2::decode_response(message).unwrap();
        }
    }

    #[test]
    fn tiny_bodies_are_not_compressed() {
        let small = answer(0);
        assert!(!small.is_large());
        let (body, coding) = small.encode_compressed(Coding::Zstd, 1024).unwrap();
        assert_eq!(coding, Coding::Identity);
        assert_eq!(body, small.encode().unwrap());
        let (_, coding) = answer(1).encode_compressed(Coding::Zstd, 1024).unwrap();
        assert_eq!(coding, Coding::Zstd);
    }
}

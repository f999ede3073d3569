//! The streaming frame decoder (§1.4): a message as its bytes arrive.

use bytes::{Buf, BytesMut};

use crate::decode::{Frame, MessageState, invalid};
use crate::error::DecodeError;
use crate::frame::{ENVELOPE_LENGTH, Envelope, FRAME_HEADER_LENGTH, MessageKind};

/// Decodes a message as its bytes arrive, holding at most one frame (§1.4).
#[derive(Debug)]
pub struct FrameDecoder {
    kind: MessageKind,
    max_frame: usize,
    buffer: BytesMut,
    consumed: usize,
    state: MessageState,
    failed: Option<DecodeError>,
}

/// What [`FrameDecoder::next_event`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The envelope header, first.
    Envelope(Envelope),
    /// A frame.
    Frame(Box<Frame>),
    /// END: the message is complete.
    End,
    /// More bytes are needed.
    Pending,
}

impl FrameDecoder {
    /// A decoder for one message of `kind` whose frames are at most `max_frame` bytes each.
    pub fn new(kind: MessageKind, max_frame: usize) -> Self {
        Self {
            kind,
            max_frame,
            buffer: BytesMut::new(),
            consumed: 0,
            state: MessageState::new(),
            failed: None,
        }
    }

    /// Hands in the next bytes.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next event. A failed message stays failed: the same error comes again.
    ///
    /// # Errors
    /// Any violation of §1.7, a frame above the limit, and bytes after END.
    pub fn next_event(&mut self) -> Result<Event, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let event = self.step();
        if let Err(error) = &event {
            self.failed = Some(error.clone());
        }
        event
    }

    fn step(&mut self) -> Result<Event, DecodeError> {
        if self.state.ended() {
            return if self.buffer.is_empty() {
                Ok(Event::Pending)
            } else {
                Err(invalid("bytes follow END", self.consumed))
            };
        }
        if !self.state.is_open() {
            let Some(header) = self.buffer.first_chunk::<ENVELOPE_LENGTH>() else {
                return Ok(Event::Pending);
            };
            let envelope = Envelope::parse(*header)?;
            if envelope.kind != self.kind {
                return Err(invalid("the message is of the other kind", 6));
            }
            self.buffer.advance(ENVELOPE_LENGTH);
            self.consumed += ENVELOPE_LENGTH;
            self.state.open(envelope);
            return Ok(Event::Envelope(envelope));
        }
        let Some(head) = self.buffer.first_chunk::<FRAME_HEADER_LENGTH>() else {
            return Ok(Event::Pending);
        };
        let byte = head[0];
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > self.max_frame {
            return Err(invalid("a frame is larger than allowed", self.consumed));
        }
        if self.buffer.len() - FRAME_HEADER_LENGTH < length {
            return Ok(Event::Pending);
        }
        self.buffer.advance(FRAME_HEADER_LENGTH);
        let payload = self.buffer.split_to(length).freeze();
        let at = self.consumed;
        self.consumed += FRAME_HEADER_LENGTH + length;
        match self.state.frame(byte, payload, at)? {
            Some(frame) => Ok(Event::Frame(Box::new(frame))),
            None => Ok(Event::End),
        }
    }

    /// The input is over.
    ///
    /// # Errors
    /// When it ended before END (a truncated message, §1.2 rule 1).
    pub fn finish(&self) -> Result<(), DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.state.ended() && self.buffer.is_empty() {
            Ok(())
        } else {
            Err(invalid(
                "the message ends without END",
                self.consumed + self.buffer.len(),
            ))
        }
    }
}

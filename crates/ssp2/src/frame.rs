//! Envelope and framing (§1.2): the eight-byte header, frame types and the
//! order in which frames may stand (§1.5, §1.6).

use crate::error::{DecodeError, ErrorCode};
use crate::message::WireVersion;

/// The envelope magic.
pub const MAGIC: [u8; 4] = *b"SSP2";
/// Bytes before the first frame.
pub const ENVELOPE_LENGTH: usize = 8;
/// Bytes before a frame's payload.
pub const FRAME_HEADER_LENGTH: usize = 5;

/// Which of the two messages an envelope holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// 1
    Request = 1,
    /// 2
    Response = 2,
}

/// The envelope header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Wire version.
    pub version: WireVersion,
    /// Message kind.
    pub kind: MessageKind,
}

impl Envelope {
    /// Reads the header from the first eight bytes.
    ///
    /// # Errors
    /// When the magic, version, kind or flags are not what §1.2 allows.
    pub fn parse(header: [u8; ENVELOPE_LENGTH]) -> Result<Self, DecodeError> {
        let error = |message, offset| DecodeError {
            code: ErrorCode::InvalidRequest,
            message,
            offset,
        };
        if header[..4] != MAGIC {
            return Err(error("the envelope magic is not SSP2", 0));
        }
        let version = match u16::from_le_bytes([header[4], header[5]]) {
            1 => WireVersion::V1,
            2 => WireVersion::V2,
            3 => WireVersion::V3,
            _ => return Err(error("the wire version is not supported", 4)),
        };
        let kind = match header[6] {
            1 => MessageKind::Request,
            2 => MessageKind::Response,
            _ => return Err(error("the message kind is unknown", 6)),
        };
        if header[7] != 0 {
            return Err(error("the envelope flags are not zero", 7));
        }
        Ok(Self { version, kind })
    }

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; ENVELOPE_LENGTH] {
        let [low, high] = (self.version as u16).to_le_bytes();
        [
            MAGIC[0],
            MAGIC[1],
            MAGIC[2],
            MAGIC[3],
            low,
            high,
            self.kind as u8,
            0,
        ]
    }
}

macro_rules! frame_types {
    ($( $name:ident = $byte:literal, $kind:ident; )*) => {
        /// The registered frame types.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum FrameType { End, $( $name, )* Unknown(u8) }

        impl FrameType {
            pub(crate) const fn of(byte: u8) -> Self {
                match byte { 0 => Self::End, $( $byte => Self::$name, )* other => Self::Unknown(other) }
            }
            pub(crate) const fn byte(self) -> u8 {
                match self { Self::End => 0, $( Self::$name => $byte, )* Self::Unknown(byte) => byte }
            }
            /// `None` for END and unknown types.
            pub(crate) const fn kind(self) -> Option<MessageKind> {
                match self { $( Self::$name => Some(MessageKind::$kind), )* _ => None }
            }
        }
    };
}

frame_types! {
    RequestHeader = 0x01, Request;
    PushCommit = 0x02, Request;
    PullHeader = 0x03, Request;
    Subscription = 0x04, Request;
    ResponseHeader = 0x10, Response;
    PushResult = 0x11, Response;
    SubStart = 0x12, Response;
    Commit = 0x13, Response;
    SegmentRef = 0x14, Response;
    SegmentInline = 0x15, Response;
    SubEnd = 0x16, Response;
    Lease = 0x19, Response;
    PushResultDetails = 0x1B, Response;
    Error = 0x1F, Response;
}

/// Whether a frame of that type byte has a layout (or is END), so that it can
/// not be carried as an unknown one.
pub fn is_registered(frame_type: u8) -> bool {
    !matches!(FrameType::of(frame_type), FrameType::Unknown(_))
}

/// What a subscription section holds so far (§1.6: never both kinds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Empty,
    Commits,
    Segments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    // request
    Pushes,
    Subscriptions,
    // response
    AfterHeader,
    Results { details_allowed: bool },
    Open(Section),
    BetweenSubscriptions,
    AfterError,
    Ended,
}

/// Judges frame order, one frame at a time, for decoder and encoder alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grammar {
    kind: MessageKind,
    state: State,
    has_push: bool,
}

impl Grammar {
    pub(crate) const fn new(kind: MessageKind) -> Self {
        Self {
            kind,
            state: State::Start,
            has_push: false,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Tells the status of the PUSH_RESULT just accepted: details may follow only a
    /// rejected one (§6.3.1).
    pub(crate) fn push_result(&mut self, rejected: bool) {
        if let State::Results { details_allowed } = &mut self.state {
            *details_allowed = rejected;
        }
    }

    /// Accepts the next frame or names the rule it breaks.
    pub(crate) fn accept(&mut self, frame: FrameType) -> Result<(), &'static str> {
        if let Some(kind) = frame.kind()
            && kind != self.kind
        {
            return Err("a frame belongs to the other message kind");
        }
        self.state = match (self.state, frame) {
            (State::Ended, _) => return Err("a frame follows END"),
            (State::AfterError, FrameType::End) => State::Ended,
            (State::AfterError, _) => return Err("a frame follows ERROR"),
            (State::Start, FrameType::RequestHeader) => State::Pushes,
            (State::Start, FrameType::ResponseHeader) => State::AfterHeader,
            (State::Start, _) => return Err("the first frame is not the header"),
            (_, FrameType::RequestHeader | FrameType::ResponseHeader) => {
                return Err("the header frame stands twice");
            }
            (state, FrameType::Unknown(_)) => state,

            (State::Pushes, FrameType::PushCommit) => {
                self.has_push = true;
                State::Pushes
            }
            (State::Pushes, FrameType::PullHeader) => State::Subscriptions,
            (State::Pushes, FrameType::End) if !self.has_push => {
                return Err("the request carries neither a push nor a pull");
            }
            (State::Subscriptions, FrameType::Subscription) => State::Subscriptions,
            (State::Pushes | State::Subscriptions, FrameType::End) => State::Ended,

            (State::AfterHeader, FrameType::Lease) => State::Results {
                details_allowed: false,
            },
            (State::AfterHeader | State::Results { .. }, FrameType::PushResult) => State::Results {
                details_allowed: true,
            },
            (
                State::Results {
                    details_allowed: true,
                },
                FrameType::PushResultDetails,
            ) => State::Results {
                details_allowed: false,
            },
            (_, FrameType::PushResultDetails) => {
                return Err("details do not follow a rejected result");
            }
            (
                State::AfterHeader | State::Results { .. } | State::BetweenSubscriptions,
                FrameType::SubStart,
            ) => State::Open(Section::Empty),
            (State::Open(Section::Empty | Section::Commits), FrameType::Commit) => {
                State::Open(Section::Commits)
            }
            (
                State::Open(Section::Empty | Section::Segments),
                FrameType::SegmentRef | FrameType::SegmentInline,
            ) => State::Open(Section::Segments),
            (
                State::Open(_),
                FrameType::Commit | FrameType::SegmentRef | FrameType::SegmentInline,
            ) => {
                return Err("a subscription mixes commits and segments");
            }
            (State::Open(_), FrameType::SubEnd) => State::BetweenSubscriptions,
            (
                State::AfterHeader
                | State::Results { .. }
                | State::Open(_)
                | State::BetweenSubscriptions,
                FrameType::Error,
            ) => State::AfterError,
            (
                State::AfterHeader | State::Results { .. } | State::BetweenSubscriptions,
                FrameType::End,
            ) => State::Ended,
            (State::Open(_), FrameType::End) => {
                return Err("a subscription is not closed before END");
            }
            _ => return Err("a frame stands out of order"),
        };
        Ok(())
    }
}

//! Messages written byte by byte, to say what an encoder would refuse to say.

use bytes::Bytes;
use ssp2::{DecodeError, ErrorCode, Request, Response, decode_request, decode_response};

/// A payload under construction.
#[derive(Clone, Default)]
pub struct Payload(pub Vec<u8>);

impl Payload {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }
    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }
    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }
    pub fn i32(self, value: i32) -> Self {
        self.raw(&value.to_le_bytes())
    }
    pub fn i64(self, value: i64) -> Self {
        self.raw(&value.to_le_bytes())
    }
    pub fn text(self, text: &str) -> Self {
        self.u32(u32::try_from(text.len()).unwrap())
            .raw(text.as_bytes())
    }
}

/// A message under construction.
#[derive(Clone)]
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn request(version: u16) -> Self {
        Self::envelope(version, 1)
    }
    pub fn response(version: u16) -> Self {
        Self::envelope(version, 2)
    }
    pub fn envelope(version: u16, kind: u8) -> Self {
        let [low, high] = version.to_le_bytes();
        Self(vec![b'S', b'S', b'P', b'2', low, high, kind, 0])
    }
    pub fn frame(mut self, frame_type: u8, payload: Payload) -> Self {
        self.0.push(frame_type);
        self.0
            .extend(u32::try_from(payload.0.len()).unwrap().to_le_bytes());
        self.0.extend(payload.0);
        self
    }
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub fn end(self) -> Self {
        self.frame(0, Payload::new())
    }
    pub fn bytes(&self) -> Bytes {
        self.0.clone().into()
    }
    pub fn decode_request(&self) -> Result<Request, DecodeError> {
        decode_request(self.bytes())
    }
    pub fn decode_response(&self) -> Result<Response, DecodeError> {
        decode_response(self.bytes())
    }
}

pub const REQ_HEADER: u8 = 0x01;
pub const PUSH_COMMIT: u8 = 0x02;
pub const PULL_HEADER: u8 = 0x03;
pub const SUBSCRIPTION: u8 = 0x04;
pub const RESP_HEADER: u8 = 0x10;
pub const PUSH_RESULT: u8 = 0x11;
pub const SUB_START: u8 = 0x12;
pub const COMMIT: u8 = 0x13;
pub const SEGMENT_REF: u8 = 0x14;
pub const SEGMENT_INLINE: u8 = 0x15;
pub const SUB_END: u8 = 0x16;
pub const LEASE: u8 = 0x19;
pub const DETAILS: u8 = 0x1B;
pub const ERROR: u8 = 0x1F;

/// The smallest valid payload of each frame type, in wire version 1.
pub fn payload(frame_type: u8) -> Payload {
    let p = Payload::new();
    match frame_type {
        REQ_HEADER => p.text("c").i32(1),
        PUSH_COMMIT => p.text("k").u32(1).text("t").text("r").u8(2).u8(0).u8(0),
        PULL_HEADER => p.i32(0).i32(0).i32(0).u8(3),
        SUBSCRIPTION => p.text("s").text("t").u32(0).u8(0).i64(-1).u8(0),
        RESP_HEADER => p.u8(0).u8(0),
        PUSH_RESULT => p.text("k").u8(3).u8(0).u32(0),
        SUB_START => p.text("s").u8(1).text("").u32(0).u8(0),
        COMMIT => p.i64(1).i64(0).text("a").u32(0).u32(0),
        SEGMENT_REF => p
            .text("sha256:0")
            .u8(1)
            .text("t")
            .i64(0)
            .i64(0)
            .i64(0)
            .text("d")
            .raw(&[0; 4]),
        SEGMENT_INLINE => segment(),
        SUB_END => p.i64(0).u8(0),
        LEASE => p.text("l").i64(0),
        DETAILS => p.text("k").u32(1).i32(0).text("{\"reason\":\"r\"}"),
        ERROR => p.text("c").text("m").text("k").u8(0).text("a").u8(0),
        _ => p,
    }
}

/// A rows segment without rows or columns.
pub fn segment() -> Payload {
    Payload::new()
        .raw(b"SSG2")
        .u16(1)
        .u16(0)
        .text("t")
        .i32(1)
        .u16(0)
        .u32(0)
}

/// A request of these frames, each with its smallest payload, and END.
pub fn request(frames: &[u8]) -> Message {
    let message = Message::request(1);
    frames
        .iter()
        .fold(message, |message, frame| {
            message.frame(*frame, payload(*frame))
        })
        .end()
}

/// A response of these frames, each with its smallest payload, and END.
pub fn response(frames: &[u8]) -> Message {
    let message = Message::response(1);
    frames
        .iter()
        .fold(message, |message, frame| {
            message.frame(*frame, payload(*frame))
        })
        .end()
}

/// The message a request of these bytes is refused with.
pub fn refused_request(message: &Message) -> &'static str {
    let error = message
        .decode_request()
        .expect_err("the request is not valid");
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    error.message
}

pub fn refused_response(message: &Message) -> &'static str {
    let error = message
        .decode_response()
        .expect_err("the response is not valid");
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    error.message
}

pub fn pull() -> Message {
    Message::request(1)
        .frame(REQ_HEADER, payload(REQ_HEADER))
        .frame(PULL_HEADER, payload(PULL_HEADER))
}

pub fn request_with(frame: u8, payload: Payload) -> Message {
    let message = Message::request(1);
    if frame == REQ_HEADER {
        message
            .frame(frame, payload)
            .frame(PULL_HEADER, self::payload(PULL_HEADER))
            .end()
    } else if frame == SUBSCRIPTION {
        pull().frame(frame, payload).end()
    } else {
        message
            .frame(REQ_HEADER, self::payload(REQ_HEADER))
            .frame(frame, payload)
            .end()
    }
}

/// A response that holds `frame` where it may stand.
pub fn response_with(frame: u8, payload: Payload) -> Message {
    let header = self::payload(RESP_HEADER);
    let start = self::payload(SUB_START);
    let message = Message::response(1);
    if frame == RESP_HEADER {
        return message.frame(frame, payload).end();
    }
    let message = message.frame(RESP_HEADER, header);
    match frame {
        COMMIT | SEGMENT_REF | SEGMENT_INLINE => message
            .frame(SUB_START, start)
            .frame(frame, payload)
            .frame(SUB_END, self::payload(SUB_END))
            .end(),
        SUB_END => message.frame(SUB_START, start).frame(frame, payload).end(),
        SUB_START => message
            .frame(SUB_START, payload)
            .frame(SUB_END, self::payload(SUB_END))
            .end(),
        DETAILS => message
            .frame(PUSH_RESULT, self::payload(PUSH_RESULT))
            .frame(frame, payload)
            .end(),
        _ => message.frame(frame, payload).end(),
    }
}

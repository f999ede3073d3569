//! The decode errors of §1.7, rule by rule: each test names its rule.

use bytes::Bytes;
use ssp2::*;

use crate::raw::*;

const UNKNOWN: u8 = 0x17;

fn accepts_request(frames: &[u8]) {
    let message = request(frames);
    let decoded = message
        .decode_request()
        .unwrap_or_else(|e| panic!("{frames:x?}: {e}"));
    assert_eq!(
        encode_request(&decoded).unwrap(),
        message.bytes(),
        "{frames:x?}"
    );
}

fn accepts_response(frames: &[u8]) {
    let message = response(frames);
    let decoded = message
        .decode_response()
        .unwrap_or_else(|e| panic!("{frames:x?}: {e}"));
    assert_eq!(
        encode_response(&decoded).unwrap(),
        message.bytes(),
        "{frames:x?}"
    );
}

/// The message a request of these bytes is refused with.
fn refused_request(message: &Message) -> &'static str {
    let error = message
        .decode_request()
        .expect_err("the request is not valid");
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    error.message
}

fn refused_response(message: &Message) -> &'static str {
    let error = message
        .decode_response()
        .expect_err("the response is not valid");
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    error.message
}

fn pull() -> Message {
    Message::request(1)
        .frame(REQ_HEADER, payload(REQ_HEADER))
        .frame(PULL_HEADER, payload(PULL_HEADER))
}

fn request_with(frame: u8, payload: Payload) -> Message {
    let message = Message::request(1);
    if frame == REQ_HEADER {
        message
            .frame(frame, payload)
            .frame(PULL_HEADER, crate::raw::payload(PULL_HEADER))
            .end()
    } else if frame == SUBSCRIPTION {
        pull().frame(frame, payload).end()
    } else {
        message
            .frame(REQ_HEADER, crate::raw::payload(REQ_HEADER))
            .frame(frame, payload)
            .end()
    }
}

/// A response that holds `frame` where it may stand.
fn response_with(frame: u8, payload: Payload) -> Message {
    let header = crate::raw::payload(RESP_HEADER);
    let start = crate::raw::payload(SUB_START);
    let message = Message::response(1);
    if frame == RESP_HEADER {
        return message.frame(frame, payload).end();
    }
    let message = message.frame(RESP_HEADER, header);
    match frame {
        COMMIT | SEGMENT_REF | SEGMENT_INLINE => message
            .frame(SUB_START, start)
            .frame(frame, payload)
            .frame(SUB_END, crate::raw::payload(SUB_END))
            .end(),
        SUB_END => message.frame(SUB_START, start).frame(frame, payload).end(),
        SUB_START => message
            .frame(SUB_START, payload)
            .frame(SUB_END, crate::raw::payload(SUB_END))
            .end(),
        DETAILS => message
            .frame(PUSH_RESULT, crate::raw::payload(PUSH_RESULT))
            .frame(frame, payload)
            .end(),
        _ => message.frame(frame, payload).end(),
    }
}

// §1.2 envelope and framing

#[test]
fn s1_2_all_three_wire_versions_are_read_and_no_other() {
    for version in [0, 4, 0x0100, u16::MAX] {
        assert_eq!(
            refused_request(&Message::request(version).end()),
            "the wire version is not supported"
        );
    }
    let header = payload(REQ_HEADER);
    for (version, header) in [
        (1, header.clone()),
        (2, header.clone().u8(0)),
        (3, header.u8(0)),
    ] {
        let message = Message::request(version)
            .frame(REQ_HEADER, header)
            .frame(PULL_HEADER, payload(PULL_HEADER))
            .end();
        assert_eq!(message.decode_request().unwrap().version as u16, version);
    }
}

#[test]
fn s1_2_the_envelope_is_checked_byte_by_byte() {
    let good = request(&[REQ_HEADER, PULL_HEADER]);
    for (at, byte, message) in [
        (3, b'1', "the envelope magic is not SSP2"),
        (6, 0, "the message kind is unknown"),
        (6, 3, "the message kind is unknown"),
        (6, 2, "the message is of the other kind"),
        (7, 1, "the envelope flags are not zero"),
    ] {
        let mut bad = good.clone();
        bad.0[at] = byte;
        assert_eq!(refused_request(&bad), message);
    }
}

#[test]
fn s1_2_rule_1_every_truncation_is_refused() {
    let message = request(&[REQ_HEADER, PUSH_COMMIT, PULL_HEADER, SUBSCRIPTION]);
    for length in 0..message.0.len() {
        assert!(
            Message(message.0[..length].to_vec())
                .decode_request()
                .is_err(),
            "{length}"
        );
    }
    message.decode_request().unwrap();
}

#[test]
fn s1_2_rule_1_end_carries_nothing_and_ends_the_message() {
    assert_eq!(
        refused_request(&pull().frame(0, Payload::new().u8(0))),
        "END carries a payload"
    );
    assert_eq!(refused_request(&pull().end().raw(&[0])), "bytes follow END");
    assert_eq!(refused_request(&pull().end().end()), "bytes follow END");
    assert_eq!(refused_request(&pull()), "the message ends without END");
}

#[test]
fn s1_2_rule_2_reserved_and_unregistered_types_are_unknown() {
    let unknown = [
        0x05, 0x0F, 0x17, 0x18, 0x1A, 0x1C, 0x1D, 0x1E, 0x20, 0x2F, 0x30, 0xFF,
    ];
    for frame in unknown {
        accepts_request(&[REQ_HEADER, frame, PULL_HEADER, frame, SUBSCRIPTION, frame]);
        accepts_response(&[
            RESP_HEADER,
            frame,
            SUB_START,
            frame,
            COMMIT,
            frame,
            SUB_END,
            frame,
        ]);
    }
}

#[test]
fn s1_2_rule_2_unknown_frames_keep_place_and_bytes() {
    let message = pull().frame(UNKNOWN, Payload::new().raw(b"kept")).end();
    let decoded = message.decode_request().unwrap();
    assert_eq!(
        decoded.frames[2],
        RequestFrame::Unknown(UnknownFrame {
            frame_type: UNKNOWN,
            payload: Bytes::from_static(b"kept")
        })
    );
    assert_eq!(encode_request(&decoded).unwrap(), message.bytes());
}

#[test]
fn s1_2_rule_2_an_unknown_frame_does_not_interrupt_the_order_of_known_ones() {
    accepts_response(&[RESP_HEADER, UNKNOWN, LEASE, PUSH_RESULT, UNKNOWN, DETAILS]);
}

#[test]
fn s1_2_rule_2_an_unknown_frame_cannot_be_first() {
    assert_eq!(
        refused_request(&request(&[UNKNOWN, REQ_HEADER, PULL_HEADER])),
        "the first frame is not the header"
    );
}

#[test]
fn s1_2_rule_2_a_frame_of_the_other_kind_is_an_error() {
    for frame in [
        RESP_HEADER,
        PUSH_RESULT,
        SUB_START,
        COMMIT,
        SEGMENT_REF,
        SEGMENT_INLINE,
        SUB_END,
        LEASE,
        DETAILS,
        ERROR,
    ] {
        assert_eq!(
            refused_request(&request(&[REQ_HEADER, frame, PULL_HEADER])),
            "a frame belongs to the other message kind"
        );
    }
    for frame in [REQ_HEADER, PUSH_COMMIT, PULL_HEADER, SUBSCRIPTION] {
        assert_eq!(
            refused_response(&response(&[RESP_HEADER, frame])),
            "a frame belongs to the other message kind"
        );
    }
}

#[test]
fn s1_2_rule_2_an_encoder_refuses_a_registered_type_as_unknown() {
    for frame_type in [0x00, 0x01, 0x04, 0x10, 0x1B, 0x1F] {
        let mut request = pull().end().decode_request().unwrap();
        request.frames.push(RequestFrame::Unknown(UnknownFrame {
            frame_type,
            payload: Bytes::new(),
        }));
        assert_eq!(
            encode_request(&request),
            Err(EncodeError::RegisteredUnknown(frame_type))
        );
    }
}

#[test]
fn s1_2_rule_3_a_known_frame_uses_exactly_its_length() {
    for frame in [REQ_HEADER, PUSH_COMMIT, PULL_HEADER, SUBSCRIPTION] {
        request_with(frame, payload(frame))
            .decode_request()
            .unwrap();
        let longer = request_with(frame, payload(frame).u8(0));
        assert_eq!(
            refused_request(&longer),
            "a frame has trailing bytes",
            "{frame:x}"
        );
        let mut shorter = payload(frame);
        shorter.0.pop();
        request_with(frame, shorter).decode_request().unwrap_err();
    }
    for frame in [
        RESP_HEADER,
        PUSH_RESULT,
        SUB_START,
        COMMIT,
        SEGMENT_REF,
        SUB_END,
        LEASE,
        DETAILS,
        ERROR,
    ] {
        response_with(frame, payload(frame))
            .decode_response()
            .unwrap();
        let longer = response_with(frame, payload(frame).u8(0));
        assert_eq!(
            refused_response(&longer),
            "a frame has trailing bytes",
            "{frame:x}"
        );
        let mut shorter = payload(frame);
        shorter.0.pop();
        response_with(frame, shorter).decode_response().unwrap_err();
    }
}

// §1.5 request grammar

#[test]
fn s1_5_pushes_then_pull_then_subscriptions() {
    accepts_request(&[REQ_HEADER, PUSH_COMMIT]);
    accepts_request(&[REQ_HEADER, PUSH_COMMIT, PUSH_COMMIT]);
    accepts_request(&[REQ_HEADER, PULL_HEADER]);
    accepts_request(&[REQ_HEADER, PULL_HEADER, SUBSCRIPTION, SUBSCRIPTION]);
    accepts_request(&[REQ_HEADER, PUSH_COMMIT, PULL_HEADER, SUBSCRIPTION]);
    for frames in [
        [REQ_HEADER, PULL_HEADER, PUSH_COMMIT].as_slice(),
        &[REQ_HEADER, SUBSCRIPTION],
        &[REQ_HEADER, PUSH_COMMIT, SUBSCRIPTION],
        &[REQ_HEADER, PULL_HEADER, PULL_HEADER],
        &[REQ_HEADER, PULL_HEADER, SUBSCRIPTION, PUSH_COMMIT],
        &[REQ_HEADER, PULL_HEADER, SUBSCRIPTION, PULL_HEADER],
    ] {
        assert_eq!(
            refused_request(&request(frames)),
            "a frame stands out of order"
        );
    }
}

#[test]
fn s1_5_the_header_is_first_and_once() {
    assert_eq!(
        refused_request(&request(&[])),
        "the first frame is not the header"
    );
    assert_eq!(
        refused_request(&request(&[PULL_HEADER, REQ_HEADER])),
        "the first frame is not the header"
    );
    assert_eq!(
        refused_request(&request(&[REQ_HEADER, REQ_HEADER, PULL_HEADER])),
        "the header frame stands twice"
    );
}

#[test]
fn s1_5_a_request_without_push_and_pull_is_refused() {
    for frames in [[REQ_HEADER].as_slice(), &[REQ_HEADER, UNKNOWN]] {
        assert_eq!(
            refused_request(&request(frames)),
            "the request carries neither a push nor a pull"
        );
    }
}

#[test]
fn s1_5_the_log_epoch_is_there_from_version_2_on() {
    let with_epoch = payload(REQ_HEADER).u8(1).text("e");
    for version in [2, 3] {
        let message = Message::request(version)
            .frame(REQ_HEADER, with_epoch.clone())
            .frame(PULL_HEADER, payload(PULL_HEADER))
            .end();
        let RequestFrame::Header(header) = &message.decode_request().unwrap().frames[0] else {
            panic!("no header");
        };
        assert_eq!(header.log_epoch.as_deref(), Some("e"));
    }
    assert_eq!(
        refused_request(&request_with(REQ_HEADER, with_epoch)),
        "a frame has trailing bytes"
    );
}

// §1.6 response grammar

#[test]
fn s1_6_the_order_of_a_response() {
    for frames in [
        [RESP_HEADER].as_slice(),
        &[RESP_HEADER, LEASE],
        &[
            RESP_HEADER,
            LEASE,
            PUSH_RESULT,
            PUSH_RESULT,
            DETAILS,
            PUSH_RESULT,
            SUB_START,
            SUB_END,
        ],
        &[
            RESP_HEADER,
            SUB_START,
            COMMIT,
            COMMIT,
            SUB_END,
            SUB_START,
            SUB_END,
        ],
        &[
            RESP_HEADER,
            SUB_START,
            SEGMENT_REF,
            SEGMENT_INLINE,
            SEGMENT_REF,
            SUB_END,
        ],
    ] {
        accepts_response(frames);
    }
    for frames in [
        [RESP_HEADER, PUSH_RESULT, LEASE].as_slice(),
        &[RESP_HEADER, LEASE, LEASE],
        &[RESP_HEADER, SUB_START, SUB_END, PUSH_RESULT],
        &[RESP_HEADER, SUB_START, SUB_END, LEASE],
        &[RESP_HEADER, SUB_START, SUB_START],
        &[RESP_HEADER, SUB_END],
        &[RESP_HEADER, COMMIT],
        &[RESP_HEADER, SEGMENT_REF],
        &[RESP_HEADER, SUB_START, SUB_END, COMMIT],
        &[RESP_HEADER, SUB_START, PUSH_RESULT],
    ] {
        assert_eq!(
            refused_response(&response(frames)),
            "a frame stands out of order",
            "{frames:x?}"
        );
    }
}

#[test]
fn s1_6_the_header_is_first_and_once() {
    assert_eq!(
        refused_response(&response(&[LEASE])),
        "the first frame is not the header"
    );
    assert_eq!(
        refused_response(&response(&[RESP_HEADER, RESP_HEADER])),
        "the header frame stands twice"
    );
}

#[test]
fn s1_6_commits_and_segments_never_mix_in_one_subscription() {
    for segment in [SEGMENT_REF, SEGMENT_INLINE] {
        for (first, second) in [(COMMIT, segment), (segment, COMMIT)] {
            let mixed = [RESP_HEADER, SUB_START, first, UNKNOWN, second, SUB_END];
            assert_eq!(
                refused_response(&response(&mixed)),
                "a subscription mixes commits and segments"
            );
        }
        accepts_response(&[
            RESP_HEADER,
            SUB_START,
            COMMIT,
            SUB_END,
            SUB_START,
            segment,
            SUB_END,
        ]);
    }
}

#[test]
fn s1_6_a_subscription_is_closed_before_end() {
    assert_eq!(
        refused_response(&response(&[RESP_HEADER, SUB_START, COMMIT])),
        "a subscription is not closed before END"
    );
}

#[test]
fn s1_6_an_error_may_stand_anywhere_and_only_end_follows() {
    for before in [
        [RESP_HEADER].as_slice(),
        &[RESP_HEADER, LEASE],
        &[RESP_HEADER, PUSH_RESULT],
        &[RESP_HEADER, SUB_START],
        &[RESP_HEADER, SUB_START, COMMIT],
        &[RESP_HEADER, SUB_START, SEGMENT_REF],
        &[RESP_HEADER, SUB_START, SUB_END],
    ] {
        let with = |more: &[u8]| [before, &[ERROR], more].concat();
        accepts_response(&with(&[]));
        for after in [UNKNOWN, ERROR, SUB_START, SUB_END, COMMIT] {
            assert_eq!(
                refused_response(&response(&with(&[after]))),
                "a frame follows ERROR"
            );
        }
    }
}

#[test]
fn s1_6_the_epoch_is_there_from_version_2_on() {
    for version in [2, 3] {
        let message = Message::response(version)
            .frame(RESP_HEADER, payload(RESP_HEADER).text("e").u8(1))
            .end();
        let ResponseFrame::Header(header) = &message.decode_response().unwrap().frames[0] else {
            panic!("no header");
        };
        assert_eq!(
            header.epoch,
            Some(EpochHeader {
                log_epoch: "e".to_owned(),
                reset_required: true
            })
        );
    }
}

// §6.3.1

#[test]
fn s6_3_1_details_follow_a_rejected_result_only() {
    let refused = "details do not follow a rejected result";
    for frames in [
        [RESP_HEADER, DETAILS].as_slice(),
        &[RESP_HEADER, LEASE, DETAILS],
        &[RESP_HEADER, PUSH_RESULT, DETAILS, DETAILS],
        &[RESP_HEADER, SUB_START, SUB_END, DETAILS],
    ] {
        assert_eq!(refused_response(&response(frames)), refused);
    }
    let applied = Payload::new().text("k").u8(1).u8(1).i64(1).u32(0);
    let message = Message::response(1)
        .frame(RESP_HEADER, payload(RESP_HEADER))
        .frame(PUSH_RESULT, applied)
        .frame(DETAILS, payload(DETAILS))
        .end();
    assert_eq!(refused_response(&message), refused);
}

#[test]
fn s6_3_1_malformed_details_are_decode_errors() {
    let head = || Payload::new().text("k");
    let good = "{\"reason\":\"r\"}";
    for (payload, message) in [
        (head().u32(0), "a details frame has no entries"),
        (
            head().u32(1).i32(-1).text(good),
            "a detail's opIndex is negative",
        ),
        (
            head().u32(2).i32(1).text(good).i32(1).text(good),
            "a detail's opIndex stands twice",
        ),
        (
            head().u32(1).i32(0).text("{}"),
            "details are not a bounded details object",
        ),
        (
            head().u32(1).i32(0).text("{\"reason\":\"Upper\"}"),
            "details are not a bounded details object",
        ),
    ] {
        assert_eq!(refused_response(&response_with(DETAILS, payload)), message);
    }
}

// §1.7 single-frame constraints and primitives

#[test]
fn s1_7_identifiers_are_not_empty_and_versions_at_least_1() {
    for (payload, message) in [
        (Payload::new().text("").i32(1), "clientId is empty"),
        (Payload::new().text("c").i32(0), "schemaVersion is below 1"),
        (Payload::new().text("c").i32(-1), "schemaVersion is below 1"),
    ] {
        assert_eq!(refused_request(&request_with(REQ_HEADER, payload)), message);
    }
    let commit = Payload::new()
        .text("")
        .u32(1)
        .text("t")
        .text("r")
        .u8(2)
        .u8(0)
        .u8(0);
    assert_eq!(
        refused_request(&request_with(PUSH_COMMIT, commit)),
        "clientCommitId is empty"
    );
}

#[test]
fn s1_7_a_commit_without_operations_has_its_own_code() {
    let message = request_with(PUSH_COMMIT, Payload::new().text("k").u32(0));
    assert_eq!(
        message.decode_request().unwrap_err().code,
        ErrorCode::EmptyCommit
    );
}

#[test]
fn s1_7_accept_bits_4_to_7_are_zero() {
    for accept in 0..=u8::MAX {
        let payload = Payload::new().i32(0).i32(0).i32(0).u8(accept);
        let decoded = request_with(PULL_HEADER, payload).decode_request();
        assert_eq!(decoded.is_ok(), accept < 16, "{accept:08b}");
    }
}

#[test]
fn s1_7_an_upsert_has_a_payload_and_a_delete_has_none() {
    let operation = |op: u8| {
        Payload::new()
            .text("k")
            .u32(1)
            .text("t")
            .text("r")
            .u8(op)
            .u8(0)
    };
    for (payload, message) in [
        (operation(1).u8(0), "an upsert carries no payload"),
        (operation(2).u8(1).text("x"), "a delete carries a payload"),
        (operation(0).u8(0), "the operation is unknown"),
        (operation(3).u8(0), "the operation is unknown"),
        (
            operation(2).u8(2),
            "an optional's presence byte is neither 0 nor 1",
        ),
    ] {
        assert_eq!(
            refused_request(&request_with(PUSH_COMMIT, payload)),
            message
        );
    }
}

#[test]
fn s1_7_a_commit_seq_is_there_unless_rejected() {
    let status = |status: u8| Payload::new().text("k").u8(status);
    for (payload, message) in [
        (status(1).u8(0).u32(0), "an applied result has no commitSeq"),
        (status(2).u8(0).u32(0), "an applied result has no commitSeq"),
        (
            status(3).u8(1).i64(1).u32(0),
            "a rejected result has a commitSeq",
        ),
        (status(4).u8(0).u32(0), "the push status is unknown"),
        (
            status(3).u8(0).u32(1).i32(0).u8(4),
            "the result status is unknown",
        ),
    ] {
        assert_eq!(
            refused_response(&response_with(PUSH_RESULT, payload)),
            message
        );
    }
}

#[test]
fn s1_7_a_change_has_row_and_version_iff_it_is_an_upsert() {
    let commit = |tables: u32| {
        let payload = Payload::new().i64(1).i64(0).text("a").u32(tables);
        (0..tables)
            .fold(payload, |payload, _| payload.text("t"))
            .u32(1)
    };
    let change = |op: u8| commit(1).u16(0).text("r").u8(op);
    let misfit = "a change's row and version do not fit its operation";
    for (payload, message) in [
        (change(1).u8(0).u32(0).u8(1).text("x"), misfit),
        (change(1).u8(1).i64(1).u32(0).u8(0), misfit),
        (change(2).u8(1).i64(1).u32(0).u8(0), misfit),
        (change(2).u8(0).u32(0).u8(1).text("x"), misfit),
        (
            change(3).u8(0).u32(0).u8(0),
            "the change operation is unknown",
        ),
        (
            commit(1).u16(1).text("r").u8(2).u8(0).u32(0).u8(0),
            "a change's tableIndex is out of range",
        ),
        (
            commit(0).u16(0).text("r").u8(2).u8(0).u32(0).u8(0),
            "a change's tableIndex is out of range",
        ),
    ] {
        let message_bytes = response_with(COMMIT, payload);
        assert_eq!(refused_response(&message_bytes), message);
    }
}

#[test]
fn s1_7_a_url_and_its_expiry_stand_together() {
    let reference = || {
        Payload::new()
            .text("s")
            .u8(1)
            .text("t")
            .i64(0)
            .i64(0)
            .i64(0)
            .text("d")
            .u8(0)
            .u8(0)
    };
    for (payload, message) in [
        (
            reference().u8(1).text("u").u8(0),
            "url and urlExpiresAtMs do not stand together",
        ),
        (
            reference().u8(0).u8(1).i64(0),
            "url and urlExpiresAtMs do not stand together",
        ),
    ] {
        assert_eq!(
            refused_response(&response_with(SEGMENT_REF, payload)),
            message
        );
    }
    let both = response_with(SEGMENT_REF, reference().u8(1).text("u").u8(1).i64(7));
    both.decode_response().unwrap();
}

#[test]
fn s1_7_an_inline_segment_is_structurally_valid() {
    for payload in [
        Payload::new(),
        segment().u8(0),
        Payload::new()
            .raw(b"SSP2")
            .u16(1)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(0)
            .u32(0),
        Payload::new()
            .raw(b"SSG2")
            .u16(2)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(0)
            .u32(0),
        Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(1)
            .text("t")
            .i32(1)
            .u16(0)
            .u32(0),
        Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(0),
        Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(1)
            .text("c")
            .u8(9)
            .u8(0)
            .u32(0),
        Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(1)
            .text("c")
            .u8(1)
            .u8(2)
            .u32(0),
        // A block whose length is not what its rows take.
        Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(0)
            .u32(1)
            .u32(9)
            .i64(1)
            .u8(0)
            .u32(0),
        Payload::new()
            .raw(b"SSG2")
            .u16(1)
            .u16(0)
            .text("t")
            .i32(1)
            .u16(0)
            .u32(1)
            .u32(8)
            .i64(0)
            .u32(0),
    ] {
        response_with(SEGMENT_INLINE, payload)
            .decode_response()
            .unwrap_err();
    }
}

#[test]
fn primitives_integers_stay_inside_the_safe_range() {
    for value in [MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER, 0] {
        response_with(SUB_END, Payload::new().i64(value).u8(0))
            .decode_response()
            .unwrap();
    }
    for value in [
        MAX_SAFE_INTEGER + 1,
        -MAX_SAFE_INTEGER - 1,
        i64::MIN,
        i64::MAX,
    ] {
        assert_eq!(
            refused_response(&response_with(SUB_END, Payload::new().i64(value).u8(0))),
            "an integer is outside the safe range"
        );
    }
}

#[test]
fn primitives_text_is_utf_8_and_booleans_are_0_or_1() {
    let broken = Payload::new().u32(1).raw(&[0xFF]).i64(0);
    assert_eq!(
        refused_response(&response_with(LEASE, broken)),
        "text is not valid UTF-8"
    );
    let surrogate = Payload::new().u32(3).raw(&[0xED, 0xA0, 0x80]).i64(0);
    assert_eq!(
        refused_response(&response_with(LEASE, surrogate)),
        "text is not valid UTF-8"
    );
    let start = Payload::new().text("s").u8(1).text("").u32(0).u8(2);
    assert_eq!(
        refused_response(&response_with(SUB_START, start)),
        "a boolean is neither 0 nor 1"
    );
}

#[test]
fn primitives_map_keys_ascend_by_utf_16_code_unit() {
    let map = |keys: &[&str]| {
        let count = u32::try_from(keys.len()).unwrap();
        let payload = Payload::new().text("s").text("t").u32(count);
        let payload = keys
            .iter()
            .fold(payload, |payload, key| payload.text(key).u32(0));
        request_with(SUBSCRIPTION, payload.u8(0).i64(0).u8(0))
    };
    // U+1D11E is D834 DD1E in UTF-16: before U+E000 and U+FFFD, after U+D7FF.
    for keys in [
        ["a", "b"],
        ["a", "aa"],
        ["", "a"],
        ["\u{D7FF}", "𝄞"],
        ["𝄞", "\u{E000}"],
        ["𝄞", "\u{FFFD}"],
    ] {
        map(&keys).decode_request().unwrap();
        let swapped = [keys[1], keys[0]];
        assert_eq!(
            refused_request(&map(&swapped)),
            "map keys are not unique and ascending",
            "{swapped:?}"
        );
    }
    assert_eq!(
        refused_request(&map(&["a", "a"])),
        "map keys are not unique and ascending"
    );
}

#[test]
fn primitives_json_is_checked_and_kept_byte_for_byte() {
    let end = |state: &str| response_with(SUB_END, Payload::new().i64(0).u8(1).text(state));
    for state in ["{ \"a\" : 1.0 }", "1e999", "\"\\ud800\"", "[1,\t2]"] {
        let message = end(state);
        let decoded = message.decode_response().unwrap();
        assert_eq!(encode_response(&decoded).unwrap(), message.bytes());
    }
    for state in ["", "{", "nul", "{'a':1}", "1 2"] {
        assert_eq!(refused_response(&end(state)), "a json value does not parse");
    }
}

#[test]
fn s1_7_semantic_expectations_are_no_decode_errors() {
    // Bits 0 and 1 absent, '*', a duplicate subscription, a reason on an active one.
    let subscription = Payload::new()
        .text("s")
        .text("t")
        .u32(1)
        .text("v")
        .u32(1)
        .text("*")
        .u8(0)
        .i64(5)
        .u8(0);
    let message = Message::request(1)
        .frame(REQ_HEADER, payload(REQ_HEADER))
        .frame(
            PULL_HEADER,
            Payload::new().i32(-5).i32(i32::MAX).i32(0).u8(0),
        )
        .frame(SUBSCRIPTION, subscription.clone())
        .frame(SUBSCRIPTION, subscription)
        .end();
    message.decode_request().unwrap();
    let start = Payload::new().text("s").u8(1).text("reason").u32(0).u8(1);
    response_with(SUB_START, start).decode_response().unwrap();
}

// What an encoder refuses

#[test]
fn an_encoder_refuses_what_a_decoder_would_and_stays_usable() {
    let mut encoder = ResponseEncoder::new(WireVersion::V1);
    let header = ResponseFrame::Header(ResponseHeader {
        required_schema_version: None,
        latest_schema_version: None,
        epoch: None,
    });
    let end = |state: &str| {
        ResponseFrame::SubEnd(SubEnd {
            next_cursor: 0,
            bootstrap_state: Some(state.to_owned()),
        })
    };
    let start = ResponseFrame::SubStart(SubStart {
        id: "s".to_owned(),
        status: SubStatus::Active,
        reason_code: String::new(),
        effective_scopes: ScopeLists::new(),
        bootstrap: false,
    });
    encoder.frame(&header).unwrap();
    encoder.frame(&start).unwrap();
    assert!(matches!(encoder.frame(&start), Err(EncodeError::Order(_))));
    assert!(matches!(
        encoder.frame(&end("{")),
        Err(EncodeError::Field(_))
    ));
    encoder.frame(&end("{}")).unwrap();
    decode_response(encoder.finish().unwrap()).unwrap();
}

#[test]
fn a_log_epoch_needs_a_wire_version_that_has_one() {
    let header = RequestFrame::Header(RequestHeader {
        client_id: "c".to_owned(),
        schema_version: 1,
        log_epoch: Some("e".to_owned()),
    });
    assert!(RequestEncoder::new(WireVersion::V1).frame(&header).is_err());
    assert!(RequestEncoder::new(WireVersion::V2).frame(&header).is_ok());
}

// §1.4 streaming

#[test]
fn s1_4_a_streaming_decoder_refuses_a_frame_above_its_limit_before_it_arrives() {
    let mut decoder = FrameDecoder::new(MessageKind::Request, 100);
    decoder.push(&Message::request(1).raw(&[REQ_HEADER, 101, 0, 0, 0]).0);
    assert!(matches!(decoder.next_event(), Ok(Event::Envelope(_))));
    let error = decoder.next_event().unwrap_err();
    assert_eq!(error.message, "a frame is larger than allowed");
    decoder.push(&[0; 200]);
    assert_eq!(
        decoder.next_event(),
        Err(error.clone()),
        "a failed message stays failed"
    );
    assert_eq!(decoder.finish(), Err(error));
}

#[test]
fn s5_2_a_block_of_any_length_re_encodes_as_it_stands() {
    let rows = |count: i64| {
        (1..=count)
            .map(|server_version| SegmentRow {
                server_version,
                values: vec![],
            })
            .collect::<Vec<_>>()
    };
    let segment = Segment {
        header: SegmentHeader {
            table: "t".to_owned(),
            schema_version: 1,
            columns: vec![],
        },
        blocks: vec![rows(2500), rows(1)],
    };
    let bytes = encode_segment(&segment).unwrap();
    assert_eq!(decode_segment(bytes.clone()).unwrap(), segment);
    assert_eq!(reencode(bytes.clone()).unwrap(), bytes);
}

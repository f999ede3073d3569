//! Envelope, framing and the order of frames (§1.2, §1.5, §1.6): each test names
//! its rule.

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

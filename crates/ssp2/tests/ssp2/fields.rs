//! The field constraints of §1.7 and the primitives, rule by rule, and what an
//! encoder refuses.

use ssp2::*;

use crate::raw::*;

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

//! Properties of the codec over arbitrary and mutated input.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use ssp2::scope_map::cmp_utf16;
use ssp2::*;

use crate::{arbitrary, fixtures};

/// A change to some bytes: where, and what.
type Mutation = (Index, u8, u8);

fn mutate(bytes: &[u8], mutations: &[Mutation]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, what, byte) in mutations {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match what % 4 {
            0 => bytes[at] = *byte,
            1 => bytes[at] ^= 1 << (byte % 8),
            2 => {
                bytes.remove(at);
            }
            _ => bytes.insert(at, *byte),
        }
    }
    bytes
}

/// Whatever the bytes are: a failure, or themselves again, and always a rendering.
fn decodes_canonically_or_fails(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let bytes = Bytes::from(bytes);
    match reencode(bytes.clone()) {
        Ok(again) => {
            prop_assert_eq!(&again, &bytes);
            prop_assert!(render_bytes(bytes).is_ok());
        }
        Err(ReencodeError::Decode(error)) => {
            prop_assert!(error.offset <= bytes.len());
            prop_assert!(render_bytes(bytes).is_err());
        }
        Err(error) => prop_assert!(false, "decoded but not encoded: {error}"),
    }
    Ok(())
}

fn stream(kind: MessageKind, bytes: &[u8], cuts: &[Index]) -> Result<Vec<Frame>, DecodeError> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let mut decoder = FrameDecoder::new(kind, usize::MAX);
    let mut frames = Vec::new();
    for pair in cuts.windows(2) {
        decoder.push(&bytes[pair[0]..pair[1]]);
        loop {
            match decoder.next_event()? {
                Event::Frame(frame) => frames.push(*frame),
                Event::Pending => break,
                Event::Envelope(_) | Event::End => {}
            }
        }
    }
    decoder.finish()?;
    Ok(frames)
}

fn whole(kind: MessageKind, bytes: &[u8]) -> Result<Vec<Frame>, DecodeError> {
    let bytes = Bytes::copy_from_slice(bytes);
    Ok(match kind {
        MessageKind::Request => decode_request(bytes)?
            .frames
            .into_iter()
            .map(Frame::Request)
            .collect(),
        MessageKind::Response => decode_response(bytes)?
            .frames
            .into_iter()
            .map(Frame::Response)
            .collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_round_trip(request in arbitrary::request()) {
        let bytes = encode_request(&request).unwrap();
        prop_assert_eq!(decode_request(bytes.clone()).unwrap(), request);
        prop_assert_eq!(reencode(bytes.clone()).unwrap(), bytes);
    }

    #[test]
    fn responses_round_trip(response in arbitrary::response()) {
        let bytes = encode_response(&response).unwrap();
        prop_assert_eq!(decode_response(bytes.clone()).unwrap(), response);
        prop_assert_eq!(reencode(bytes.clone()).unwrap(), bytes);
    }

    #[test]
    fn segments_round_trip(segment in arbitrary::segment()) {
        let bytes = encode_segment(&segment).unwrap();
        prop_assert_eq!(&decode_segment(bytes.clone()).unwrap(), &segment);
        prop_assert_eq!(reencode(bytes.clone()).unwrap(), bytes.clone());
        prop_assert!(ssp2::segment::validate(&bytes).is_ok());
        let mut writer = SegmentWriter::new(&segment.header);
        let rows = segment.blocks.concat();
        for row in &rows {
            let payload = encode_row(&segment.header.columns, &row.values).unwrap();
            writer.row(row.server_version, &payload);
        }
        let streamed = decode_segment(writer.finish()).unwrap();
        prop_assert_eq!(streamed.blocks.concat(), rows);
    }

    #[test]
    fn rows_round_trip(
        (columns, values) in arbitrary::columns()
            .prop_flat_map(|columns| (Just(columns.clone()), arbitrary::row(&columns)))
    ) {
        let bytes = encode_row(&columns, &values).unwrap();
        prop_assert_eq!(decode_row(&columns, &bytes).unwrap(), values);
    }

    #[test]
    fn sparse_rows_round_trip(
        (columns, values, present, key) in arbitrary::columns()
            .prop_filter("a key needs a column", |columns| !columns.is_empty())
            .prop_flat_map(|columns| {
                let presence = vec(any::<bool>(), columns.len());
                (Just(columns.clone()), arbitrary::row(&columns), presence, any::<Index>())
            })
    ) {
        let key = key.index(columns.len());
        let row: SparseRow = values
            .into_iter()
            .enumerate()
            .map(|(index, value)| (present[index] || index == key).then_some(value))
            .collect();
        let bytes = encode_sparse_row(&columns, key, &row).unwrap();
        prop_assert_eq!(&decode_sparse_row(&columns, key, &bytes).unwrap(), &row);
        prop_assert!(render_sparse_row(&columns, key, &bytes).is_ok());
    }

    #[test]
    fn arbitrary_row_bytes_decode_canonically_or_fail(
        columns in arbitrary::columns(),
        bytes in vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..64),
    ) {
        let bytes = Bytes::from(bytes);
        if let Ok(values) = decode_row(&columns, &bytes) {
            prop_assert_eq!(encode_row(&columns, &values).unwrap(), bytes.clone());
        }
        if let Ok(row) = decode_sparse_row(&columns, 0, &bytes) {
            prop_assert_eq!(encode_sparse_row(&columns, 0, &row).unwrap(), bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_decode_canonically_or_fail(
        head in prop_oneof![
            Just(b"SSP2\x01\0\x01\0".to_vec()),
            Just(b"SSP2\x03\0\x02\0".to_vec()),
            Just(b"SSG2\x01\0\0\0".to_vec()),
            Just(vec![]),
        ],
        tail in vec(prop_oneof![3 => Just(0u8), 1 => 0u8..0x20, 1 => any::<u8>()], 0..96),
    ) {
        decodes_canonically_or_fails([head, tail].concat())?;
    }

    #[test]
    fn mutated_requests_decode_canonically_or_fail(
        request in arbitrary::request(), mutations in vec(any::<Mutation>(), 1..4),
    ) {
        decodes_canonically_or_fails(mutate(&encode_request(&request).unwrap(), &mutations))?;
    }

    #[test]
    fn mutated_responses_decode_canonically_or_fail(
        response in arbitrary::response(), mutations in vec(any::<Mutation>(), 1..4),
    ) {
        decodes_canonically_or_fails(mutate(&encode_response(&response).unwrap(), &mutations))?;
    }

    #[test]
    fn mutated_segments_decode_canonically_or_fail(
        segment in arbitrary::segment(), mutations in vec(any::<Mutation>(), 1..4),
    ) {
        let bytes = mutate(&encode_segment(&segment).unwrap(), &mutations);
        // Checking and decoding agree on what is valid.
        let shared = Bytes::from(bytes.clone());
        prop_assert_eq!(
            ssp2::segment::validate(&shared).err(),
            decode_segment(shared.clone()).err()
        );
        decodes_canonically_or_fails(bytes)?;
    }

    #[test]
    fn mutated_traces_decode_canonically_or_fail(
        name in prop_oneof![Just("0115"), Just("0259"), Just("0291"), Just("0435"), Just("0611")],
        side in prop_oneof![Just("req"), Just("res")],
        mutations in vec(any::<Mutation>(), 1..5),
    ) {
        let bytes = fixtures::bytes(&format!("traces/{name}.{side}.bin"));
        decodes_canonically_or_fails(mutate(&bytes, &mutations))?;
    }

    #[test]
    fn a_stream_in_any_chunks_gives_the_frames_of_the_whole(
        request in arbitrary::request(),
        response in arbitrary::response(),
        cuts in vec(any::<Index>(), 0..40),
    ) {
        let request = encode_request(&request).unwrap();
        prop_assert_eq!(
            stream(MessageKind::Request, &request, &cuts),
            whole(MessageKind::Request, &request)
        );
        let response = encode_response(&response).unwrap();
        prop_assert_eq!(
            stream(MessageKind::Response, &response, &cuts),
            whole(MessageKind::Response, &response)
        );
    }

    #[test]
    fn a_stream_fails_where_the_whole_fails(
        response in arbitrary::response(),
        mutations in vec(any::<Mutation>(), 1..3),
        cuts in vec(any::<Index>(), 0..10),
    ) {
        let bytes = mutate(&encode_response(&response).unwrap(), &mutations);
        let streamed = stream(MessageKind::Response, &bytes, &cuts);
        let whole = whole(MessageKind::Response, &bytes);
        match (streamed, whole) {
            // Compared as text: a mutation can make a NaN, unequal to itself.
            (Ok(a), Ok(b)) => prop_assert_eq!(format!("{a:?}"), format!("{b:?}")),
            (Err(a), Err(b)) => prop_assert_eq!(a.code, b.code),
            (a, b) => prop_assert!(false, "{a:?} against {b:?}"),
        }
    }

    #[test]
    fn text_orders_by_utf_16_code_unit(a in ".{0,6}", b in ".{0,6}", astral in "[\u{D7F0}-\u{D7FF}\u{E000}-\u{FFFF}𝄀-𝄞]{0,4}") {
        for (a, b) in [(&a, &b), (&a, &astral), (&astral, &b)] {
            prop_assert_eq!(cmp_utf16(a, b), a.encode_utf16().cmp(b.encode_utf16()));
        }
    }

    #[test]
    fn a_scope_map_is_sorted_and_keeps_the_last_value(entries in vec((".{0,3}", any::<u8>()), 0..20)) {
        let map: scope_map::ScopeMap<u8> = entries.iter().cloned().collect();
        let keys: Vec<&str> = map.iter().map(|(key, _)| key).collect();
        prop_assert!(keys.windows(2).all(|pair| cmp_utf16(pair[0], pair[1]).is_lt()));
        for (key, _) in &entries {
            let last = entries.iter().rev().find(|(other, _)| other == key).map(|(_, value)| value);
            prop_assert_eq!(map.get(key), last);
        }
    }

    #[test]
    fn control_text_never_panics(text in ".{0,40}", doc in "[\\[\\]{}\":,0-9a-z\\\\ ]{0,40}") {
        for text in [text, format!("{{\"event\":\"presence\",\"data\":{doc}}}"), format!("{{\"type\":\"ack\",\"cursor\":{doc}}}")] {
            let _ = (ClientMessage::parse(&text), ServerEvent::parse(&text));
        }
    }
}

#[test]
fn every_bit_pattern_of_a_float_survives() {
    let columns = [Column {
        name: "f".to_owned(),
        ty: ColumnType::Float,
        nullable: false,
    }];
    for bits in [
        0x7FF0_0000_0000_0001,
        0x7FF8_0000_0000_0000,
        0xFFFF_FFFF_FFFF_FFFF,
        1 << 63,
        1u64,
    ] {
        let bytes = Bytes::from([&[0], bits.to_le_bytes().as_slice()].concat());
        let values = decode_row(&columns, &bytes).unwrap();
        assert_eq!(encode_row(&columns, &values).unwrap(), bytes);
    }
}

#[test]
fn floats_render_as_javascript_serializes_them() {
    let segment = |value: f64| Segment {
        header: SegmentHeader {
            table: "t".to_owned(),
            schema_version: 1,
            columns: vec![Column {
                name: "f".to_owned(),
                ty: ColumnType::Float,
                nullable: false,
            }],
        },
        blocks: vec![vec![SegmentRow {
            server_version: 1,
            values: vec![Value::Float(value)],
        }]],
    };
    for (value, expected) in [
        (f64::NAN, "null"),
        (f64::INFINITY, "null"),
        (f64::NEG_INFINITY, "null"),
        (-0.0, "0"),
        (3.0, "3"),
        (0.1, "0.1"),
        (-1.5, "-1.5"),
    ] {
        let rendered = render_segment(&segment(value));
        assert_eq!(
            rendered["blocks"][0][0]["values"]["f"].to_string(),
            expected
        );
    }
}

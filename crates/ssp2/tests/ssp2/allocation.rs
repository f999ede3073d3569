//! Counts on the wire are claims: decoding allocates for bytes that are there.

use allocation_counter::measure;
use ssp2::*;

use crate::raw::*;

/// Peak bytes held while `decode` runs, which must fail.
fn peak(decode: impl FnOnce() -> bool) -> u64 {
    let mut failed = false;
    let info = measure(|| failed = decode());
    assert!(failed, "the hostile message decodes");
    info.bytes_max
}

/// What a failed decode of a few bytes may hold: the containers of one frame.
const SMALL: u64 = 256 * 1024;

#[test]
fn the_counter_counts() {
    let info = measure(|| drop(std::hint::black_box(vec![0u8; 1 << 20])));
    assert!(info.bytes_max >= 1 << 20);
}

#[test]
fn hostile_counts_in_a_request_allocate_nothing_much() {
    let header = || Message::request(1).frame(REQ_HEADER, payload(REQ_HEADER));
    let subscription = || Payload::new().text("s").text("t");
    for message in [
        header().frame(PUSH_COMMIT, Payload::new().text("k").u32(u32::MAX)),
        header().frame(
            PUSH_COMMIT,
            Payload::new().text("k").u32(u32::MAX).raw(&[0; 600]),
        ),
        header()
            .frame(PULL_HEADER, payload(PULL_HEADER))
            .frame(SUBSCRIPTION, subscription().u32(u32::MAX).raw(&[0; 600])),
        header().frame(PULL_HEADER, payload(PULL_HEADER)).frame(
            SUBSCRIPTION,
            subscription().u32(1).text("v").u32(u32::MAX).raw(&[0; 600]),
        ),
        // Lengths, not counts.
        header().raw(&[PUSH_COMMIT, 0xFF, 0xFF, 0xFF, 0xFF]),
        header().frame(PUSH_COMMIT, Payload::new().u32(u32::MAX)),
    ] {
        let bytes = message.bytes();
        assert!(peak(|| decode_request(bytes).is_err()) < SMALL);
    }
}

#[test]
fn hostile_counts_in_a_response_allocate_nothing_much() {
    let header = || Message::response(3).frame(RESP_HEADER, payload(RESP_HEADER).text("e").u8(0));
    let open = || header().frame(SUB_START, payload(SUB_START));
    let commit = || Payload::new().i64(1).i64(0).text("a");
    for message in [
        header().frame(
            PUSH_RESULT,
            Payload::new()
                .text("k")
                .u8(3)
                .u8(0)
                .u32(u32::MAX)
                .raw(&[0; 600]),
        ),
        header().frame(PUSH_RESULT, payload(PUSH_RESULT)).frame(
            DETAILS,
            Payload::new().text("k").u32(u32::MAX).raw(&[0; 600]),
        ),
        header().frame(
            SUB_START,
            Payload::new()
                .text("s")
                .u8(1)
                .text("")
                .u32(u32::MAX)
                .raw(&[0; 600]),
        ),
        open().frame(COMMIT, commit().u32(u32::MAX).raw(&[0; 600])),
        open().frame(
            COMMIT,
            commit().u32(1).text("t").u32(u32::MAX).raw(&[0; 600]),
        ),
        open().frame(
            COMMIT,
            commit()
                .u32(1)
                .text("t")
                .u32(1)
                .u16(0)
                .text("r")
                .u8(2)
                .u8(0)
                .u32(u32::MAX)
                .raw(&[0; 600]),
        ),
    ] {
        let bytes = message.bytes();
        assert!(peak(|| decode_response(bytes).is_err()) < SMALL);
    }
}

fn segment_head(columns: u16) -> Payload {
    Payload::new()
        .raw(b"SSG2")
        .u16(1)
        .u16(0)
        .text("t")
        .i32(1)
        .u16(columns)
}

#[test]
fn hostile_counts_in_a_segment_allocate_nothing_much() {
    for payload in [
        segment_head(u16::MAX),
        segment_head(u16::MAX).raw(&[0; 600]),
        segment_head(0).u32(u32::MAX).u32(u32::MAX).raw(&[0; 600]),
        segment_head(0).u32(u32::MAX).u32(600).raw(&[1; 600]),
        segment_head(1)
            .text("c")
            .u8(6)
            .u8(0)
            .u32(u32::MAX)
            .u32(u32::MAX)
            .i64(1)
            .u8(0)
            .u32(u32::MAX),
    ] {
        let bytes = bytes::Bytes::from(payload.0);
        assert!(peak(|| decode_segment(bytes.clone()).is_err()) < SMALL);
        assert!(peak(|| ssp2::segment::validate(&bytes).is_err()) < SMALL);
    }
}

#[test]
fn a_long_list_that_breaks_off_costs_a_small_multiple_of_its_bytes() {
    // A million bytes of empty texts: what is there may be built, nothing more.
    let count = 250_000;
    let payload = Payload::new()
        .i64(1)
        .i64(0)
        .text("a")
        .u32(count)
        .raw(&vec![0; 1_000_000]);
    let bytes = Message::response(1)
        .frame(RESP_HEADER, crate::raw::payload(RESP_HEADER))
        .frame(SUB_START, crate::raw::payload(SUB_START))
        .frame(COMMIT, payload)
        .bytes();
    let length = bytes.len() as u64;
    assert!(peak(|| decode_response(bytes).is_err()) < 20 * length);
}

#[test]
fn checking_an_inline_segment_does_not_build_its_rows() {
    // 8,000 nullable columns, all NULL: a row is 1,008 bytes and 8,000 values.
    let columns = 8000;
    let head = (0..columns).fold(segment_head(columns), |payload, _| {
        payload.text("").u8(1).u8(1)
    });
    let rows = 1000;
    let row = Payload::new().i64(1).raw(&[0xFF; 1000]);
    let block = (0..rows).fold(Payload::new(), |payload, _| payload.raw(&row.0));
    let bytes = head
        .u32(rows)
        .u32(u32::try_from(block.0.len()).unwrap())
        .raw(&block.0)
        .u32(0);
    let bytes = bytes::Bytes::from(bytes.0);
    let length = bytes.len() as u64;
    let info = measure(|| ssp2::segment::validate(&bytes).unwrap());
    assert!(info.bytes_max < length, "{} for {length}", info.bytes_max);
}

//! Any bytes as a rows segment: checking, decoding and re-encoding agree.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ssp2::{decode_segment, encode_segment, render_segment, segment::validate};

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let checked = validate(&bytes);
    match decode_segment(bytes.clone()) {
        Ok(segment) => {
            assert_eq!(checked, Ok(()));
            assert_eq!(encode_segment(&segment).as_ref(), Ok(&bytes));
            render_segment(&segment);
        }
        Err(error) => assert_eq!(checked, Err(error)),
    }
});

//! Any bytes as a message: they fail, or they are the one encoding of what they
//! say, and a stream of them gives the same frames.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ssp2::{Event, Frame, FrameDecoder, Kind, MessageKind, reencode, render_bytes};

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let kind = match Kind::detect(data) {
        Ok(Kind::Request) => MessageKind::Request,
        Ok(Kind::Response) => MessageKind::Response,
        Ok(Kind::Segment) | Err(_) => return,
    };
    let again = reencode(bytes.clone());
    if let Ok(again) = &again {
        assert_eq!(*again, bytes);
        render_bytes(bytes).expect("what decodes renders");
    }
    assert_eq!(streamed(kind, data).is_some(), again.is_ok());
});

/// The frames, the input cut where its own bytes say; `None` when it fails.
fn streamed(kind: MessageKind, data: &[u8]) -> Option<Vec<Frame>> {
    let mut decoder = FrameDecoder::new(kind, usize::MAX);
    let mut frames = Vec::new();
    let mut rest = data;
    while let Some(first) = rest.first() {
        let (chunk, after) = rest.split_at(rest.len().min(1 + usize::from(*first)));
        rest = after;
        decoder.push(chunk);
        loop {
            match decoder.next_event().ok()? {
                Event::Frame(frame) => frames.push(*frame),
                Event::Pending => break,
                Event::Envelope(_) | Event::End => {}
            }
        }
    }
    decoder.finish().ok().map(|()| frames)
}

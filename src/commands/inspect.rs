//! `tidegate inspect`: SSP2 messages and SSG2 segments as canonical JSON.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ssp2::{Envelope, MessageKind};

use super::complain;
use crate::cli::Exit;

/// Why a file cannot be shown, or is not what it encodes to again.
#[derive(Debug, thiserror::Error)]
enum InspectError {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("{code}: {0}", code = .0.code.as_str())]
    Undecodable(#[from] ssp2::DecodeError),
    #[error("is neither an SSP2 message nor an SSG2 segment")]
    Unknown,
    #[error("cannot be encoded again: {0}")]
    Unencodable(String),
    #[error("encodes to other bytes, from byte {0} on")]
    Differs(usize),
}

/// Renders every file, or with `check` encodes every file again. All files are
/// looked at; the exit says whether one of them failed.
pub fn run(files: &[PathBuf], check: bool) -> Exit {
    let pretty = std::io::stdout().is_terminal();
    let mut failed = 0;
    for path in files {
        let done = if check {
            verify(path)
        } else {
            show(path, pretty)
        };
        if let Err(error) = done {
            failed += 1;
            complain(&format_args!("{}: {error}", path.display()));
        }
    }
    if failed == 0 {
        Exit::Success
    } else {
        Exit::Failure
    }
}

/// What a file holds, told by its first bytes.
enum Content {
    Request,
    Response,
    Segment,
    /// A refusal (§1.3): what a server answers instead of a message.
    Refusal(serde_json::Value),
}

fn content(bytes: &Bytes) -> Result<Content, InspectError> {
    if bytes.starts_with(&ssp2::segment::SEGMENT_MAGIC) {
        return Ok(Content::Segment);
    }
    if let Some(refusal) = refusal(bytes) {
        return Ok(Content::Refusal(refusal));
    }
    let header = bytes.first_chunk().ok_or(InspectError::Unknown)?;
    if !bytes.starts_with(b"SSP2") {
        return Err(InspectError::Unknown);
    }
    Ok(match Envelope::parse(*header)?.kind {
        MessageKind::Request => Content::Request,
        MessageKind::Response => Content::Response,
    })
}

fn refusal(bytes: &[u8]) -> Option<serde_json::Value> {
    let document: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    document.get("code")?.as_str()?;
    Some(document)
}

fn read(path: &Path) -> Result<(Bytes, Content), InspectError> {
    let bytes = Bytes::from(std::fs::read(path)?);
    let content = content(&bytes)?;
    Ok((bytes, content))
}

fn show(path: &Path, pretty: bool) -> Result<(), InspectError> {
    let (bytes, content) = read(path)?;
    let json = match content {
        Content::Request | Content::Response => ssp2::render_message_json(bytes)?,
        Content::Refusal(document) => document,
        Content::Segment => ssp2::render_segment(&ssp2::decode_segment(bytes)?),
    };
    let text = if pretty {
        serde_json::to_string_pretty(&json).map_err(std::io::Error::from)?
    } else {
        ssp2::canonical_json(&json)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

fn verify(path: &Path) -> Result<(), InspectError> {
    let (bytes, content) = read(path)?;
    let unencodable = |error: &dyn std::fmt::Display| InspectError::Unencodable(error.to_string());
    let again = match content {
        Content::Refusal(_) => return Err(InspectError::Unknown),
        Content::Request => ssp2::encode_request(&ssp2::decode_request(bytes.clone())?)
            .map_err(|error| unencodable(&error))?,
        Content::Response => ssp2::encode_response(&ssp2::decode_response(bytes.clone())?)
            .map_err(|error| unencodable(&error))?,
        Content::Segment => ssp2::encode_segment(&ssp2::decode_segment(bytes.clone())?)
            .map_err(|error| unencodable(&error))?,
    };
    if again == bytes {
        return Ok(());
    }
    let same = bytes.iter().zip(&again).take_while(|(a, b)| a == b).count();
    Err(InspectError::Differs(same))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssp2::{PullHeader, Request, RequestFrame, RequestHeader, WireVersion};

    fn message() -> Bytes {
        ssp2::encode_request(&Request {
            version: WireVersion::V2,
            frames: vec![
                RequestFrame::Header(RequestHeader {
                    client_id: "c".to_owned(),
                    schema_version: 1,
                    log_epoch: None,
                }),
                RequestFrame::PullHeader(PullHeader {
                    limit_commits: 0,
                    limit_snapshot_rows: 0,
                    max_snapshot_pages: 0,
                    accept: 3,
                }),
            ],
        })
        .unwrap()
    }

    #[test]
    fn one_bad_file_among_good_ones_fails_the_check() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let message = message();
        let segment = ssp2::SegmentWriter::new(&ssp2::SegmentHeader {
            table: "t".to_owned(),
            schema_version: 1,
            columns: vec![],
        })
        .finish();
        let good = [write("m", &message), write("s", &segment)];
        for check in [false, true] {
            assert_eq!(run(&good, check), Exit::Success);
            for bad in [
                write("cut", &message[..message.len() - 1]),
                write("other", b"something else entirely"),
                write("empty", b""),
                folder.path().join("missing"),
            ] {
                let files = [bad, good[0].clone(), good[1].clone()];
                assert_eq!(run(&files, check), Exit::Failure);
            }
        }
    }

    #[test]
    fn a_refusal_is_shown_as_it_stands_but_is_no_message() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answer.bin");
        std::fs::write(&path, br#"{"code":"sync.unknown_table","message":"m"}"#).unwrap();
        assert_eq!(run(std::slice::from_ref(&path), false), Exit::Success);
        assert_eq!(run(std::slice::from_ref(&path), true), Exit::Failure);
        std::fs::write(&path, br#"{"magic":"SSP2"}"#).unwrap();
        assert_eq!(run(&[path], false), Exit::Failure);
    }
}

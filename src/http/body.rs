//! Request bodies: bounded as sent and bounded again after decompression.

use std::io::Read;

use actix_web::HttpRequest;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use actix_web::web::{self, Bytes, Payload};
use ssp2::{ErrorCode, SyncError};

use super::errors::Refusal;
use crate::config::Limits;

/// Compressed bodies up to that size are inflated on the spot if they cannot
/// become large; beyond it another thread does it.
const INFLATE_INLINE_BYTES: usize = 16 * 1024;

/// Reads the body of a request of media type `expected`.
///
/// # Errors
/// 415 for another type or an unknown coding, 400 for too many bytes or a broken
/// stream: all `sync.invalid_request`.
pub async fn read(
    request: &HttpRequest,
    payload: Payload,
    expected: &str,
    limits: &Limits,
) -> Result<Bytes, Refusal> {
    require_type(request, expected)?;
    let coding = coding(request)?;
    let declared = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > limits.max_body_bytes as u64) {
        return Err(too_large());
    }
    let body = match payload.to_bytes_limited(limits.max_body_bytes).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return Err(invalid("the request body could not be read")),
        Err(_) => return Err(too_large()),
    };
    match coding {
        RequestCoding::Identity if body.len() > limits.max_decoded_bytes => Err(too_large()),
        RequestCoding::Identity => Ok(body),
        RequestCoding::Gzip => {
            let limit = limits.max_decoded_bytes;
            if body.len() <= INFLATE_INLINE_BYTES
                && declared_size(&body) <= 4 * INFLATE_INLINE_BYTES
            {
                // The declared size may lie; what it promises bounds the work here.
                match gunzip(&body, limit.min(4 * INFLATE_INLINE_BYTES)) {
                    Err(Inflate::TooLarge) => {}
                    done => return done.map_err(Refusal::from),
                }
            }
            web::block(move || gunzip(&body, limit))
                .await
                .map_err(|_| {
                    Refusal::from(SyncError::new(
                        ErrorCode::InternalError,
                        "the server is stopping",
                    ))
                })?
                .map_err(Refusal::from)
        }
    }
}

fn require_type(request: &HttpRequest, expected: &str) -> Result<(), Refusal> {
    let matches = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case(expected));
    if matches {
        Ok(())
    } else {
        Err(invalid("the content type is not that of a sync request").with_status(415))
    }
}

enum RequestCoding {
    Identity,
    Gzip,
}

fn coding(request: &HttpRequest) -> Result<RequestCoding, Refusal> {
    let Some(value) = request.headers().get(CONTENT_ENCODING) else {
        return Ok(RequestCoding::Identity);
    };
    let name = value.to_str().unwrap_or_default().trim();
    if name.is_empty() || name.eq_ignore_ascii_case("identity") {
        Ok(RequestCoding::Identity)
    } else if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
        Ok(RequestCoding::Gzip)
    } else {
        Err(invalid("the content encoding is not supported").with_status(415))
    }
}

fn invalid(message: &'static str) -> Refusal {
    Refusal::from(SyncError::new(ErrorCode::InvalidRequest, message))
}

/// The client sends too slowly. Repeating the request is right, so the code must be
/// one that is retried; the status says whose clock it was.
pub fn too_slow() -> Refusal {
    let error = SyncError::new(
        ErrorCode::InternalError,
        "the request body did not arrive in time",
    );
    Refusal::from(error).with_status(408)
}

fn too_large() -> Refusal {
    invalid("the request body is too large")
}

/// Why a gzip body was refused.
#[derive(Debug, PartialEq, Eq)]
enum Inflate {
    TooLarge,
    Broken,
}

impl From<Inflate> for Refusal {
    fn from(why: Inflate) -> Self {
        match why {
            Inflate::TooLarge => too_large(),
            Inflate::Broken => invalid("the request body is not valid gzip"),
        }
    }
}

/// What the trailer of a gzip member claims, bytes modulo 2^32; 0 when there is none.
fn declared_size(body: &[u8]) -> usize {
    body.last_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
}

/// Inflates `body`, never holding more than `limit` bytes of output plus one buffer.
fn gunzip(body: &[u8], limit: usize) -> Result<Bytes, Inflate> {
    let declared = declared_size(body);
    if declared > limit {
        return Err(Inflate::TooLarge);
    }
    let mut decoder = flate2::read::MultiGzDecoder::new(body);
    // A claim is worth no more than the densest stream deflate can hold (1:1032).
    let plausible = body.len().saturating_mul(1032);
    let mut out = Vec::with_capacity(declared.min(plausible));
    let mut buffer = [0u8; 16 * 1024];
    loop {
        let read = decoder.read(&mut buffer).map_err(|_| Inflate::Broken)?;
        if read == 0 {
            return Ok(out.into());
        }
        if out.len() + read > limit {
            return Err(Inflate::TooLarge);
        }
        out.extend_from_slice(&buffer[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::http::compression::{Coding, compress};
    use actix_web::FromRequest;
    use actix_web::test::TestRequest;

    const TYPE: &str = ssp2::SYNC_CONTENT_TYPE;

    async fn send(
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
        limits: &Limits,
    ) -> Result<Bytes, (u16, ErrorCode)> {
        let mut request = TestRequest::post();
        for &header in headers {
            request = request.insert_header(header);
        }
        let (request, mut payload) = request.set_payload(body.into()).to_http_parts();
        let payload = Payload::from_request(&request, &mut payload).await.unwrap();
        read(&request, payload, TYPE, limits)
            .await
            .map_err(|refusal| (refusal.status(), refusal.error().code))
    }

    fn small() -> Limits {
        Limits {
            max_body_bytes: 2_000,
            max_decoded_bytes: 100_000,
            ..Config::default().limits
        }
    }

    const REFUSED: ErrorCode = ErrorCode::InvalidRequest;

    #[actix_web::test]
    async fn another_content_type_is_415() {
        let limits = small();
        for headers in [
            &[][..],
            &[("content-type", "application/json")],
            &[("content-type", "application/vnd.syncular.sync.v20")],
            &[("content-type", TYPE), ("content-encoding", "br")],
        ] {
            assert_eq!(send(headers, "x", &limits).await, Err((415, REFUSED)));
        }
        let parameters = format!("{TYPE}; charset=binary");
        let fine = send(&[("content-type", &parameters)], "x", &limits).await;
        assert_eq!(fine.unwrap(), "x");
    }

    #[actix_web::test]
    async fn a_body_over_the_limit_is_refused() {
        let limits = small();
        let headers = [("content-type", TYPE)];
        assert!(send(&headers, vec![0; 2_000], &limits).await.is_ok());
        assert_eq!(
            send(&headers, vec![0; 2_001], &limits).await,
            Err((400, REFUSED))
        );
        // The declared length alone is enough.
        let (request, mut payload) = TestRequest::post()
            .insert_header(("content-type", TYPE))
            .insert_header(("content-length", "999999999999"))
            .to_http_parts();
        let payload = Payload::from_request(&request, &mut payload).await.unwrap();
        let refusal = read(&request, payload, TYPE, &limits).await.unwrap_err();
        assert_eq!(refusal.status(), 400);
    }

    #[actix_web::test]
    async fn gzip_bodies_are_inflated() {
        let limits = small();
        let headers = [("content-type", TYPE), ("content-encoding", "gzip")];
        for size in [0, 10, 90_000] {
            let body = vec![7u8; size];
            let packed = compress(Coding::Gzip, &body).unwrap();
            assert_eq!(send(&headers, packed, &limits).await.unwrap(), body);
        }
        assert!(send(&headers, "not gzip", &limits).await.is_err());
        assert_eq!(
            send(
                &headers,
                &b"\x1f\x8b\x08\0\0\0\0\0\0\xff\0\0\0\0"[..],
                &limits
            )
            .await,
            Err((400, REFUSED))
        );
    }

    #[test]
    fn a_bomb_is_refused_by_its_claim_and_by_its_output() {
        let bomb = compress(Coding::Gzip, &vec![0u8; 5_000_000]).unwrap();
        assert_eq!(gunzip(&bomb, 1_000_000), Err(Inflate::TooLarge));
        // The same bomb claiming to be tiny.
        let mut liar = bomb.to_vec();
        let end = liar.len();
        liar[end - 4..].copy_from_slice(&10u32.to_le_bytes());
        assert_eq!(gunzip(&liar, 1_000_000), Err(Inflate::TooLarge));
        assert!(gunzip(&bomb, 5_000_000).is_ok());
    }

    #[test]
    fn a_truncated_stream_is_broken() {
        let mut packed = compress(Coding::Gzip, b"hello, hello, hello")
            .unwrap()
            .to_vec();
        packed.truncate(packed.len() - 9);
        packed.extend_from_slice(&[0; 4]);
        assert_eq!(gunzip(&packed, 1_000), Err(Inflate::Broken));
    }
}

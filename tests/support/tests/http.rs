//! The HTTP transport against a bare socket: what it sends, and what it makes of
//! each kind of answer.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::io::Read as _;

use bytes::Bytes;
use tidegate_client::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Serves one request with `answer`; yields its head (lowercase names) and body.
async fn serve(answer: &'static str) -> (String, JoinHandle<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        let head_end = loop {
            if let Some(at) = seen.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0);
        };
        let head = String::from_utf8(seen[..head_end].to_vec()).unwrap();
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |value| value.parse().unwrap());
        while seen.len() < head_end + length {
            assert_ne!(socket.read_buf(&mut seen).await.unwrap(), 0);
        }
        socket.write_all(answer.as_bytes()).await.unwrap();
        (head, seen[head_end..].to_vec())
    });
    (url, served)
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

#[tokio::test]
async fn a_round_is_a_post_with_credentials_and_the_sync_content_type() {
    let (url, served) = serve(OK).await;
    let transport = HttpTransport::new(&format!("{url}/api/"), "ada", Some("home")).unwrap();
    let answer = transport.round(Bytes::from_static(b"body")).await.unwrap();
    assert_eq!(answer, "hi");
    let (head, body) = served.await.unwrap();
    assert!(head.starts_with("POST /api/sync HTTP/1.1\r\n"), "{head}");
    for line in [
        "authorization: Bearer ada",
        "x-tidegate-partition: home",
        "content-type: application/vnd.syncular.sync.v2",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    assert_eq!(body, b"body");
}

#[tokio::test]
async fn request_bodies_are_compressed_when_asked_for() {
    let (url, served) = serve(OK).await;
    let transport = HttpTransport::new(&url, "ada", None)
        .unwrap()
        .gzip_requests(true);
    let long = vec![7; 4096];
    transport.round(Bytes::from(long.clone())).await.unwrap();
    let (head, body) = served.await.unwrap();
    assert!(head.contains("content-encoding: gzip"));
    assert!(!head.contains("x-tidegate-partition"));
    assert!(body.len() < long.len());
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body.as_slice())
        .read_to_end(&mut plain)
        .unwrap();
    assert_eq!(plain, long);
}

fn download(url: Option<String>) -> SegmentDownload {
    SegmentDownload {
        segment_id: "sha256:00".into(),
        scopes: r#"{"list_id":["é"]}"#.into(),
        url,
    }
}

#[tokio::test]
async fn a_segment_download_is_authenticated_and_names_its_scopes() {
    let (url, served) = serve(OK).await;
    let transport = HttpTransport::new(&url, "ada", None).unwrap();
    transport.segment(&download(None)).await.unwrap();
    let (head, _) = served.await.unwrap();
    assert!(head.starts_with("GET /segments/sha256:00 "), "{head}");
    assert!(head.contains("authorization: Bearer ada"));
    assert!(head.contains(r#"x-syncular-scopes: {"list_id":["é"]}"#));
}

#[tokio::test]
async fn a_signed_url_is_followed_without_credentials() {
    let (url, served) = serve(OK).await;
    let transport = HttpTransport::new("http://127.0.0.1:1", "ada", Some("home")).unwrap();
    let signed = format!("{url}/segments/sha256:00?st=token");
    transport.segment(&download(Some(signed))).await.unwrap();
    let (head, _) = served.await.unwrap();
    assert!(head.starts_with("GET /segments/sha256:00?st=token "));
    for secret in ["authorization", "x-tidegate-partition", "x-syncular-scopes"] {
        assert!(!head.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn a_refusal_carries_status_and_error_document() {
    let body = r#"{"code":"sync.schema_not_ready","category":"internal","retryable":true,"recommendedAction":"retryLater","message":"wait"}"#;
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (url, _served) = serve(answer.leak()).await;
    let transport = HttpTransport::new(&url, "ada", None).unwrap();
    let error = transport.round(Bytes::new()).await.unwrap_err();
    assert!(matches!(
        &error,
        TransportError::Refused { status: 503, .. }
    ));
    assert_eq!(error.code(), Some("sync.schema_not_ready"));
    assert!(error.retryable());
}

#[tokio::test]
async fn an_answer_cut_short_is_a_lost_one() {
    let (url, _served) = serve("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi").await;
    let transport = HttpTransport::new(&url, "ada", None).unwrap();
    let error = transport.round(Bytes::new()).await.unwrap_err();
    assert!(matches!(error, TransportError::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_token_that_cannot_stand_in_a_header_is_refused_at_once() {
    assert!(matches!(
        HttpTransport::new("http://127.0.0.1:1", "a\nb", None),
        Err(TransportError::Invalid(_))
    ));
}

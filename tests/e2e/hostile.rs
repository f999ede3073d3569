//! Requests nobody should send: the right code, and the server lives on.

use bytes::Bytes;
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use tidegate_client::WireVersion;

use crate::process::Site;
use crate::scenario::{client, client_over, http, todo};

const SYNC: &str = "application/vnd.syncular.sync.v2";

async fn post(url: &str, body: impl Into<reqwest::Body>) -> Response {
    Client::new()
        .post(format!("{url}/sync"))
        .header("authorization", "Bearer mallory")
        .header("content-type", SYNC)
        .body(body)
        .send()
        .await
        .unwrap()
}

async fn refusal(response: Response, status: u16, code: &str) {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    assert_eq!(body["code"], code, "{body}");
    for key in ["category", "retryable", "recommendedAction", "message"] {
        assert!(body.get(key).is_some(), "{key} is missing: {body}");
    }
    let text = body.to_string().to_lowercase();
    for leak in ["sqlite", "select ", "/tmp", "panicked", ".rs"] {
        assert!(!text.contains(leak), "{leak} leaks: {text}");
    }
}

/// A request that the server would serve.
fn request() -> Bytes {
    let path = crate::process::repository("tests/data/vectors/v1-v2/request/combined.bin");
    std::fs::read(path).unwrap().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_truncation_and_bit_flip_is_answered_and_the_server_lives_on() {
    let site = Site::new();
    let mut server = site.start(&[]);
    let whole = request();
    for length in 0..whole.len() {
        refusal(
            post(&server.url, whole.slice(..length)).await,
            400,
            "sync.invalid_request",
        )
        .await;
    }
    for at in 0..whole.len() {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 0x81;
        let status = post(&server.url, bytes).await.status();
        assert!(
            status == StatusCode::OK || status == StatusCode::BAD_REQUEST,
            "{status} at {at}"
        );
    }
    assert!(server.is_running());
    let mut ada = client(&server.url, "ada");
    ada.edit([todo("t1", "still here")]).unwrap();
    ada.sync().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_content_type_is_415_and_missing_credentials_are_401() {
    let site = Site::new();
    let server = site.start(&[]);
    let url = format!("{}/sync", server.url);
    let http = Client::new();
    let wrong = http
        .post(&url)
        .header("authorization", "Bearer ada")
        .header("content-type", "application/json")
        .body("{}");
    refusal(wrong.send().await.unwrap(), 415, "sync.invalid_request").await;
    let anonymous = http.post(&url).header("content-type", SYNC).body(request());
    refusal(anonymous.send().await.unwrap(), 401, "sync.auth_required").await;
    let empty = http
        .post(&url)
        .header("content-type", SYNC)
        .header("authorization", "Bearer ")
        .body("");
    refusal(empty.send().await.unwrap(), 401, "sync.auth_required").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_bodies_and_gzip_bombs_are_refused_without_being_held() {
    let site = Site::new();
    let server = site.start(&[]);
    let huge = post(&server.url, vec![0_u8; 80 * 1024 * 1024]).await;
    assert!(huge.status().is_client_error(), "{}", huge.status());
    let bomb = {
        use flate2::{Compression, write::GzEncoder};
        use std::io::Write as _;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let zeros = vec![0_u8; 1024 * 1024];
        for _ in 0..512 {
            encoder.write_all(&zeros).unwrap();
        }
        encoder.finish().unwrap()
    };
    let response = Client::new()
        .post(format!("{}/sync", server.url))
        .header("authorization", "Bearer mallory")
        .header("content-type", SYNC)
        .header("content-encoding", "gzip")
        .body(bomb)
        .send()
        .await
        .unwrap();
    refusal(response, 400, "sync.invalid_request").await;
    let garbled = Client::new()
        .post(format!("{}/sync", server.url))
        .header("authorization", "Bearer mallory")
        .header("content-type", SYNC)
        .header("content-encoding", "gzip")
        .body("not gzip at all")
        .send()
        .await
        .unwrap();
    refusal(garbled, 400, "sync.invalid_request").await;
    let mut ada = client(&server.url, "ada");
    ada.sync().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unserved_schema_version_gets_the_floor_and_nothing_is_processed() {
    let site = Site::new();
    let server = site.start(&[]);
    let text =
        std::fs::read_to_string(crate::process::repository("config/schemas/demo.json")).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    let key = if schema.get("version").is_some() {
        "version"
    } else {
        "schemaVersion"
    };
    schema[key] = 7.into();
    let newer = tidegate_client::ClientSchema::from_ir_json(&schema.to_string()).unwrap();
    let config = tidegate_client::ClientConfig::new("future").wire(WireVersion::V1);
    let mut future = tidegate_client::SyncClient::new(config, newer, http(&server.url, "future"));
    future
        .subscribe("todos", "todos", [("list_id", vec!["groceries"])])
        .unwrap();
    future.edit([todo("t1", "from the future")]).unwrap();
    assert!(future.sync().await.is_err());
    let floor = future.schema_floor().unwrap();
    assert_eq!((floor.required, floor.latest), (1, Some(1)));
    let mut witness = client(&server.url, "witness");
    witness.sync().await.unwrap();
    assert!(witness.replica().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_id_belongs_to_its_first_actor() {
    let site = Site::new();
    let server = site.start(&[]);
    let mut ada = client_over("phone", WireVersion::V3, |_| {}, http(&server.url, "ada"));
    ada.edit([todo("t1", "x")]).unwrap();
    ada.sync().await.unwrap();
    let mut eve = client_over("phone", WireVersion::V3, |_| {}, http(&server.url, "eve"));
    eve.edit([todo("t2", "y")]).unwrap();
    let error = eve.sync().await.unwrap_err();
    assert_eq!(error.code(), Some("sync.invalid_client_id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_requests_and_every_response_encoding_work() {
    let site = Site::new();
    let server = site.start(&[]);
    let transport = http(&server.url, "ada").gzip_requests(true);
    let mut ada = client_over("phone", WireVersion::V3, |_| {}, transport);
    for n in 0..200 {
        ada.edit([todo(&format!("t{n}"), "the same title again and again")])
            .unwrap();
    }
    ada.sync().await.unwrap();
    // A bootstrap of those rows, asked for in each encoding, without a client that decodes.
    let frames = vec![
        ssp2::RequestFrame::Header(ssp2::RequestHeader {
            client_id: "curl".to_owned(),
            schema_version: 1,
            log_epoch: None,
        }),
        ssp2::RequestFrame::PullHeader(ssp2::PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            accept: 1,
        }),
        ssp2::RequestFrame::Subscription(ssp2::Subscription {
            id: "s".to_owned(),
            table: "todos".to_owned(),
            scopes: [("list_id", vec!["groceries".to_owned()])]
                .into_iter()
                .collect(),
            params: None,
            cursor: -1,
            bootstrap_state: None,
        }),
    ];
    let request = ssp2::Request {
        version: WireVersion::V1,
        frames,
    };
    let body = ssp2::encode_request(&request).unwrap();
    let plain = Client::builder().no_gzip().no_zstd().build().unwrap();
    let mut answers = Vec::new();
    for encoding in ["identity", "gzip", "zstd"] {
        let response = plain
            .post(format!("{}/sync", server.url))
            .header("authorization", "Bearer curl")
            .header("content-type", SYNC)
            .header("accept-encoding", encoding)
            .body(body.clone())
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], SYNC);
        let used = response.headers().get("content-encoding").cloned();
        let bytes = response.bytes().await.unwrap();
        answers.push(match encoding {
            "identity" => {
                assert!(used.is_none());
                bytes.to_vec()
            }
            "gzip" => {
                assert_eq!(used.unwrap(), "gzip");
                let mut out = Vec::new();
                let mut decoder = flate2::read::GzDecoder::new(&bytes[..]);
                std::io::Read::read_to_end(&mut decoder, &mut out).unwrap();
                out
            }
            _ => {
                assert_eq!(used.unwrap(), "zstd");
                zstd::decode_all(&bytes[..]).unwrap()
            }
        });
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    let decoded = ssp2::decode_response(answers.remove(0).into()).unwrap();
    let rows: usize = decoded
        .frames
        .iter()
        .filter_map(|frame| match frame {
            ssp2::ResponseFrame::SegmentInline(bytes) => {
                let segment = ssp2::decode_segment(bytes.clone()).unwrap();
                Some(segment.blocks.iter().map(Vec::len).sum::<usize>())
            }
            _ => None,
        })
        .sum();
    assert_eq!(rows, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_dribbles_in_is_408_and_its_connection_closed() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let site = Site::new();
    std::fs::write(
        site.path("short.toml"),
        "[limits]\nrequest_timeout_ms = 1000\n",
    )
    .unwrap();
    let server = site.start(&["--config", "short.toml"]);
    let address = server.url.strip_prefix("http://").unwrap();
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /sync HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer ada\r\n\
         content-type: {SYNC}\r\ncontent-length: 1000\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(b"SSP2").await.unwrap();
    let mut answer = Vec::new();
    let read = connection.read_to_end(&mut answer);
    tokio::time::timeout(crate::process::PATIENCE, read)
        .await
        .expect("the connection is closed")
        .unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    // A client on a slow line must try again.
    assert_eq!(body["code"], "sync.internal_error");
    assert_eq!(body["retryable"], true);
}

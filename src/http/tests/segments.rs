//! Downloads by reference.

use super::*;

fn reference(response: &Response) -> ssp2::SegmentRef {
    response
        .frames
        .iter()
        .find_map(|frame| match frame {
            ResponseFrame::SegmentRef(reference) => Some(reference.clone()),
            _ => None,
        })
        .unwrap()
}

pub(super) fn download(id: &str, scopes: &str) -> TestRequest {
    TestRequest::get()
        .uri(&format!("/segments/{id}"))
        .insert_header(("authorization", "Bearer ada"))
        .insert_header(("x-syncular-scopes", scopes))
}

#[actix_web::test]
async fn segments_travel_by_reference_to_clients_that_take_nothing_else() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    device
        .round(vec![commit("c1", 0..100, "x")], None)
        .await
        .message();
    let pull = vec![pull_header(0b10, 0), todos(-1, None)];
    let response = device.round(vec![], Some(pull)).await.message();
    let sent = reference(&response);
    assert_eq!((sent.row_count, sent.as_of_commit_seq), (100, 1));

    let mine = r#"{"list_id":["a"]}"#;
    let reply = send(&service, download(&sent.segment_id, mine)).await;
    assert_eq!(reply.0, 200);
    assert_eq!(ssp2::segment_id(&reply.2), sent.segment_id);
    assert_eq!(reply.2.len() as i64, sent.byte_length);
    assert_eq!(
        reply.header("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(reply.header("cache-control"), Some("private, max-age=0"));
    assert_eq!(
        reply.header("vary"),
        Some("Authorization, X-Syncular-Scopes, Accept-Encoding")
    );
    let etag = reply.header("etag").unwrap().to_owned();
    assert_eq!(etag, format!("\"{}\"", sent.segment_id));

    let known = download(&sent.segment_id, mine).insert_header(("if-none-match", etag));
    let reply = send(&service, known).await;
    assert_eq!((reply.0, reply.2.len()), (304, 0));
    let packed = download(&sent.segment_id, mine).insert_header(("accept-encoding", "zstd"));
    let reply = send(&service, packed).await;
    assert_eq!(reply.header("content-encoding"), Some("zstd"));
    assert_eq!(
        ssp2::segment_id(&zstd::decode_all(&reply.2[..]).unwrap()),
        sent.segment_id
    );
}

#[actix_web::test]
async fn a_download_is_authorized_anew() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let pull = vec![pull_header(0b10, 0), todos(-1, None)];
    let response = device.round(vec![], Some(pull)).await.message();
    let id = reference(&response).segment_id;
    let mine = r#"{"list_id":["a"]}"#;
    let cases = [
        (download("sha256:00", mine), 404, "sync.not_found"),
        (download(&id, r#"{"list_id":["b"]}"#), 403, "sync.forbidden"),
        (download(&id, "{}"), 403, "sync.forbidden"),
        (download(&id, "nonsense"), 400, "sync.invalid_request"),
        (
            download(&id, r#"{"list_id":["*"]}"#),
            400,
            "sync.invalid_subscription",
        ),
        (
            download(&id, mine).insert_header(("x-tidegate-partition", "other")),
            404,
            "sync.not_found",
        ),
    ];
    for (request, status, code) in cases {
        let reply = send(&service, request).await;
        assert_eq!(reply.code(), (status, code.to_owned()));
    }
}

#[actix_web::test]
async fn a_segment_can_expire() {
    let service = service(|config| config.segments.ttl_ms = 0).await;
    let device = Device::joined(&service).await;
    let pull = vec![pull_header(0b10, 0), todos(-1, None)];
    let response = device.round(vec![], Some(pull)).await.message();
    let id = reference(&response).segment_id;
    // Expiry is judged before the scopes header.
    let reply = send(&service, download(&id, "nonsense")).await;
    assert_eq!(reply.code(), (404, "sync.segment_expired".to_owned()));
}

//! The HTTP surface over a real service and an in-memory database.

use std::io::Read;

use actix_web::dev::ServiceResponse;
use actix_web::http::header::HeaderMap;
use actix_web::test::{TestRequest, call_service, init_service, read_body};
use actix_web::{App, web};
use bytes::Bytes;
use serde_json::{Value as Json, json};
use ssp2::{
    Operation, OperationKind, PullHeader, PushCommit, PushStatus, Request, RequestFrame,
    RequestHeader, Response, ResponseFrame, SYNC_CONTENT_TYPE, SubStatus, Subscription, Value,
    WireVersion,
};

use super::routes;
use crate::config::{Config, Database};
use crate::server::{self, Hooks, Service};

async fn service(change: impl FnOnce(&mut Config)) -> web::Data<Service> {
    let mut config = Config {
        database: Database {
            url: "sqlite::memory:".to_owned(),
        },
        ..Config::default()
    };
    change(&mut config);
    let schema = server::load_schema(&config).unwrap();
    let store = server::open_store(&config).await.unwrap();
    let hooks = Hooks::development(&schema);
    server::prepare(config, schema, &store, hooks)
        .await
        .unwrap()
}

/// An answer: status, headers, body.
struct Reply(u16, HeaderMap, Bytes);

impl Reply {
    fn json(&self) -> Json {
        serde_json::from_slice(&self.2).unwrap()
    }
    fn code(&self) -> (u16, String) {
        (self.0, self.json()["code"].as_str().unwrap().to_owned())
    }
    fn header(&self, name: &str) -> Option<&str> {
        self.1.get(name).map(|value| value.to_str().unwrap())
    }
    #[track_caller]
    fn message(&self) -> Response {
        assert_eq!(self.0, 200, "{:?}", self.2);
        assert_eq!(self.header("content-type"), Some(SYNC_CONTENT_TYPE));
        let body = match self.header("content-encoding") {
            None => self.2.clone(),
            Some("zstd") => zstd::decode_all(&self.2[..]).unwrap().into(),
            Some("gzip") => {
                let mut body = Vec::new();
                flate2::read::GzDecoder::new(&self.2[..])
                    .read_to_end(&mut body)
                    .unwrap();
                body.into()
            }
            Some(other) => panic!("{other}"),
        };
        ssp2::decode_response(body).unwrap()
    }
}

async fn send(service: &web::Data<Service>, request: TestRequest) -> Reply {
    let app = init_service(App::new().app_data(service.clone()).configure(routes)).await;
    let response: ServiceResponse<_> = call_service(&app, request.to_request()).await;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply(status, headers, read_body(response).await)
}

fn sync_request(body: Bytes) -> TestRequest {
    TestRequest::post()
        .uri("/sync")
        .insert_header(("authorization", "Bearer ada"))
        .insert_header(("content-type", SYNC_CONTENT_TYPE))
        .set_payload(body)
}

struct Device<'a> {
    service: &'a web::Data<Service>,
    epoch: Option<String>,
    encoding: Option<&'static str>,
}

impl<'a> Device<'a> {
    /// A device that has learned the partition's epoch.
    async fn joined(service: &'a web::Data<Service>) -> Self {
        let mut device = Self {
            service,
            epoch: None,
            encoding: None,
        };
        let response = device.round(vec![], Some(vec![])).await.message();
        let [ResponseFrame::Header(header)] = &response.frames[..] else {
            panic!("{response:?}");
        };
        let epoch = header.epoch.as_ref().unwrap();
        assert!(epoch.reset_required);
        device.epoch = Some(epoch.log_epoch.clone());
        device
    }

    fn body(&self, commits: Vec<PushCommit>, pull: Option<Vec<RequestFrame>>) -> Bytes {
        let mut frames = vec![RequestFrame::Header(RequestHeader {
            client_id: "phone".to_owned(),
            schema_version: 1,
            log_epoch: self.epoch.clone(),
        })];
        frames.extend(commits.into_iter().map(RequestFrame::PushCommit));
        if let Some(subscriptions) = pull {
            if !matches!(subscriptions.first(), Some(RequestFrame::PullHeader(_))) {
                frames.push(pull_header(0b11, 0));
            }
            frames.extend(subscriptions);
        }
        ssp2::encode_request(&Request {
            version: WireVersion::V3,
            frames,
        })
        .unwrap()
    }

    async fn round(&self, commits: Vec<PushCommit>, pull: Option<Vec<RequestFrame>>) -> Reply {
        let mut request = sync_request(self.body(commits, pull));
        if let Some(encoding) = self.encoding {
            request = request.insert_header(("accept-encoding", encoding));
        }
        send(self.service, request).await
    }
}

fn pull_header(accept: u8, page_rows: i32) -> RequestFrame {
    RequestFrame::PullHeader(PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: page_rows,
        max_snapshot_pages: 0,
        accept,
    })
}

fn todos(cursor: i64, state: Option<String>) -> RequestFrame {
    RequestFrame::Subscription(Subscription {
        id: "todos".to_owned(),
        table: "todos".to_owned(),
        scopes: [("list_id", vec!["a".to_owned()])].into_iter().collect(),
        params: None,
        cursor,
        bootstrap_state: state,
    })
}

fn commit(id: &str, rows: impl IntoIterator<Item = usize>, title: &str) -> PushCommit {
    let schema = tidegate_engine::schema::Schema::load(server::DEMO_SCHEMA).unwrap();
    let columns = &schema.table("todos").unwrap().columns;
    let operations = rows
        .into_iter()
        .map(|row| {
            let id = format!("t{row:06}");
            let values = [
                Value::Text(id.clone()),
                Value::Text("a".to_owned()),
                Value::Text(title.to_owned()),
                Value::Boolean(false),
                Value::Null,
                Value::Null,
            ]
            .map(Some);
            Operation {
                table: "todos".to_owned(),
                row_id: id,
                base_version: None,
                kind: OperationKind::Upsert(
                    ssp2::encode_sparse_row(columns, 0, &values.to_vec()).unwrap(),
                ),
            }
        })
        .collect();
    PushCommit {
        client_commit_id: id.to_owned(),
        operations,
    }
}

fn statuses(response: &Response) -> Vec<PushStatus> {
    response
        .frames
        .iter()
        .filter_map(|frame| match frame {
            ResponseFrame::PushResult(result) => Some(result.status),
            _ => None,
        })
        .collect()
}

fn commits(response: &Response) -> Vec<i64> {
    response
        .frames
        .iter()
        .filter_map(|frame| match frame {
            ResponseFrame::Commit(commit) => Some(commit.commit_seq),
            _ => None,
        })
        .collect()
}

fn end(response: &Response) -> (i64, Option<String>) {
    match response.frames.last() {
        Some(ResponseFrame::SubEnd(end)) => (end.next_cursor, end.bootstrap_state.clone()),
        other => panic!("{other:?}"),
    }
}

#[actix_web::test]
async fn unknown_routes_and_wrong_methods_are_json() {
    let service = service(|_| {}).await;
    let reply = send(&service, TestRequest::get().uri("/nothing")).await;
    assert_eq!(reply.code(), (404, "sync.not_found".to_owned()));
    for request in [
        TestRequest::get().uri("/sync"),
        TestRequest::post().uri("/healthz"),
        TestRequest::put().uri("/segments/x"),
    ] {
        let reply = send(&service, request).await;
        assert_eq!(reply.code(), (405, "sync.invalid_request".to_owned()));
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
}

#[actix_web::test]
async fn health_is_trivial_and_readiness_ends_with_draining() {
    let service = service(|_| {}).await;
    let health = send(&service, TestRequest::get().uri("/healthz")).await;
    assert_eq!((health.0, health.json()), (200, json!({"status": "ok"})));
    let ready = send(&service, TestRequest::get().uri("/readyz")).await;
    assert_eq!(
        (ready.0, ready.json()),
        (
            200,
            json!({"status": "ready", "phase": "serving", "schemaVersion": 1})
        )
    );
    service.phase.drain();
    let draining = send(&service, TestRequest::get().uri("/readyz")).await;
    assert_eq!(draining.0, 503);
    assert_eq!(draining.json()["phase"], "draining");
    assert_eq!(
        send(&service, TestRequest::get().uri("/healthz")).await.0,
        200
    );
}

#[actix_web::test]
async fn readiness_fails_without_a_database() {
    let service = service(|_| {}).await;
    service.store.close().await;
    let reply = send(&service, TestRequest::get().uri("/readyz")).await;
    assert_eq!(reply.0, 503);
    assert_eq!(reply.json()["phase"], "storage_unavailable");
    let device = Device {
        service: &service,
        epoch: Some("e".to_owned()),
        encoding: None,
    };
    let reply = device.round(vec![commit("c", [1], "x")], None).await;
    assert_eq!(reply.code(), (503, "sync.internal_error".to_owned()));
}

#[actix_web::test]
async fn a_request_without_credentials_is_401() {
    let service = service(|_| {}).await;
    for path in ["/sync", "/segments/sha256:00"] {
        let request = match path {
            "/sync" => TestRequest::post(),
            _ => TestRequest::get(),
        };
        let reply = send(&service, request.uri(path)).await;
        assert_eq!(reply.code(), (401, "sync.auth_required".to_owned()));
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
}

#[actix_web::test]
async fn bodies_that_are_no_request_are_refused_with_their_request_id() {
    let service = service(|config| config.limits.max_body_bytes = 1_000).await;
    let reply = send(&service, sync_request(Bytes::from_static(b"SSP2 nonsense"))).await;
    assert_eq!(reply.code(), (400, "sync.invalid_request".to_owned()));
    assert_eq!(reply.header("x-request-id").unwrap().len(), 16);
    let reply = send(&service, sync_request(vec![0; 1_001].into())).await;
    assert_eq!(reply.code(), (413, "sync.invalid_request".to_owned()));
    let other = sync_request(Bytes::new()).insert_header(("content-type", "text/plain"));
    let reply = send(&service, other).await;
    assert_eq!(reply.code(), (415, "sync.invalid_request".to_owned()));
}

#[actix_web::test]
async fn a_combined_round_pushes_and_pulls_what_it_pushed() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    // Cursor 0 on an empty log: incremental, from memory.
    let response = device
        .round(
            vec![commit("c1", [1], "one"), commit("c2", [2, 3], "two")],
            Some(vec![todos(0, None)]),
        )
        .await
        .message();
    assert_eq!(
        statuses(&response),
        [PushStatus::Applied(1), PushStatus::Applied(2)]
    );
    assert_eq!(commits(&response), [1, 2]);
    assert_eq!(end(&response), (2, None));

    // The same request again: results are replayed, the pull is the same.
    let again = device
        .round(
            vec![commit("c1", [1], "one"), commit("c2", [2, 3], "two")],
            Some(vec![todos(0, None)]),
        )
        .await
        .message();
    assert_eq!(
        statuses(&again),
        [PushStatus::Cached(1), PushStatus::Cached(2)]
    );
    assert_eq!(again.frames[3..], response.frames[3..]);

    // Caught up: nothing but the section.
    let idle = device.round(vec![], Some(vec![todos(2, None)])).await;
    assert_eq!(end(&idle.message()), (2, None));
    assert!(commits(&idle.message()).is_empty());
}

#[actix_web::test]
async fn the_tail_and_the_database_give_the_same_answer() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    for number in 0..5 {
        let pushed = commit(&format!("c{number}"), [number, number + 1], "x");
        device.round(vec![pushed], None).await.message();
    }
    let from_tail = device.round(vec![], Some(vec![todos(1, None)])).await;
    assert_eq!(commits(&from_tail.message()), [2, 3, 4, 5]);
    // Another process on the same database has no tail.
    let other = server::prepare(
        service.config.clone(),
        service.schema.clone(),
        &service.store,
        Hooks::development(&service.schema),
    )
    .await
    .unwrap();
    let elsewhere = Device {
        service: &other,
        epoch: device.epoch.clone(),
        encoding: None,
    };
    let from_database = elsewhere.round(vec![], Some(vec![todos(1, None)])).await;
    assert_eq!(from_database.2, from_tail.2);
}

#[actix_web::test]
async fn a_request_over_the_operation_cap_applies_nothing() {
    let service = service(|config| config.limits.max_operations = 3).await;
    let device = Device::joined(&service).await;
    let reply = device
        .round(
            vec![commit("c1", [1, 2], "x"), commit("c2", [3, 4], "x")],
            None,
        )
        .await;
    assert_eq!(reply.code(), (400, "sync.too_many_operations".to_owned()));
    let fine = device.round(vec![commit("c1", [1], "x")], None).await;
    assert_eq!(statuses(&fine.message()), [PushStatus::Applied(1)]);
}

#[actix_web::test]
async fn a_client_id_belongs_to_its_first_actor() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    device
        .round(vec![], Some(vec![todos(0, None)]))
        .await
        .message();
    let body = device.body(vec![], Some(vec![todos(0, None)]));
    let other = sync_request(body).insert_header(("authorization", "Bearer ben"));
    let reply = send(&service, other).await;
    assert_eq!(reply.code(), (400, "sync.invalid_client_id".to_owned()));
}

#[actix_web::test]
async fn partitions_do_not_see_each_other() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    device
        .round(vec![commit("c1", [1], "x")], None)
        .await
        .message();
    let body = device.body(vec![], Some(vec![todos(-1, None)]));
    let other = sync_request(body).insert_header(("x-tidegate-partition", "other"));
    let response = send(&service, other).await.message();
    // Its epoch is another one, so the client is told to reset first.
    let [ResponseFrame::Header(header)] = &response.frames[..] else {
        panic!("{response:?}");
    };
    assert!(header.epoch.as_ref().unwrap().reset_required);
}

/// All rows of a bootstrap in pages, and how many answers it took.
async fn bootstrap(device: &Device<'_>, page_rows: i32) -> (usize, usize) {
    let (mut rows, mut answers, mut state, mut cursor) = (0, 0, None, -1);
    loop {
        let pull = vec![pull_header(0b01, page_rows), todos(cursor, state)];
        let response = device.round(vec![], Some(pull)).await.message();
        answers += 1;
        for frame in &response.frames {
            if let ResponseFrame::SegmentInline(bytes) = frame {
                let segment = ssp2::decode_segment(bytes.clone()).unwrap();
                rows += segment.blocks.iter().map(Vec::len).sum::<usize>();
            }
        }
        (cursor, state) = end(&response);
        if state.is_none() {
            return (rows, answers);
        }
    }
}

#[actix_web::test]
async fn a_bootstrap_goes_on_page_by_page_until_every_row_was_sent() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    assert_eq!(bootstrap(&device, 0).await, (0, 1));
    device
        .round(vec![commit("c1", 0..100, "x")], None)
        .await
        .message();
    assert_eq!(bootstrap(&device, 0).await, (100, 1));
    assert_eq!(bootstrap(&device, 10).await, (100, 3));
    assert_eq!(bootstrap(&device, 7).await, (100, 4));
}

#[actix_web::test]
async fn a_full_answer_ends_early_and_the_client_pulls_on() {
    let service = service(|config| config.limits.max_pull_bytes = 1_000).await;
    let device = Device::joined(&service).await;
    let title = "x".repeat(400);
    device
        .round(vec![commit("c1", 0..20, &title)], None)
        .await
        .message();
    let (rows, answers) = bootstrap(&device, 5).await;
    assert_eq!(rows, 20);
    assert!(answers > 2, "{answers}");
}

#[actix_web::test]
async fn large_answers_stream_in_every_coding() {
    let service = service(|_| {}).await;
    let mut device = Device::joined(&service).await;
    let title = "long title ".repeat(40);
    device
        .round(vec![commit("c1", 0..500, &title)], None)
        .await
        .message();
    let pull = || Some(vec![pull_header(0b01, 0), todos(-1, None)]);
    let plain = device.round(vec![], pull()).await;
    assert_eq!(plain.header("content-encoding"), None);
    for encoding in ["zstd", "gzip"] {
        device.encoding = Some(encoding);
        let reply = device.round(vec![], pull()).await;
        assert_eq!(reply.header("content-encoding"), Some(encoding));
        assert!(reply.2.len() < plain.2.len() / 4);
        assert_eq!(reply.message(), plain.message());
    }
}

#[actix_web::test]
async fn gzip_requests_are_accepted() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let body = device.body(vec![commit("c1", 0..50, "x")], None);
    let packed = super::compression::compress(super::compression::Coding::Gzip, &body).unwrap();
    assert!(packed.len() < body.len());
    let request = sync_request(packed).insert_header(("content-encoding", "gzip"));
    let response = send(&service, request).await.message();
    assert_eq!(statuses(&response), [PushStatus::Applied(1)]);
}

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

fn download(id: &str, scopes: &str) -> TestRequest {
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

#[actix_web::test]
async fn an_ungranted_subscription_is_revoked() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let RequestFrame::Subscription(mut empty) = todos(7, None) else {
        unreachable!()
    };
    empty.scopes = ssp2::ScopeLists::new();
    let pull = vec![RequestFrame::Subscription(empty)];
    let response = device.round(vec![], Some(pull)).await.message();
    let ResponseFrame::SubStart(start) = &response.frames[1] else {
        panic!("{response:?}");
    };
    assert_eq!(start.status, SubStatus::Revoked);
    assert_eq!(end(&response), (7, None));
}

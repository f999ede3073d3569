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

mod budget;
mod first_request;
mod readiness;
mod rounds;
mod segments;

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
    service.store().close().await;
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
    assert_eq!(reply.code(), (400, "sync.invalid_request".to_owned()));
    let other = sync_request(Bytes::new()).insert_header(("content-type", "text/plain"));
    let reply = send(&service, other).await;
    assert_eq!(reply.code(), (415, "sync.invalid_request".to_owned()));
}

//! A schema that grows between two runs: rows are rewritten, and the log from
//! before is never sent in the wrong layout.

use ssp2::{
    PullHeader, Request, RequestFrame, RequestHeader, ResponseFrame, SubStatus, Subscription,
};
use tidegate_client::{ClientConfig, ClientSchema, SyncClient, WireVersion};

use crate::process::{Backend, Server, Site, on_each_database, repository};
use crate::scenario::{LIST, client, http, todo};

on_each_database!(an_appended_column_migrates_and_older_log_is_answered_by_a_reset,);

/// The demo schema with one more, nullable column on todos.
fn grown_schema(site: &Site) -> (String, ClientSchema) {
    let text = std::fs::read_to_string(repository("config/schemas/demo.json")).unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    let key = if schema.get("version").is_some() {
        "version"
    } else {
        "schemaVersion"
    };
    schema[key] = 2.into();
    for table in schema["tables"].as_array_mut().unwrap() {
        if table["name"] == "todos" {
            let due = serde_json::json!({"name": "due", "type": "string", "nullable": true});
            table["columns"].as_array_mut().unwrap().push(due);
        }
    }
    let path = site.path("grown.json");
    std::fs::write(&path, schema.to_string()).unwrap();
    let client = ClientSchema::from_ir_json(&schema.to_string()).unwrap();
    (path.to_str().unwrap().to_owned(), client)
}

/// How the server answers a pull of the shared list from `cursor`.
async fn status_from(server: &Server, epoch: &str, cursor: i64) -> SubStatus {
    let frames = vec![
        RequestFrame::Header(RequestHeader {
            client_id: "probe".to_owned(),
            schema_version: 2,
            log_epoch: Some(epoch.to_owned()),
        }),
        RequestFrame::PullHeader(PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            accept: 3,
        }),
        RequestFrame::Subscription(Subscription {
            id: "s".to_owned(),
            table: "todos".to_owned(),
            scopes: [("list_id", vec![LIST.to_owned()])].into_iter().collect(),
            params: None,
            cursor,
            bootstrap_state: None,
        }),
    ];
    let request = Request {
        version: WireVersion::V3,
        frames,
    };
    let body = ssp2::encode_request(&request).unwrap();
    let probe = SyncClient::new(
        ClientConfig::new("probe"),
        crate::scenario::schema(),
        http(&server.url, "probe"),
    );
    let answer = probe.send_raw(body).await.unwrap();
    let response = ssp2::decode_response(answer).unwrap();
    response
        .frames
        .iter()
        .find_map(|frame| match frame {
            ResponseFrame::SubStart(start) => Some(start.status),
            _ => None,
        })
        .unwrap()
}

async fn an_appended_column_migrates_and_older_log_is_answered_by_a_reset(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    for n in 0..3 {
        ada.edit([todo(&format!("t{n}"), "from before")]).unwrap();
    }
    ada.sync().await.unwrap();
    let epoch = ada.log_epoch().unwrap().to_owned();
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));

    let (path, grown) = grown_schema(&site);
    let server = site.start(&["--schema", &path]);
    assert_eq!(status_from(&server, &epoch, 1).await, SubStatus::Reset);
    assert_eq!(status_from(&server, &epoch, 3).await, SubStatus::Active);

    // An old client learns that it must upgrade; an upgraded one carries on.
    let mut ada = ada.map_transport(|old| old.at(&server.url));
    ada.edit([todo("t3", "offline")]).unwrap();
    assert!(ada.sync().await.is_err());
    assert_eq!(ada.schema_floor().map(|floor| floor.required), Some(2));
    ada.upgrade_schema(grown.clone());
    ada.sync().await.unwrap();
    assert_eq!(ada.pending().count(), 0);
    let mut fresh = SyncClient::new(
        ClientConfig::new("fresh"),
        grown,
        http(&server.url, "fresh"),
    );
    fresh
        .subscribe("todos", "todos", [("list_id", vec![LIST])])
        .unwrap();
    fresh.sync().await.unwrap();
    assert_eq!(fresh.replica().len("todos"), 4);
    assert_eq!(
        fresh.replica().versioned_dump(),
        ada.replica().versioned_dump()
    );

    // And the old program refuses the newer database.
    server.terminate();
    server.wait();
    let refused = site.command(&[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(5));
}

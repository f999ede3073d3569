//! Unique values in one batch: commits are judged one after the other.

use ssp2::ErrorCode;
use tidegate_client::{ClientConfig, ClientSchema, Edit, HttpTransport, OutcomeStatus, SyncClient};

use crate::process::{Backend, Site, on_each_database};
use crate::scenario::{LIST, http};

on_each_database!(
    a_duplicate_that_the_next_commit_of_the_request_removes_is_refused,
    values_that_wander_between_rows_are_applied_as_they_come,
);

const SCHEMA: &str = r#"{"version": 1, "tables": [{
  "name": "slots", "primaryKey": "id", "scopes": ["list:{list_id}"],
  "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "list_id", "type": "string", "nullable": false},
    {"name": "place", "type": "integer", "nullable": true}],
  "indexes": [{"name": "by_place", "columns": ["list_id", "place"], "unique": true}]
}]}"#;

fn slot(id: &str, place: i64) -> Edit {
    Edit::upsert("slots")
        .set("id", id)
        .set("list_id", LIST)
        .set("place", place)
}

fn ada(url: &str) -> SyncClient<HttpTransport> {
    let schema = ClientSchema::from_ir_json(SCHEMA).unwrap();
    let mut client = SyncClient::new(ClientConfig::new("ada"), schema, http(url, "ada"));
    client
        .subscribe("slots", "slots", [("list_id", vec![LIST])])
        .unwrap();
    client
}

async fn a_duplicate_that_the_next_commit_of_the_request_removes_is_refused(on: Backend) {
    let site = Site::on(on);
    std::fs::write(site.path("slots.json"), SCHEMA).unwrap();
    let server = site.start(&["--schema", "slots.json"]);
    let mut ada = ada(&server.url);
    ada.edit([slot("old", 1)]).unwrap();
    ada.sync().await.unwrap();

    // All in one request, so in one batch.
    let before = ada.edit([slot("before", 2)]).unwrap();
    let twin = ada.edit([slot("twin", 1)]).unwrap();
    let gone = ada.edit([Edit::delete("slots", "twin")]).unwrap();
    let after = ada.edit([slot("after", 3)]).unwrap();
    ada.sync().await.unwrap();
    match ada.outcome(&twin) {
        Some(OutcomeStatus::Rejected(rejection)) => {
            assert_eq!(rejection.code, ErrorCode::ConstraintViolation.as_str());
            assert_eq!(rejection.op_index, 0);
        }
        other => panic!("{other:?}"),
    }
    for id in [before, gone, after] {
        assert!(
            matches!(ada.outcome(&id), Some(OutcomeStatus::Applied(_))),
            "{:?}",
            ada.outcome(&id)
        );
    }
    assert_eq!(ada.replica().row_ids("slots"), ["after", "before", "old"]);
}

async fn values_that_wander_between_rows_are_applied_as_they_come(on: Backend) {
    let site = Site::on(on);
    std::fs::write(site.path("slots.json"), SCHEMA).unwrap();
    let server = site.start(&["--schema", "slots.json"]);
    let mut ada = ada(&server.url);
    ada.edit([slot("a", 1), slot("b", 2)]).unwrap();
    ada.sync().await.unwrap();
    // A place is free before another row takes it, over and over.
    let mut ids = Vec::new();
    for round in 0..5 {
        ids.push(ada.edit([slot("a", 10 + round)]).unwrap());
        ids.push(ada.edit([slot("b", 1)]).unwrap());
        ids.push(ada.edit([slot("b", 2)]).unwrap());
        ids.push(ada.edit([slot("a", 1)]).unwrap());
    }
    ada.sync().await.unwrap();
    for id in ids {
        assert!(matches!(ada.outcome(&id), Some(OutcomeStatus::Applied(_))));
    }
}

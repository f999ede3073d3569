//! Conflicts carry evidence, and both ways out of one converge.

use tidegate_client::{Base, Edit, Resolution, Value, WireVersion};

use crate::process::{Backend, Site, on_each_database};
use crate::scenario::{LIST, client, client_over, http, todo};

on_each_database!(
    a_conflict_names_the_columns_and_keep_local_wins_the_second_time,
    edits_of_different_columns_do_not_conflict_in_wire_3_and_do_in_wire_2,
    a_delete_beats_a_concurrent_unversioned_update,
    a_scope_column_never_changes_on_update,
);

async fn a_conflict_names_the_columns_and_keep_local_wins_the_second_time(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    let mut eve = client(&server.url, "eve");
    ada.edit([todo("t1", "milk")]).unwrap();
    ada.sync().await.unwrap();
    eve.sync().await.unwrap();

    // Offline: both edit the title; Eve ticks it off too, and writes a sibling row.
    ada.edit([Edit::update("todos", "t1")
        .set("title", "oat milk")
        .base(Base::Known)])
        .unwrap();
    eve.edit([
        todo("t2", "sibling"),
        Edit::update("todos", "t1")
            .set("title", "soy milk")
            .set("done", true)
            .base(Base::Known),
    ])
    .unwrap();
    ada.sync().await.unwrap();
    eve.sync().await.unwrap();

    let conflict = eve.conflicts()[0].clone();
    assert_eq!(conflict.code, "sync.version_conflict");
    assert_eq!(conflict.op_index, 1);
    assert_eq!(conflict.server_version, 2);
    assert_eq!(
        conflict.conflict_columns,
        ["title"],
        "done was touched by nobody else"
    );
    assert_eq!(conflict.server_row[2], Value::Text("oat milk".to_owned()));
    assert!(
        eve.replica().row("todos", "t2").is_none(),
        "the whole commit is rolled back"
    );

    eve.resolve(&conflict.commit.client_commit_id, Resolution::KeepLocal)
        .unwrap();
    eve.sync().await.unwrap();
    ada.sync().await.unwrap();
    let row = ada.replica().row("todos", "t1").unwrap();
    assert_eq!(row.text("title"), Some("soy milk"));
    assert!(ada.replica().row("todos", "t2").is_some());
    assert_eq!(
        ada.replica().versioned_dump(),
        eve.replica().versioned_dump()
    );
}

async fn edits_of_different_columns_do_not_conflict_in_wire_3_and_do_in_wire_2(on: Backend) {
    for (wire, conflicts) in [(WireVersion::V3, 0), (WireVersion::V2, 1)] {
        let site = Site::on(on);
        let server = site.start(&[]);
        let mut ada = client_over("ada", wire, |_| {}, http(&server.url, "ada"));
        let mut eve = client_over("eve", wire, |_| {}, http(&server.url, "eve"));
        ada.edit([todo("t1", "milk")]).unwrap();
        ada.sync().await.unwrap();
        eve.sync().await.unwrap();
        ada.edit([Edit::update("todos", "t1")
            .set("title", "oat")
            .base(Base::Known)])
            .unwrap();
        eve.edit([Edit::update("todos", "t1")
            .set("done", true)
            .base(Base::Known)])
            .unwrap();
        ada.sync().await.unwrap();
        eve.sync().await.unwrap();
        assert_eq!(eve.conflicts().len(), conflicts, "{wire:?}");
    }
}

async fn a_delete_beats_a_concurrent_unversioned_update(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    let mut eve = client(&server.url, "eve");
    ada.edit([todo("t1", "milk")]).unwrap();
    ada.sync().await.unwrap();
    eve.sync().await.unwrap();
    ada.edit([Edit::delete("todos", "t1")]).unwrap();
    ada.sync().await.unwrap();
    let late = eve.edit([todo("t1", "late")]).unwrap();
    let other = eve.edit([todo("t2", "fine")]).unwrap();
    eve.sync().await.unwrap();
    let code = |id: &str| {
        let outcome = eve
            .outcomes()
            .iter()
            .find(|outcome| outcome.client_commit_id == id);
        outcome.unwrap().code().map(str::to_owned)
    };
    assert_eq!(code(&late).as_deref(), Some("sync.row_deleted"));
    assert_eq!(code(&other), None);
    assert!(eve.replica().row("todos", "t1").is_none());
}

async fn a_scope_column_never_changes_on_update(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    ada.edit([todo("t1", "milk")]).unwrap();
    ada.sync().await.unwrap();
    let moved = ada
        .edit([Edit::update("todos", "t1").set("list_id", "elsewhere")])
        .unwrap();
    ada.sync().await.unwrap();
    let outcome = ada
        .outcomes()
        .iter()
        .find(|outcome| outcome.client_commit_id == moved)
        .unwrap();
    assert_eq!(outcome.code(), Some("sync.invalid_request"));
    assert_eq!(
        ada.replica().row("todos", "t1").unwrap().text("list_id"),
        Some(LIST)
    );
}

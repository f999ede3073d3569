//! An old writer is denied at once after a declaration, and for ever after.

use tidegate_client::ClientError;

use crate::panel::Panel;
use crate::plant::{Plant, SHOP, Shape, device, note, path, todo};
use crate::process::{Backend, on_each_database};
use crate::sql::Sql;

on_each_database!(
    an_old_program_is_denied_at_once_after_a_declaration_and_for_ever_after,
    an_old_server_is_denied_at_once_after_a_declaration_and_for_ever_after,
);

/// The commit of a program that says it writes at `version`, or says nothing.
async fn raw_commit(sql: &Sql, seq: i64, version: Option<i32>) -> Result<(), String> {
    let (column, value) = match version {
        Some(version) => (", writer_version", format!(", {version}")),
        None => ("", String::new()),
    };
    sql.run(&format!(
        "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms{column})
         VALUES('{SHOP}', {seq}, 'raw', 'c-{seq}', 'raw', 0{value})"
    ))
    .await
}

async fn assert_denied(sql: &Sql) {
    for version in [None, Some(1)] {
        let denied = raw_commit(sql, 900_000, version).await.unwrap_err();
        assert!(
            denied.contains("sync.storage.writer_fence_rejected"),
            "{denied}"
        );
    }
}

async fn an_old_program_is_denied_at_once_after_a_declaration_and_for_ever_after(on: Backend) {
    let plant = Plant::seeded(on).await;
    raw_commit(&plant.sql, 800_000, None).await.unwrap();
    plant
        .sql
        .run("DELETE FROM sync_commits WHERE commit_seq=800000")
        .await
        .unwrap();
    // Held before the first claim: declared and nothing more.
    let (server, hold) = plant.new_held(Shape::Column, "backfill.claim.before");
    hold.reached().await;
    let state = "SELECT state FROM sync_backfill_checkpoints";
    assert_eq!(plant.sql.value(state).await, "declared");
    assert_denied(&plant.sql).await;
    hold.release();
    plant.activated().await;
    assert_denied(&plant.sql).await;
    drop(server);
    assert_denied(&plant.sql).await;
    let server = plant.new_server(Shape::Column);
    assert_denied(&plant.sql).await;
    let mut new = device(&server.url, "new", 2);
    new.edit([todo("t-new", "x")]).unwrap();
    new.sync().await.unwrap();
}

async fn an_old_server_is_denied_at_once_after_a_declaration_and_for_ever_after(on: Backend) {
    let plant = Plant::seeded(on).await;
    let old = plant.old(&[]);
    let mut ada = device(&old.url, "ada", 1);
    ada.edit([todo("t-1", "in time")]).unwrap();
    ada.sync().await.unwrap();
    let log = "SELECT max(commit_seq) FROM sync_commits";
    let before = plant.sql.value(log).await;
    let (new, hold) = plant.new_held(Shape::Column, "backfill.claim.before");
    hold.reached().await;
    ada.edit([note("n-late", "too late")]).unwrap();
    let refused = async |ada: &mut tidegate_client::SyncClient<_>| {
        let error: ClientError = ada.sync().await.unwrap_err();
        assert_eq!(error.code(), Some("sync.schema_not_ready"), "{error}");
        assert!(error.retryable());
    };
    refused(&mut ada).await;
    assert_eq!(plant.sql.value(log).await, before);
    hold.release();
    plant.activated().await;
    refused(&mut ada).await;
    drop(new);
    // Nor does the marker help it: even where the version fits again, the fence stands.
    refused(&mut ada).await;
    let marker = "UPDATE sync_schema_meta SET schema_version=1";
    plant.sql.run(marker).await.unwrap();
    refused(&mut ada).await;
    let marker = "UPDATE sync_schema_meta SET schema_version=2";
    plant.sql.run(marker).await.unwrap();
    let ended = plant.ends_early(crate::plant::EarlyEnd::Old).await;
    assert_eq!(ended.code(), Some(5));

    let mut new = plant.new_server(Shape::Column);
    let panel = Panel::of(&mut new);
    let fence = Panel::ok(panel.get(&format!("/partitions/{SHOP}/fence")).await);
    assert_eq!(fence["required_writer_version"], 2);
    assert_eq!(
        Panel::ok(panel.get(&path("")).await)["checkpoints"][0]["state"],
        "activated"
    );
    // What was refused was not lost: the client carries it to the new server.
    let mut ada = ada.map_transport(|at| at.at(&new.url));
    assert!(matches!(
        ada.sync().await.unwrap_err(),
        ClientError::UpgradeRequired(_)
    ));
    ada.upgrade_schema(crate::plant::schema(2));
    ada.sync().await.unwrap();
    assert_eq!(ada.pending().count(), 0);
    let kept = "SELECT text FROM notes WHERE _sync_row_id='n-late'";
    assert_eq!(plant.sql.value(kept).await, "too late");
}

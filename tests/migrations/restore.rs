//! An answer never mixes two states: a pull that spans a migration, an epoch rotation or a
//! restore is refused.

use serde_json::{Value as Json, json};
use tidegate_client::{ClientError, Edit, HttpTransport, SyncClient, TransportError};
use tokio::task::JoinHandle;

use crate::panel::Panel;
use crate::plant::{Hold, LIST, Plant, SHOP, Shape, device, seed};
use crate::process::{Backend, Server, on_each_database};

on_each_database!(
    a_pull_that_spans_a_migration_is_refused,
    a_pull_that_reads_after_a_migration_is_refused,
    a_pull_of_a_table_that_a_migration_drops_is_refused,
    a_push_that_reads_after_a_migration_is_refused,
    a_pull_that_spans_an_epoch_rotation_is_refused,
    a_restore_that_comes_back_to_the_version_is_detected_by_the_epoch,
);

type Pull = JoinHandle<(SyncClient<HttpTransport>, Result<(), ClientError>)>;

/// A pull of a table that is held between its first token and its last.
async fn held_pull(plant: &Plant, step: &str, table: &str) -> (Server, Hold, Pull) {
    let other = plant.old(&[]);
    let mut reader = device(&other.url, "reader", 1);
    // It knows the epoch: its next request reads rows.
    reader.sync().await.unwrap();
    drop(other);
    reader
        .subscribe(table, table, [("list_id", vec![LIST])])
        .unwrap();
    let (server, hold) = plant.old_held(step);
    let mut reader = reader.map_transport(|at| at.at(&server.url));
    let pull = tokio::spawn(async move {
        let done = reader.sync().await.map(|_| ());
        (reader, done)
    });
    hold.reached().await;
    assert!(!pull.is_finished());
    (server, hold, pull)
}

/// The details of the refusal that the pull must end with.
async fn refusal(pull: Pull) -> (SyncClient<HttpTransport>, Json) {
    let (reader, done) = pull.await.unwrap();
    let Err(ClientError::Transport(TransportError::Refused { status, error })) = done else {
        panic!("not refused: {done:?}");
    };
    let error = error.unwrap();
    assert_eq!(
        (status, error.code.as_str()),
        (503, "sync.schema_not_ready")
    );
    assert!(error.retryable);
    // An edit of its own may show; nothing of the answer does.
    assert!(reader.replica().len("todos") <= reader.pending().count());
    assert!(reader.replica().len("notes") == 0, "nothing was applied");
    (reader, Json::Object(error.details.unwrap_or_default()))
}

async fn a_pull_that_spans_a_migration_is_refused(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (_old, hold, pull) = held_pull(&plant, "gate.before_verify", "todos").await;
    let _new = plant.new_server(Shape::Column);
    hold.release();
    let (_, details) = refusal(pull).await;
    let newer = json!({"storedSchemaVersion": 2, "runningSchemaVersion": 1});
    assert_eq!(details, newer);
}

async fn a_pull_that_reads_after_a_migration_is_refused(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (_old, hold, pull) = held_pull(&plant, "gate.before_read", "todos").await;
    let _new = plant.new_server(Shape::Column);
    plant.activated().await;
    hold.release();
    let (_, details) = refusal(pull).await;
    let newer = json!({"storedSchemaVersion": 2, "runningSchemaVersion": 1});
    assert_eq!(details, newer);
}

async fn a_pull_of_a_table_that_a_migration_drops_is_refused(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (_old, hold, pull) = held_pull(&plant, "gate.before_read", "notes").await;
    let _new = plant.retiring_server();
    hold.release();
    let (_, details) = refusal(pull).await;
    let newer = json!({"storedSchemaVersion": 2, "runningSchemaVersion": 1});
    assert_eq!(details, newer);
}

async fn a_push_that_reads_after_a_migration_is_refused(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (old, hold) = plant.old_held("gate.before_push");
    let mut pusher = device(&old.url, "pusher", 1);
    // Half a row: the other half is read, and it is in the new layout by then.
    let edit = Edit::update("todos", seed(0)).set("title", "late");
    pusher.edit([edit]).unwrap();
    let push = tokio::spawn(async move {
        let done = pusher.sync().await.map(|_| ());
        (pusher, done)
    });
    hold.reached().await;
    let _new = plant.new_server(Shape::Column);
    plant.activated().await;
    hold.release();
    let (_, details) = refusal(push).await;
    let newer = json!({"storedSchemaVersion": 2, "runningSchemaVersion": 1});
    assert_eq!(details, newer);
    let logged = "SELECT count(*) FROM sync_commits WHERE client_id='pusher'";
    assert_eq!(plant.sql.value(logged).await, "0");
}

async fn a_pull_that_spans_an_epoch_rotation_is_refused(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (mut server, hold, pull) = held_pull(&plant, "gate.before_verify", "todos").await;
    rotate(&mut server).await;
    hold.release();
    let (mut reader, details) = refusal(pull).await;
    assert_eq!(details, json!({"logEpochChanged": true}));
    // The next one starts over in the new epoch.
    reader.sync().await.unwrap();
    assert_eq!(reader.replica().len("todos"), crate::plant::SEEDS);
}

async fn rotate(server: &mut Server) {
    let panel = Panel::of(server);
    let path = format!("/partitions/{SHOP}/rotate-epoch");
    Panel::ok(panel.post(&path, json!({})).await);
}

async fn a_restore_that_comes_back_to_the_version_is_detected_by_the_epoch(on: Backend) {
    let plant = Plant::seeded(on).await;
    let backup = [
        "CREATE TABLE saved_todos AS SELECT * FROM todos",
        "CREATE TABLE saved_meta AS SELECT * FROM sync_schema_meta",
        "CREATE TABLE saved_head AS SELECT * FROM sync_partitions",
    ];
    plant.sql.run(&backup.join(";")).await.unwrap();
    let (mut old, hold, pull) = held_pull(&plant, "gate.before_verify", "todos").await;
    let new = plant.new_server(Shape::Column);
    plant.activated().await;
    drop(new);
    let restore = [
        "BEGIN",
        "DELETE FROM todos",
        "ALTER TABLE todos DROP COLUMN title_key",
        "INSERT INTO todos SELECT * FROM saved_todos",
        "DROP TABLE cards",
        "DELETE FROM sync_schema_meta",
        "INSERT INTO sync_schema_meta SELECT * FROM saved_meta",
        "DELETE FROM sync_changes WHERE commit_seq > (SELECT max_commit_seq FROM saved_head)",
        "DELETE FROM sync_commits WHERE commit_seq > (SELECT max_commit_seq FROM saved_head)",
        "DELETE FROM sync_partitions",
        "INSERT INTO sync_partitions SELECT * FROM saved_head",
        "DELETE FROM sync_writer_fence",
        "DELETE FROM sync_backfill_checkpoints",
        "DELETE FROM tidegate_layouts WHERE schema_version=2",
        "COMMIT",
    ];
    plant.sql.run(&restore.join(";")).await.unwrap();
    // As docs/control.md says of a restore.
    rotate(&mut old).await;
    hold.release();
    let (mut reader, details) = refusal(pull).await;
    assert_eq!(details, json!({"logEpochChanged": true}));
    reader.sync().await.unwrap();
    assert_eq!(reader.replica().len("todos"), crate::plant::SEEDS);
}

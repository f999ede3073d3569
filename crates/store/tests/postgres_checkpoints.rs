//! Checkpoints beside other writers of the partition, step by step. Steps are
//! ordered by locks and by what `pg_stat_activity` shows, never by time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use std::sync::Arc;

use postgres_support::{Postgres, one, prepare, spawn, until_waiting};
use tidegate_engine::backfill::checkpoint::{
    Activation, Advance, Checkpoint, CheckpointState, Declare,
};
use tidegate_engine::model::{CommitBatch, PageAdvance};
use tidegate_engine::schema::Schema;
use tidegate_engine::{CommitSeq, OwnerEpoch, SchemaVersion};
use tidegate_store::contract::fixture::*;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{Activate, CheckpointStore, CommitError, Store, StoreError};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

const HOLD: &str =
    "BEGIN; SELECT max_commit_seq FROM sync_partitions WHERE partition='p' FOR UPDATE";
/// A commit that changes a note, as a program of writer version 1 makes it.
const NOTE: &str = "
UPDATE sync_partitions SET max_commit_seq=max_commit_seq+1 WHERE partition='p';
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
  SELECT 'p', max_commit_seq, 'other', 'o'||max_commit_seq, 'a', 1, 1 FROM sync_partitions WHERE partition='p';
INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
  SELECT 'p', max_commit_seq, 0, 'notes', 'n', 2, '{}' FROM sync_partitions WHERE partition='p'";

/// One note in the log, and a claimed checkpoint that has seen it.
async fn claimed(database: &Postgres) -> (Arc<PostgresStore>, Arc<Schema>) {
    let store = database.store().await;
    let schema = prepare(&store).await;
    store
        .commit_batch(Arc::new(one(&schema, 0, "first")))
        .await
        .unwrap();
    store.declare_checkpoint(&wanted(1), 1).await.unwrap();
    store
        .claim_checkpoint(&p("p"), "totals", SchemaVersion(1), 2)
        .await
        .unwrap();
    (store, schema)
}

fn wanted(version: i32) -> Declare {
    Declare {
        partition: p("p"),
        name: "totals".into(),
        schema_version: SchemaVersion(version),
    }
}

async fn totals(store: &PostgresStore) -> Checkpoint {
    let found = store.read_checkpoint(&p("p"), "totals").await.unwrap();
    found.unwrap()
}

fn activate(
    store: &Arc<PostgresStore>,
    epoch: i64,
    watermark: i64,
) -> JoinHandle<Result<Activation, StoreError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move {
        let request = Activate {
            partition: p("p"),
            name: "totals".into(),
            owner_epoch: OwnerEpoch(epoch),
            watermark: CommitSeq(watermark),
            sources: vec!["notes".into()],
            now_ms: 9,
        };
        store.activate_checkpoint(&request).await
    })
}

fn declaring(mut batch: CommitBatch) -> CommitBatch {
    batch.declared = Arc::new([("p".to_owned(), "totals".to_owned())].into());
    batch
}

fn page(schema: &Schema, expected: i64) -> CommitBatch {
    let mut batch = declaring(one(schema, expected, "page"));
    batch.advance = Some(PageAdvance {
        name: "totals".into(),
        to: Advance {
            owner_epoch: OwnerEpoch(1),
            watermark: CommitSeq(7),
            observed_rows: 7,
        },
        now_ms: 7,
    });
    batch
}

async fn count(client: &Client, from: &str) -> i64 {
    let query = format!("SELECT count(*) FROM {from}");
    client.query_one(&query, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activation_waits_for_the_writer_inside_and_sees_its_change() {
    let database = Postgres::new();
    let (store, _) = claimed(&database).await;
    let (other, watch) = (database.connect().await, database.connect().await);
    let before = totals(&store).await;
    for step in 0..2 {
        other.batch_execute(HOLD).await.unwrap();
        if step == 0 {
            other.batch_execute(NOTE).await.unwrap();
        }
        let activation = activate(&store, 1, 1);
        until_waiting(&watch, 1).await;
        if step == 1 {
            other.batch_execute(NOTE).await.unwrap();
        }
        other.batch_execute("COMMIT").await.unwrap();
        assert_eq!(activation.await.unwrap().unwrap(), Activation::Stale);
        assert_eq!(totals(&store).await, before);
    }
    // A writer that gives up changed nothing.
    other.batch_execute(HOLD).await.unwrap();
    other.batch_execute(NOTE).await.unwrap();
    let activation = activate(&store, 1, 3);
    until_waiting(&watch, 1).await;
    other.batch_execute("ROLLBACK").await.unwrap();
    let outcome = activation.await.unwrap().unwrap();
    assert!(matches!(outcome, Activation::Activated(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_waits_for_the_activation_inside() {
    let database = Postgres::new();
    let (store, schema) = claimed(&database).await;
    let (other, watch) = (database.connect().await, database.connect().await);
    // Stops the activation between its lock on the partition and its judgement.
    other
        .batch_execute("BEGIN; SELECT 1 FROM sync_backfill_checkpoints FOR UPDATE")
        .await
        .unwrap();
    let activation = activate(&store, 1, 1);
    until_waiting(&watch, 1).await;
    let push = spawn(&store, declaring(one(&schema, 1, "second")));
    until_waiting(&watch, 2).await;
    assert!(!activation.is_finished() && !push.is_finished());
    other.batch_execute("ROLLBACK").await.unwrap();
    let outcome = activation.await.unwrap().unwrap();
    assert!(matches!(outcome, Activation::Activated(_)), "{outcome:?}");
    push.await.unwrap().unwrap();
    assert_eq!(head(&*store, "p").await, 2);
    assert_eq!(totals(&store).await.watermark, CommitSeq(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activation_waits_for_the_first_commit_of_a_partition() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    store.declare_checkpoint(&wanted(1), 1).await.unwrap();
    let (other, watch) = (database.connect().await, database.connect().await);
    other
        .batch_execute("DELETE FROM sync_partitions")
        .await
        .unwrap();
    other
        .batch_execute("BEGIN; INSERT INTO sync_partitions(partition) VALUES('p')")
        .await
        .unwrap();
    other.batch_execute(NOTE).await.unwrap();
    let activation = activate(&store, 0, 0);
    until_waiting(&watch, 1).await;
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(activation.await.unwrap().unwrap(), Activation::Stale);
    let totals = totals(&store).await;
    assert_eq!(totals.state, CheckpointState::Declared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_activation_leaves_no_partition_behind() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    let watch = database.connect().await;
    let refused = activate(&store, 0, 0).await.unwrap();
    assert!(matches!(refused, Err(StoreError::CheckpointFenceMissing)));
    assert_eq!(count(&watch, "sync_partitions").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_writer_inside_finishes_before_a_declaration_and_none_comes_after() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    store
        .commit_batch(Arc::new(one(&schema, 0, "first")))
        .await
        .unwrap();
    let (other, watch) = (database.connect().await, database.connect().await);
    other.batch_execute(HOLD).await.unwrap();
    let declaration = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.declare_checkpoint(&wanted(2), 1).await }
    });
    until_waiting(&watch, 1).await;
    other.batch_execute(NOTE).await.unwrap();
    assert_eq!(count(&watch, "sync_writer_fence").await, 0);
    other.batch_execute("COMMIT").await.unwrap();
    declaration.await.unwrap().unwrap();
    let refused = other.batch_execute(NOTE).await.unwrap_err();
    let refused = refused.as_db_error().unwrap().message().to_owned();
    assert_eq!(refused, "sync.storage.writer_fence_rejected");
    assert_eq!(head(&*store, "p").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_meets_a_claim_is_dropped_whole() {
    let database = Postgres::new();
    let (store, schema) = claimed(&database).await;
    let (other, watch) = (database.connect().await, database.connect().await);
    other
        .batch_execute("BEGIN; UPDATE sync_backfill_checkpoints SET owner_epoch=owner_epoch+1")
        .await
        .unwrap();
    let written = spawn(&store, page(&schema, 1));
    until_waiting(&watch, 1).await;
    other.batch_execute("COMMIT").await.unwrap();
    let outcome = written.await.unwrap();
    assert!(
        matches!(outcome, Err(CommitError::Superseded)),
        "{outcome:?}"
    );
    assert_eq!(head(&*store, "p").await, 1);
    assert_eq!(count(&watch, "sync_commits").await, 1);
    assert_eq!(count(&watch, "notes").await, 1);
    let owned = totals(&store).await;
    assert_eq!((owned.owner_epoch, owned.watermark.0), (OwnerEpoch(2), 0));

    // A claim that is given up supersedes nobody.
    other
        .batch_execute("UPDATE sync_backfill_checkpoints SET owner_epoch=1")
        .await
        .unwrap();
    other
        .batch_execute("BEGIN; UPDATE sync_backfill_checkpoints SET owner_epoch=2")
        .await
        .unwrap();
    let written = spawn(&store, page(&schema, 1));
    until_waiting(&watch, 1).await;
    other.batch_execute("ROLLBACK").await.unwrap();
    written.await.unwrap().unwrap();
    assert_eq!(totals(&store).await.watermark, CommitSeq(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_waits_for_the_page_inside() {
    let database = Postgres::new();
    let (store, _) = claimed(&database).await;
    let (other, watch) = (database.connect().await, database.connect().await);
    other
        .batch_execute(
            "BEGIN; SET LOCAL tidegate.tx='1'; SELECT tidegate_advance_checkpoint('p', 'totals', 1, 5, 6, 7)",
        )
        .await
        .unwrap();
    let claim = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            let version = SchemaVersion(1);
            store.claim_checkpoint(&p("p"), "totals", version, 8).await
        }
    });
    until_waiting(&watch, 1).await;
    other.batch_execute("COMMIT").await.unwrap();
    let claimed = claim.await.unwrap().unwrap();
    assert_eq!(claimed.owner_epoch, OwnerEpoch(2));
    assert_eq!((claimed.watermark.0, claimed.observed_rows), (5, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_advances_only_in_its_transaction() {
    let database = Postgres::new();
    let (store, _) = claimed(&database).await;
    let before = totals(&store).await;
    let other = database.connect().await;
    let refused = other
        .batch_execute("SELECT tidegate_advance_checkpoint('p', 'totals', 1, 5, 6, 7)")
        .await
        .unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "TG000");
    assert_eq!(totals(&store).await, before);
}

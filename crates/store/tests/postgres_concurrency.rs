//! Other programs on the same database: writers that lock the row first, the
//! migration barrier, a second store, checks that must not be stale. Steps are
//! ordered by locks and by what `pg_stat_activity` shows, never by time.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use std::sync::Arc;

use postgres_support::{BOTH, Postgres, one, prepare, spawn, until_waiting};
use tidegate_engine::model::{Needs, RowKey, RowState};
use tidegate_engine::schema::Schema;
use tidegate_engine::{CommitSeq, SchemaVersion};
use tidegate_store::contract::Harness;
use tidegate_store::contract::fixture::*;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{CommitError, SchemaOutcome, Store, StoreError};
use tokio_postgres::Client;

async fn prepared(database: &Postgres) -> (Arc<PostgresStore>, Arc<Schema>) {
    let store = database.store().await;
    let schema = prepare(&store).await;
    (store, schema)
}

/// The steps of a program that serializes by the row lock.
const OTHERS_STEPS: [&str; 5] = [
    "BEGIN",
    "SELECT max_commit_seq FROM sync_partitions WHERE partition='p' FOR UPDATE",
    "UPDATE sync_partitions SET max_commit_seq=max_commit_seq+1 WHERE partition='p'",
    "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
     SELECT 'p', max_commit_seq, 'other', 'o'||max_commit_seq, 'a', 1, 1 FROM sync_partitions WHERE partition='p'",
    "COMMIT",
];

async fn sequences(client: &Client) -> (i64, Vec<i64>) {
    let head = client
        .query_one(
            "SELECT max_commit_seq FROM sync_partitions WHERE partition='p'",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    let seqs = client
        .query(
            "SELECT commit_seq FROM sync_commits WHERE partition='p' ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    (head, seqs.iter().map(|row| row.get(0)).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_locking_writer_interleaved_at_every_step_loses_and_doubles_nothing() {
    for make in BOTH {
        let database = Postgres::new();
        let (store, schema) = prepared(&database).await;
        let (other, watch) = (database.connect().await, database.connect().await);
        store
            .commit_batch(Arc::new(make(&schema, 0, "first")))
            .await
            .unwrap();
        for before in 0..=OTHERS_STEPS.len() {
            let (head, _) = sequences(&watch).await;
            for step in &OTHERS_STEPS[..before] {
                other.batch_execute(step).await.unwrap();
            }
            let ours = spawn(&store, make(&schema, head, &format!("n{before}")));
            // From its row lock to its COMMIT the other holds us off.
            let held = (2..OTHERS_STEPS.len()).contains(&before);
            let outcome = if held {
                until_waiting(&watch, 1).await;
                None
            } else {
                Some(ours.await.unwrap())
            };
            for step in &OTHERS_STEPS[before..] {
                other.batch_execute(step).await.unwrap();
            }
            let outcome = match outcome {
                Some(outcome) => outcome,
                None => Err(CommitError::SequenceMoved),
            };
            if before < 2 {
                outcome.unwrap();
            } else {
                assert!(
                    matches!(outcome, Err(CommitError::SequenceMoved)),
                    "{before}"
                );
            }
            let (head, seqs) = sequences(&watch).await;
            assert_eq!(seqs, (1..=head).collect::<Vec<_>>(), "{before}");
            // Decided again on the new head, it stands.
            if before >= 2 {
                store
                    .commit_batch(Arc::new(make(&schema, head, &format!("n{before}"))))
                    .await
                    .unwrap();
            }
        }
        let (head, seqs) = sequences(&watch).await;
        assert_eq!(head, 1 + 2 * (OTHERS_STEPS.len() as i64 + 1));
        assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_held_off_by_a_row_lock_sees_the_moved_head() {
    for make in BOTH {
        let database = Postgres::new();
        let (store, schema) = prepared(&database).await;
        let (other, watch) = (database.connect().await, database.connect().await);
        store
            .commit_batch(Arc::new(make(&schema, 0, "first")))
            .await
            .unwrap();
        for step in &OTHERS_STEPS[..4] {
            other.batch_execute(step).await.unwrap();
        }
        let ours = spawn(&store, make(&schema, 1, "n"));
        until_waiting(&watch, 1).await;
        other.batch_execute("COMMIT").await.unwrap();
        assert!(matches!(
            ours.await.unwrap(),
            Err(CommitError::SequenceMoved)
        ));
        assert_eq!(sequences(&watch).await, (2, vec![1, 2]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_partition_waits_for_the_row_and_then_wins() {
    let database = Postgres::new();
    let (store, schema) = prepared(&database).await;
    let (other, watch) = (database.connect().await, database.connect().await);
    store
        .commit_batch(Arc::new(one(&schema, 0, "first")))
        .await
        .unwrap();
    for step in &OTHERS_STEPS[..4] {
        other.batch_execute(step).await.unwrap();
    }
    let ours = tokio::spawn({
        let (store, schema) = (Arc::clone(&store), Arc::clone(&schema));
        async move {
            let mut locked = store.begin_locked(&p("p")).await.unwrap();
            let head = locked.read_needs(&Needs::default()).await.unwrap().max;
            let batch = one(&schema, head.0, "mine");
            locked.commit(Arc::new(batch)).await.unwrap();
            head
        }
    });
    until_waiting(&watch, 1).await;
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(ours.await.unwrap(), CommitSeq(2));
    assert_eq!(sequences(&watch).await, (3, vec![1, 2, 3]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_partition_holds_others_off_until_it_is_dropped() {
    let database = Postgres::new();
    let (store, schema) = prepared(&database).await;
    let watch = database.connect().await;
    // The partition's row does not even exist yet.
    let locked = store.begin_locked(&p("p")).await.unwrap();
    let ours = spawn(&store, one(&schema, 0, "n"));
    until_waiting(&watch, 1).await;
    drop(locked);
    ours.await.unwrap().unwrap();
    assert_eq!(sequences(&watch).await, (1, vec![1]));
    // The gate runs inside as well: a lost CAS is refused.
    let locked = store.begin_locked(&p("p")).await.unwrap();
    let stale = locked.commit(Arc::new(one(&schema, 0, "m"))).await;
    assert!(
        matches!(stale, Err(CommitError::SequenceMoved)),
        "{stale:?}"
    );
    let locked = store.begin_locked(&p("p")).await.unwrap();
    locked.commit(Arc::new(one(&schema, 1, "m"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_behind_the_barrier_waits_and_is_refused_by_the_new_version() {
    for make in BOTH {
        let database = Postgres::new();
        let (store, schema) = prepared(&database).await;
        let (other, watch) = (database.connect().await, database.connect().await);
        other
            .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
            .await
            .unwrap();
        let ours = spawn(&store, make(&schema, 0, "n"));
        until_waiting(&watch, 1).await;
        // Reads go on meanwhile.
        store.read_gate(&p("p")).await.unwrap();
        // Whoever waits outside holds no table that the migration still has to change.
        other
        .batch_execute(
            "SET LOCAL lock_timeout='5s'; ALTER TABLE notes ADD COLUMN later TEXT;
             LOCK TABLE sync_commits, sync_changes, sync_row_scopes, sync_push_results IN ACCESS EXCLUSIVE MODE;
             UPDATE sync_schema_meta SET schema_version=2; COMMIT",
        )
        .await
        .unwrap();
        let outcome = ours.await.unwrap();
        assert!(
            matches!(
                outcome,
                Err(CommitError::SchemaChanged {
                    stored: SchemaVersion(2)
                })
            ),
            "{outcome:?}"
        );
        assert!(
            database
                .query("SELECT * FROM sync_commits")
                .await
                .is_empty()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_inside_finishes_before_the_barrier() {
    for make in BOTH {
        let database = Postgres::new();
        let (store, schema) = prepared(&database).await;
        let (other, watch) = (database.connect().await, database.connect().await);
        // Holds our batch past its gate: it waits for the fate of the same key.
        let blocker = database.connect().await;
        blocker
            .batch_execute(
                "BEGIN; INSERT INTO sync_push_results VALUES ('p', 'device', 'c1', '{}')",
            )
            .await
            .unwrap();
        let ours = spawn(&store, make(&schema, 0, "n"));
        until_waiting(&watch, 1).await;
        let barrier = tokio::spawn(async move {
            other
                .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
                .await
                .unwrap();
            other
        });
        until_waiting(&watch, 2).await;
        assert!(!ours.is_finished() && !barrier.is_finished());
        blocker.batch_execute("ROLLBACK").await.unwrap();
        ours.await.unwrap().unwrap();
        let other = barrier.await.unwrap();
        assert_eq!(sequences(&other).await, (1, vec![1]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_see_a_checkpoint_declared_while_the_cas_waited_on_a_row_lock() {
    for make in BOTH {
        let database = Postgres::new();
        let (store, schema) = prepared(&database).await;
        let (other, watch) = (database.connect().await, database.connect().await);
        store
            .commit_batch(Arc::new(make(&schema, 0, "first")))
            .await
            .unwrap();
        other
            .batch_execute("BEGIN; SELECT 1 FROM sync_partitions WHERE partition='p' FOR UPDATE")
            .await
            .unwrap();
        let ours = spawn(&store, make(&schema, 1, "n"));
        until_waiting(&watch, 1).await;
        watch
        .batch_execute(
            "INSERT INTO sync_backfill_checkpoints VALUES ('q', 'totals', 1, 'declared', 0, 0, 0, 1)",
        )
        .await
        .unwrap();
        // The head has not moved: the CAS passes, and what follows must look afresh.
        other.batch_execute("ROLLBACK").await.unwrap();
        match ours.await.unwrap() {
            Err(CommitError::CheckpointPending(pending)) => {
                assert_eq!((&*pending.partition, &*pending.name), ("q", "totals"));
            }
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(sequences(&watch).await, (1, vec![1]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_on_one_partition_share_it_without_gaps() {
    for make in BOTH {
        let database = Postgres::new();
        let (first, schema) = prepared(&database).await;
        let (second, _) = prepared(&database).await;
        let writer = |store: Arc<PostgresStore>, name: &'static str| {
            let schema = Arc::clone(&schema);
            tokio::spawn(async move {
                let mut stood = 0;
                while stood < 25 {
                    let head = head(&*store, "p").await;
                    match store
                        .commit_batch(Arc::new(make(&schema, head, &format!("{name}{stood}"))))
                        .await
                    {
                        Ok(()) => stood += 1,
                        Err(CommitError::SequenceMoved) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        };
        let (a, b) = (writer(first, "a"), writer(second, "b"));
        a.await.unwrap();
        b.await.unwrap();
        let watch = database.connect().await;
        assert_eq!(sequences(&watch).await, (50, (1..=50).collect()));
        assert_eq!(database.query("SELECT * FROM notes").await.len(), 50);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_is_read_before_any_row() {
    let database = Postgres::new();
    let mut options = database.options();
    options.pool_size = 1;
    let store = PostgresStore::connect(options).await.unwrap();
    let schema = compile(&document());
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    let (other, watch) = (database.connect().await, database.connect().await);
    store
        .commit_batch(Arc::new(one(&schema, 0, "n")))
        .await
        .unwrap();
    let key = RowKey {
        table: NOTES,
        row_id: "n".into(),
    };
    let needs = Needs {
        rows: [key].into(),
        ..Needs::default()
    };
    // The one connection has its statements prepared: from now on it is one pipeline.
    store.read_needs(&p("p"), &needs).await.unwrap();
    // The read pipeline stops at the app table, between the head and the row.
    other
        .batch_execute("BEGIN; LOCK TABLE notes IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let reading = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.read_needs(&p("p"), &needs).await.unwrap() }
    });
    until_waiting(&watch, 1).await;
    other
        .batch_execute(
            "UPDATE notes SET _sync_server_version=2; \
             UPDATE sync_partitions SET max_commit_seq=2; COMMIT",
        )
        .await
        .unwrap();
    let found = reading.await.unwrap();
    // A row newer than the head costs a retry; an older one would be a lost update.
    assert_eq!(found.max, CommitSeq(1));
    assert!(matches!(&found.rows[0].1, RowState::Present(row) if row.server_version == 2));
    let outcome = store.commit_batch(Arc::new(one(&schema, 1, "m"))).await;
    assert!(matches!(outcome, Err(CommitError::SequenceMoved)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_migrate_together_migrate_once() {
    let database = Postgres::new();
    let (first, second) = (database.store().await, database.store().await);
    let (prepared, watch) = (database.store().await, database.connect().await);
    prepared
        .ensure_schema(compile(&document()), &[], 1)
        .await
        .unwrap();
    let holder = database.connect().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
        .await
        .unwrap();
    let ensure = |store: Arc<PostgresStore>| {
        tokio::spawn(async move {
            store
                .ensure_schema(compile(&document_v2()), &[], 1)
                .await
                .unwrap()
        })
    };
    let (a, b) = (ensure(first), ensure(second));
    until_waiting(&watch, 2).await;
    holder.batch_execute("COMMIT").await.unwrap();
    let mut outcomes = [a.await.unwrap(), b.await.unwrap()];
    outcomes.sort_by_key(|outcome| matches!(outcome, SchemaOutcome::Verified));
    assert_eq!(
        outcomes,
        [
            SchemaOutcome::Migrated {
                from: Some(SchemaVersion(1))
            },
            SchemaOutcome::Verified
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_that_create_a_database_together_do_not_collide() {
    let database = Postgres::new();
    let mut runs = Vec::new();
    for _ in 0..4 {
        let store = database.store().await;
        runs.push(tokio::spawn(async move {
            store.ensure_schema(compile(&document()), &[], 1).await
        }));
    }
    let mut migrated = 0;
    for run in runs {
        if matches!(run.await.unwrap().unwrap(), SchemaOutcome::Migrated { .. }) {
            migrated += 1;
        }
    }
    assert_eq!(migrated, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_caller_does_not_cut_its_batch_in_half() {
    for make in BOTH {
        let database = Postgres::new();
        let (store, schema) = prepared(&database).await;
        let (blocker, watch) = (database.connect().await, database.connect().await);
        blocker
            .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
            .await
            .unwrap();
        let ours = spawn(&store, make(&schema, 0, "n"));
        until_waiting(&watch, 1).await;
        ours.abort();
        assert!(ours.await.unwrap_err().is_cancelled());
        blocker.batch_execute("COMMIT").await.unwrap();
        // Closing waits for the write that nobody waits for any more.
        store.close().await;
        assert_eq!(sequences(&watch).await, (1, vec![1]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_never_given_up_is_unavailable_not_for_ever() {
    let database = Postgres::new();
    prepared(&database).await;
    let mut options = database.options();
    options.lock_timeout = std::time::Duration::from_millis(100);
    let store = PostgresStore::connect(options).await.unwrap();
    let schema = compile(&document());
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    let blocker = database.connect().await;
    blocker
        .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
        .await
        .unwrap();
    let outcome = store.commit_batch(Arc::new(one(&schema, 0, "n"))).await;
    assert!(
        matches!(outcome, Err(CommitError::Store(StoreError::Unavailable(_)))),
        "{outcome:?}"
    );
    blocker.batch_execute("COMMIT").await.unwrap();
    store
        .commit_batch(Arc::new(one(&schema, 0, "n")))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_beside_a_busy_writer_does_not_wait_for_it() {
    let database = Postgres::new();
    let (store, schema) = prepared(&database).await;
    let (blocker, watch) = (database.connect().await, database.connect().await);
    blocker
        .batch_execute("BEGIN; INSERT INTO sync_push_results VALUES ('p', 'device', 'c1', '{}')")
        .await
        .unwrap();
    let ours = spawn(&store, one(&schema, 0, "n"));
    until_waiting(&watch, 1).await;
    // At an equal version nothing is missing, so nothing is locked.
    prepared(&database).await;
    assert!(!ours.is_finished());
    blocker.batch_execute("ROLLBACK").await.unwrap();
    ours.await.unwrap().unwrap();
}

//! A migration and a push never interleave.

use std::sync::Arc;

use tidegate_client::{ClientError, HttpTransport, SyncClient};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::kill::check;
use crate::plant::{NAME, Plant, SHOP, Shape, device, note, reader};
use crate::process::{Backend, Server, on_each_database};
use crate::sql::Session;
use crate::writer::Writer;

on_each_database!(
    a_writer_inside_finishes_before_the_migration_begins,
    a_writer_outside_waits_for_the_migration_and_is_refused,
    an_old_server_under_load_loses_nothing_when_a_new_one_migrates,
);

/// Starts the new server without blocking the test.
fn starting(plant: &Arc<Plant>) -> JoinHandle<Server> {
    let plant = Arc::clone(plant);
    spawn_blocking(move || plant.new_server(Shape::Column))
}

fn pushing(
    mut client: SyncClient<HttpTransport>,
    id: &str,
) -> JoinHandle<(SyncClient<HttpTransport>, Result<(), ClientError>)> {
    client.edit([note(id, "pushed")]).unwrap();
    tokio::spawn(async move {
        let done = client.sync().await.map(|_| ());
        (client, done)
    })
}

fn assert_refused(done: &Result<(), ClientError>) {
    let error = done.as_ref().unwrap_err();
    assert_eq!(error.code(), Some("sync.schema_not_ready"), "{error}");
    assert!(error.retryable());
}

const MARKER: &str = "SELECT schema_version FROM sync_schema_meta";

async fn a_writer_inside_finishes_before_the_migration_begins(on: Backend) {
    let plant = Arc::new(Plant::seeded(on).await);
    let (old, hold) = plant.old_held("store.batch.before_commit");
    let ada = device(&old.url, "ada", 1);
    let inside = pushing(ada, "n-inside");
    hold.reached().await;
    let new = starting(&plant);
    match on {
        // The push holds the file's write lock, or there would be no transaction to finish.
        Backend::Sqlite => {
            let locked = rusqlite::Connection::open(plant.site.path("tidegate.db")).unwrap();
            locked.busy_timeout(std::time::Duration::ZERO).unwrap();
            assert!(locked.execute_batch("BEGIN IMMEDIATE").is_err());
            assert!(!new.is_finished());
            assert_eq!(plant.sql.value(MARKER).await, "1");
        }
        // Held before it has sent anything: it is outside, and the lock decides.
        Backend::Postgres => {}
    }
    hold.release();
    let (ada, done) = inside.await.unwrap();
    let new = new.await.unwrap();
    let logged = plant
        .sql
        .value("SELECT count(*) FROM sync_commits WHERE client_id='ada'")
        .await;
    match done {
        Ok(()) => assert_eq!(logged, "1"),
        refused => {
            assert_eq!(on, Backend::Postgres, "it was inside");
            assert_refused(&refused);
            assert_eq!(logged, "0");
        }
    }
    let (_, late) = pushing(ada, "n-late").await.unwrap();
    assert_refused(&late);
    plant.activated().await;
    drop(new);
    check(&plant, Shape::Column, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_the_table_lock_orders_writers_and_the_migration() {
    let waiting = |mode: &str| {
        format!(
            "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid=l.database
             WHERE d.datname=current_database() AND NOT l.granted
             AND l.relation='sync_partitions'::regclass AND l.mode='{mode}'"
        )
    };
    let plant = Arc::new(Plant::seeded(Backend::Postgres).await);
    let old = plant.old(&[]);
    let mut ada = device(&old.url, "ada", 1);
    ada.sync().await.unwrap();
    // Inside: another program in the middle of a commit.
    let inside = Session::open(plant.site.url()).await;
    inside
        .run(&format!(
            "BEGIN; UPDATE sync_partitions SET max_commit_seq=max_commit_seq+1 WHERE partition='{SHOP}';
             INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms)
             SELECT '{SHOP}', max_commit_seq, 'raw', 'inside', 'raw', 0 FROM sync_partitions WHERE partition='{SHOP}'"
        ))
        .await
        .unwrap();
    let new = starting(&plant);
    plant.sql.until(&waiting("ExclusiveLock"), "1").await;
    // Outside: it queues behind the migration.
    let outside = pushing(ada, "n-outside");
    plant.sql.until(&waiting("RowExclusiveLock"), "1").await;
    assert!(!new.is_finished() && !outside.is_finished());
    assert_eq!(plant.sql.value(MARKER).await, "1");
    inside.run("COMMIT").await.unwrap();
    let (_, done) = outside.await.unwrap();
    assert_refused(&done);
    let _new = new.await.unwrap();
    plant.activated().await;
    let logged = "SELECT count(*) FROM sync_commits WHERE client_commit_id='inside'";
    assert_eq!(plant.sql.value(logged).await, "1");
    let logged = "SELECT count(*) FROM sync_commits WHERE client_id='ada'";
    assert_eq!(plant.sql.value(logged).await, "0");
}

async fn a_writer_outside_waits_for_the_migration_and_is_refused(on: Backend) {
    let plant = Arc::new(Plant::seeded(on).await);
    let old = plant.old(&[]);
    let mut ada = device(&old.url, "ada", 1);
    ada.sync().await.unwrap();
    let mut witness = reader(&old.url, "witness", 1, "notes");
    witness.sync().await.unwrap();
    let held = Arc::clone(&plant);
    let hold = Arc::new(tempfile::tempdir().unwrap());
    let folder = Arc::clone(&hold);
    let new = spawn_blocking(move || {
        held.new_held_in(Shape::Column, "migrate.before_commit", folder.path())
    });
    crate::plant::reached(hold.path()).await;
    let outside = pushing(ada, "n-outside");
    // Readers of what the migration does not touch are served meanwhile, as before it.
    for _ in 0..3 {
        if on == Backend::Sqlite {
            witness.sync().await.unwrap();
        }
        assert!(!outside.is_finished());
        assert_eq!(plant.sql.value(MARKER).await, "1");
    }
    std::fs::write(hold.path().join("go"), "").unwrap();
    let (_, done) = outside.await.unwrap();
    assert_refused(&done);
    let _new = new.await.unwrap();
    assert_eq!(plant.sql.value(MARKER).await, "2");
    plant.activated().await;
    let logged = "SELECT count(*) FROM sync_commits WHERE client_id='ada'";
    assert_eq!(plant.sql.value(logged).await, "0");
    let fence = format!(
        "SELECT count(*) FROM sync_backfill_checkpoints WHERE name='{NAME}' AND partition='{SHOP}'"
    );
    assert_eq!(plant.sql.value(&fence).await, "1");
}

async fn an_old_server_under_load_loses_nothing_when_a_new_one_migrates(on: Backend) {
    let plant = Arc::new(Plant::seeded(on).await);
    let old = plant.old(&[]);
    let writers = ["ada", "bob", "cem", "dea"].map(|name| Writer::start(&old.url, name, 1));
    for writer in &writers {
        writer.more(5).await;
    }
    let new = starting(&plant).await.unwrap();
    // Nobody hears anything but `sync.schema_not_ready`, or the writer panics.
    for writer in &writers {
        writer.refused().await;
        writer.move_to(&new.url);
    }
    for writer in &writers {
        writer.more(5).await;
    }
    plant.activated().await;
    let mut diaries = Vec::new();
    for writer in writers {
        diaries.push(writer.stop().await);
    }
    drop(old);
    check(&plant, Shape::Column, &diaries).await;
}

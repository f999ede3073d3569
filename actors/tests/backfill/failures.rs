//! What stops a backfill, and what only makes it wait.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_actors::backfill::{BackfillError, BackfillSettings, CheckpointKey, WorkerPhase};
use tidegate_engine::backfill::checkpoint::CheckpointState;

use crate::fragile::{Fragile, Way};
use crate::steps::Script;
use crate::world::*;

async fn a_failing_projection(way: Way, reason: &str) {
    let world = World::new(100, &[COLUMN]).await;
    let fragile = Fragile::new(projection(COLUMN), "r0050", way);
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let process = world.process(vec![fragile.clone()], settings).await;
    let status = process
        .until(COLUMN, |status| status.phase == WorkerPhase::Failed)
        .await;
    assert_eq!(status.last_error.as_deref(), Some(reason));
    // Whole pages before it are there, it is still claimable, and nobody tries in a loop.
    assert_eq!(status.checkpoint.state, CheckpointState::Backfilling);
    assert_eq!(status.checkpoint.observed_rows, 48);
    assert!(!status.owned_here);
    process.put("r0001", " Served All The Same ").await;
    assert_eq!(script.count("backfill.claim.before"), 1);

    fragile.mended.store(true, Ordering::SeqCst);
    let status = process.backfills.start_workers(key(COLUMN)).await.unwrap();
    assert_eq!(status.last_error, None);
    let status = process.activated(COLUMN).await;
    assert_eq!(status.last_error, None);
    assert_eq!(status.checkpoint.observed_rows, 100);
    assert_column_is_right(&*process.store).await;
    process.die().await;
}

#[actix::test]
async fn a_row_that_cannot_be_computed_stops_the_backfill_visibly_until_it_is_started_again() {
    a_failing_projection(
        Way::Error,
        "todos row r0050, title_key: arithmetic overflows",
    )
    .await;
}

#[actix::test]
async fn a_projection_that_panics_stops_like_one_that_fails_and_names_the_row() {
    a_failing_projection(Way::Panic, "todos row r0050: the transform failed").await;
}

#[actix::test]
async fn the_reason_outlives_the_process_and_a_new_program_tries_again() {
    let world = World::new(60, &[COLUMN]).await;
    let fragile = Fragile::new(projection(COLUMN), "r0050", Way::Error);
    let process = world.process(vec![fragile], quick()).await;
    process
        .until(COLUMN, |status| status.phase == WorkerPhase::Failed)
        .await;
    process.die().await;
    // One without the projection still shows it.
    let store = world.open().await;
    store
        .ensure_schema(new_schema(), &[declaration(COLUMN)], 3)
        .await
        .unwrap();
    let process = Process::start(store, vec![], quick());
    let status = process.status(COLUMN).await;
    assert!(status.last_error.unwrap().contains("r0050"));
    assert!(!status.projection_loaded);
    let refused = process.backfills.start_workers(key(COLUMN)).await;
    assert!(matches!(refused, Err(BackfillError::ProjectionNotLoaded)));
    process.die().await;
    let process = world.process(vec![projection(COLUMN)], quick()).await;
    let status = process.activated(COLUMN).await;
    assert_eq!(status.last_error, None);
    process.die().await;
}

#[actix::test]
async fn a_backfill_waits_for_storage_visibly_and_goes_on_by_itself() {
    let world = World::new(100, &[COLUMN]).await;
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let store = world.open_with_timeout(Duration::from_millis(5));
    store
        .ensure_schema(new_schema(), &[declaration(COLUMN)], 3)
        .await
        .unwrap();
    let process = Process::start(store, vec![projection(COLUMN)], settings);
    // Another program holds the only write lock from a page on.
    let (locked, lock) = tokio::sync::oneshot::channel();
    let path = world.path();
    script.at("backfill.page.before_commit", move || async move {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        locked.send(connection).ok().unwrap();
    });
    let connection = lock.await.unwrap();
    let status = process
        .until(COLUMN, |status| status.last_error.is_some())
        .await;
    assert_eq!(status.phase, WorkerPhase::Scanning);
    assert_eq!(status.checkpoint.observed_rows, 0);
    connection.execute_batch("ROLLBACK").unwrap();
    let status = process.activated(COLUMN).await;
    assert_eq!(status.last_error, None);
    assert_eq!(
        status.checkpoint.owner_epoch.0, 1,
        "one run lived through it"
    );
    let todos = assert_column_is_right(&*process.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    process.die().await;
}

#[actix::test]
async fn a_worker_that_crashes_is_started_again_under_a_new_claim() {
    let world = World::new(100, &[COLUMN]).await;
    let script = Script::new();
    for step in ["backfill.page.after_commit", "backfill.activate.before"] {
        script.at(step, || async { panic!("scripted") });
    }
    let settings = BackfillSettings {
        steps: script.clone(),
        workers: 2,
        ..quick()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    let status = process.activated(COLUMN).await;
    assert_eq!(status.checkpoint.owner_epoch.0, 3);
    assert_eq!(status.checkpoint.observed_rows, 100);
    let todos = assert_column_is_right(&*process.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    process.die().await;
}

#[actix::test]
async fn what_is_not_declared_is_refused() {
    let world = World::new(1, &[COLUMN]).await;
    let process = world.process(vec![projection(COLUMN)], quick()).await;
    process.activated(COLUMN).await;
    let absent = CheckpointKey {
        partition: partition(),
        name: "absent".into(),
    };
    let refused = process.backfills.pause(absent.clone()).await;
    assert!(matches!(refused, Err(BackfillError::NotDeclared)));
    let refused = process.backfills.activate(absent).await;
    assert!(matches!(refused, Err(BackfillError::FenceMissing)));
    // Activated is final.
    let refused = process.backfills.force_claim(key(COLUMN)).await;
    assert!(matches!(refused, Err(BackfillError::NotDeclared)));
    process.die().await;
}

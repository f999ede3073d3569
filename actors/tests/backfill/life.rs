//! A backfill's whole life beside live pushes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_actors::backfill::{BackfillSettings, WorkerPhase};
use tidegate_engine::backfill::checkpoint::CheckpointState;
use tidegate_store::ChangedRowsQuery;

use crate::steps::Script;
use crate::world::*;

#[actix::test]
async fn old_rows_of_a_computed_column_are_filled_once_and_activated() {
    let world = World::new(100, &[COLUMN]).await;
    let process = world.process(vec![projection(COLUMN)], quick()).await;
    let status = process.activated(COLUMN).await;
    let todos = assert_column_is_right(&*process.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    assert_eq!(status.checkpoint.observed_rows, 100);
    assert_eq!(status.checkpoint.state, CheckpointState::Activated);
    // One commit per page: 100 rows in pages of 16.
    assert_eq!(max(&*process.store).await, 1 + 7);
    assert_eq!(
        process.heard.0.lock().len(),
        7,
        "the observer hears of pages"
    );
    assert_eq!(status.checkpoint.owner_epoch.0, 1);
    process.die().await;
}

#[actix::test]
async fn a_computed_table_gets_a_row_per_source_row_that_is_not_left_out() {
    let world = World::new(100, &[TABLE]).await;
    let process = world.process(vec![projection(TABLE)], quick()).await;
    process.activated(TABLE).await;
    let cards = assert_table_is_right(&*process.store).await;
    assert!(cards.values().all(|(version, _)| *version == 1));
    assert!(!cards.is_empty() && cards.len() < 100);
    process.die().await;
}

#[actix::test]
async fn no_more_checkpoints_are_claimed_than_may_be_worked_on_at_once() {
    let world = World::new(100, &[COLUMN, TABLE]).await;
    let settings = BackfillSettings {
        pace: frozen(),
        runs: 1,
        ..quick()
    };
    let process = world.process(both(), settings).await;
    process
        .until(TABLE, |status| status.checkpoint.observed_rows > 0)
        .await;
    let other = process.status(COLUMN).await;
    assert_eq!(other.checkpoint.state, CheckpointState::Declared);
    process
        .backfills
        .set_pace(key(TABLE), fast())
        .await
        .unwrap();
    process
        .backfills
        .set_pace(key(COLUMN), fast())
        .await
        .unwrap();
    process.activated(TABLE).await;
    process.activated(COLUMN).await;
    process.die().await;
}

#[actix::test]
async fn an_empty_partition_activates() {
    let world = World::new(0, &[COLUMN, TABLE]).await;
    let process = world.process(both(), quick()).await;
    process.activated(COLUMN).await;
    process.activated(TABLE).await;
    assert_eq!(max(&*process.store).await, 0);
    process.die().await;
}

#[actix::test]
async fn both_kinds_activate_under_pushes_that_never_stop_and_every_row_is_right() {
    under_pushes(Home::sqlite()).await;
}

pub async fn under_pushes(home: Home) {
    let world = World::new_in(home, 300, &[COLUMN, TABLE]).await;
    let settings = BackfillSettings {
        workers: 3,
        ..quick()
    };
    let process = world.process(both(), settings).await;
    let stop = Arc::new(AtomicBool::new(false));
    let pushed = Arc::new(AtomicUsize::new(0));
    let mut pushers = Vec::new();
    for pusher in 0..3_usize {
        let (directory, stop, pushed) = (process.directory.clone(), stop.clone(), pushed.clone());
        pushers.push(tokio::spawn(async move {
            let mut turn = 0_usize;
            while !stop.load(Ordering::SeqCst) {
                let at = (turn * 37 + pusher * 101) % 330;
                let row = format!("r{at:04}");
                if turn % 11 == 10 {
                    delete_if_there(&directory, &row).await;
                } else {
                    put(&directory, &row, &format!(" By {pusher} Turn {turn}")).await;
                }
                pushed.fetch_add(1, Ordering::SeqCst);
                turn += 1;
            }
        }));
    }
    process.activated(COLUMN).await;
    process.activated(TABLE).await;
    // Pages did not starve the pushes.
    assert!(pushed.load(Ordering::SeqCst) > 0);
    stop.store(true, Ordering::SeqCst);
    for pusher in pushers {
        pusher.await.unwrap();
    }
    // What nobody wrote since an activation is as the projection gives it.
    let todos = rows(&*process.store, "todos").await;
    let cards = rows(&*process.store, "cards").await;
    let since = written_since(&process, COLUMN).await;
    let untouched = todos.iter().filter(|(id, _)| !since.contains(*id));
    for (id, (_, values)) in untouched {
        assert_eq!(values[3], column_of(values), "{id}");
    }
    let since = written_since(&process, TABLE).await;
    let ids = (0..330).map(|at| format!("r{at:04}"));
    for id in ids.filter(|id| !since.contains(id)) {
        let label = cards
            .get(&format!("card:{id}"))
            .map(|(_, values)| &values[2]);
        let expected = todos.get(&id).map(|(_, values)| &values[2]);
        assert_eq!(label, expected.filter(|title| !is_left_out(title)), "{id}");
    }
    process.die().await;
}

/// Source rows written above the watermark of an activated checkpoint.
async fn written_since(process: &Process, name: &str) -> BTreeSet<String> {
    let watermark = process.checkpoint(name).await.watermark;
    let mut snapshot = process.store.snapshot(&partition()).await.unwrap();
    let through = snapshot.bounds().max;
    let changed = snapshot
        .read_changed_rows(ChangedRowsQuery {
            tables: vec![new_schema().table("todos").unwrap().id],
            after: watermark,
            through,
            max_changes: 1_000_000,
        })
        .await
        .unwrap();
    assert_eq!(changed.scanned_through, through);
    let keys = changed.changes.into_iter();
    keys.map(|(_, key)| key.row_id.to_string()).collect()
}

async fn delete_if_there(directory: &tidegate_actors::Directory, row: &str) {
    put(directory, row, "About to go").await;
    delete(directory, row).await;
}

/// Clients write at every step: before a page is written, after it, and after the scan;
/// changed, new, deleted, and left out from now on.
async fn written_at_every_step(name: &str) -> (World, Process) {
    let world = World::new(200, &[name]).await;
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let process = world.process(vec![projection(name)], settings).await;
    for (step, from) in [
        ("backfill.page.before_commit", 0),
        ("backfill.page.after_commit", 20),
        ("backfill.scan.before_done", 40),
        ("backfill.scan.after_done", 60),
        ("backfill.activate.before", 100),
    ] {
        let directory = process.directory.clone();
        script.at(step, move || async move {
            put(&directory, &format!("r{from:04}"), " Changed ").await;
            put(&directory, &format!("r{:04}", from + 1), "# left out").await;
            put(&directory, &format!("n{from}"), " New ").await;
            delete(&directory, &format!("r{:04}", from + 2)).await;
        });
    }
    process.activated(name).await;
    (world, process)
}

#[actix::test]
async fn columns_of_rows_written_during_the_backfill_are_right_at_its_activation() {
    let (_world, process) = written_at_every_step(COLUMN).await;
    let todos = assert_column_is_right(&*process.store).await;
    assert_eq!(todos.len(), 200);
    process.die().await;
}

#[actix::test]
async fn rows_of_a_table_written_during_the_backfill_are_right_at_its_activation() {
    let (_world, process) = written_at_every_step(TABLE).await;
    let cards = assert_table_is_right(&*process.store).await;
    assert!(cards.contains_key("card:n100") && !cards.contains_key("card:r0002"));
    process.die().await;
}

#[actix::test]
async fn a_paused_backfill_rests_in_every_process_until_it_is_resumed() {
    let world = World::new(100, &[COLUMN, TABLE]).await;
    let settings = BackfillSettings {
        pace: frozen(),
        ..quick()
    };
    let process = world.process(both(), settings).await;
    process
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    let paused = process.backfills.pause(key(COLUMN)).await.unwrap();
    assert!(paused.checkpoint.state.is_incomplete());
    let paused = process
        .until(COLUMN, |status| status.phase == WorkerPhase::Paused)
        .await;
    assert_eq!(paused.checkpoint.observed_rows, 16);
    process.die().await;

    // The next process takes the other one up, and leaves this one.
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let process = world.process(both(), settings).await;
    process.activated(TABLE).await;
    let status = process.status(COLUMN).await;
    assert_eq!(status.phase, WorkerPhase::Paused);
    assert_eq!(status.checkpoint.owner_epoch.0, 1);
    assert_eq!(script.count("backfill.claim.before"), 1);
    process.backfills.resume(key(COLUMN)).await.unwrap();
    let status = process.activated(COLUMN).await;
    assert_eq!(status.checkpoint.observed_rows, 100);
    assert_column_is_right(&*process.store).await;
    process.die().await;
}

#[actix::test]
async fn workers_and_pace_are_set_while_it_runs_and_every_row_is_seen_once() {
    let world = World::new(400, &[COLUMN]).await;
    let settings = BackfillSettings {
        pace: frozen(),
        ..quick()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    process
        .until(COLUMN, |status| status.workers_running == 1)
        .await;
    let status = process.backfills.set_workers(key(COLUMN), 4).await.unwrap();
    assert_eq!(status.workers_wanted, 4);
    process
        .until(COLUMN, |status| status.workers_running == 4)
        .await;
    process.backfills.set_workers(key(COLUMN), 2).await.unwrap();
    let status = process
        .until(COLUMN, |status| status.workers_running == 2)
        .await;
    assert_eq!(status.phase, WorkerPhase::Scanning);
    assert!(status.owned_here);
    let progress = status.progress.unwrap();
    assert_eq!(progress.rows_total, 400);
    process
        .backfills
        .set_pace(key(COLUMN), fast())
        .await
        .unwrap();
    let status = process.activated(COLUMN).await;
    assert_eq!(status.checkpoint.observed_rows, 400);
    let todos = assert_column_is_right(&*process.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    process.die().await;
}

#[actix::test]
async fn an_aborted_backfill_stays_claimable_and_starts_again_when_told() {
    let world = World::new(100, &[COLUMN]).await;
    let settings = BackfillSettings {
        pace: frozen(),
        ..quick()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    process
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    let status = process.backfills.abort(key(COLUMN)).await.unwrap();
    assert_eq!(status.phase, WorkerPhase::Idle);
    assert!(!status.owned_here);
    process
        .backfills
        .set_pace(key(COLUMN), fast())
        .await
        .unwrap();
    assert_eq!(process.status(COLUMN).await.phase, WorkerPhase::Idle);
    process.backfills.start_workers(key(COLUMN)).await.unwrap();
    process.activated(COLUMN).await;
    assert_column_is_right(&*process.store).await;
    process.die().await;
}

#[actix::test]
async fn stopping_lets_the_page_in_flight_finish_and_claims_no_more() {
    let world = World::new(100, &[COLUMN]).await;
    let settings = BackfillSettings {
        pace: frozen(),
        ..quick()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    process
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    process.backfills.stop(Duration::from_secs(10)).await;
    let refused = process.backfills.list(None).await;
    assert!(refused.is_err());
    assert_eq!(process.checkpoint(COLUMN).await.observed_rows, 16);
    process.directory.shutdown(Duration::from_secs(5)).await;
}

#[actix::test]
async fn declaring_at_run_time_needs_the_projection_and_serves_on() {
    use tidegate_actors::backfill::BackfillError;
    let world = World::new(50, &[]).await;
    let process = world.process(vec![], quick()).await;
    let refused = process.backfills.declare(partition(), COLUMN.into()).await;
    assert!(matches!(refused, Err(BackfillError::ProjectionNotLoaded)));
    process.die().await;

    let store = world.open().await;
    store.ensure_schema(new_schema(), &[], 3).await.unwrap();
    let process = Process::start(store, both(), quick());
    let declared = process
        .backfills
        .declare(partition(), COLUMN.into())
        .await
        .unwrap();
    assert!(declared.projection_loaded);
    process.put("r0001", " Pushed at once ").await;
    process.activated(COLUMN).await;
    assert_column_is_right(&*process.store).await;
    assert_eq!(
        process
            .store
            .read_fence(&partition())
            .await
            .unwrap()
            .unwrap()
            .0,
        2
    );
    process.die().await;
}

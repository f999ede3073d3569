//! A process that dies at any step leaves nothing that the next one does not finish: the
//! same rows, the same versions, the same number of commits as a run that never died.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_actors::Directory;
use tidegate_actors::backfill::{BackfillSettings, STEPS};

use crate::steps::Script;
use crate::world::*;

/// What a backfill left behind.
#[derive(Debug, PartialEq)]
struct Left {
    todos: Rows,
    cards: Rows,
    commits: i64,
    observed: i64,
}

/// Clients write once, after the scan: the run has to follow the log.
fn write_meanwhile(script: &Arc<Script>, directory: &Directory, written: &Arc<AtomicBool>) {
    let (directory, written) = (directory.clone(), Arc::clone(written));
    script.at("backfill.scan.after_done", move || async move {
        if written.swap(true, Ordering::SeqCst) {
            return;
        }
        for at in 0..40 {
            put(&directory, &format!("r{at:04}"), " Written Meanwhile ").await;
        }
        delete(&directory, "r0041").await;
    });
}

async fn run(
    home: Home,
    name: &str,
    writes: bool,
    death: Option<(&'static str, usize)>,
) -> (Left, bool) {
    let world = World::new_in(home, 90, &[name]).await;
    let written = Arc::new(AtomicBool::new(!writes));
    let mut died = false;
    if death.is_some() {
        let script = Script::dying(death);
        let settings = BackfillSettings {
            steps: script.clone(),
            ..quick()
        };
        let process = world.process(vec![projection(name)], settings).await;
        write_meanwhile(&script, &process.directory, &written);
        died = tokio::select! {
            () = script.died() => true,
            _ = process.activated(name) => false,
        };
        process.die().await;
    }
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let process = world.process(vec![projection(name)], settings).await;
    write_meanwhile(&script, &process.directory, &written);
    let status = process.activated(name).await;
    let store = &*process.store;
    if name == COLUMN {
        assert_column_is_right(store).await;
    } else {
        assert_table_is_right(store).await;
    }
    let left = Left {
        todos: rows(store, "todos").await,
        cards: rows(store, "cards").await,
        commits: max(store).await,
        observed: status.checkpoint.observed_rows,
    };
    process.die().await;
    (left, died)
}

/// Steps that a run with nothing left to compute after its scan alone comes to.
const WITHOUT_CHANGES: [&str; 2] = [
    "backfill.catch_up.before_advance",
    "backfill.catch_up.after_advance",
];

pub async fn every_death_ends_alike(
    home: impl Fn() -> Home,
    name: &str,
    writes: bool,
    steps: &[&'static str],
    times: &[usize],
) {
    let (undisturbed, _) = run(home(), name, writes, None).await;
    assert_eq!(undisturbed.observed, 90);
    for step in steps {
        let mut deaths = 0;
        for time in times.iter().copied() {
            let (left, died) = run(home(), name, writes, Some((step, time))).await;
            assert_eq!(left, undisturbed, "dead at {step} for time {time}");
            deaths += usize::from(died);
        }
        assert!(deaths > 0, "{step} is never reached");
    }
}

pub fn with_changes() -> Vec<&'static str> {
    let mut steps = STEPS.to_vec();
    steps.retain(|step| !WITHOUT_CHANGES.contains(step));
    steps
}

#[actix::test]
async fn a_death_at_any_step_of_a_computed_column_changes_nothing_in_the_end() {
    every_death_ends_alike(Home::sqlite, COLUMN, true, &with_changes(), &[1, 2, 5]).await;
}

#[actix::test]
async fn a_death_at_any_step_of_a_computed_table_changes_nothing_in_the_end() {
    every_death_ends_alike(Home::sqlite, TABLE, true, &with_changes(), &[1, 2, 5]).await;
}

#[actix::test]
async fn a_death_with_nothing_left_to_compute_changes_nothing_in_the_end() {
    every_death_ends_alike(Home::sqlite, TABLE, false, &WITHOUT_CHANGES, &[1, 2, 5]).await;
}

#[actix::test]
async fn several_workers_that_die_leave_no_gap() {
    let world = World::new(300, &[COLUMN]).await;
    for time in 1..6 {
        let script = Script::dying(Some(("backfill.page.after_commit", time)));
        let settings = BackfillSettings {
            steps: script.clone(),
            workers: 4,
            ..quick()
        };
        let process = world.process(vec![projection(COLUMN)], settings).await;
        script.died().await;
        process.die().await;
    }
    let settings = BackfillSettings {
        workers: 4,
        ..quick()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    let status = process.activated(COLUMN).await;
    let todos = assert_column_is_right(&*process.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    assert_eq!(status.checkpoint.observed_rows, 300);
    process.die().await;
}

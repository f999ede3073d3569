//! Processes that really die: they migrate, backfill and abort at a failpoint; the next one
//! finishes, and nothing tells its database from one of a process that never died.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate_actors::backfill::{BackfillParts, Backfills, STEPS};
use tidegate_actors::{
    Coordinator, CoordinatorParts, CoordinatorSettings, NoObserver, NoWatch, SystemClock,
};

use crate::world::*;

const DATABASE: &str = "TIDEGATE_TEST_BACKFILL_DATABASE";
const CHILD: &str = "kills::a_process_that_migrates_and_backfills";

/// The steps outside of the backfill's own at which a process dies here.
const OTHER_STEPS: [&str; 5] = [
    "coordinator.before_barrier",
    "coordinator.barrier_held",
    "coordinator.after_ensure",
    "partition.page.before_store",
    "partition.page.after_store",
];

/// Not a test: what the tests below run in processes of their own.
#[actix::test]
#[ignore = "is run by other tests, in a process of its own"]
async fn a_process_that_migrates_and_backfills() {
    let Ok(path) = std::env::var(DATABASE) else {
        return;
    };
    let schema = new_schema();
    let store = open_file(Path::new(&path), Duration::from_secs(5));
    let directory = directory_on(&store, &schema, Arc::new(NoObserver));
    let coordinator = Coordinator::start(
        CoordinatorParts {
            directory: directory.clone(),
            store: Arc::clone(&store),
            schema: Arc::clone(&schema),
            declarations: vec![declaration(COLUMN), declaration(TABLE)],
            projections: both(),
            clock: Arc::new(SystemClock),
            watch: Arc::new(NoWatch),
        },
        CoordinatorSettings::default(),
    );
    coordinator.ensure().await.unwrap();
    let backfills = Backfills::start(
        BackfillParts {
            directory: directory.clone(),
            store: Arc::clone(&store),
            schema,
            projections: both(),
            clock: Arc::new(SystemClock),
        },
        quick(),
    );
    let process = Process {
        store,
        directory,
        backfills,
        heard: Arc::default(),
    };
    process.activated(COLUMN).await;
    process.activated(TABLE).await;
    process.die().await;
}

fn run(path: &Path, failpoint: Option<&str>) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", CHILD, "--ignored"])
        .env(DATABASE, path)
        .env_remove("FAILPOINT_OF_TIDEGATE")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Some(failpoint) = failpoint {
        command.env("FAILPOINT_OF_TIDEGATE", failpoint);
    }
    command.status().unwrap()
}

async fn old() -> (World, PathBuf) {
    let world = World::old(Home::sqlite(), 60).await;
    let path = world.path();
    (world, path)
}

/// Rows and commits of a database that is finished.
async fn finished(world: &World) -> (Rows, Rows, i64) {
    let store = world.store(&[]).await;
    assert_column_is_right(&*store).await;
    assert_table_is_right(&*store).await;
    let todos = rows(&*store, "todos").await;
    let cards = rows(&*store, "cards").await;
    let left = (todos, cards, max(&*store).await);
    store.close().await;
    left
}

#[actix::test]
async fn a_process_killed_at_any_step_of_a_migration_and_a_backfill_changes_nothing_in_the_end() {
    let (world, path) = old().await;
    assert!(run(&path, None).success());
    let undisturbed = finished(&world).await;
    // Here there is always a page to commit after the scan, which moves the watermark itself.
    let with_page = |step: &&&str| !step.starts_with("backfill.catch_up.");
    let steps = STEPS.iter().filter(with_page).chain(&OTHER_STEPS);
    for step in steps {
        let mut kills = 0;
        for time in [1, 4] {
            let (world, path) = old().await;
            let status = run(&path, Some(&format!("{step}:{time}")));
            // 6 = aborted.
            let killed = status.signal() == Some(6);
            assert!(killed || status.success(), "{step}: {status}");
            kills += usize::from(killed);
            assert!(run(&path, None).success(), "{step}");
            let left = finished(&world).await;
            assert_eq!(left, undisturbed, "killed at {step} for time {time}");
        }
        assert!(kills > 0, "{step} is never reached");
    }
}

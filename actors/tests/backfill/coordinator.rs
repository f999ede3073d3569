//! The migration coordinator: one migrates, everybody else waits and finds it done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_actors::{
    Coordinator, CoordinatorParts, CoordinatorSettings, MigrationPhase, MigrationWatch, NoObserver,
    NoWatch, SystemClock,
};
use tidegate_engine::SchemaVersion;
use tidegate_engine::schema::Schema;
use tidegate_store::{Declaration, Partitions, SchemaOutcome, Store, StoreError};

use crate::steps::Script;
use crate::world::*;

fn parts(store: &Arc<dyn Store>, schema: &Arc<Schema>) -> CoordinatorParts {
    CoordinatorParts {
        directory: directory_on(store, schema, Arc::new(NoObserver)),
        store: Arc::clone(store),
        schema: Arc::clone(schema),
        declarations: Vec::new(),
        projections: Vec::new(),
        clock: Arc::new(SystemClock),
        watch: Arc::new(NoWatch),
    }
}

fn settings() -> CoordinatorSettings {
    CoordinatorSettings {
        poll: Duration::from_millis(5),
        ..CoordinatorSettings::default()
    }
}

/// A database at version 1 with rows.
async fn old() -> World {
    World::old(Home::sqlite(), 200).await
}

fn declared() -> Vec<Declaration> {
    vec![Declaration {
        partitions: Partitions::Every,
        ..declaration(COLUMN)
    }]
}

/// A start that fails right after it: the failure is told, and no panic besides.
#[test]
fn a_coordinator_that_ends_before_it_began_ends_quietly() {
    // The runtime catches what a task panics with, so only the hook sees it.
    let (panics, here) = (Arc::new(AtomicUsize::new(0)), std::thread::current().id());
    let (seen, before) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() == here {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        before(panic);
    }));
    let system = actix::System::new();
    let world = system.block_on(async {
        let world = old().await;
        let store = world.open().await;
        let schema = new_schema();
        let _coordinator = Coordinator::start(parts(&store, &schema), settings());
        world
    });
    drop(system);
    drop(world);
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[actix::test]
async fn of_two_coordinators_that_race_one_migrates_and_the_other_finds_it_done() {
    two_coordinators(Home::sqlite()).await;
}

pub async fn two_coordinators(home: Home) {
    let world = World::old(home, 200).await;
    let coordinators = [world.open().await, world.open().await].map(|store| {
        Coordinator::start(
            CoordinatorParts {
                declarations: declared(),
                projections: vec![projection(COLUMN)],
                ..parts(&store, &new_schema())
            },
            settings(),
        )
    });
    let outcomes = tokio::join!(coordinators[0].ensure(), coordinators[1].ensure());
    let outcomes = [outcomes.0.unwrap(), outcomes.1.unwrap()];
    let migrated = SchemaOutcome::Migrated {
        from: Some(SchemaVersion(1)),
    };
    assert!(outcomes.contains(&migrated), "{outcomes:?}");
    assert!(outcomes.contains(&SchemaOutcome::Verified), "{outcomes:?}");
    for coordinator in &coordinators {
        let status = coordinator.status();
        assert_eq!(status.phase, MigrationPhase::Ready);
        assert_eq!(status.stored, Some(SchemaVersion(2)));
    }
}

#[actix::test]
async fn callers_share_a_run_and_its_success_is_remembered() {
    let world = old().await;
    let store = world.open().await;
    let script = Script::new();
    let coordinator = Coordinator::start(
        parts(&store, &new_schema()),
        CoordinatorSettings {
            steps: script.clone(),
            ..settings()
        },
    );
    assert_eq!(coordinator.status().phase, MigrationPhase::SchemaCompile);
    let (one, other) = tokio::join!(coordinator.ensure(), coordinator.ensure());
    assert_eq!(one.unwrap(), other.unwrap());
    coordinator.ensure().await.unwrap();
    assert_eq!(script.count("coordinator.before_barrier"), 1);
}

#[actix::test]
async fn a_refused_migration_is_reported_and_tried_afresh() {
    let world = old().await;
    let store = world.open().await;
    let retyped = r#"{"schemaVersion": 2, "tables": [
        {"name": "todos", "primaryKey": "id", "scopes": ["list:{list}"], "columns": [
            {"name": "id", "type": "string"}, {"name": "list", "type": "string"},
            {"name": "title", "type": "integer"}]}]}"#;
    let retyped = Arc::new(Schema::load(retyped).unwrap());
    let script = Script::new();
    let coordinator = Coordinator::start(
        parts(&store, &retyped),
        CoordinatorSettings {
            steps: script.clone(),
            ..settings()
        },
    );
    for _ in 0..2 {
        let refused = coordinator.ensure().await;
        assert!(matches!(refused, Err(StoreError::RefusedMigration { .. })));
    }
    assert_eq!(script.count("coordinator.after_ensure"), 2);
    let status = coordinator.status();
    assert_eq!(status.phase, MigrationPhase::StorageMigration);
    assert!(status.last_error.unwrap().contains("todos"));
}

#[actix::test]
async fn an_undeclared_incomplete_checkpoint_is_its_own_phase() {
    let world = World::new(10, &[COLUMN]).await;
    let coordinator = Coordinator::start(parts(&world.open().await, &new_schema()), settings());
    let refused = coordinator.ensure().await;
    assert!(matches!(refused, Err(StoreError::CheckpointIncomplete(_))));
    assert_eq!(
        coordinator.status().phase,
        MigrationPhase::BackfillCheckpoint
    );
}

#[actix::test]
async fn pushes_wait_behind_the_barrier_and_go_on_after_it() {
    let world = World::new(10, &[]).await;
    let store = world.open().await;
    let script = Script::new();
    let parts = parts(&store, &new_schema());
    let directory = parts.directory.clone();
    let coordinator = Coordinator::start(
        parts,
        CoordinatorSettings {
            steps: script.clone(),
            ..settings()
        },
    );
    let (pushing, pushed) = tokio::sync::oneshot::channel();
    let through = directory.clone();
    script.at("coordinator.barrier_held", move || async move {
        let push = {
            let directory = through.clone();
            tokio::spawn(async move { put(&directory, "r0001", " Behind ").await })
        };
        let handle = through.partition(&partition());
        while handle.queued() == 0 {
            tokio::task::yield_now().await;
        }
        pushing.send(push).ok().unwrap();
    });
    coordinator.ensure().await.unwrap();
    pushed.await.unwrap().await.unwrap();
    let todos = rows(&*store, "todos").await;
    assert_eq!(
        todos["r0001"].1[2],
        ssp2::Value::Text(" Behind ".to_owned())
    );
}

#[actix::test]
async fn what_a_migration_declares_is_declared_here_before_anybody_is_served() {
    let world = old().await;
    let store = world.open().await;
    let parts = CoordinatorParts {
        declarations: declared(),
        projections: both(),
        ..parts(&store, &new_schema())
    };
    let directory = parts.directory.clone();
    let coordinator = Coordinator::start(parts, settings());
    coordinator.ensure().await.unwrap();
    let pair = |name: &str| (partition().to_string(), name.to_owned());
    assert_eq!(
        directory.declared().iter().collect::<Vec<_>>(),
        [&pair(COLUMN)]
    );
    // Another process declares one more; the watch notices.
    let wanted = tidegate_engine::backfill::checkpoint::Declare {
        partition: partition(),
        name: TABLE.into(),
        schema_version: SchemaVersion(2),
    };
    store.declare_checkpoint(&wanted, 9).await.unwrap();
    while !directory.declared().contains(&pair(TABLE)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[derive(Default)]
struct Overtaken(Mutex<Vec<SchemaVersion>>);

impl MigrationWatch for Overtaken {
    fn overtaken(&self, stored: SchemaVersion) {
        self.0.lock().push(stored);
    }
}

#[actix::test]
async fn a_process_that_is_migrated_past_tells_it_once() {
    let world = old().await;
    let watch = Arc::new(Overtaken::default());
    let store = world.open().await;
    let coordinator = Coordinator::start(
        CoordinatorParts {
            watch: watch.clone(),
            ..parts(&store, &old_schema())
        },
        settings(),
    );
    coordinator.ensure().await.unwrap();
    let newer = Coordinator::start(parts(&world.open().await, &new_schema()), settings());
    newer.ensure().await.unwrap();
    coordinator.look().await;
    coordinator.look().await;
    let status = coordinator.status();
    assert_eq!(status.phase, MigrationPhase::Newer);
    assert_eq!(status.stored, Some(SchemaVersion(2)));
    assert_eq!(*watch.0.lock(), [SchemaVersion(2)]);
}

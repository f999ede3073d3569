//! What operators ask for: partitions at a glance, grants, the dry run of a
//! migration, and how far a running one is.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tidegate_engine::model::{LogBounds, Registry, RowState};
use tidegate_engine::{ActorId, ClientId, CommitSeq, LogEpoch, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::operating::{
    Grant, MigrationObserver, MigrationPlan, MigrationStep, PartitionSummary, SampleQuery,
    SampledRow, TableFate,
};
use crate::{Declaration, Partitions, SchemaOutcome, Store, StoreError};

/// Keeps every step.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<MigrationStep>>);

impl Recorder {
    pub fn steps(&self) -> Vec<MigrationStep> {
        self.0.lock().clone()
    }
}

impl MigrationObserver for Recorder {
    fn step(&self, step: MigrationStep) {
        self.0.lock().push(step);
    }
}

fn every(name: &str, version: i32) -> Declaration {
    Declaration {
        partitions: Partitions::Every,
        name: name.to_owned(),
        schema_version: SchemaVersion(version),
    }
}

pub async fn partitions_are_summarized_page_by_page(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    // In byte order, whatever the database's locale: "B" < "a" < "ä".
    for (n, partition) in ["a", "B", "ä"].into_iter().enumerate() {
        let touch = touch(100 + n as i64, &format!("epoch {partition}"));
        store
            .read_preamble(&p(partition), &ClientId::from("d"), touch)
            .await
            .unwrap();
    }
    commit(&*store, &schema, "a", 0, &one_note()).await;
    let seen = async |after: Option<&str>, limit| -> Vec<String> {
        let after = after.map(p);
        let page = store.summarize_partitions(after.as_ref(), limit).await;
        page.unwrap().iter().map(|one| one.id.to_string()).collect()
    };
    assert_eq!(seen(None, 10).await, ["B", "a", "ä"]);
    assert_eq!(seen(Some("B\0"), 10).await, ["a", "ä"]);
    assert_eq!(seen(None, 2).await, ["B", "a"]);
    assert_eq!(seen(Some("a"), 2).await, ["ä"]);
    assert_eq!(seen(Some("ä"), 2).await, [""; 0]);
    let expected = PartitionSummary {
        id: p("a"),
        registry: Some(Registry {
            log_epoch: LogEpoch::from("epoch a"),
            epoch_required: false,
        }),
        last_authenticated_at_ms: Some(100),
        bounds: LogBounds {
            max: CommitSeq(1),
            horizon: CommitSeq(0),
        },
        fence: None,
    };
    assert_eq!(
        store.summarize_partition(&p("a")).await.unwrap(),
        Some(expected.clone())
    );
    assert_eq!(
        store.summarize_partitions(None, 10).await.unwrap()[1],
        expected
    );
    assert_eq!(store.summarize_partition(&p("none")).await.unwrap(), None);
}

pub async fn a_summary_shows_fences_and_partitions_of_other_programs(harness: &dyn Harness) {
    let store = ready(harness).await;
    harness
        .sql(
            "INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES('fenced', 3);
             INSERT INTO sync_partitions(partition, max_commit_seq, horizon_seq) VALUES('foreign', 9, 4);",
        )
        .await;
    let all = store.summarize_partitions(None, 10).await.unwrap();
    let outline: Vec<_> = all
        .iter()
        .map(|one| {
            (
                one.id.as_str(),
                one.bounds.max.0,
                one.bounds.horizon.0,
                one.fence,
            )
        })
        .collect();
    assert_eq!(
        outline,
        [
            ("fenced", 0, 0, Some(SchemaVersion(3))),
            ("foreign", 9, 4, None)
        ]
    );
    assert!(all.iter().all(|one| one.registry.is_none()));
    assert_eq!(
        store.summarize_partition(&p("fenced")).await.unwrap(),
        Some(all[0].clone())
    );
}

pub async fn a_grant_is_replaced_as_a_whole_and_deleted_once(harness: &dyn Harness) {
    let store = ready(harness).await;
    let actor = ActorId::from("ada \"a\"");
    assert_eq!(store.read_grant(&p("p"), &actor).await.unwrap(), None);
    let first = Grant {
        actor: actor.clone(),
        scopes: lists(&[("list_id", &["a", "ü\u{0}\"", "*"]), ("owner", &[])]),
        updated_at_ms: 5,
    };
    let second = Grant {
        scopes: lists(&[("ws", &["w"])]),
        updated_at_ms: 6,
        ..first.clone()
    };
    for grant in [&first, &second] {
        store.put_grant(&p("p"), grant).await.unwrap();
        assert_eq!(
            store.read_grant(&p("p"), &actor).await.unwrap().as_ref(),
            Some(grant)
        );
    }
    // Neither of another partition nor of another actor.
    assert_eq!(store.read_grant(&p("q"), &actor).await.unwrap(), None);
    let other = ActorId::from("ada");
    assert_eq!(store.read_grant(&p("p"), &other).await.unwrap(), None);
    assert!(!store.delete_grant(&p("q"), &actor).await.unwrap());
    assert!(store.delete_grant(&p("p"), &actor).await.unwrap());
    assert!(!store.delete_grant(&p("p"), &actor).await.unwrap());
    assert_eq!(store.read_grant(&p("p"), &actor).await.unwrap(), None);
}

pub async fn grants_survive_a_reopen_and_a_migration(harness: &dyn Harness) {
    let store = ready(harness).await;
    let grant = Grant {
        actor: ActorId::from("ada"),
        scopes: lists(&[("ws", &["w"])]),
        updated_at_ms: 5,
    };
    store.put_grant(&p("p"), &grant).await.unwrap();
    store.close().await;
    let store = harness.open().await;
    store
        .ensure_schema(compile(&document_v2()), &[], 1)
        .await
        .unwrap();
    assert_eq!(
        store.read_grant(&p("p"), &grant.actor).await.unwrap(),
        Some(grant)
    );
}

pub async fn the_published_version_is_known_before_the_schema_is_ensured(harness: &dyn Harness) {
    let store = harness.open().await;
    assert_eq!(store.published_version().await.unwrap(), None);
    store
        .ensure_schema(compile(&document()), &[], 1)
        .await
        .unwrap();
    let other = harness.open().await;
    assert_eq!(
        other.published_version().await.unwrap(),
        Some(SchemaVersion(1))
    );
    // Another process migrates past this one.
    other
        .ensure_schema(compile(&document_v2()), &[], 1)
        .await
        .unwrap();
    assert_eq!(
        store.published_version().await.unwrap(),
        Some(SchemaVersion(2))
    );
}

/// Two partitions of 700 notes each, a label's table to come, one table to go.
async fn filled(store: &dyn Store) {
    let old = compile(&document());
    for partition in ["p", "q"] {
        let rows = (0..700_i64).map(|n| put(NOTES, note(&format!("n{n:04}"), "l1", "o1", Some(n))));
        commit(store, &old, partition, 0, &[rows.collect()]).await;
    }
}

/// Version 2, which also retires `secrets` and gives `projects` an index.
fn wanted() -> serde_json::Value {
    let mut document = document_v2();
    document["tables"][1]["indexes"] =
        json!([{"name": "by_ws", "columns": ["ws", "id"], "unique": true}]);
    document["tables"].as_array_mut().unwrap().remove(3);
    document
}

pub async fn a_dry_run_tells_what_the_migration_then_does(harness: &dyn Harness) {
    let store = ready(harness).await;
    filled(&*store).await;
    let (schema, list) = (compile(&wanted()), [every("due", 2)]);
    let plan = store
        .plan_migration(Arc::clone(&schema), &list)
        .await
        .unwrap();
    assert_eq!(
        (plan.from, plan.to),
        (Some(SchemaVersion(1)), SchemaVersion(2))
    );
    let tables: Vec<_> = plan
        .tables
        .iter()
        .map(|table| (table.table.as_str(), table.change, table.rows_to_rewrite))
        .collect();
    assert_eq!(
        tables,
        [
            ("notes", TableFate::Appended, 1400),
            ("projects", TableFate::Reindexed, 0),
            ("tasks", TableFate::Reindexed, 0),
            ("labels", TableFate::Created, 0),
            ("secrets", TableFate::Retired, 0),
        ]
    );
    assert_eq!(
        plan.declarations,
        [(p("p"), "due".to_owned()), (p("q"), "due".to_owned())]
    );
    assert!(!plan.locks.is_empty());

    let recorder = Arc::new(Recorder::default());
    let outcome = store
        .ensure_schema_observed(Arc::clone(&schema), &list, 1, recorder.clone())
        .await
        .unwrap();
    assert_eq!(
        outcome,
        SchemaOutcome::Migrated {
            from: Some(SchemaVersion(1))
        }
    );
    let steps = recorder.steps();
    assert_eq!(
        steps[..2],
        [MigrationStep::WaitingForBarrier, MigrationStep::BarrierHeld]
    );
    assert_eq!(steps.last(), Some(&MigrationStep::Publishing));
    let mut before = 0;
    for step in &steps[2..steps.len() - 1] {
        let MigrationStep::Rewriting {
            table,
            rows_done,
            rows_total,
        } = step
        else {
            panic!("{step:?}");
        };
        assert_eq!((table.as_str(), *rows_total), ("notes", 1400));
        // A page at a time, never the whole table.
        assert!((1..=1000).contains(&(rows_done - before)), "{steps:?}");
        before = *rows_done;
    }
    assert_eq!(before, plan.tables[0].rows_to_rewrite);
    assert!(steps.len() > 5, "{steps:?}");

    let installed = rows(
        harness,
        "SELECT partition, name FROM sync_backfill_checkpoints ORDER BY partition",
    )
    .await;
    assert_eq!(installed, [["p", "due"], ["q", "due"]]);
    let rewritten = compile(&wanted());
    let mut values = note("n0007", "l1", "o1", Some(7));
    values.push(ssp2::Value::Null);
    assert_eq!(
        row(&*store, "q", key_of(&rewritten, NOTES, &values)).await,
        RowState::Present(Arc::new(stored(&rewritten, NOTES, &values, 1)))
    );
    // Then there is nothing left to do.
    let plan = store.plan_migration(schema, &list).await.unwrap();
    assert_eq!(
        plan,
        MigrationPlan {
            from: Some(SchemaVersion(2)),
            to: SchemaVersion(2),
            tables: vec![],
            ddl: vec![],
            locks: vec![],
            declarations: vec![]
        }
    );
}

/// Runs the statements that a dry run lists by hand on a twin of the database: its
/// catalog, which `catalog` reads, must then be that of a migrated one.
pub async fn the_listed_statements_are_those_of_the_migration(
    harness: &dyn Harness,
    twin: &dyn Harness,
    catalog: &str,
) {
    for harness in [harness, twin] {
        let store = ready(harness).await;
        filled(&*store).await;
        store.close().await;
    }
    let (before, store) = (rows(twin, catalog).await, twin.open().await);
    let plan = store.plan_migration(compile(&wanted()), &[]).await.unwrap();
    store.close().await;
    assert_eq!(rows(twin, catalog).await, before);
    for statement in &plan.ddl {
        twin.sql(statement).await;
    }
    let store = harness.open().await;
    store
        .ensure_schema(compile(&wanted()), &[], 1)
        .await
        .unwrap();
    let migrated = rows(harness, catalog).await;
    assert_ne!(migrated, before);
    assert_eq!(migrated, rows(twin, catalog).await);
}

pub async fn the_dry_run_of_a_new_database_lists_everything(
    harness: &dyn Harness,
    twin: &dyn Harness,
    catalog: &str,
) {
    let store = harness.open().await;
    let plan = store
        .plan_migration(compile(&document()), &[every("due", 1)])
        .await
        .unwrap();
    assert_eq!(plan.from, None);
    assert!(plan.declarations.is_empty());
    assert!(
        plan.tables
            .iter()
            .all(|table| table.change == TableFate::Created && table.rows_to_rewrite == 0)
    );
    assert!(rows(harness, catalog).await.is_empty());
    for statement in &plan.ddl {
        harness.sql(statement).await;
    }
    ready(twin).await;
    assert_eq!(rows(harness, catalog).await, rows(twin, catalog).await);
}

pub async fn a_dry_run_changes_nothing_and_refuses_as_the_migration_does(harness: &dyn Harness) {
    let old = compile(&document());
    let store = ready(harness).await;
    let ops = [vec![
        put(NOTES, note("a", "l1", "o1", Some(1))),
        put(NOTES, note("b", "l1", "o1", Some(2))),
        put(PROJECTS, vec![text("x"), text("w")]),
        put(PROJECTS, vec![text("y"), text("w")]),
    ]];
    commit(&*store, &old, "p", 0, &ops).await;
    harness
        .sql(
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
             VALUES('p', 'taken', 1, 'activated', 0);",
        )
        .await;
    let mut removed = document_v2();
    removed["tables"][0]["columns"]
        .as_array_mut()
        .unwrap()
        .remove(9);
    let mut unique = document_v2();
    unique["tables"][1]["indexes"] =
        json!([{"name": "one_each", "columns": ["ws"], "unique": true}]);
    let mut older = document();
    older["version"] = json!(1);
    push(
        &mut older["tables"][0]["columns"],
        json!({"name": "due", "type": "integer", "nullable": true}),
    );
    let v2 = document_v2();
    let cases = [
        (&removed, vec![]),
        (&unique, vec![]),
        (&older, vec![]),
        (&v2, vec![declaration("p", "taken", 2)]),
        (&v2, vec![every("taken", 2)]),
        (&v2, vec![every("due", 2), declaration("p", "", 2)]),
        (&v2, vec![declaration("p", "future", 3)]),
        (&v2, vec![every("due", 2), declaration("p", "due", 1)]),
    ];
    for (document, list) in cases {
        let planned = store.plan_migration(compile(document), &list).await;
        let migrated = store.ensure_schema(compile(document), &list, 1).await;
        assert_eq!(
            planned.unwrap_err().to_string(),
            migrated.unwrap_err().to_string(),
            "{list:?}"
        );
    }
    // A payload that cannot be rewritten, and a checkpoint that nobody declares.
    harness
        .sql("UPDATE notes SET _sync_payload='' WHERE _sync_row_id='b'")
        .await;
    let planned = store.plan_migration(compile(&v2), &[]).await;
    let migrated = store.ensure_schema(compile(&v2), &[], 1).await;
    assert_eq!(
        planned.unwrap_err().to_string(),
        migrated.unwrap_err().to_string()
    );
    harness.sql("DELETE FROM notes").await;
    harness
        .sql(
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
             VALUES('p', 'pending', 2, 'declared', 0);",
        )
        .await;
    for _ in 0..2 {
        let planned = store.plan_migration(compile(&v2), &[]).await;
        assert!(matches!(planned, Err(StoreError::CheckpointIncomplete(_))));
    }
    let published = rows(harness, "SELECT schema_version FROM sync_schema_meta").await;
    assert_eq!(published, [["1"]]);
    let fences = rows(harness, "SELECT partition FROM sync_writer_fence").await;
    assert!(fences.is_empty());
    // Once it is declared, the dry run passes, and so does the migration.
    let list = [every("pending", 2)];
    store.plan_migration(compile(&v2), &list).await.unwrap();
    store.ensure_schema(compile(&v2), &list, 1).await.unwrap();
    let mut newer = document_v2();
    newer["version"] = json!(1);
    assert!(matches!(
        store.plan_migration(compile(&newer), &[]).await,
        Err(StoreError::NewerSchema { .. })
    ));
}

pub async fn a_table_that_is_not_as_published_is_refused_by_name(harness: &dyn Harness) {
    let store = ready(harness).await;
    // At an equal version, where the catalog has changed under it.
    for (damage, column, reason) in [
        (
            "ALTER TABLE tasks DROP COLUMN _sync_column_versions",
            Some("_sync_column_versions"),
            "missing_column",
        ),
        ("DROP TABLE tasks", None, "missing_table"),
    ] {
        harness.sql(damage).await;
        let store = harness.open().await;
        for refused in [
            store
                .ensure_schema(compile(&document()), &[], 1)
                .await
                .err(),
            store.plan_migration(compile(&document()), &[]).await.err(),
        ] {
            let Some(StoreError::PhysicalLayoutMismatch {
                table,
                column: found,
                reason: why,
                ..
            }) = refused
            else {
                panic!("{damage}: {refused:?}");
            };
            assert_eq!(
                (table.as_str(), found.as_deref(), why),
                ("tasks", column, reason)
            );
        }
    }
    // In the way of a migration: found before anything is done.
    harness.sql("CREATE TABLE labels(id TEXT, ws TEXT)").await;
    let recorder = Arc::new(Recorder::default());
    let migrated = store
        .ensure_schema_observed(compile(&document_v2()), &[], 1, recorder.clone())
        .await;
    let planned = store.plan_migration(compile(&document_v2()), &[]).await;
    let planned = planned.unwrap_err();
    assert!(
        matches!(&planned, StoreError::PhysicalLayoutMismatch { table, .. } if table == "labels"),
        "{planned:?}"
    );
    assert_eq!(planned.to_string(), migrated.unwrap_err().to_string());
    assert_eq!(
        recorder.steps(),
        [MigrationStep::WaitingForBarrier, MigrationStep::BarrierHeld]
    );
}

pub async fn every_known_partition_gets_its_checkpoint_and_fence(harness: &dyn Harness) {
    let old = compile(&document());
    let store = ready(harness).await;
    commit(&*store, &old, "logged", 0, &one_note()).await;
    store
        .read_preamble(&p("registered"), &ClientId::from("d"), touch(1, "e"))
        .await
        .unwrap();
    let list = [every("due", 2), declaration("planned", "due", 2)];
    store
        .ensure_schema(compile(&document_v2()), &list, 1)
        .await
        .unwrap();
    let installed = rows(
        harness,
        "SELECT c.partition, c.name, f.required_writer_version FROM sync_backfill_checkpoints AS c
         JOIN sync_writer_fence AS f ON f.partition=c.partition ORDER BY c.partition",
    )
    .await;
    assert_eq!(
        installed,
        [
            ["logged", "due", "2"],
            ["planned", "due", "2"],
            ["registered", "due", "2"]
        ]
    );
    // The same list permits the next start; a list for one partition does not.
    let store = harness.open().await;
    let refused = store
        .ensure_schema(
            compile(&document_v2()),
            &[declaration("logged", "due", 2)],
            1,
        )
        .await;
    assert!(matches!(refused, Err(StoreError::CheckpointIncomplete(_))));
    let outcome = store.ensure_schema(compile(&document_v2()), &list, 1).await;
    assert_eq!(outcome.unwrap(), SchemaOutcome::Verified);
    // A partition that comes later has no old rows: nothing is pending there.
    store
        .read_preamble(&p("later"), &ClientId::from("d"), touch(1, "e"))
        .await
        .unwrap();
    let pending = store.read_gate(&p("later")).await.unwrap().0.pending;
    assert!(pending.iter().all(|one| one.partition != "later"));
}

/// Dies at the step of that number.
struct DiesAt(usize, std::sync::atomic::AtomicUsize);

impl MigrationObserver for DiesAt {
    fn step(&self, step: MigrationStep) {
        let before = self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        assert_ne!(before, self.0, "deliberate, at {step:?}");
    }
}

pub async fn a_migration_that_dies_at_any_step_leaves_no_trace(harness: &dyn Harness) {
    let old = compile(&document());
    let store = ready(harness).await;
    filled(&*store).await;
    let list = [every("due", 2)];
    let trace = async || {
        let mut all = Vec::new();
        for query in [
            "SELECT schema_version, layouts FROM sync_schema_meta",
            "SELECT partition, name FROM sync_backfill_checkpoints",
            "SELECT partition, required_writer_version FROM sync_writer_fence",
            "SELECT partition, schema_version, head_seq FROM tidegate_layouts ORDER BY 1, 2",
        ] {
            all.push(rows(harness, query).await);
        }
        all
    };
    let before = trace().await;
    let mut deaths = 0;
    loop {
        let observer = Arc::new(DiesAt(deaths, Default::default()));
        let outcome = store
            .ensure_schema_observed(compile(&wanted()), &list, 1, observer)
            .await;
        if outcome.is_ok() {
            break;
        }
        deaths += 1;
        assert_eq!(trace().await, before, "{deaths}");
        for (partition, n) in [("p", 0), ("q", 699)] {
            let values = note(&format!("n{n:04}"), "l1", "o1", Some(n));
            assert_eq!(
                row(&*store, partition, key_of(&old, NOTES, &values)).await,
                RowState::Present(Arc::new(stored(&old, NOTES, &values, 1))),
                "{deaths}"
            );
        }
    }
    // The barrier twice, some pages, the publication.
    assert!(deaths > 5, "{deaths}");
    assert_eq!(
        rows(harness, "SELECT schema_version FROM sync_schema_meta").await,
        [["2"]]
    );
}

pub async fn rows_are_sampled_in_the_wanted_layout_before_and_after_the_migration(
    harness: &dyn Harness,
) {
    let (old, new) = (compile(&document()), compile(&document_v2()));
    let store = ready(harness).await;
    for (partition, id) in [("p", "n1"), ("p", "n2"), ("q", "n3")] {
        let head = head(&*store, partition).await;
        let ops = [vec![put(NOTES, note(id, "l1", "o1", None))]];
        commit(&*store, &old, partition, head, &ops).await;
    }
    store.close().await;
    for migrated in [false, true] {
        // A handle that has prepared no schema.
        let store = harness.open().await;
        let sample = async |table, partition: Option<&str>, limit| {
            let query = SampleQuery {
                table,
                partition: partition.map(p),
                limit,
            };
            store.sample_rows(Arc::clone(&new), query).await.unwrap()
        };
        let all = sample(NOTES, None, 10).await;
        let expected: Vec<SampledRow> = [("p", "n1"), ("p", "n2"), ("q", "n3")]
            .into_iter()
            .map(|(partition, id)| {
                let mut values = note(id, "l1", "o1", None);
                values.push(ssp2::Value::Null);
                SampledRow {
                    partition: p(partition),
                    row_id: id.to_owned(),
                    payload: stored(&new, NOTES, &values, 1).payload,
                }
            })
            .collect();
        assert_eq!(all, expected, "{migrated}");
        assert_eq!(sample(NOTES, None, 2).await, expected[..2]);
        assert_eq!(sample(NOTES, Some("q"), 10).await, expected[2..]);
        // A table that is new has no rows, before it exists as well.
        assert!(
            sample(tidegate_engine::TableId(4), None, 10)
                .await
                .is_empty()
        );
        let version = store.published_version().await.unwrap();
        assert_eq!(version, Some(SchemaVersion(if migrated { 2 } else { 1 })));
        if !migrated {
            store.ensure_schema(Arc::clone(&new), &[], 1).await.unwrap();
        }
        store.close().await;
    }
}

pub async fn a_run_without_migration_has_no_steps(harness: &dyn Harness) {
    let store = ready(harness).await;
    store.close().await;
    let store = harness.open().await;
    let recorder = Arc::new(Recorder::default());
    let outcome = store
        .ensure_schema_observed(compile(&document()), &[], 1, recorder.clone())
        .await
        .unwrap();
    assert_eq!(outcome, SchemaOutcome::Verified);
    assert!(recorder.steps().is_empty());
}

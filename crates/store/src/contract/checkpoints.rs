//! The writer fence, pending checkpoints and declarations, and whatever else only
//! SQL access to the database can set up or see.

use std::sync::Arc;

use futures_util::future::join;
use tidegate_engine::backfill::checkpoint::CheckpointState;
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::model::{ResultLookup, RowState};
use tidegate_engine::{ClientId, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::{CommitError, Declaration, Partitions, SchemaOutcome, StoreError};

fn pending(partition: &str, name: &str) -> PendingCheckpoint {
    PendingCheckpoint {
        partition: partition.into(),
        name: name.into(),
    }
}

fn checkpoint_row(partition: &str, name: &str, version: i32, state: &str) -> String {
    format!(
        "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
         VALUES('{partition}', '{name}', {version}, '{state}', 0);"
    )
}

fn fence_row(partition: &str, version: i32) -> String {
    format!(
        "INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES('{partition}', {version});"
    )
}

pub async fn the_fence_refuses_older_writers(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    harness.sql(&fence_row("p", 1)).await;
    commit(&*store, &schema, "p", 0, &one_note()).await;
    harness
        .sql("UPDATE sync_writer_fence SET required_writer_version=2")
        .await;
    let refused = try_commit(&*store, &schema, "p", 1, &one_note()).await;
    assert!(
        matches!(refused, Err(CommitError::FenceRejected)),
        "{refused:?}"
    );
    // A batch of rejections alone is a write of an old writer as well.
    let mut rejections = batch(&schema, "p", 1, &[]);
    rejections
        .results
        .push((result_key("r"), Arc::new(rejected())));
    let refused = store.commit_batch(Arc::new(rejections)).await;
    assert!(
        matches!(refused, Err(CommitError::FenceRejected)),
        "{refused:?}"
    );
    assert_eq!(head(&*store, "p").await, 1);
    assert_eq!(result(&*store, "p", "c2").await, ResultLookup::Absent);
    assert_eq!(result(&*store, "p", "r").await, ResultLookup::Absent);
}

pub async fn a_fence_refusal_fails_only_its_partition(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    harness.sql(&fence_row("fenced", 2)).await;
    for round in 0..10 {
        let ops = note_again();
        let (refused, fine) = join(
            try_commit(&*store, &schema, "fenced", 0, &ops),
            try_commit(&*store, &schema, "free", round, &ops),
        )
        .await;
        assert!(matches!(refused, Err(CommitError::FenceRejected)));
        fine.unwrap();
    }
}

pub async fn the_fence_refuses_other_programs(harness: &dyn Harness) {
    let _store = ready(harness).await;
    harness.sql(&fence_row("p", 2)).await;
    let insert = |partition: &str, seq: i32, columns: &str, value: &str| {
        format!(
            "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms{columns})
             VALUES('{partition}', {seq}, 'c', 'x', 'a', 0{value})"
        )
    };
    harness
        .sql(&insert("p", 1, ", writer_version", ", 2"))
        .await;
    harness.sql(&insert("q", 1, "", "")).await;
    for statement in [
        insert("p", 2, "", ""),
        insert("p", 3, ", writer_version", ", 1"),
    ] {
        let refusal = harness.try_sql(&statement).await.unwrap_err();
        assert!(
            refusal.contains("sync.storage.writer_fence_rejected"),
            "{refusal}"
        );
    }
    let stored = rows(
        harness,
        "SELECT partition, commit_seq FROM sync_commits ORDER BY 1",
    )
    .await;
    assert_eq!(stored, [["p", "1"], ["q", "1"]]);
}

pub async fn a_pending_checkpoint_stops_those_who_do_not_declare_it(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    // In any partition, not only in the one that is written to.
    harness
        .sql(&checkpoint_row("other", "totals", 1, "backfilling"))
        .await;
    let refused = try_commit(&*store, &schema, "p", 0, &one_note()).await;
    let Err(CommitError::CheckpointPending(found)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(found, pending("other", "totals"));
    assert_eq!(head(&*store, "p").await, 0);
    let mut declared = batch(&schema, "p", 0, &one_note());
    declared.declared = Arc::new([("other".to_owned(), "totals".to_owned())].into());
    store.commit_batch(Arc::new(declared)).await.unwrap();
    harness
        .sql("UPDATE sync_backfill_checkpoints SET state='activated'")
        .await;
    commit(&*store, &schema, "p", 1, &note_again()).await;
}

pub async fn a_pending_checkpoint_of_another_version_is_no_concern(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    harness
        .sql(&checkpoint_row("p", "later", 2, "declared"))
        .await;
    commit(&*store, &schema, "p", 0, &one_note()).await;
    assert!(store.read_gate(&p("p")).await.unwrap().0.pending.is_empty());
}

pub async fn the_gate_token_lists_pending_checkpoints_of_all_partitions(harness: &dyn Harness) {
    let store = ready(harness).await;
    harness
        .sql(&checkpoint_row("p", "b\"quoted", 1, "declared"))
        .await;
    harness
        .sql(&checkpoint_row("p", "a", 1, "backfilling"))
        .await;
    harness.sql(&checkpoint_row("o", "z", 1, "declared")).await;
    harness
        .sql(&checkpoint_row("p", "done", 1, "activated"))
        .await;
    harness
        .sql(&checkpoint_row("p", "later", 2, "declared"))
        .await;
    let (gate, _) = store.read_gate(&p("p")).await.unwrap();
    assert_eq!(
        gate.pending,
        [
            pending("o", "z"),
            pending("p", "a"),
            pending("p", "b\"quoted")
        ]
    );
    assert_eq!(gate.stored_version, SchemaVersion(1));
}

pub async fn declarations_are_installed_with_the_migration(harness: &dyn Harness) {
    let (old, new) = (compile(&document()), compile(&document_v2()));
    let store = ready(harness).await;
    let list = [declaration("p", "due", 2), declaration("q", "due", 2)];
    let outcome = store
        .ensure_schema(Arc::clone(&new), &list, 42)
        .await
        .unwrap();
    assert!(matches!(outcome, SchemaOutcome::Migrated { .. }));
    let stored = rows(
        harness,
        "SELECT partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms
         FROM sync_backfill_checkpoints ORDER BY partition",
    )
    .await;
    assert_eq!(
        stored,
        [
            ["p", "due", "2", "declared", "0", "0", "0", "42"],
            ["q", "due", "2", "declared", "0", "0", "0", "42"],
        ]
    );
    let fences = rows(
        harness,
        "SELECT partition, required_writer_version FROM sync_writer_fence ORDER BY 1",
    )
    .await;
    assert_eq!(fences, [["p", "2"], ["q", "2"]]);
    // An old writer that never looks at the version is stopped all the same.
    let refused = try_commit(&*store, &old, "p", 0, &one_note()).await;
    assert!(matches!(refused, Err(CommitError::SchemaChanged { .. })));
}

pub async fn a_declaration_for_every_partition_reaches_all_that_are_known(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    for partition in ["both", "registered"] {
        store
            .read_preamble(&p(partition), &ClientId::from("d"), touch(1, "e"))
            .await
            .unwrap();
    }
    for partition in ["both", "written"] {
        commit(&*store, &schema, partition, 0, &one_note()).await;
    }
    let every = Declaration {
        partitions: Partitions::Every,
        ..declaration("", "due", 2)
    };
    store
        .ensure_schema(compile(&document_v2()), &[every], 42)
        .await
        .unwrap();
    let known = ["both", "registered", "written"];
    let listed = store.list_checkpoints(None).await.unwrap();
    let partitions: Vec<&str> = listed.iter().map(|row| row.partition.as_str()).collect();
    assert_eq!(partitions, known);
    for row in &listed {
        assert_eq!(row.state, CheckpointState::Declared);
        assert_eq!((&*row.name, row.updated_at_ms), ("due", 42));
        let fence = store.read_fence(&row.partition).await.unwrap();
        assert_eq!(fence, Some(SchemaVersion(2)));
    }
    // A partition that comes later has no old rows.
    assert_eq!(store.read_fence(&p("later")).await.unwrap(), None);
}

pub async fn a_fence_never_falls(harness: &dyn Harness) {
    let store = ready(harness).await;
    harness.sql(&fence_row("p", 9)).await;
    store
        .ensure_schema(compile(&document_v2()), &[declaration("p", "due", 2)], 1)
        .await
        .unwrap();
    let fences = rows(
        harness,
        "SELECT required_writer_version FROM sync_writer_fence",
    )
    .await;
    assert_eq!(fences, [["9"]]);
}

pub async fn at_an_equal_version_nothing_is_installed(harness: &dyn Harness) {
    let store = ready(harness).await;
    store
        .ensure_schema(compile(&document()), &[declaration("p", "late", 1)], 1)
        .await
        .unwrap();
    assert!(
        rows(harness, "SELECT name FROM sync_backfill_checkpoints")
            .await
            .is_empty()
    );
    assert!(
        rows(harness, "SELECT partition FROM sync_writer_fence")
            .await
            .is_empty()
    );
}

pub async fn an_undeclared_incomplete_checkpoint_refuses_the_schema(harness: &dyn Harness) {
    let new = compile(&document_v2());
    let store = ready(harness).await;
    let list = [declaration("p", "due", 2), declaration("q", "due", 2)];
    store
        .ensure_schema(Arc::clone(&new), &list, 1)
        .await
        .unwrap();
    for declared in [&list[..0], &list[..1]] {
        let store = harness.open().await;
        let refused = store.ensure_schema(Arc::clone(&new), declared, 1).await;
        let Err(StoreError::CheckpointIncomplete(found)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(found.name, "due");
        assert!(matches!(
            store.read_gate(&p("p")).await,
            Err(StoreError::NotPrepared)
        ));
    }
    let store = harness.open().await;
    assert_eq!(
        store
            .ensure_schema(Arc::clone(&new), &list, 1)
            .await
            .unwrap(),
        SchemaOutcome::Verified
    );
    harness
        .sql("UPDATE sync_backfill_checkpoints SET state='activated'")
        .await;
    let store = harness.open().await;
    assert_eq!(
        store.ensure_schema(new, &[], 1).await.unwrap(),
        SchemaOutcome::Verified
    );
}

pub async fn one_bad_declaration_undoes_the_migration(harness: &dyn Harness) {
    let (old, new) = (compile(&document()), compile(&document_v2()));
    let store = ready(harness).await;
    commit(&*store, &old, "p", 0, &one_note()).await;
    harness
        .sql(&checkpoint_row("p", "taken", 1, "activated"))
        .await;
    let good = declaration("p", "good", 2);
    for bad in [
        declaration("p", "taken", 2),
        declaration("p", "", 2),
        declaration("p", "future", 3),
        declaration("p", "zero", 0),
    ] {
        let refused = store
            .ensure_schema(Arc::clone(&new), &[good.clone(), bad.clone()], 1)
            .await;
        match (bad.name.as_str(), &refused) {
            (
                "taken",
                Err(StoreError::CheckpointVersionTaken {
                    name,
                    existing: SchemaVersion(1),
                }),
            ) => assert_eq!(name, "taken"),
            (_, Err(StoreError::BadDeclaration { name, .. })) => assert_eq!(*name, bad.name),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        rows(harness, "SELECT schema_version FROM sync_schema_meta").await,
        [["1"]]
    );
    assert_eq!(
        rows(harness, "SELECT name FROM sync_backfill_checkpoints").await,
        [["taken"]]
    );
    assert!(
        rows(harness, "SELECT partition FROM sync_writer_fence")
            .await
            .is_empty()
    );
    let values = note("n1", "l1", "o1", None);
    assert_eq!(
        row(&*store, "p", key_of(&old, NOTES, &values)).await,
        RowState::Present(Arc::new(stored(&old, NOTES, &values, 1)))
    );
    commit(
        &*store,
        &old,
        "p",
        1,
        &[vec![put(NOTES, note("n2", "l1", "o1", None))]],
    )
    .await;
}

pub async fn an_unreadable_payload_undoes_the_migration(harness: &dyn Harness) {
    let (old, new) = (compile(&document()), compile(&document_v2()));
    let store = ready(harness).await;
    let ops = [vec![
        put(NOTES, note("a", "l1", "o1", None)),
        put(NOTES, note("b", "l1", "o1", None)),
    ]];
    commit(&*store, &old, "p", 0, &ops).await;
    harness
        .sql("UPDATE notes SET _sync_payload='' WHERE _sync_row_id='b'")
        .await;
    let refused = store
        .ensure_schema(new, &[declaration("p", "due", 2)], 1)
        .await;
    assert!(refused.is_err());
    assert_eq!(
        rows(harness, "SELECT schema_version FROM sync_schema_meta").await,
        [["1"]]
    );
    assert!(
        rows(harness, "SELECT name FROM sync_backfill_checkpoints")
            .await
            .is_empty()
    );
    let values = note("a", "l1", "o1", None);
    assert_eq!(
        row(&*store, "p", key_of(&old, NOTES, &values)).await,
        RowState::Present(Arc::new(stored(&old, NOTES, &values, 1)))
    );
}

pub async fn a_refused_run_is_not_remembered(harness: &dyn Harness) {
    let new = compile(&document_v2());
    let store = ready(harness).await;
    harness
        .sql(&checkpoint_row("p", "due", 2, "declared"))
        .await;
    let refused = store.ensure_schema(Arc::clone(&new), &[], 1).await;
    assert!(
        matches!(refused, Err(StoreError::CheckpointIncomplete(_))),
        "{refused:?}"
    );
    assert_eq!(
        rows(harness, "SELECT schema_version FROM sync_schema_meta").await,
        [["1"]]
    );
    harness
        .sql("UPDATE sync_backfill_checkpoints SET state='activated'")
        .await;
    let outcome = store.ensure_schema(new, &[], 1).await.unwrap();
    assert!(matches!(outcome, SchemaOutcome::Migrated { .. }));
}

//! Schema versions: what a migration does, and what it refuses.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use ssp2::Value;
use tidegate_engine::model::RowState;
use tidegate_engine::{ClientId, CommitSeq, SchemaVersion, TableId};

use super::Harness;
use super::fixture::*;
use crate::{CommitError, SchemaOutcome, Store, StoreError};

const MIGRATED: SchemaOutcome = SchemaOutcome::Migrated {
    from: Some(SchemaVersion(1)),
};

async fn ensure(store: &dyn Store, document: &Json) -> Result<SchemaOutcome, StoreError> {
    store.ensure_schema(compile(document), &[], 1).await
}

async fn layout_floor(store: &dyn Store, partition: &str) -> i64 {
    let preamble = store
        .read_preamble(&p(partition), &ClientId::from("device"), touch(1, "e"))
        .await
        .unwrap();
    let snapshot = store.snapshot(&p(partition)).await.unwrap();
    assert_eq!(snapshot.layout_floor(), preamble.layout_floor);
    assert_eq!(
        preamble.pull_floor(),
        preamble.layout_floor.max(preamble.bounds.horizon)
    );
    preamble.layout_floor.0
}

fn bumped(version: i32) -> Json {
    let mut document = document();
    document["version"] = json!(version);
    document
}

pub async fn an_appended_column_rewrites_every_row(harness: &dyn Harness) {
    let (old, new) = (compile(&document()), compile(&document_v2()));
    let store = harness.open().await;
    assert_eq!(
        ensure(&*store, &document()).await.unwrap(),
        SchemaOutcome::Migrated { from: None }
    );
    // More than one page of rewriting, in two partitions.
    for partition in ["p", "q"] {
        let rows =
            (0..1500_i64).map(|n| put(NOTES, note(&format!("n{n:04}"), "l1", "o1", Some(n))));
        commit(&*store, &old, partition, 0, &[rows.collect()]).await;
    }
    let secret = vec![text("s"), text("w"), Value::Bytes(vec![1].into())];
    commit(&*store, &old, "p", 1, &[vec![put(SECRETS, secret.clone())]]).await;

    assert_eq!(ensure(&*store, &document_v2()).await.unwrap(), MIGRATED);
    for partition in ["p", "q"] {
        let page = scan(
            &*store,
            partition,
            lists(&[("list_id", &["l1"])]),
            None,
            2000,
        )
        .await;
        assert_eq!(page.rows.len(), 1500);
        for (n, (id, row)) in (0..).zip(&page.rows) {
            let mut values = note(id, "l1", "o1", Some(n));
            values.push(Value::Null);
            assert_eq!(*row, stored(&new, NOTES, &values, 1));
        }
    }
    assert_eq!(
        row(&*store, "p", key_of(&new, SECRETS, &secret)).await,
        RowState::Present(Arc::new(stored(&new, SECRETS, &secret, 1)))
    );
    // The new column and the new table are written like any other.
    let mut values = note("n0000", "l1", "o1", Some(0));
    values.push(Value::Integer(5));
    let label = vec![text("x"), text("w")];
    let ops = [vec![
        Op::Put(NOTES, values.clone(), 2),
        put(TableId(4), label.clone()),
    ]];
    commit(&*store, &new, "p", 2, &ops).await;
    for (table, values, version) in [(NOTES, values, 2), (TableId(4), label, 1)] {
        assert_eq!(
            row(&*store, "p", key_of(&new, table, &values)).await,
            RowState::Present(Arc::new(stored(&new, table, &values, version)))
        );
    }
    // Unique indexes still stand.
    let mut collides = note("other", "l1", "o1", Some(3));
    collides.push(Value::Null);
    let refused = try_commit(&*store, &new, "p", 3, &[vec![put(NOTES, collides)]]).await;
    assert!(matches!(refused, Err(CommitError::Constraint { .. })));
}

pub async fn a_layout_change_raises_the_layout_floor(harness: &dyn Harness) {
    let old = compile(&document());
    let store = ready(harness).await;
    let ops: Vec<Vec<Op>> = (0..3)
        .map(|n| vec![put(NOTES, note(&format!("n{n}"), "l1", "o1", None))])
        .collect();
    commit(&*store, &old, "p", 0, &ops).await;
    assert_eq!(layout_floor(&*store, "p").await, 0);
    ensure(&*store, &document_v2()).await.unwrap();
    assert_eq!(layout_floor(&*store, "p").await, 3);
    assert_eq!(layout_floor(&*store, "new").await, 0);
    store.close().await;
    let store = harness.open().await;
    assert_eq!(
        ensure(&*store, &document_v2()).await.unwrap(),
        SchemaOutcome::Verified
    );
    assert_eq!(layout_floor(&*store, "p").await, 3);
}

pub async fn a_version_without_layout_change_keeps_the_floor(harness: &dyn Harness) {
    let old = compile(&document());
    let store = ready(harness).await;
    commit(
        &*store,
        &old,
        "p",
        0,
        &[vec![put(NOTES, note("n", "l1", "o1", None))]],
    )
    .await;
    let mut document = bumped(2);
    document["tables"][0]["indexes"] = json!([{"name": "by_owner", "columns": ["owner"]}]);
    assert_eq!(ensure(&*store, &document).await.unwrap(), MIGRATED);
    assert_eq!(layout_floor(&*store, "p").await, 0);
    // The old version's writers are refused from now on.
    let refused = try_commit(
        &*store,
        &old,
        "p",
        1,
        &[vec![put(NOTES, note("m", "l1", "o1", None))]],
    )
    .await;
    assert!(matches!(
        refused,
        Err(CommitError::SchemaChanged {
            stored: SchemaVersion(2)
        })
    ));
}

pub async fn refused_changes_undo_everything(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let values = note("n1", "l1", "o1", Some(1));
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, values.clone())]],
    )
    .await;
    type Edit = fn(&mut Json);
    let edits: [(&str, Edit); 6] = [
        ("removed", |columns| {
            columns.as_array_mut().unwrap().remove(9);
        }),
        ("reordered", |columns| {
            columns.as_array_mut().unwrap().swap(8, 7)
        }),
        ("retyped", |columns| columns[6]["type"] = json!("integer")),
        ("nullability", |columns| {
            columns[6]["nullable"] = json!(false)
        }),
        ("renamed", |columns| columns[6]["name"] = json!("mass")),
        ("not nullable", |columns| {
            push(
                columns,
                json!({"name": "due", "type": "integer", "nullable": false}),
            )
        }),
    ];
    for (what, edit) in edits {
        // A change that is allowed stands before the refused one.
        let mut document = document_v2();
        document["tables"][0] = super::fixture::document()["tables"][0].clone();
        edit(&mut document["tables"][0]["columns"]);
        push(
            &mut document["tables"][1]["columns"],
            json!({"name": "note", "type": "string", "nullable": true}),
        );
        let refused = ensure(&*store, &document).await;
        assert!(
            matches!(&refused, Err(StoreError::RefusedMigration { table, .. }) if table == "notes"),
            "{what}: {refused:?}"
        );
        // The running process goes on at its version.
        let (gate, _) = store.read_gate(&p("p")).await.unwrap();
        assert_eq!(gate.stored_version, SchemaVersion(1), "{what}");
    }
    assert_eq!(layout_floor(&*store, "p").await, 0);
    assert_eq!(
        row(&*store, "p", key_of(&schema, NOTES, &values)).await,
        RowState::Present(Arc::new(stored(&schema, NOTES, &values, 1)))
    );
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![put(PROJECTS, vec![text("x"), text("w")])]],
    )
    .await;
    store.close().await;
    let store = harness.open().await;
    assert_eq!(
        ensure(&*store, &document()).await.unwrap(),
        SchemaOutcome::Verified
    );
}

pub async fn an_equal_version_verifies_the_layouts(harness: &dyn Harness) {
    let store = ready(harness).await;
    assert_eq!(
        ensure(&*store, &document()).await.unwrap(),
        SchemaOutcome::Verified
    );
    let mut appended = document();
    push(
        &mut appended["tables"][0]["columns"],
        json!({"name": "due", "type": "integer", "nullable": true}),
    );
    let mut fewer = document();
    fewer["tables"].as_array_mut().unwrap().pop();
    let mut retyped = document();
    retyped["tables"][0]["columns"][6]["type"] = json!("integer");
    for (document, table, column) in [
        (appended, "notes", Some("due")),
        (fewer, "secrets", None),
        (retyped, "notes", Some("weight")),
    ] {
        let store = harness.open().await;
        let refused = ensure(&*store, &document).await;
        let Err(StoreError::StoredLayoutMismatch {
            table: t,
            column: c,
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((t.as_str(), c.as_deref()), (table, column));
    }
}

pub async fn a_newer_database_is_refused(harness: &dyn Harness) {
    let store = harness.open().await;
    ensure(&*store, &bumped(5)).await.unwrap();
    store.close().await;
    let store = harness.open().await;
    let refused = ensure(&*store, &bumped(4)).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::NewerSchema {
                stored: SchemaVersion(5),
                running: SchemaVersion(4)
            })
        ),
        "{refused:?}"
    );
    assert_eq!(
        ensure(&*store, &bumped(5)).await.unwrap(),
        SchemaOutcome::Verified
    );
}

pub async fn a_retired_table_goes_with_all_its_rows(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let secret = vec![text("s"), text("w"), Value::Bytes(vec![1].into())];
    let other = vec![text("t"), text("w"), Value::Bytes(vec![1].into())];
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[
            vec![put(SECRETS, secret.clone()), put(SECRETS, other.clone())],
            vec![Op::Delete(SECRETS, other.clone())],
        ],
    )
    .await;
    let mut without = bumped(2);
    without["tables"].as_array_mut().unwrap().pop();
    assert_eq!(ensure(&*store, &without).await.unwrap(), MIGRATED);
    assert_eq!(layout_floor(&*store, "p").await, 2);
    // The name may come back with another meaning, and nothing of the old one with it.
    let mut back = bumped(3);
    back["tables"][3]["columns"] = json!([
        {"name": "id", "type": "string", "nullable": false},
        {"name": "ws", "type": "string", "nullable": false}
    ]);
    ensure(&*store, &back).await.unwrap();
    let schema = compile(&back);
    for values in [[text("s"), text("w")], [text("t"), text("w")]] {
        assert_eq!(
            row(&*store, "p", key_of(&schema, SECRETS, &values)).await,
            RowState::Absent { tombstone: None }
        );
    }
    let mut snapshot = store.snapshot(&p("p")).await.unwrap();
    let query = crate::ScanQuery {
        table: SECRETS,
        scopes: lists(&[("ws", &["w"])]),
        after_row_id: None,
        limit: 10,
        max_bytes: usize::MAX,
    };
    assert!(snapshot.scan_rows(query).await.unwrap().rows.is_empty());
    assert_eq!(snapshot.bounds().max, CommitSeq(2));
}

pub async fn concurrent_callers_share_one_migration(harness: &dyn Harness) {
    let store = ready(harness).await;
    let outcomes = join_all((0..8).map(|_| {
        let store = Arc::clone(&store);
        async move { ensure(&*store, &document_v2()).await.unwrap() }
    }))
    .await;
    let migrated = outcomes
        .iter()
        .filter(|outcome| **outcome == MIGRATED)
        .count();
    assert_eq!(migrated, 1, "{outcomes:?}");
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, SchemaOutcome::Verified) || *outcome == MIGRATED)
    );
}

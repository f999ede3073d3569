//! Group commits: the CAS, the gate's version check, constraints, results, tombstones.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join;
use ssp2::Value;
use tidegate_engine::model::{ChildrenKey, Needs, QueuedReaction, ResultLookup, RowState};
use tidegate_engine::push::PlannedReaction;
use tidegate_engine::{CommitSeq, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::CommitError;

pub async fn acknowledged_commits_survive_a_reopen(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let values = note("n1", "l1", "o1", Some(1));
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[
            vec![put(NOTES, values.clone())],
            vec![put(NOTES, note("n2", "l1", "o1", Some(2)))],
        ],
    )
    .await;
    store.close().await;
    drop(store);

    let store = ready(harness).await;
    assert_eq!(head(&*store, "p").await, 2);
    let expected = stored(&schema, NOTES, &values, 1);
    assert_eq!(
        row(&*store, "p", key_of(&schema, NOTES, &values)).await,
        RowState::Present(Arc::new(expected))
    );
    assert_eq!(
        result(&*store, "p", "c1").await,
        ResultLookup::Found(Arc::new(applied(1)))
    );
    let found = window(
        &*store,
        "p",
        window_query(lists(&[("list_id", &["l1"])]), 0, 2, 10),
    )
    .await;
    let expected = batch(
        &schema,
        "p",
        0,
        &[
            vec![put(NOTES, values)],
            vec![put(NOTES, note("n2", "l1", "o1", Some(2)))],
        ],
    );
    let written = expected.commits.iter().map(|commit| &**commit);
    assert!(found.commits.iter().eq(written), "{found:?}");
}

pub async fn every_column_type_is_stored_and_read_back(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let blob = format!(
        r#"{{"blobId":"sha256:{}","byteLength":3}}"#,
        "ab".repeat(32)
    );
    let full = vec![
        text("ключ \u{1F600}"),
        text("l'1\""),
        text("o\\1"),
        text("a\nb"),
        Value::Integer(-9_007_199_254_740_991),
        Value::Boolean(true),
        Value::Float(-0.5),
        text("{\"a\": [1,  2]}"),
        Value::Bytes(vec![0, 255, 1].into()),
        text(&blob),
    ];
    let encrypted = vec![text("s1"), text("w"), Value::Bytes(vec![9, 9].into())];
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![
            Op::Put(NOTES, full.clone(), 7),
            put(SECRETS, encrypted.clone()),
        ]],
    )
    .await;
    for (table, values, version) in [(NOTES, full, 7), (SECRETS, encrypted, 1)] {
        assert_eq!(
            row(&*store, "p", key_of(&schema, table, &values)).await,
            RowState::Present(Arc::new(stored(&schema, table, &values, version)))
        );
    }
}

pub async fn a_lost_cas_writes_nothing(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, note("n1", "l1", "o1", None))]],
    )
    .await;
    for expected in [0, 2] {
        let lost = try_commit(
            &*store,
            &schema,
            "p",
            expected,
            &[vec![put(NOTES, note("n2", "l1", "o1", None))]],
        )
        .await;
        assert!(matches!(lost, Err(CommitError::SequenceMoved)), "{lost:?}");
    }
    assert_eq!(head(&*store, "p").await, 1);
    let key = key_of(&schema, NOTES, &note("n2", "l1", "o1", None));
    assert_eq!(
        row(&*store, "p", key).await,
        RowState::Absent { tombstone: None }
    );
    assert_eq!(result(&*store, "p", "c3").await, ResultLookup::Absent);
    let scopes = lists(&[("list_id", &["l1"])]);
    assert_eq!(scan(&*store, "p", scopes, None, 10).await.rows.len(), 1);
}

pub async fn two_first_commits_of_a_partition_do_not_both_stand(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let one = [vec![put(NOTES, note("n1", "l1", "o1", None))]];
    let two = [vec![put(NOTES, note("n2", "l1", "o1", None))]];
    let (a, b) = join(
        try_commit(&*store, &schema, "p", 0, &one),
        try_commit(&*store, &schema, "p", 0, &two),
    )
    .await;
    assert_eq!(usize::from(a.is_ok()) + usize::from(b.is_ok()), 1);
    for outcome in [a, b] {
        assert!(matches!(outcome, Ok(()) | Err(CommitError::SequenceMoved)));
    }
    assert_eq!(head(&*store, "p").await, 1);
}

pub async fn a_batch_of_another_schema_version_is_refused(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    for version in [0, 2] {
        let mut batch = batch(
            &schema,
            "p",
            0,
            &[vec![put(NOTES, note("n1", "l1", "o1", None))]],
        );
        batch.writer_version = SchemaVersion(version);
        let refused = store.commit_batch(Arc::new(batch)).await;
        assert!(
            matches!(
                refused,
                Err(CommitError::SchemaChanged {
                    stored: SchemaVersion(1)
                })
            ),
            "{refused:?}"
        );
    }
    assert_eq!(head(&*store, "p").await, 0);
}

pub async fn a_unique_violation_fails_only_its_batch(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, note("n1", "l1", "o1", Some(1)))]],
    )
    .await;
    let colliding = note("n3", "l1", "o1", Some(1));
    let bad = [vec![
        put(NOTES, note("n2", "l1", "o1", Some(2))),
        put(NOTES, colliding.clone()),
    ]];
    let good = [vec![put(NOTES, note("n1", "l1", "o1", Some(1)))]];
    let (refused, fine) = join(
        try_commit(&*store, &schema, "p", 1, &bad),
        try_commit(&*store, &schema, "q", 0, &good),
    )
    .await;
    let Err(CommitError::Constraint { key: Some(key) }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(key, key_of(&schema, NOTES, &colliding));
    fine.unwrap();
    assert_eq!(head(&*store, "p").await, 1);
    let kept = key_of(&schema, NOTES, &note("n2", "l1", "o1", Some(2)));
    assert_eq!(
        row(&*store, "p", kept).await,
        RowState::Absent { tombstone: None }
    );
    assert_eq!(result(&*store, "p", "c2").await, ResultLookup::Absent);
    // NULL collides with nothing.
    let nulls = [vec![
        put(NOTES, note("n4", "l1", "o1", None)),
        put(NOTES, note("n5", "l1", "o1", None)),
    ]];
    commit(&*store, &schema, "p", 1, &nulls).await;
}

pub async fn a_unique_value_may_move_within_a_batch(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let first = [vec![
        put(NOTES, note("n1", "l1", "o1", Some(1))),
        put(NOTES, note("n2", "l1", "o1", Some(2))),
        put(NOTES, note("n3", "l1", "o1", Some(3))),
    ]];
    commit(&*store, &schema, "p", 0, &first).await;
    // n1 gives up 1 for 4; n2 takes 1; n3 goes, and n4 takes its 3. In the order of
    // the final states the takers may come first.
    let mut moved = batch(
        &schema,
        "p",
        1,
        &[
            vec![Op::Put(NOTES, note("n1", "l1", "o1", Some(4)), 2)],
            vec![Op::Put(NOTES, note("n2", "l1", "o1", Some(1)), 2)],
            vec![Op::Delete(NOTES, note("n3", "l1", "o1", Some(3)))],
            vec![put(NOTES, note("n4", "l1", "o1", Some(3)))],
        ],
    );
    moved.rows.reverse();
    store.commit_batch(Arc::new(moved)).await.unwrap();
    let scopes = lists(&[("list_id", &["l1"])]);
    assert_eq!(
        ids(&scan(&*store, "p", scopes, None, 10).await),
        ["n1", "n2", "n4"]
    );
}

pub async fn unique_indexes_are_per_partition(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    for partition in ["p", "q"] {
        commit(
            &*store,
            &schema,
            partition,
            0,
            &[vec![put(NOTES, note("n1", "l1", "o1", Some(1)))]],
        )
        .await;
    }
}

pub async fn partitions_commit_together_and_fail_alone(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let ops = [vec![put_again(NOTES, note("n1", "l1", "o1", None))]];
    for round in 0..20 {
        let (good, lost) = join(
            try_commit(&*store, &schema, "good", round, &ops),
            try_commit(&*store, &schema, "stale", 99, &ops),
        )
        .await;
        good.unwrap();
        assert!(matches!(lost, Err(CommitError::SequenceMoved)));
    }
    assert_eq!(head(&*store, "good").await, 20);
    assert_eq!(head(&*store, "stale").await, 0);
}

pub async fn a_recorded_result_is_never_overwritten(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, note("n1", "l1", "o1", None))]],
    )
    .await;
    let mut again = batch(
        &schema,
        "p",
        1,
        &[vec![put(NOTES, note("n2", "l1", "o1", None))]],
    );
    again.results[0].0 = result_key("c1");
    let refused = store.commit_batch(Arc::new(again)).await;
    assert!(
        matches!(refused, Err(CommitError::SequenceMoved)),
        "{refused:?}"
    );
    assert_eq!(head(&*store, "p").await, 1);
    assert_eq!(
        result(&*store, "p", "c1").await,
        ResultLookup::Found(Arc::new(applied(1)))
    );
}

pub async fn a_rejection_is_stored_without_a_sequence_number(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let mut batch = batch(&schema, "p", 0, &[]);
    batch.results.push((result_key("r"), Arc::new(rejected())));
    batch.clients.push(client("device", "actor", -1));
    store.commit_batch(Arc::new(batch)).await.unwrap();
    assert_eq!(head(&*store, "p").await, 0);
    assert_eq!(
        result(&*store, "p", "r").await,
        ResultLookup::Found(Arc::new(rejected()))
    );
    assert_eq!(
        store.list_clients(&p("p")).await.unwrap(),
        [client("device", "actor", -1)]
    );
}

pub async fn deletes_leave_tombstones_and_inserts_clear_them(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let values = note("n1", "l1", "o1", Some(1));
    let key = key_of(&schema, NOTES, &values);
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, values.clone())]],
    )
    .await;
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![Op::Delete(NOTES, values.clone())]],
    )
    .await;
    assert_eq!(
        row(&*store, "p", key.clone()).await,
        RowState::Absent {
            tombstone: Some(CommitSeq(2))
        }
    );
    let scopes = lists(&[("list_id", &["l1"])]);
    assert!(scan(&*store, "p", scopes, None, 10).await.rows.is_empty());
    commit(
        &*store,
        &schema,
        "p",
        2,
        &[vec![put(NOTES, values.clone())]],
    )
    .await;
    assert!(matches!(
        row(&*store, "p", key.clone()).await,
        RowState::Present(_)
    ));
    commit(&*store, &schema, "p", 3, &[vec![Op::Delete(NOTES, values)]]).await;
    assert_eq!(
        row(&*store, "p", key).await,
        RowState::Absent {
            tombstone: Some(CommitSeq(4))
        }
    );
}

pub async fn children_are_found_through_references(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let task = |id: i64, project: Option<&str>| {
        let project = project.map_or(Value::Null, text);
        put(
            TASKS,
            vec![Value::Integer(id), text("w"), project, text("b")],
        )
    };
    let commits = [vec![
        put(PROJECTS, vec![text("a"), text("w")]),
        put(PROJECTS, vec![text("b"), text("w")]),
        task(1, Some("a")),
        task(2, Some("b")),
        task(3, None),
        task(10, Some("a")),
        task(4, Some("a")),
    ]];
    commit(&*store, &schema, "p", 0, &commits).await;
    commit(&*store, &schema, "q", 0, &[vec![task(7, Some("a"))]]).await;
    let children = |parent: &str, limit| ChildrenKey {
        child: TASKS,
        column: 2,
        parent_row: parent.into(),
        limit,
    };
    let found = async |key: ChildrenKey| -> Vec<String> {
        let needs = Needs {
            children: BTreeSet::from([key.clone()]),
            ..Needs::default()
        };
        let mut fetched = fetch(&*store, "p", needs).await;
        let (answered, rows) = fetched.children.remove(0);
        assert_eq!(answered, key);
        rows.into_iter()
            .map(|(key, _)| key.row_id.to_string())
            .collect()
    };
    assert_eq!(found(children("a", 100)).await, ["1", "10", "4"]);
    assert_eq!(found(children("a", 2)).await, ["1", "10"]);
    assert_eq!(found(children("b", 100)).await, ["2"]);
    assert!(found(children("none", 100)).await.is_empty());
}

pub async fn reactions_wait_with_the_commit_they_follow_or_not_at_all(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let with_reactions = |expected: i64| {
        let mut batch = batch(&schema, "p", expected, &one_note());
        let source = Arc::clone(&batch.commits[0]);
        for key in ["a", "quo\"ted"] {
            let planned = PlannedReaction {
                key: key.to_owned(),
                kind: "mail.send".to_owned(),
                version: 3,
                payload: serde_json::json!({"to": ["ada"]}),
                max_attempts: 10,
            };
            batch
                .reactions
                .push(QueuedReaction::new(&p("p"), &source, planned));
        }
        Arc::new(batch)
    };
    let refused = store.commit_batch(with_reactions(7)).await;
    assert!(matches!(refused, Err(CommitError::SequenceMoved)));
    let waiting = "SELECT idempotency_key, type, version, payload, source_client_id,
           source_client_commit_id, source_commit_seq, created_at_ms, available_at_ms, status,
           attempts, max_attempts, lease_owner, last_failure
         FROM sync_reactions ORDER BY 1";
    assert!(rows(harness, waiting).await.is_empty());
    store.commit_batch(with_reactions(0)).await.unwrap();
    let found = rows(harness, waiting).await;
    let expected = |key: &str| {
        [
            key,
            "mail.send",
            "3",
            r#"{"to":["ada"]}"#,
            "device",
            "c1",
            "1",
            "1000",
            "1000",
            "pending",
            "0",
            "10",
            "NULL",
            "NULL",
        ]
        .map(str::to_owned)
    };
    // Postgres spells a stored document with spaces.
    let found: Vec<Vec<String>> = found
        .into_iter()
        .map(|row| row.iter().map(|cell| cell.replace(": ", ":")).collect())
        .collect();
    assert_eq!(
        found,
        [
            expected(r#"["p","device","c1","a"]"#),
            expected(r#"["p","device","c1","quo\"ted"]"#),
        ]
    );
}

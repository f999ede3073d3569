//! What a store leaves in the tables that other programs share, and what it makes
//! of their entries.

use serde_json::json;
use ssp2::Value;
use tidegate_engine::model::ResultLookup;
use tidegate_engine::{ClientId, CommitSeq, LogEpoch};

use super::Harness;
use super::fixture::*;
use crate::CommitError;

pub async fn an_unreadable_result_is_reported_and_kept(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    harness
        .sql("INSERT INTO sync_push_results(partition, client_id, client_commit_id, result) VALUES('p', 'device', 'c1', '{\"status\":\"odd\"}')")
        .await;
    assert_eq!(result(&*store, "p", "c1").await, ResultLookup::Unreadable);
    let refused = try_commit(&*store, &schema, "p", 0, &one_note()).await;
    assert!(
        matches!(refused, Err(CommitError::SequenceMoved)),
        "{refused:?}"
    );
    let kept = rows(harness, "SELECT result FROM sync_push_results").await;
    assert!(kept[0][0].contains("odd"), "{kept:?}");
    assert_eq!(head(&*store, "p").await, 0);
}

pub async fn a_result_recorded_by_another_program_fails_the_batch(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    // A rejection moves no sequence number, so the CAS would not notice it.
    harness
        .sql("INSERT INTO sync_push_results(partition, client_id, client_commit_id, result) VALUES('p', 'device', 'c1', '{\"status\":\"rejected\",\"results\":[{\"opIndex\":0,\"status\":\"error\",\"code\":\"sync.row_missing\",\"message\":\"m\",\"retryable\":false}]}')")
        .await;
    let refused = try_commit(&*store, &schema, "p", 0, &one_note()).await;
    assert!(
        matches!(refused, Err(CommitError::SequenceMoved)),
        "{refused:?}"
    );
    let ResultLookup::Found(found) = result(&*store, "p", "c1").await else {
        panic!("the foreign result is gone");
    };
    assert_eq!(found.commit_seq, None);
}

pub async fn commit_rows_carry_the_writer_version(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(&*store, &schema, "p", 0, &one_note()).await;
    let stored = rows(harness, "SELECT commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version FROM sync_commits").await;
    assert_eq!(stored, [["1", "device", "c1", "actor", "1000", "1"]]);
    let changes = rows(
        harness,
        "SELECT commit_seq, idx, tbl, row_id, op, row_version FROM sync_changes",
    )
    .await;
    assert_eq!(changes, [["1", "0", "notes", "n1", "1", "1"]]);
}

pub async fn blob_references_follow_their_rows(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let blob = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let with = |digit: Option<&str>| {
        let mut values = note("n1", "l1", "o1", None);
        values[9] = digit.map_or(Value::Null, |digit| {
            text(&json!({"blobId": blob(digit), "byteLength": 1}).to_string())
        });
        values
    };
    let references =
        async || rows(harness, "SELECT tbl, row_id, blob_id FROM sync_blob_refs").await;
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, with(Some("a")))]],
    )
    .await;
    assert_eq!(references().await, [["notes", "n1", &blob("a")]]);
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![Op::Put(NOTES, with(Some("b")), 2)]],
    )
    .await;
    assert_eq!(references().await, [["notes", "n1", &blob("b")]]);
    commit(
        &*store,
        &schema,
        "p",
        2,
        &[vec![Op::Put(NOTES, with(None), 3)]],
    )
    .await;
    assert!(references().await.is_empty());
    commit(
        &*store,
        &schema,
        "p",
        3,
        &[vec![Op::Put(NOTES, with(Some("c")), 4)]],
    )
    .await;
    commit(
        &*store,
        &schema,
        "p",
        4,
        &[vec![Op::Delete(NOTES, with(None))]],
    )
    .await;
    assert!(references().await.is_empty());
}

pub async fn scope_indexes_follow_their_rows(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let index = async || {
        rows(
            harness,
            "SELECT var, value FROM sync_row_scopes ORDER BY var",
        )
        .await
    };
    commit(&*store, &schema, "p", 0, &one_note()).await;
    assert_eq!(index().await, [["list_id", "l1"], ["owner", "o1"]]);
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![Op::Put(NOTES, note("n1", "l2", "o1", None), 2)]],
    )
    .await;
    assert_eq!(index().await, [["list_id", "l2"], ["owner", "o1"]]);
    commit(
        &*store,
        &schema,
        "p",
        2,
        &[vec![Op::Delete(NOTES, note("n1", "l2", "o1", None))]],
    )
    .await;
    assert!(index().await.is_empty());
    let changes = rows(
        harness,
        "SELECT var, value, commit_seq FROM sync_change_scopes ORDER BY var, commit_seq",
    )
    .await;
    assert_eq!(
        changes,
        [
            ["list_id", "l1", "1"],
            ["list_id", "l2", "2"],
            ["list_id", "l2", "3"],
            ["owner", "o1", "1"],
            ["owner", "o1", "2"],
            ["owner", "o1", "3"],
        ]
    );
    store
        .read_preamble(&p("p"), &ClientId::from("d"), touch(1, "e"))
        .await
        .unwrap();
    store
        .prune(&p("p"), &LogEpoch::from("e"), CommitSeq(2))
        .await
        .unwrap();
    let changes = rows(
        harness,
        "SELECT var, value, commit_seq FROM sync_change_scopes ORDER BY var",
    )
    .await;
    assert_eq!(changes, [["list_id", "l2", "3"], ["owner", "o1", "3"]]);
}

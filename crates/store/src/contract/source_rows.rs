//! What a backfill reads: ranges, rows by key, changed rows, counts and samples.

use std::sync::Arc;

use tidegate_engine::model::RowKey;
use tidegate_engine::{CommitSeq, TableId};

use super::Harness;
use super::fixture::*;
use crate::{ChangedRows, ChangedRowsQuery, RangeQuery, Store, StoreError};

/// Row ids whose byte order differs from that of any language.
const IDS: [&str; 7] = ["A", "Z", "a", "b", "z", "ä", "\u{1F600}"];

async fn with_notes(harness: &dyn Harness) -> Arc<dyn Store> {
    let schema = compile(&document());
    let store = ready(harness).await;
    let mut ids = IDS;
    ids.reverse();
    let notes = ids.map(|id| put(NOTES, note(id, "l1", "o1", None)));
    commit(&*store, &schema, "p", 0, &[notes.to_vec()]).await;
    let elsewhere = [vec![put(NOTES, note("c", "l2", "o2", None))]];
    commit(&*store, &schema, "q", 0, &elsewhere).await;
    store
}

async fn range(
    store: &dyn Store,
    after: Option<&str>,
    through: Option<&str>,
    limit: usize,
) -> (Vec<String>, bool) {
    let mut snapshot = store.snapshot(&p("p")).await.unwrap();
    let query = RangeQuery {
        table: NOTES,
        after: after.map(Arc::from),
        through: through.map(Arc::from),
        limit,
    };
    let page = snapshot.read_range(query).await.unwrap();
    (page.rows.into_iter().map(|(id, _)| id).collect(), page.more)
}

pub async fn a_range_pages_through_all_rows_in_byte_order(harness: &dyn Harness) {
    let store = with_notes(harness).await;
    for limit in [1, 3, 7, 100] {
        let (mut found, mut after): (Vec<String>, Option<String>) = Default::default();
        loop {
            let (page, more) = range(&*store, after.as_deref(), None, limit).await;
            assert!(page.len() <= limit);
            found.extend(page);
            after = found.last().cloned();
            if !more {
                break;
            }
        }
        assert_eq!(found, IDS, "{limit}");
    }
    // A bound that no database holds as a text is a bound all the same.
    let (inner, _) = range(&*store, Some("Z\0"), Some("z\0"), 10).await;
    assert_eq!(inner, ["a", "b", "z"]);
    let (inner, more) = range(&*store, Some("Z"), Some("z"), 10).await;
    assert_eq!(inner, ["a", "b", "z"]);
    assert!(!more);
    let (ends, more) = range(&*store, None, Some("a"), 3).await;
    assert_eq!(ends, ["A", "Z", "a"]);
    // Rows beyond the end of the range do not count.
    assert!(!more);
    let (first, more) = range(&*store, None, Some("a"), 2).await;
    assert_eq!(first, ["A", "Z"]);
    assert!(more);
    assert_eq!(range(&*store, Some("\u{1F600}"), None, 1).await.0.len(), 0);
}

pub async fn rows_are_read_by_key(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = with_notes(harness).await;
    let projects = [vec![put(PROJECTS, vec![text("a"), text("w")])]];
    commit(&*store, &schema, "p", 1, &projects).await;
    let key = |table: TableId, id: &str| RowKey {
        table,
        row_id: id.into(),
    };
    let keys = [
        key(NOTES, "ä"),
        key(PROJECTS, "a"),
        key(NOTES, "c"),
        key(PROJECTS, "ä"),
        key(NOTES, "a"),
    ];
    let mut snapshot = store.snapshot(&p("p")).await.unwrap();
    let mut found = snapshot.read_rows(&keys).await.unwrap();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let expected = [
        (
            key(NOTES, "a"),
            stored(&schema, NOTES, &note("a", "l1", "o1", None), 1),
        ),
        (
            key(NOTES, "ä"),
            stored(&schema, NOTES, &note("ä", "l1", "o1", None), 1),
        ),
        (
            key(PROJECTS, "a"),
            stored(&schema, PROJECTS, &[text("a"), text("w")], 1),
        ),
    ];
    assert_eq!(found, expected);
    assert!(snapshot.read_rows(&[]).await.unwrap().is_empty());
}

fn outline_of(changes: &ChangedRows) -> Vec<(i64, u16, &str)> {
    let row = |(seq, key): &(CommitSeq, RowKey)| (seq.0, key.table.0);
    changes
        .changes
        .iter()
        .map(|change| {
            let (seq, table) = row(change);
            (seq, table, &*change.1.row_id)
        })
        .collect()
}

pub async fn changed_rows_come_by_whole_commits_in_log_order(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let n = |id: &str| put(NOTES, note(id, "l1", "o1", None));
    let project = |id: &str| put(PROJECTS, vec![text(id), text("w")]);
    let secret = put(
        SECRETS,
        vec![text("s"), text("w"), ssp2::Value::Bytes(vec![1].into())],
    );
    let commits = [
        vec![n("b"), project("x"), n("a")],
        vec![secret.clone()],
        vec![project("y"), secret, project("x")],
        vec![Op::Delete(NOTES, note("b", "l1", "o1", None)), n("c")],
    ];
    commit(&*store, &schema, "p", 0, &commits).await;
    let mut snapshot = store.snapshot(&p("p")).await.unwrap();
    let (notes, projects) = (NOTES.0, PROJECTS.0);
    let mut ask = async |after, through, max_changes| {
        let query = ChangedRowsQuery {
            tables: vec![NOTES, PROJECTS],
            after: CommitSeq(after),
            through: CommitSeq(through),
            max_changes,
        };
        snapshot.read_changed_rows(query).await.unwrap()
    };
    let first = [(1, notes, "b"), (1, projects, "x"), (1, notes, "a")];
    let third = [(3, projects, "y"), (3, projects, "x")];
    let fourth = [(4, notes, "b"), (4, notes, "c")];

    let all = ask(0, 4, 100).await;
    assert_eq!(outline_of(&all), [&first[..], &third, &fourth].concat());
    assert_eq!(all.scanned_through, CommitSeq(4));
    let exact = ask(0, 4, 7).await;
    assert_eq!(outline_of(&exact).len(), 7);
    assert_eq!(exact.scanned_through, CommitSeq(4));
    let two = ask(0, 4, 6).await;
    assert_eq!(outline_of(&two), [&first[..], &third].concat());
    assert_eq!(two.scanned_through, CommitSeq(3));
    // The first commit fits whatever its size.
    for limit in [0, 1, 2, 3, 4] {
        let one = ask(0, 4, limit).await;
        assert_eq!(outline_of(&one), first, "{limit}");
        assert_eq!(one.scanned_through, CommitSeq(1));
    }
    let bounded = ask(1, 3, 100).await;
    assert_eq!(outline_of(&bounded), third);
    assert_eq!(bounded.scanned_through, CommitSeq(3));
    let nothing = ask(1, 2, 1).await;
    assert!(nothing.changes.is_empty());
    assert_eq!(nothing.scanned_through, CommitSeq(2));
}

pub async fn rows_are_counted_and_sampled(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = with_notes(harness).await;
    let count =
        async |partition: &str, table: &str| store.count_rows(&p(partition), table).await.unwrap();
    assert_eq!(count("p", "notes").await, 7);
    assert_eq!(count("q", "notes").await, 1);
    assert_eq!(count("p", "projects").await, 0);
    let many: Vec<Op> = (0..100)
        .map(|n| put(PROJECTS, vec![text(&format!("{n:03}")), text("w")]))
        .collect();
    commit(&*store, &schema, "p", 1, &[many]).await;
    let sample = async |table: &str, wanted| {
        let ids = store.sample_row_ids(&p("p"), table, wanted).await.unwrap();
        ids.iter().map(|id| id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(sample("projects", 4).await, ["024", "049", "074", "099"]);
    assert_eq!(sample("projects", 100).await.len(), 100);
    assert_eq!(sample("projects", 1000).await.len(), 100);
    assert!(sample("projects", 0).await.is_empty());
    assert!(sample("tasks", 5).await.is_empty());
    assert_eq!(sample("notes", 100).await, IDS);
    for unknown in ["nothing", "sync_commits", "notes\" --"] {
        let refused = store.count_rows(&p("p"), unknown).await;
        assert!(matches!(refused, Err(StoreError::Failed { .. })));
        let refused = store.sample_row_ids(&p("p"), unknown, 3).await;
        assert!(matches!(refused, Err(StoreError::Failed { .. })));
    }
}

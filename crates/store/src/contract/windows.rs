//! Windows of the log and pages of rows.

use std::collections::BTreeMap;

use tidegate_engine::CommitSeq;
use tidegate_engine::scopes::matches;

use super::Harness;
use super::fixture::*;
use crate::{ScanQuery, WindowQuery};

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

pub async fn a_window_holds_whole_commits(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let commits = [
        vec![
            put(NOTES, note("a", "l1", "o1", None)),
            put(NOTES, note("x", "l2", "o1", None)),
            put(NOTES, note("b", "l1", "o1", None)),
        ],
        vec![put(NOTES, note("y", "l2", "o1", None))],
        vec![
            put(NOTES, note("c", "l1", "o1", None)),
            put(NOTES, note("d", "l1", "o1", None)),
        ],
        vec![
            put(NOTES, note("e", "l1", "o1", None)),
            put(PROJECTS, vec![text("pr"), text("w")]),
        ],
    ];
    commit(&*store, &schema, "p", 0, &commits).await;
    let ask = async |after, max| {
        let found = window(
            &*store,
            "p",
            window_query(lists(&[("list_id", &["l1"])]), after, 4, max),
        )
        .await;
        (outline(&found), found.scanned_through.0)
    };
    let (first, third, fourth) = (
        (1, names(&["a", "b"])),
        (3, names(&["c", "d"])),
        (4, names(&["e"])),
    );
    assert_eq!(
        ask(0, 5).await,
        (vec![first.clone(), third.clone(), fourth.clone()], 4)
    );
    assert_eq!(ask(0, 4).await, (vec![first.clone(), third.clone()], 3));
    assert_eq!(ask(0, 3).await, (vec![first.clone()], 1));
    assert_eq!(ask(0, 2).await, (vec![first], 1));
    assert_eq!(ask(1, 3).await, (vec![third, fourth.clone()], 4));
    assert_eq!(ask(3, 1).await, (vec![fourth], 4));
    assert_eq!(ask(4, 1).await, (vec![], 4));
}

pub async fn a_commit_larger_than_the_limit_still_fits_first(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let large: Vec<Op> = (0..50)
        .map(|n| put(NOTES, note(&format!("n{n:02}"), "l1", "o1", None)))
        .collect();
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[large, vec![put(NOTES, note("z", "l1", "o1", None))]],
    )
    .await;
    let found = window(
        &*store,
        "p",
        window_query(lists(&[("list_id", &["l1"])]), 0, 2, 3),
    )
    .await;
    assert_eq!(found.commits.len(), 1);
    assert_eq!(found.commits[0].changes.len(), 50);
    assert_eq!(found.scanned_through, CommitSeq(1));
}

pub async fn a_window_matches_every_effective_key(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let commits = [
        // Both values occur in the commit, but in no single row.
        vec![
            put(NOTES, note("a", "l1", "o2", None)),
            put(NOTES, note("b", "l2", "o1", None)),
        ],
        vec![put(NOTES, note("c", "l1", "o1", None))],
        vec![Op::Delete(NOTES, note("c", "l1", "o1", None))],
        vec![put(NOTES, note("d", "l3", "o1", None))],
    ];
    commit(&*store, &schema, "p", 0, &commits).await;
    let both = lists(&[("list_id", &["l1"]), ("owner", &["o1"])]);
    let found = window(&*store, "p", window_query(both, 0, 4, 10)).await;
    assert_eq!(outline(&found), [(2, names(&["c"])), (3, names(&["c"]))]);
    assert!(found.commits[0].changes[0].upsert.is_some());
    assert!(found.commits[1].changes[0].upsert.is_none());
    let several = lists(&[
        ("list_id", &["l3", "l1", "l1", "none"]),
        ("owner", &["o1", "o2"]),
    ]);
    let found = window(&*store, "p", window_query(several, 0, 4, 10)).await;
    assert_eq!(
        outline(&found),
        [
            (1, names(&["a"])),
            (2, names(&["c"])),
            (3, names(&["c"])),
            (4, names(&["d"]))
        ]
    );
    for nothing in [
        lists(&[]),
        lists(&[("list_id", &[])]),
        lists(&[("list_id", &["l1"]), ("owner", &[])]),
    ] {
        let found = window(&*store, "p", window_query(nothing, 0, 4, 10)).await;
        assert!(found.commits.is_empty());
        assert_eq!(found.scanned_through, CommitSeq(4));
    }
}

pub async fn a_window_is_bounded_on_both_sides(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let commits: Vec<Vec<Op>> = (1..=6)
        .map(|n| vec![put(NOTES, note(&format!("n{n}"), "l1", "o1", None))])
        .collect();
    commit(&*store, &schema, "p", 0, &commits).await;
    commit(&*store, &schema, "q", 0, &commits[..1]).await;
    let ask = async |after, through| {
        let found = window(
            &*store,
            "p",
            window_query(lists(&[("list_id", &["l1"])]), after, through, 10),
        )
        .await;
        (
            found
                .commits
                .iter()
                .map(|commit| commit.seq.0)
                .collect::<Vec<_>>(),
            found.scanned_through.0,
        )
    };
    assert_eq!(ask(2, 4).await, (vec![3, 4], 4));
    assert_eq!(ask(4, 4).await, (vec![], 4));
    assert_eq!(ask(5, 9).await, (vec![6], 9));
}

pub async fn windows_agree_with_the_definition(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    // A fixed, irregular sequence: 150 commits of 1..4 changes over 5 lists and 3 owners.
    let mut seed = 7_u64;
    let mut next = |modulus: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % modulus
    };
    let commits: Vec<Vec<Op>> = (0..150)
        .map(|n| {
            let count = next(4) + 1;
            (0..count)
                .map(|k| {
                    let (list, owner) = (format!("l{}", next(5)), format!("o{}", next(3)));
                    put(NOTES, note(&format!("n{n}-{k}"), &list, &owner, None))
                })
                .collect()
        })
        .collect();
    let all = batch(&schema, "p", 0, &commits).commits;
    commit(&*store, &schema, "p", 0, &commits).await;
    for scopes in [
        lists(&[("list_id", &["l0", "l3"]), ("owner", &["o1"])]),
        lists(&[("list_id", &["l1"])]),
        lists(&[("owner", &["o0", "o1", "o2"]), ("list_id", &["l4"])]),
    ] {
        for limit in [1, 3, 40, 1000] {
            let mut after = 0;
            let mut delivered = Vec::new();
            while after < 150 {
                let found = window(
                    &*store,
                    "p",
                    window_query(scopes.clone(), after, 150, limit),
                )
                .await;
                assert!(found.scanned_through.0 > after);
                let changes: usize = found
                    .commits
                    .iter()
                    .map(|commit| commit.changes.len())
                    .sum();
                assert!(changes <= limit || found.commits.len() == 1);
                after = found.scanned_through.0;
                delivered.extend(found.commits);
            }
            let expected: Vec<_> = all
                .iter()
                .cloned()
                .map(std::sync::Arc::unwrap_or_clone)
                .filter_map(|mut commit| {
                    commit
                        .changes
                        .retain(|change| matches(&scopes, &change.scopes));
                    (!commit.changes.is_empty()).then_some(commit)
                })
                .collect();
            assert_eq!(delivered, expected, "{scopes:?} {limit}");
        }
    }
}

pub async fn a_scan_pages_through_rows_in_byte_order(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let unordered = [
        "b",
        "a",
        "Z",
        "é",
        "a\u{10FFFF}",
        "a\u{FFFD}",
        "10",
        "9",
        "B",
        "a b",
    ];
    let mut sorted = unordered.to_vec();
    sorted.sort_unstable_by_key(|id| id.as_bytes());
    let ops = unordered
        .iter()
        .enumerate()
        .map(|(n, id)| put(NOTES, note(id, &format!("l{}", n % 3), "o1", None)));
    commit(&*store, &schema, "p", 0, &[ops.collect()]).await;
    for limit in 1..=11 {
        let mut after: Option<String> = None;
        let mut seen = Vec::new();
        loop {
            let scopes = lists(&[("list_id", &["l2", "l0", "l1", "l0"])]);
            let page = scan(&*store, "p", scopes, after.as_deref(), limit).await;
            assert!(page.rows.len() <= limit);
            seen.extend(ids(&page).into_iter().map(str::to_owned));
            assert_eq!(page.more, seen.len() < sorted.len(), "limit {limit}");
            if !page.more {
                break;
            }
            after = seen.last().cloned();
        }
        assert_eq!(seen, sorted, "limit {limit}");
    }
}

pub async fn a_scan_matches_every_effective_key(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let rows: BTreeMap<String, Vec<ssp2::Value>> = (0..60)
        .map(|n| {
            let id = format!("n{n:02}");
            let values = note(&id, &format!("l{}", n % 4), &format!("o{}", n % 3), None);
            (id, values)
        })
        .collect();
    let ops = rows.values().map(|values| put(NOTES, values.clone()));
    commit(&*store, &schema, "p", 0, &[ops.collect()]).await;
    for scopes in [
        lists(&[("list_id", &["l1"]), ("owner", &["o2"])]),
        lists(&[("list_id", &["l0", "l1", "l3"]), ("owner", &["o0", "o1"])]),
        lists(&[("owner", &["o1"])]),
        lists(&[("list_id", &["l1"]), ("owner", &["nobody"])]),
        lists(&[]),
    ] {
        let expected: Vec<&str> = rows
            .iter()
            .filter(|(_, values)| matches(&scopes, &stored(&schema, NOTES, values, 1).scopes))
            .map(|(id, _)| id.as_str())
            .collect();
        let page = scan(&*store, "p", scopes.clone(), None, 100).await;
        assert_eq!(ids(&page), expected, "{scopes:?}");
        assert!(!page.more);
        for (id, row) in &page.rows {
            assert_eq!(*row, stored(&schema, NOTES, &rows[id], 1));
        }
    }
}

pub async fn a_row_that_changes_scope_leaves_its_old_scan(harness: &dyn Harness) {
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
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![Op::Put(NOTES, note("n1", "l2", "o1", None), 2)]],
    )
    .await;
    let old = scan(&*store, "p", lists(&[("list_id", &["l1"])]), None, 10).await;
    let new = scan(&*store, "p", lists(&[("list_id", &["l2"])]), None, 10).await;
    assert!(old.rows.is_empty());
    assert_eq!(ids(&new), ["n1"]);
}

/// A note that carries `bytes` bytes.
fn heavy(id: &str, bytes: usize) -> Op {
    let mut values = note(id, "l1", "o1", None);
    values[8] = ssp2::Value::Bytes(vec![7; bytes].into());
    put(NOTES, values)
}

pub async fn a_window_is_bounded_by_bytes(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let commits = [
        vec![heavy("a", 90_000)],
        vec![heavy("b", 3_000), heavy("c", 3_000)],
        vec![put(NOTES, note("x", "l2", "o1", None))],
        vec![heavy("d", 3_000)],
        vec![heavy("e", 90_000)],
        vec![Op::Delete(NOTES, note("e", "l1", "o1", None))],
    ];
    commit(&*store, &schema, "p", 0, &commits).await;
    let ask = async |after, max_bytes| {
        let query = WindowQuery {
            max_bytes,
            ..window_query(lists(&[("list_id", &["l1"])]), after, 6, 100)
        };
        let found = window(&*store, "p", query).await;
        let seqs: Vec<i64> = found.commits.iter().map(|commit| commit.seq.0).collect();
        (seqs, found.scanned_through.0)
    };
    // The first one fits whatever its size, and alone.
    assert_eq!(ask(0, 0).await, (vec![1], 1));
    assert_eq!(ask(0, 89_000).await, (vec![1], 1));
    assert_eq!(ask(0, 92_000).await, (vec![1], 1));
    assert_eq!(ask(0, 98_000).await, (vec![1, 2], 2));
    assert_eq!(ask(1, 0).await, (vec![2], 2));
    // A commit is never split, and what does not match weighs nothing.
    assert_eq!(ask(1, 5_000).await, (vec![2], 2));
    assert_eq!(ask(1, 12_000).await, (vec![2, 4], 4));
    assert_eq!(ask(4, 12_000).await, (vec![5], 5));
    assert_eq!(ask(5, 0).await, (vec![6], 6));
    assert_eq!(ask(0, 1 << 20).await, (vec![1, 2, 4, 5, 6], 6));
}

pub async fn a_long_window_is_bounded_by_bytes(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let commits: Vec<Vec<Op>> = (0..200)
        .map(|n| vec![heavy(&format!("n{n:03}"), 1_000)])
        .collect();
    commit(&*store, &schema, "p", 0, &commits).await;
    let (mut after, mut rounds) = (0, 0);
    while after < 200 {
        let query = WindowQuery {
            max_bytes: 90_000,
            ..window_query(lists(&[("list_id", &["l1"])]), after, 200, 1_000)
        };
        let found = window(&*store, "p", query).await;
        let changes = found.commits.iter().flat_map(|commit| &commit.changes);
        let bytes: usize = changes.map(|change| change.bytes()).sum();
        assert!(bytes <= 90_000, "{bytes}");
        assert_eq!(found.commits[0].seq.0, after + 1);
        assert_eq!(found.commits.last().unwrap().seq, found.scanned_through);
        after = found.scanned_through.0;
        rounds += 1;
    }
    assert!((3..=5).contains(&rounds), "{rounds}");
}

pub async fn a_scan_is_bounded_by_bytes(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let ops = vec![
        heavy("a", 90_000),
        heavy("b", 3_000),
        heavy("c", 3_000),
        heavy("d", 90_000),
        heavy("e", 3_000),
    ];
    commit(&*store, &schema, "p", 0, &[ops]).await;
    let ask = async |after: Option<&str>, limit, max_bytes| {
        let query = ScanQuery {
            table: NOTES,
            scopes: lists(&[("list_id", &["l1"]), ("owner", &["o1", "o2"])]),
            after_row_id: after.map(str::to_owned),
            limit,
            max_bytes,
        };
        let mut snapshot = store.snapshot(&p("p")).await.unwrap();
        let page = snapshot.scan_rows(query).await.unwrap();
        (ids(&page).concat(), page.more)
    };
    let page = |ids: &str, more| (ids.to_owned(), more);
    assert_eq!(ask(None, 10, 0).await, page("a", true));
    assert_eq!(ask(None, 10, 92_000).await, page("a", true));
    assert_eq!(ask(None, 10, 98_000).await, page("abc", true));
    assert_eq!(ask(None, 2, 98_000).await, page("ab", true));
    assert_eq!(ask(Some("a"), 10, 5_000).await, page("b", true));
    assert_eq!(ask(Some("c"), 10, 0).await, page("d", true));
    assert_eq!(ask(Some("d"), 10, 0).await, page("e", false));
    assert_eq!(ask(None, 5, 1 << 20).await, page("abcde", false));
    assert_eq!(ask(None, 4, 1 << 20).await, page("abcd", true));
}

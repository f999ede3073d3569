//! Preambles that bring along what a request's commits need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::{join, join_all};
use ssp2::Value;
use tidegate_engine::model::{
    ClientRecord, Fetched, Needs, ResultKey, ResultLookup, RowKey, RowState,
};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, TableId};

use super::Harness;
use super::fixture::*;
use crate::{Preamble, Store};

/// More than any backend reads along with one preamble.
const HUGE: usize = 4_500;

fn key(table: TableId, id: &str) -> RowKey {
    RowKey {
        table,
        row_id: id.into(),
    }
}

/// Rows and results by name.
fn needs(rows: &[(TableId, &str)], results: &[&str]) -> Needs {
    Needs {
        rows: rows.iter().map(|(table, id)| key(*table, id)).collect(),
        results: results.iter().map(|name| result_key(name)).collect(),
        children: BTreeSet::new(),
    }
}

type Contents = (
    CommitSeq,
    BTreeMap<RowKey, RowState>,
    BTreeMap<ResultKey, ResultLookup>,
);

/// What was read, whatever its order; nothing may come twice.
fn contents(fetched: Fetched) -> Contents {
    let (rows, results) = (fetched.rows.len(), fetched.results.len());
    let contents: Contents = (
        fetched.max,
        fetched.rows.into_iter().collect(),
        fetched.results.into_iter().collect(),
    );
    assert_eq!((contents.1.len(), contents.2.len()), (rows, results));
    assert!(fetched.children.is_empty());
    contents
}

async fn ask(
    store: &dyn Store,
    partition: &str,
    device: &str,
    ahead: &Needs,
) -> (Preamble, Option<Contents>) {
    let (preamble, fetched) = store
        .read_preamble_ahead(
            &p(partition),
            &ClientId::from(device),
            touch(1, &format!("epoch of {partition}")),
            ahead.clone(),
        )
        .await
        .unwrap();
    (preamble, fetched.map(contents))
}

async fn register(store: &dyn Store, partition: &str) {
    ask(store, partition, "device", &Needs::default()).await;
}

/// The preamble without anything ahead, which the other one must equal.
async fn assert_same_preamble(
    store: &dyn Store,
    partition: &str,
    device: &str,
    preamble: &Preamble,
) {
    let alone = store
        .read_preamble(&p(partition), &ClientId::from(device), touch(1, "unused"))
        .await
        .unwrap();
    assert_eq!(preamble.registry, alone.registry);
    assert_eq!(preamble.gate, alone.gate);
    assert_eq!(preamble.bounds, alone.bounds);
    assert_eq!(preamble.layout_floor, alone.layout_floor);
    assert_eq!(preamble.client, alone.client);
}

/// Two commits: notes `n1` and `n2` and tasks 1 and 2, of which `n2` and 2 go again. Ranks
/// and bodies tell the partition.
async fn fill(store: &dyn Store, partition: &str, rank: i64) {
    let schema = compile(&document());
    let task = |id: i64| {
        vec![
            Value::Integer(id),
            text("w"),
            Value::Null,
            text(&format!("task {id} of {partition}")),
        ]
    };
    let commits = [
        vec![
            put(NOTES, note("n1", "l1", "o1", Some(rank))),
            put(NOTES, note("n2", "l1", "o1", None)),
            put(TASKS, task(1)),
            put(TASKS, task(2)),
        ],
        vec![
            Op::Delete(NOTES, note("n2", "l1", "o1", None)),
            Op::Delete(TASKS, task(2)),
        ],
    ];
    commit(store, &schema, partition, 0, &commits[..1]).await;
    commit(store, &schema, partition, 1, &commits[1..]).await;
}

pub async fn what_is_read_ahead_is_what_the_needs_answer(harness: &dyn Harness) {
    let store = ready(harness).await;
    register(&*store, "p").await;
    fill(&*store, "p", 7).await;
    let ahead = needs(
        &[
            (NOTES, "n1"),
            (NOTES, "n2"),
            (NOTES, "n3"),
            (TASKS, "1"),
            (TASKS, "2"),
            (TASKS, "3"),
        ],
        &["c1", "c2", "c3"],
    );
    for device in ["device", "stranger"] {
        let (preamble, fetched) = ask(&*store, "p", device, &ahead).await;
        let fetched = fetched.unwrap();
        assert_eq!(
            fetched,
            contents(store.read_needs(&p("p"), &ahead).await.unwrap())
        );
        assert_same_preamble(&*store, "p", device, &preamble).await;
        let (max, rows, results) = fetched;
        assert_eq!((max, preamble.bounds.max), (CommitSeq(2), CommitSeq(2)));
        for (table, present, gone, never) in [(NOTES, "n1", "n2", "n3"), (TASKS, "1", "2", "3")] {
            assert!(matches!(rows[&key(table, present)], RowState::Present(_)));
            let tombstone = |id| match &rows[&key(table, id)] {
                RowState::Absent { tombstone } => *tombstone,
                RowState::Present(_) => panic!("{id} is stored"),
            };
            assert_eq!(tombstone(gone), Some(CommitSeq(2)));
            assert_eq!(tombstone(never), None);
        }
        assert_eq!(
            results[&result_key("c1")],
            ResultLookup::Found(Arc::new(applied(1)))
        );
        assert_eq!(
            results[&result_key("c2")],
            ResultLookup::Found(Arc::new(applied(2)))
        );
        assert_eq!(results[&result_key("c3")], ResultLookup::Absent);
    }
    // One of the two kinds alone.
    for ahead in [needs(&[(TASKS, "1")], &[]), needs(&[], &["c2"])] {
        let (_, fetched) = ask(&*store, "p", "device", &ahead).await;
        assert_eq!(
            fetched.unwrap(),
            contents(store.read_needs(&p("p"), &ahead).await.unwrap())
        );
    }
}

pub async fn an_unreadable_result_is_read_ahead_as_such(harness: &dyn Harness) {
    let store = ready(harness).await;
    register(&*store, "p").await;
    harness
        .sql("INSERT INTO sync_push_results(partition, client_id, client_commit_id, result) VALUES('p', 'device', 'c1', '{\"status\":\"odd\"}')")
        .await;
    let (_, fetched) = ask(&*store, "p", "device", &needs(&[], &["c1"])).await;
    assert_eq!(
        fetched.unwrap().2[&result_key("c1")],
        ResultLookup::Unreadable
    );
}

pub async fn requests_that_ask_at_once_get_each_their_own(harness: &dyn Harness) {
    let store = ready(harness).await;
    let partitions = ["p", "q", "r"];
    for (rank, partition) in (1..).zip(partitions) {
        register(&*store, partition).await;
        fill(&*store, partition, rank).await;
        let records = ["a", "b"].map(|device| {
            let mut record = client(device, &format!("{device} in {partition}"), rank);
            record.updated_at_ms = rank;
            record
        });
        store
            .record_clients(&p(partition), records.to_vec())
            .await
            .unwrap();
    }
    let asked = [
        needs(&[(NOTES, "n1"), (TASKS, "2")], &["c1"]),
        needs(&[(TASKS, "1"), (NOTES, "n2"), (NOTES, "n1")], &[]),
        needs(&[], &["c2", "c9"]),
        Needs::default(),
    ];
    let asked = &asked;
    for _ in 0..5 {
        let requests = partitions.iter().flat_map(|partition| {
            ["a", "b", "stranger"].into_iter().flat_map(move |device| {
                let asked = asked.iter();
                asked.map(move |ahead| (*partition, device, ahead))
            })
        });
        let answers = requests
            .clone()
            .map(|(partition, device, ahead)| ask(&*store, partition, device, ahead));
        let answers = join_all(answers).await;
        for ((partition, device, ahead), (preamble, fetched)) in requests.zip(answers) {
            let known = |record: &ClientRecord| record.actor_id.as_str().to_owned();
            let expected = (device != "stranger").then(|| format!("{device} in {partition}"));
            assert_eq!(preamble.client.as_ref().map(known), expected);
            let epoch = LogEpoch::from(format!("epoch of {partition}").as_str());
            assert_eq!(preamble.registry.log_epoch, epoch);
            if *ahead == Needs::default() {
                assert!(
                    fetched.is_none_or(|(_, rows, results)| rows.is_empty() && results.is_empty())
                );
            } else {
                let own = store.read_needs(&p(partition), ahead).await.unwrap();
                assert_eq!(fetched.unwrap(), contents(own), "{partition} {device}");
            }
        }
    }
}

pub async fn nothing_read_ahead_is_older_than_its_head(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    register(&*store, "p").await;
    let values = note("n1", "l1", "o1", None);
    let ahead = needs(&[(NOTES, "n1")], &[]);
    // The version of the row is the position of the commit that wrote it.
    let write = async {
        for head in 0..40 {
            let ops = [vec![Op::Put(NOTES, values.clone(), head + 1)]];
            commit(&*store, &schema, "p", head, &ops).await;
        }
    };
    let read = async {
        loop {
            let (preamble, fetched) = ask(&*store, "p", "device", &ahead).await;
            let (max, rows, _) = fetched.unwrap();
            assert!(max >= preamble.bounds.max);
            let version = match &rows[&key(NOTES, "n1")] {
                RowState::Present(row) => row.server_version,
                RowState::Absent { .. } => 0,
            };
            assert!(version >= max.0, "version {version} at {max:?}");
            if max == CommitSeq(40) {
                break;
            }
        }
    };
    join(write, read).await;
}

pub async fn a_huge_need_is_answered_whole_or_not_at_all(harness: &dyn Harness) {
    let store = ready(harness).await;
    register(&*store, "p").await;
    fill(&*store, "p", 1).await;
    let many = |count: usize| {
        let mut ahead = needs(&[(NOTES, "n1"), (NOTES, "n2"), (TASKS, "1")], &["c1"]);
        let missing = count - ahead.rows.len() - ahead.results.len();
        let others = (0..missing).map(|n| key(NOTES, &format!("none{n}")));
        ahead.rows.extend(others);
        ahead
    };
    let check = async |ahead: &Needs, answer: (Preamble, Option<Contents>)| {
        let (preamble, fetched) = answer;
        assert_same_preamble(&*store, "p", "device", &preamble).await;
        let own = contents(store.read_needs(&p("p"), ahead).await.unwrap());
        if let Some(fetched) = &fetched {
            assert_eq!(fetched.1.len(), ahead.rows.len());
            assert!(*fetched == own);
        }
        fetched.is_some()
    };
    let huge = many(HUGE);
    let answer = ask(&*store, "p", "device", &huge).await;
    check(&huge, answer).await;
    // Together they ask for more than one of them may.
    let large = many(HUGE / 2);
    let answers = join_all((0..4).map(|_| ask(&*store, "p", "device", &large))).await;
    let mut answered = 0;
    for answer in answers {
        answered += usize::from(check(&large, answer).await);
    }
    assert!(answered > 0);
}

pub async fn keys_that_no_row_can_have_do_not_fail_a_preamble(harness: &dyn Harness) {
    let store = ready(harness).await;
    register(&*store, "p").await;
    fill(&*store, "p", 1).await;
    let long = "x".repeat(100_000);
    let odd = [
        needs(&[(NOTES, "a\0b")], &[]),
        needs(&[(NOTES, "\0")], &["a\0b"]),
        needs(&[], &["\0"]),
        needs(
            &[(TASKS, "99999999999999999999999"), (TASKS, "no number")],
            &[],
        ),
        needs(
            &[(NOTES, ""), (NOTES, &long), (SECRETS, "'\"\\")],
            &[&long, ""],
        ),
    ];
    let usual = needs(&[(NOTES, "n1"), (TASKS, "2")], &["c1"]);
    for odd in odd {
        let mut mixed = odd.clone();
        mixed.rows.extend(usual.rows.iter().cloned());
        mixed.results.extend(usual.results.iter().cloned());
        for ahead in [&odd, &mixed] {
            // Beside one that asks for what there is.
            let ((preamble, fetched), (_, other)) = join(
                ask(&*store, "p", "device", ahead),
                ask(&*store, "p", "other", &usual),
            )
            .await;
            assert_same_preamble(&*store, "p", "device", &preamble).await;
            if let Some((max, rows, results)) = fetched {
                assert_eq!(max, CommitSeq(2));
                for key in &odd.rows {
                    assert_eq!(rows[key], RowState::Absent { tombstone: None });
                }
                for key in &odd.results {
                    assert_eq!(results[key], ResultLookup::Absent);
                }
                assert_eq!(rows.len(), ahead.rows.len());
                assert_eq!(results.len(), ahead.results.len());
            }
            if let Some(other) = other {
                let own = store.read_needs(&p("p"), &usual).await.unwrap();
                assert_eq!(other, contents(own));
            }
        }
    }
    // Nor does a device that nobody can be.
    let (preamble, _) = ask(&*store, "p", "de\0vice", &usual).await;
    assert_eq!(preamble.client, None);
    assert_eq!(preamble.bounds.max, CommitSeq(2));
}

pub async fn a_partitions_first_request_may_read_ahead(harness: &dyn Harness) {
    let store = ready(harness).await;
    fill(&*store, "written", 1).await;
    let ahead = needs(&[(NOTES, "n1"), (NOTES, "n2")], &["c1"]);
    for partition in ["new", "written"] {
        let requests = (0..4).map(|_| ask(&*store, partition, "device", &ahead));
        for (preamble, fetched) in join_all(requests).await {
            let epoch = LogEpoch::from(format!("epoch of {partition}").as_str());
            assert_eq!(preamble.registry.log_epoch, epoch);
            assert_eq!(preamble.gate.log_epoch, Some(epoch));
            assert_same_preamble(&*store, partition, "device", &preamble).await;
            if let Some(fetched) = fetched {
                let own = store.read_needs(&p(partition), &ahead).await.unwrap();
                assert_eq!(fetched, contents(own));
            }
        }
        // Registered, it is read ahead for.
        assert!(ask(&*store, partition, "device", &ahead).await.1.is_some());
    }
}

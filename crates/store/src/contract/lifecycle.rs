//! Retention, rotation, client records and closing.

use tidegate_engine::model::{LogBounds, Registry, ResultLookup, RowState};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch};

use super::Harness;
use super::fixture::*;
use crate::{CommitError, Pruned, Store, StoreError};

async fn with_five_commits(harness: &dyn Harness) -> std::sync::Arc<dyn Store> {
    let schema = compile(&document());
    let store = ready(harness).await;
    store
        .read_preamble(&p("p"), &ClientId::from("device"), touch(1, "e1"))
        .await
        .unwrap();
    let gone = note("gone", "l1", "o1", None);
    let commits = [
        vec![put(NOTES, note("n1", "l1", "o1", None))],
        vec![put(NOTES, gone.clone())],
        vec![Op::Delete(NOTES, gone)],
        vec![put(NOTES, note("n4", "l1", "o1", None))],
        vec![put(NOTES, note("n5", "l1", "o1", None))],
    ];
    commit(&*store, &schema, "p", 0, &commits).await;
    store
}

async fn prune(store: &dyn Store, through: i64) -> Pruned {
    let epoch = LogEpoch::from("e1");
    store
        .prune(&p("p"), &epoch, CommitSeq(through))
        .await
        .unwrap()
}

fn pruned(previous: i64, horizon: i64, removed: u64) -> Pruned {
    Pruned {
        previous: CommitSeq(previous),
        horizon: CommitSeq(horizon),
        removed,
    }
}

pub async fn a_prune_moves_the_horizon_up_only(harness: &dyn Harness) {
    let store = with_five_commits(harness).await;
    assert_eq!(prune(&*store, 0).await, pruned(0, 0, 0));
    assert_eq!(prune(&*store, 2).await, pruned(0, 2, 2));
    assert_eq!(prune(&*store, 1).await, pruned(2, 2, 0));
    assert_eq!(prune(&*store, 2).await, pruned(2, 2, 0));
    // Never beyond the head: commits to come must not fall under the horizon.
    assert_eq!(prune(&*store, 99).await, pruned(2, 5, 3));
    let (_, bounds) = store.read_gate(&p("p")).await.unwrap();
    assert_eq!(
        bounds,
        LogBounds {
            max: CommitSeq(5),
            horizon: CommitSeq(5)
        }
    );
}

pub async fn a_prune_for_another_epoch_is_refused(harness: &dyn Harness) {
    let store = with_five_commits(harness).await;
    let other = LogEpoch::from("e2");
    assert!(matches!(
        store.prune(&p("p"), &other, CommitSeq(2)).await,
        Err(StoreError::EpochChanged)
    ));
    assert!(matches!(
        store.prune(&p("never"), &other, CommitSeq(2)).await,
        Err(StoreError::UnknownPartition)
    ));
    let snapshot = store.snapshot(&p("p")).await.unwrap();
    assert_eq!(snapshot.bounds().horizon, CommitSeq(0));
}

pub async fn a_prune_keeps_rows_and_results(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = with_five_commits(harness).await;
    let gone = key_of(&schema, NOTES, &note("gone", "l1", "o1", None));
    prune(&*store, 2).await;
    assert_eq!(
        row(&*store, "p", gone.clone()).await,
        RowState::Absent {
            tombstone: Some(CommitSeq(3))
        }
    );
    prune(&*store, 3).await;
    assert_eq!(
        row(&*store, "p", gone).await,
        RowState::Absent { tombstone: None }
    );
    let scopes = lists(&[("list_id", &["l1"])]);
    assert_eq!(
        ids(&scan(&*store, "p", scopes.clone(), None, 10).await),
        ["n1", "n4", "n5"]
    );
    assert!(matches!(
        result(&*store, "p", "c1").await,
        ResultLookup::Found(_)
    ));
    let left = window(&*store, "p", window_query(scopes, 0, 5, 10)).await;
    assert_eq!(
        outline(&left)
            .iter()
            .map(|(seq, _)| *seq)
            .collect::<Vec<_>>(),
        [4, 5]
    );
    // The log goes on where it was.
    commit(
        &*store,
        &schema,
        "p",
        5,
        &[vec![put(NOTES, note("n6", "l1", "o1", None))]],
    )
    .await;
}

pub async fn a_rotation_requires_the_epoch_and_forgets_clients(harness: &dyn Harness) {
    let store = with_five_commits(harness).await;
    store
        .record_clients(&p("p"), vec![client("device", "actor", 3)])
        .await
        .unwrap();
    store
        .record_clients(&p("q"), vec![client("device", "actor", 3)])
        .await
        .unwrap();
    let expected = Registry {
        log_epoch: LogEpoch::from("e2"),
        epoch_required: true,
    };
    let rotated = store
        .rotate_epoch(&p("p"), LogEpoch::from("e2"), 9)
        .await
        .unwrap();
    assert_eq!(rotated, expected);
    let preamble = store
        .read_preamble(&p("p"), &ClientId::from("device"), touch(10, "e3"))
        .await
        .unwrap();
    assert_eq!(preamble.registry, expected);
    assert_eq!(preamble.client, None);
    assert_eq!(preamble.bounds.max, CommitSeq(5));
    assert_eq!(store.list_clients(&p("q")).await.unwrap().len(), 1);
    // A partition nobody has used yet can be rotated too.
    assert_eq!(
        store
            .rotate_epoch(&p("new"), LogEpoch::from("e2"), 9)
            .await
            .unwrap(),
        expected
    );
}

pub async fn a_client_is_never_bound_to_another_actor(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    store
        .record_clients(&p("p"), vec![client("device", "alice", 1)])
        .await
        .unwrap();
    store
        .record_clients(&p("p"), vec![client("device", "mallory", 9)])
        .await
        .unwrap();
    let mut batch = batch(&schema, "p", 0, &[]);
    batch.clients.push(client("device", "mallory", 9));
    store
        .commit_batch(std::sync::Arc::new(batch))
        .await
        .unwrap();
    assert_eq!(
        store.list_clients(&p("p")).await.unwrap(),
        [client("device", "alice", 1)]
    );
    store
        .record_clients(&p("p"), vec![client("device", "alice", 2)])
        .await
        .unwrap();
    assert_eq!(
        store.list_clients(&p("p")).await.unwrap(),
        [client("device", "alice", 2)]
    );
}

pub async fn commits_are_found_by_time(harness: &dyn Harness) {
    let store = with_five_commits(harness).await;
    for (time, expected) in [
        (0, 0),
        (1000, 0),
        (1001, 1),
        (3000, 2),
        (3001, 3),
        (99_000, 5),
    ] {
        assert_eq!(
            store.commit_before(&p("p"), time).await.unwrap(),
            CommitSeq(expected),
            "{time}"
        );
    }
    assert_eq!(
        store.commit_before(&p("never"), 99_000).await.unwrap(),
        CommitSeq(0)
    );
}

pub async fn partitions_and_clients_are_listed(harness: &dyn Harness) {
    let store = ready(harness).await;
    assert!(store.list_partitions().await.unwrap().is_empty());
    for name in ["b", "a", "c"] {
        store
            .read_preamble(&p(name), &ClientId::from("device"), touch(1, "e"))
            .await
            .unwrap();
    }
    assert_eq!(
        store.list_partitions().await.unwrap(),
        [p("a"), p("b"), p("c")]
    );
    let records = [client("d1", "x", -1), client("d2", "y", 7)];
    store
        .record_clients(&p("a"), records.to_vec())
        .await
        .unwrap();
    assert_eq!(store.list_clients(&p("a")).await.unwrap(), records);
    assert!(store.list_clients(&p("b")).await.unwrap().is_empty());
}

pub async fn a_closed_store_refuses_work(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let snapshot = store.snapshot(&p("p")).await.unwrap();
    store.close().await;
    drop(snapshot);
    assert!(matches!(store.ping().await, Err(StoreError::Closed)));
    assert!(matches!(
        store.read_gate(&p("p")).await,
        Err(StoreError::Closed)
    ));
    assert!(matches!(
        store.snapshot(&p("p")).await.err(),
        Some(StoreError::Closed)
    ));
    let refused = try_commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, note("n1", "l1", "o1", None))]],
    )
    .await;
    assert!(
        matches!(refused, Err(CommitError::Store(StoreError::Closed))),
        "{refused:?}"
    );
    store.close().await;
}

//! Batches that were decided on top of one that is still being written.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use tidegate_engine::model::{CommitBatch, ResultLookup, RowState};
use tidegate_engine::schema::Schema;

use super::Harness;
use super::fixture::*;
use crate::{CommitError, Link, Store, chain};

/// One commit with a note of its own.
fn numbered(schema: &Schema, partition: &str, expected: i64) -> CommitBatch {
    let values = note(&format!("own{expected}"), "l1", "o1", None);
    batch(schema, partition, expected, &[vec![put(NOTES, values)]])
}

/// Whether nothing of the batch numbered so stands, and the head is there too.
async fn assert_unwritten(store: &dyn Store, schema: &Schema, partition: &str, expected: i64) {
    assert_eq!(head(store, partition).await, expected);
    let values = note(&format!("own{expected}"), "l1", "o1", None);
    assert_eq!(
        row(store, partition, key_of(schema, NOTES, &values)).await,
        RowState::Absent { tombstone: None }
    );
    let name = format!("c{}", expected + 1);
    assert_eq!(result(store, partition, &name).await, ResultLookup::Absent);
    let query = window_query(lists(&[("list_id", &["l1"])]), expected, expected + 10, 10);
    assert!(window(store, partition, query).await.commits.is_empty());
}

/// Whether a batch that has returned was durable, as its link tells.
fn told(link: &Link) -> bool {
    let settled = link.clone().settled().now_or_never();
    let settled = settled.expect("a batch that returned has told its outcome");
    assert_eq!(settled, link.stands());
    settled
}

pub async fn a_chained_batch_is_written_once_the_one_before_it_is_durable(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    for expected in 0..3 {
        let (before, link) = chain();
        let (settle, own) = chain();
        let batch = Arc::new(numbered(&schema, "p", expected));
        let mut waiting = Box::pin(store.commit_chained(batch, Some(link), settle));
        assert!((&mut waiting).now_or_never().is_none());
        // What is written after it was asked for stands, and it does not.
        for n in 0..5 {
            commit(
                &*store,
                &schema,
                &format!("q{expected}"),
                n,
                &[vec![put_again(NOTES, note("n", "l1", "o1", None))]],
            )
            .await;
        }
        assert!((&mut waiting).now_or_never().is_none());
        assert_unwritten(&*store, &schema, "p", expected).await;
        assert!(own.clone().settled().now_or_never().is_none());
        before.settle(true);
        waiting.await.unwrap();
        assert!(told(&own));
        assert_eq!(head(&*store, "p").await, expected + 1);
    }
    assert_eq!(
        result(&*store, "p", "c3").await,
        ResultLookup::Found(Arc::new(applied(3)))
    );
}

pub async fn a_batch_after_one_that_stands_is_written_at_once(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let (before, link) = chain();
    before.settle(true);
    let (settle, own) = chain();
    let batch = Arc::new(numbered(&schema, "p", 0));
    store
        .commit_chained(batch, Some(link), settle)
        .await
        .unwrap();
    assert!(told(&own));
    assert_eq!(head(&*store, "p").await, 1);
}

pub async fn a_batch_after_one_that_does_not_stand_is_unfounded(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(&*store, &schema, "p", 0, &one_note()).await;
    for (dropped, early) in [(false, false), (false, true), (true, false), (true, true)] {
        let (before, link) = chain();
        let fail = |before: crate::Settle| {
            if dropped {
                drop(before);
            } else {
                before.settle(false);
            }
        };
        let (settle, own) = chain();
        // The gate would let it pass.
        let batch = Arc::new(numbered(&schema, "p", 1));
        let mut waiting = Box::pin(store.commit_chained(batch, Some(link), settle));
        let outcome = if early {
            fail(before);
            waiting.await
        } else {
            assert!((&mut waiting).now_or_never().is_none());
            fail(before);
            waiting.await
        };
        assert!(
            matches!(outcome, Err(CommitError::Unfounded)),
            "{outcome:?}"
        );
        assert!(!told(&own));
        commit(&*store, &schema, "q", 0, &[]).await;
        assert_unwritten(&*store, &schema, "p", 1).await;
    }
    // The next one that is founded on what is stored is written.
    let (settle, own) = chain();
    let batch = Arc::new(numbered(&schema, "p", 1));
    store.commit_chained(batch, None, settle).await.unwrap();
    assert!(told(&own));
}

pub async fn a_batch_tells_its_own_outcome(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let write = async |batch: CommitBatch| {
        let (settle, own) = chain();
        let outcome = store.commit_chained(Arc::new(batch), None, settle).await;
        (outcome, told(&own))
    };
    let first = [vec![put(NOTES, note("first", "l1", "o1", Some(1)))]];
    let (outcome, stands) = write(batch(&schema, "p", 0, &first)).await;
    assert!(outcome.is_ok() && stands);
    for expected in [0, 2] {
        let (outcome, stands) = write(numbered(&schema, "p", expected)).await;
        assert!(
            matches!(outcome, Err(CommitError::SequenceMoved)),
            "{outcome:?}"
        );
        assert!(!stands);
    }
    let colliding = [vec![put(NOTES, note("second", "l1", "o1", Some(1)))]];
    let (outcome, stands) = write(batch(&schema, "p", 1, &colliding)).await;
    assert!(
        matches!(outcome, Err(CommitError::Constraint { .. })),
        "{outcome:?}"
    );
    assert!(!stands);
    let mut other_version = numbered(&schema, "p", 1);
    other_version.writer_version.0 = 9;
    let (outcome, stands) = write(other_version).await;
    assert!(
        matches!(outcome, Err(CommitError::SchemaChanged { .. })),
        "{outcome:?}"
    );
    assert!(!stands);
    assert_unwritten(&*store, &schema, "p", 1).await;
    let (outcome, stands) = write(numbered(&schema, "p", 1)).await;
    assert!(outcome.is_ok() && stands);
}

pub async fn a_batch_that_fails_takes_along_all_that_follow_it(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(&*store, &schema, "p", 0, &one_note()).await;
    let ends: Vec<_> = (0..3).map(|_| chain()).collect();
    let links: Vec<Link> = ends.iter().map(|(_, link)| link.clone()).collect();
    // The first one loses its CAS. The gate would let the others pass.
    let batches = [
        numbered(&schema, "p", 7),
        numbered(&schema, "p", 1),
        numbered(&schema, "p", 1),
    ];
    let mut all = Vec::new();
    for (at, ((settle, _), batch)) in ends.into_iter().zip(batches).enumerate() {
        let after = at.checked_sub(1).map(|before| links[before].clone());
        all.push(store.commit_chained(Arc::new(batch), after, settle));
    }
    all.reverse();
    let mut outcomes = join_all(all).await;
    let first = outcomes.pop().unwrap();
    assert!(
        matches!(first, Err(CommitError::SequenceMoved)),
        "{first:?}"
    );
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(CommitError::Unfounded)),
            "{outcome:?}"
        );
    }
    assert!(links.iter().all(|link| !told(link)));
    assert_unwritten(&*store, &schema, "p", 1).await;
}

pub async fn chained_batches_land_in_order_whichever_comes_first(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    // A partition's first commit and a later one.
    for expected in [0, 2] {
        let ((first, link), (second, own)) = (chain(), chain());
        let batch = Arc::new(numbered(&schema, "p", expected + 1));
        let mut later = Box::pin(store.commit_chained(batch, Some(link), second));
        assert!((&mut later).now_or_never().is_none());
        let batch = Arc::new(numbered(&schema, "p", expected));
        let (earlier, later) = join(store.commit_chained(batch, None, first), later).await;
        earlier.unwrap();
        later.unwrap();
        assert!(told(&own));
    }
    assert_eq!(head(&*store, "p").await, 4);
    // Long chains of two partitions beside each other, the last ones first; some of the
    // batches are large, and some bring a client along.
    let length = 20_i64;
    let mut all = Vec::new();
    for partition in ["q", "r"] {
        let mut after = None;
        for expected in 0..length {
            let mut batch = numbered(&schema, partition, expected);
            if expected % 5 == 3 {
                let ops = (0..600)
                    .map(|n| put(NOTES, note(&format!("n{expected}-{n}"), "l2", "o1", None)));
                batch = self::batch(&schema, partition, expected, &[ops.collect()]);
            }
            if expected % 4 == 1 {
                batch.clients.push(client("device", "actor", expected));
            }
            let (settle, own) = chain();
            all.push(store.commit_chained(Arc::new(batch), after.replace(own), settle));
        }
    }
    all.reverse();
    for outcome in join_all(all).await {
        outcome.unwrap();
    }
    for partition in ["q", "r"] {
        assert_eq!(head(&*store, partition).await, length);
        let query = window_query(lists(&[("owner", &["o1"])]), 0, length, 10_000);
        let seqs: Vec<i64> = window(&*store, partition, query)
            .await
            .commits
            .iter()
            .map(|commit| commit.seq.0)
            .collect();
        assert_eq!(seqs, (1..=length).collect::<Vec<_>>());
    }
}

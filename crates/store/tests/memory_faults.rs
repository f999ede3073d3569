//! The switches of the test store.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use tidegate_engine::backfill::checkpoint::Advance;
use tidegate_engine::model::{PageAdvance, ResultLookup};
use tidegate_engine::{CommitSeq, OwnerEpoch};
use tidegate_store::contract::fixture::*;
use tidegate_store::memory::{CommitFault, MemoryStore};
use tidegate_store::{CommitError, Store, StoreError};

async fn store() -> Arc<MemoryStore> {
    let store = MemoryStore::new();
    store
        .ensure_schema(compile(&document()), &[], 1)
        .await
        .unwrap();
    store
}

async fn write(store: &MemoryStore, expected: i64) -> Result<(), CommitError> {
    let ops = note_again();
    try_commit(store, &compile(&document()), "p", expected, &ops).await
}

#[tokio::test]
async fn each_fault_fails_one_commit() {
    let store = store().await;
    for fault in [
        CommitFault::LoseCas,
        CommitFault::Constraint(None),
        CommitFault::FenceRejected,
        CommitFault::Unavailable,
        CommitFault::OutcomeUnknown { written: false },
    ] {
        store.faults().fail_commit(fault.clone());
        let outcome = write(&store, 0).await;
        let expected = match fault {
            CommitFault::LoseCas => matches!(outcome, Err(CommitError::SequenceMoved)),
            CommitFault::Constraint(_) => {
                matches!(outcome, Err(CommitError::Constraint { key: None }))
            }
            CommitFault::FenceRejected => matches!(outcome, Err(CommitError::FenceRejected)),
            CommitFault::Unavailable => {
                matches!(outcome, Err(CommitError::Store(StoreError::Unavailable(_))))
            }
            CommitFault::OutcomeUnknown { .. } => {
                matches!(outcome, Err(CommitError::OutcomeUnknown(_)))
            }
        };
        assert!(expected, "{outcome:?}");
        assert_eq!(head(&*store, "p").await, 0);
    }
    store
        .faults()
        .fail_commit(CommitFault::OutcomeUnknown { written: true });
    assert!(matches!(
        write(&store, 0).await,
        Err(CommitError::OutcomeUnknown(_))
    ));
    assert_eq!(
        result(&*store, "p", "c1").await,
        ResultLookup::Found(Arc::new(applied(1)))
    );
    write(&store, 1).await.unwrap();
}

#[tokio::test]
async fn held_commits_wait_until_released() {
    let store = store().await;
    store.faults().hold_commits();
    let writer = tokio::spawn({
        let store = Arc::clone(&store);
        async move { write(&store, 0).await }
    });
    store.faults().commits_waiting(1).await;
    assert_eq!(head(&*store, "p").await, 0);
    assert!(!writer.is_finished());
    store.faults().release_commits();
    writer.await.unwrap().unwrap();
    assert_eq!(head(&*store, "p").await, 1);
}

#[tokio::test]
async fn failing_reads_are_unavailable_and_counted() {
    let store = store().await;
    store.faults().fail_reads(2);
    assert!(matches!(
        store.read_gate(&p("p")).await,
        Err(StoreError::Unavailable(_))
    ));
    assert!(matches!(
        store.ping().await,
        Err(StoreError::Unavailable(_))
    ));
    store.ping().await.unwrap();
}

#[tokio::test]
async fn declarations_are_unsupported() {
    let store = MemoryStore::new();
    let refused = store
        .ensure_schema(compile(&document()), &[declaration("p", "due", 1)], 1)
        .await;
    assert!(matches!(refused, Err(StoreError::CheckpointUnsupported)));
}

#[tokio::test]
async fn a_page_that_advances_a_checkpoint_is_unsupported() {
    let store = store().await;
    let mut page = batch(&compile(&document()), "p", 0, &one_note());
    page.advance = Some(PageAdvance {
        name: "totals".into(),
        to: Advance {
            owner_epoch: OwnerEpoch(1),
            watermark: CommitSeq(0),
            observed_rows: 1,
        },
        now_ms: 1,
    });
    let refused = store.commit_batch(Arc::new(page)).await;
    assert!(matches!(
        refused,
        Err(CommitError::Store(StoreError::CheckpointUnsupported))
    ));
    assert_eq!(head(&*store, "p").await, 0);
}

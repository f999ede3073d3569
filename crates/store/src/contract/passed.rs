//! What a batch's own gate saw, told with the batch's answer.

use std::sync::Arc;

use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::model::{CommitBatch, LogBounds};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::{Passed, Store, chain};

/// A commit of a row that may be stored already, in a table without blobs.
fn one() -> Vec<Vec<Op>> {
    vec![vec![put_again(PROJECTS, vec![text("a"), text("w")])]]
}

/// Writes a batch that a backend with a gate of its own must tell of.
async fn told(store: &dyn Store, batch: CommitBatch) -> Passed {
    let (settle, _) = chain();
    store
        .commit_chained(Arc::new(batch), None, settle)
        .await
        .unwrap()
        .expect("a plain batch tells what its gate saw")
}

/// Nobody else writes: the gate reads the same afterwards.
async fn assert_as_read(store: &dyn Store, partition: &str, passed: &Passed) {
    let (token, bounds) = store.read_gate(&p(partition)).await.unwrap();
    assert_eq!(
        *passed,
        Passed { token, bounds },
        "what the batch's gate saw, and what is read"
    );
}

pub async fn the_gate_of_a_batch_is_what_is_read_afterwards(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    // Not registered, and not in the log yet.
    let passed = told(&*store, batch(&schema, "p", 0, &one())).await;
    assert_eq!(passed.token.stored_version, SchemaVersion(1));
    assert_eq!(passed.token.log_epoch, None);
    assert!(passed.token.pending.is_empty());
    assert_eq!(passed.bounds.max, CommitSeq(1));
    assert_as_read(&*store, "p", &passed).await;
    for partition in ["p", "q"] {
        store
            .read_preamble(
                &p(partition),
                &ClientId::from("d"),
                touch(1, &format!("epoch of {partition}")),
            )
            .await
            .unwrap();
    }
    // Several commits.
    let three = [one(), one(), one()].concat();
    let passed = told(&*store, batch(&schema, "p", 1, &three)).await;
    assert_eq!(passed.token.log_epoch, Some(LogEpoch::from("epoch of p")));
    assert_eq!(
        passed.bounds,
        LogBounds {
            max: CommitSeq(4),
            horizon: CommitSeq(0)
        }
    );
    assert_as_read(&*store, "p", &passed).await;
    // None at all: a rejection.
    let mut rejection = batch(&schema, "q", 0, &[]);
    rejection
        .results
        .push((result_key("r"), Arc::new(rejected())));
    let passed = told(&*store, rejection).await;
    assert_eq!(passed.token.log_epoch, Some(LogEpoch::from("epoch of q")));
    assert_eq!(passed.bounds, LogBounds::default());
    assert_as_read(&*store, "q", &passed).await;
}

pub async fn the_gate_of_a_batch_knows_the_horizon_and_the_epoch_of_its_time(
    harness: &dyn Harness,
) {
    let schema = compile(&document());
    let store = ready(harness).await;
    store
        .read_preamble(&p("p"), &ClientId::from("d"), touch(1, "e1"))
        .await
        .unwrap();
    let three = [one(), one(), one()].concat();
    commit(&*store, &schema, "p", 0, &three[..1]).await;
    commit(&*store, &schema, "p", 1, &three[1..]).await;
    store
        .prune(&p("p"), &LogEpoch::from("e1"), CommitSeq(2))
        .await
        .unwrap();
    let passed = told(&*store, batch(&schema, "p", 3, &one())).await;
    assert_eq!(
        passed.bounds,
        LogBounds {
            max: CommitSeq(4),
            horizon: CommitSeq(2)
        }
    );
    assert_as_read(&*store, "p", &passed).await;
    store
        .rotate_epoch(&p("p"), LogEpoch::from("e2"), 2)
        .await
        .unwrap();
    let passed = told(&*store, batch(&schema, "p", 4, &one())).await;
    assert_eq!(passed.token.log_epoch, Some(LogEpoch::from("e2")));
    assert_as_read(&*store, "p", &passed).await;
}

pub async fn the_gate_of_a_batch_lists_every_pending_checkpoint(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let checkpoints = [
        ("p", "totals", 1, "declared"),
        ("other", "totals", 1, "declared"),
        ("other", "a \"name\"", 1, "declared"),
        ("p", "done", 1, "activated"),
        ("p", "later", 2, "declared"),
    ];
    for (partition, name, version, state) in checkpoints {
        harness
            .sql(&format!(
                "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
                 VALUES('{partition}', '{name}', {version}, '{state}', 0)"
            ))
            .await;
    }
    let declaring = |expected: i64| {
        let mut batch = batch(&schema, "p", expected, &one());
        let names = checkpoints
            .iter()
            .map(|(partition, name, ..)| ((*partition).to_owned(), (*name).to_owned()));
        batch.declared = Arc::new(names.collect());
        batch
    };
    let pending = |partition: &str, name: &str| PendingCheckpoint {
        partition: partition.to_owned(),
        name: name.to_owned(),
    };
    let passed = told(&*store, declaring(0)).await;
    assert_eq!(
        passed.token.pending,
        [
            pending("other", "a \"name\""),
            pending("other", "totals"),
            pending("p", "totals"),
        ]
    );
    assert_as_read(&*store, "p", &passed).await;
    harness
        .sql("UPDATE sync_backfill_checkpoints SET state='activated' WHERE partition='other'")
        .await;
    let passed = told(&*store, declaring(1)).await;
    assert_eq!(passed.token.pending, [pending("p", "totals")]);
    assert_as_read(&*store, "p", &passed).await;
}

//! Refusals: of the gate, of the fence, of constraints, of an overloaded queue.

use ssp2::ErrorCode;
use ssp2::PushStatus::{Applied, Cached, Rejected};
use tidegate_actors::{QueueLimit, Settings};
use tidegate_engine::push::PushHooks;
use tidegate_store::CommitError;

use crate::store::{Gate, OnCommit, newer_schema, pending_checkpoint};
use crate::world::*;

#[actix::test]
async fn the_gate_inside_the_transaction_answers_schema_not_ready_and_stores_nothing() {
    let world = world();
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    for (refusal, key, value) in [
        (newer_schema(), "storedSchemaVersion", serde(9)),
        (newer_schema(), "runningSchemaVersion", serde(1)),
        (pending_checkpoint(), "partition", "p".into()),
        (pending_checkpoint(), "projection", "totals".into()),
    ] {
        world.store.next_commit(OnCommit::Refuse(refusal));
        let error = world.push(one.clone()).await.unwrap_err().error;
        assert_eq!(error.code, ErrorCode::SchemaNotReady);
        assert_eq!(error.details.unwrap()[key], value);
    }
    world
        .store
        .next_commit(OnCommit::Refuse(CommitError::FenceRejected));
    let error = world.push(one.clone()).await.unwrap_err().error;
    assert_eq!(error.code, ErrorCode::SchemaNotReady);
    assert_eq!(world.max(), 0);
    assert_eq!(statuses(&world.push(one).await), [Applied(1)]);
}

fn serde(number: i64) -> serde_json::Value {
    number.into()
}

/// Each attempt costs the database's whole way: those that do not violate take two.
#[actix::test]
async fn a_batch_is_split_at_the_commit_that_violates_a_constraint() {
    let world = world();
    world.store.violate("r6");
    let commits = (0..10).map(|n| {
        commit(
            &format!("k{n}"),
            vec![world.upsert(&format!("r{n}"), "t", None)],
        )
    });
    let decisions = world.push(commits.collect()).await.unwrap();
    let rejected: Vec<usize> = (0..10)
        .filter(|n| status(&decisions[*n]) == Rejected)
        .collect();
    assert_eq!(rejected, [6]);
    // All, those before, that one, its rejection, those behind.
    assert_eq!(world.store.tried(), [10, 6, 1, 1, 3]);
}

#[actix::test]
async fn only_the_commits_that_violate_a_constraint_are_rejected() {
    for violating in [vec![3], vec![0], vec![9], vec![2, 7], (0..10).collect()] {
        let world = world();
        for n in &violating {
            world.store.violate(&format!("r{n}"));
        }
        let commits = (0..10).map(|n| {
            let fine = world.upsert(&format!("fine{n}"), "t", None);
            let other = world.upsert(&format!("r{n}"), "t", None);
            commit(&format!("k{n}"), vec![fine, other])
        });
        let decisions = world.push(commits.collect()).await.unwrap();
        let mut seq = 0;
        for (n, decision) in decisions.iter().enumerate() {
            if violating.contains(&n) {
                assert_eq!(status(decision), Rejected);
                let wanted = (1, "sync.constraint_violation".into());
                assert_eq!(
                    rejection(decision),
                    wanted,
                    "at the operation that violates"
                );
                assert_eq!(
                    world.version(&format!("fine{n}")),
                    None,
                    "whole or not at all"
                );
            } else {
                seq += 1;
                assert_eq!(status(decision), Applied(seq), "in order, without gaps");
                assert_eq!(world.version(&format!("fine{n}")), Some(1));
            }
        }
        assert_eq!(world.max(), seq);
        // The rejection is a stored result: it replays.
        let again = commit(
            &format!("k{}", violating[0]),
            vec![world.upsert("x", "t", None)],
        );
        let again = world.push(vec![again]).await.unwrap();
        assert_eq!(again[0].result(), decisions[violating[0]].result());
        assert_eq!(world.version("x"), None);
    }
}

#[actix::test]
async fn a_store_that_refuses_the_rejection_too_is_an_error_not_an_endless_loop() {
    let world = world();
    for _ in 0..2 {
        let violated = CommitError::Constraint { key: None };
        world.store.next_commit(OnCommit::Refuse(violated));
    }
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert_eq!(statuses(&world.push(one).await), [Applied(1)]);
}

#[actix::test]
async fn a_commit_whose_rejection_is_refused_too_fails_alone() {
    let world = world_with(one_by_one(), PushHooks::default());
    // First a batch that holds the queue, then one of two devices.
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    // That batch, its first half, and the rejection of that half.
    for _ in 0..3 {
        let violated = CommitError::Constraint { key: None };
        world.store.next_commit(OnCommit::Refuse(violated));
    }
    let push = |client: &str, row: &str| {
        let one = vec![commit(row, vec![world.upsert(row, "t", None)])];
        request(client, one)
    };
    let first = world.queue(push("c1", "first")).await;
    gate.reached().await;
    let bad = world.queue(push("c2", "bad")).await;
    let fine = world.queue(push("c3", "fine")).await;
    gate.open();
    first.await.unwrap().unwrap();
    let refused = bad.await.unwrap().unwrap_err();
    assert_eq!(refused.error.code, ErrorCode::InternalError);
    assert_eq!(statuses(&fine.await.unwrap()), [Applied(2)]);
    assert_eq!(world.version("bad"), None);
}

#[actix::test]
async fn a_commit_that_builds_on_a_violating_one_is_decided_without_it() {
    let world = world();
    world.store.violate("bad");
    let decisions = world
        .push(vec![
            commit(
                "k1",
                vec![
                    world.upsert("r", "one", Some(0)),
                    world.upsert("bad", "t", None),
                ],
            ),
            commit("k2", vec![world.upsert("r", "two", Some(0))]),
        ])
        .await
        .unwrap();
    assert_eq!(status(&decisions[0]), Rejected);
    assert_eq!(status(&decisions[1]), Applied(1));
    assert_eq!(world.version("r"), Some(1));
}

fn narrow(operations: usize) -> Settings {
    Settings {
        partition_queue: QueueLimit {
            operations,
            bytes: 1 << 20,
        },
        ..one_by_one()
    }
}

#[actix::test]
async fn overload_is_answered_at_once_and_ends_when_work_is_done() {
    let world = world_with(narrow(3), PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let put = |n: usize| {
        let one = commit(&format!("k{n}"), vec![world.upsert("r", "t", None)]);
        request("c1", vec![one])
    };
    let mut answers = vec![world.queue(put(0)).await];
    gate.reached().await;
    answers.push(world.queue(put(1)).await);
    answers.push(world.queue(put(2)).await);
    let error = world.handle().push(put(3)).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::RateLimited);
    assert!(world.handle().push(put(4)).await.is_err());
    assert_eq!(world.handle().queued(), 2, "the queue did not grow");
    let statistics = world.directory.statistics();
    assert_eq!(
        (statistics.queued_operations, statistics.rate_limited),
        (3, 2)
    );
    gate.open();
    for answer in answers {
        answer.await.unwrap().expect("what was admitted is done");
    }
    assert_eq!(statuses(&world.handle().push(put(3)).await), [Applied(4)]);
    assert_eq!(world.directory.statistics().queued_operations, 0);
}

#[actix::test]
async fn a_queue_is_bounded_in_bytes_and_over_all_partitions_too() {
    let settings = Settings {
        process_queue: QueueLimit {
            operations: 100,
            bytes: 300,
        },
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = |title: &str| commit("k", vec![world.upsert("r", title, None)]);
    let blocked = world.queue(request("c1", vec![one("t")])).await;
    gate.reached().await;
    let other = world.directory.partition(&"other".into());
    let long = "t".repeat(300);
    let error = other
        .push(request("c1", vec![one(&long)]))
        .await
        .unwrap_err();
    assert_eq!(error.error.code, ErrorCode::RateLimited);
    gate.open();
    blocked.await.unwrap().unwrap();
    // A push that is bigger than the limit passes when nothing else waits.
    let answer = other.push(request("c1", vec![one(&long)])).await;
    assert_eq!(statuses(&answer), [Applied(1)]);
    let again = other.push(request("c1", vec![one(&long)])).await;
    assert_eq!(statuses(&again), [Cached(1)]);
}

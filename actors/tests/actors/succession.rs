//! Two batches at a time: one is written, the next one is decided on top of it.

use std::sync::Arc;

use ssp2::ErrorCode;
use ssp2::PushStatus::{Applied, Cached, Rejected};
use tidegate_actors::{PushRequest, Settings};
use tidegate_engine::push::PushHooks;
use tidegate_store::CommitError;

use crate::store::{Gate, OnCommit};
use crate::world::*;

/// A world whose partition has written before, whose next commit waits at the gate and
/// then does `then`, and the answer to the push that waits there.
async fn held(
    then: OnCommit,
    push: impl FnOnce(&World) -> PushRequest,
) -> (World, Arc<Gate>, Answer) {
    held_in(world(), then, push).await
}

async fn held_in(
    world: World,
    then: OnCommit,
    push: impl FnOnce(&World) -> PushRequest,
) -> (World, Arc<Gate>, Answer) {
    let warm = commit("warm", vec![world.upsert("w", "t", None)]);
    world.push(vec![warm]).await.unwrap();
    let gate = Gate::new();
    let then = OnCommit::Then(gate.clone(), Box::new(then));
    world.store.next_commit(then);
    let first = push(&world);
    let answer = world.queue_ahead(first).await;
    gate.reached().await;
    (world, gate, answer)
}

fn put(world: &World, id: &str, row: &str, base: Option<i64>) -> PushRequest {
    request("c1", vec![commit(id, vec![world.upsert(row, id, base)])])
}

/// Queues a push that a batch takes beside the one that is written.
async fn beside(world: &World, request: PushRequest) -> Answer {
    let answer = world.queue_ahead(request).await;
    until(|| world.directory.statistics().batches_ahead == 1).await;
    assert_eq!(world.handle().queued(), 0);
    answer
}

#[actix::test]
async fn a_batch_is_decided_while_the_one_before_is_written_and_written_after_it() {
    let (world, gate, first) = held(OnCommit::Pass, |world| put(world, "k1", "r", None)).await;
    let reads = world.directory.statistics().reads;
    // It builds on what is being written.
    let mut second = beside(&world, put(&world, "k2", "r", Some(1))).await;
    assert!(pending(&mut second).await);
    assert_eq!(world.store.tried().len(), 2, "the second one waits");
    gate.open();
    assert_eq!(statuses(&first.await.unwrap()), [Applied(2)]);
    assert_eq!(statuses(&second.await.unwrap()), [Applied(3)]);
    assert_eq!(world.log(), ["warm", "k1", "k2"]);
    assert_eq!(world.version("r"), Some(2));
    assert_eq!(
        world.directory.statistics().reads,
        reads,
        "nothing was read again"
    );
    until(|| world.heard.commits.lock().len() == 3).await;
    let heard: Vec<i64> = world
        .heard
        .commits
        .lock()
        .iter()
        .map(|(_, seq)| *seq)
        .collect();
    assert_eq!(heard, [1, 2, 3], "observed in the order of the log");
    // What the second one knew is kept.
    world
        .push(vec![commit("k3", vec![world.upsert("r", "t", Some(2))])])
        .await
        .unwrap();
    assert_eq!(world.version("r"), Some(3));
}

#[actix::test]
async fn a_batch_whose_predecessor_loses_its_race_starts_over_behind_it() {
    // The other process commits exactly as many as the first batch would have: the
    // number alone does not tell.
    let then = |world: &World| OnCommit::Foreign(world.foreign("r", "theirs", 7));
    let foreign = then(&world());
    let (world, gate, first) = held(foreign, |world| put(world, "k1", "r", Some(0))).await;
    let second = beside(&world, put(&world, "k2", "r", Some(1))).await;
    gate.open();
    // The first one conflicts with the other process's row, and so does what built on it.
    assert_eq!(statuses(&first.await.unwrap()), [Rejected]);
    assert_eq!(statuses(&second.await.unwrap()), [Rejected]);
    assert_eq!(world.title("r").as_deref(), Some("theirs"));
    assert_eq!(world.max(), 2);
}

#[actix::test]
async fn a_batch_whose_predecessor_is_refused_is_decided_on_what_is_there() {
    let refused = OnCommit::Refuse(CommitError::FenceRejected);
    let (world, gate, first) = held(refused, |world| put(world, "k1", "r", None)).await;
    let second = beside(&world, put(&world, "k2", "other", None)).await;
    gate.open();
    assert_eq!(
        first.await.unwrap().unwrap_err().error.code,
        ErrorCode::SchemaNotReady
    );
    assert_eq!(statuses(&second.await.unwrap()), [Applied(2)]);
    assert_eq!(world.log(), ["warm", "k2"]);
    assert_eq!(world.version("r"), None);
}

#[actix::test]
async fn a_lost_answer_of_the_predecessor_is_looked_up_before_the_next_batch_is_written() {
    for written in [true, false] {
        let lost = match written {
            true => OnCommit::WriteThenUnknown,
            false => OnCommit::LoseThenUnknown,
        };
        let (world, gate, first) = held(lost, |world| put(world, "k1", "r", None)).await;
        let second = beside(&world, put(&world, "k2", "r", Some(1))).await;
        gate.open();
        assert_eq!(statuses(&first.await.unwrap()), [Applied(2)], "{written}");
        assert_eq!(statuses(&second.await.unwrap()), [Applied(3)], "{written}");
        assert_eq!(world.log(), ["warm", "k1", "k2"]);
    }
}

#[actix::test]
async fn a_repetition_is_not_answered_before_what_it_repeats_is_durable() {
    let (world, gate, first) = held(OnCommit::Pass, |world| put(world, "k1", "r", None)).await;
    let mut again = beside(&world, put(&world, "k1", "r", None)).await;
    assert!(pending(&mut again).await);
    gate.open();
    assert_eq!(statuses(&first.await.unwrap()), [Applied(2)]);
    assert_eq!(statuses(&again.await.unwrap()), [Cached(2)]);
    assert_eq!(world.log(), ["warm", "k1"]);
    assert_eq!(world.store.tried(), [1, 1], "nothing was written twice");

    // Where it was refused, the repetition is what gets written.
    let refused = OnCommit::Refuse(CommitError::FenceRejected);
    let (world, gate, first) = held(refused, |world| put(world, "k1", "r", None)).await;
    let again = beside(&world, put(&world, "k1", "r", None)).await;
    gate.open();
    assert!(first.await.unwrap().is_err());
    assert_eq!(statuses(&again.await.unwrap()), [Applied(2)]);
}

#[actix::test]
async fn a_foreign_commit_that_was_seen_ahead_costs_no_lost_race() {
    let world = world();
    world
        .push(vec![commit("warm", vec![world.upsert("w", "t", None)])])
        .await
        .unwrap();
    let foreign = world.foreign("r", "theirs", 1);
    world.store.foreign_commit(&world.partition, foreign);
    let answer = world.queue_ahead(put(&world, "k1", "r", Some(1))).await;
    assert_eq!(statuses(&answer.await.unwrap()), [Applied(3)]);
    assert_eq!(world.store.tried(), [1, 1]);
    assert_eq!(*world.heard.moves.lock(), 1, "the observer is told");
}

#[actix::test]
async fn a_batch_beside_one_that_dies_is_decided_on_what_is_there() {
    for written in [true, false] {
        let dies = OnCommit::Panic { written };
        let (world, gate, first) = held(dies, |world| put(world, "k1", "r", None)).await;
        let second = beside(&world, put(&world, "k2", "other", None)).await;
        gate.open();
        let _ = first.await.unwrap();
        let expected = if written { 3 } else { 2 };
        assert_eq!(
            statuses(&second.await.unwrap()),
            [Applied(expected)],
            "{written}"
        );
        assert_eq!(world.version("r").is_some(), written);
        assert_eq!(world.directory.statistics().restarts, 1);
    }
}

#[actix::test]
async fn two_actors_that_bind_one_client_id_beside_each_other_are_told_apart() {
    let bind = |world: &World, actor: &str, id: &str| {
        let mut request = put(world, id, id, None);
        request.client_id = "device".into();
        request.actor_id = actor.into();
        request.bind = Some(record("device", actor, 0));
        request
    };
    let (world, gate, first) = held(OnCommit::Pass, |world| bind(world, "alice", "k1")).await;
    let second = world.queue_ahead(bind(&world, "bob", "k2")).await;
    gate.open();
    assert_eq!(statuses(&first.await.unwrap()), [Applied(2)]);
    let refused = second.await.unwrap().unwrap_err();
    assert_eq!(refused.error.code, ErrorCode::InvalidClientId);
    assert_eq!(world.log(), ["warm", "k1"]);
}

#[actix::test]
async fn a_violation_in_the_next_batch_rejects_its_own_commit_alone() {
    let (world, gate, first) = held(OnCommit::Pass, |world| put(world, "k1", "r", None)).await;
    world.store.violate("bad");
    let push = vec![
        commit("k2", vec![world.upsert("fine", "t", None)]),
        commit("k3", vec![world.upsert("bad", "t", None)]),
        commit("k4", vec![world.upsert("r", "t", Some(1))]),
    ];
    let second = beside(&world, request("c1", push)).await;
    gate.open();
    assert_eq!(statuses(&first.await.unwrap()), [Applied(2)]);
    assert_eq!(
        statuses(&second.await.unwrap()),
        [Applied(3), Rejected, Applied(4)]
    );
    assert_eq!(world.log(), ["warm", "k1", "k2", "k4"]);
}

/// Where batches never rest there is no other time to write them.
#[actix::test]
async fn a_batch_beside_another_one_takes_client_records_along() {
    let settings = Settings {
        flush_delay: std::time::Duration::ZERO,
        ..patient()
    };
    let (world, gate, first) = held_in(
        world_with(settings, PushHooks::default()),
        OnCommit::Pass,
        |world| put(world, "k1", "r", None),
    )
    .await;
    world.handle().record_client(record("c9", "alice", 4));
    let second = beside(&world, put(&world, "k2", "r", Some(1))).await;
    gate.open();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    world.store.with(&world.partition, |log| {
        assert_eq!(log.clients["c9"].cursor, 4);
    });
    assert_eq!(world.directory.statistics().batches, 3);
}

#[actix::test]
async fn no_third_batch_begins_and_what_waits_follows_in_order() {
    let (world, gate, first) = held(OnCommit::Pass, |world| put(world, "k1", "r", None)).await;
    let mut answers = vec![first, beside(&world, put(&world, "k2", "r", Some(1))).await];
    for n in 3..7 {
        let next = put(&world, &format!("k{n}"), "r", Some(n - 1));
        answers.push(world.queue_ahead(next).await);
    }
    assert_eq!(world.handle().queued(), 4);
    gate.open();
    for (answer, seq) in answers.into_iter().zip(2..) {
        assert_eq!(statuses(&answer.await.unwrap()), [Applied(seq)]);
    }
    assert_eq!(world.version("r"), Some(6));
}

/// Whatever fails, each push is answered with what became of it, in one log without gaps.
#[actix::test]
async fn batches_beside_each_other_keep_every_promise_under_random_failures() {
    for seed in 0..60_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let settings = Settings {
            quiet_batches: 2,
            ..patient()
        };
        let world = world_with(settings, PushHooks::default());
        let mut answers = Vec::new();
        for n in 0..40 {
            match random(8) {
                0 => world
                    .store
                    .next_commit(OnCommit::Foreign(world.foreign("f", "t", 1))),
                1 => world.store.next_commit(OnCommit::WriteThenUnknown),
                2 => world.store.next_commit(OnCommit::LoseThenUnknown),
                3 => world
                    .store
                    .next_commit(OnCommit::Refuse(CommitError::SequenceMoved)),
                4 => world.store.next_commit(OnCommit::Panic {
                    written: random(2) == 0,
                }),
                _ => world.store.next_commit(OnCommit::Pass),
            }
            let row = format!("r{}", random(4));
            // Now and then a client repeats what it sent before.
            let id = if random(5) == 0 { n / 2 } else { n };
            let push = put(&world, &format!("k{id}"), &row, None);
            answers.push((format!("k{id}"), world.queue_ahead(push).await));
        }
        let mut applied = std::collections::HashMap::new();
        for (id, answer) in answers {
            let Ok(decisions) = answer.await.unwrap() else {
                continue;
            };
            match status(&decisions[0]) {
                Applied(seq) => assert_eq!(applied.insert(id, seq), None, "seed {seed}"),
                Cached(seq) => {
                    let known = *applied.entry(id).or_insert(seq);
                    assert_eq!(known, seq, "seed {seed}");
                }
                Rejected => {}
            }
        }
        // Every acknowledged commit is in the log, once, at the place it was told.
        let log = world
            .store
            .with(&world.partition, |log| log.commits.clone());
        let mut ids = std::collections::HashSet::new();
        for commit in &log {
            assert!(
                ids.insert(commit.client_commit_id.clone()),
                "seed {seed}: twice in the log"
            );
        }
        for (id, seq) in applied {
            let at = log.iter().find(|commit| *commit.client_commit_id == *id);
            let at = at.map(|commit| commit.seq.0);
            assert_eq!(at, Some(seq), "seed {seed}: {id}");
        }
    }
}

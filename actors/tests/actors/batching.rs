//! Group commit: what a batch holds, in which order, and when it is acknowledged.

use ssp2::PushStatus::{Applied, Cached};
use tidegate_actors::{QueueLimit, Settings};
use tidegate_engine::CommitSeq;
use tidegate_engine::push::PushHooks;

use crate::store::{Gate, OnCommit};
use crate::world::*;

#[actix::test]
async fn while_a_batch_is_written_the_next_one_collects() {
    let world = world_with(one_by_one(), PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let mut answers = vec![
        world
            .queue(request(
                "c1",
                vec![commit("first", vec![world.upsert("r", "t", None)])],
            ))
            .await,
    ];
    gate.reached().await;
    for n in 0..10 {
        let row = format!("r{n}");
        let one = commit(&format!("k{n}"), vec![world.upsert(&row, "t", None)]);
        answers.push(world.queue(request("c1", vec![one])).await);
    }
    assert_eq!(world.handle().queued(), 10);
    gate.open();
    for answer in answers {
        answer.await.unwrap().expect("the push succeeds");
    }
    assert_eq!(world.store.tried(), [1, 10]);
    let order: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    assert_eq!(world.log()[1..], order, "log order is queue order");
    until(|| world.heard.commits.lock().len() == 11).await;
    let heard: Vec<i64> = world
        .heard
        .commits
        .lock()
        .iter()
        .map(|(_, seq)| *seq)
        .collect();
    assert_eq!(heard, (1..=11).collect::<Vec<_>>());
    let statistics = world.directory.statistics();
    assert_eq!((statistics.batches, statistics.commits), (2, 11));
    assert_eq!(statistics.queued_operations, 0);
}

#[actix::test]
async fn a_batch_is_bounded_by_operations() {
    let settings = Settings {
        batch: QueueLimit {
            operations: 3,
            bytes: 1 << 20,
        },
        ..one_by_one()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let mut answers = Vec::new();
    for n in 0..8 {
        let one = commit(&format!("k{n}"), vec![world.upsert("r", "t", None)]);
        answers.push(world.queue(request("c1", vec![one])).await);
        if n == 0 {
            gate.reached().await;
        }
    }
    gate.open();
    for answer in answers {
        answer.await.unwrap().expect("the push succeeds");
    }
    assert_eq!(world.store.tried(), [1, 3, 3, 1]);
}

#[actix::test]
async fn a_batch_is_bounded_by_bytes_but_one_push_always_fits() {
    let settings = Settings {
        batch: QueueLimit {
            operations: 100,
            bytes: 1,
        },
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let mut answers = Vec::new();
    for n in 0..3 {
        let one = commit(&format!("k{n}"), vec![world.upsert("r", "t", None)]);
        answers.push(world.queue(request("c1", vec![one])).await);
        if n == 0 {
            gate.reached().await;
        }
    }
    gate.open();
    for answer in answers {
        answer.await.unwrap().expect("the push succeeds");
    }
    assert_eq!(world.store.tried(), [1, 1, 1]);
}

#[actix::test]
async fn acknowledged_means_durable() {
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = commit("k", vec![world.upsert("r", "t", None)]);
    let mut answer = world.queue(request("c1", vec![one])).await;
    gate.reached().await;
    assert!(pending(&mut answer).await, "nothing is durable yet");
    assert!(world.heard.commits.lock().is_empty());
    assert_eq!(
        world.handle().tail().read(CommitSeq(0), CommitSeq(1)),
        None,
        "nobody reads what is not durable"
    );
    gate.open();
    let answer = answer.await.unwrap();
    assert_eq!(statuses(&answer), [Applied(1)]);
    assert_eq!((world.max(), world.version("r")), (1, Some(1)));
    let tail = world.handle().tail();
    let read = tail.read(CommitSeq(0), CommitSeq(1)).expect("covered");
    assert_eq!(read.len(), 1);
}

#[actix::test]
async fn commits_of_a_request_stay_in_order_and_see_each_other() {
    let world = world();
    let answer = world
        .push(vec![
            commit("k1", vec![world.upsert("r", "one", Some(0))]),
            commit("k2", vec![world.upsert("r", "two", Some(1))]),
        ])
        .await;
    assert_eq!(statuses(&answer), [Applied(1), Applied(2)]);
    assert_eq!(
        (world.version("r"), world.title("r")),
        (Some(2), Some("two".into()))
    );
    assert_eq!(world.store.tried(), [2], "one transaction");
}

#[actix::test]
async fn a_commit_id_that_repeats_in_one_request_replays() {
    let world = world();
    let one = commit("k", vec![world.upsert("r", "t", None)]);
    let answer = world.push(vec![one.clone(), one]).await;
    assert_eq!(statuses(&answer), [Applied(1), Cached(1)]);
    assert_eq!(world.version("r"), Some(1));
}

#[actix::test]
async fn a_commit_id_that_repeats_in_one_batch_replays() {
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let first = commit("first", vec![world.upsert("q", "t", None)]);
    let blocked = world.queue(request("c1", vec![first])).await;
    gate.reached().await;
    let one = request("c1", vec![commit("k", vec![world.upsert("r", "t", None)])]);
    let once = world.queue(one.clone()).await;
    let again = world.queue(one).await;
    gate.open();
    blocked.await.unwrap().expect("the push succeeds");
    assert_eq!(statuses(&once.await.unwrap()), [Applied(2)]);
    assert_eq!(statuses(&again.await.unwrap()), [Cached(2)]);
    assert_eq!(world.version("r"), Some(1));
}

#[actix::test]
async fn a_later_repetition_replays_and_writes_nothing() {
    let world = world();
    let first = world.put("k", "r", "t").await;
    let again = world.put("k", "r", "t").await;
    assert_eq!((status(&first), status(&again)), (Applied(1), Cached(1)));
    assert_eq!(
        first.result(),
        again.result(),
        "a replay is the stored result"
    );
    assert_eq!(world.store.tried(), [1]);
}

#[actix::test]
async fn rows_written_lately_are_not_read_again() {
    let world = world();
    world.put("k1", "r", "one").await;
    world.put("k2", "r", "two").await;
    let statistics = world.directory.statistics();
    assert_eq!((statistics.cache_misses, statistics.cache_hits), (1, 1));
    assert_eq!(world.version("r"), Some(2));
}

#[actix::test]
async fn partitions_do_not_wait_for_each_other() {
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = commit("k", vec![world.upsert("r", "t", None)]);
    let mut blocked = world.queue(request("c1", vec![one.clone()])).await;
    gate.reached().await;
    let other = world.directory.partition(&"other".into());
    let answer = other.push(request("c1", vec![one])).await;
    assert_eq!(statuses(&answer), [Applied(1)]);
    assert!(pending(&mut blocked).await);
    gate.open();
    assert_eq!(statuses(&blocked.await.unwrap()), [Applied(1)]);
}

#[actix::test]
async fn a_client_that_hangs_up_cancels_nothing() {
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = commit("k1", vec![world.upsert("r1", "t", None)]);
    let in_flight = world.queue(request("c1", vec![one])).await;
    gate.reached().await;
    let two = commit("k2", vec![world.upsert("r2", "t", None)]);
    let waiting = world.queue(request("c1", vec![two])).await;
    in_flight.abort();
    waiting.abort();
    gate.open();
    until(|| world.max() == 2).await;
    assert_eq!(world.log(), ["k1", "k2"]);
    until(|| world.directory.statistics().queued_operations == 0).await;
}

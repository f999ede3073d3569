//! Coming and going: idle partitions, barriers, shutdown.

use std::time::Duration;

use ssp2::ErrorCode;
use ssp2::PushStatus::{Applied, Cached};
use tidegate_actors::{HoldTimeout, Settings, Shutdown};
use tidegate_engine::push::PushHooks;

use crate::store::{Gate, OnCommit};
use crate::world::*;

const LONG: Duration = Duration::from_secs(10);

#[actix::test]
async fn an_idle_partition_leaves_memory_and_comes_back() {
    let settings = Settings {
        idle_after: Duration::from_millis(20),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let old = world.handle();
    world.put("k1", "r", "one").await;
    until(|| world.directory.statistics().partitions == 0).await;
    // A handle from before still works: its push brings the partition back.
    let again = commit("k1", vec![world.upsert("r", "one", None)]);
    let next = commit("k2", vec![world.upsert("r", "two", Some(1))]);
    let answer = old.push(request("c1", vec![again, next])).await;
    assert_eq!(statuses(&answer), [Cached(1), Applied(2)]);
    until(|| world.directory.statistics().partitions == 0).await;
}

#[actix::test]
async fn all_partitions_together_keep_no_more_than_the_process_may() {
    let settings = Settings {
        memory_bytes: 40_000,
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let title = "t".repeat(1_000);
    for n in 0..100 {
        let handle = world.directory.partition(&format!("p{n}").into());
        let one = commit("k", vec![world.upsert("r", &title, None)]);
        let answer = handle.push(request("c1", vec![one])).await;
        assert_eq!(statuses(&answer), [Applied(1)]);
        // A batch tells what it kept before its callers hear of it.
        let statistics = world.directory.statistics();
        assert!(statistics.memory_bytes <= 40_000, "{statistics:?}");
    }
    let statistics = world.directory.statistics();
    assert!(statistics.memory_bytes > 20_000, "{statistics:?}");
    assert!(statistics.relieved > 50, "{statistics:?}");
    assert_eq!(statistics.partitions, 100);
    // One that has forgotten goes on from the database.
    let first = world.directory.partition(&"p0".into());
    let next = commit("k2", vec![world.upsert("r", "two", Some(1))]);
    let answer = first.push(request("c1", vec![next])).await;
    assert_eq!(statuses(&answer), [Applied(2)]);
}

#[actix::test]
async fn a_partition_that_leaves_memory_takes_everything_along() {
    let settings = Settings {
        idle_after: Duration::from_millis(20),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    world.put("k1", "r", "one").await;
    assert!(world.directory.statistics().memory_bytes > 0);
    until(|| world.directory.statistics().memory_bytes == 0).await;
    until(|| world.directory.statistics().partitions == 0).await;
}

#[actix::test]
async fn pushes_that_race_with_an_idle_stop_are_never_lost() {
    let settings = Settings {
        idle_after: Duration::from_millis(1),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let old = world.handle();
    for n in 0..300 {
        // Every other push meets a partition that is about to leave.
        if n % 2 == 0 {
            tokio::time::sleep(Duration::from_micros(1_500)).await;
        }
        let one = commit(&format!("k{n}"), vec![world.upsert("r", "t", None)]);
        let handle = if n % 3 == 0 {
            old.clone()
        } else {
            world.handle()
        };
        let answer = handle.push(request("c1", vec![one])).await;
        assert_eq!(statuses(&answer), [Applied(n + 1)]);
    }
    assert_eq!(world.version("r"), Some(300));
    let statistics = world.directory.statistics();
    assert_eq!(statistics.lost_races, 0, "one owner at a time");
    assert!(statistics.cache_misses > 1, "it did leave memory meanwhile");
}

#[actix::test]
async fn a_partition_with_work_does_not_leave() {
    let settings = Settings {
        idle_after: Duration::from_millis(5),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = commit("k", vec![world.upsert("r", "t", None)]);
    let mut answer = world.queue(request("c1", vec![one])).await;
    gate.reached().await;
    assert!(pending(&mut answer).await);
    assert_eq!(world.directory.statistics().partitions, 1);
    gate.open();
    assert_eq!(statuses(&answer.await.unwrap()), [Applied(1)]);
}

#[actix::test]
async fn a_drained_partition_queues_until_it_is_resumed() {
    let world = world();
    world.put("k1", "r", "one").await;
    world.directory.drain(&world.partition, LONG).await.unwrap();
    let one = commit("k2", vec![world.upsert("r", "two", Some(5))]);
    let mut answer = world.queue(request("c1", vec![one])).await;
    assert!(pending(&mut answer).await);
    assert_eq!(world.max(), 1);
    // A migration rewrites rows without moving the log: memory must not be believed.
    world.store.with(&world.partition, |log| {
        let foreign = world.foreign("r", "migrated", 5);
        log.rows.insert(foreign.key, foreign.row);
    });
    world.directory.resume(&world.partition);
    assert_eq!(statuses(&answer.await.unwrap()), [Applied(2)]);
    assert_eq!(world.version("r"), Some(6));
}

#[actix::test]
async fn the_barrier_waits_for_running_batches_and_holds_every_partition() {
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let put = |id: &str| commit(id, vec![world.upsert("r", "t", None)]);
    let running = world.queue(request("c1", vec![put("k1")])).await;
    gate.reached().await;
    let timed_out = world.directory.hold_all(Duration::from_millis(5)).await;
    assert_eq!(timed_out.unwrap_err(), HoldTimeout);
    let directory = world.directory.clone();
    let mut barrier = tokio::spawn(async move { directory.hold_all(LONG).await });
    assert!(
        pending(&mut barrier).await,
        "a writer inside finishes first"
    );
    gate.open();
    assert_eq!(statuses(&running.await.unwrap()), [Applied(1)]);
    let hold = barrier.await.unwrap().unwrap();
    let mut same = world.queue(request("c1", vec![put("k2")])).await;
    let new = world.directory.partition(&"new".into());
    let one = request("c1", vec![put("k1")]);
    let mut new = tokio::spawn(async move { new.push(one).await });
    assert!(pending(&mut same).await && pending(&mut new).await);
    assert_eq!(world.max(), 1, "a writer outside waits");
    drop(hold);
    assert_eq!(statuses(&same.await.unwrap()), [Applied(2)]);
    assert_eq!(statuses(&new.await.unwrap()), [Applied(1)]);
}

#[actix::test]
async fn shutdown_finishes_queued_pushes_writes_records_and_refuses_new_ones() {
    let settings = Settings {
        flush_delay: LONG,
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let put = |id: &str| request("c1", vec![commit(id, vec![world.upsert("r", "t", None)])]);
    let running = world.queue(put("k1")).await;
    gate.reached().await;
    let queued = world.queue(put("k2")).await;
    let other = world.directory.partition(&"other".into());
    other.record_client(record("c9", "alice", 4));
    let directory = world.directory.clone();
    let mut shutdown = tokio::spawn(async move { directory.shutdown(LONG).await });
    assert!(pending(&mut shutdown).await, "a batch still runs");
    let refused = world.handle().push(put("k3")).await.unwrap_err();
    assert_eq!(refused.error.code, ErrorCode::InternalError);
    assert!(refused.unavailable && refused.error.code.retryable());
    gate.open();
    assert_eq!(shutdown.await.unwrap(), Shutdown::default());
    assert_eq!(statuses(&running.await.unwrap()), [Applied(1)]);
    assert_eq!(statuses(&queued.await.unwrap()), [Applied(2)]);
    world.store.with(&"other".into(), |log| {
        assert_eq!(log.clients["c9"].cursor, 4);
    });
    assert_eq!(world.directory.statistics().partitions, 0);
}

#[actix::test]
async fn shutdown_retries_a_failed_write_of_records() {
    let settings = Settings {
        flush_delay: LONG,
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    world.handle().record_client(record("c9", "alice", 4));
    world.store.fail_next_record();
    assert_eq!(world.directory.shutdown(LONG).await, Shutdown::default());
    world.store.with(&world.partition, |log| {
        assert_eq!(log.clients["c9"].cursor, 4);
    });
}

#[actix::test]
async fn shutdown_answers_what_it_cannot_finish_by_the_deadline() {
    let world = world_with(one_by_one(), PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let put = |id: &str| request("c1", vec![commit(id, vec![world.upsert("r", "t", None)])]);
    let running = world.queue(put("k1")).await;
    gate.reached().await;
    let queued = world.queue(put("k2")).await;
    let report = world.directory.shutdown(Duration::from_millis(10)).await;
    assert_eq!((report.refused_pushes, report.running_batches), (1, 1));
    assert!(queued.await.unwrap().unwrap_err().unavailable);
    gate.open();
    assert_eq!(statuses(&running.await.unwrap()), [Applied(1)]);
    assert_eq!(world.log(), ["k1"]);
}

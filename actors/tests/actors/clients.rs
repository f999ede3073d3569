//! Client ids and their records.

use std::time::Duration;

use ssp2::ErrorCode;
use ssp2::PushStatus::Applied;
use tidegate_actors::{PushRequest, Settings};
use tidegate_engine::push::PushHooks;

use crate::store::{Gate, OnCommit};
use crate::world::*;

const NEVER: Duration = Duration::from_secs(3_600);

fn lazy() -> Settings {
    Settings {
        flush_delay: NEVER,
        ..patient()
    }
}

fn binding(world: &World, commit_id: &str, client: &str, actor: &str) -> PushRequest {
    PushRequest {
        actor_id: actor.into(),
        bind: Some(record(client, actor, -1)),
        ..request(
            client,
            vec![commit(commit_id, vec![world.upsert(commit_id, "t", None)])],
        )
    }
}

fn owner(world: &World, client: &str) -> Option<String> {
    world.store.with(&world.partition, |log| {
        let known = log.clients.get(client);
        known.map(|known| known.actor_id.to_string())
    })
}

fn cursor(world: &World, client: &str) -> Option<i64> {
    world.store.with(&world.partition, |log| {
        log.clients.get(client).map(|known| known.cursor)
    })
}

#[actix::test]
async fn a_client_id_is_bound_in_the_transaction_of_its_first_push() {
    let world = world_with(lazy(), PushHooks::default());
    let answer = world
        .handle()
        .push(binding(&world, "k1", "c", "alice"))
        .await;
    assert_eq!(statuses(&answer), [Applied(1)]);
    assert_eq!(owner(&world, "c"), Some("alice".into()));
}

#[actix::test]
async fn two_actors_that_race_for_a_client_id_do_not_both_get_it() {
    // In one batch.
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let blocker = commit("b", vec![world.upsert("b", "t", None)]);
    let blocker = world.queue(request("other", vec![blocker])).await;
    gate.reached().await;
    let alice = world.queue(binding(&world, "k1", "c", "alice")).await;
    let bob = world.queue(binding(&world, "k2", "c", "bob")).await;
    gate.open();
    blocker.await.unwrap().unwrap();
    assert_eq!(statuses(&alice.await.unwrap()), [Applied(2)]);
    let error = bob.await.unwrap().unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InvalidClientId);
    // In a later batch, with a preamble from before.
    let late = world.handle().push(binding(&world, "k3", "c", "bob")).await;
    assert_eq!(late.unwrap_err().error.code, ErrorCode::InvalidClientId);
    let pull = world.handle().bind_client(record("c", "bob", -1)).await;
    assert_eq!(pull.unwrap_err().error.code, ErrorCode::InvalidClientId);
    assert_eq!(owner(&world, "c"), Some("alice".into()));
    assert_eq!(world.log(), ["b", "k1"]);
    // The same actor may do it twice.
    let again = world
        .handle()
        .push(binding(&world, "k4", "c", "alice"))
        .await;
    assert_eq!(statuses(&again), [Applied(3)]);
}

#[actix::test]
async fn a_binding_whose_transaction_was_refused_binds_nobody() {
    let world = world();
    world
        .store
        .next_commit(OnCommit::Refuse(crate::store::newer_schema()));
    let refused = world
        .handle()
        .push(binding(&world, "k1", "c", "alice"))
        .await;
    assert_eq!(refused.unwrap_err().error.code, ErrorCode::SchemaNotReady);
    assert_eq!(owner(&world, "c"), None);
    let bob = world.handle().push(binding(&world, "k2", "c", "bob")).await;
    assert_eq!(statuses(&bob), [Applied(1)]);
    assert_eq!(owner(&world, "c"), Some("bob".into()));
}

#[actix::test]
async fn a_pull_of_a_new_client_waits_for_its_binding() {
    let world = world_with(lazy(), PushHooks::default());
    let bound = world.handle().bind_client(record("c", "alice", 3)).await;
    assert_eq!(bound, Ok(()));
    assert_eq!(cursor(&world, "c"), Some(3), "durable when answered");
    world.store.fail_next_record();
    let failed = world.handle().bind_client(record("d", "alice", 3)).await;
    assert!(failed.unwrap_err().unavailable);
    assert_eq!(owner(&world, "d"), None);
}

#[actix::test]
async fn records_are_written_behind_and_the_newest_wins() {
    let settings = Settings {
        flush_delay: Duration::from_millis(20),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let handle = world.handle();
    for at in 1..=5 {
        handle.record_client(record("c", "alice", at));
    }
    assert_eq!(
        handle.pending_client(&"c".into()).map(|it| it.cursor),
        Some(5),
        "what is not written yet can still be seen"
    );
    until(|| cursor(&world, "c") == Some(5)).await;
    until(|| handle.pending_client(&"c".into()).is_none()).await;
}

#[actix::test]
async fn a_batch_leaves_records_that_are_not_due() {
    let world = world_with(lazy(), PushHooks::default());
    world.handle().record_client(record("c", "alice", 7));
    world.put("k", "r", "t").await;
    assert_eq!(cursor(&world, "c"), None);
    let waiting = world.handle().pending_client(&"c".into());
    assert_eq!(waiting.map(|record| record.cursor), Some(7));
}

#[actix::test]
async fn many_records_ride_along_with_the_next_batch() {
    let settings = Settings {
        flush_clients: 1,
        ..lazy()
    };
    let world = world_with(settings, PushHooks::default());
    world.handle().record_client(record("c", "alice", 7));
    assert_eq!(cursor(&world, "c"), None);
    world.put("k", "r", "t").await;
    assert_eq!(cursor(&world, "c"), Some(7));
    assert_eq!(world.handle().pending_client(&"c".into()), None);
}

#[actix::test]
async fn a_failed_write_of_records_is_retried() {
    let settings = Settings {
        flush_delay: Duration::from_millis(5),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    world.store.fail_next_record();
    world.store.fail_next_record();
    world.handle().record_client(record("c", "alice", 7));
    until(|| cursor(&world, "c") == Some(7)).await;
    assert_eq!(world.directory.statistics().failed_flushes, 2);
}

#[actix::test]
async fn unwritten_records_are_bounded() {
    let settings = Settings {
        pending_clients: 2,
        flush_clients: 2,
        ..lazy()
    };
    let world = world_with(settings, PushHooks::default());
    for client in ["a", "b", "c"] {
        world.handle().record_client(record(client, "alice", 1));
    }
    world.handle().record_client(record("a", "alice", 2));
    assert_eq!(world.directory.statistics().dropped_records, 1);
    world.put("k", "r", "t").await;
    assert_eq!(
        ["a", "b", "c"].map(|client| cursor(&world, client)),
        [Some(2), Some(1), None]
    );
}

#[actix::test]
async fn an_idle_stop_does_not_lose_records() {
    let settings = Settings {
        idle_after: Duration::from_millis(2),
        flush_delay: Duration::from_millis(30),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let handle = world.handle();
    for at in 0..5 {
        until(|| world.directory.statistics().partitions == 0).await;
        handle.record_client(record("c", "alice", at));
        until(|| cursor(&world, "c") == Some(at)).await;
    }
}

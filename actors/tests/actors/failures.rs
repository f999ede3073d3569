//! Failures of storage and of host rules: nothing lost, nothing twice, never a guess.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ssp2::ErrorCode;
use ssp2::PushStatus::{Applied, Cached};
use tidegate_actors::Settings;
use tidegate_engine::SchemaVersion;
use tidegate_engine::hooks::{HostRejection, RowCheck, ValidateRow};
use tidegate_engine::push::{PlanFailure, PlanReactions, PlannedReaction, PushHooks, StagedCommit};
use tidegate_store::{CommitError, StoreError};

use crate::store::{Gate, OnCommit, OnRead};
use crate::world::*;

#[actix::test]
async fn an_unknown_outcome_that_was_written_is_acknowledged_once() {
    let world = world();
    world.store.next_commit(OnCommit::WriteThenUnknown);
    let answer = world.put("k", "r", "t").await;
    assert_eq!(status(&answer), Applied(1));
    assert_eq!((world.max(), world.version("r")), (1, Some(1)));
    until(|| !world.heard.commits.lock().is_empty()).await;
    assert_eq!(*world.heard.commits.lock(), [("p".to_owned(), 1)]);
    assert_eq!(status(&world.put("k", "r", "t").await), Cached(1));
}

#[actix::test]
async fn an_unknown_outcome_that_was_lost_is_written_again() {
    let world = world();
    world.store.next_commit(OnCommit::LoseThenUnknown);
    let answer = world.put("k", "r", "t").await;
    assert_eq!(status(&answer), Applied(1));
    assert_eq!((world.max(), world.version("r")), (1, Some(1)));
}

#[actix::test]
async fn an_unknown_outcome_waits_for_the_database_before_anybody_is_answered() {
    let world = world();
    let gate = Gate::new();
    world.store.next_commit(OnCommit::WriteThenUnknown);
    // The batch's own read, then two failed look-ups, then one that waits.
    for action in [
        OnRead::Pass,
        OnRead::Unavailable,
        OnRead::Unavailable,
        OnRead::Block(gate.clone()),
    ] {
        world.store.next_read(action);
    }
    let one = commit("k", vec![world.upsert("r", "t", None)]);
    let mut answer = world.queue(request("c1", vec![one])).await;
    gate.reached().await;
    assert!(pending(&mut answer).await);
    gate.open();
    assert_eq!(statuses(&answer.await.unwrap()), [Applied(1)]);
}

#[actix::test]
async fn an_outcome_that_stays_unknown_is_an_error_never_a_guess() {
    let settings = Settings {
        resolve_deadline: Duration::from_millis(20),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    world.store.next_commit(OnCommit::WriteThenUnknown);
    world.store.next_read(OnRead::Pass);
    world.store.next_read(OnRead::Block(Gate::new()));
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert!(error.unavailable);
    // The client repeats it and learns what became of it.
    assert_eq!(statuses(&world.push(one).await), [Cached(1)]);
    assert_eq!(world.version("r"), Some(1));
}

#[actix::test]
async fn an_unavailable_database_is_an_error_to_retry_and_heals_by_itself() {
    let world = world();
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    world.store.next_read(OnRead::Unavailable);
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert!(error.unavailable);
    let down = StoreError::Unavailable("scripted".into());
    world
        .store
        .next_commit(OnCommit::Refuse(CommitError::Store(down)));
    let error = world.push(one.clone()).await.unwrap_err();
    assert!(error.unavailable);
    assert!(!error.error.message.contains("scripted"), "no driver text");
    let broken = StoreError::failed("writing", "scripted");
    world
        .store
        .next_commit(OnCommit::Refuse(CommitError::Store(broken)));
    assert!(!world.push(one.clone()).await.unwrap_err().unavailable);
    assert_eq!(statuses(&world.push(one).await), [Applied(1)]);
}

#[actix::test]
async fn a_batch_that_panics_after_its_commit_is_answered_from_stored_results() {
    let world = world();
    world.put("k0", "r", "zero").await;
    world.store.next_commit(OnCommit::Panic { written: true });
    let answer = world.put("k1", "r", "one").await;
    assert_eq!(status(&answer), Cached(2), "durable, so acknowledged");
    assert_eq!(world.version("r"), Some(2), "once");
    assert_eq!(world.directory.statistics().restarts, 1);
    assert_eq!(status(&world.put("k2", "r", "two").await), Applied(3));
}

#[actix::test]
async fn a_batch_that_panics_before_its_commit_fails_and_queued_pushes_survive() {
    let world = world();
    let (gate, second) = (Gate::new(), Gate::new());
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let put = |id: &str| {
        let one = commit(id, vec![world.upsert("r", id, None)]);
        request("c1", vec![one])
    };
    let first = world.queue(put("k1")).await;
    gate.reached().await;
    world.store.next_commit(OnCommit::Panic { written: false });
    // The look-up of the failed batch waits while another push queues up.
    world.store.next_read(OnRead::Pass);
    world.store.next_read(OnRead::Block(second.clone()));
    let failing = world.queue(put("k2")).await;
    gate.open();
    first.await.unwrap().unwrap();
    second.reached().await;
    let queued = world.queue(put("k3")).await;
    second.open();
    let error = failing.await.unwrap().unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert!(error.error.code.retryable());
    assert_eq!(statuses(&queued.await.unwrap()), [Applied(2)]);
    assert_eq!(world.log(), ["k1", "k3"]);
    let again = world.handle().push(put("k2")).await;
    assert_eq!(statuses(&again), [Applied(3)]);
}

#[actix::test]
async fn a_hung_batch_restarts_the_partition_and_its_commit_is_not_doubled() {
    let settings = Settings {
        batch_deadline: Duration::from_millis(50),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert_eq!(world.directory.statistics().restarts, 1);
    // The database finishes the hung commit after all.
    gate.open();
    until(|| world.max() == 1).await;
    assert_eq!(statuses(&world.push(one).await), [Cached(1)]);
    assert_eq!(world.version("r"), Some(1));
}

#[actix::test]
async fn a_hung_commit_that_wakes_after_its_repetition_is_refused() {
    let settings = Settings {
        batch_deadline: Duration::from_millis(50),
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    world.push(one.clone()).await.unwrap_err();
    assert_eq!(statuses(&world.push(one).await), [Applied(1)]);
    let tried = world.store.tried().len();
    gate.open();
    // Another push proves that the partition lives; the old commit wrote nothing.
    assert_eq!(status(&world.put("k2", "r", "two").await), Applied(2));
    assert_eq!(world.log(), ["k", "k2"]);
    assert!(world.store.tried().len() > tried);
}

/// A rule that panics for one title and hangs for another.
struct Trap {
    hang: Arc<AtomicBool>,
}

impl ValidateRow for Trap {
    fn validate(&self, check: &RowCheck<'_>) -> Result<(), HostRejection> {
        assert!(check.row_id != "panic", "scripted");
        while check.row_id == "hang" && self.hang.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A planner that fails for one commit: the server cannot decide it.
struct NoPlan;

impl PlanReactions for NoPlan {
    fn plan(&self, commit: &StagedCommit<'_>) -> Result<Vec<PlannedReaction>, PlanFailure> {
        if commit.client_commit_id == "undecidable" {
            return Err(PlanFailure::Failed);
        }
        Ok(Vec::new())
    }
}

#[actix::test]
async fn a_rule_that_panics_harms_only_its_own_push() {
    let hooks = PushHooks {
        row_validator: Some(Arc::new(Trap {
            hang: Arc::default(),
        })),
        ..PushHooks::default()
    };
    let world = world_with(patient(), hooks);
    let gate = Gate::new();
    world.store.next_commit(OnCommit::Block(gate.clone()));
    let put = |id: &str, row: &str| {
        let one = commit(id, vec![world.upsert(row, "t", None)]);
        request("c1", vec![one])
    };
    let first = world.queue(put("k1", "a")).await;
    gate.reached().await;
    let before = world.queue(put("k2", "b")).await;
    let trapped = world.queue(put("k3", "panic")).await;
    let after = world.queue(put("k4", "c")).await;
    gate.open();
    for answer in [first, before, after] {
        answer.await.unwrap().expect("the others are not harmed");
    }
    let trapped = trapped.await.unwrap();
    let applied = trapped.is_ok_and(|decisions| decisions[0].commit().is_some());
    assert!(!applied && world.version("panic").is_none());
    assert_eq!(world.log(), ["k1", "k2", "k4"]);
}

#[actix::test]
async fn a_commit_that_cannot_be_decided_fails_its_push_from_there_on() {
    let hooks = PushHooks {
        reactions: Some(Arc::new(NoPlan)),
        ..PushHooks::default()
    };
    let world = world_with(patient(), hooks);
    let put = |id: &str| commit(id, vec![world.upsert(id, "t", None)]);
    let error = world
        .push(vec![put("k1"), put("undecidable"), put("k3")])
        .await
        .unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert_eq!(world.log(), ["k1"], "what came before it is durable");
    assert_eq!(status(&world.put("k4", "r", "t").await), Applied(2));
}

#[actix::test]
async fn a_commit_that_meets_rows_of_a_newer_schema_is_told_not_ready() {
    let hooks = PushHooks {
        reactions: Some(Arc::new(NoPlan)),
        ..PushHooks::default()
    };
    let world = world_with(patient(), hooks);
    let put = |id: &str| commit(id, vec![world.upsert(id, "t", None)]);
    let newer = SchemaVersion(world.schema.version().0 + 1);
    world.store.publish(newer);
    let error = world.push(vec![put("undecidable")]).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::SchemaNotReady);
    assert!(world.log().is_empty());
}

#[actix::test]
async fn a_rule_that_hangs_does_not_stop_other_partitions_and_its_batch_ends_by_deadline() {
    let hang = Arc::new(AtomicBool::new(true));
    let hooks = PushHooks {
        row_validator: Some(Arc::new(Trap {
            hang: Arc::clone(&hang),
        })),
        ..PushHooks::default()
    };
    let settings = Settings {
        batch_deadline: Duration::from_millis(300),
        ..patient()
    };
    let world = world_with(settings, hooks);
    let one = commit("k", vec![world.upsert("hang", "t", None)]);
    let hung = world.queue(request("c1", vec![one])).await;
    let other = world.directory.partition(&"other".into());
    let one = commit("k", vec![world.upsert("r", "t", None)]);
    assert_eq!(
        statuses(&other.push(request("c1", vec![one])).await),
        [Applied(1)]
    );
    let error = hung.await.unwrap().unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    hang.store(false, Ordering::SeqCst);
    assert_eq!(status(&world.put("k2", "r", "t").await), Applied(1));
    assert_eq!(world.log(), ["k2"], "the abandoned batch wrote nothing");
}

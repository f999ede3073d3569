//! Beside a busy writer the CAS alone starves: after the first lost one a partition is
//! locked before it is read, until other writers fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ssp2::ErrorCode;
use ssp2::PushStatus::{Applied, Cached, Rejected};
use tidegate_actors::Settings;
use tidegate_engine::CommitSeq;
use tidegate_engine::hooks::{HostRejection, RowCheck, ValidateRow};
use tidegate_engine::push::{PlanFailure, PlanReactions, PlannedReaction, PushHooks, StagedCommit};
use tidegate_store::CommitError;

use crate::store::{Gate, OnCommit, OnLock, OnRead, newer_schema};
use crate::world::*;

/// Loses the partition its first CAS; the log stands at 2 afterwards.
async fn overtake(world: &World) {
    let theirs = world.foreign("theirs", "first", 1);
    world.store.next_commit(OnCommit::Foreign(theirs));
    assert_eq!(status(&world.put("overtaken", "o", "t").await), Applied(2));
    assert_eq!(world.store.locks(), 1);
}

fn hasty() -> Settings {
    Settings {
        batch_deadline: Duration::from_millis(50),
        ..patient()
    }
}

#[actix::test]
async fn after_one_lost_cas_the_lock_is_taken_and_nobody_overtakes_again() {
    let world = world();
    // Somebody commits whenever the partition is free: beside every one of our commits.
    for n in 1..=12 {
        let theirs = world.foreign("theirs", "t", n);
        world.store.next_commit(OnCommit::Foreign(theirs));
    }
    for n in 0..6 {
        // Lost once at 1; then ours and theirs alternate.
        let answer = world.put(&format!("k{n}"), "r", "mine").await;
        assert_eq!(status(&answer), Applied(2 + 2 * n));
    }
    assert_eq!(
        world.store.tried().len(),
        7,
        "one attempt was lost, the first"
    );
    assert_eq!(world.store.locks(), 6);
    let statistics = world.directory.statistics();
    assert_eq!((statistics.pessimistic_batches, statistics.batches), (6, 6));
    assert_eq!(world.version("r"), Some(6));
}

#[actix::test]
async fn it_costs_no_more_round_trips_one_lock_one_read_one_commit() {
    let world = world();
    overtake(&world).await;
    let reads = world.store.reads.load(Ordering::SeqCst);
    let tried = world.store.tried().len();
    world.put("k", "o", "t").await;
    assert_eq!(world.store.reads.load(Ordering::SeqCst), reads + 1);
    assert_eq!(world.store.tried().len(), tried + 1);
    assert_eq!(world.store.locks(), 2);
}

#[actix::test]
async fn the_lock_is_given_up_after_sixteen_quiet_batches() {
    let world = world();
    overtake(&world).await;
    for n in 1..=16 {
        world.put(&format!("k{n}"), "r", "t").await;
        assert_eq!(world.store.locks(), 1 + n, "batch {n}");
    }
    let reads = world.store.reads.load(Ordering::SeqCst);
    for n in 17..=20 {
        world.put(&format!("k{n}"), "r", "t").await;
    }
    assert_eq!(world.store.locks(), 17);
    assert_eq!(world.directory.statistics().pessimistic_batches, 17);
    // Rows come from memory again; results of new commits are looked up as ever.
    assert!(world.store.reads.load(Ordering::SeqCst) <= reads + 4);
    assert_eq!(world.version("r"), Some(20));
}

#[actix::test]
async fn a_foreign_commit_seen_under_the_lock_restarts_the_count_and_is_told() {
    let settings = Settings {
        quiet_batches: 3,
        ..patient()
    };
    let world = world_with(settings, PushHooks::default());
    overtake(&world).await;
    world.put("k1", "r", "t").await;
    world.put("k2", "r", "t").await;
    let moves = *world.heard.moves.lock();
    assert_eq!(moves, 1);
    let tail = world.handle().tail();
    let covered = |after, max| tail.read(CommitSeq(after), CommitSeq(max)).is_some();
    assert!(covered(1, 4));
    // It would have been the third quiet one.
    let theirs = world.foreign("r", "theirs", 7);
    world.store.next_lock(OnLock::Foreign(theirs));
    assert_eq!(status(&world.put("k3", "r", "t").await), Applied(6));
    assert_eq!(
        world.version("r"),
        Some(8),
        "decided on what was read under the lock"
    );
    until(|| *world.heard.moves.lock() == moves + 1).await;
    assert!(covered(5, 6) && !covered(1, 4) && !covered(4, 6));
    assert_eq!(world.store.locks(), 4);
    for n in 1..=3 {
        world.put(&format!("q{n}"), "r", "t").await;
        assert_eq!(world.store.locks(), 4 + n);
    }
    world.put("free", "r", "t").await;
    assert_eq!(world.store.locks(), 7);
    assert_eq!(*world.heard.moves.lock(), moves + 1);
}

#[actix::test]
async fn rows_in_memory_are_not_believed_under_the_lock() {
    let world = world();
    overtake(&world).await;
    world.put("k1", "r", "one").await;
    let theirs = world.foreign("r", "theirs", 2);
    world.store.next_lock(OnLock::Foreign(theirs));
    let operations = vec![world.upsert("r", "two", Some(1))];
    let answer = world.push(vec![commit("k2", operations)]).await;
    assert_eq!(statuses(&answer), [Rejected]);
    assert_eq!(world.title("r"), Some("theirs".into()));
}

/// Reads another row of every commit.
struct Curious;

impl PlanReactions for Curious {
    fn plan(&self, commit: &StagedCommit<'_>) -> Result<Vec<PlannedReaction>, PlanFailure> {
        let key = key("looked-up");
        commit.reader.row(key.table, &key.row_id)?;
        Ok(Vec::new())
    }
}

fn curious() -> PushHooks {
    PushHooks {
        reactions: Some(Arc::new(Curious)),
        ..PushHooks::default()
    }
}

#[actix::test]
async fn further_needs_are_read_under_the_same_lock() {
    let world = world_with(patient(), curious());
    overtake(&world).await;
    let reads = world.store.reads.load(Ordering::SeqCst);
    let locked = world.store.locked_reads.load(Ordering::SeqCst);
    // Who comes between both reads has to wait.
    world.store.next_read(OnRead::Pass);
    let theirs = world.foreign("looked-up", "theirs", 1);
    world.store.next_read(OnRead::Foreign(theirs));
    assert_eq!(status(&world.put("k", "r", "t").await), Applied(3));
    assert_eq!(world.store.locks(), 2);
    assert_eq!(world.store.reads.load(Ordering::SeqCst), reads + 2);
    assert_eq!(world.store.locked_reads.load(Ordering::SeqCst), locked + 2);
    assert_eq!(world.max(), 4, "theirs came after ours");
}

#[actix::test]
async fn reads_that_are_overtaken_again_take_the_lock_too() {
    let world = world_with(patient(), curious());
    world.store.next_read(OnRead::Pass);
    for n in 1..=2 {
        let theirs = world.foreign("looked-up", "theirs", n);
        world.store.next_read(OnRead::Foreign(theirs));
    }
    assert_eq!(status(&world.put("k", "r", "t").await), Applied(3));
    assert_eq!(world.store.locks(), 1);
    assert_eq!(world.store.tried(), [1]);
}

#[actix::test]
async fn a_constraint_violated_under_the_lock_rejects_its_commit_alone() {
    let world = world();
    overtake(&world).await;
    world.store.violate("bad");
    let put = |row: &str| commit(row, vec![world.upsert(row, "t", None)]);
    let answer = world.push(vec![put("a"), put("bad"), put("b")]).await;
    assert_eq!(statuses(&answer), [Applied(3), Rejected, Applied(4)]);
    let code = rejection(&answer.unwrap()[1]);
    assert_eq!(code, (0, "sync.constraint_violation".into()));
    assert_eq!(world.log(), ["overtaken", "a", "b"]);
    assert!(!world.store.is_held(&world.partition));
}

#[actix::test]
async fn a_violation_met_before_a_foreign_commit_is_not_held_against_the_push() {
    let world = world();
    overtake(&world).await;
    // Met once; before the lock is taken again somebody removes the cause.
    let key = key("r");
    world
        .store
        .next_commit(OnCommit::Refuse(CommitError::Constraint { key: Some(key) }));
    world.store.next_lock(OnLock::Pass);
    let theirs = world.foreign("theirs", "second", 2);
    world.store.next_lock(OnLock::Foreign(theirs));
    assert_eq!(status(&world.put("k", "r", "t").await), Applied(4));
}

#[actix::test]
async fn an_unknown_outcome_under_the_lock_is_looked_up() {
    let world = world();
    overtake(&world).await;
    world.store.next_commit(OnCommit::WriteThenUnknown);
    assert_eq!(status(&world.put("k1", "r", "t").await), Applied(3));
    world.store.next_commit(OnCommit::LoseThenUnknown);
    assert_eq!(status(&world.put("k2", "r", "t").await), Applied(4));
    assert_eq!(world.version("r"), Some(2));
    assert_eq!(status(&world.put("k2", "r", "t").await), Cached(4));
}

#[actix::test]
async fn a_refusal_under_the_lock_writes_nothing_and_releases_it() {
    let world = world();
    overtake(&world).await;
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    world.store.next_commit(OnCommit::Refuse(newer_schema()));
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::SchemaNotReady);
    world.store.next_read(OnRead::Unavailable);
    assert!(world.push(one.clone()).await.unwrap_err().unavailable);
    world.store.next_lock(OnLock::Unavailable);
    assert!(world.push(one.clone()).await.unwrap_err().unavailable);
    assert!(!world.store.is_held(&world.partition));
    assert_eq!(statuses(&world.push(one).await), [Applied(3)]);
    assert_eq!(world.store.locks(), 5, "the partition stays pessimistic");
}

#[actix::test]
async fn a_panic_under_the_lock_releases_it() {
    let world = world();
    overtake(&world).await;
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    world.store.next_read(OnRead::Panic);
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert!(!world.store.is_held(&world.partition));
    world.store.next_commit(OnCommit::Panic { written: false });
    world.push(one.clone()).await.unwrap_err();
    assert!(!world.store.is_held(&world.partition));
    world.store.next_commit(OnCommit::Panic { written: true });
    assert_eq!(statuses(&world.push(one).await), [Cached(3)]);
    assert!(!world.store.is_held(&world.partition));
    assert_eq!(world.directory.statistics().restarts, 3);
    assert_eq!(status(&world.put("next", "r", "t").await), Applied(4));
    assert_eq!(world.log(), ["overtaken", "k", "next"]);
}

#[actix::test]
async fn a_read_that_hangs_under_the_lock_releases_it_at_the_deadline() {
    let world = world_with(hasty(), PushHooks::default());
    overtake(&world).await;
    let gate = Gate::new();
    world.store.next_read(OnRead::Block(gate.clone()));
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    // The gate stays shut: nothing but the deadline ends the wait.
    until(|| !world.store.is_held(&world.partition)).await;
    assert_eq!(statuses(&world.push(one).await), [Applied(3)]);
    assert_eq!(world.store.locks(), 3);
}

#[actix::test]
async fn a_batch_that_waits_too_long_for_the_lock_stops_waiting() {
    let world = world_with(hasty(), PushHooks::default());
    overtake(&world).await;
    world.store.next_lock(OnLock::Block(Gate::new()));
    let one = vec![commit("k", vec![world.upsert("r", "t", None)])];
    world.push(one.clone()).await.unwrap_err();
    assert_eq!(statuses(&world.push(one).await), [Applied(3)]);
    assert!(!world.store.is_held(&world.partition));
}

/// A rule that hangs for one row.
struct Trap(Arc<AtomicBool>);

impl ValidateRow for Trap {
    fn validate(&self, check: &RowCheck<'_>) -> Result<(), HostRejection> {
        while check.row_id == "hang" && self.0.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[actix::test]
async fn a_rule_that_hangs_under_the_lock_releases_it_at_the_deadline() {
    let hang = Arc::new(AtomicBool::new(true));
    let hooks = PushHooks {
        row_validator: Some(Arc::new(Trap(Arc::clone(&hang)))),
        ..PushHooks::default()
    };
    let settings = Settings {
        batch_deadline: Duration::from_millis(300),
        ..patient()
    };
    let world = world_with(settings, hooks);
    overtake(&world).await;
    let one = commit("k", vec![world.upsert("hang", "t", None)]);
    world.push(vec![one]).await.unwrap_err();
    until(|| !world.store.is_held(&world.partition)).await;
    // The rule still hangs; the partition goes on, and so can every other writer.
    assert_eq!(status(&world.put("next", "r", "t").await), Applied(3));
    hang.store(false, Ordering::SeqCst);
    assert_eq!(world.log(), ["overtaken", "next"]);
}

#[actix::test]
async fn a_repeated_push_is_answered_under_the_lock_without_a_commit() {
    let world = world();
    overtake(&world).await;
    let tried = world.store.tried();
    assert_eq!(status(&world.put("overtaken", "o", "t").await), Cached(2));
    assert_eq!(world.store.tried(), tried);
    assert_eq!(world.store.locks(), 2);
    assert!(!world.store.is_held(&world.partition));
}

//! Other writers of the same partition: decisions are never made on stale rows.

use ssp2::ErrorCode;
use ssp2::PushStatus::{Applied, Rejected};
use tidegate_engine::CommitSeq;

use crate::store::OnCommit;
use crate::world::*;

#[actix::test]
async fn a_lost_race_is_decided_again_on_fresh_rows() {
    let world = world();
    world.put("k1", "r", "one").await;
    // Between the decision and its commit somebody raises the row to version 2.
    world
        .store
        .next_commit(OnCommit::Foreign(world.foreign("r", "theirs", 2)));
    let answer = world
        .push(vec![commit("k2", vec![world.upsert("r", "two", Some(1))])])
        .await;
    assert_eq!(statuses(&answer), [Rejected]);
    assert_eq!(
        rejection(&answer.unwrap()[0]),
        (0, "sync.version_conflict".into())
    );
    assert_eq!(world.title("r"), Some("theirs".into()));
    // Sockets learn that the log moved.
    until(|| *world.heard.moves.lock() == 1).await;
}

#[actix::test]
async fn a_lost_race_that_changes_nothing_for_us_applies_at_the_next_position() {
    let world = world();
    world
        .store
        .next_commit(OnCommit::Foreign(world.foreign("q", "theirs", 1)));
    let answer = world.put("k", "r", "mine").await;
    assert_eq!(status(&answer), Applied(2));
    assert_eq!(world.directory.statistics().lost_races, 1);
}

#[actix::test]
async fn a_foreign_commit_between_batches_is_noticed_by_the_read() {
    let world = world();
    world.put("k1", "r", "one").await;
    world
        .store
        .foreign_commit(&world.partition, world.foreign("r", "theirs", 2));
    let answer = world
        .push(vec![commit("k2", vec![world.upsert("r", "two", Some(1))])])
        .await
        .unwrap();
    assert_eq!(
        rejection(&answer[0]),
        (0, "sync.version_conflict".into()),
        "the cached version 1 is not believed"
    );
    assert_eq!(world.title("r"), Some("theirs".into()));
}

#[actix::test]
async fn lost_races_are_retried_a_bounded_number_of_times() {
    let world = world();
    // A backend without locks: others commit between every read and commit.
    world.store.lock_nothing();
    let attempts = patient().commit_attempts;
    for n in 0..attempts {
        let foreign = world.foreign("q", "theirs", i64::from(n) + 1);
        world.store.next_commit(OnCommit::Foreign(foreign));
    }
    let one = vec![commit("k", vec![world.upsert("r", "mine", None)])];
    let error = world.push(one.clone()).await.unwrap_err();
    assert_eq!(error.error.code, ErrorCode::InternalError);
    assert!(error.unavailable, "nothing is broken: later it can work");
    assert_eq!(world.version("r"), None);
    let answer = world.push(one).await;
    assert_eq!(statuses(&answer), [Applied(i64::from(attempts) + 1)]);
}

#[actix::test]
async fn the_tail_covers_only_an_unbroken_run_of_our_own_commits() {
    let world = world();
    world.put("k1", "r", "one").await;
    world.put("k2", "r", "two").await;
    let tail = world.handle().tail();
    let seqs = |after, max| {
        tail.read(CommitSeq(after), CommitSeq(max)).map(|commits| {
            commits
                .iter()
                .map(|commit| commit.seq.0)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(seqs(0, 2), Some(vec![1, 2]));
    assert_eq!(seqs(1, 2), Some(vec![2]));
    world
        .store
        .foreign_commit(&world.partition, world.foreign("q", "theirs", 1));
    assert_eq!(seqs(2, 3), None, "commit 3 is not ours");
    world.put("k3", "r", "three").await;
    assert_eq!(seqs(2, 4), None, "nor is it ever");
    assert_eq!(seqs(3, 4), Some(vec![4]));
    assert_eq!(seqs(0, 2), None, "a lost race empties the tail");
}

#[actix::test]
async fn a_rotated_epoch_drops_what_memory_holds() {
    let world = world();
    world.handle().observe_epoch(&"e1".into());
    world.put("k1", "r", "one").await;
    // A restore: the same position, another history.
    world.store.with(&world.partition, |log| {
        let foreign = world.foreign("r", "restored", 7);
        log.rows.insert(foreign.key, foreign.row);
        log.results.clear();
    });
    world.handle().observe_epoch(&"e2".into());
    assert_eq!(world.handle().tail().read(CommitSeq(0), CommitSeq(1)), None);
    let answer = world
        .push(vec![commit("k2", vec![world.upsert("r", "two", Some(1))])])
        .await
        .unwrap();
    assert_eq!(rejection(&answer[0]), (0, "sync.version_conflict".into()));
}

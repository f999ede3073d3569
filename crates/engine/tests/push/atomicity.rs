//! §6.4: a commit is all or nothing, and commits are decided in order.

use ssp2::{ErrorCode, OperationOutcome, Value};
use tidegate_engine::model::{Over, RowWrite};
use tidegate_engine::push::{Candidate, Decision, Moved, Step, reject_constraint};
use tidegate_engine::{CommitSeq, PartitionId};

use super::world::*;

fn task(id: &str, title: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("id", text(id)),
        ("project_id", text("p1")),
        ("title", text(title)),
    ]
}

#[test]
fn a_failing_operation_takes_the_whole_commit_back() {
    let mut w = World::new();
    w.store("tasks", &task("t1", "old"));
    let first = w.sparse("tasks", &task("t1", "new"));
    let missing = w.sparse("tasks", &task("t9", "x"));
    let last = w.whole(V3, "tasks", &task("t3", "never tried"));
    w.refused(
        push("c1", V3, vec![first, del("tasks", "t1"), missing, last]),
        2,
        ErrorCode::RowMissing,
    );
    assert!(w.log.is_empty());
}

#[test]
fn a_conflict_takes_the_whole_commit_back() {
    let mut w = World::new();
    w.store_at("tasks", &task("t1", "old"), 2, &[("title", 2)]);
    let insert = w.whole(V3, "tasks", &task("t2", "x"));
    let stale = w.sparse("tasks", &[("id", text("t1")), ("title", text("y"))]);
    w.conflicts(push("c1", V3, vec![insert, based(stale, 1)]), 1, &["title"]);
}

#[test]
fn a_later_commit_sees_accepted_ones_and_nothing_of_rejected_ones() {
    let mut w = World::new();
    let insert = w.whole(V3, "tasks", &task("t1", "one"));
    let other = w.whole(V3, "tasks", &task("t2", "two"));
    let bad = w.sparse("tasks", &task("t9", "x"));
    let update = w.sparse("tasks", &[("id", text("t1")), ("title", text("three"))]);
    let steps = w.push_all(&[
        push("c1", V3, vec![insert]),
        push("c2", V3, vec![other, bad]),
        push("c3", V3, vec![based(update, 1)]),
        push("c4", V3, vec![del("tasks", "t2")]),
    ]);
    let sequences: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Step::Done(decision) => decision.result().unwrap().commit_seq.map(|seq| seq.0),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sequences, [Some(1), None, Some(2), Some(3)]);
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!((row.version, &row.values[2]), (2, &text("three")));
    assert_eq!(w.row("tasks", "t2"), None);
    assert_eq!(w.tombstone("tasks", "t2"), None);
    assert_eq!(w.results.len(), 4);
}

#[test]
fn a_batch_folds_a_row_to_its_last_state_and_its_changes_keep_every_step() {
    let mut w = World::new();
    let insert = w.whole(V3, "tasks", &task("t1", "one"));
    let update = w.sparse("tasks", &[("id", text("t1")), ("title", text("two"))]);
    let mut candidate = Candidate::new(PartitionId::from("part"), CommitSeq(0));
    for push in [
        push("c1", V3, vec![insert.clone(), update.clone()]),
        push("c2", V3, vec![del("tasks", "t1")]),
        push("c3", V3, vec![based(insert, 0)]),
    ] {
        w.settle(&mut candidate, &push, |needs| needs);
    }
    let batch = w.write(candidate);
    let [RowWrite::Put { row, over, .. }] = &batch.rows[..] else {
        panic!("{:?}", batch.rows);
    };
    assert_eq!(row.server_version, 1);
    assert_eq!(*over, Over::Nothing, "no tombstone was ever stored");
    let versions: Vec<_> = batch
        .commits
        .iter()
        .flat_map(|commit| &commit.changes)
        .map(|change| change.upsert.as_ref().map(|(version, _)| *version))
        .collect();
    assert_eq!(versions, [Some(1), Some(2), None, Some(1)]);
}

#[test]
fn two_writes_of_one_row_in_a_commit_are_two_versions() {
    let mut w = World::new();
    w.store("tasks", &task("t1", "old"));
    let one = w.sparse("tasks", &[("id", text("t1")), ("title", text("one"))]);
    let two = w.sparse(
        "tasks",
        &[("id", text("t1")), ("priority", Value::Integer(2))],
    );
    let commit = w.applied(push("c1", V3, vec![one, two]));
    assert_eq!(commit.changes.len(), 2);
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!(
        (row.version, &row.column_versions[..]),
        (3, &[1, 1, 2, 3, 1, 1][..])
    );
}

#[test]
fn a_read_at_another_position_is_not_taken_in() {
    let mut w = World::new();
    let mut candidate = Candidate::new(PartitionId::from("part"), CommitSeq(0));
    let op = w.whole(V3, "tasks", &task("t1", "x"));
    w.applied(push("c1", V3, vec![op]));
    let fetched = w.fetch(&tidegate_engine::model::Needs::default());
    assert_eq!(
        candidate.provide(&fetched),
        Err(Moved {
            expected: CommitSeq(0),
            found: CommitSeq(1)
        })
    );
}

#[test]
fn a_write_that_the_database_refused_is_a_constraint_violation_at_its_operation() {
    let mut w = World::new();
    let ops = vec![
        w.whole(V3, "tasks", &task("t1", "x")),
        w.whole(V3, "tasks", &task("t2", "x")),
    ];
    let refused = push("c1", V3, ops);
    let violated = w.key("tasks", "t2");
    for (key, op_index) in [(Some(&violated), 1), (None, 0)] {
        let mut candidate = Candidate::new(PartitionId::from("part"), CommitSeq(0));
        let decision = with_input(&refused, |input| {
            reject_constraint(&w.env(), &mut candidate, input, key)
        });
        let Decision::Rejected { result } = &decision else {
            panic!("{decision:?}");
        };
        assert_eq!(result.results[0].op_index, op_index);
        assert!(matches!(&result.results[0].outcome,
            OperationOutcome::Error { code, retryable: false, .. } if code == "sync.constraint_violation"));
        let batch = candidate.into_batch(tidegate_engine::SchemaVersion(1), Default::default());
        assert_eq!(
            (batch.commits.len(), batch.rows.len(), batch.results.len()),
            (0, 0, 1)
        );
    }
    assert_eq!(w.state().head, 0);
    // Recorded, it replays as itself.
    let mut candidate = Candidate::new(PartitionId::from("part"), CommitSeq(0));
    with_input(&refused, |input| {
        reject_constraint(&w.env(), &mut candidate, input, None)
    });
    w.write(candidate);
    assert!(matches!(w.push(refused), Decision::Replayed { .. }));
    assert_eq!(w.row("tasks", "t1"), None);
}

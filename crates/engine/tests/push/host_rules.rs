//! §6.6 to §6.9: blobs, row rules, whole-commit rules and reactions.

use std::sync::Arc;
use std::sync::Mutex;

use ssp2::{ErrorCode, OperationOutcome, Value};
use tidegate_engine::PartitionId;
use tidegate_engine::hooks::{HostRejection, RowCheck, ValidateRow};
use tidegate_engine::model::StoredRow;
use tidegate_engine::push::{
    BlobLookup, CommitRefusal, Decision, PlanFailure, PlanReactions, PlannedReaction, PushHooks,
    StagedCommit, Step, ValidateCommit, referenced_blobs,
};

use super::existing_row::Union;
use super::world::*;

const BLOB: &str = "sha256:c24f8baa413f0d38cfa8babdb0c095b421eeaf47ce0d85050111958f57f6668c";

fn task(title: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("id", text("t1")),
        ("project_id", text("p1")),
        ("title", text(title)),
    ]
}

fn rejection(code: &str) -> HostRejection {
    HostRejection {
        code: code.into(),
        message: "not so".into(),
        details: None,
    }
}

struct Blobs(&'static [&'static str]);

impl BlobLookup for Blobs {
    fn exists(&self, _: &PartitionId, blob_id: &str) -> bool {
        self.0.contains(&blob_id)
    }
}

#[test]
fn a_referenced_blob_must_be_stored() {
    let document = format!(r#"{{"blobId":"{BLOB}","byteLength":3}}"#);
    for (blobs, stored) in [
        (Some(&[BLOB][..]), true),
        (Some(&[][..]), false),
        (None, false),
    ] {
        let mut w = World::new();
        w.hooks.blobs = blobs.map(|ids| Arc::new(Blobs(ids)) as Arc<dyn BlobLookup>);
        w.store("tasks", &task("x"));
        let op = w.sparse("tasks", &[("id", text("t1")), ("file", text(&document))]);
        let attempt = push("c1", V3, vec![op]);
        let named = with_input(&attempt, |input| referenced_blobs(&w.env(), input));
        assert_eq!(named.into_iter().collect::<Vec<_>>(), [BLOB]);
        if stored {
            w.applied(attempt);
            assert_eq!(w.row("tasks", "t1").unwrap().values[5], text(&document));
        } else {
            w.refused(attempt, 0, ErrorCode::BlobNotFound);
        }
    }
}

/// A row as a check saw it: row id, row, stored row.
type Seen = (String, Option<Vec<Value>>, Option<Vec<Value>>);

/// Notes what it sees; refuses by title.
#[derive(Default)]
struct Titles(Mutex<Vec<Seen>>);

impl ValidateRow for Titles {
    fn validate(&self, check: &RowCheck<'_>) -> Result<(), HostRejection> {
        self.0.lock().unwrap().push((
            check.row_id.into(),
            check.row.map(<[Value]>::to_vec),
            check.stored.map(<[Value]>::to_vec),
        ));
        match check.row.and_then(|row| row.get(2)) {
            Some(Value::Text(title)) if title == "panic" => panic!("secret"),
            Some(Value::Text(title)) if title == "details" => Err(HostRejection {
                details: Some(r#"{"reason":"too_long","fieldPaths":["title"]}"#.into()),
                ..rejection("title.refused")
            }),
            Some(Value::Text(title)) if title == "bad details" => Err(HostRejection {
                details: Some(r#"{"prose":"x"}"#.into()),
                ..rejection("title.refused")
            }),
            Some(Value::Text(title)) if title.starts_with("code:") => Err(rejection(&title[5..])),
            None if check.row_id == "kept" => Err(rejection("row.kept")),
            _ => Ok(()),
        }
    }
}

fn with_titles() -> (World, Arc<Titles>) {
    let titles = Arc::new(Titles::default());
    let hooks = PushHooks {
        row_validator: Some(Arc::clone(&titles) as Arc<dyn ValidateRow>),
        crdt_merger: Some(Arc::new(Union)),
        ..PushHooks::default()
    };
    (World::with_hooks(hooks), titles)
}

fn error(decision: &Decision) -> (String, String, bool) {
    match &decision.result().unwrap().results[0].outcome {
        OperationOutcome::Error {
            code,
            message,
            retryable,
        } => (code.clone(), message.clone(), *retryable),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_row_rule_sees_the_row_that_will_persist_and_the_stored_one() {
    let (mut w, titles) = with_titles();
    w.store(
        "tasks",
        &[&task("old")[..], &[("body", bytes(&[1]))]].concat(),
    );
    let op = w.sparse("tasks", &[("id", text("t1")), ("body", bytes(&[2]))]);
    w.applied(push(
        "c1",
        V3,
        vec![op, del("tasks", "t1"), del("tasks", "t1")],
    ));
    let full = |body| w.full_row("tasks", &[&task("old")[..], &[("body", body)]].concat());
    assert_eq!(
        *titles.0.lock().unwrap(),
        [
            // Merged, and each operation over what the one before it staged.
            (
                "t1".into(),
                Some(full(bytes(&[1, 2]))),
                Some(full(bytes(&[1])))
            ),
            ("t1".into(), None, Some(full(bytes(&[1, 2])))),
            // The delete of an absent row asks nobody.
        ]
    );
}

#[test]
fn a_row_rule_sees_no_row_that_is_not_authorized() {
    let (mut w, titles) = with_titles();
    w.store("tasks", &task("old"));
    let op = w.sparse("tasks", &task("new"));
    let theirs = push("c1", V3, vec![op]).allowing(projects(&["p2"]));
    w.refused(theirs, 0, ErrorCode::Forbidden);
    assert!(titles.0.lock().unwrap().is_empty());
}

#[test]
fn a_deliberate_rejection_carries_the_hosts_code_and_details() {
    let (mut w, _) = with_titles();
    let before = w.state();
    let decision = w.push(push("c1", V3, vec![w.whole(V3, "tasks", &task("details"))]));
    assert_eq!(
        error(&decision),
        ("title.refused".into(), "not so".into(), false)
    );
    assert_eq!(
        decision.result().unwrap().details,
        [(
            0,
            r#"{"fieldPaths":["title"],"reason":"too_long"}"#.to_owned()
        )]
    );
    assert_eq!(w.state(), before);
    // The stored form of it replays.
    let again = w.push(push("c1", V3, vec![w.whole(V3, "tasks", &task("details"))]));
    assert_eq!(again.to_frames("c1"), decision.to_frames("c1"));
}

#[test]
fn a_rule_that_fails_or_uses_a_reserved_code_is_a_constraint_violation() {
    for title in [
        "panic",
        "bad details",
        "code:",
        "code:sync.forbidden",
        "code:blob.x",
        "code:operation.x",
        "code:presence.x",
        "code:client.x",
    ] {
        let (mut w, _) = with_titles();
        let op = w.whole(V3, "tasks", &task(title));
        let decision = w.refused(push("c1", V3, vec![op]), 0, ErrorCode::ConstraintViolation);
        assert_eq!(error(&decision).1, "write validator failed", "{title}");
    }
}

#[test]
fn a_cascaded_child_passes_its_tables_rule() {
    let (mut w, _) = with_titles();
    let scope = ("project_id", text("p1"));
    w.store("lists", &[("id", text("l1")), scope.clone()]);
    w.store(
        "cards",
        &[("id", text("kept")), scope, ("list_id", text("l1"))],
    );
    let before = w.state();
    let decision = w.push(push("c1", V3, vec![del("tags", "g1"), del("lists", "l1")]));
    assert_eq!(error(&decision).0, "row.kept");
    assert_eq!(decision.result().unwrap().results[0].op_index, 1);
    assert_eq!(w.state(), before);
}

/// Refuses a commit that leaves task `sum` below 10; notes the evidence.
#[derive(Default)]
struct Sum(Mutex<Vec<String>>);

impl ValidateCommit for Sum {
    fn validate(&self, commit: &StagedCommit<'_>) -> Result<(), CommitRefusal> {
        let table = commit.schema.table("tasks").unwrap().id;
        let sum = commit.reader.row(table, "sum")?;
        self.0
            .lock()
            .unwrap()
            .extend(commit.operations.iter().map(|op| {
                format!(
                    "{} {}{} {:?}->{:?}",
                    op.op_index,
                    if op.delete { "-" } else { "+" },
                    op.row_id,
                    op.stored_version,
                    op.next_version
                )
            }));
        match sum.map(|row| row.values[3].clone()) {
            Some(Value::Integer(sum)) if sum < 0 => panic!("secret"),
            Some(Value::Integer(sum)) if sum < 10 => Err(CommitRefusal::Rejected {
                op_index: usize::try_from(sum).unwrap(),
                rejection: rejection("sum.low"),
            }),
            _ => Ok(()),
        }
    }
}

fn with_sum(stored: i64) -> (World, Arc<Sum>) {
    let rule = Arc::new(Sum::default());
    let hooks = PushHooks {
        commit_validator: Some(Arc::clone(&rule) as Arc<dyn ValidateCommit>),
        ..PushHooks::default()
    };
    let mut w = World::with_hooks(hooks);
    w.store("tasks", &sum(stored));
    (w, rule)
}

fn sum(value: i64) -> Vec<(&'static str, Value)> {
    vec![
        ("id", text("sum")),
        ("project_id", text("p1")),
        ("title", text("s")),
        ("priority", Value::Integer(value)),
    ]
}

#[test]
fn a_whole_commit_rule_sees_the_final_state_and_every_operation() {
    let (mut w, rule) = with_sum(1);
    let ops = vec![
        w.whole(V3, "tasks", &task("x")),
        w.sparse("tasks", &[("id", text("t1")), ("title", text("y"))]),
        del("tasks", "t9"),
        w.sparse(
            "tasks",
            &[("id", text("sum")), ("priority", Value::Integer(10))],
        ),
    ];
    w.applied(push("c1", V3, ops));
    assert_eq!(
        *rule.0.lock().unwrap(),
        [
            "0 +t1 None->Some(1)",
            "1 +t1 Some(1)->Some(2)",
            "2 -t9 None->None",
            "3 +sum Some(1)->Some(2)",
        ]
    );
}

#[test]
fn a_whole_commit_rule_gets_rows_that_nobody_had_read() {
    let (mut w, rule) = with_sum(10);
    let op = w.whole(V3, "tasks", &task("x"));
    w.applied(push("c1", V3, vec![op]));
    assert_eq!(rule.0.lock().unwrap().len(), 1, "ran without the row");
}

#[test]
fn a_whole_commit_rule_that_meets_an_unreadable_row_fails_the_round() {
    let (mut w, _) = with_sum(10);
    let key = w.key("tasks", "sum");
    let mut row = StoredRow::clone(&w.rows[&key]);
    row.payload = bytes::Bytes::from_static(&[1]);
    w.rows.insert(key, Arc::new(row));
    let op = w.whole(V3, "tasks", &task("x"));
    let steps = w.push_all(&[push("c1", V3, vec![op])]);
    assert!(matches!(steps[0], Step::Failed(_)), "{steps:?}");
    assert!(w.results.is_empty());
}

#[test]
fn a_whole_commit_rejection_names_its_operation() {
    let (mut w, _) = with_sum(1);
    let before = w.state();
    let ops = vec![del("tasks", "t8"), w.whole(V3, "tasks", &task("x"))];
    let decision = w.push(push("c1", V3, ops));
    assert_eq!(error(&decision), ("sum.low".into(), "not so".into(), false));
    assert_eq!(decision.result().unwrap().results[0].op_index, 1);
    assert_eq!(w.state(), before);
}

#[test]
fn a_whole_commit_rule_that_fails_or_names_no_operation_is_a_constraint_violation() {
    for stored in [5, -1] {
        let (mut w, _) = with_sum(stored);
        let op = w.whole(V3, "tasks", &task("x"));
        let decision = w.refused(push("c1", V3, vec![op]), 0, ErrorCode::ConstraintViolation);
        assert_eq!(error(&decision).1, "whole-commit validator failed");
    }
}

#[test]
fn a_whole_commit_rule_does_not_run_on_a_replay_or_after_a_refusal() {
    let (mut w, rule) = with_sum(10);
    let again = push("c1", V3, vec![w.whole(V3, "tasks", &task("x"))]);
    w.applied(again.clone());
    rule.0.lock().unwrap().clear();
    w.push(again);
    let missing = w.sparse("tasks", &[("id", text("t9")), ("title", text("x"))]);
    w.refused(push("c2", V3, vec![missing]), 0, ErrorCode::RowMissing);
    assert!(rule.0.lock().unwrap().is_empty());
}

struct Plan(Result<Vec<PlannedReaction>, PlanFailure>);

impl PlanReactions for Plan {
    fn plan(&self, _: &StagedCommit<'_>) -> Result<Vec<PlannedReaction>, PlanFailure> {
        self.0.clone()
    }
}

fn reaction(key: &str) -> PlannedReaction {
    PlannedReaction {
        key: key.into(),
        kind: "mail.send".into(),
        version: 1,
        payload: serde_json::json!({"to": "x"}),
        max_attempts: 10,
    }
}

fn planning(plan: Result<Vec<PlannedReaction>, PlanFailure>) -> World {
    World::with_hooks(PushHooks {
        reactions: Some(Arc::new(Plan(plan))),
        ..PushHooks::default()
    })
}

#[test]
fn an_accepted_commit_carries_its_reactions_and_a_replay_none() {
    let mut w = planning(Ok(vec![reaction("a"), reaction("b")]));
    let again = push("c1", V3, vec![w.whole(V3, "tasks", &task("x"))]);
    let Decision::Applied { reactions, .. } = w.push(again.clone()) else {
        panic!("not applied");
    };
    assert_eq!(reactions, [reaction("a"), reaction("b")]);
    assert!(matches!(w.push(again), Decision::Replayed { .. }));
}

#[test]
fn a_planner_that_fails_fails_the_round_and_records_nothing() {
    let invalid = |change: fn(&mut PlannedReaction)| {
        let mut one = reaction("a");
        change(&mut one);
        Ok(vec![one])
    };
    for plan in [
        Err(PlanFailure::Failed),
        Ok(vec![reaction("a"), reaction("a")]),
        Ok((0..101).map(|n| reaction(&n.to_string())).collect()),
        invalid(|r| r.key.clear()),
        invalid(|r| r.kind = "Mail".into()),
        invalid(|r| r.version = 0),
        invalid(|r| r.max_attempts = 101),
        invalid(|r| r.payload = "x".repeat(65_536).into()),
    ] {
        let mut w = planning(plan);
        let attempt = push("c1", V3, vec![w.whole(V3, "tasks", &task("x"))]);
        let before = w.state();
        let steps = w.push_all(&[attempt]);
        let Step::Failed(error) = &steps[0] else {
            panic!("{steps:?}");
        };
        assert_eq!(error.code, ErrorCode::InternalError);
        assert_eq!(w.state(), before);
        assert!(w.results.is_empty());
    }
}

//! §2.3, §6.3: idempotent replay and the answer's frames.

use bytes::Bytes;
use ssp2::{
    ErrorCode, OperationOutcome, PushResultDetails, PushStatus, ResponseFrame, Value, WireVersion,
};
use tidegate_engine::model::ResultKey;
use tidegate_engine::push::{Decision, Step};

use super::world::*;

fn task(title: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("id", text("t1")),
        ("project_id", text("p1")),
        ("title", text(title)),
    ]
}

fn status(decision: &Decision) -> PushStatus {
    match &decision.to_frames("c1")[0] {
        ResponseFrame::PushResult(result) => {
            assert_eq!(result.client_commit_id, "c1");
            result.status
        }
        other => panic!("{other:?}"),
    }
}

fn encoded(decision: &Decision, wire: WireVersion) -> Vec<Vec<u8>> {
    decision
        .to_frames("c1")
        .iter()
        .map(|frame| {
            let mut out = bytes::BytesMut::new();
            ssp2::encode_response_frame(wire, frame, &mut out).unwrap();
            out.to_vec()
        })
        .collect()
}

#[test]
fn an_applied_commit_replays_as_cached_and_is_not_applied_again() {
    let mut w = World::new();
    let op = w.whole(V3, "tasks", &task("x"));
    let again = push("c1", V3, vec![op]);
    let first = w.push(again.clone());
    assert_eq!(status(&first), PushStatus::Applied(1));
    let before = w.state();
    let second = w.push(again);
    assert_eq!(status(&second), PushStatus::Cached(1));
    assert_eq!(second.result(), first.result());
    assert_eq!(w.state(), before);
}

#[test]
fn a_rejected_commit_replays_as_itself_even_when_it_could_apply_now() {
    let mut w = World::new();
    let op = w.sparse("tasks", &[("id", text("t1")), ("title", text("new"))]);
    let again = push("c1", V3, vec![op]);
    let first = w.refused(again.clone(), 0, ErrorCode::RowMissing);
    w.store("tasks", &task("old"));
    let before = w.state();
    let second = w.push(again);
    assert!(matches!(second, Decision::Replayed { .. }));
    assert_eq!(encoded(&second, V3), encoded(&first, V3));
    assert_eq!(w.state(), before);
}

#[test]
fn a_conflict_replays_byte_for_byte() {
    let mut w = World::new();
    w.store_at("tasks", &task("old"), 4, &[("title", 4)]);
    let op = w.sparse("tasks", &[("id", text("t1")), ("title", text("new"))]);
    let again = push("c1", V3, vec![based(op.clone(), 2)]);
    let first = w.push(again.clone());
    // The row moves on; the replay does not.
    w.applied(push("c2", V3, vec![op]));
    let second = w.push(again);
    for wire in [V1, V2, V3] {
        assert_eq!(encoded(&second, wire), encoded(&first, wire));
    }
}

#[test]
fn a_commit_twice_in_one_batch_is_processed_once() {
    let mut w = World::new();
    let applied = push("c1", V3, vec![w.whole(V3, "tasks", &task("x"))]);
    let missing = w.sparse("tasks", &[("id", text("t9")), ("title", text("x"))]);
    let rejected = push("c2", V3, vec![missing]);
    let steps = w.push_all(&[applied.clone(), rejected.clone(), applied, rejected]);
    let statuses: Vec<_> = steps
        .iter()
        .map(|step| match step {
            Step::Done(decision) => status(decision),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        statuses,
        [
            PushStatus::Applied(1),
            PushStatus::Rejected,
            PushStatus::Cached(1),
            PushStatus::Rejected
        ]
    );
    assert_eq!(w.row("tasks", "t1").unwrap().version, 1);
    assert_eq!((w.head().0, w.results.len()), (1, 2));
}

#[test]
fn the_key_is_the_device_and_its_commit_id() {
    let mut w = World::new();
    let op = w.whole(V3, "tasks", &task("x"));
    let mut other = push("c1", V3, vec![op]);
    w.applied(other.clone());
    other.client = "device-2";
    w.applied(other);
    assert_eq!(w.row("tasks", "t1").unwrap().version, 2);
}

#[test]
fn an_unreadable_result_is_a_cache_miss_that_is_never_stored() {
    let mut w = World::new();
    let op = w.whole(V3, "tasks", &task("x"));
    let again = push("c1", V3, vec![op]);
    let key = ResultKey {
        client_id: "device-1".into(),
        client_commit_id: "c1".into(),
    };
    w.results.insert(key.clone(), "{\"status\":\"?\"}".into());
    let before = w.state();
    let decision = w.push(again.clone());
    assert_eq!(decision, Decision::Unreadable);
    let frames = decision.to_frames("c1");
    let [ResponseFrame::PushResult(result)] = &frames[..] else {
        panic!("{frames:?}");
    };
    assert_eq!(result.status, PushStatus::Rejected);
    assert_eq!(result.results.len(), 1);
    assert_eq!(result.results[0].op_index, 0);
    assert!(matches!(&result.results[0].outcome,
        OperationOutcome::Error { code, retryable: true, .. } if code == "sync.idempotency_cache_miss"));
    assert_eq!(w.state(), before);
    assert_eq!(
        w.results[&key], "{\"status\":\"?\"}",
        "the record was overwritten"
    );
    // Readable again, it is processed no more than before.
    w.results.remove(&key);
    assert_eq!(status(&w.push(again)), PushStatus::Applied(1));
}

#[test]
fn a_conflict_from_before_conflict_columns_marks_every_comparable_column() {
    let mut w = World::new();
    let key = ResultKey {
        client_id: "device-1".into(),
        client_commit_id: "c1".into(),
    };
    w.results.insert(
        key,
        r#"{"status":"rejected","results":[{"opIndex":0,"status":"conflict","code":"sync.version_conflict","message":"m","serverVersion":7,"serverRow":"AA=="}]}"#.into(),
    );
    let op = w.sparse("tasks", &[("id", text("t1")), ("title", text("new"))]);
    let decision = w.push(push("c1", V3, vec![op]));
    let OperationOutcome::Conflict {
        conflict_columns, ..
    } = &decision.result().unwrap().results[0].outcome
    else {
        panic!("{decision:?}");
    };
    // project_id, title, priority, file; neither the key nor the crdt column.
    assert_eq!(conflict_columns, &Bytes::from_static(&[0b10_1110]));
}

#[test]
fn details_follow_their_rejection_and_replay_with_it() {
    let mut w = World::new();
    let op = w.whole(
        V3,
        "cards",
        &[
            ("id", text("k1")),
            ("project_id", text("p1")),
            ("list_id", text("l1")),
        ],
    );
    let again = push("c1", V3, vec![op]);
    let first = w.refused(again.clone(), 0, ErrorCode::ReferenceViolation);
    let frames = first.to_frames("c1");
    let [
        ResponseFrame::PushResult(_),
        ResponseFrame::PushResultDetails(PushResultDetails {
            client_commit_id,
            entries,
        }),
    ] = &frames[..]
    else {
        panic!("{frames:?}");
    };
    assert_eq!(
        (
            client_commit_id.as_str(),
            entries.len(),
            entries[0].op_index
        ),
        ("c1", 1, 0)
    );
    assert_eq!(w.push(again).to_frames("c1"), frames);
}

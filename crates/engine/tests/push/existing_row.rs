//! §6.2: an upsert of an existing row, each rule in its order.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{ErrorCode, OperationKind, OperationOutcome, Value};
use tidegate_engine::hooks::MergeCrdt;
use tidegate_engine::push::PushHooks;

use super::world::*;

/// Merges sets of bytes by union.
pub struct Union;

impl MergeCrdt for Union {
    fn merge(&self, crdt_type: &str, stored: Option<&Bytes>, incoming: &Bytes) -> Option<Bytes> {
        assert_eq!(crdt_type, "union");
        let mut all: Vec<u8> = stored
            .into_iter()
            .flatten()
            .chain(incoming)
            .copied()
            .collect();
        all.sort_unstable();
        all.dedup();
        (!all.contains(&0xff)).then(|| all.into())
    }
}

pub fn merging() -> PushHooks {
    PushHooks {
        crdt_merger: Some(Arc::new(Union)),
        ..PushHooks::default()
    }
}

fn task(title: &str, priority: i64) -> [(&'static str, Value); 4] {
    [
        ("id", text("t1")),
        ("project_id", text("p1")),
        ("title", text(title)),
        ("priority", Value::Integer(priority)),
    ]
}

/// `t1` at version 7: title written at 4, priority at 6, body at 7.
fn world() -> World {
    let mut w = World::with_hooks(merging());
    w.store_at(
        "tasks",
        &[&task("old", 1)[..], &[("body", bytes(&[1, 2]))]].concat(),
        7,
        &[("title", 4), ("priority", 6), ("body", 7)],
    );
    w
}

fn id() -> (&'static str, Value) {
    ("id", text("t1"))
}

#[test]
fn v3_without_base_writes_the_present_columns_only() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    let commit = w.applied(push("c1", V3, vec![op]));
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!(row.version, 8);
    assert_eq!(row.values[2], text("new"));
    assert_eq!(row.values[3], Value::Integer(1));
    assert_eq!(row.values[4], bytes(&[1, 2]));
    assert_eq!(row.column_versions, [1, 1, 8, 6, 7, 1]);
    let stored = &w.rows[&w.key("tasks", "t1")];
    assert_eq!(commit.changes.len(), 1);
    assert_eq!(commit.changes[0].scopes, stored.scopes);
    // The change carries the whole row, never the sparse payload.
    assert_eq!(commit.changes[0].upsert, Some((8, stored.payload.clone())));
}

#[test]
fn v3_a_present_scope_column_that_differs_is_invalid() {
    let mut w = world();
    // Before the base rules: the base alone would be refused as well.
    let op = w.sparse("tasks", &[id(), ("project_id", text("p2"))]);
    let both = push("c1", V3, vec![based(op, 99)]).allowing(projects(&["p1", "p2"]));
    let decision = w.refused(both, 0, ErrorCode::InvalidRequest);
    assert!(format!("{decision:?}").contains("scope column"));
}

#[test]
fn v3_a_null_scope_column_differs_too() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("project_id", Value::Null)]);
    w.refused(push("c1", V3, vec![op]), 0, ErrorCode::InvalidRequest);
}

#[test]
fn v3_a_present_scope_column_that_is_equal_applies() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("project_id", text("p1"))]);
    w.applied(push("c1", V3, vec![op]));
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!(row.values[1], text("p1"));
    assert_eq!(row.column_versions, [1, 8, 4, 6, 7, 1]);
}

#[test]
fn v3_a_base_above_the_server_version_is_invalid() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    w.refused(
        push("c1", V3, vec![based(op, 8)]),
        0,
        ErrorCode::InvalidRequest,
    );
}

#[test]
fn v3_base_0_conflicts_over_every_present_comparable_column() {
    let mut w = world();
    let op = w.sparse(
        "tasks",
        &[
            id(),
            ("project_id", text("p1")),
            ("title", text("new")),
            ("body", bytes(&[9])),
        ],
    );
    w.conflicts(
        push("c1", V3, vec![based(op, 0)]),
        0,
        &["project_id", "title"],
    );
}

#[test]
fn v3_base_0_on_a_row_of_another_scope_discloses_nothing() {
    let mut w = world();
    let op = w.sparse(
        "tasks",
        &[id(), ("project_id", text("p2")), ("title", text("mine"))],
    );
    let theirs = push("c1", V3, vec![based(op, 0)]).allowing(projects(&["p2"]));
    w.refused(theirs, 0, ErrorCode::Forbidden);
}

#[test]
fn v3_a_base_conflicts_over_exactly_the_columns_that_moved_past_it() {
    let columns = [
        id(),
        ("title", text("new")),
        ("priority", Value::Integer(9)),
    ];
    for (base, marked) in [
        (3, &["title", "priority"][..]),
        (4, &["priority"]),
        (5, &["priority"]),
    ] {
        let mut w = world();
        let op = w.sparse("tasks", &columns);
        w.conflicts(push("c1", V3, vec![based(op, base)]), 0, marked);
    }
    for base in [6, 7] {
        let mut w = world();
        let op = w.sparse("tasks", &columns);
        w.applied(push("c1", V3, vec![based(op, base)]));
        assert_eq!(
            w.row("tasks", "t1").unwrap().column_versions,
            [1, 1, 8, 8, 7, 1]
        );
    }
}

#[test]
fn v3_columns_that_are_absent_do_not_conflict() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    w.applied(push("c1", V3, vec![based(op, 4)]));
    assert_eq!(w.row("tasks", "t1").unwrap().version, 8);
}

#[test]
fn v3_a_crdt_column_never_conflicts_and_merges() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("body", bytes(&[3]))]);
    w.applied(push("c1", V3, vec![based(op, 1)]));
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!(row.values[4], bytes(&[1, 2, 3]));
    assert_eq!(row.column_versions, [1, 1, 4, 6, 8, 1]);
}

#[test]
fn v3_a_conflict_merges_nothing() {
    let mut w = world();
    let op = w.sparse(
        "tasks",
        &[id(), ("title", text("new")), ("body", bytes(&[3]))],
    );
    w.conflicts(push("c1", V3, vec![based(op, 3)]), 0, &["title"]);
    assert_eq!(w.row("tasks", "t1").unwrap().values[4], bytes(&[1, 2]));
}

#[test]
fn a_pushed_null_crdt_leaves_the_stored_state() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("body", Value::Null)]);
    w.applied(push("c1", V3, vec![op]));
    assert_eq!(w.row("tasks", "t1").unwrap().values[4], bytes(&[1, 2]));
}

#[test]
fn a_merge_that_fails_rejects_the_commit() {
    let mut w = world();
    let op = w.sparse("tasks", &[id(), ("body", bytes(&[0xff]))]);
    w.refused(push("c1", V3, vec![op]), 0, ErrorCode::CrdtMergeFailed);
    let mut w = world();
    w.hooks.crdt_merger = None;
    let op = w.sparse("tasks", &[id(), ("body", bytes(&[3]))]);
    w.refused(push("c1", V3, vec![op]), 0, ErrorCode::CrdtMergeFailed);
}

#[test]
fn v3_the_key_alone_moves_the_version_and_no_column() {
    let mut w = World::new();
    w.store("tasks", &task("old", 1));
    let op = w.sparse("tasks", &[id()]);
    w.applied(push("c1", V3, vec![op]));
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!((row.version, &row.column_versions[..]), (2, &[1; 6][..]));
    // Which later bases rely on: nothing moved past version 1.
    let op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    w.applied(push("c2", V3, vec![based(op, 1)]));
}

#[test]
fn v3_a_row_from_before_column_versions_conflicts_in_every_column() {
    let mut w = world();
    let key = w.key("tasks", "t1");
    let mut row = (*w.rows[&key]).clone();
    row.column_versions = None;
    w.rows.insert(key, Arc::new(row));
    let op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    w.conflicts(push("c1", V3, vec![based(op, 6)]), 0, &["title"]);
    let op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    w.applied(push("c2", V3, vec![based(op, 7)]));
    assert_eq!(
        w.row("tasks", "t1").unwrap().column_versions,
        [7, 7, 8, 7, 7, 7]
    );
}

#[test]
fn v1_v2_without_base_the_last_write_wins_over_the_whole_row() {
    for wire in [V1, V2] {
        let mut w = world();
        let op = w.whole(wire, "tasks", &task("new", 9));
        w.applied(push("c1", wire, vec![op]));
        let row = w.row("tasks", "t1").unwrap();
        assert_eq!(row.version, 8);
        assert_eq!(
            (&row.values[2], &row.values[3]),
            (&text("new"), &Value::Integer(9))
        );
        assert_eq!(row.column_versions, [1, 8, 8, 8, 8, 8]);
    }
}

#[test]
fn v1_v2_a_scope_column_keeps_its_stored_value_silently() {
    for wire in [V1, V2] {
        let mut w = world();
        let mut columns = task("new", 9);
        columns[1].1 = text("p2");
        let op = w.whole(wire, "tasks", &columns);
        let commit = w.applied(push("c1", wire, vec![op]));
        assert_eq!(w.row("tasks", "t1").unwrap().values[1], text("p1"));
        assert_eq!(commit.changes[0].scopes.get("project_id").unwrap(), "p1");
    }
}

#[test]
fn v1_v2_any_base_but_the_server_version_conflicts() {
    for wire in [V1, V2] {
        for (base, marked) in [
            (3, &["title", "priority"][..]),
            (5, &["priority"]),
            // Only the crdt column moved since, or the base was never issued: no
            // column stands out, so all of them are marked.
            (6, &["project_id", "title", "priority", "file"]),
            (8, &["project_id", "title", "priority", "file"]),
            (0, &["project_id", "title", "priority", "file"]),
        ] {
            let mut w = world();
            let op = w.whole(wire, "tasks", &task("new", 9));
            w.conflicts(push("c1", wire, vec![based(op, base)]), 0, marked);
        }
        let mut w = world();
        let op = w.whole(wire, "tasks", &task("new", 9));
        w.applied(push("c1", wire, vec![based(op, 7)]));
        assert_eq!(w.row("tasks", "t1").unwrap().version, 8);
    }
}

#[test]
fn a_conflict_names_both_versions() {
    let mut w = world();
    let op = w.whole(V1, "tasks", &task("new", 9));
    let decision = w.push(push("c1", V1, vec![based(op, 3)]));
    let OperationOutcome::Conflict { message, .. } = &decision.result().unwrap().results[0].outcome
    else {
        panic!("{decision:?}");
    };
    assert_eq!(message, "baseVersion 3 does not match server_version 7");
}

#[test]
fn v1_v2_crdt_columns_merge() {
    let mut w = world();
    let op = w.whole(
        V2,
        "tasks",
        &[&task("new", 9)[..], &[("body", bytes(&[3]))]].concat(),
    );
    w.applied(push("c1", V2, vec![op]));
    assert_eq!(w.row("tasks", "t1").unwrap().values[4], bytes(&[1, 2, 3]));
}

#[test]
fn a_payload_of_the_other_format_is_invalid() {
    let mut w = world();
    let full = w.whole(V2, "tasks", &task("new", 9));
    w.refused(push("c1", V3, vec![full]), 0, ErrorCode::InvalidRequest);
    let sparse = w.sparse("tasks", &[id(), ("title", text("new"))]);
    w.refused(push("c2", V2, vec![sparse]), 0, ErrorCode::InvalidRequest);
}

#[test]
fn a_payload_that_does_not_decode_is_invalid() {
    let mut w = world();
    let mut op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    op.kind = OperationKind::Upsert(Bytes::from_static(&[0xff, 0xff]));
    w.refused(push("c1", V3, vec![op]), 0, ErrorCode::InvalidRequest);
}

#[test]
fn the_row_id_must_be_the_rendered_key() {
    let mut w = world();
    let mut op = w.sparse("tasks", &[id(), ("title", text("new"))]);
    op.row_id = "t2".into();
    w.refused(push("c1", V3, vec![op]), 0, ErrorCode::InvalidRequest);
    let counter = [("id", Value::Integer(7)), ("project_id", text("p1"))];
    let mut op = w.sparse("counters", &counter);
    assert_eq!(op.row_id, "7");
    op.row_id = "07".into();
    w.refused(push("c2", V3, vec![op]), 0, ErrorCode::InvalidRequest);
    let op = w.sparse("counters", &counter);
    w.applied(push("c3", V3, vec![op]));
    assert!(w.row("counters", "7").is_some());
}

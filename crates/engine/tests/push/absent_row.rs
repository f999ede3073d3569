//! §6.2: an upsert of an absent row, the tombstone table.

use ssp2::{ErrorCode, Value};

use super::existing_row::merging;
use super::world::*;

fn columns() -> [(&'static str, Value); 6] {
    [
        ("id", text("t1")),
        ("project_id", text("p1")),
        ("title", text("new")),
        ("priority", Value::Null),
        ("body", Value::Null),
        ("file", Value::Null),
    ]
}

fn with_tombstone() -> World {
    let mut w = World::new();
    w.store("tasks", &columns());
    w.applied(push("gone", V3, vec![del("tasks", "t1")]));
    assert_eq!(w.tombstone("tasks", "t1"), Some(1));
    w
}

fn assert_inserted(w: &World) {
    let row = w.row("tasks", "t1").unwrap();
    assert_eq!((row.version, &row.column_versions[..]), (1, &[1; 6][..]));
    assert_eq!(w.rows[&w.key("tasks", "t1")].column_versions, None);
    assert_eq!(w.tombstone("tasks", "t1"), None);
}

#[test]
fn base_0_inserts_with_or_without_a_tombstone() {
    for wire in [V1, V2, V3] {
        for mut w in [World::new(), with_tombstone()] {
            let op = w.whole(wire, "tasks", &columns());
            let commit = w.applied(push("c1", wire, vec![based(op, 0)]));
            assert_inserted(&w);
            assert_eq!(commit.changes[0].upsert.as_ref().unwrap().0, 1);
        }
    }
}

#[test]
fn v3_base_0_with_a_column_absent_is_row_missing() {
    for mut w in [World::new(), with_tombstone()] {
        let op = w.sparse("tasks", &columns()[..3]);
        w.refused(push("c1", V3, vec![based(op, 0)]), 0, ErrorCode::RowMissing);
    }
}

#[test]
fn a_base_above_0_is_row_missing() {
    for wire in [V1, V2, V3] {
        for mut w in [World::new(), with_tombstone()] {
            let op = w.whole(wire, "tasks", &columns());
            w.refused(
                push("c1", wire, vec![based(op, 3)]),
                0,
                ErrorCode::RowMissing,
            );
        }
    }
}

#[test]
fn absence_is_not_disclosed_without_the_scope() {
    for base in [None, Some(0), Some(3)] {
        for mut w in [World::new(), with_tombstone()] {
            let mut op = w.sparse("tasks", &columns()[..3]);
            op.base_version = base;
            let theirs = push("c1", V3, vec![op]).allowing(projects(&["p2"]));
            w.refused(theirs, 0, ErrorCode::Forbidden);
        }
    }
}

#[test]
fn v3_no_base_and_a_tombstone_is_row_deleted() {
    for present in [3, 6] {
        let mut w = with_tombstone();
        let op = w.sparse("tasks", &columns()[..present]);
        w.refused(push("c1", V3, vec![op]), 0, ErrorCode::RowDeleted);
        assert_eq!(w.tombstone("tasks", "t1"), Some(1));
    }
}

#[test]
fn v3_no_base_and_a_pruned_tombstone_inserts() {
    let mut w = with_tombstone();
    w.tombstones.clear();
    let op = w.whole(V3, "tasks", &columns());
    w.applied(push("c1", V3, vec![op]));
    assert_inserted(&w);
}

#[test]
fn v1_v2_no_base_inserts_over_a_tombstone() {
    for wire in [V1, V2] {
        let mut w = with_tombstone();
        let op = w.whole(wire, "tasks", &columns());
        w.applied(push("c1", wire, vec![op]));
        assert_inserted(&w);
    }
}

#[test]
fn no_base_and_no_tombstone_inserts_a_whole_row() {
    for wire in [V1, V2, V3] {
        let mut w = World::new();
        let op = w.whole(wire, "tasks", &columns());
        w.applied(push("c1", wire, vec![op]));
        assert_inserted(&w);
    }
}

#[test]
fn v3_no_base_and_a_column_absent_is_row_missing() {
    let mut w = World::new();
    // With and without its scope.
    let op = w.sparse("tasks", &columns()[..5]);
    w.refused(push("c1", V3, vec![op]), 0, ErrorCode::RowMissing);
    let op = w.sparse("tasks", &[("id", text("t1")), ("title", text("new"))]);
    w.refused(push("c2", V3, vec![op]), 0, ErrorCode::RowMissing);
}

#[test]
fn an_inserted_crdt_value_is_merged_with_nothing() {
    let mut w = World::with_hooks(merging());
    let mut columns = columns();
    columns[4].1 = bytes(&[3, 1, 3]);
    let op = w.whole(V3, "tasks", &columns);
    w.applied(push("c1", V3, vec![op]));
    assert_eq!(w.row("tasks", "t1").unwrap().values[4], bytes(&[1, 3]));
}

#[test]
fn a_row_deleted_in_the_same_commit_has_a_tombstone() {
    let mut w = World::new();
    w.store("tasks", &columns());
    let whole = w.whole(V3, "tasks", &columns());
    w.refused(
        push("c1", V3, vec![del("tasks", "t1"), whole.clone()]),
        1,
        ErrorCode::RowDeleted,
    );
    let commit = w.applied(push("c2", V3, vec![del("tasks", "t1"), based(whole, 0)]));
    assert_eq!(commit.changes.len(), 2);
    assert_inserted(&w);
}

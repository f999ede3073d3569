//! §6.2: deletes.

use ssp2::{ErrorCode, Value};

use super::world::*;

fn world() -> World {
    let mut w = World::new();
    w.store_at(
        "tasks",
        &[
            ("id", text("t1")),
            ("project_id", text("p1")),
            ("title", text("x")),
        ],
        5,
        &[],
    );
    w
}

#[test]
fn an_existing_row_goes_and_leaves_a_tombstone() {
    let mut w = world();
    let commit = w.applied(push("c1", V3, vec![del("tasks", "t1")]));
    assert_eq!(w.row("tasks", "t1"), None);
    assert_eq!(w.tombstone("tasks", "t1"), Some(1));
    let [change] = &commit.changes[..] else {
        panic!("{commit:?}");
    };
    assert_eq!(change.upsert, None);
    assert_eq!(change.scopes.get("project_id").unwrap(), "p1");
}

#[test]
fn the_base_is_ignored() {
    for base in [0, 3, 99] {
        let mut w = world();
        w.applied(push("c1", V3, vec![based(del("tasks", "t1"), base)]));
        assert_eq!(w.row("tasks", "t1"), None);
    }
}

#[test]
fn an_absent_row_is_applied_without_change_or_check() {
    let mut w = world();
    let before = w.state();
    let theirs = push("c1", V3, vec![del("tasks", "t2")]).allowing(projects(&[]));
    let commit = w.applied(theirs);
    assert!(commit.changes.is_empty());
    // A commit that changes nothing takes its place in the log all the same.
    assert_eq!(w.head().0, before.head + 1);
    assert_eq!(w.state().rows, before.rows);
    assert_eq!(w.tombstone("tasks", "t2"), None);
}

#[test]
fn a_row_of_another_scope_is_forbidden() {
    let mut w = world();
    let theirs = push("c1", V3, vec![del("tasks", "t1")]).allowing(projects(&["p2"]));
    w.refused(theirs, 0, ErrorCode::Forbidden);
}

#[test]
fn a_second_delete_keeps_the_first_tombstone() {
    let mut w = world();
    w.applied(push("c1", V3, vec![del("tasks", "t1")]));
    w.applied(push("c2", V3, vec![del("tasks", "t1")]));
    assert_eq!(w.tombstone("tasks", "t1"), Some(1));
}

#[test]
fn a_row_inserted_and_deleted_in_one_commit_leaves_a_tombstone() {
    let mut w = World::new();
    let op = w.whole(
        V3,
        "tasks",
        &[
            ("id", text("t1")),
            ("project_id", text("p1")),
            ("title", text("x")),
            ("priority", Value::Null),
        ],
    );
    let commit = w.applied(push("c1", V3, vec![op, del("tasks", "t1")]));
    assert_eq!(commit.changes.len(), 2);
    assert_eq!(w.tombstone("tasks", "t1"), Some(1));
}

//! §6.11: declared references, each row of the table.

use ssp2::{ErrorCode, Operation, Value};
use tidegate_engine::PartitionId;
use tidegate_engine::push::{Candidate, Decision, Step};

use super::world::*;

fn list(id: &str) -> Vec<(&'static str, Value)> {
    vec![("id", text(id)), ("project_id", text("p1"))]
}

fn child(id: &str, column: &'static str, parent: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("id", text(id)),
        ("project_id", text("p1")),
        (column, text(parent)),
    ]
}

/// l1 has cards k1 (with comment m1) and k2, and the tag g1.
fn world() -> World {
    let mut w = World::new();
    w.store("lists", &list("l1"));
    w.store("lists", &list("l2"));
    w.store("cards", &child("k1", "list_id", "l1"));
    w.store("cards", &child("k2", "list_id", "l1"));
    w.store("cards", &child("k3", "list_id", "l2"));
    w.store("comments", &child("m1", "card_id", "k1"));
    w.store_at("tags", &child("g1", "list_id", "l1"), 3, &[("list_id", 2)]);
    w
}

fn details(decision: &Decision) -> &str {
    &decision.result().unwrap().details[0].1
}

fn card(w: &World, id: &str, list: &str) -> Operation {
    w.whole(V3, "cards", &child(id, "list_id", list))
}

#[test]
fn an_absent_parent_is_missing_parent() {
    for wire in [V1, V2, V3] {
        let mut w = world();
        let ok = w.whole(wire, "cards", &child("k8", "list_id", "l2"));
        let op = w.whole(wire, "cards", &child("k9", "list_id", "l9"));
        let decision = w.refused(
            push("c1", wire, vec![ok, op]),
            1,
            ErrorCode::ReferenceViolation,
        );
        assert_eq!(
            details(&decision),
            r#"{"fieldPaths":["list_id"],"reason":"missing_parent","references":{"parent":"lists","row":"l9"}}"#
        );
        assert_eq!(decision.result().unwrap().details[0].0, 1);
    }
}

#[test]
fn a_null_reference_needs_no_parent() {
    let mut w = world();
    let mut columns = child("k9", "list_id", "");
    columns[2].1 = Value::Null;
    let op = w.whole(V3, "cards", &columns);
    w.applied(push("c1", V3, vec![op]));
    assert!(w.row("cards", "k9").is_some());
}

#[test]
fn a_reference_that_is_not_presented_is_not_checked() {
    let mut w = world();
    w.rows.remove(&w.key("lists", "l2"));
    let op = w.sparse("cards", &[("id", text("k3")), ("project_id", text("p1"))]);
    w.applied(push("c1", V3, vec![op]));
    let op = w.sparse("cards", &[("id", text("k3")), ("list_id", text("l2"))]);
    w.refused(push("c2", V3, vec![op]), 0, ErrorCode::ReferenceViolation);
}

#[test]
fn a_parent_later_in_the_same_commit_counts() {
    let mut w = world();
    let ops = vec![card(&w, "k9", "l9"), w.whole(V3, "lists", &list("l9"))];
    w.applied(push("c1", V3, ops));
    assert!(w.row("cards", "k9").is_some());
}

#[test]
fn a_parent_deleted_later_in_the_same_commit_does_not_count() {
    let mut w = world();
    let ops = vec![card(&w, "k9", "l2"), del("lists", "l2")];
    w.refused(push("c1", V3, ops), 0, ErrorCode::ReferenceViolation);
}

#[test]
fn a_reference_that_the_commit_takes_back_is_not_checked() {
    let mut w = world();
    let ops = vec![
        card(&w, "k9", "l9"),
        w.sparse("cards", &[("id", text("k9")), ("list_id", text("l2"))]),
        card(&w, "k8", "l9"),
        del("cards", "k8"),
    ];
    w.applied(push("c1", V3, ops));
    assert_eq!(w.row("cards", "k9").unwrap().values[2], text("l2"));
}

#[test]
fn restrict_refuses_a_delete_while_children_remain() {
    let mut w = world();
    w.store("pins", &child("n1", "card_id", "k3"));
    let ops = vec![del("tags", "g9"), del("cards", "k3")];
    let decision = w.refused(push("c1", V3, ops), 1, ErrorCode::ReferenceViolation);
    assert_eq!(
        details(&decision),
        r#"{"reason":"restricted_delete","references":{"child":"pins"}}"#
    );
    w.applied(push("c2", V3, vec![del("cards", "k3"), del("pins", "n1")]));
    assert_eq!(w.row("cards", "k3"), None);
    assert_eq!(w.row("pins", "n1"), None);
}

#[test]
fn restrict_sees_children_that_the_batch_staged() {
    let mut w = world();
    let pin = w.whole(V3, "pins", &child("n1", "card_id", "k3"));
    let steps = w.push_all(&[
        push("c1", V3, vec![pin]),
        push("c2", V3, vec![del("cards", "k3")]),
    ]);
    assert!(format!("{:?}", steps[1]).contains("restricted_delete"));
    assert!(w.row("cards", "k3").is_some());
}

#[test]
fn cascade_deletes_children_recursively_in_the_same_commit() {
    let mut w = world();
    let commit = w.applied(push("c1", V3, vec![del("lists", "l1")]));
    for (table, id) in [
        ("lists", "l1"),
        ("cards", "k1"),
        ("cards", "k2"),
        ("comments", "m1"),
    ] {
        assert_eq!(w.row(table, id), None);
        assert_eq!(w.tombstone(table, id), Some(1), "{id}");
    }
    assert!(w.row("cards", "k3").is_some());
    let changed: Vec<&str> = commit.changes.iter().map(|c| &*c.key.row_id).collect();
    assert_eq!(changed, ["l1", "k1", "k2", "g1", "m1"]);
    assert!(
        commit
            .changes
            .iter()
            .all(|c| c.scopes.get("project_id").unwrap() == "p1")
    );
}

#[test]
fn a_cascade_follows_what_the_batch_staged() {
    let mut w = world();
    let moved = w.sparse("cards", &[("id", text("k3")), ("list_id", text("l1"))]);
    let away = w.sparse("cards", &[("id", text("k1")), ("list_id", text("l2"))]);
    let new = card(&w, "k9", "l1");
    w.push_all(&[
        push("c1", V3, vec![moved, away, new]),
        push("c2", V3, vec![del("lists", "l1")]),
    ]);
    assert!(w.row("cards", "k1").is_some());
    for id in ["k2", "k3", "k9"] {
        assert_eq!(w.row("cards", id), None, "{id}");
    }
}

#[test]
fn a_cascade_needs_no_grant_for_the_children() {
    let mut w = world();
    let mut theirs = child("k9", "list_id", "l1");
    theirs[1].1 = text("p2");
    w.store("cards", &theirs);
    let commit = w.applied(push("c1", V3, vec![del("lists", "l1")]));
    assert_eq!(w.row("cards", "k9"), None);
    let change = commit
        .changes
        .iter()
        .find(|c| &*c.key.row_id == "k9")
        .unwrap();
    assert_eq!(change.scopes.get("project_id").unwrap(), "p2");
}

#[test]
fn restrict_below_a_cascade_is_attributed_to_the_clients_delete() {
    let mut w = world();
    w.store("pins", &child("n1", "card_id", "k2"));
    let ops = vec![del("lists", "l2"), del("lists", "l1")];
    let decision = w.refused(push("c1", V3, ops), 1, ErrorCode::ReferenceViolation);
    assert_eq!(
        details(&decision),
        r#"{"reason":"restricted_delete","references":{"child":"pins"}}"#
    );
}

#[test]
fn set_null_clears_the_column_and_moves_only_its_version() {
    let mut w = world();
    let commit = w.applied(push("c1", V3, vec![del("lists", "l1")]));
    let row = w.row("tags", "g1").unwrap();
    assert_eq!(row.version, 4);
    assert_eq!(row.values, [text("g1"), text("p1"), Value::Null]);
    assert_eq!(row.column_versions, [1, 1, 4]);
    let change = commit
        .changes
        .iter()
        .find(|c| &*c.key.row_id == "g1")
        .unwrap();
    assert_eq!(change.upsert.as_ref().unwrap().0, 4);
}

#[test]
fn a_parent_deleted_and_written_again_keeps_its_children() {
    let mut w = world();
    let again = based(w.whole(V3, "lists", &list("l1")), 0);
    let commit = w.applied(push("c1", V3, vec![del("lists", "l1"), again]));
    assert_eq!(commit.changes.len(), 2);
    assert!(w.row("cards", "k1").is_some());
}

#[test]
fn the_cascade_cap_may_be_reached_but_not_exceeded() {
    // k1, k2, g1 and m1 are appended.
    let mut w = world();
    w.cascade_cap = 4;
    w.applied(push("c1", V3, vec![del("lists", "l1")]));
    assert_eq!(w.row("comments", "m1"), None);
    let mut w = world();
    w.cascade_cap = 3;
    let ops = vec![del("lists", "l9"), del("lists", "l1")];
    let decision = w.refused(push("c1", V3, ops), 1, ErrorCode::ReferenceViolation);
    assert_eq!(details(&decision), r#"{"reason":"cascade_limit"}"#);
}

/// A list of six cards, and a cap of two.
fn long_list() -> World {
    let mut w = World::new();
    w.cascade_cap = 2;
    w.store("lists", &list("l1"));
    w.store("lists", &list("l2"));
    for id in ["k1", "k2", "k3", "k4", "k5", "k6"] {
        w.store("cards", &child(id, "list_id", "l1"));
    }
    w
}

fn move_card(w: &World, id: &str, list: &str) -> Operation {
    w.sparse("cards", &[("id", text(id)), ("list_id", text(list))])
}

#[test]
fn children_beyond_what_was_read_are_not_forgotten() {
    // Reading the cap's worth of children would find only such as have moved away.
    let mut w = long_list();
    let moves = ["k1", "k2", "k3", "k4"].map(|id| move_card(&w, id, "l2"));
    w.push_all(&[
        push("c1", V3, moves.into()),
        push("c2", V3, vec![del("lists", "l1")]),
    ]);
    assert_eq!(w.row("lists", "l1"), None);
    for id in ["k1", "k2", "k3", "k4"] {
        assert!(w.row("cards", id).is_some(), "{id}");
    }
    for id in ["k5", "k6"] {
        assert_eq!(w.row("cards", id), None, "{id}");
    }
}

#[test]
fn a_child_that_an_earlier_commit_brought_and_this_one_takes_away_stays() {
    let mut w = world();
    let brought = move_card(&w, "k3", "l1");
    let taken = move_card(&w, "k3", "l2");
    w.push_all(&[
        push("c1", V3, vec![brought]),
        push("c2", V3, vec![taken, del("lists", "l1")]),
    ]);
    assert_eq!(w.row("lists", "l1"), None);
    assert_eq!(w.row("cards", "k3").unwrap().values[2], text("l2"));
}

#[test]
fn a_refusal_waits_for_what_could_come_before_it() {
    // Both deletes exceed the cap. Whatever is read first, the first one is named.
    let mut w = long_list();
    for id in ["j1", "j2", "j3"] {
        w.store("cards", &child(id, "list_id", "l2"));
    }
    let both = push("c1", V3, vec![del("lists", "l1"), del("lists", "l2")]);
    let mut candidate = Candidate::new(PartitionId::from("part"), w.head());
    let step = w.settle(&mut candidate, &both, |mut needs| {
        if needs.children.iter().any(|of| &*of.parent_row == "l2") {
            needs.children.retain(|of| &*of.parent_row == "l2");
        }
        needs
    });
    let Step::Done(decision) = step else {
        panic!("{step:?}");
    };
    assert_eq!(details(&decision), r#"{"reason":"cascade_limit"}"#);
    assert_eq!(decision.result().unwrap().results[0].op_index, 0);
}

#[test]
fn deleting_an_absent_parent_follows_nothing() {
    let mut w = world();
    w.rows.remove(&w.key("lists", "l1"));
    let commit = w.applied(push("c1", V3, vec![del("lists", "l1")]));
    assert!(commit.changes.is_empty());
    assert!(w.row("cards", "k1").is_some());
}

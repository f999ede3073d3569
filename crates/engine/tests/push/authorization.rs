//! §3.4: who may write which row.

use ssp2::{ErrorCode, Value};
use tidegate_engine::hooks::Allowed;

use super::world::*;

fn task(project: Value) -> Vec<(&'static str, Value)> {
    vec![
        ("id", text("t1")),
        ("project_id", project),
        ("title", text("x")),
    ]
}

#[test]
fn an_unknown_table_comes_before_everything() {
    let mut w = World::new();
    let op = del("nowhere", "x");
    w.refused(
        push("c1", V3, vec![op]).allowing(Allowed::Failed),
        0,
        ErrorCode::UnknownTable,
    );
}

#[test]
fn a_failed_resolver_forbids_right_after_the_table_check() {
    let mut w = World::new();
    // Even a payload that does not decode, and the delete of an absent row.
    let mut op = w.sparse("tasks", &task(text("p1")));
    op.kind = ssp2::OperationKind::Upsert(bytes::Bytes::new());
    let failed = push("c1", V3, vec![op]).allowing(Allowed::Failed);
    w.refused(failed, 0, ErrorCode::Forbidden);
    let failed = push("c2", V3, vec![del("tasks", "t1")]).allowing(Allowed::Failed);
    w.refused(failed, 0, ErrorCode::Forbidden);
}

#[test]
fn a_payload_that_does_not_decode_is_invalid_before_it_is_forbidden() {
    let mut w = World::new();
    w.store("tasks", &task(text("p1")));
    let mut op = w.sparse("tasks", &task(text("p1")));
    op.kind = ssp2::OperationKind::Upsert(bytes::Bytes::new());
    let theirs = push("c1", V3, vec![op]).allowing(projects(&["p2"]));
    w.refused(theirs, 0, ErrorCode::InvalidRequest);
}

#[test]
fn an_update_is_authorized_by_the_stored_row_not_by_the_payload() {
    for wire in [V1, V2, V3] {
        let mut w = World::new();
        w.store("tasks", &task(text("p1")));
        // The payload claims a project that the actor holds.
        let op = w.whole(wire, "tasks", &task(text("p2")));
        let theirs = push("c1", wire, vec![op]).allowing(projects(&["p2"]));
        w.refused(theirs, 0, ErrorCode::Forbidden);
    }
}

#[test]
fn an_insert_is_authorized_by_the_payload() {
    let mut w = World::new();
    let op = w.whole(V3, "tasks", &task(text("p2")));
    w.refused(push("c1", V3, vec![op.clone()]), 0, ErrorCode::Forbidden);
    w.applied(push("c2", V3, vec![op]).allowing(projects(&["p2"])));
    assert_eq!(w.row("tasks", "t1").unwrap().values[1], text("p2"));
}

#[test]
fn a_null_or_empty_scope_value_is_denied() {
    for value in [Value::Null, text("")] {
        let mut w = World::new();
        let op = w.whole(V3, "tasks", &task(value));
        let any = push("c1", V3, vec![op]).allowing(projects(&["*"]));
        w.refused(any, 0, ErrorCode::Forbidden);
    }
}

#[test]
fn every_declared_variable_must_be_allowed() {
    let row = [
        ("id", text("d1")),
        ("org", text("o1")),
        ("project_id", text("p1")),
        ("body", text("x")),
    ];
    for (allowed, may) in [
        (scopes(&[("org", &["o1"]), ("project_id", &["p1"])]), true),
        (scopes(&[("org", &["*"]), ("project_id", &["p1"])]), true),
        (scopes(&[("org", &["o1"])]), false),
        (scopes(&[("org", &["o1"]), ("project_id", &["p2"])]), false),
        (scopes(&[("org", &["o1"]), ("project_id", &[])]), false),
    ] {
        let mut w = World::new();
        let op = w.whole(V3, "docs", &row);
        let attempt = push("c1", V3, vec![op]).allowing(allowed);
        if may {
            w.applied(attempt);
            assert!(w.row("docs", "d1").is_some());
        } else {
            w.refused(attempt, 0, ErrorCode::Forbidden);
        }
    }
}

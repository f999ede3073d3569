//! What a decision asks for, and that asking changes nothing.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{ErrorCode, Value};
use tidegate_engine::model::{Needs, StoredRow};
use tidegate_engine::push::{Candidate, Step, decide, initial_needs};
use tidegate_engine::{CommitSeq, PartitionId};

use super::world::*;

fn candidate() -> Candidate {
    Candidate::new(PartitionId::from("part"), CommitSeq(0))
}

#[test]
fn one_need_names_the_result_all_rows_and_all_parents() {
    let w = World::new();
    let card = w.whole(
        V3,
        "cards",
        &[
            ("id", text("k1")),
            ("project_id", text("p1")),
            ("list_id", text("l1")),
        ],
    );
    let mut garbled = w.sparse("cards", &[("id", text("k2")), ("project_id", text("p1"))]);
    garbled.kind = ssp2::OperationKind::Upsert(Bytes::new());
    let attempt = push(
        "c1",
        V3,
        vec![card, garbled, del("lists", "l2"), del("nowhere", "x")],
    );
    let mut candidate = candidate();
    let step = with_input(&attempt, |input| decide(&w.env(), &mut candidate, input));
    let Step::Need(needs) = step else {
        panic!("{step:?}");
    };
    assert_eq!(
        needs.rows,
        [
            w.key("cards", "k1"),
            w.key("cards", "k2"),
            w.key("lists", "l1"),
            w.key("lists", "l2")
        ]
        .into()
    );
    assert_eq!(needs.results.len(), 1);
    let children: Vec<_> = needs
        .children
        .iter()
        .map(|key| (w.schema.table_at(key.child).name.as_str(), &*key.parent_row))
        .collect();
    assert_eq!(children, [("cards", "l2"), ("tags", "l2")]);
    assert_eq!(
        needs,
        with_input(&attempt, |input| initial_needs(&w.env(), input))
    );
    assert!(candidate.is_empty());
}

#[test]
fn a_seeded_row_is_not_asked_for() {
    let mut w = World::new();
    let key = w.store(
        "tasks",
        &[
            ("id", text("t1")),
            ("project_id", text("p1")),
            ("title", text("x")),
        ],
    );
    let attempt = push("c1", V3, vec![del("tasks", "t1")]);
    let mut candidate = candidate();
    candidate.seed_row(key.clone(), w.row_state(&key));
    let step = with_input(&attempt, |input| decide(&w.env(), &mut candidate, input));
    let Step::Need(needs) = step else {
        panic!("{step:?}");
    };
    assert_eq!(needs.rows, [].into());
    assert_eq!(needs.results.len(), 1);
}

#[test]
fn nothing_is_asked_twice_when_nothing_is_unknown() {
    let w = World::new();
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
    let attempt = push("c1", V3, vec![op]);
    let mut candidate = candidate();
    let needs = with_input(&attempt, |input| initial_needs(&w.env(), input));
    candidate.provide(&w.fetch(&needs)).unwrap();
    assert_eq!(candidate.unknown_of(needs), Needs::default());
    let step = with_input(&attempt, |input| decide(&w.env(), &mut candidate, input));
    assert!(matches!(step, Step::Done(_)), "{step:?}");
}

#[test]
fn a_stored_row_that_does_not_decode_fails_the_round_and_records_nothing() {
    let mut w = World::new();
    let columns = [
        ("id", text("t1")),
        ("project_id", text("p1")),
        ("title", text("x")),
    ];
    let key = w.store("tasks", &columns);
    let sound = StoredRow::clone(&w.rows[&key]);
    for broken in [
        StoredRow {
            payload: Bytes::from_static(&[1]),
            ..sound.clone()
        },
        StoredRow {
            column_versions: Some(Bytes::from_static(&[0x80])),
            ..sound
        },
    ] {
        w.rows.insert(key.clone(), Arc::new(broken));
        let op = w.sparse("tasks", &columns);
        let steps = w.push_all(&[push("c1", V3, vec![op])]);
        let Step::Failed(error) = &steps[0] else {
            panic!("{steps:?}");
        };
        assert_eq!(error.code, ErrorCode::InternalError);
        assert!(w.results.is_empty());
    }
}

//! §6.3: a collision on a unique index that a later commit of the batch removes again.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ssp2::{Operation, Value};
use tidegate_engine::PartitionId;
use tidegate_engine::push::{Candidate, Step, initial_needs};

use crate::world::*;

fn put(world: &World, id: &str, place: Option<i64>) -> Operation {
    let place = place.map_or(Value::Null, Value::Integer);
    let columns = [
        ("id", text(id)),
        ("project_id", text("p1")),
        ("place", place),
        ("label", text("x")),
    ];
    // Wire 2: a whole row, and a put brings a deleted one back.
    world.whole(V2, "slots", &columns)
}

/// Whether commits of these operations, decided as one batch, may hide a collision.
fn may_hide(world: &World, commits: &[Vec<Operation>]) -> bool {
    let mut candidate = Candidate::new(PartitionId::from("part"), world.head());
    for (number, operations) in commits.iter().enumerate() {
        let push = push(&format!("c{number}"), V2, operations.clone());
        with_input(&push, |input| {
            let needs = candidate.unknown_of(initial_needs(&world.env(), input));
            candidate.provide(&world.fetch(&needs)).unwrap();
        });
        let step = world.settle(&mut candidate, &push, |needs| needs);
        assert!(matches!(step, Step::Done(_)), "{step:?}");
    }
    candidate.may_hide_a_collision()
}

fn world() -> World {
    let mut world = World::new();
    for (id, place) in [("a", 1), ("b", 2)] {
        let columns = [
            ("id", text(id)),
            ("project_id", text("p1")),
            ("place", Value::Integer(place)),
            ("label", text("x")),
        ];
        world.store("slots", &columns);
    }
    world
}

#[test]
fn s6_3_a_duplicate_that_the_next_commit_removes_is_noticed() {
    let world = world();
    let twin = put(&world, "x", Some(1));
    // The duplicate goes itself, or the row it duplicates.
    for second in [
        del("slots", "x"),
        put(&world, "x", Some(7)),
        put(&world, "x", None),
    ] {
        assert!(may_hide(&world, &[vec![twin.clone()], vec![second]]));
    }
    for second in [del("slots", "a"), put(&world, "a", Some(9))] {
        assert!(may_hide(&world, &[vec![twin.clone()], vec![second]]));
    }
}

#[test]
fn s6_3_what_cannot_collide_on_the_way_is_written_together() {
    let world = world();
    let (first, second) = (put(&world, "x", Some(5)), put(&world, "y", Some(6)));
    // Other places, no place, the same place twice, and a place that was free by then.
    assert!(!may_hide(&world, &[vec![first.clone()], vec![second]]));
    assert!(!may_hide(
        &world,
        &[vec![put(&world, "x", None)], vec![del("slots", "x")]]
    ));
    assert!(!may_hide(
        &world,
        &[vec![first.clone()], vec![first.clone()]]
    ));
    assert!(!may_hide(
        &world,
        &[vec![del("slots", "a")], vec![put(&world, "x", Some(1))]]
    ));
    // Within one commit a place may change hands.
    let swap = vec![put(&world, "a", Some(2)), put(&world, "b", Some(1))];
    assert!(!may_hide(&world, &[swap]));
    // An update that leaves the place alone gives nothing up.
    let columns = [
        ("id", text("x")),
        ("project_id", text("p1")),
        ("place", Value::Integer(5)),
    ];
    let relabel = world.whole(V2, "slots", &columns);
    assert!(!may_hide(&world, &[vec![first], vec![relabel]]));
}

proptest! {
    #[test]
    fn s6_3_no_collision_on_the_way_is_hidden(
        commits in prop::collection::vec(
            prop::collection::vec((0_usize..4, prop::option::of(0_i64..4), any::<bool>()), 1..3),
            1..6,
        )
    ) {
        let world = world();
        let mut places: BTreeMap<usize, Option<i64>> = [(0, Some(1)), (1, Some(2))].into();
        let collides = |places: &BTreeMap<usize, Option<i64>>| {
            let mut seen = std::collections::BTreeSet::new();
            places.values().flatten().any(|place| !seen.insert(*place))
        };
        let ids = ["a", "b", "x", "y"];
        let mut on_the_way = false;
        let mut pushed = Vec::new();
        for commit in &commits {
            let mut operations = Vec::new();
            for &(row, place, deletes) in commit {
                if deletes {
                    places.remove(&row);
                    operations.push(del("slots", ids[row]));
                } else {
                    places.insert(row, place);
                    operations.push(put(&world, ids[row], place));
                }
            }
            on_the_way |= collides(&places);
            pushed.push(operations);
        }
        if on_the_way && !collides(&places) {
            prop_assert!(may_hide(&world, &pushed));
        }
    }
}

//! What a page writes, and that it writes it once.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use ssp2::{
    OperationKind, PushCommit, Value, WireVersion, decode_row, decode_sparse_row, encode_row,
};
use tidegate_engine::backfill::checkpoint::Advance;
use tidegate_engine::backfill::page::{
    BackfillPage, RowChange, RowImage, SourceImage, TargetWrite, plan_changes, server_scopes,
    target_keys,
};
use tidegate_engine::backfill::projection::{
    DeclaredProjection, FailureReason, Projection, source_names,
};
use tidegate_engine::backfill::scan::{KeyRange, PageId, Place, SCANNING};
use tidegate_engine::model::{Fetched, ResultLookup, RowKey, RowState, StoredRow};
use tidegate_engine::push::{Candidate, Decision, PushEnv, PushHooks, PushInput, Step, decide};
use tidegate_engine::scopes::stored_scopes;
use tidegate_engine::{CommitSeq, OwnerEpoch};

use super::world::*;

type Stored = BTreeMap<RowKey, RowImage>;

fn plan(
    projection: &DeclaredProjection,
    sources: &[SourceImage],
    stored: &Stored,
) -> Vec<RowChange> {
    plan_changes(&schema(), projection, sources, |key| {
        stored.get(key).cloned()
    })
    .unwrap()
}

fn failure(
    projection: &DeclaredProjection,
    sources: &[SourceImage],
    stored: &Stored,
) -> FailureReason {
    let stored = |key: &RowKey| stored.get(key).cloned();
    plan_changes(&schema(), projection, sources, stored)
        .unwrap_err()
        .reason
}

fn page(changes: Vec<RowChange>) -> BackfillPage {
    let id = PageId {
        owner_epoch: OwnerEpoch(1),
        fingerprint: "f".into(),
        place: Place::Scan {
            start: CommitSeq(4),
            done: KeyRange::whole("todos"),
        },
    };
    let advance = Advance {
        owner_epoch: OwnerEpoch(1),
        watermark: SCANNING,
        observed_rows: 2,
    };
    BackfillPage::new("b", &id, changes, advance)
}

/// What a store holds after the changes.
fn apply(stored: &mut Stored, changes: &[RowChange]) {
    for change in changes {
        match &change.write {
            TargetWrite::Delete => drop(stored.remove(&change.key)),
            TargetWrite::Set(cells) => {
                let before = stored.get(&change.key);
                let mut values: Vec<Value> = before
                    .map_or_else(|| vec![Value::Null; cells.len()], |row| row.values.to_vec());
                for (at, cell) in cells.iter().enumerate() {
                    if let Some(value) = cell {
                        values[at] = value.clone();
                    }
                }
                let version = before.map_or(0, |row| row.server_version) + 1;
                stored.insert(change.key.clone(), image(version, values));
            }
        }
    }
}

#[test]
fn a_row_that_is_as_computed_is_not_written() {
    let columns = load(COLUMNS).unwrap();
    let row = todo("t1", "l", "Milk", Some(3), None);
    let changes = plan(
        &columns,
        &[source("todos", "t1", Some(image(4, row)))],
        &Stored::new(),
    );
    let [
        RowChange {
            key: changed,
            expected_version: Some(4),
            write: TargetWrite::Set(cells),
        },
    ] = changes.as_slice()
    else {
        panic!("{changes:?}");
    };
    assert_eq!(*changed, key("todos", "t1"));
    let written: Vec<usize> = (0..12).filter(|at| cells[*at].is_some()).collect();
    assert_eq!(written, [0, 6, 7, 8, 9, 10], "the key and what differs");

    let mut row = todo("t1", "l", "Milk", Some(3), None);
    for (at, cell) in cells.iter().enumerate() {
        if let Some(value) = cell {
            row[at] = value.clone();
        }
    }
    // The same document in other words.
    row[9] = text(r#"{ "title": "Milk", "tags": [], "a": 1 }"#);
    let again = [source("todos", "t1", Some(image(5, row)))];
    assert!(plan(&columns, &again, &Stored::new()).is_empty());
}

#[test]
fn a_row_that_is_left_out_loses_its_computed_columns() {
    let columns = load(COLUMNS).unwrap();
    let mut row = todo("t1", "l", "", None, None);
    assert!(
        plan(
            &columns,
            &[source("todos", "t1", Some(image(1, row.clone())))],
            &Stored::new()
        )
        .is_empty()
    );
    row[6] = text("stale");
    let changes = plan(
        &columns,
        &[source("todos", "t1", Some(image(2, row)))],
        &Stored::new(),
    );
    let TargetWrite::Set(cells) = &changes[0].write else {
        panic!("columns are set");
    };
    assert_eq!(cells[6], Some(Value::Null));
    assert!(
        plan(&columns, &[source("todos", "t1", None)], &Stored::new()).is_empty(),
        "deleted"
    );
}

#[test]
fn computed_rows_follow_their_source() {
    let (schema, rows) = (schema(), load(ROWS).unwrap());
    assert_eq!(source_names(&schema, &rows), ["todos", "counters"]);
    let one = |title| {
        [source(
            "todos",
            "1",
            Some(image(1, todo("1", "l", title, None, None))),
        )]
    };
    let target = key("cards", "todos:1");
    let needed = target_keys(&schema, &rows, &one("a")).unwrap();
    assert_eq!(needed, [target.clone()].into());

    let mut stored = Stored::new();
    let changes = plan(&rows, &one("a"), &stored);
    assert_eq!(changes[0].expected_version, None);
    apply(&mut stored, &changes);
    // A column that is not computed belongs to others.
    let mut kept = stored[&target].values.to_vec();
    kept[3] = text("mine");
    stored.insert(target.clone(), image(2, kept));
    assert!(plan(&rows, &one("a"), &stored).is_empty());
    let changes = plan(&rows, &one("b"), &stored);
    assert_eq!(changes[0].expected_version, Some(2));
    apply(&mut stored, &changes);
    assert_eq!(
        *stored[&target].values,
        [text("todos:1"), text("l"), text("b"), text("mine")]
    );

    for gone in [&one("#hidden")[..], &[source("todos", "1", None)]] {
        let changes = plan(&rows, gone, &stored);
        assert_eq!(changes[0].write, TargetWrite::Delete);
        assert!(plan(&rows, gone, &Stored::new()).is_empty());
    }
}

#[test]
fn a_page_that_cannot_be_right_is_not_written() {
    let same_key = ROWS.replace(
        "source + ':' + string(row.id)",
        "string(size(string(row.id)))",
    );
    let card =
        |id: &str, list: &str| source("todos", id, Some(image(1, todo(id, list, "a", None, None))));
    let rows = load(&same_key).unwrap();
    assert_eq!(
        failure(&rows, &[card("x", "l"), card("y", "l")], &Stored::new()),
        FailureReason::KeyTaken
    );
    let rows = load(ROWS).unwrap();
    assert_eq!(
        failure(&rows, &[card("x", "")], &Stored::new()),
        FailureReason::NoScope
    );
    let mut stored = Stored::new();
    apply(&mut stored, &plan(&rows, &[card("x", "l")], &Stored::new()));
    assert_eq!(
        failure(&rows, &[card("x", "m")], &stored),
        FailureReason::ScopeMoved
    );
    let short = source("todos", "x", Some(image(1, vec![text("x")])));
    assert_eq!(
        failure(&load(COLUMNS).unwrap(), &[short], &Stored::new()),
        FailureReason::BadRow
    );
}

#[test]
fn a_commit_leaves_out_rows_that_moved_on() {
    let (schema, columns) = (schema(), load(COLUMNS).unwrap());
    let sources: Vec<SourceImage> = ["a", "b"]
        .map(|id| {
            source(
                "todos",
                id,
                Some(image(3, todo(id, "l", "Tea", None, None))),
            )
        })
        .into();
    let page = page(plan(&columns, &sources, &Stored::new()));
    assert_eq!(page.rows().count(), 2);
    assert_eq!(page.key.client_id.as_str(), r#"["backfill","b"]"#);
    let commit = page
        .commit(&schema, |key| Some(if &*key.row_id == "a" { 4 } else { 3 }))
        .unwrap()
        .unwrap();
    assert_eq!(commit.client_commit_id, *page.key.client_commit_id);
    let [operation] = commit.operations.as_slice() else {
        panic!("{commit:?}");
    };
    assert_eq!(
        (operation.row_id.as_str(), operation.base_version),
        ("b", None)
    );
    let OperationKind::Upsert(bytes) = &operation.kind else {
        panic!("an upsert");
    };
    let todos = schema.table("todos").unwrap();
    let cells = decode_sparse_row(&todos.columns, 0, bytes).unwrap();
    assert_eq!(cells[6], Some(text("tea")));
    assert_eq!(cells[2], None, "columns that others write stay out");
    assert_eq!(page.commit(&schema, |_| None).unwrap(), None);
}

fn decided(table_name: &str, commit: &PushCommit, stored: Option<(RowKey, StoredRow)>) -> Decision {
    let (schema, hooks) = (schema(), PushHooks::default());
    let env = PushEnv::new(&schema, &hooks, 0);
    let allowed = server_scopes(schema.table(table_name).unwrap());
    let (client, actor) = ("b".into(), "server".into());
    let input = PushInput {
        client_id: &client,
        actor_id: &actor,
        wire: WireVersion::V3,
        allowed: &allowed,
        commit,
    };
    let mut candidate = Candidate::new("p".into(), CommitSeq(5));
    let mut rounds = 0;
    loop {
        match decide(&env, &mut candidate, &input) {
            Step::Done(decision) => return decision,
            Step::Need(needs) => {
                rounds += 1;
                assert!(rounds < 4, "{needs:?}");
                let row = |key: RowKey| {
                    let found = stored.iter().find(|(stored, _)| *stored == key);
                    let state = match found {
                        Some((_, row)) => RowState::Present(Arc::new(row.clone())),
                        None => RowState::Absent {
                            tombstone: Some(CommitSeq(3)),
                        },
                    };
                    (key, state)
                };
                let fetched = Fetched {
                    max: CommitSeq(5),
                    rows: needs.rows.into_iter().map(row).collect(),
                    results: needs
                        .results
                        .into_iter()
                        .map(|key| (key, ResultLookup::Absent))
                        .collect(),
                    children: Vec::new(),
                };
                candidate.provide(&fetched).unwrap();
            }
            Step::Failed(error) => panic!("{error:?}"),
        }
    }
}

/// Pages go through the ordinary pipeline: new rows (over a tombstone too) and
/// rows that exist.
#[test]
fn a_pages_commit_is_an_ordinary_push() {
    let schema = schema();
    let new = [source(
        "todos",
        "1",
        Some(image(1, todo("1", "l", "a", None, None))),
    )];
    let changes = plan(&load(ROWS).unwrap(), &new, &Stored::new());
    let commit = page(changes).commit(&schema, |_| None).unwrap().unwrap();
    let Decision::Applied { commit, .. } = decided("cards", &commit, None) else {
        panic!("applied");
    };
    let (_, payload) = commit.changes[0].upsert.clone().unwrap();
    let cards = schema.table("cards").unwrap();
    let row = decode_row(&cards.columns, &payload).unwrap();
    assert_eq!(row, [text("todos:1"), text("l"), text("a"), Value::Null]);

    let todos = schema.table("todos").unwrap();
    let values = todo("1", "l", "Tea", None, None);
    let stored = StoredRow {
        server_version: 7,
        scopes: stored_scopes(todos, &values).unwrap(),
        payload: encode_row(&todos.columns, &values).unwrap(),
        column_versions: None,
    };
    let old = [source("todos", "1", Some(image(7, values)))];
    let changes = plan(&load(COLUMNS).unwrap(), &old, &Stored::new());
    let commit = page(changes).commit(&schema, |_| Some(7)).unwrap().unwrap();
    let Decision::Applied { commit, .. } =
        decided("todos", &commit, Some((key("todos", "1"), stored)))
    else {
        panic!("applied");
    };
    let (version, payload) = commit.changes[0].upsert.clone().unwrap();
    assert_eq!(version, 8);
    let row = decode_row(&todos.columns, &payload).unwrap();
    assert_eq!((&row[2], &row[6]), (&text("Tea"), &text("tea")));
}

proptest! {
    /// Whatever the target holds, one page makes it right and a second writes nothing.
    #[test]
    fn a_page_is_idempotent(
        sources in prop::collection::btree_map("[a-c]{1,2}", prop::option::of("[#a-b]{0,2}"), 0..8),
        stale in prop::collection::btree_map("[a-c]{1,2}", "[a-b]{1,2}", 0..8),
    ) {
        let rows = load(ROWS).unwrap();
        let images: Vec<SourceImage> = sources
            .iter()
            .map(|(id, title)| {
                let row = title.as_ref().map(|title| image(1, todo(id, "l", title, None, None)));
                source("todos", id, row)
            })
            .collect();
        let mut stored: Stored = stale
            .iter()
            .map(|(id, label)| {
                let id = format!("todos:{id}");
                (key("cards", &id), image(1, vec![text(&id), text("l"), text(label), Value::Null]))
            })
            .collect();
        let changes = plan(&rows, &images, &stored);
        apply(&mut stored, &changes);
        prop_assert!(plan(&rows, &images, &stored).is_empty());
        for (id, title) in &sources {
            let found = stored.get(&key("cards", &format!("todos:{id}"))).map(|row| row.values[2].clone());
            let expected = title.as_deref().filter(|title| !title.starts_with('#')).map(text);
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(rows.target(), table("cards"));
    }
}

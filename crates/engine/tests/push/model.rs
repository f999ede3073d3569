//! Any history of commits, batched and read in any way, comes out as in a model
//! that copies the whole state per commit and looks at every row.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use proptest::prelude::*;
use ssp2::{Operation, OperationKind, OperationOutcome, PushCommit, SparseRow, Value, WireVersion};
use tidegate_engine::PartitionId;
use tidegate_engine::model::Needs;
use tidegate_engine::push::{Candidate, Decision, Step, initial_needs};

use super::existing_row::merging;
use super::world::{Push, State, V1, V2, V3, World, del, projects, text, with_input};

const TABLES: [&str; 5] = ["lists", "cards", "comments", "tags", "pins"];
const CAP: usize = 3;

/// `(child, parent, on delete)`, in schema order; the reference is column 2.
const REFERENCES: [(&str, &str, &str); 4] = [
    ("cards", "lists", "cascade"),
    ("comments", "cards", "cascade"),
    ("tags", "lists", "set null"),
    ("pins", "cards", "restrict"),
];

#[derive(Debug, Clone)]
struct Op {
    table: &'static str,
    id: String,
    base: Option<i64>,
    /// `None` = delete.
    payload: Option<SparseRow>,
}

#[derive(Debug, Clone)]
struct Commit {
    client: &'static str,
    id: String,
    wire: WireVersion,
    allowed: &'static [&'static str],
    ops: Vec<Op>,
}

#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    Applied(i64),
    Error(usize, String, Option<String>),
    Conflict(usize, i64, Vec<usize>),
}

type Key = (String, String);

#[derive(Debug, Clone)]
struct Row {
    version: i64,
    values: Vec<Value>,
    written: Vec<i64>,
}

#[derive(Debug, Clone, Default)]
struct Model {
    rows: BTreeMap<Key, Row>,
    tombstones: BTreeMap<Key, i64>,
    results: BTreeMap<(&'static str, String), Outcome>,
    head: i64,
}

fn is_crdt(table: &str, column: usize) -> bool {
    table == "lists" && column == 3
}

fn union(a: &Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Bytes(a), Value::Bytes(b)) => {
            let mut all = [&a[..], &b[..]].concat();
            all.sort_unstable();
            all.dedup();
            Value::Bytes(all.into())
        }
        (a, Value::Null) => a.clone(),
        (Value::Null, b) => b.clone(),
        _ => panic!("not crdt values"),
    }
}

impl Model {
    /// The outcome, and whether it is a replay.
    fn push(&mut self, commit: &Commit) -> (Outcome, bool) {
        let key = (commit.client, commit.id.clone());
        if let Some(outcome) = self.results.get(&key) {
            return (outcome.clone(), true);
        }
        let mut trial = self.clone();
        trial.head += 1;
        let outcome = match trial.run(commit) {
            Ok(()) => {
                *self = trial;
                Outcome::Applied(self.head)
            }
            Err(refusal) => refusal,
        };
        self.results.insert(key, outcome.clone());
        (outcome, false)
    }

    fn run(&mut self, commit: &Commit) -> Result<(), Outcome> {
        let mut presented = Vec::new();
        let mut deleted = VecDeque::new();
        for (at, op) in commit.ops.iter().enumerate() {
            let error = |code: &str| Outcome::Error(at, format!("sync.{code}"), None);
            let may = |project: &Value| commit.allowed.iter().any(|p| *project == text(p));
            let key = (op.table.to_owned(), op.id.clone());
            let Some(payload) = &op.payload else {
                if let Some(row) = self.rows.get(&key) {
                    if !may(&row.values[1]) {
                        return Err(error("forbidden"));
                    }
                    self.rows.remove(&key);
                    self.tombstones.insert(key.clone(), self.head);
                    deleted.push_back((at, key));
                }
                continue;
            };
            let new_clients = commit.wire == V3;
            let present: Vec<usize> = (0..payload.len())
                .filter(|c| payload[*c].is_some())
                .collect();
            let comparable: Vec<usize> = present
                .iter()
                .copied()
                .filter(|c| *c != 0 && !is_crdt(op.table, *c))
                .collect();
            if let Some(row) = self.rows.get_mut(&key) {
                if !may(&row.values[1]) {
                    return Err(error("forbidden"));
                }
                if new_clients && payload[1].as_ref().is_some_and(|p| *p != row.values[1]) {
                    return Err(error("invalid_request"));
                }
                if let Some(base) = op.base {
                    let moved: Vec<usize> = comparable
                        .iter()
                        .copied()
                        .filter(|c| row.written[*c] > base)
                        .collect();
                    let conflict = |columns| Err(Outcome::Conflict(at, row.version, columns));
                    if new_clients && base > row.version {
                        return Err(error("invalid_request"));
                    }
                    if base == 0 {
                        return conflict(comparable);
                    }
                    if new_clients && !moved.is_empty() {
                        return conflict(moved);
                    }
                    if !new_clients && base != row.version {
                        return conflict(if moved.is_empty() { comparable } else { moved });
                    }
                }
                row.version += 1;
                for column in present.iter().copied().filter(|c| *c != 0) {
                    let pushed = payload[column].clone().unwrap();
                    row.written[column] = row.version;
                    if is_crdt(op.table, column) {
                        row.values[column] = union(&row.values[column], &pushed);
                    } else if column != 1 {
                        row.values[column] = pushed;
                    }
                }
            } else {
                if payload[1].as_ref().is_some_and(|project| !may(project)) {
                    return Err(error("forbidden"));
                }
                let buried = self.tombstones.contains_key(&key);
                match op.base {
                    Some(base) if base > 0 => return Err(error("row_missing")),
                    None if buried && new_clients => return Err(error("row_deleted")),
                    _ if present.len() < payload.len() => return Err(error("row_missing")),
                    _ => {}
                }
                let values: Vec<Value> = payload.iter().map(|v| v.clone().unwrap()).collect();
                self.tombstones.remove(&key);
                let written = vec![1; values.len()];
                self.rows.insert(
                    key.clone(),
                    Row {
                        version: 1,
                        values,
                        written,
                    },
                );
            }
            if op.table != "lists" && present.contains(&2) {
                presented.push((at, key.clone(), self.rows[&key].values[2].clone()));
            }
        }
        self.check_parents(presented)?;
        self.follow(deleted)
    }

    fn check_parents(&self, presented: Vec<(usize, Key, Value)>) -> Result<(), Outcome> {
        for (at, key, value) in presented {
            let still = self
                .rows
                .get(&key)
                .is_some_and(|row| row.values[2] == value);
            let Value::Text(parent) = value else { continue };
            let table = REFERENCES.iter().find(|r| r.0 == key.0).unwrap().1;
            if still && !self.rows.contains_key(&(table.to_owned(), parent)) {
                return Err(violation(at, "missing_parent"));
            }
        }
        Ok(())
    }

    fn children(&self, table: &str, parent: &str) -> Vec<Key> {
        self.rows
            .iter()
            .filter(|(key, row)| key.0 == table && row.values[2] == text(parent))
            .map(|(key, _)| key.clone())
            .collect()
    }

    fn follow(&mut self, mut deleted: VecDeque<(usize, Key)>) -> Result<(), Outcome> {
        let mut appended = 0;
        let mut gone = Vec::new();
        while let Some((at, key)) = deleted.pop_front() {
            if self.rows.contains_key(&key) {
                continue;
            }
            gone.push((at, key.clone()));
            for (table, _, action) in REFERENCES.iter().filter(|r| r.1 == key.0) {
                if *action == "restrict" {
                    continue;
                }
                for child in self.children(table, &key.1) {
                    appended += 1;
                    if appended > CAP {
                        return Err(violation(at, "cascade_limit"));
                    }
                    if *action == "cascade" {
                        self.rows.remove(&child);
                        self.tombstones.insert(child.clone(), self.head);
                        deleted.push_back((at, child));
                    } else {
                        let row = self.rows.get_mut(&child).unwrap();
                        row.version += 1;
                        row.values[2] = Value::Null;
                        row.written[2] = row.version;
                    }
                }
            }
        }
        for (at, key) in gone {
            if key.0 == "cards" && !self.children("pins", &key.1).is_empty() {
                return Err(violation(at, "restricted_delete"));
            }
        }
        Ok(())
    }

    fn state(&self) -> State {
        State {
            rows: self
                .rows
                .iter()
                .map(|(key, row)| {
                    let row = super::world::Row {
                        version: row.version,
                        values: row.values.clone(),
                        column_versions: row.written.clone(),
                    };
                    (key.clone(), row)
                })
                .collect(),
            tombstones: self.tombstones.clone(),
            head: self.head,
        }
    }
}

fn violation(at: usize, reason: &str) -> Outcome {
    Outcome::Error(at, "sync.reference_violation".into(), Some(reason.into()))
}

/// A decision, in the model's words.
fn outcome(decision: &Decision) -> (Outcome, bool) {
    let result = decision.result().unwrap();
    let replay = !decision.is_new();
    if let Some(seq) = result.commit_seq {
        return (Outcome::Applied(seq.0), replay);
    }
    let [record] = &result.results[..] else {
        panic!("{result:?}");
    };
    let at = usize::try_from(record.op_index).unwrap();
    let outcome = match &record.outcome {
        OperationOutcome::Applied => panic!("{result:?}"),
        OperationOutcome::Error { code, .. } => {
            let reason = result.details.first().map(|(op_index, json)| {
                assert_eq!(*op_index, record.op_index);
                let details: serde_json::Value = serde_json::from_str(json).unwrap();
                details["reason"].as_str().unwrap().to_owned()
            });
            Outcome::Error(at, code.clone(), reason)
        }
        OperationOutcome::Conflict {
            server_version,
            conflict_columns,
            ..
        } => {
            let marked = (0..8)
                .filter(|c| conflict_columns[0] & (1 << c) != 0)
                .collect();
            Outcome::Conflict(at, *server_version, marked)
        }
    };
    (outcome, replay)
}

fn op() -> impl Strategy<Value = Op> {
    let value = prop_oneof![2 => (0..3_u8).prop_map(Some), 1 => Just(None)];
    let base = prop_oneof![6 => Just(None), 2 => Just(Some(0)), 2 => (1..5_i64).prop_map(Some)];
    (
        0..TABLES.len(),
        0..3_u8,
        prop_oneof![5 => Just("p1"), 1 => Just("p2")],
        value.clone(),
        value,
        // Which columns are present; mostly all of them, or nothing would ever be inserted.
        prop_oneof![3 => Just(0xff_u8), 1 => any::<u8>()],
        base,
        prop::bool::weighted(0.25),
    )
        .prop_map(
            |(table, id, project, reference, body, mask, base, delete)| {
                let table = TABLES[table];
                let id = format!("r{id}");
                let named = reference.map_or(Value::Null, |n| text(&format!("r{n}")));
                let mut row = vec![text(&id), text(project), named];
                if table == "lists" {
                    row.push(body.map_or(Value::Null, |n| Value::Bytes(Bytes::from(vec![n]))));
                }
                let payload = (!delete).then(|| {
                    row.into_iter()
                        .enumerate()
                        .map(|(at, value)| (at == 0 || mask & (1 << at) != 0).then_some(value))
                        .collect()
                });
                Op {
                    table,
                    id,
                    base,
                    payload,
                }
            },
        )
}

fn commit() -> impl Strategy<Value = Commit> {
    (
        prop_oneof![Just("a"), Just("b"), Just("c")],
        0..30_u8,
        prop_oneof![1 => Just(V1), 1 => Just(V2), 4 => Just(V3)],
        prop_oneof![1 => Just(&["p1"][..]), 2 => Just(&["p1", "p2"][..])],
        prop_oneof![
            3 => prop::collection::vec(op(), 1..2),
            1 => prop::collection::vec(op(), 2..5)
        ],
    )
        .prop_map(|(client, id, wire, allowed, mut ops)| {
            if wire != V3 {
                // Old clients present every column.
                for row in ops.iter_mut().filter_map(|op| op.payload.as_mut()) {
                    for (at, value) in row.iter_mut().enumerate() {
                        value.get_or_insert_with(|| if at == 1 { text("p1") } else { Value::Null });
                    }
                }
            }
            Commit {
                client,
                id: id.to_string(),
                wire,
                allowed,
                ops,
            }
        })
}

/// A first commit that fills the tables, children referencing what `parents` says.
fn prelude() -> impl Strategy<Value = Commit> {
    let parent = prop_oneof![3 => (0..3_u8).prop_map(Some), 1 => Just(None)];
    prop::collection::vec(parent, 15).prop_map(|parents| {
        let ops = parents
            .into_iter()
            .enumerate()
            .map(|(at, parent)| {
                let (table, id) = (TABLES[at / 3], format!("r{}", at % 3));
                let named = parent.map_or(Value::Null, |n| text(&format!("r{n}")));
                let mut row = vec![Some(text(&id)), Some(text("p1")), Some(named)];
                if table == "lists" {
                    row.push(Some(Value::Null));
                }
                Op {
                    table,
                    id,
                    base: Some(0),
                    payload: Some(row),
                }
            })
            .collect();
        Commit {
            client: "a",
            id: "prelude".into(),
            wire: V3,
            allowed: &["p1"],
            ops,
        }
    })
}

fn on_the_wire(w: &World, commit: &Commit) -> Push {
    let operations = commit
        .ops
        .iter()
        .map(|op| {
            let table = w.schema.table(op.table).unwrap();
            let Some(row) = &op.payload else {
                return Operation {
                    base_version: op.base,
                    ..del(op.table, &op.id)
                };
            };
            let payload = if commit.wire == V3 {
                ssp2::encode_sparse_row(&table.columns, 0, row).unwrap()
            } else {
                let full: Vec<Value> = row.iter().map(|v| v.clone().unwrap()).collect();
                ssp2::encode_row(&table.columns, &full).unwrap()
            };
            Operation {
                table: op.table.into(),
                row_id: op.id.clone(),
                base_version: op.base,
                kind: OperationKind::Upsert(payload),
            }
        })
        .collect();
    Push {
        client: commit.client,
        wire: commit.wire,
        allowed: projects(commit.allowed),
        commit: PushCommit {
            client_commit_id: commit.id.clone(),
            operations,
        },
    }
}

/// A stream of coin flips.
struct Coins(u64);

impl Coins {
    fn flip(&mut self) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 & 4 == 0
    }

    /// A part of what is needed, never nothing.
    fn part_of(&mut self, needs: Needs) -> Needs {
        let mut part = needs.clone();
        part.rows.retain(|_| self.flip());
        part.results.retain(|_| self.flip());
        part.children.retain(|_| self.flip());
        if part == Needs::default() {
            needs
        } else {
            part
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_history_comes_out_as_in_the_naive_model(
        prelude in prelude(),
        mut commits in prop::collection::vec(commit(), 1..40),
        sizes in prop::collection::vec(1..7_usize, 41),
        coins in 1..u64::MAX,
    ) {
        let mut coins = Coins(coins);
        let mut w = World::with_hooks(merging());
        w.cascade_cap = u32::try_from(CAP).unwrap();
        let mut model = Model::default();
        commits.insert(0, prelude);
        let mut rest = &commits[..];
        for size in sizes {
            let (batch, later) = rest.split_at(size.min(rest.len()));
            rest = later;
            let mut candidate = Candidate::new(PartitionId::from("part"), w.head());
            for key in w.rows.keys().chain(w.tombstones.keys()) {
                if coins.flip() {
                    candidate.seed_row(key.clone(), w.row_state(key));
                }
            }
            if coins.flip() {
                for commit in batch {
                    let needs = with_input(&on_the_wire(&w, commit), |input| {
                        candidate.unknown_of(initial_needs(&w.env(), input))
                    });
                    candidate.provide(&w.fetch(&needs)).unwrap();
                }
            }
            for commit in batch {
                let push = on_the_wire(&w, commit);
                let step = w.settle(&mut candidate, &push, |needs| coins.part_of(needs));
                let Step::Done(decision) = step else {
                    panic!("{step:?}");
                };
                prop_assert_eq!(outcome(&decision), model.push(commit), "{:?}", commit);
            }
            w.write(candidate);
            prop_assert_eq!(w.state(), model.state());
        }
    }
}

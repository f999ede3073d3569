//! What puts take the place of: rows, index entries and tombstones afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use ssp2::Value;
use tidegate_engine::CommitSeq;
use tidegate_engine::model::{CommitBatch, Over, RowKey, RowState, RowWrite};
use tidegate_engine::schema::Schema;

use super::Harness;
use super::fixture::*;
use crate::{CommitError, Store};

/// Where a note has its blob.
const FILE: usize = 9;

/// A note with a blob, named by one hexadecimal digit.
pub fn filed(id: &str, list: &str, blob: Option<char>) -> Vec<Value> {
    let mut values = note(id, list, "o1", None);
    values[FILE] = blob.map_or(Value::Null, |digit| {
        let id = format!("sha256:{}", digit.to_string().repeat(64));
        text(&json!({"blobId": id, "byteLength": 1}).to_string())
    });
    values
}

pub fn task(id: i64, ws: &str) -> Vec<Value> {
    vec![Value::Integer(id), text(ws), Value::Null, text("body")]
}

pub fn project(id: &str, ws: &str) -> Vec<Value> {
    vec![text(id), text(ws)]
}

pub fn secret(id: &str, ws: &str) -> Vec<Value> {
    vec![text(id), text(ws), Value::Bytes(vec![7, 8].into())]
}

/// What a partition should hold.
pub struct Content {
    schema: Arc<Schema>,
    partition: String,
    head: i64,
    rows: BTreeMap<RowKey, (Vec<Value>, i64)>,
    tombstones: BTreeMap<RowKey, i64>,
}

impl Content {
    pub fn new(partition: &str) -> Self {
        Self {
            schema: compile(&document()),
            partition: partition.to_owned(),
            head: 0,
            rows: BTreeMap::new(),
            tombstones: BTreeMap::new(),
        }
    }

    /// What a put of the row takes the place of now.
    pub fn over(&self, key: &RowKey) -> Over {
        if self.rows.contains_key(key) {
            Over::Row
        } else if self.tombstones.contains_key(key) {
            Over::Tombstone
        } else {
            Over::Nothing
        }
    }

    /// The next batch, each put over what is there; it is expected to be written.
    pub fn batch(&mut self, commits: &[Vec<Op>]) -> CommitBatch {
        let mut batch = batch(&self.schema, &self.partition, self.head, commits);
        for write in &mut batch.rows {
            if let RowWrite::Put { key, over, .. } = write {
                *over = self.over(key);
            }
        }
        for ops in commits {
            self.head += 1;
            for op in ops {
                match op {
                    Op::Put(table, values, version) => {
                        let key = key_of(&self.schema, *table, values);
                        self.tombstones.remove(&key);
                        self.rows.insert(key, (values.clone(), *version));
                    }
                    Op::Delete(table, values) => {
                        let key = key_of(&self.schema, *table, values);
                        self.rows.remove(&key);
                        self.tombstones.insert(key, self.head);
                    }
                }
            }
        }
        batch
    }

    /// Writes the next batch.
    pub async fn write(&mut self, store: &dyn Store, commits: &[Vec<Op>]) {
        let batch = self.batch(commits);
        store.commit_batch(Arc::new(batch)).await.unwrap();
    }

    fn name(&self, key: &RowKey) -> (String, String) {
        let table = self.schema.table_at(key.table);
        (table.name.clone(), key.row_id.to_string())
    }

    async fn found(&self, harness: &dyn Harness, columns: &str, table: &str) -> Vec<Vec<String>> {
        let partition = &self.partition;
        let query = format!("SELECT {columns} FROM {table} WHERE partition='{partition}'");
        let mut found = rows(harness, &query).await;
        found.sort();
        found
    }

    /// The rows, the entries of both indexes and the tombstones are these and no others.
    pub async fn assert_stored(&self, harness: &dyn Harness, store: &dyn Store) {
        assert_eq!(head(store, &self.partition).await, self.head);
        let (mut scopes, mut blobs) = (Vec::new(), Vec::new());
        for (key, (values, version)) in &self.rows {
            let expected = stored(&self.schema, key.table, values, *version);
            let (table, id) = self.name(key);
            for (variable, value) in expected.scopes.iter() {
                scopes.push(vec![
                    table.clone(),
                    id.clone(),
                    variable.to_owned(),
                    value.clone(),
                ]);
            }
            if key.table == NOTES
                && let Value::Text(file) = &values[FILE]
            {
                let file: Json = serde_json::from_str(file).unwrap();
                let blob = file["blobId"].as_str().unwrap().to_owned();
                blobs.push(vec![table, id, blob]);
            }
            assert_eq!(
                row(store, &self.partition, key.clone()).await,
                RowState::Present(Arc::new(expected))
            );
        }
        let mut tombstones = Vec::new();
        for (key, seq) in &self.tombstones {
            let (table, id) = self.name(key);
            tombstones.push(vec![table, id, seq.to_string()]);
            assert_eq!(
                row(store, &self.partition, key.clone()).await,
                RowState::Absent {
                    tombstone: Some(CommitSeq(*seq))
                }
            );
        }
        for (expected, columns, table) in [
            (&mut scopes, "tbl, row_id, var, value", "sync_row_scopes"),
            (&mut blobs, "tbl, row_id, blob_id", "sync_blob_refs"),
            (
                &mut tombstones,
                "tbl, row_id, commit_seq",
                "sync_tombstones",
            ),
        ] {
            expected.sort();
            let found = self.found(harness, columns, table).await;
            assert_eq!(found, *expected, "{table}");
        }
        for (table, name) in [(NOTES, "notes"), (PROJECTS, "projects"), (TASKS, "tasks")] {
            let partition = &self.partition;
            let query =
                format!("SELECT _sync_row_id FROM {name} WHERE _sync_partition='{partition}'");
            let mut found: Vec<String> =
                rows(harness, &query).await.into_iter().flatten().collect();
            found.sort();
            let keys = self.rows.keys().filter(|key| key.table == table);
            let expected: Vec<String> = keys.map(|key| key.row_id.to_string()).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}

pub async fn a_put_over_nothing_adds_the_row_and_its_index_entries(harness: &dyn Harness) {
    let store = ready(harness).await;
    let mut content = Content::new("p");
    let first = [vec![
        put(NOTES, filed("n1", "l1", Some('a'))),
        put(NOTES, filed("n2", "l2", None)),
        put(TASKS, task(1, "w")),
    ]];
    let batch = content.batch(&first);
    let new = |write: &RowWrite| {
        matches!(
            write,
            RowWrite::Put {
                over: Over::Nothing,
                ..
            }
        )
    };
    assert!(batch.rows.iter().all(new));
    store.commit_batch(Arc::new(batch)).await.unwrap();
    content.assert_stored(harness, &*store).await;
    // Beside rows that are there.
    let second = [vec![
        put(NOTES, filed("n3", "l1", Some('a'))),
        put(SECRETS, secret("s1", "w")),
    ]];
    content.write(&*store, &second).await;
    content.assert_stored(harness, &*store).await;
}

pub async fn a_put_over_a_tombstone_takes_it_away(harness: &dyn Harness) {
    let store = ready(harness).await;
    let mut content = Content::new("p");
    let rows = |list: &str, blob| {
        vec![
            put(NOTES, filed("n1", list, blob)),
            put(NOTES, filed("n2", list, blob)),
            put(TASKS, task(1, list)),
        ]
    };
    content.write(&*store, &[rows("l1", Some('a'))]).await;
    let gone = vec![
        Op::Delete(NOTES, filed("n1", "l1", Some('a'))),
        Op::Delete(NOTES, filed("n2", "l1", Some('a'))),
        Op::Delete(TASKS, task(1, "l1")),
    ];
    content.write(&*store, &[gone]).await;
    content.assert_stored(harness, &*store).await;
    // The tombstone of n2 stays.
    let mut back = rows("l2", Some('b'));
    back.remove(1);
    content.write(&*store, &[back]).await;
    content.assert_stored(harness, &*store).await;
}

pub async fn a_put_over_a_row_takes_the_place_of_its_index_entries(harness: &dyn Harness) {
    let store = ready(harness).await;
    let mut content = Content::new("p");
    let first = [vec![
        put(NOTES, filed("n1", "l1", Some('a'))),
        put(NOTES, filed("n2", "l1", Some('a'))),
        put(NOTES, filed("n3", "l1", None)),
        put(TASKS, task(1, "w")),
        put(TASKS, task(2, "w")),
    ]];
    content.write(&*store, &first).await;
    let second = [vec![
        put_again(NOTES, filed("n1", "l2", Some('b'))),
        put_again(NOTES, filed("n2", "l1", None)),
        put_again(NOTES, filed("n3", "l1", Some('c'))),
        put_again(TASKS, task(1, "other")),
        put_again(TASKS, task(2, "w")),
    ]];
    content.write(&*store, &second).await;
    content.assert_stored(harness, &*store).await;
}

pub async fn a_put_over_a_row_that_is_not_there_adds_it(harness: &dyn Harness) {
    let store = ready(harness).await;
    let mut content = Content::new("p");
    content
        .write(&*store, &[vec![put(NOTES, filed("n1", "l1", Some('a')))]])
        .await;
    let mut batch = content.batch(&[vec![
        put_again(NOTES, filed("n1", "l2", Some('b'))),
        put_again(NOTES, filed("n2", "l1", Some('c'))),
        put_again(TASKS, task(1, "w")),
    ]]);
    for write in &mut batch.rows {
        if let RowWrite::Put { over, .. } = write {
            *over = Over::Row;
        }
    }
    store.commit_batch(Arc::new(batch)).await.unwrap();
    content.assert_stored(harness, &*store).await;
}

pub async fn puts_over_everything_and_deletes_share_a_batch(harness: &dyn Harness) {
    let store = ready(harness).await;
    // The same keys in another partition, which nothing of this concerns.
    let mut other = Content::new("other");
    let mut content = Content::new("p");
    let everything = [vec![
        put(NOTES, filed("row", "l1", Some('a'))),
        put(NOTES, filed("grave", "l1", Some('a'))),
        put(NOTES, filed("old", "l1", Some('a'))),
        put(TASKS, task(1, "w")),
        put(TASKS, task(2, "w")),
        put(PROJECTS, project("a", "w")),
        put(SECRETS, secret("s1", "w")),
    ]];
    other.write(&*store, &everything).await;
    content.write(&*store, &everything).await;
    let graves = [vec![
        Op::Delete(NOTES, filed("grave", "l1", Some('a'))),
        Op::Delete(TASKS, task(2, "w")),
    ]];
    other.write(&*store, &graves).await;
    content.write(&*store, &graves).await;
    let mixed = [
        vec![
            put_again(NOTES, filed("row", "l2", Some('b'))),
            put(NOTES, filed("grave", "l3", None)),
            put(NOTES, filed("new", "l1", Some('c'))),
            put_again(TASKS, task(1, "other")),
            put(TASKS, task(2, "w")),
            put(TASKS, task(3, "w")),
        ],
        vec![
            Op::Delete(NOTES, filed("old", "l1", Some('a'))),
            Op::Delete(PROJECTS, project("a", "w")),
            put(NOTES, filed("brief", "l1", Some('d'))),
        ],
        // What the batch has put itself, and back again what it has deleted.
        vec![
            Op::Delete(NOTES, filed("brief", "l1", Some('d'))),
            put_again(PROJECTS, project("a", "other")),
            put_again(SECRETS, secret("s1", "other")),
        ],
    ];
    content.write(&*store, &mixed).await;
    content.assert_stored(harness, &*store).await;
    other.assert_stored(harness, &*store).await;
    // Without deletes, all three beside each other.
    let puts = [vec![
        put_again(NOTES, filed("row", "l1", None)),
        put(NOTES, filed("brief", "l1", None)),
        put(NOTES, filed("newer", "l1", None)),
        put_again(TASKS, task(1, "w")),
        put(TASKS, task(4, "w")),
        put(PROJECTS, project("b", "w")),
    ]];
    content.write(&*store, &puts).await;
    content.assert_stored(harness, &*store).await;
    other.assert_stored(harness, &*store).await;
}

/// Batches that put over nothing, or a tombstone, a row that somebody wrote meanwhile.
fn mistaken(schema: &Schema, expected: i64, over: Over) -> CommitBatch {
    let mut batch = batch(
        schema,
        "p",
        expected,
        &[vec![
            put(NOTES, filed("fine", "l1", None)),
            put(NOTES, filed("taken", "l2", None)),
            put(TASKS, task(5, "w")),
        ]],
    );
    for write in &mut batch.rows {
        if let RowWrite::Put { over: wanted, .. } = write {
            *wanted = over;
        }
    }
    batch
}

pub async fn a_row_that_is_there_is_not_overwritten_by_a_put_over_nothing(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let kept = filed("taken", "l1", Some('a'));
    let first = [vec![Op::Put(NOTES, kept.clone(), 7)]];
    commit(&*store, &schema, "p", 0, &first).await;
    let key = key_of(&schema, NOTES, &kept);
    for over in [Over::Nothing, Over::Tombstone] {
        let refused = store
            .commit_batch(Arc::new(mistaken(&schema, 1, over)))
            .await;
        let Err(CommitError::Constraint { key: Some(named) }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(named, key);
        assert_eq!(head(&*store, "p").await, 1);
        assert_eq!(
            row(&*store, "p", key.clone()).await,
            RowState::Present(Arc::new(stored(&schema, NOTES, &kept, 7)))
        );
        for (table, values) in [(NOTES, filed("fine", "l1", None)), (TASKS, task(5, "w"))] {
            assert_eq!(
                row(&*store, "p", key_of(&schema, table, &values)).await,
                RowState::Absent { tombstone: None }
            );
        }
    }
}

pub async fn a_refused_put_leaves_rows_and_indexes_as_they_were(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let mut content = Content::new("p");
    let first = [vec![
        put(NOTES, filed("taken", "l1", Some('a'))),
        put(NOTES, filed("gone", "l1", None)),
    ]];
    content.write(&*store, &first).await;
    let gone = [vec![Op::Delete(NOTES, filed("gone", "l1", None))]];
    content.write(&*store, &gone).await;
    for over in [Over::Nothing, Over::Tombstone] {
        let mut batch = mistaken(&schema, 2, over);
        // Its first statements would succeed.
        let back = self::batch(
            &schema,
            "p",
            2,
            &[vec![put(NOTES, filed("gone", "l9", Some('e')))]],
        );
        batch.rows.extend(back.rows);
        let refused = store.commit_batch(Arc::new(batch)).await;
        assert!(
            matches!(refused, Err(CommitError::Constraint { .. })),
            "{refused:?}"
        );
        content.assert_stored(harness, &*store).await;
    }
}

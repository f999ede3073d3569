//! The schema and the small language that contract tests are written in.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use ssp2::{OperationOutcome, OperationResult, ScopeLists, Value, WireVersion, row::encode_row};
use tidegate_engine::model::{
    ClientRecord, CommitBatch, Fetched, LoggedChange, LoggedCommit, Needs, Over,
    RegisteredSubscription, ResultKey, ResultLookup, RowKey, RowState, RowWrite, StoredPushResult,
    StoredRow,
};
use tidegate_engine::schema::Schema;
use tidegate_engine::{
    ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion, TableId, scopes,
};

use super::Harness;
use crate::{CommitError, Declaration, RowPage, ScanQuery, Store, Touch, Window, WindowQuery};

pub const NOTES: TableId = TableId(0);
pub const PROJECTS: TableId = TableId(1);
pub const TASKS: TableId = TableId(2);
pub const SECRETS: TableId = TableId(3);

/// The schema document at version 1: every column type, two scope variables, a
/// unique index, references, and a table without SQL columns.
pub fn document() -> Json {
    let column = |name: &str, ty: &str, nullable: bool| json!({"name": name, "type": ty, "nullable": nullable});
    json!({
        "version": 1,
        "tables": [
            {
                "name": "notes", "primaryKey": "id",
                "columns": [
                    column("id", "string", false), column("list_id", "string", false),
                    column("owner", "string", false), column("title", "string", false),
                    column("rank", "integer", true), column("done", "boolean", true),
                    column("weight", "float", true), column("extra", "json", true),
                    column("raw", "bytes", true), column("file", "blob_ref", true)
                ],
                "scopes": ["list:{list_id}", "owner:{owner}"],
                "indexes": [
                    {"name": "slot", "columns": ["list_id", "rank"], "unique": true},
                    {"name": "by_a_name_that_is_so_long_that_it_has_to_be_hashed_to_fit", "columns": ["title"]}
                ]
            },
            {
                "name": "projects", "primaryKey": "id",
                "columns": [column("id", "string", false), column("ws", "string", false)],
                "scopes": ["ws:{ws}"]
            },
            {
                "name": "tasks", "primaryKey": "id",
                "columns": [
                    column("id", "integer", false), column("ws", "string", false),
                    column("project", "string", true), column("body", "string", false)
                ],
                "scopes": ["ws:{ws}"],
                "indexes": [{"name": "by_project", "columns": ["project"]}],
                "references": [{"column": "project", "parentTable": "projects", "onDelete": "CASCADE"}]
            },
            {
                "name": "secrets", "primaryKey": "id",
                "columns": [
                    column("id", "string", false), column("ws", "string", false),
                    {"name": "body", "type": "bytes", "nullable": false, "encrypted": true, "declaredType": "string"}
                ],
                "scopes": ["ws:{ws}"]
            }
        ]
    })
}

/// Version 2: `notes` gains `due`, and there is a new table.
pub fn document_v2() -> Json {
    let mut document = document();
    document["version"] = json!(2);
    push(
        &mut document["tables"][0]["columns"],
        json!({"name": "due", "type": "integer", "nullable": true}),
    );
    push(
        &mut document["tables"],
        json!({
            "name": "labels", "primaryKey": "id",
            "columns": [
                {"name": "id", "type": "string", "nullable": false},
                {"name": "ws", "type": "string", "nullable": false}
            ],
            "scopes": ["ws:{ws}"]
        }),
    );
    document
}

pub fn push(list: &mut Json, entry: Json) {
    list.as_array_mut().unwrap().push(entry);
}

pub fn compile(document: &Json) -> Arc<Schema> {
    Arc::new(Schema::load(&document.to_string()).unwrap())
}

/// A store at version 1, ready to serve.
pub async fn ready(harness: &dyn Harness) -> Arc<dyn Store> {
    let store = harness.open().await;
    store
        .ensure_schema(compile(&document()), &[], 1)
        .await
        .unwrap();
    store
}

pub fn p(name: &str) -> PartitionId {
    PartitionId::from(name)
}

pub fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

/// A note with the columns that most tests leave empty.
pub fn note(id: &str, list: &str, owner: &str, rank: Option<i64>) -> Vec<Value> {
    vec![
        text(id),
        text(list),
        text(owner),
        text(&format!("title of {id}")),
        rank.map_or(Value::Null, Value::Integer),
        Value::Null,
        Value::Null,
        Value::Null,
        Value::Null,
        Value::Null,
    ]
}

/// One operation of a test commit.
#[derive(Clone)]
pub enum Op {
    Put(TableId, Vec<Value>, i64),
    Delete(TableId, Vec<Value>),
}

pub fn put(table: TableId, values: Vec<Value>) -> Op {
    Op::Put(table, values, 1)
}

/// A put of a row that may be stored already.
pub fn put_again(table: TableId, values: Vec<Value>) -> Op {
    Op::Put(table, values, 2)
}

/// Row key of `values`.
pub fn key_of(schema: &Schema, table: TableId, values: &[Value]) -> RowKey {
    let key = &values[schema.table_at(table).primary_key];
    RowKey {
        table,
        row_id: tidegate_engine::keys::render_key(key).unwrap().into(),
    }
}

/// The stored form of `values`.
pub fn stored(schema: &Schema, table: TableId, values: &[Value], version: i64) -> StoredRow {
    let compiled = schema.table_at(table);
    StoredRow {
        server_version: version,
        scopes: scopes::stored_scopes(compiled, values).unwrap(),
        payload: encode_row(&compiled.columns, values).unwrap(),
        column_versions: (version > 1).then(|| vec![1_u8, 2].into()),
    }
}

pub fn result_key(name: &str) -> ResultKey {
    ResultKey {
        client_id: ClientId::from("device"),
        client_commit_id: name.into(),
    }
}

pub fn applied(seq: i64) -> StoredPushResult {
    StoredPushResult {
        commit_seq: Some(CommitSeq(seq)),
        recorded_at_ms: Some(seq * 1000),
        results: vec![OperationResult {
            op_index: 0,
            outcome: OperationOutcome::Applied,
        }],
        details: Vec::new(),
    }
}

pub fn rejected() -> StoredPushResult {
    StoredPushResult {
        commit_seq: None,
        recorded_at_ms: Some(5),
        results: vec![OperationResult {
            op_index: 0,
            outcome: OperationOutcome::Error {
                code: "sync.row_missing".into(),
                message: "the row is missing".into(),
                retryable: false,
            },
        }],
        details: Vec::new(),
    }
}

/// A batch of one partition; each entry of `commits` is one commit, created at
/// `seq * 1000`, with its result under the key `c<seq>`.
pub fn batch(
    schema: &Schema,
    partition: &str,
    expected_max: i64,
    commits: &[Vec<Op>],
) -> CommitBatch {
    let mut batch = CommitBatch {
        partition: p(partition),
        expected_max: CommitSeq(expected_max),
        writer_version: schema.version(),
        declared: Arc::default(),
        commits: Vec::new(),
        results: Vec::new(),
        rows: Vec::new(),
        clients: Vec::new(),
        reactions: Vec::new(),
        advance: None,
    };
    for (seq, ops) in (expected_max + 1..).zip(commits) {
        let mut changes = Vec::new();
        for op in ops {
            let (change, write) = logged(schema, op, CommitSeq(seq));
            batch
                .rows
                .retain(|earlier| written_key(earlier) != written_key(&write));
            batch.rows.push(write);
            changes.push(change);
        }
        batch.commits.push(Arc::new(LoggedCommit {
            seq: CommitSeq(seq),
            client_id: ClientId::from("device"),
            client_commit_id: format!("c{seq}").into(),
            actor_id: ActorId::from("actor"),
            created_at_ms: seq * 1000,
            changes,
        }));
        let key = result_key(&format!("c{seq}"));
        batch.results.push((key, Arc::new(applied(seq))));
    }
    batch
}

fn written_key(write: &RowWrite) -> &RowKey {
    match write {
        RowWrite::Put { key, .. } | RowWrite::Delete { key, .. } => key,
    }
}

fn logged(schema: &Schema, op: &Op, seq: CommitSeq) -> (LoggedChange, RowWrite) {
    match op {
        Op::Put(table, values, version) => {
            let key = key_of(schema, *table, values);
            let row = stored(schema, *table, values, *version);
            let change = LoggedChange {
                key: key.clone(),
                scopes: row.scopes.clone(),
                upsert: Some((*version, row.payload.clone())),
            };
            let write = RowWrite::Put {
                key,
                row: Arc::new(row),
                values: values.clone().into(),
                over: if *version == 1 {
                    Over::Tombstone
                } else {
                    Over::Row
                },
            };
            (change, write)
        }
        Op::Delete(table, values) => {
            let key = key_of(schema, *table, values);
            let change = LoggedChange {
                key: key.clone(),
                scopes: stored(schema, *table, values, 1).scopes,
                upsert: None,
            };
            let write = RowWrite::Delete {
                key,
                tombstone: seq,
            };
            (change, write)
        }
    }
}

/// Writes commits and expects them to stand.
pub async fn commit(
    store: &dyn Store,
    schema: &Schema,
    partition: &str,
    expected_max: i64,
    commits: &[Vec<Op>],
) {
    try_commit(store, schema, partition, expected_max, commits)
        .await
        .unwrap();
}

pub async fn try_commit(
    store: &dyn Store,
    schema: &Schema,
    partition: &str,
    expected_max: i64,
    commits: &[Vec<Op>],
) -> Result<(), CommitError> {
    let batch = batch(schema, partition, expected_max, commits);
    store.commit_batch(Arc::new(batch)).await
}

pub async fn fetch(store: &dyn Store, partition: &str, needs: Needs) -> Fetched {
    store.read_needs(&p(partition), &needs).await.unwrap()
}

pub async fn row(store: &dyn Store, partition: &str, key: RowKey) -> RowState {
    let needs = Needs {
        rows: BTreeSet::from([key]),
        ..Needs::default()
    };
    fetch(store, partition, needs).await.rows.remove(0).1
}

pub async fn result(store: &dyn Store, partition: &str, name: &str) -> ResultLookup {
    let needs = Needs {
        results: BTreeSet::from([result_key(name)]),
        ..Needs::default()
    };
    fetch(store, partition, needs).await.results.remove(0).1
}

pub async fn head(store: &dyn Store, partition: &str) -> i64 {
    fetch(store, partition, Needs::default()).await.max.0
}

pub fn lists(pairs: &[(&str, &[&str])]) -> ScopeLists {
    pairs
        .iter()
        .map(|(variable, values)| {
            let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
            (*variable, values)
        })
        .collect()
}

pub fn window_query(
    scopes: ScopeLists,
    after: i64,
    through: i64,
    max_changes: usize,
) -> WindowQuery {
    WindowQuery {
        table: NOTES,
        scopes,
        after: CommitSeq(after),
        through: CommitSeq(through),
        max_changes,
        max_bytes: usize::MAX,
    }
}

pub async fn window(store: &dyn Store, partition: &str, query: WindowQuery) -> Window {
    let mut snapshot = store.snapshot(&p(partition)).await.unwrap();
    snapshot.read_window(query).await.unwrap()
}

/// `(seq, row ids)` of a window's commits.
pub fn outline(window: &Window) -> Vec<(i64, Vec<String>)> {
    window
        .commits
        .iter()
        .map(|commit| {
            let rows = commit.changes.iter();
            (
                commit.seq.0,
                rows.map(|change| change.key.row_id.to_string()).collect(),
            )
        })
        .collect()
}

pub async fn scan(
    store: &dyn Store,
    partition: &str,
    scopes: ScopeLists,
    after: Option<&str>,
    limit: usize,
) -> RowPage {
    let mut snapshot = store.snapshot(&p(partition)).await.unwrap();
    let query = ScanQuery {
        table: NOTES,
        scopes,
        after_row_id: after.map(str::to_owned),
        limit,
        max_bytes: usize::MAX,
    };
    snapshot.scan_rows(query).await.unwrap()
}

pub fn ids(page: &RowPage) -> Vec<&str> {
    page.rows.iter().map(|(id, _)| id.as_str()).collect()
}

pub fn touch(now_ms: i64, epoch: &str) -> Touch {
    Touch {
        now_ms,
        new_epoch: {
            let epoch = LogEpoch::from(epoch);
            std::sync::Arc::new(move || Ok(epoch.clone()))
        },
        refresh_after_ms: 5000,
    }
}

pub fn client(id: &str, actor: &str, cursor: i64) -> ClientRecord {
    let mut extra = serde_json::Map::new();
    extra.insert("schemaVersion".into(), json!(1));
    ClientRecord {
        client_id: ClientId::from(id),
        actor_id: ActorId::from(actor),
        wire_version: WireVersion::V3,
        cursor,
        subscriptions: vec![RegisteredSubscription {
            id: "s".into(),
            table: "notes".into(),
            scopes: lists(&[("list_id", &["a", "b"])]),
            extra,
        }],
        updated_at_ms: 77,
    }
}

pub fn declaration(partition: &str, name: &str, version: i32) -> Declaration {
    Declaration {
        partitions: crate::Partitions::One(p(partition)),
        name: name.to_owned(),
        schema_version: SchemaVersion(version),
    }
}

/// One commit with one note.
pub fn one_note() -> Vec<Vec<Op>> {
    vec![vec![put(NOTES, note("n1", "l1", "o1", None))]]
}

/// A batch of the same note, which may be stored already.
pub fn note_again() -> Vec<Vec<Op>> {
    vec![vec![put_again(NOTES, note("n1", "l1", "o1", None))]]
}

/// A query's rows as text, NULL as `NULL`.
pub async fn rows(harness: &dyn Harness, query: &str) -> Vec<Vec<String>> {
    let rows = harness.query(query).await;
    rows.into_iter()
        .map(|row| {
            row.into_iter()
                .map(|value| value.unwrap_or_else(|| "NULL".into()))
                .collect()
        })
        .collect()
}

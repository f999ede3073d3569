//! A partition kept in memory by the plainest means: it answers needs, writes
//! batches, and checks that every batch is one a database could take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ssp2::{
    ErrorCode, Operation, OperationKind, OperationOutcome, PushCommit, ScopeLists, SparseRow,
    Value, WireVersion,
};
use tidegate_engine::column_versions::ColumnVersions;
use tidegate_engine::hooks::Allowed;
use tidegate_engine::keys::render_key;
use tidegate_engine::model::{
    CommitBatch, Fetched, LoggedCommit, Needs, Over, ResultKey, ResultLookup, RowKey, RowState,
    RowWrite, StoredRow,
};
use tidegate_engine::push::{
    Candidate, Decision, PushEnv, PushHooks, PushInput, Step, decide, decode_push_result,
    encode_push_result, initial_needs,
};
use tidegate_engine::schema::Schema;
use tidegate_engine::scopes::stored_scopes;
use tidegate_engine::{ActorId, ClientId, CommitSeq, PartitionId, SchemaVersion};

const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "tasks", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": true},
    {"name": "title", "type": "string", "nullable": false},
    {"name": "priority", "type": "integer", "nullable": true},
    {"name": "body", "type": "crdt", "nullable": true, "crdtType": "union"},
    {"name": "file", "type": "blob_ref", "nullable": true}]},
  {"name": "counters", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "integer", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false}]},
  {"name": "docs", "primaryKey": "id", "scopes": ["org:{org}", "project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "org", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "body", "type": "string", "nullable": false}]},
  {"name": "lists", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "name", "type": "string", "nullable": true},
    {"name": "body", "type": "crdt", "nullable": true, "crdtType": "union"}]},
  {"name": "cards", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "list_id", "type": "string", "nullable": true}],
   "indexes": [{"name": "cards_by_list", "columns": ["list_id"]}],
   "references": [{"column": "list_id", "parentTable": "lists", "onDelete": "CASCADE"}]},
  {"name": "comments", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "card_id", "type": "string", "nullable": true}],
   "indexes": [{"name": "comments_by_card", "columns": ["card_id"]}],
   "references": [{"column": "card_id", "parentTable": "cards", "onDelete": "CASCADE"}]},
  {"name": "tags", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "list_id", "type": "string", "nullable": true}],
   "indexes": [{"name": "tags_by_list", "columns": ["list_id"]}],
   "references": [{"column": "list_id", "parentTable": "lists", "onDelete": "SET NULL"}]},
  {"name": "pins", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "card_id", "type": "string", "nullable": true}],
   "indexes": [{"name": "pins_by_card", "columns": ["card_id"]}],
   "references": [{"column": "card_id", "parentTable": "cards"}]},
  {"name": "slots", "primaryKey": "id", "scopes": ["project:{project_id}"], "columns": [
    {"name": "id", "type": "string", "nullable": false},
    {"name": "project_id", "type": "string", "nullable": false},
    {"name": "place", "type": "integer", "nullable": true},
    {"name": "label", "type": "string", "nullable": true}],
   "indexes": [{"name": "slots_by_place", "columns": ["project_id", "place"], "unique": true}]}
]}"#;

pub const V1: WireVersion = WireVersion::V1;
pub const V2: WireVersion = WireVersion::V2;
pub const V3: WireVersion = WireVersion::V3;
pub const NOW: i64 = 1_700_000_000_000;

pub fn text(value: &str) -> Value {
    Value::Text(value.into())
}

pub fn bytes(value: &'static [u8]) -> Value {
    Value::Bytes(Bytes::from_static(value))
}

/// Scopes of an actor that may write the projects named.
pub fn projects(values: &[&str]) -> Allowed {
    scopes(&[("project_id", values)])
}

pub fn scopes(entries: &[(&str, &[&str])]) -> Allowed {
    let lists: ScopeLists = entries
        .iter()
        .map(|(key, values)| (*key, values.iter().map(|v| (*v).to_owned()).collect()))
        .collect();
    Allowed::Resolved(Arc::new(lists))
}

#[derive(Debug, Clone)]
pub struct Push {
    pub client: &'static str,
    pub wire: WireVersion,
    pub allowed: Allowed,
    pub commit: PushCommit,
}

/// A push of project `p1`'s owner.
pub fn push(id: &str, wire: WireVersion, operations: Vec<Operation>) -> Push {
    Push {
        client: "device-1",
        wire,
        allowed: projects(&["p1"]),
        commit: PushCommit {
            client_commit_id: id.into(),
            operations,
        },
    }
}

impl Push {
    pub fn allowing(mut self, allowed: Allowed) -> Self {
        self.allowed = allowed;
        self
    }
}

pub fn based(mut operation: Operation, base: i64) -> Operation {
    operation.base_version = Some(base);
    operation
}

pub fn del(table: &str, row_id: &str) -> Operation {
    Operation {
        table: table.into(),
        row_id: row_id.into(),
        base_version: None,
        kind: OperationKind::Delete,
    }
}

/// A row as a test looks at it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub version: i64,
    pub values: Vec<Value>,
    pub column_versions: Vec<i64>,
}

/// All that a commit may change, results aside.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub rows: BTreeMap<(String, String), Row>,
    pub tombstones: BTreeMap<(String, String), i64>,
    pub head: i64,
}

pub struct World {
    pub schema: Schema,
    pub hooks: PushHooks,
    pub cascade_cap: u32,
    pub rows: BTreeMap<RowKey, Arc<StoredRow>>,
    pub tombstones: BTreeMap<RowKey, CommitSeq>,
    pub results: BTreeMap<ResultKey, String>,
    pub log: Vec<LoggedCommit>,
}

impl World {
    pub fn new() -> Self {
        Self::with_hooks(PushHooks::default())
    }

    pub fn with_hooks(hooks: PushHooks) -> Self {
        Self {
            schema: Schema::load(SCHEMA).unwrap(),
            hooks,
            cascade_cap: 1_000,
            rows: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            results: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    pub fn head(&self) -> CommitSeq {
        self.log.last().map_or(CommitSeq(0), |commit| commit.seq)
    }

    pub fn key(&self, table: &str, row_id: &str) -> RowKey {
        RowKey {
            table: self.schema.table(table).unwrap().id,
            row_id: row_id.into(),
        }
    }

    fn sparse_row(&self, table: &str, columns: &[(&str, Value)]) -> SparseRow {
        let table = self.schema.table(table).unwrap();
        let mut row: SparseRow = vec![None; table.columns.len()];
        for (name, value) in columns {
            row[table.column(name).unwrap()] = Some(value.clone());
        }
        row
    }

    /// Column values by name; what is not named is NULL.
    pub fn full_row(&self, table: &str, columns: &[(&str, Value)]) -> Vec<Value> {
        self.sparse_row(table, columns)
            .into_iter()
            .map(|value| value.unwrap_or(Value::Null))
            .collect()
    }

    fn upsert(&self, table: &str, key: &Value, payload: Bytes) -> Operation {
        Operation {
            table: table.into(),
            row_id: render_key(key).unwrap(),
            base_version: None,
            kind: OperationKind::Upsert(payload),
        }
    }

    /// A wire-3 upsert of just these columns.
    pub fn sparse(&self, table: &str, columns: &[(&str, Value)]) -> Operation {
        let ir = self.schema.table(table).unwrap();
        let row = self.sparse_row(table, columns);
        let key = row[ir.primary_key].clone().unwrap();
        let payload = ssp2::encode_sparse_row(&ir.columns, ir.primary_key, &row).unwrap();
        self.upsert(table, &key, payload)
    }

    /// An upsert of the whole row, in the format of `wire`.
    pub fn whole(&self, wire: WireVersion, table: &str, columns: &[(&str, Value)]) -> Operation {
        let ir = self.schema.table(table).unwrap();
        let row = self.full_row(table, columns);
        let key = row[ir.primary_key].clone();
        let payload = if wire == V3 {
            let sparse: SparseRow = row.into_iter().map(Some).collect();
            ssp2::encode_sparse_row(&ir.columns, ir.primary_key, &sparse).unwrap()
        } else {
            ssp2::encode_row(&ir.columns, &row).unwrap()
        };
        self.upsert(table, &key, payload)
    }

    /// Stores a row of version 1 as if an earlier commit had written it.
    pub fn store(&mut self, table: &str, columns: &[(&str, Value)]) -> RowKey {
        self.store_at(table, columns, 1, &[])
    }

    /// Stores a row at `version`, with the named columns written at the versions given.
    pub fn store_at(
        &mut self,
        table: &str,
        columns: &[(&str, Value)],
        version: i64,
        written: &[(&str, i64)],
    ) -> RowKey {
        let values = self.full_row(table, columns);
        let ir = self.schema.table(table).unwrap();
        let mut versions = ColumnVersions::inserted(values.len());
        for (name, at) in written {
            versions.set(ir.column(name).unwrap(), *at);
        }
        let row = StoredRow {
            server_version: version,
            scopes: stored_scopes(ir, &values).unwrap(),
            payload: ssp2::encode_row(&ir.columns, &values).unwrap(),
            column_versions: versions.encode(version),
        };
        let key = RowKey {
            table: ir.id,
            row_id: render_key(&values[ir.primary_key]).unwrap().into(),
        };
        self.rows.insert(key.clone(), Arc::new(row));
        key
    }

    pub fn row(&self, table: &str, row_id: &str) -> Option<Row> {
        let key = self.key(table, row_id);
        Some(self.view(&key, self.rows.get(&key)?))
    }

    fn view(&self, key: &RowKey, row: &StoredRow) -> Row {
        let table = self.schema.table_at(key.table);
        let columns = table.columns.len();
        let blob = row.column_versions.as_deref();
        let versions = ColumnVersions::decode(blob, row.server_version, columns).unwrap();
        let values = ssp2::decode_row(&table.columns, &row.payload).unwrap();
        assert_eq!(stored_scopes(table, &values).as_ref(), Some(&row.scopes));
        Row {
            version: row.server_version,
            values,
            column_versions: (0..columns).map(|at| versions.get(at)).collect(),
        }
    }

    pub fn tombstone(&self, table: &str, row_id: &str) -> Option<i64> {
        self.tombstones.get(&self.key(table, row_id)).map(|s| s.0)
    }

    pub fn state(&self) -> State {
        let name = |key: &RowKey| {
            (
                self.schema.table_at(key.table).name.clone(),
                key.row_id.to_string(),
            )
        };
        State {
            rows: self
                .rows
                .iter()
                .map(|(key, row)| (name(key), self.view(key, row)))
                .collect(),
            tombstones: self
                .tombstones
                .iter()
                .map(|(k, s)| (name(k), s.0))
                .collect(),
            head: self.head().0,
        }
    }

    /// Answers needs from what is stored.
    pub fn fetch(&self, needs: &Needs) -> Fetched {
        Fetched {
            max: self.head(),
            rows: needs
                .rows
                .iter()
                .map(|key| (key.clone(), self.row_state(key)))
                .collect(),
            results: needs
                .results
                .iter()
                .map(|key| (key.clone(), self.lookup(key)))
                .collect(),
            children: needs
                .children
                .iter()
                .map(|wanted| {
                    let columns = &self.schema.table_at(wanted.child).columns;
                    let rows = self
                        .rows
                        .iter()
                        .filter(|(key, _)| key.table == wanted.child)
                        .filter(|(_, row)| {
                            let values = ssp2::decode_row(columns, &row.payload).unwrap();
                            render_key(&values[usize::from(wanted.column)]).as_deref()
                                == Some(&*wanted.parent_row)
                        })
                        .take(wanted.limit as usize)
                        .map(|(key, row)| (key.clone(), Arc::clone(row)))
                        .collect();
                    (wanted.clone(), rows)
                })
                .collect(),
        }
    }

    pub fn row_state(&self, key: &RowKey) -> RowState {
        match self.rows.get(key) {
            Some(row) => RowState::Present(Arc::clone(row)),
            None => RowState::Absent {
                tombstone: self.tombstones.get(key).copied(),
            },
        }
    }

    fn lookup(&self, key: &ResultKey) -> ResultLookup {
        match self.results.get(key).map(|json| decode_push_result(json)) {
            None => ResultLookup::Absent,
            Some(None) => ResultLookup::Unreadable,
            Some(Some(result)) => ResultLookup::Found(Arc::new(result)),
        }
    }

    /// Decides pushes as one batch, answering every need in full, and writes it.
    pub fn push_all(&mut self, pushes: &[Push]) -> Vec<Step> {
        let mut candidate = Candidate::new(PartitionId::from("part"), self.head());
        let env = self.env();
        for push in pushes {
            with_input(push, |input| {
                let needs = candidate.unknown_of(initial_needs(&env, input));
                candidate.provide(&self.fetch(&needs)).unwrap();
            });
        }
        let mut steps = Vec::new();
        for push in pushes {
            steps.push(self.settle(&mut candidate, push, |needs| needs));
        }
        self.write(candidate);
        steps
    }

    /// Decides one push, answering of each need what `answered` leaves.
    pub fn settle(
        &self,
        candidate: &mut Candidate,
        push: &Push,
        mut answered: impl FnMut(Needs) -> Needs,
    ) -> Step {
        let env = self.env();
        for _ in 0..1_000 {
            match with_input(push, |input| decide(&env, candidate, input)) {
                Step::Need(needs) => {
                    assert_ne!(needs, Needs::default(), "a need that needs nothing");
                    assert_eq!(
                        needs,
                        candidate.unknown_of(needs.clone()),
                        "asks for what it knows"
                    );
                    candidate.provide(&self.fetch(&answered(needs))).unwrap();
                }
                step => return step,
            }
        }
        panic!("asks without end");
    }

    pub fn env(&self) -> PushEnv<'_> {
        PushEnv {
            cascade_cap: self.cascade_cap,
            ..PushEnv::new(&self.schema, &self.hooks, NOW)
        }
    }

    pub fn push(&mut self, push: Push) -> Decision {
        match self.push_all(&[push]).remove(0) {
            Step::Done(decision) => decision,
            other => panic!("not decided: {other:?}"),
        }
    }

    pub fn write(&mut self, candidate: Candidate) -> CommitBatch {
        let batch = candidate.into_batch(SchemaVersion(1), Arc::default());
        assert_eq!(batch.expected_max, self.head());
        for commit in &batch.commits {
            assert_eq!(commit.seq, self.head().next(), "sequence has a gap");
            self.log.push(LoggedCommit::clone(commit));
        }
        let mut seen = BTreeSet::new();
        for write in &batch.rows {
            let (RowWrite::Put { key, .. } | RowWrite::Delete { key, .. }) = write;
            assert!(seen.insert(key.clone()), "row written twice");
            match write {
                RowWrite::Put {
                    key,
                    row,
                    values,
                    over,
                } => {
                    let columns = &self.schema.table_at(key.table).columns;
                    assert_eq!(ssp2::decode_row(columns, &row.payload).unwrap(), **values);
                    let stood = match (self.tombstones.remove(key), self.rows.get(key)) {
                        (Some(_), _) => Over::Tombstone,
                        (None, Some(_)) => Over::Row,
                        (None, None) => Over::Nothing,
                    };
                    assert_eq!(*over, stood);
                    self.rows.insert(key.clone(), Arc::clone(row));
                }
                RowWrite::Delete { key, tombstone } => {
                    self.rows.remove(key);
                    self.tombstones.insert(key.clone(), *tombstone);
                }
            }
        }
        for (key, result) in &batch.results {
            let json = encode_push_result(result);
            let previous = self.results.insert(key.clone(), json);
            assert_eq!(previous, None, "a result was overwritten");
        }
        batch
    }

    /// Pushes, asserts an applied answer, and returns its commit.
    pub fn applied(&mut self, push: Push) -> LoggedCommit {
        let operations = push.commit.operations.len();
        let decision = self.push(push);
        let result = decision.result().unwrap();
        let commit = decision.commit().unwrap_or_else(|| panic!("{decision:?}"));
        assert_eq!(result.commit_seq, Some(self.head()));
        assert_eq!(commit.seq, self.head());
        assert_eq!(result.recorded_at_ms, Some(NOW));
        assert_eq!(result.results.len(), operations);
        for (at, record) in result.results.iter().enumerate() {
            assert_eq!(record.op_index as usize, at);
            assert_eq!(record.outcome, OperationOutcome::Applied);
        }
        LoggedCommit::clone(commit)
    }

    /// Pushes, asserts a rejection with this catalogue error alone and an untouched state.
    pub fn refused(&mut self, push: Push, op_index: i32, code: ErrorCode) -> Decision {
        let before = self.state();
        let decision = self.push(push);
        assert_eq!(self.state(), before, "a rejected commit left a trace");
        let result = decision.result().unwrap();
        assert!(
            matches!(decision, Decision::Rejected { .. }),
            "{decision:?}"
        );
        assert_eq!(result.commit_seq, None);
        let [record] = &result.results[..] else {
            panic!("not one record: {result:?}");
        };
        assert_eq!(record.op_index, op_index);
        let OperationOutcome::Error {
            code: actual,
            retryable,
            ..
        } = &record.outcome
        else {
            panic!("not an error: {record:?}");
        };
        assert_eq!(
            (actual.as_str(), *retryable),
            (code.as_str(), code.retryable())
        );
        decision
    }

    /// Pushes, asserts a conflict alone over exactly these columns, with the
    /// stored row as evidence and an untouched state.
    pub fn conflicts(&mut self, push: Push, op_index: i32, columns: &[&str]) -> Decision {
        let before = self.state();
        let operation = push.commit.operations[op_index as usize].clone();
        let decision = self.push(push);
        assert_eq!(self.state(), before, "a conflicting commit left a trace");
        let result = decision.result().unwrap();
        let [record] = &result.results[..] else {
            panic!("not one record: {result:?}");
        };
        let OperationOutcome::Conflict {
            code,
            server_version,
            server_row,
            conflict_columns,
            ..
        } = &record.outcome
        else {
            panic!("not a conflict: {record:?}");
        };
        let table = self.schema.table(&operation.table).unwrap();
        let stored = &self.rows[&self.key(&operation.table, &operation.row_id)];
        let marked = ssp2::ColumnSet::from_bytes(conflict_columns, table.columns.len()).unwrap();
        let marked: Vec<&str> = marked
            .iter()
            .map(|at| table.columns[at].name.as_str())
            .collect();
        assert_eq!(record.op_index, op_index);
        assert_eq!(code, "sync.version_conflict");
        assert_eq!(*server_version, stored.server_version);
        assert_eq!(server_row, &stored.payload);
        assert_eq!(marked, columns);
        decision
    }
}

/// Runs `f` with the input that a push is.
pub fn with_input<T>(push: &Push, f: impl FnOnce(&PushInput<'_>) -> T) -> T {
    let client_id = ClientId::from(push.client);
    let actor_id = ActorId::from("actor-1");
    f(&PushInput {
        client_id: &client_id,
        actor_id: &actor_id,
        wire: push.wire,
        allowed: &push.allowed,
        commit: &push.commit,
    })
}

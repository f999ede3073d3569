//! A directory over a scripted store, and short words for pushes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ssp2::{
    Operation, OperationKind, OperationOutcome, PushCommit, PushStatus, ResponseFrame, ScopeLists,
    Value, WireVersion,
};
use tidegate_actors::*;
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::{ClientRecord, LoggedCommit, RowKey, StoredRow};
use tidegate_engine::push::{Decision, PushHooks, needs_ahead};
use tidegate_engine::schema::Schema;
use tidegate_engine::{PartitionId, TableId};
use tidegate_store::Touch;

use crate::store::{Foreign, TestStore};

const SCHEMA: &str = r#"{
    "schemaVersion": 1,
    "tables": [{
        "name": "notes", "primaryKey": "id",
        "columns": [
            {"name": "id", "type": "string"},
            {"name": "list", "type": "string"},
            {"name": "title", "type": "string", "nullable": true}
        ],
        "scopes": ["list:{list}"]
    }]
}"#;

/// What the observer heard.
#[derive(Default)]
pub struct Heard {
    pub commits: Mutex<Vec<(String, i64)>>,
    pub moves: Mutex<usize>,
}

impl CommitObserver for Heard {
    fn committed(&self, partition: &PartitionId, commits: &[Arc<LoggedCommit>]) {
        let heard = commits
            .iter()
            .map(|commit| (partition.to_string(), commit.seq.0));
        self.commits.lock().extend(heard);
    }
    fn moved_elsewhere(&self, _: &PartitionId) {
        *self.moves.lock() += 1;
    }
}

struct FixedClock;

impl Clock for FixedClock {
    fn now_ms(&self) -> i64 {
        1_700_000_000_000
    }
}

pub struct World {
    pub store: Arc<TestStore>,
    pub directory: Directory,
    pub heard: Arc<Heard>,
    pub schema: Arc<Schema>,
    pub gate: ServeGate,
    pub partition: PartitionId,
}

/// Deadlines that no test reaches unless it means to.
pub fn patient() -> Settings {
    Settings {
        arbiters: 1,
        resolve_backoff: Duration::from_millis(1),
        ..Settings::default()
    }
}

/// One batch at a time, for tests that count what is in each.
pub fn one_by_one() -> Settings {
    Settings {
        decide_ahead: false,
        ..patient()
    }
}

pub fn world() -> World {
    world_with(patient(), PushHooks::default())
}

pub fn world_with(settings: Settings, hooks: PushHooks) -> World {
    let store = TestStore::new();
    let heard = Arc::new(Heard::default());
    let schema = Arc::new(Schema::load(SCHEMA).expect("the schema is valid"));
    let parts = Parts {
        store: store.clone(),
        schema: Arc::clone(&schema),
        hooks: Arc::new(hooks),
        declared: Arc::default(),
        clock: Arc::new(FixedClock),
        observer: heard.clone(),
    };
    let directory = Directory::start(parts, settings);
    let version = schema.version();
    World {
        gate: ServeGate::new(store.clone(), directory.clone(), version, Vec::new()),
        directory,
        store,
        heard,
        schema,
        partition: "p".into(),
    }
}

impl World {
    pub fn handle(&self) -> PartitionHandle {
        self.directory.partition(&self.partition)
    }

    /// Pushes from another task: queued when this returns, in call order.
    pub async fn queue(&self, request: PushRequest) -> Answer {
        let handle = self.handle();
        let before = self.directory.statistics();
        let answer = tokio::spawn(async move { handle.push(request).await });
        until(|| {
            let now = self.directory.statistics();
            now.queued_operations > before.queued_operations
                || now.pushes > before.pushes
                || answer.is_finished()
        })
        .await;
        answer
    }

    /// As [`Self::queue`] through the gate, which reads ahead what the commits need.
    pub async fn queue_ahead(&self, request: PushRequest) -> Answer {
        let (gate, partition) = (self.gate.clone(), self.partition.clone());
        let ahead = needs_ahead(
            &self.schema,
            &request.client_id,
            request.wire,
            &request.commits,
        );
        let before = self.directory.statistics();
        let answer = tokio::spawn(async move {
            let touch = Touch {
                now_ms: 1,
                new_epoch: Arc::new(|| Ok("epoch".into())),
                refresh_after_ms: 1,
            };
            let client = request.client_id.clone();
            let entered = gate.enter(&partition, &client, touch, ahead).await;
            let (entry, _) = entered.expect("the gate is open");
            entry.push(request).await
        });
        until(|| {
            let now = self.directory.statistics();
            now.queued_operations > before.queued_operations
                || now.pushes > before.pushes
                || answer.is_finished()
        })
        .await;
        answer
    }

    pub async fn push(&self, commits: Vec<PushCommit>) -> Result<Vec<Decision>, PushError> {
        self.handle().push(request("c1", commits)).await
    }

    /// One push of one commit that must succeed.
    pub async fn put(&self, commit_id: &str, row: &str, title: &str) -> Decision {
        let mut decisions = self
            .push(vec![commit(commit_id, vec![self.upsert(row, title, None)])])
            .await
            .expect("the push succeeds");
        assert_eq!(decisions.len(), 1);
        decisions.remove(0)
    }

    pub fn upsert(&self, row: &str, title: &str, base_version: Option<i64>) -> Operation {
        Operation {
            table: "notes".into(),
            row_id: row.into(),
            base_version,
            kind: OperationKind::Upsert(self.payload(row, title)),
        }
    }

    fn payload(&self, row: &str, title: &str) -> bytes::Bytes {
        let columns = &self.schema.tables()[0].columns;
        let values = [row, "l1", title].map(|text| Value::Text(text.into()));
        ssp2::encode_row(columns, &values).expect("the row is valid")
    }

    /// What another process would commit.
    pub fn foreign(&self, row: &str, title: &str, version: i64) -> Foreign {
        Foreign {
            key: key(row),
            row: Arc::new(StoredRow {
                server_version: version,
                scopes: [("list", "l1".to_owned())].into_iter().collect(),
                payload: self.payload(row, title),
                column_versions: None,
            }),
        }
    }

    pub fn max(&self) -> i64 {
        self.store.with(&self.partition, |log| log.max.0)
    }

    pub fn version(&self, row: &str) -> Option<i64> {
        self.store.with(&self.partition, |log| {
            log.rows.get(&key(row)).map(|row| row.server_version)
        })
    }

    pub fn title(&self, row: &str) -> Option<String> {
        let payload = self.store.with(&self.partition, |log| {
            log.rows.get(&key(row)).map(|row| row.payload.clone())
        })?;
        let values = ssp2::decode_row(&self.schema.tables()[0].columns, &payload).ok()?;
        match &values[2] {
            Value::Text(title) => Some(title.clone()),
            _ => None,
        }
    }

    /// Commit ids in log order.
    pub fn log(&self) -> Vec<String> {
        self.store.with(&self.partition, |log| {
            log.commits
                .iter()
                .map(|commit| commit.client_commit_id.to_string())
                .collect()
        })
    }
}

pub type Answer = tokio::task::JoinHandle<Result<Vec<Decision>, PushError>>;

pub fn key(row: &str) -> RowKey {
    RowKey {
        table: TableId(0),
        row_id: row.into(),
    }
}

pub fn commit(id: &str, operations: Vec<Operation>) -> PushCommit {
    PushCommit {
        client_commit_id: id.into(),
        operations,
    }
}

pub fn allowed() -> Allowed {
    let lists: ScopeLists = [("list", vec!["*".to_owned()])].into_iter().collect();
    Allowed::Resolved(Arc::new(lists))
}

pub fn request(client: &str, commits: Vec<PushCommit>) -> PushRequest {
    PushRequest {
        client_id: client.into(),
        actor_id: "alice".into(),
        wire: WireVersion::V2,
        allowed: allowed(),
        commits,
        bind: None,
    }
}

pub fn record(client: &str, actor: &str, cursor: i64) -> ClientRecord {
    ClientRecord {
        client_id: client.into(),
        actor_id: actor.into(),
        wire_version: WireVersion::V2,
        cursor,
        subscriptions: Vec::new(),
        updated_at_ms: 1,
    }
}

pub fn status(decision: &Decision) -> PushStatus {
    match &decision.to_frames("k")[0] {
        ResponseFrame::PushResult(result) => result.status,
        other => panic!("not a result: {other:?}"),
    }
}

/// The code of a rejected commit with the index of its operation.
pub fn rejection(decision: &Decision) -> (i32, String) {
    let result = decision.result().expect("a readable result");
    assert_eq!(result.commit_seq, None);
    let record = &result.results[0];
    match &record.outcome {
        OperationOutcome::Conflict { code, .. } | OperationOutcome::Error { code, .. } => {
            (record.op_index, code.clone())
        }
        OperationOutcome::Applied => panic!("not rejected"),
    }
}

pub fn statuses(answer: &Result<Vec<Decision>, PushError>) -> Vec<PushStatus> {
    answer
        .as_ref()
        .expect("the push succeeds")
        .iter()
        .map(status)
        .collect()
}

/// Waits for a condition; the test's own deadline is the runner's.
pub async fn until(reached: impl Fn() -> bool) {
    while !reached() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Whether a future is not ready after everything runnable ran.
pub async fn pending<F: Future + Unpin>(future: &mut F) -> bool {
    tokio::time::timeout(Duration::from_millis(30), future)
        .await
        .is_err()
}

//! A transport that answers by script, and the frames scripts are written in.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use ssp2::*;
use tidegate_client::*;

pub const SCHEMA: &str = include_str!("../data/schema.json");
pub const EPOCH: &str = "epoch-1";

/// Answers from a queue; keeps every request.
#[derive(Default)]
pub struct Script {
    pub answers: Mutex<VecDeque<Result<Bytes, TransportError>>>,
    pub segments: Mutex<VecDeque<Result<Bytes, TransportError>>>,
    pub requests: Mutex<Vec<Request>>,
    pub downloads: Mutex<Vec<SegmentDownload>>,
}

impl Script {
    pub fn answer(&self, version: WireVersion, frames: Vec<ResponseFrame>) {
        let bytes = encode_response(&Response { version, frames }).unwrap();
        self.answers.lock().unwrap().push_back(Ok(bytes));
    }

    pub fn v3(&self, frames: impl IntoIterator<Item = ResponseFrame>) {
        let frames = std::iter::once(header(false)).chain(frames).collect();
        self.answer(WireVersion::V3, frames);
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub fn last_request(&self) -> Request {
        self.requests().pop().unwrap()
    }
}

impl Transport for Script {
    async fn round(&self, body: Bytes) -> Result<Bytes, TransportError> {
        self.requests
            .lock()
            .unwrap()
            .push(decode_request(body).unwrap());
        self.answers
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| Err(TransportError::Lost("the script is over".into())))
    }

    async fn segment(&self, download: &SegmentDownload) -> Result<Bytes, TransportError> {
        self.downloads.lock().unwrap().push(download.clone());
        self.segments.lock().unwrap().pop_front().unwrap()
    }
}

pub fn header_of(epoch: &str, reset_required: bool) -> ResponseFrame {
    ResponseFrame::Header(ResponseHeader {
        required_schema_version: None,
        latest_schema_version: Some(1),
        epoch: Some(EpochHeader {
            log_epoch: epoch.into(),
            reset_required,
        }),
    })
}

pub fn header(reset: bool) -> ResponseFrame {
    header_of(EPOCH, reset)
}

pub fn schema() -> ClientSchema {
    ClientSchema::from_ir_json(SCHEMA).unwrap()
}

pub fn todo(id: &str, list: &str, title: &str) -> Vec<Value> {
    vec![
        Value::Text(id.into()),
        Value::Text(list.into()),
        Value::Text(title.into()),
        Value::Boolean(false),
        Value::Null,
        Value::Null,
    ]
}

pub fn row(values: &[Value]) -> Bytes {
    encode_row(&schema().table("todos").unwrap().columns, values).unwrap()
}

pub fn scopes(list: &str) -> ScopeLists {
    ScopeLists::from_iter([("list_id", vec![list.to_owned()])])
}

pub fn start(bootstrap: bool) -> ResponseFrame {
    ResponseFrame::SubStart(SubStart {
        id: "s".into(),
        status: SubStatus::Active,
        reason_code: String::new(),
        effective_scopes: scopes("a"),
        bootstrap,
    })
}

pub fn stopped(status: SubStatus, reason: &str) -> ResponseFrame {
    ResponseFrame::SubStart(SubStart {
        id: "s".into(),
        status,
        reason_code: reason.into(),
        effective_scopes: ScopeLists::new(),
        bootstrap: false,
    })
}

pub fn end(next_cursor: i64, token: Option<&str>) -> ResponseFrame {
    ResponseFrame::SubEnd(SubEnd {
        next_cursor,
        bootstrap_state: token.map(Into::into),
    })
}

pub fn upsert(values: &[Value], row_version: i64) -> Change {
    let Value::Text(id) = &values[0] else {
        panic!("no id")
    };
    let Value::Text(list) = &values[1] else {
        panic!("no list")
    };
    Change {
        table_index: 0,
        row_id: id.clone(),
        scopes: ScopeValues::from_iter([("list_id", list.clone())]),
        kind: ChangeKind::Upsert {
            row_version,
            row: row(values),
        },
    }
}

pub fn commit(commit_seq: i64, changes: Vec<Change>) -> ResponseFrame {
    ResponseFrame::Commit(Commit {
        commit_seq,
        created_at_ms: 1,
        actor_id: "ada".into(),
        tables: vec!["todos".into()],
        changes,
    })
}

pub fn segment(rows: &[Vec<Value>]) -> Bytes {
    encode_segment(&Segment {
        header: SegmentHeader {
            table: "todos".into(),
            schema_version: 1,
            columns: schema().table("todos").unwrap().columns.clone(),
        },
        blocks: vec![
            rows.iter()
                .map(|values| SegmentRow {
                    server_version: 2,
                    values: values.clone(),
                })
                .collect(),
        ],
    })
    .unwrap()
}

pub fn result(id: &str, status: PushStatus, outcomes: Vec<OperationOutcome>) -> ResponseFrame {
    ResponseFrame::PushResult(PushResult {
        client_commit_id: id.into(),
        status,
        results: outcomes
            .into_iter()
            .enumerate()
            .map(|(at, outcome)| OperationResult {
                op_index: i32::try_from(at).unwrap(),
                outcome,
            })
            .collect(),
    })
}

pub fn applied(id: &str, seq: i64) -> ResponseFrame {
    result(
        id,
        PushStatus::Applied(seq),
        vec![OperationOutcome::Applied],
    )
}

pub fn failed(id: &str, code: &str) -> ResponseFrame {
    result(
        id,
        PushStatus::Rejected,
        vec![OperationOutcome::Error {
            code: code.into(),
            message: "no".into(),
            retryable: false,
        }],
    )
}

pub fn conflict(id: &str, server: &[Value]) -> ResponseFrame {
    result(
        id,
        PushStatus::Rejected,
        vec![OperationOutcome::Conflict {
            code: "sync.version_conflict".into(),
            message: "changed".into(),
            server_version: 5,
            server_row: row(server),
            conflict_columns: Bytes::from_static(&[0b0000_0100]),
        }],
    )
}

pub fn pushes(request: &Request) -> Vec<PushCommit> {
    request
        .frames
        .iter()
        .filter_map(|frame| match frame {
            RequestFrame::PushCommit(commit) => Some(commit.clone()),
            _ => None,
        })
        .collect()
}

pub fn subscriptions(request: &Request) -> Vec<Subscription> {
    request
        .frames
        .iter()
        .filter_map(|frame| match frame {
            RequestFrame::Subscription(subscription) => Some(subscription.clone()),
            _ => None,
        })
        .collect()
}

pub fn epoch(request: &Request) -> Option<String> {
    match &request.frames[0] {
        RequestFrame::Header(header) => header.log_epoch.clone(),
        _ => panic!("no header"),
    }
}

pub fn insert(id: &str, list: &str, title: &str) -> Edit {
    Edit::upsert("todos")
        .set("id", id)
        .set("list_id", list)
        .set("title", title)
        .set("done", false)
}

pub type Client<'s> = SyncClient<&'s Script>;

/// A wire-3 client that has its epoch, and holds `rows` at cursor 10.
pub async fn synced<'s>(script: &'s Script, rows: &[Vec<Value>]) -> Client<'s> {
    let mut client = SyncClient::new(ClientConfig::new("d"), schema(), script);
    client
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    script.v3([
        start(true),
        ResponseFrame::SegmentInline(segment(rows)),
        end(10, None),
    ]);
    script.v3([start(false), end(10, None)]);
    client.sync().await.unwrap();
    client
}

pub fn end_of(id: &str) -> ResponseFrame {
    let ResponseFrame::SubStart(mut other) = start(false) else {
        panic!("no start")
    };
    other.id = id.into();
    ResponseFrame::SubStart(other)
}

pub fn broken() -> Change {
    Change {
        kind: ChangeKind::Upsert {
            row_version: 1,
            row: Bytes::from_static(&[0xff]),
        },
        ..upsert(&todo("t2", "a", "x"), 1)
    }
}

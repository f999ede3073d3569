//! What one client sends: its rows, its requests, and what it remembers between
//! them.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{
    ACCEPT_EXTERNAL_ROWS, ACCEPT_INLINE_ROWS, Column, ColumnType, Operation, OperationKind,
    PullHeader, PushCommit, Request, RequestFrame, RequestHeader, ScopeLists, Subscription, Value,
    WireVersion,
};
use tidegate_client::{ClientSchema, ClientTable};

use crate::check::{Expected, Progress};
use crate::cli::{Plan, Scenario};
use crate::runner::LoadError;

/// Id of every client's one subscription.
pub const SUBSCRIPTION: &str = "todos";

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// It carries a commit.
    pub push: bool,
    /// It pulls the subscription.
    pub pull: bool,
}

impl Work {
    /// The work of a scenario's `n`th request; `None` where it does not sync at all.
    pub fn of(scenario: Scenario, n: u64) -> Option<Self> {
        let (push, pull) = match scenario {
            Scenario::Healthz => return None,
            Scenario::PushPull => (true, true),
            Scenario::PushOnly => (true, false),
            Scenario::PullOnly => (false, true),
            Scenario::Mixed => match n % 10 {
                0 | 2 | 5 | 7 => (true, true),
                3 | 8 => (true, false),
                _ => (false, true),
            },
        };
        Some(Self { push, pull })
    }
}

/// One client's side of the conversation.
#[derive(Debug)]
pub struct Device {
    client_id: String,
    list_id: String,
    schema: Arc<ClientSchema>,
    wire: WireVersion,
    ops_per_commit: u64,
    rows_per_client: u64,
    text: String,
    subscription: Subscription,
    log_epoch: Option<String>,
    commits: u64,
    writes: u64,
}

impl Device {
    /// The device `number` of a plan. `run` tells this run's devices and lists from
    /// those of other runs on the same database.
    ///
    /// # Errors
    /// When the schema lacks the tables of the load.
    pub fn new(plan: &Plan, run: &str, number: u32) -> Result<Self, LoadError> {
        let partition = number % plan.partitions;
        for name in ["lists", "todos"] {
            if plan.schema.table(name).is_none() {
                return Err(LoadError::Setup(format!("the schema has no table {name}")));
            }
        }
        let list_id = if plan.shared_list {
            format!("{run}-p{partition}")
        } else {
            format!("{run}-{number}")
        };
        Ok(Self {
            client_id: format!("{run}-{number}"),
            subscription: Subscription {
                id: SUBSCRIPTION.to_owned(),
                table: "todos".to_owned(),
                scopes: ScopeLists::from_iter([("list_id", vec![list_id.clone()])]),
                params: None,
                cursor: -1,
                bootstrap_state: None,
            },
            list_id,
            schema: Arc::clone(&plan.schema),
            wire: plan.wire,
            ops_per_commit: u64::from(plan.ops_per_commit),
            rows_per_client: plan.rows_per_client,
            text: "x".repeat(plan.payload_bytes),
            log_epoch: None,
            commits: 0,
            writes: 0,
        })
    }

    /// Whether the log epoch has to be asked for first (§2.1).
    pub fn needs_epoch(&self) -> bool {
        self.wire >= WireVersion::V2 && self.log_epoch.is_none()
    }

    /// Whether the subscription has been bootstrapped whole.
    pub fn is_bootstrapped(&self) -> bool {
        self.subscription.cursor >= 0 && self.subscription.bootstrap_state.is_none()
    }

    /// The request that asks for the log epoch.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn acquisition(&self) -> Result<Bytes, LoadError> {
        self.encode(vec![RequestFrame::PullHeader(pull_header())])
    }

    /// Takes the epoch from the answer to [`Self::acquisition`].
    pub fn accept_epoch(&mut self, epoch: String) {
        self.log_epoch = Some(epoch);
    }

    /// The commit that creates the client's list.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn list_request(&mut self) -> Result<(Bytes, Expected), LoadError> {
        let id = self.list_id.clone();
        let table = table(&self.schema, "lists")?;
        let operation = self.whole_row(table, &id, &id)?;
        self.commit_request(vec![operation], false)
    }

    /// The next request of that kind, and what its answer has to be.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn request(&mut self, work: Work) -> Result<(Bytes, Expected), LoadError> {
        let mut operations = Vec::new();
        if work.push {
            for _ in 0..self.ops_per_commit {
                operations.push(self.write()?);
            }
        }
        self.commit_request(operations, work.pull)
    }

    /// Takes in what a correct answer changes.
    pub fn advance(&mut self, progress: Progress) {
        if let Some(pulled) = progress.pulled {
            self.subscription.cursor = pulled.next_cursor;
            self.subscription.bootstrap_state = pulled.bootstrap_state;
        }
    }

    fn commit_request(
        &mut self,
        operations: Vec<Operation>,
        pull: bool,
    ) -> Result<(Bytes, Expected), LoadError> {
        let mut frames = Vec::with_capacity(3);
        let mut expected = Expected {
            version: self.wire,
            commit: None,
            cursor: pull.then_some(self.subscription.cursor),
        };
        if !operations.is_empty() {
            self.commits += 1;
            let client_commit_id = format!("{}-{}", self.client_id, self.commits);
            expected.commit = Some(client_commit_id.clone());
            frames.push(RequestFrame::PushCommit(PushCommit {
                client_commit_id,
                operations,
            }));
        }
        if pull {
            frames.push(RequestFrame::PullHeader(pull_header()));
            frames.push(RequestFrame::Subscription(self.subscription.clone()));
        }
        Ok((self.encode(frames)?, expected))
    }

    fn encode(&self, frames: Vec<RequestFrame>) -> Result<Bytes, LoadError> {
        let header = RequestFrame::Header(RequestHeader {
            client_id: self.client_id.clone(),
            schema_version: self.schema.version(),
            log_epoch: self.log_epoch.clone(),
        });
        let request = Request {
            version: self.wire,
            frames: std::iter::once(header).chain(frames).collect(),
        };
        ssp2::encode_request(&request).map_err(|error| LoadError::Setup(error.to_string()))
    }

    /// The first write of a row inserts it whole; later ones update its text.
    fn write(&mut self) -> Result<Operation, LoadError> {
        let at = self.writes % self.rows_per_client;
        let first = self.writes < self.rows_per_client;
        self.writes += 1;
        let row_id = format!("{}-r{at}", self.client_id);
        let table = table(&self.schema, "todos")?;
        if first || self.wire < WireVersion::V3 {
            return self.whole_row(table, &row_id, &self.text);
        }
        let row: Vec<Option<Value>> = table
            .columns
            .iter()
            .enumerate()
            .map(|(ordinal, column)| {
                let written =
                    ordinal == table.primary_key || column.name == "title" || column.name == "done";
                written.then(|| self.value(column, &row_id, &self.text))
            })
            .collect();
        let payload = ssp2::encode_sparse_row(&table.columns, table.primary_key, &row)
            .map_err(|error| LoadError::Setup(error.to_string()))?;
        Ok(upsert(table, row_id, payload))
    }

    fn whole_row(
        &self,
        table: &ClientTable,
        row_id: &str,
        text: &str,
    ) -> Result<Operation, LoadError> {
        let row = table
            .columns
            .iter()
            .map(|column| self.value(column, row_id, text));
        let payload = if self.wire >= WireVersion::V3 {
            let row: Vec<Option<Value>> = row.map(Some).collect();
            ssp2::encode_sparse_row(&table.columns, table.primary_key, &row)
        } else {
            let row: Vec<Value> = row.collect();
            ssp2::encode_row(&table.columns, &row)
        };
        let payload = payload.map_err(|error| LoadError::Setup(error.to_string()))?;
        Ok(upsert(table, row_id.to_owned(), payload))
    }

    fn value(&self, column: &Column, row_id: &str, text: &str) -> Value {
        match column.name.as_str() {
            "id" => return Value::Text(row_id.to_owned()),
            "list_id" => return Value::Text(self.list_id.clone()),
            "title" | "name" => return Value::Text(text.to_owned()),
            _ if column.nullable => return Value::Null,
            _ => {}
        }
        match column.ty {
            ColumnType::String => Value::Text(text.to_owned()),
            ColumnType::Integer => Value::Integer(self.writes.cast_signed()),
            ColumnType::Float => Value::Float(0.5),
            ColumnType::Boolean => Value::Boolean(self.writes.is_multiple_of(2)),
            ColumnType::Json => Value::Text("{}".to_owned()),
            ColumnType::Bytes | ColumnType::Crdt => Value::Bytes(Bytes::new()),
            ColumnType::BlobRef => Value::Null,
        }
    }
}

/// The capabilities every pull of the load advertises: rows, inline and referenced.
const fn pull_header() -> PullHeader {
    PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept: ACCEPT_INLINE_ROWS | ACCEPT_EXTERNAL_ROWS,
    }
}

fn table<'s>(schema: &'s ClientSchema, name: &str) -> Result<&'s ClientTable, LoadError> {
    schema
        .table(name)
        .ok_or_else(|| LoadError::Setup(format!("the schema has no table {name}")))
}

fn upsert(table: &ClientTable, row_id: String, payload: Bytes) -> Operation {
    Operation {
        table: table.name.clone(),
        row_id,
        base_version: None,
        kind: OperationKind::Upsert(payload),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn plan(args: &[&str]) -> Plan {
        Cli::try_parse_from([&["x"], args].concat())
            .unwrap()
            .load
            .load
            .plan("http://h:1")
            .unwrap()
    }

    fn decoded(body: Bytes) -> Vec<RequestFrame> {
        ssp2::decode_request(body).unwrap().frames
    }

    fn operations(frames: &[RequestFrame]) -> Vec<Operation> {
        frames
            .iter()
            .filter_map(|frame| match frame {
                RequestFrame::PushCommit(commit) => Some(commit.operations.clone()),
                _ => None,
            })
            .flatten()
            .collect()
    }

    const BOTH: Work = Work {
        push: true,
        pull: true,
    };

    #[test]
    fn a_push_pull_request_carries_one_commit_and_one_subscription() {
        let plan = plan(&["--ops-per-commit", "3"]);
        let mut device = Device::new(&plan, "run", 0).unwrap();
        device.accept_epoch("e".to_owned());
        let (body, expected) = device.request(BOTH).unwrap();
        let frames = decoded(body);
        assert_eq!(operations(&frames).len(), 3);
        assert_eq!(expected.commit.as_deref(), Some("run-0-1"));
        assert_eq!(expected.cursor, Some(-1));
        assert!(matches!(frames.last(), Some(RequestFrame::Subscription(s)) if s.cursor == -1));
    }

    #[test]
    fn rows_are_inserted_whole_and_then_updated_sparsely_without_a_base() {
        let plan = plan(&["--payload-bytes", "9", "--rows-per-client", "5"]);
        let table = plan.schema.table("todos").unwrap();
        let mut device = Device::new(&plan, "run", 0).unwrap();
        let mut written = Vec::new();
        for _ in 0..=plan.rows_per_client {
            written.extend(operations(&decoded(device.request(BOTH).unwrap().0)));
        }
        let present = |operation: &Operation| {
            let OperationKind::Upsert(payload) = &operation.kind else {
                panic!("not an upsert");
            };
            ssp2::decode_sparse_row(&table.columns, table.primary_key, payload).unwrap()
        };
        let first = present(&written[0]);
        assert!(first.iter().all(Option::is_some));
        assert_eq!(first[2], Some(Value::Text("x".repeat(9))));
        let again = written.last().unwrap();
        assert_eq!(again.row_id, written[0].row_id);
        assert_eq!(again.base_version, None);
        let columns: Vec<_> = present(again).iter().map(Option::is_some).collect();
        assert_eq!(columns, [true, false, true, true, false, false]);
    }

    #[test]
    fn wire_1_requests_have_full_rows_and_no_epoch() {
        let plan = plan(&["--wire", "1"]);
        let table = plan.schema.table("todos").unwrap();
        let mut device = Device::new(&plan, "run", 0).unwrap();
        assert!(!device.needs_epoch());
        let frames = decoded(device.request(BOTH).unwrap().0);
        let OperationKind::Upsert(payload) = &operations(&frames)[0].kind else {
            panic!("not an upsert");
        };
        assert!(ssp2::decode_row(&table.columns, payload).is_ok());
    }

    #[test]
    fn clients_share_a_list_only_when_asked_to_and_only_within_a_partition() {
        let scopes = |args: &[&str], number| {
            let plan = plan(args);
            Device::new(&plan, "run", number)
                .unwrap()
                .subscription
                .scopes
        };
        assert_ne!(scopes(&[], 0), scopes(&[], 1));
        let shared = ["--shared-list", "--partitions", "2"];
        assert_eq!(scopes(&shared, 0), scopes(&shared, 2));
        assert_ne!(scopes(&shared, 0), scopes(&shared, 1));
    }

    /// Counts the kinds of work in a scenario's first `n` requests.
    fn census(scenario: Scenario, n: u64) -> HashMap<(bool, bool), usize> {
        let mut counts = HashMap::new();
        for work in (0..n).filter_map(|at| Work::of(scenario, at)) {
            *counts.entry((work.push, work.pull)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn the_mixed_scenario_is_four_two_four() {
        let counts = census(Scenario::Mixed, 100);
        assert_eq!(counts[&(true, true)], 40);
        assert_eq!(counts[&(true, false)], 20);
        assert_eq!(counts[&(false, true)], 40);
        assert!(census(Scenario::Healthz, 10).is_empty());
    }
}

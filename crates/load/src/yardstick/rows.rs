//! The rows that one pushed insert of a todo leaves behind.

use bytes::Bytes;
use ssp2::{Column, OperationOutcome, OperationResult, Value};
use tidegate_client::ClientSchema;
use tidegate_engine::ids::CommitSeq;
use tidegate_engine::model::StoredPushResult;
use tidegate_engine::push::encode_push_result;

use super::database::now_ms;
use crate::cli::DEMO_SCHEMA;
use crate::runner::LoadError;

/// Who writes the commits.
pub(super) const ACTOR: &str = "load";
/// The schema version that the rows are written at.
pub(super) const WRITER_VERSION: i64 = 1;

/// A commit that inserts one todo, before it has its sequence number.
#[derive(Debug)]
pub(super) struct TodoInsert {
    pub(super) client_commit_id: String,
    pub(super) row_id: String,
    pub(super) payload: Bytes,
    pub(super) created_at_ms: i64,
}

impl TodoInsert {
    /// The recorded result of the commit at `seq`.
    pub(super) fn result(&self, seq: i64) -> String {
        encode_push_result(&StoredPushResult {
            commit_seq: Some(CommitSeq(seq)),
            recorded_at_ms: Some(self.created_at_ms),
            results: vec![OperationResult {
                op_index: 0,
                outcome: OperationOutcome::Applied,
            }],
            details: Vec::new(),
        })
    }
}

/// One client's todos, all in its own list.
#[derive(Debug)]
pub(super) struct Todos {
    pub(super) client_id: String,
    pub(super) list_id: String,
    pub(super) title: String,
    /// The rows' stored scopes.
    pub(super) scopes: String,
    columns: Vec<Column>,
    written: u64,
}

impl Todos {
    /// The todos of client `number` in this run.
    pub(super) fn new(run: &str, number: u32, payload_bytes: usize) -> Result<Self, LoadError> {
        let schema = ClientSchema::from_ir_json(DEMO_SCHEMA)
            .map_err(|error| LoadError::Setup(error.to_string()))?;
        let columns = schema
            .table("todos")
            .map(|table| table.columns.clone())
            .ok_or_else(|| LoadError::Setup("the schema has no table todos".to_owned()))?;
        let client_id = format!("{run}-{number}");
        Ok(Self {
            scopes: serde_json::json!({ "list_id": client_id }).to_string(),
            list_id: client_id.clone(),
            client_id,
            title: "x".repeat(payload_bytes),
            columns,
            written: 0,
        })
    }

    /// The next insert.
    pub(super) fn next(&mut self) -> Result<TodoInsert, LoadError> {
        let row_id = format!("{}-r{}", self.client_id, self.written);
        self.written += 1;
        let values = [
            Value::Text(row_id.clone()),
            Value::Text(self.list_id.clone()),
            Value::Text(self.title.clone()),
            Value::Boolean(false),
            Value::Null,
            Value::Null,
        ];
        let payload = ssp2::encode_row(&self.columns, &values)
            .map_err(|error| LoadError::Setup(error.to_string()))?;
        Ok(TodoInsert {
            client_commit_id: format!("{}-{}", self.client_id, self.written),
            row_id,
            payload,
            created_at_ms: now_ms(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_insert_is_a_new_row_with_the_payload_of_its_values() {
        let mut todos = Todos::new("run", 3, 9).unwrap();
        let (first, second) = (todos.next().unwrap(), todos.next().unwrap());
        assert_eq!(
            (first.row_id.as_str(), first.client_commit_id.as_str()),
            ("run-3-r0", "run-3-1")
        );
        assert_ne!(first.row_id, second.row_id);
        let values = ssp2::decode_row(&todos.columns, &first.payload).unwrap();
        assert_eq!(values[0], Value::Text("run-3-r0".to_owned()));
        assert_eq!(values[2], Value::Text("x".repeat(9)));
        assert_eq!(todos.scopes, r#"{"list_id":"run-3"}"#);
    }

    #[test]
    fn the_recorded_result_names_the_sequence_number() {
        let insert = Todos::new("run", 0, 1).unwrap().next().unwrap();
        let result: serde_json::Value = serde_json::from_str(&insert.result(42)).unwrap();
        assert_eq!(result["status"], "applied");
        assert_eq!(result["commitSeq"], 42);
        assert_eq!(result["results"][0]["opIndex"], 0);
    }
}

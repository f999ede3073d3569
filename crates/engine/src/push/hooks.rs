//! The host rules a push passes (§5.10.2, §6.6 to §6.9). All are optional and
//! cost nothing when absent.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;

use ssp2::Value;

use crate::hooks::{HostRejection, MergeCrdt, ValidateRow};
use crate::ids::{ActorId, ClientId, PartitionId, TableId};
use crate::model::{Needs, RowKey};
use crate::schema::Schema;

use super::staging::{Lookup, Staging};

/// The host rules of a deployment.
#[derive(Default, Clone)]
pub struct PushHooks {
    /// Per-row business rules (§6.7).
    pub row_validator: Option<Arc<dyn ValidateRow>>,
    /// Merger of crdt columns; without one a pushed crdt value is
    /// `sync.crdt_merge_failed` (§5.10.2).
    pub crdt_merger: Option<Arc<dyn MergeCrdt>>,
    /// Which blobs are stored; without one none is, and a pushed reference is
    /// `blob.not_found` (§6.6).
    pub blobs: Option<Arc<dyn BlobLookup>>,
    /// The whole-commit rule (§6.8).
    pub commit_validator: Option<Arc<dyn ValidateCommit>>,
    /// The reaction planner (§6.9).
    pub reactions: Option<Arc<dyn PlanReactions>>,
}

/// Whether a blob is stored (§5.9.6). Answers from memory: a caller that keeps
/// blobs elsewhere looks up [`super::referenced_blobs`] first.
pub trait BlobLookup: Send + Sync {
    /// Whether the blob store of `partition` holds `blob_id`.
    fn exists(&self, partition: &PartitionId, blob_id: &str) -> bool;
}

/// One staged operation as whole-commit rules see it (§6.8): the client's own
/// operations in order, then those that references appended (§6.11).
#[derive(Debug, Clone)]
pub struct StagedOperation {
    /// Index of the client's operation; of the originating delete for an appended one.
    pub op_index: usize,
    /// Table.
    pub table: TableId,
    /// Row.
    pub row_id: Arc<str>,
    /// Whether it deletes.
    pub delete: bool,
    /// The row that will persist; `None` for a delete.
    pub row: Option<Arc<[Value]>>,
    /// The row before this operation, if there was one.
    pub stored: Option<Arc<[Value]>>,
    /// Its version.
    pub stored_version: Option<i64>,
    /// The version after this operation; `None` for a delete.
    pub next_version: Option<i64>,
}

/// What a whole-commit rule sees (§6.8).
pub struct StagedCommit<'a> {
    /// Partition.
    pub partition: &'a PartitionId,
    /// Actor.
    pub actor: &'a ActorId,
    /// Device.
    pub client: &'a ClientId,
    /// Its commit id.
    pub client_commit_id: &'a str,
    /// Schema of every value in sight.
    pub schema: &'a Schema,
    /// Everything the commit does, in order.
    pub operations: &'a [StagedOperation],
    /// Reads of the final candidate state.
    pub reader: &'a CandidateReader<'a>,
}

/// A row that is not known yet. A rule hands it on with `?`; the row is then
/// read and the rule runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread(());

/// A row of the candidate state.
#[derive(Debug, Clone)]
pub struct CandidateRow {
    /// Its version.
    pub server_version: i64,
    /// Its decoded values, in column order.
    pub values: Arc<[Value]>,
}

/// Read access to the state after all of a commit's operations (§6.8).
pub struct CandidateReader<'a> {
    schema: &'a Schema,
    staging: &'a Staging<'a>,
    missing: RefCell<Needs>,
    corrupt: Cell<bool>,
}

impl<'a> CandidateReader<'a> {
    pub(super) fn new(schema: &'a Schema, staging: &'a Staging<'a>) -> Self {
        Self {
            schema,
            staging,
            missing: RefCell::default(),
            corrupt: Cell::new(false),
        }
    }

    /// The final state of a row; `None` when absent.
    ///
    /// # Errors
    /// [`Unread`] when the row has to be read first, or is unreadable.
    pub fn row(&self, table: TableId, row_id: &str) -> Result<Option<CandidateRow>, Unread> {
        let key = RowKey {
            table,
            row_id: row_id.into(),
        };
        match self.staging.lookup(&key) {
            Lookup::Absent { .. } => Ok(None),
            Lookup::Present(current) => {
                let Ok(values) = current.values(self.schema.table_at(table)) else {
                    self.corrupt.set(true);
                    return Err(Unread(()));
                };
                Ok(Some(CandidateRow {
                    server_version: current.row.server_version,
                    values,
                }))
            }
            Lookup::Unknown => {
                self.missing.borrow_mut().rows.insert(key);
                Err(Unread(()))
            }
        }
    }

    /// Whether a rule asked for a row that does not decode: no verdict of it
    /// counts, the commit fails with a server error.
    pub(super) const fn met_corruption(&self) -> bool {
        self.corrupt.get()
    }

    pub(super) fn into_missing(self) -> Needs {
        self.missing.into_inner()
    }
}

/// Why a whole-commit rule did not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitRefusal {
    /// A deliberate rejection, attributed to one of the client's operations.
    Rejected {
        /// Index of the operation.
        op_index: usize,
        /// Code, message and details.
        rejection: HostRejection,
    },
    /// Rows must be read first.
    Unread(Unread),
}

impl From<Unread> for CommitRefusal {
    fn from(unread: Unread) -> Self {
        Self::Unread(unread)
    }
}

impl From<HostRejection> for CommitRefusal {
    /// Attributes to the first operation (§6.8).
    fn from(rejection: HostRejection) -> Self {
        Self::Rejected {
            op_index: 0,
            rejection,
        }
    }
}

/// A rule over a whole commit (§6.8). Pure: it may run again for the same
/// commit when it asked for rows that were not known.
pub trait ValidateCommit: Send + Sync {
    /// # Errors
    /// [`CommitRefusal`].
    fn validate(&self, commit: &StagedCommit<'_>) -> Result<(), CommitRefusal>;
}

/// A durable reaction to an accepted commit (§6.9).
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedReaction {
    /// Unique in the commit, non-empty, at most 256 bytes.
    pub key: String,
    /// Handler name, code-like, at most 128 bytes.
    pub kind: String,
    /// Payload version, ≥ 1.
    pub version: i32,
    /// At most 16 levels and 65,536 bytes.
    pub payload: serde_json::Value,
    /// 1 to 100.
    pub max_attempts: i32,
}

/// Why reactions were not planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanFailure {
    /// Rows must be read first.
    Unread(Unread),
    /// The planner failed: the commit is not recorded and may come again.
    Failed,
}

impl From<Unread> for PlanFailure {
    fn from(unread: Unread) -> Self {
        Self::Unread(unread)
    }
}

/// Plans reactions of an accepted commit (§6.9). Pure, as [`ValidateCommit`] is.
pub trait PlanReactions: Send + Sync {
    /// # Errors
    /// [`PlanFailure`].
    fn plan(&self, commit: &StagedCommit<'_>) -> Result<Vec<PlannedReaction>, PlanFailure>;
}

/// Whether a plan keeps the bounds of §6.9.
pub(super) fn plan_is_valid(plan: &[PlannedReaction]) -> bool {
    let mut keys = HashSet::new();
    plan.len() <= 100
        && plan.iter().all(|reaction| {
            (1..=256).contains(&reaction.key.len())
                && keys.insert(reaction.key.as_str())
                && is_handler_name(&reaction.kind)
                && reaction.version >= 1
                && (1..=100).contains(&reaction.max_attempts)
                && depth(&reaction.payload) <= 16
                && reaction.payload.to_string().len() <= 65_536
        })
}

/// `[a-z][a-z0-9]*([._-][a-z0-9]+)*` within 128 bytes.
fn is_handler_name(text: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.split(['.', '_', '-']).all(word)
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

//! What the log and the row store hold: the values that the engine decides on
//! and a store reads and writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ssp2::{OperationResult, ScopeLists, ScopeValues, Value, WireVersion};

use crate::backfill::checkpoint::Advance;
use crate::ids::{ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion, TableId};
use crate::push::PlannedReaction;

/// Identity of a row inside a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// Table.
    pub table: TableId,
    /// Rendered primary key.
    pub row_id: Arc<str>,
}

/// Identity of a push commit inside a partition (§2.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResultKey {
    /// Device.
    pub client_id: ClientId,
    /// Its commit id.
    pub client_commit_id: Arc<str>,
}

/// A stored row.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRow {
    /// ≥ 1, +1 per applied upsert (§2.2).
    pub server_version: i64,
    /// Stored scopes.
    pub scopes: ScopeValues,
    /// Full-row codec bytes.
    pub payload: Bytes,
    /// The stored column-versions blob, exactly as in the database (see
    /// `column_versions`): `None` with `server_version > 1` reads as every
    /// column at the row's version.
    pub column_versions: Option<Bytes>,
}

impl StoredRow {
    /// About what the row occupies in memory and in an answer, bytes.
    pub fn bytes(&self, row_id: &str) -> usize {
        let versions = self.column_versions.as_ref().map_or(0, Bytes::len);
        ROW_OVERHEAD + row_id.len() + scope_bytes(&self.scopes) + self.payload.len() + versions
    }
}

/// What a row costs beside its variable parts, bytes.
const ROW_OVERHEAD: usize = 64;

fn scope_bytes(scopes: &ScopeValues) -> usize {
    let values = scopes.iter();
    values.map(|(name, value)| name.len() + value.len()).sum()
}

/// What is known of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowState {
    /// Stored.
    Present(Arc<StoredRow>),
    /// Not stored; with the commit of its tombstone when there is one.
    Absent {
        /// Commit that deleted it, if still inside the horizon.
        tombstone: Option<CommitSeq>,
    },
}

/// A change of the log, as stored in `sync_changes`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedChange {
    /// Row.
    pub key: RowKey,
    /// Scopes the change is tagged with.
    pub scopes: ScopeValues,
    /// `Some((row_version, payload))` = upsert, `None` = delete.
    pub upsert: Option<(i64, Bytes)>,
}

impl LoggedChange {
    /// About what the change occupies in memory and in an answer, bytes.
    pub fn bytes(&self) -> usize {
        let payload = self.upsert.as_ref().map_or(0, |(_, payload)| payload.len());
        ROW_OVERHEAD + self.key.row_id.len() + scope_bytes(&self.scopes) + payload
    }
}

/// A commit of the log with its changes (all, or those that match a reader's scopes).
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedCommit {
    /// Position.
    pub seq: CommitSeq,
    /// Device that pushed it.
    pub client_id: ClientId,
    /// Its commit id.
    pub client_commit_id: Arc<str>,
    /// Actor.
    pub actor_id: ActorId,
    /// Epoch milliseconds.
    pub created_at_ms: i64,
    /// Changes in order.
    pub changes: Vec<LoggedChange>,
}

/// The persisted outcome of a push commit (`sync_push_results.result`, storage.md).
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPushResult {
    /// `Some` = applied at that position, `None` = rejected.
    pub commit_seq: Option<CommitSeq>,
    /// Epoch milliseconds when it was recorded.
    pub recorded_at_ms: Option<i64>,
    /// Records; conflict records always carry their column bitmap.
    pub results: Vec<OperationResult>,
    /// §6.3.1 details per op index: normalized JSON text.
    pub details: Vec<(i32, String)>,
}

/// What a lookup of a push result found.
#[derive(Debug, Clone, PartialEq)]
pub enum ResultLookup {
    /// Never recorded.
    Absent,
    /// Recorded.
    Found(Arc<StoredPushResult>),
    /// Recorded, but unreadable: answered `sync.idempotency_cache_miss`, never overwritten.
    Unreadable,
}

/// What a put takes the place of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Nothing: the row is new, and no index holds an entry of it.
    Nothing,
    /// The tombstone of a deleted row, which must go.
    Tombstone,
    /// A stored row, perhaps.
    Row,
}

/// A row's last state in a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum RowWrite {
    /// Insert or replace.
    Put {
        /// Row.
        key: RowKey,
        /// New state.
        row: Arc<StoredRow>,
        /// Decoded values, for materialized columns.
        values: Arc<[Value]>,
        /// What is stored in its place.
        over: Over,
    },
    /// Delete, its scope and blob index entries included, and leave a tombstone.
    Delete {
        /// Row.
        key: RowKey,
        /// Commit that deleted it.
        tombstone: CommitSeq,
    },
}

impl RowWrite {
    /// The row that is written.
    pub fn key(&self) -> &RowKey {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }
}

/// One partition's group commit: everything that becomes durable together.
#[derive(Debug, Clone)]
pub struct CommitBatch {
    /// Partition.
    pub partition: PartitionId,
    /// `max_commit_seq` that every decision in it is based on (the CAS).
    pub expected_max: CommitSeq,
    /// The running schema version: written on each commit row, judged by the fence and the gate.
    pub writer_version: SchemaVersion,
    /// Checkpoints `(partition, name)` that this process declares.
    pub declared: Arc<BTreeSet<(String, String)>>,
    /// Applied commits; sequence numbers are `expected_max + 1 ..` without gaps.
    pub commits: Vec<Arc<LoggedCommit>>,
    /// One per decided commit, rejected ones included.
    pub results: Vec<(ResultKey, Arc<StoredPushResult>)>,
    /// Final state per row, each row once.
    pub rows: Vec<RowWrite>,
    /// Client records to upsert.
    pub clients: Vec<ClientRecord>,
    /// Reactions that the host planned for the commits, each due at once (§6.9).
    pub reactions: Vec<QueuedReaction>,
    /// The checkpoint that a backfill page advances. Superseded = nothing of the
    /// batch is written.
    pub advance: Option<PageAdvance>,
}

impl CommitBatch {
    /// Where the log stands once the batch is written.
    pub fn head_after(&self) -> CommitSeq {
        let last = self.commits.last().map(|commit| commit.seq);
        last.unwrap_or(self.expected_max)
    }
}

/// A row of `sync_reactions` as it begins: pending, never attempted (§6.9).
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedReaction {
    /// JSON of `[partition, clientId, clientCommitId, key]`.
    pub idempotency_key: String,
    /// What the host planned.
    pub planned: PlannedReaction,
    /// The commit it follows.
    pub source: Arc<LoggedCommit>,
}

impl QueuedReaction {
    /// A planned reaction of a commit in `partition`.
    pub fn new(
        partition: &PartitionId,
        source: &Arc<LoggedCommit>,
        planned: PlannedReaction,
    ) -> Self {
        let key = serde_json::json!([
            partition.as_str(),
            source.client_id.as_str(),
            &*source.client_commit_id,
            planned.key
        ]);
        Self {
            idempotency_key: key.to_string(),
            planned,
            source: Arc::clone(source),
        }
    }
}

/// The advance that goes with a backfill page, in its own transaction
/// (migrations.md rule 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageAdvance {
    /// Checkpoint name.
    pub name: Arc<str>,
    /// Where to.
    pub to: Advance,
    /// Now, epoch milliseconds.
    pub now_ms: i64,
}

/// What the registry and the log say of a partition (§2.1, §4.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// Current epoch.
    pub log_epoch: LogEpoch,
    /// Whether the epoch was ever rotated (wire 1 is then refused).
    pub epoch_required: bool,
}

/// Log bounds of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogBounds {
    /// Newest commit.
    pub max: CommitSeq,
    /// Pruning horizon.
    pub horizon: CommitSeq,
}

impl LogBounds {
    /// The bounds for a reader of the current row layout. Changes at or below
    /// `layout_floor` may hold rows of an older layout, which must never be sent:
    /// for reading they are as good as pruned.
    #[must_use]
    pub fn above_layout(self, layout_floor: CommitSeq) -> Self {
        Self {
            horizon: self.horizon.max(layout_floor),
            ..self
        }
    }
}

/// `sync_clients` row.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRecord {
    /// Device.
    pub client_id: ClientId,
    /// The actor it is bound to.
    pub actor_id: ActorId,
    /// Wire version of its last request.
    pub wire_version: WireVersion,
    /// Minimum next cursor over active subscriptions; -1 = none yet.
    pub cursor: i64,
    /// Registered subscriptions.
    pub subscriptions: Vec<RegisteredSubscription>,
    /// Epoch milliseconds.
    pub updated_at_ms: i64,
}

/// A registered subscription (`{id, table, scopes}` plus preserved unknown keys).
#[derive(Debug, Clone, PartialEq)]
pub struct RegisteredSubscription {
    /// Client-chosen id.
    pub id: String,
    /// Table.
    pub table: String,
    /// Effective scopes.
    pub scopes: ScopeLists,
    /// Other keys of the stored object, preserved.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// What a batch of push commits still has to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Rows, with their tombstones.
    pub rows: BTreeSet<RowKey>,
    /// Idempotency keys.
    pub results: BTreeSet<ResultKey>,
    /// Children of a parent row through a reference of the child table.
    pub children: BTreeSet<ChildrenKey>,
}

/// "All rows of `child` whose column `column` equals the key of `parent_row`".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildrenKey {
    /// Child table.
    pub child: TableId,
    /// Ordinal of the referencing column.
    pub column: u16,
    /// Rendered primary key of the parent.
    pub parent_row: Arc<str>,
    /// At most that many rows are wanted (cascade cap + 1).
    pub limit: u32,
}

/// The rows of one [`ChildrenKey`], in row id order.
pub type ChildRows = Vec<(RowKey, Arc<StoredRow>)>;

/// The answer to [`Needs`], read in one consistent step; `max` is read before any row.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    /// `max_commit_seq` at the read.
    pub max: CommitSeq,
    /// One entry per wanted row.
    pub rows: Vec<(RowKey, RowState)>,
    /// One entry per wanted key.
    pub results: Vec<(ResultKey, ResultLookup)>,
    /// One entry per wanted set.
    pub children: Vec<(ChildrenKey, ChildRows)>,
}

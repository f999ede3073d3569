//! The `sync_*` tables, the writer fence and Tidegate's own bookkeeping tables.
//! Names and columns are an interface shared with the reference server.

use rusqlite::{Connection, OptionalExtension};

use super::failure::during;
use crate::error::StoreError;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK(id=1), schema_version INTEGER NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq INTEGER NOT NULL DEFAULT 0, horizon_seq INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sync_partition_registry(
  partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL,
  epoch_required INTEGER NOT NULL DEFAULT 0, last_authenticated_at_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS sync_row_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
  value TEXT NOT NULL, row_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, row_id)
);
CREATE INDEX IF NOT EXISTS sync_row_scopes_by_row ON sync_row_scopes(partition, tbl, row_id);
CREATE TABLE IF NOT EXISTS sync_commits(
  partition TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms INTEGER NOT NULL, writer_version INTEGER,
  PRIMARY KEY(partition, commit_seq)
);
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(
  partition TEXT NOT NULL, commit_seq INTEGER NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op INTEGER NOT NULL,
  row_version INTEGER, scopes TEXT NOT NULL, payload BLOB,
  PRIMARY KEY(partition, commit_seq, idx)
);
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_change_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
  value TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, commit_seq)
);
CREATE TABLE IF NOT EXISTS sync_push_results(
  partition TEXT NOT NULL, client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL, result TEXT NOT NULL,
  PRIMARY KEY(partition, client_id, client_commit_id)
);
CREATE TABLE IF NOT EXISTS sync_reactions(
  partition TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  type TEXT NOT NULL, version INTEGER NOT NULL, payload TEXT NOT NULL,
  source_client_id TEXT NOT NULL, source_client_commit_id TEXT NOT NULL,
  source_commit_seq INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
  available_at_ms INTEGER NOT NULL, status TEXT NOT NULL,
  attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  lease_owner TEXT, lease_expires_at_ms INTEGER, completed_at_ms INTEGER, last_failure TEXT,
  PRIMARY KEY(partition, idempotency_key),
  CHECK(status IN ('pending', 'leased', 'completed', 'dead-letter'))
);
CREATE INDEX IF NOT EXISTS sync_reactions_due
  ON sync_reactions(partition, status, available_at_ms, created_at_ms, idempotency_key);
CREATE INDEX IF NOT EXISTS sync_reactions_lease
  ON sync_reactions(partition, status, lease_expires_at_ms);
CREATE INDEX IF NOT EXISTS sync_reactions_completed
  ON sync_reactions(partition, status, completed_at_ms, idempotency_key);
CREATE INDEX IF NOT EXISTS sync_reactions_dead_letter
  ON sync_reactions(partition, status, available_at_ms, idempotency_key);
CREATE TABLE IF NOT EXISTS sync_clients(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL,
  wire_version INTEGER NOT NULL DEFAULT 1, cursor INTEGER NOT NULL,
  subscriptions TEXT NOT NULL, updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, client_id)
);
CREATE TABLE IF NOT EXISTS sync_blob_refs(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id, blob_id)
);
CREATE INDEX IF NOT EXISTS sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE IF NOT EXISTS sync_tombstones(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  PRIMARY KEY(partition, tbl, row_id)
);
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(
  partition TEXT NOT NULL, name TEXT NOT NULL, schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('declared','backfilling','activated')),
  watermark INTEGER NOT NULL DEFAULT 0, owner_epoch INTEGER NOT NULL DEFAULT 0,
  observed_rows INTEGER NOT NULL DEFAULT 0, updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, name)
);
CREATE INDEX IF NOT EXISTS tidegate_checkpoints_pending
  ON sync_backfill_checkpoints(schema_version) WHERE state <> 'activated';
CREATE TABLE IF NOT EXISTS sync_writer_fence(
  partition TEXT PRIMARY KEY, required_writer_version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS tidegate_layouts(
  schema_version INTEGER NOT NULL, partition TEXT NOT NULL, head_seq INTEGER NOT NULL,
  PRIMARY KEY(partition, schema_version)
);
CREATE TABLE IF NOT EXISTS tidegate_backfills(
  partition TEXT NOT NULL, name TEXT NOT NULL, paused INTEGER NOT NULL, workers INTEGER NOT NULL,
  pace TEXT, last_error TEXT, updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, name)
);
CREATE TABLE IF NOT EXISTS tidegate_grants(
  partition TEXT NOT NULL, actor_id TEXT NOT NULL,
  scopes TEXT NOT NULL, updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, actor_id)
);
";

/// Columns that databases of older programs lack.
const LATER_COLUMNS: [(&str, &str, &str); 2] = [
    ("sync_commits", "writer_version", "INTEGER"),
    ("sync_clients", "wire_version", "INTEGER NOT NULL DEFAULT 1"),
];

const FENCE: &str = "sync_commits_writer_fence";

/// Refuses a commit row of a writer older than the partition's fence
/// (docs/migrations.md rule 3), whichever program inserts it.
const FENCE_TRIGGER: &str = "CREATE TRIGGER sync_commits_writer_fence
BEFORE INSERT ON sync_commits
WHEN EXISTS (
  SELECT 1 FROM sync_writer_fence AS fence
  WHERE fence.partition = NEW.partition
    AND (NEW.writer_version IS NULL OR NEW.writer_version < fence.required_writer_version)
)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.writer_fence_rejected');
END";

/// Applies the core schema idempotently, in a transaction of its own. The fence
/// is replaced in that transaction, and only when it differs: there is no
/// moment without one. A database that lacks nothing is not touched.
pub(super) fn apply(connection: &mut Connection) -> Result<(), StoreError> {
    if missing(connection)?.is_empty() {
        return Ok(());
    }
    let tx = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(during(CONTEXT))?;
    for statement in missing(&tx)? {
        tx.execute_batch(&statement).map_err(during(CONTEXT))?;
    }
    tx.commit().map_err(during(CONTEXT))
}

const CONTEXT: &str = "preparing the core tables";

/// The statements that bring this database to the core schema, in order.
pub(super) fn missing(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let mut statements = Vec::new();
    for statement in TABLES.split(';').map(str::trim) {
        let Some(name) = created(statement) else {
            continue;
        };
        if !exists(connection, name)? {
            statements.push(statement.to_owned());
        }
    }
    for (table, column, definition) in LATER_COLUMNS {
        let lacks = exists(connection, table)?
            && !connection
                .prepare("SELECT 1 FROM pragma_table_info(?1) WHERE name=?2")
                .and_then(|mut statement| statement.exists([table, column]))
                .map_err(during(CONTEXT))?;
        if lacks {
            statements.push(format!(
                "ALTER TABLE {table} ADD COLUMN {column} {definition}"
            ));
        }
    }
    let fence: Option<String> = connection
        .query_row(
            "SELECT sql FROM sqlite_master WHERE type='trigger' AND name=?",
            [FENCE],
            |row| row.get(0),
        )
        .optional()
        .map_err(during(CONTEXT))?;
    if fence.as_deref() != Some(FENCE_TRIGGER) {
        if fence.is_some() {
            statements.push(format!("DROP TRIGGER {FENCE}"));
        }
        statements.push(FENCE_TRIGGER.to_owned());
    }
    Ok(statements)
}

/// Whether the database has a table or index of that name.
pub(super) fn exists(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    connection
        .prepare_cached("SELECT 1 FROM sqlite_master WHERE type IN ('table','index') AND name=?")
        .and_then(|mut statement| statement.exists([name]))
        .map_err(during(CONTEXT))
}

/// The name of what a `CREATE … IF NOT EXISTS` creates.
fn created(statement: &str) -> Option<&str> {
    let (_, rest) = statement.split_once("IF NOT EXISTS ")?;
    rest.split([' ', '(', '\n']).next()
}

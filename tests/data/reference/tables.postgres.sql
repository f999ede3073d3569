-- The tables that the reference server makes on Postgres for config/schemas/demo.json. Running this
-- again is what its next start does.

CREATE TABLE IF NOT EXISTS sync_partitions(partition TEXT PRIMARY KEY, max_commit_seq BIGINT NOT NULL DEFAULT 0,
  horizon_seq BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS sync_partition_registry(partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL,
  epoch_required BOOLEAN NOT NULL DEFAULT FALSE, last_authenticated_at_ms BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS sync_row_scopes(partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
  value TEXT NOT NULL, row_id TEXT NOT NULL, PRIMARY KEY(partition, tbl, var, value, row_id));
CREATE INDEX IF NOT EXISTS sync_row_scopes_by_row ON sync_row_scopes(partition, tbl, row_id);
CREATE TABLE IF NOT EXISTS sync_commits(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL, actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL, writer_version BIGINT,
  PRIMARY KEY(partition, commit_seq));
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op SMALLINT NOT NULL, row_version BIGINT, scopes JSONB NOT NULL,
  payload BYTEA, PRIMARY KEY(partition, commit_seq, idx));
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_change_scopes(partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
  value TEXT NOT NULL, commit_seq BIGINT NOT NULL, PRIMARY KEY(partition, tbl, var, value, commit_seq));
CREATE TABLE IF NOT EXISTS sync_push_results(partition TEXT NOT NULL, client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL, result JSONB NOT NULL, PRIMARY KEY(partition, client_id, client_commit_id));
CREATE TABLE IF NOT EXISTS sync_reactions(partition TEXT NOT NULL, idempotency_key TEXT NOT NULL, type TEXT NOT NULL,
  version INTEGER NOT NULL, payload JSONB NOT NULL, source_client_id TEXT NOT NULL,
  source_client_commit_id TEXT NOT NULL, source_commit_seq BIGINT NOT NULL, created_at_ms BIGINT NOT NULL,
  available_at_ms BIGINT NOT NULL, status TEXT NOT NULL, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  lease_owner TEXT, lease_expires_at_ms BIGINT, completed_at_ms BIGINT, last_failure JSONB,
  PRIMARY KEY(partition, idempotency_key), CHECK(status IN ('pending', 'leased', 'completed', 'dead-letter')));
CREATE INDEX IF NOT EXISTS sync_reactions_due
  ON sync_reactions(partition, status, available_at_ms, created_at_ms, idempotency_key);
CREATE INDEX IF NOT EXISTS sync_reactions_lease ON sync_reactions(partition, status, lease_expires_at_ms);
CREATE INDEX IF NOT EXISTS sync_reactions_completed
  ON sync_reactions(partition, status, completed_at_ms, idempotency_key);
CREATE INDEX IF NOT EXISTS sync_reactions_dead_letter
  ON sync_reactions(partition, status, available_at_ms, idempotency_key);
CREATE TABLE IF NOT EXISTS sync_clients(partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL,
  wire_version INTEGER NOT NULL DEFAULT 1, cursor BIGINT NOT NULL, subscriptions JSONB NOT NULL,
  updated_at_ms BIGINT NOT NULL, PRIMARY KEY(partition, client_id));
CREATE TABLE IF NOT EXISTS sync_blob_refs(partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL,
  blob_id TEXT NOT NULL, PRIMARY KEY(partition, tbl, row_id, blob_id));
CREATE INDEX IF NOT EXISTS sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE IF NOT EXISTS sync_tombstones(partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL,
  commit_seq BIGINT NOT NULL, PRIMARY KEY(partition, tbl, row_id));
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(partition TEXT NOT NULL, name TEXT NOT NULL,
  schema_version INTEGER NOT NULL, state TEXT NOT NULL CHECK(state IN ('declared', 'backfilling', 'activated')),
  watermark BIGINT NOT NULL DEFAULT 0, owner_epoch BIGINT NOT NULL DEFAULT 0, observed_rows BIGINT NOT NULL DEFAULT 0,
  updated_at_ms BIGINT NOT NULL, PRIMARY KEY(partition, name));
CREATE TABLE IF NOT EXISTS sync_writer_fence(partition TEXT PRIMARY KEY, required_writer_version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sync_schema_meta(id INTEGER PRIMARY KEY CHECK(id = 1), schema_version BIGINT NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}');

CREATE TABLE IF NOT EXISTS "lists"("_sync_partition" TEXT NOT NULL, "_sync_row_id" TEXT NOT NULL,
  "id" TEXT NOT NULL, "name" TEXT NOT NULL, "owner" TEXT,
  "_sync_server_version" BIGINT NOT NULL, "_sync_scopes" JSONB NOT NULL, "_sync_payload" BYTEA NOT NULL,
  "_sync_column_versions" BYTEA, PRIMARY KEY("_sync_partition", "_sync_row_id"));
CREATE TABLE IF NOT EXISTS "todos"("_sync_partition" TEXT NOT NULL, "_sync_row_id" TEXT NOT NULL,
  "id" TEXT NOT NULL, "list_id" TEXT NOT NULL, "title" TEXT NOT NULL, "done" BOOLEAN NOT NULL,
  "position" BIGINT, "notes" TEXT,
  "_sync_server_version" BIGINT NOT NULL, "_sync_scopes" JSONB NOT NULL, "_sync_payload" BYTEA NOT NULL,
  "_sync_column_versions" BYTEA, PRIMARY KEY("_sync_partition", "_sync_row_id"));
CREATE INDEX IF NOT EXISTS "sync_ix_todos_by_list" ON "todos"("_sync_partition", "list_id");

-- Its fence has a function of its own; the trigger is made anew at each of its starts.
CREATE OR REPLACE FUNCTION syncular_writer_fence() RETURNS trigger LANGUAGE plpgsql AS $fence$
BEGIN
  IF EXISTS (SELECT 1 FROM sync_writer_fence WHERE partition = NEW.partition
      AND (NEW.writer_version IS NULL OR NEW.writer_version < required_writer_version)) THEN
    RAISE EXCEPTION 'sync.storage.writer_fence_rejected';
  END IF;
  RETURN NEW;
END $fence$;
DROP TRIGGER IF EXISTS sync_commits_writer_fence ON sync_commits;
CREATE TRIGGER sync_commits_writer_fence BEFORE INSERT ON sync_commits
  FOR EACH ROW EXECUTE FUNCTION syncular_writer_fence();

//! The `sync_*` tables, the commit gate, the writer fence and Tidegate's own
//! bookkeeping tables. Names and columns of `sync_*` are an interface shared
//! with the reference server.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::failure::during;
use crate::error::StoreError;

/// Row ids sort by bytes (`COLLATE "C"`), whatever the database's locale: pages
/// of rows do, and so must the index that serves them.
const TABLES: &str = r#"
CREATE TABLE IF NOT EXISTS sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK(id=1), schema_version BIGINT NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq BIGINT NOT NULL DEFAULT 0, horizon_seq BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sync_partition_registry(
  partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL,
  epoch_required BOOLEAN NOT NULL DEFAULT FALSE, last_authenticated_at_ms BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS sync_row_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
  value TEXT NOT NULL, row_id TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, row_id)
);
CREATE INDEX IF NOT EXISTS sync_row_scopes_by_row ON sync_row_scopes(partition, tbl, row_id);
CREATE TABLE IF NOT EXISTS sync_commits(
  partition TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL, writer_version BIGINT,
  PRIMARY KEY(partition, commit_seq)
);
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(
  partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op SMALLINT NOT NULL,
  row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA,
  PRIMARY KEY(partition, commit_seq, idx)
);
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_change_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
  value TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, commit_seq)
);
CREATE TABLE IF NOT EXISTS sync_push_results(
  partition TEXT NOT NULL, client_id TEXT NOT NULL,
  client_commit_id TEXT NOT NULL, result JSONB NOT NULL,
  PRIMARY KEY(partition, client_id, client_commit_id)
);
CREATE TABLE IF NOT EXISTS sync_reactions(
  partition TEXT NOT NULL, idempotency_key TEXT NOT NULL,
  type TEXT NOT NULL, version INTEGER NOT NULL, payload JSONB NOT NULL,
  source_client_id TEXT NOT NULL, source_client_commit_id TEXT NOT NULL,
  source_commit_seq BIGINT NOT NULL, created_at_ms BIGINT NOT NULL,
  available_at_ms BIGINT NOT NULL, status TEXT NOT NULL,
  attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  lease_owner TEXT, lease_expires_at_ms BIGINT, completed_at_ms BIGINT, last_failure JSONB,
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
  wire_version INTEGER NOT NULL DEFAULT 1, cursor BIGINT NOT NULL,
  subscriptions JSONB NOT NULL, updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, client_id)
);
CREATE TABLE IF NOT EXISTS sync_blob_refs(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id, blob_id)
);
CREATE INDEX IF NOT EXISTS sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE IF NOT EXISTS sync_tombstones(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id)
);
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(
  partition TEXT NOT NULL, name TEXT NOT NULL, schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('declared','backfilling','activated')),
  watermark BIGINT NOT NULL DEFAULT 0, owner_epoch BIGINT NOT NULL DEFAULT 0,
  observed_rows BIGINT NOT NULL DEFAULT 0, updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, name)
);
CREATE INDEX IF NOT EXISTS tidegate_checkpoints_pending
  ON sync_backfill_checkpoints(schema_version) WHERE state <> 'activated';
CREATE TABLE IF NOT EXISTS sync_writer_fence(
  partition TEXT PRIMARY KEY, required_writer_version INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS tidegate_layouts(
  schema_version INTEGER NOT NULL, partition TEXT NOT NULL, head_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, schema_version)
);
CREATE TABLE IF NOT EXISTS tidegate_backfills(
  partition TEXT NOT NULL, name TEXT NOT NULL, paused BOOLEAN NOT NULL, workers INTEGER NOT NULL,
  pace JSONB, last_error TEXT, updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, name)
);
CREATE TABLE IF NOT EXISTS tidegate_grants(
  partition TEXT NOT NULL, actor_id TEXT NOT NULL,
  scopes TEXT NOT NULL, updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, actor_id)
);
"#;

/// Columns that databases of older programs lack.
const LATER_COLUMNS: [(&str, &str, &str); 2] = [
    ("sync_commits", "writer_version", "BIGINT"),
    ("sync_clients", "wire_version", "INTEGER NOT NULL DEFAULT 1"),
];

/// What the fence trigger raises.
pub(super) const FENCE_MESSAGE: &str = "sync.storage.writer_fence_rejected";

/// Refusals of the commit gate, each with an SQLSTATE of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    OutsideTransaction,
    SequenceMoved,
    SchemaChanged,
    CheckpointPending,
    Fenced,
    Superseded,
    Unfounded,
}

impl Refusal {
    pub(super) fn of(code: &SqlState) -> Option<Self> {
        Some(match code.code() {
            "TG000" => Self::OutsideTransaction,
            "TG001" => Self::SequenceMoved,
            "TG002" => Self::SchemaChanged,
            "TG003" => Self::CheckpointPending,
            "TG004" => Self::Fenced,
            "TG005" => Self::Superseded,
            "TG006" => Self::Unfounded,
            _ => return None,
        })
    }
}

/// Opens a transaction in which the gate may be called. One simple query: if
/// BEGIN fails, the setting is not made and the gate refuses.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL tidegate.tx = '1'";

/// Calls the gate: partitions (sorted), expected heads and commits as arrays,
/// running version, declared checkpoints as two arrays.
pub(super) const CALL_GATE: &str = "SELECT tidegate_commit_gate($1::text[], $2::bigint[], $3::bigint[], $4::bigint, $5::text[], $6::text[], NULL, NULL, false)";

/// The same as a part of the statement that is the whole transaction, with the mark that
/// the batch before must have left on this session, if the batch was sent before that one
/// was known to be durable, and the mark that this one leaves. A row for each partition, in
/// order, with its horizon and log epoch; then one with the incomplete checkpoints of the
/// running version as JSON, if there are any.
pub(super) const GATE: &str = "SELECT * FROM tidegate_commit_gate($1::text[], $2::bigint[], $3::bigint[], $4::bigint, $5::text[], $6::text[], $7::text, $8::text, true)";

const GATE_DECLARATION: &str = "tidegate_commit_gate(in_partitions text[], in_expected bigint[], in_counts bigint[], \
 in_version bigint, in_declared_partitions text[], in_declared_names text[], in_after text, in_mark text, in_whole boolean)";
const GATE_SIGNATURE: &str =
    "tidegate_commit_gate(text[], bigint[], bigint[], bigint, text[], text[], text, text, boolean)";

/// The commit gate (docs/postgres.md). The CAS of every partition comes first: it
/// waits for the partition's row and the table, and each statement after it sees
/// what was committed while it waited. As subqueries of the CAS they would not. It belongs
/// to a transaction that BEGIN has opened, unless the statement that calls it is the whole
/// one. Several partitions are all in the log already: the first commit of one travels
/// alone. A lock that somebody else holds on one of them is not waited for long.
///
/// A batch that was sent right behind the one it was decided on top of proves first that
/// this one committed: its mark is on the session, where a transaction's own end puts it or
/// takes it back. The head alone would not do, as somebody else's commit can have the
/// number of a commit that failed.
const GATE_BODY: &str = r"
DECLARE
  found_version bigint;
  found_partition text;
  found_name text;
  found_pending text;
  found_horizons bigint[];
BEGIN
  IF (NOT in_whole AND current_setting('tidegate.tx', true) IS DISTINCT FROM '1')
     OR current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'the commit gate was called outside its transaction' USING ERRCODE = 'TG000';
  END IF;
  IF in_mark IS NOT NULL THEN
    IF in_after IS NOT NULL AND in_after IS DISTINCT FROM current_setting('tidegate.mark', true) THEN
      RAISE EXCEPTION 'the batch before did not commit' USING ERRCODE = 'TG006';
    END IF;
    PERFORM set_config('tidegate.mark', in_mark, false);
  END IF;
  IF array_length(in_partitions, 1) = 1 THEN
    UPDATE sync_partitions AS p SET max_commit_seq = p.max_commit_seq + in_counts[1]
      WHERE p.partition = in_partitions[1] AND p.max_commit_seq = in_expected[1]
      RETURNING p.horizon_seq INTO out_horizon;
    IF NOT FOUND THEN
      IF in_expected[1] <> 0 THEN
        RAISE EXCEPTION 'the partition moved on' USING ERRCODE = 'TG001';
      END IF;
      INSERT INTO sync_partitions(partition, max_commit_seq) VALUES (in_partitions[1], in_counts[1])
        ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'the partition moved on' USING ERRCODE = 'TG001';
      END IF;
      out_horizon := 0;
    END IF;
  ELSE
    PERFORM set_config('lock_timeout', '20ms', true);
    WITH moved AS (
      UPDATE sync_partitions AS p SET max_commit_seq = p.max_commit_seq + u.commits
        FROM unnest(in_partitions, in_expected, in_counts) WITH ORDINALITY AS u(partition, expected, commits, position)
        WHERE p.partition = u.partition AND p.max_commit_seq = u.expected
        RETURNING u.position, p.horizon_seq)
    SELECT array_agg(moved.horizon_seq ORDER BY moved.position) INTO found_horizons FROM moved;
    IF array_length(found_horizons, 1) IS DISTINCT FROM array_length(in_partitions, 1) THEN
      RAISE EXCEPTION 'a partition moved on' USING ERRCODE = 'TG001';
    END IF;
  END IF;
  SELECT m.schema_version,
      (SELECT json_agg(json_build_array(c.partition, c.name))::text
         FROM sync_backfill_checkpoints AS c
         WHERE c.schema_version = in_version AND c.state <> 'activated'),
      (SELECT r.log_epoch FROM sync_partition_registry AS r WHERE r.partition = in_partitions[1])
    INTO found_version, found_pending, out_epoch
    FROM sync_schema_meta AS m WHERE m.id = 1;
  IF found_version IS DISTINCT FROM in_version THEN
    RAISE EXCEPTION 'another schema version is published'
      USING ERRCODE = 'TG002', DETAIL = coalesce(found_version, 0)::text;
  END IF;
  IF found_horizons IS NULL THEN
    RETURN NEXT;
  ELSE
    RETURN QUERY SELECT u.horizon, r.log_epoch, NULL::text
      FROM unnest(in_partitions, found_horizons) WITH ORDINALITY AS u(partition, horizon, position)
      LEFT JOIN sync_partition_registry AS r ON r.partition = u.partition ORDER BY u.position;
  END IF;
  IF found_pending IS NOT NULL THEN
    SELECT c.value ->> 0, c.value ->> 1 INTO found_partition, found_name
      FROM json_array_elements(found_pending::json) AS c
      WHERE NOT EXISTS (
        SELECT 1 FROM unnest(in_declared_partitions, in_declared_names) AS d(partition, name)
        WHERE d.partition = c.value ->> 0 AND d.name = c.value ->> 1)
      LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION 'a checkpoint is pending'
        USING ERRCODE = 'TG003', DETAIL = json_build_array(found_partition, found_name)::text;
    END IF;
    out_horizon := NULL;
    out_epoch := NULL;
    out_pending := found_pending;
    RETURN NEXT;
  END IF;
  IF 0 = ANY (in_counts) THEN
    IF EXISTS (
        SELECT 1 FROM unnest(in_partitions, in_counts) AS u(partition, commits)
        JOIN sync_writer_fence AS f ON f.partition = u.partition
        WHERE u.commits = 0 AND f.required_writer_version > in_version) THEN
      RAISE EXCEPTION 'the writer fence refused' USING ERRCODE = 'TG004';
    END IF;
  END IF;
END";

/// Calls the advance of a backfill page: partition, name, owner's epoch, watermark,
/// rows observed, now.
pub(super) const CALL_ADVANCE: &str = "SELECT tidegate_advance_checkpoint($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint)";

const ADVANCE_DECLARATION: &str = "tidegate_advance_checkpoint(in_partition text, in_name text, in_epoch bigint, \
 in_watermark bigint, in_observed bigint, in_now bigint)";
const ADVANCE_SIGNATURE: &str =
    "tidegate_advance_checkpoint(text, text, bigint, bigint, bigint, bigint)";

/// Advances a checkpoint in its page's transaction (docs/migrations.md rule 5). A
/// superseded owner is an error here: nothing of its batch may commit.
const ADVANCE_BODY: &str = r"
BEGIN
  IF current_setting('tidegate.tx', true) IS DISTINCT FROM '1' THEN
    RAISE EXCEPTION 'a page was advanced outside its transaction' USING ERRCODE = 'TG000';
  END IF;
  UPDATE sync_backfill_checkpoints AS c
    SET watermark = in_watermark, observed_rows = in_observed, updated_at_ms = in_now
    WHERE c.partition = in_partition AND c.name = in_name
      AND c.state = 'backfilling' AND c.owner_epoch = in_epoch;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the owner of the checkpoint was superseded' USING ERRCODE = 'TG005';
  END IF;
END";

const FENCE_SIGNATURE: &str = "tidegate_writer_fence()";

/// Refuses a commit row of a writer older than the partition's fence
/// (docs/migrations.md rule 3), whichever program inserts it.
const FENCE_BODY: &str = r"
BEGIN
  IF EXISTS (
      SELECT 1 FROM sync_writer_fence AS f
      WHERE f.partition = NEW.partition
        AND (NEW.writer_version IS NULL OR NEW.writer_version < f.required_writer_version)) THEN
    RAISE EXCEPTION 'sync.storage.writer_fence_rejected';
  END IF;
  RETURN NEW;
END";

/// The barrier: writers inside finish first, writers outside wait. Nothing may
/// precede it in a migration's transaction.
pub(super) const BARRIER: &str = "LOCK TABLE sync_partitions IN EXCLUSIVE MODE";

/// Processes that start together take turns: `CREATE … IF NOT EXISTS` alone races.
const START_LOCK: &str = "SELECT pg_advisory_xact_lock(7021786320215110241)";

/// Applies the core schema idempotently, in a transaction of its own. Functions
/// and trigger are replaced in that transaction, and only when they differ:
/// there is no moment without a fence.
///
/// A database that lacks nothing is not touched: `CREATE INDEX IF NOT EXISTS`
/// would lock its table against the writers of other processes. Where something
/// is missing the barrier comes first, as writers take their locks in another order.
pub(super) async fn apply(client: &Client) -> Result<(), StoreError> {
    if missing(client).await?.is_empty() {
        return Ok(());
    }
    let run = async |sql: &str| client.batch_execute(sql).await.map_err(during(CONTEXT));
    run("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    run(START_LOCK).await?;
    if holds(client, "SELECT to_regclass('sync_partitions') IS NOT NULL").await? {
        run(BARRIER).await?;
    }
    for statement in missing(client).await? {
        run(&statement).await?;
    }
    run("COMMIT").await
}

const CONTEXT: &str = "preparing the core tables";

async fn holds(client: &Client, sql: &str) -> Result<bool, StoreError> {
    client
        .query_one(sql, &[])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(during(CONTEXT))
}

/// The statements that bring this database to the core schema, in order.
pub(super) async fn missing(client: &Client) -> Result<Vec<String>, StoreError> {
    let mut statements = Vec::new();
    for statement in TABLES.split(';').map(str::trim) {
        let Some(name) = created(statement) else {
            continue;
        };
        if holds(client, &format!("SELECT to_regclass('{name}') IS NULL")).await? {
            statements.push(statement.to_owned());
        }
    }
    for (table, column, definition) in LATER_COLUMNS {
        let lacks = format!(
            "SELECT to_regclass('{table}') IS NOT NULL AND NOT EXISTS (
               SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('{table}')
               AND attname = '{column}' AND NOT attisdropped)"
        );
        if holds(client, &lacks).await? {
            statements.push(format!(
                "ALTER TABLE {table} ADD COLUMN {column} {definition}"
            ));
        }
    }
    // A table of another program sorts row ids by the database's locale.
    let by_locale = "SELECT to_regclass('tidegate_row_scopes_by_bytes') IS NULL AND EXISTS (
        SELECT 1 FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
        WHERE a.attrelid = to_regclass('sync_row_scopes') AND a.attname = 'row_id' AND c.collname <> 'C')";
    if holds(client, by_locale).await? {
        statements.push(
            "CREATE INDEX tidegate_row_scopes_by_bytes
             ON sync_row_scopes(partition, tbl, var, value, row_id COLLATE \"C\")"
                .to_owned(),
        );
    }
    for (signature, named, returns, body) in [
        (
            GATE_SIGNATURE,
            GATE_DECLARATION,
            "TABLE(out_horizon bigint, out_epoch text, out_pending text)",
            GATE_BODY,
        ),
        (ADVANCE_SIGNATURE, ADVANCE_DECLARATION, "void", ADVANCE_BODY),
        (FENCE_SIGNATURE, FENCE_SIGNATURE, "trigger", FENCE_BODY),
    ] {
        let known = client
            .query_one(
                "SELECT EXISTS (SELECT 1 FROM pg_proc WHERE oid = to_regprocedure($1)
                   AND prosrc = $2 AND provolatile = 'v')",
                &[&signature, &body],
            )
            .await
            .and_then(|row| row.try_get::<_, bool>(0))
            .map_err(during(CONTEXT))?;
        if !known {
            statements.push(format!(
                "CREATE OR REPLACE FUNCTION {named} RETURNS {returns} LANGUAGE plpgsql VOLATILE AS $body${body}$body$"
            ));
        }
    }
    // BEFORE INSERT FOR EACH ROW is type 7; 'O' and 'A' are enabled.
    let unfenced = format!(
        "SELECT NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = to_regclass('sync_commits')
           AND tgname = 'sync_commits_writer_fence' AND tgtype = 7 AND tgenabled IN ('O', 'A')
           AND tgqual IS NULL AND tgfoid = to_regprocedure('{FENCE_SIGNATURE}'))"
    );
    if holds(client, &unfenced).await? {
        statements.push(
            "DROP TRIGGER IF EXISTS sync_commits_writer_fence ON sync_commits;
             CREATE TRIGGER sync_commits_writer_fence BEFORE INSERT ON sync_commits
               FOR EACH ROW EXECUTE FUNCTION tidegate_writer_fence()"
                .to_owned(),
        );
    }
    Ok(statements)
}

/// The names of the core tables.
pub(super) fn tables() -> Vec<&'static str> {
    let statements = TABLES.split(';').map(str::trim);
    let tables = statements.filter(|statement| statement.starts_with("CREATE TABLE"));
    tables.filter_map(created).collect()
}

/// The name of what a `CREATE … IF NOT EXISTS` creates.
fn created(statement: &str) -> Option<&str> {
    let (_, rest) = statement.split_once("IF NOT EXISTS ")?;
    rest.split([' ', '(', '\n']).next()
}

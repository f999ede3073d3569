//! The yardstick: what the backfill does, as one statement of SQL by somebody who knows
//! every byte beforehand. It leaves the same rows behind, which the suite compares.
//!
//! To its own advantage it reads, computes and writes inside the database, asks nobody
//! whether a row has changed, and lets everybody else wait until it is done.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::PARTITION;
use super::seed::{connect, now_ms};
use super::setup;
use crate::runner::LoadError;

/// A backfill to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projection {
    /// `todos.title_key`
    Column,
    /// `cards`
    Table,
}

/// Text as the row codec has it: its length in four bytes, the low one first; texts here
/// are shorter than 256 bytes.
const ENCODED: &str =
    "(decode(lpad(to_hex(octet_length(%)), 2, '0') || '000000', 'hex') || convert_to(%, 'UTF8'))";

fn encoded(expression: &str) -> String {
    ENCODED.replace('%', expression)
}

impl Projection {
    /// Name of the checkpoint.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Column => "title-key",
            Self::Table => "cards",
        }
    }

    /// Name in reports.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Column => "computed column",
            Self::Table => "computed table",
        }
    }

    /// The declaration.
    pub fn toml(self) -> &'static str {
        match self {
            Self::Column => {
                "name = \"title-key\"\nschema_version = 2\nsources = [\"todos\"]\ntarget = \"todos\"\n\
                 serve_while_backfilling = true\n[columns]\ntitle_key = \"row.title.trim().lowerAscii()\"\n"
            }
            Self::Table => {
                "name = \"cards\"\nschema_version = 2\nsources = [\"todos\"]\ntarget = \"cards\"\nkey = \"row.id\"\n\
                 serve_while_backfilling = true\n[columns]\nlist_id = \"row.list_id\"\nheadline = \"row.title.trim()\"\n"
            }
        }
    }

    /// The table that it fills.
    const fn target(self) -> &'static str {
        match self {
            Self::Column => "todos",
            Self::Table => "cards",
        }
    }

    /// Writes the target's rows of `page(id, list_id, value)`.
    fn put(self) -> String {
        match self {
            // The computed column is the last of seven, which alone is at version 2.
            Self::Column => format!(
                "UPDATE todos AS t SET title_key = page.value, _sync_server_version = t._sync_server_version + 1,
                   _sync_payload = set_byte(t._sync_payload, 0, get_byte(t._sync_payload, 0) & 191) || {},
                   _sync_column_versions = '\\x0602'
                 FROM page WHERE t._sync_partition = '{PARTITION}' AND t._sync_row_id = page.id",
                encoded("page.value")
            ),
            Self::Table => format!(
                "INSERT INTO cards AS t(_sync_partition, _sync_row_id, id, list_id, headline, _sync_server_version, _sync_scopes, _sync_payload)
                 SELECT '{PARTITION}', page.id, page.id, page.list_id, page.value, 1, jsonb_build_object('list_id', page.list_id),
                   '\\x00'::bytea || {} || {} || {} FROM page",
                encoded("page.id"),
                encoded("page.list_id"),
                encoded("page.value")
            ),
        }
    }

    fn page(self, page_rows: u32) -> String {
        let value = match self {
            Self::Column => "lower(btrim(title))",
            Self::Table => "btrim(title)",
        };
        format!(
            "SELECT _sync_row_id AS id, list_id, {value} AS value,
               (row_number() OVER (ORDER BY _sync_row_id) - 1) / {page_rows} AS page,
               ((row_number() OVER (ORDER BY _sync_row_id) - 1) % {page_rows})::int AS idx
             FROM todos WHERE _sync_partition = '{PARTITION}'"
        )
    }

    /// The app table alone.
    fn bare(self) -> String {
        format!("WITH page AS ({}) {}", self.page(1), self.put())
    }

    /// Rows, log and indexes, as pages of the backfill leave them.
    fn whole(self, head: i64, page_rows: u32) -> String {
        let target = self.target();
        let (page, put) = (self.page(page_rows), self.put());
        let row_scopes = match self {
            // They are there already.
            Self::Column => String::new(),
            Self::Table => format!(
                ", row_scopes AS (INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
                   SELECT '{PARTITION}', 'cards', 'list_id', list_id, id FROM put ORDER BY list_id, id)"
            ),
        };
        let now = now_ms();
        format!(
            "WITH page AS MATERIALIZED ({page}),
             written AS ({put} RETURNING t._sync_row_id AS id, t.list_id, t._sync_server_version AS version, t._sync_scopes AS scopes, t._sync_payload AS payload),
             put AS (SELECT written.*, {head} + 1 + page.page AS seq, page.idx FROM written JOIN page ON page.id = written.id),
             changes AS (INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
               SELECT '{PARTITION}', seq, idx, '{target}', id, 1, version, scopes, payload FROM put ORDER BY seq, idx),
             scopes AS (INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
               SELECT DISTINCT '{PARTITION}', '{target}', 'list_id', list_id, seq FROM put),
             results AS (INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
               SELECT DISTINCT '{PARTITION}', 'rewrite', 'page ' || page, jsonb_build_object('status', 'applied', 'commitSeq', {head} + 1 + page) FROM page){row_scopes}
             INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
               SELECT DISTINCT '{PARTITION}', {head} + 1 + page, 'rewrite', 'page ' || page, 'rewrite', {now}::bigint, 2 FROM page"
        )
    }
}

/// Rewrites the app table alone.
pub(super) async fn bare(url: &str, projection: Projection) -> Result<Duration, LoadError> {
    let client = connect(url).await?;
    let began = Instant::now();
    client
        .batch_execute(&projection.bare())
        .await
        .map_err(words)?;
    Ok(began.elapsed())
}

/// Rewrites everything that the backfill writes, in one transaction.
pub(super) async fn whole(
    url: &str,
    projection: Projection,
    page_rows: u32,
) -> Result<Duration, LoadError> {
    let client = connect(url).await?;
    let head = head(&client).await?;
    let began = Instant::now();
    client
        .batch_execute(&format!(
            "BEGIN; {}; UPDATE sync_partitions SET max_commit_seq = (SELECT max(commit_seq) FROM sync_commits
               WHERE partition = '{PARTITION}') WHERE partition = '{PARTITION}'; COMMIT",
            projection.whole(head, page_rows)
        ))
        .await
        .map_err(words)?;
    Ok(began.elapsed())
}

/// A fingerprint of the target's rows, their log above `head` and their scope entries:
/// equal for every way to compute them. Which commit a change is in is left out.
pub(super) async fn fingerprint(
    url: &str,
    projection: Projection,
    head: i64,
) -> Result<String, LoadError> {
    let client = connect(url).await?;
    let target = projection.target();
    let row = client
        .query_one(
            &format!(
                "SELECT concat_ws(' ',
                   (SELECT count(*) || ' ' || md5(string_agg(md5(concat_ws('|', _sync_row_id, _sync_server_version, _sync_scopes::text,
                      _sync_payload::text, coalesce(_sync_column_versions::text, '-'))), '' ORDER BY _sync_row_id)) FROM {target} WHERE _sync_partition = '{PARTITION}'),
                   (SELECT count(*) || ' ' || md5(string_agg(md5(concat_ws('|', row_id, op, row_version, scopes::text, payload::text)), '' ORDER BY row_id))
                      FROM sync_changes WHERE partition = '{PARTITION}' AND tbl = '{target}' AND commit_seq > {head}),
                   (SELECT count(*) FROM sync_row_scopes WHERE partition = '{PARTITION}' AND tbl = '{target}'),
                   (SELECT count(DISTINCT (var, value)) FROM sync_change_scopes WHERE partition = '{PARTITION}' AND tbl = '{target}' AND commit_seq > {head}))"
            ),
            &[],
        )
        .await
        .map_err(words)?;
    row.try_get(0).map_err(setup)
}

/// The newest commit.
pub(super) async fn head(client: &Client) -> Result<i64, LoadError> {
    let row = client
        .query_one(
            "SELECT max_commit_seq FROM sync_partitions WHERE partition = $1",
            &[&PARTITION],
        )
        .await
        .map_err(words)?;
    row.try_get(0).map_err(setup)
}

/// The server's own words: the operator of the suite owns the database.
fn words(error: tokio_postgres::Error) -> LoadError {
    setup(
        error
            .as_db_error()
            .map_or_else(|| error.to_string(), ToString::to_string),
    )
}

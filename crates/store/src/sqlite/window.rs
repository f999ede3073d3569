//! The data of a pull: windows of the log and pages of current rows (§4.5, §4.7).

use bytes::Bytes;
use rusqlite::{Connection, Row, Statement, params};
use tidegate_engine::model::{LoggedChange, LoggedCommit, RowKey};
use tidegate_engine::scopes;
use tidegate_engine::{ActorId, ClientId, CommitSeq};

use super::failure::during;
use super::merge::{Matches, RunPart, Runs};
use super::plan::Plan;
use super::read;
use crate::error::StoreError;
use crate::stored::decode_scopes;
use crate::{RowPage, ScanQuery, Window, WindowQuery};

const CONTEXT: &str = "reading a window of the log";

/// Commits that hold a change with one scope value.
pub(super) const COMMIT_RUN: &str = "SELECT commit_seq FROM sync_change_scopes
 WHERE partition=?1 AND tbl=?2 AND var=?3 AND value=?4 AND commit_seq>=?5 AND commit_seq<=?6
 ORDER BY commit_seq LIMIT ?7";
/// Rows with one scope value.
pub(super) const ROW_RUN: &str = "SELECT row_id FROM sync_row_scopes
 WHERE partition=?1 AND tbl=?2 AND var=?3 AND value=?4 AND row_id>=?5 ORDER BY row_id LIMIT ?6";
pub(super) const COMMIT: &str = "SELECT client_id, client_commit_id, actor_id, created_at_ms
 FROM sync_commits WHERE partition=?1 AND commit_seq=?2";
pub(super) const CHANGES: &str = "SELECT row_id, op, row_version, scopes, payload FROM sync_changes
 WHERE partition=?1 AND commit_seq=?2 AND tbl=?3 ORDER BY idx";

/// Row ids that a run buffers at most, bytes, and one more.
const RUN_BYTES: usize = 64 * 1024;

struct CommitRuns<'a> {
    connection: &'a Connection,
    partition: &'a str,
    table: &'a str,
    through: i64,
}

impl Runs<i64> for CommitRuns<'_> {
    fn fetch(
        &self,
        variable: &str,
        value: &str,
        from: &i64,
        limit: usize,
    ) -> Result<RunPart<i64>, StoreError> {
        let read = || {
            let mut statement = self.connection.prepare_cached(COMMIT_RUN)?;
            let wanted = i64::try_from(limit).unwrap_or(i64::MAX);
            let positions: Vec<i64> = statement
                .query_map(
                    params![
                        self.partition,
                        self.table,
                        variable,
                        value,
                        from,
                        self.through,
                        wanted
                    ],
                    |row| row.get(0),
                )?
                .collect::<rusqlite::Result<_>>()?;
            Ok(RunPart {
                ended: positions.len() < limit,
                positions,
            })
        };
        read().map_err(during(CONTEXT))
    }
}

struct RowRuns<'a> {
    connection: &'a Connection,
    partition: &'a str,
    table: &'a str,
}

impl Runs<String> for RowRuns<'_> {
    fn fetch(
        &self,
        variable: &str,
        value: &str,
        from: &String,
        limit: usize,
    ) -> Result<RunPart<String>, StoreError> {
        let read = || {
            let mut statement = self.connection.prepare_cached(ROW_RUN)?;
            let wanted = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![
                self.partition,
                self.table,
                variable,
                value,
                from,
                wanted
            ])?;
            let (mut positions, mut bytes) = (Vec::new(), 0);
            // Row ids have any length: a buffer of them is bounded by bytes as well.
            while bytes < RUN_BYTES {
                let Some(row) = rows.next()? else {
                    let ended = positions.len() < limit;
                    return Ok(RunPart { positions, ended });
                };
                let row_id: String = row.get(0)?;
                bytes += row_id.len();
                positions.push(row_id);
            }
            Ok(RunPart {
                positions,
                ended: false,
            })
        };
        read().map_err(during("reading a page of rows"))
    }
}

/// The matching part of `(after, through]`, whole commits only.
pub(super) fn read_window(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    query: &WindowQuery,
) -> Result<Window, StoreError> {
    let mut window = Window {
        commits: Vec::new(),
        scanned_through: query.through,
    };
    if query.after >= query.through {
        return Ok(window);
    }
    let (table, _) = plan.table(query.table);
    let runs = CommitRuns {
        connection,
        partition,
        table: &table.name,
        through: query.through.0,
    };
    let wanted = query.max_changes.saturating_add(1);
    let mut matches = Matches::new(&query.scopes, query.after.0 + 1, wanted);
    let mut changes = connection
        .prepare_cached(CHANGES)
        .map_err(during(CONTEXT))?;
    let mut room = Room {
        changes: usize::MAX,
        bytes: usize::MAX,
    };
    let (mut total, mut bytes) = (0_usize, 0_usize);
    while let Some(seq) = matches.next(&runs)? {
        let matching = matching_changes(
            &mut changes,
            params![partition, seq, table.name],
            query,
            &room,
        )?;
        let Some(matching) = matching else {
            // This commit does not fit: the window ends with the one before it.
            if let Some(last) = window.commits.last() {
                window.scanned_through = last.seq;
            }
            break;
        };
        if matching.is_empty() {
            continue;
        }
        total += matching.len();
        bytes += matching.iter().map(LoggedChange::bytes).sum::<usize>();
        // Only the first one fits whatever its size.
        room = Room {
            changes: query.max_changes.saturating_sub(total),
            bytes: query.max_bytes.saturating_sub(bytes),
        };
        let commit = commit(connection, partition, CommitSeq(seq), matching)?;
        window.commits.push(commit);
    }
    Ok(window)
}

/// What a window can still take.
struct Room {
    changes: usize,
    bytes: usize,
}

/// The changes of a commit that match, or `None` when there is no room for them.
fn matching_changes(
    statement: &mut Statement<'_>,
    parameters: impl rusqlite::Params,
    query: &WindowQuery,
    room: &Room,
) -> Result<Option<Vec<LoggedChange>>, StoreError> {
    let mut rows = statement.query(parameters).map_err(during(CONTEXT))?;
    let (mut matching, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = rows.next().map_err(during(CONTEXT))? {
        let text = row
            .get_ref(3)
            .and_then(|value| Ok(value.as_str()?))
            .map_err(during(CONTEXT))?;
        let stored = decode_scopes(text)?;
        if !scopes::matches(&query.scopes, &stored) {
            continue;
        }
        if matching.len() == room.changes {
            return Ok(None);
        }
        let row_id: String = row.get(0).map_err(during(CONTEXT))?;
        let change = LoggedChange {
            key: RowKey {
                table: query.table,
                row_id: row_id.into(),
            },
            scopes: stored,
            upsert: upsert(row)?,
        };
        bytes += change.bytes();
        if bytes > room.bytes {
            return Ok(None);
        }
        matching.push(change);
    }
    Ok(Some(matching))
}

fn upsert(row: &Row<'_>) -> Result<Option<(i64, Bytes)>, StoreError> {
    let op: i64 = row.get(1).map_err(during(CONTEXT))?;
    if op == 2 {
        return Ok(None);
    }
    let corrupt = StoreError::Corrupt {
        what: "a change of the log",
    };
    let version: Option<i64> = row.get(2).map_err(during(CONTEXT))?;
    let payload = row
        .get_ref(4)
        .and_then(|value| Ok(value.as_blob_or_null()?))
        .map_err(during(CONTEXT))?;
    match (op, version, payload) {
        (1, Some(version), Some(payload)) => Ok(Some((version, Bytes::copy_from_slice(payload)))),
        _ => Err(corrupt),
    }
}

fn commit(
    connection: &Connection,
    partition: &str,
    seq: CommitSeq,
    changes: Vec<LoggedChange>,
) -> Result<LoggedCommit, StoreError> {
    connection
        .prepare_cached(COMMIT)
        .and_then(|mut statement| {
            statement.query_row(params![partition, seq.0], |row| {
                Ok(LoggedCommit {
                    seq,
                    client_id: ClientId::from(row.get::<_, String>(0)?),
                    client_commit_id: row.get::<_, String>(1)?.into(),
                    actor_id: ActorId::from(row.get::<_, String>(2)?),
                    created_at_ms: row.get(3)?,
                    changes,
                })
            })
        })
        .map_err(during(CONTEXT))
}

/// A page of rows in row id order.
pub(super) fn scan_rows(
    connection: &Connection,
    plan: &Plan,
    partition: &str,
    query: &ScanQuery,
) -> Result<RowPage, StoreError> {
    use super::merge::Position as _;
    let (table, _) = plan.table(query.table);
    let runs = RowRuns {
        connection,
        partition,
        table: &table.name,
    };
    let start = match &query.after_row_id {
        Some(row_id) => row_id.successor(),
        None => String::new(),
    };
    let mut matches = Matches::new(&query.scopes, start, query.limit.saturating_add(1));
    let (mut rows, mut bytes) = (Vec::with_capacity(query.limit.min(1024)), 0_usize);
    while let Some(row_id) = matches.next(&runs)? {
        if rows.len() == query.limit {
            return Ok(RowPage { rows, more: true });
        }
        let key = RowKey {
            table: query.table,
            row_id: row_id.as_str().into(),
        };
        let row = read::row(connection, plan, partition, &key)?.ok_or(StoreError::Corrupt {
            what: "the scope index: it names a row that is not stored",
        })?;
        bytes += row.bytes(&row_id);
        if !rows.is_empty() && bytes > query.max_bytes {
            return Ok(RowPage { rows, more: true });
        }
        rows.push((row_id, row));
    }
    Ok(RowPage { rows, more: false })
}

//! Registry, retention and the lists that maintenance walks.

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_engine::model::{ClientRecord, Registry};
use tidegate_engine::{CommitSeq, LogEpoch, PartitionId};

use super::failure::during;
use super::read::client_record;
use crate::error::StoreError;
use crate::{Pruned, Touch};

/// Creates the registry row, or refreshes a stale one.
pub(super) fn touch(
    connection: &Connection,
    partition: &str,
    touch: &Touch,
) -> Result<(), StoreError> {
    let new_epoch = (touch.new_epoch)()?;
    connection
        .prepare_cached(
            "INSERT INTO sync_partition_registry(partition, log_epoch, last_authenticated_at_ms)
             VALUES(?1,?2,?3)
             ON CONFLICT(partition) DO UPDATE SET last_authenticated_at_ms=excluded.last_authenticated_at_ms
             WHERE last_authenticated_at_ms < excluded.last_authenticated_at_ms - ?4",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                partition,
                new_epoch.as_str(),
                touch.now_ms,
                touch.refresh_after_ms
            ])
        })
        .map(|_| ())
        .map_err(during("registering a partition"))
}

/// A new epoch, required from now on; the client records of the old one go (§4.6).
pub(super) fn rotate_epoch(
    connection: &Connection,
    partition: &str,
    epoch: &LogEpoch,
    now_ms: i64,
) -> Result<Registry, StoreError> {
    let context = "rotating a log epoch";
    connection
        .execute(
            "INSERT INTO sync_partition_registry(partition, log_epoch, epoch_required, last_authenticated_at_ms)
             VALUES(?1,?2,1,?3)
             ON CONFLICT(partition) DO UPDATE SET log_epoch=excluded.log_epoch, epoch_required=1,
               last_authenticated_at_ms=excluded.last_authenticated_at_ms",
            params![partition, epoch.as_str(), now_ms],
        )
        .map_err(during(context))?;
    connection
        .execute("DELETE FROM sync_clients WHERE partition=?1", [partition])
        .map_err(during(context))?;
    Ok(Registry {
        log_epoch: epoch.clone(),
        epoch_required: true,
    })
}

/// Moves the horizon up to `through` and deletes what lies at or below it. Rows,
/// push results and reactions stay.
pub(super) fn prune(
    connection: &Connection,
    partition: &str,
    epoch: &LogEpoch,
    through: CommitSeq,
) -> Result<Pruned, StoreError> {
    let context = "pruning a log";
    let current: Option<String> = connection
        .query_row(
            "SELECT log_epoch FROM sync_partition_registry WHERE partition=?1",
            [partition],
            |row| row.get(0),
        )
        .optional()
        .map_err(during(context))?;
    match current {
        None => return Err(StoreError::UnknownPartition),
        Some(current) if current != epoch.as_str() => return Err(StoreError::EpochChanged),
        Some(_) => {}
    }
    let bounds: Option<(i64, i64)> = connection
        .query_row(
            "SELECT max_commit_seq, horizon_seq FROM sync_partitions WHERE partition=?1",
            [partition],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(during(context))?;
    let (max, previous) = bounds.unwrap_or((0, 0));
    // Nothing beyond the head was ever written, so nothing beyond it is pruned.
    let horizon = through.0.min(max);
    if horizon <= previous {
        return Ok(Pruned {
            previous: CommitSeq(previous),
            horizon: CommitSeq(previous),
            removed: 0,
        });
    }
    let run = |sql: &str| {
        connection
            .execute(sql, params![partition, horizon])
            .map_err(during(context))
    };
    run("UPDATE sync_partitions SET horizon_seq=?2 WHERE partition=?1")?;
    // The index entries are found through the changes they stand for: its own
    // key does not begin with the commit.
    run("DELETE FROM sync_change_scopes WHERE rowid IN (
           SELECT s.rowid FROM sync_changes AS c CROSS JOIN json_each(c.scopes) AS v
           CROSS JOIN sync_change_scopes AS s
             ON s.partition=c.partition AND s.tbl=c.tbl AND s.var=v.key AND s.value=v.value
             AND s.commit_seq=c.commit_seq
           WHERE c.partition=?1 AND c.commit_seq<=?2)")?;
    run("DELETE FROM sync_changes WHERE partition=?1 AND commit_seq<=?2")?;
    run("DELETE FROM sync_tombstones WHERE partition=?1 AND commit_seq<=?2")?;
    let removed = run("DELETE FROM sync_commits WHERE partition=?1 AND commit_seq<=?2")?;
    Ok(Pruned {
        previous: CommitSeq(previous),
        horizon: CommitSeq(horizon),
        removed: u64::try_from(removed).unwrap_or(u64::MAX),
    })
}

pub(super) const COMMIT_BEFORE: &str = "SELECT coalesce(max(commit_seq), 0) FROM sync_commits
 WHERE partition=?1 AND created_at_ms<?2";

/// Newest commit created strictly before `created_before_ms`.
pub(super) fn commit_before(
    connection: &Connection,
    partition: &str,
    created_before_ms: i64,
) -> Result<CommitSeq, StoreError> {
    connection
        .prepare_cached(COMMIT_BEFORE)
        .and_then(|mut statement| {
            statement.query_row(params![partition, created_before_ms], |row| row.get(0))
        })
        .map(CommitSeq)
        .map_err(during("finding a commit by time"))
}

/// All client records of a partition.
pub(super) fn list_clients(
    connection: &Connection,
    partition: &str,
) -> Result<Vec<ClientRecord>, StoreError> {
    connection
        .prepare_cached(
            "SELECT client_id, actor_id, wire_version, cursor, subscriptions, updated_at_ms
             FROM sync_clients WHERE partition=?1 ORDER BY client_id",
        )
        .and_then(|mut statement| {
            statement
                .query_map([partition], |row| client_record(row, 0))?
                .collect()
        })
        .map_err(during("listing clients"))
}

/// All registered partitions.
pub(super) fn list_partitions(connection: &Connection) -> Result<Vec<PartitionId>, StoreError> {
    connection
        .prepare_cached("SELECT partition FROM sync_partition_registry ORDER BY partition")
        .and_then(|mut statement| {
            statement
                .query_map([], |row| Ok(PartitionId::from(row.get::<_, String>(0)?)))?
                .collect()
        })
        .map_err(during("listing partitions"))
}

/// Writes the header of the database as it is. SQLite does not compare: the page
/// goes to the write-ahead log and to the disk like any other.
pub(super) fn probe_write(connection: &Connection) -> Result<(), StoreError> {
    let write = || {
        let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        connection.pragma_update(None, "user_version", version)
    };
    write().map_err(during("probing a write"))
}

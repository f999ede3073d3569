//! Partitions at a glance, and grants.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_engine::model::{LogBounds, Registry};
use tidegate_engine::{ActorId, CommitSeq, LogEpoch, PartitionId, SchemaVersion};

use super::failure::during;
use crate::error::StoreError;
use crate::operating::{Grant, PartitionSummary};
use crate::stored::{decode_scope_lists, encode_scope_lists};

/// Whatever names a partition, and what is known of it.
const SUMMARY: &str = "
 LEFT JOIN sync_partition_registry AS r ON r.partition=k.partition
 LEFT JOIN sync_partitions AS p ON p.partition=k.partition
 LEFT JOIN sync_writer_fence AS f ON f.partition=k.partition";
const COLUMNS: &str =
    "SELECT k.partition, r.log_epoch, r.epoch_required, r.last_authenticated_at_ms,
 coalesce(p.max_commit_seq, 0), coalesce(p.horizon_seq, 0), f.required_writer_version";

/// Partitions in byte order after `after`, at most `limit`.
pub(super) fn summarize(
    connection: &Connection,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<PartitionSummary>, StoreError> {
    let known: Vec<String> = [
        "sync_partitions",
        "sync_partition_registry",
        "sync_writer_fence",
    ]
    .iter()
    .map(|table| {
        // Each through its own key, so that a page costs a page.
        format!(
            "SELECT partition FROM (SELECT partition FROM {table}
                 WHERE partition>=?1 AND (?3 OR partition<>?1) ORDER BY partition LIMIT ?2)"
        )
    })
    .collect();
    let sql = format!(
        "{COLUMNS} FROM ({} ORDER BY 1 LIMIT ?2) AS k {SUMMARY} ORDER BY k.partition",
        known.join(" UNION ")
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    connection
        .prepare_cached(&sql)
        .and_then(|mut statement| {
            let start = params![after.unwrap_or_default(), limit, after.is_none()];
            statement.query_map(start, summary)?.collect()
        })
        .map_err(during("listing partitions"))
}

/// One partition.
pub(super) fn summarize_one(
    connection: &Connection,
    partition: &str,
) -> Result<Option<PartitionSummary>, StoreError> {
    let sql = format!(
        "{COLUMNS} FROM (SELECT ?1 AS partition) AS k {SUMMARY}
         WHERE r.partition IS NOT NULL OR p.partition IS NOT NULL OR f.partition IS NOT NULL"
    );
    connection
        .prepare_cached(&sql)
        .and_then(|mut statement| statement.query_row([partition], summary).optional())
        .map_err(during("reading a partition"))
}

fn summary(row: &Row<'_>) -> rusqlite::Result<PartitionSummary> {
    let epoch: Option<String> = row.get(1)?;
    let required: Option<bool> = row.get(2)?;
    let fence: Option<i32> = row.get(6)?;
    Ok(PartitionSummary {
        id: PartitionId::from(row.get::<_, String>(0)?),
        registry: epoch.map(|epoch| Registry {
            log_epoch: LogEpoch::from(epoch),
            epoch_required: required.unwrap_or(false),
        }),
        last_authenticated_at_ms: row.get(3)?,
        bounds: LogBounds {
            max: CommitSeq(row.get(4)?),
            horizon: CommitSeq(row.get(5)?),
        },
        fence: fence.map(SchemaVersion),
    })
}

/// An actor's grant.
pub(super) fn read_grant(
    connection: &Connection,
    partition: &str,
    actor: &ActorId,
) -> Result<Option<Grant>, StoreError> {
    let found: Option<(String, i64)> = connection
        .prepare_cached(
            "SELECT scopes, updated_at_ms FROM tidegate_grants WHERE partition=?1 AND actor_id=?2",
        )
        .and_then(|mut statement| {
            statement
                .query_row([partition, actor.as_str()], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()
        })
        .map_err(during("reading a grant"))?;
    found
        .map(|(scopes, updated_at_ms)| {
            Ok(Grant {
                actor: actor.clone(),
                scopes: decode_scope_lists(&scopes)?,
                updated_at_ms,
            })
        })
        .transpose()
}

/// Creates or replaces a grant.
pub(super) fn put_grant(
    connection: &Connection,
    partition: &str,
    grant: &Grant,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO tidegate_grants(partition, actor_id, scopes, updated_at_ms) VALUES(?1,?2,?3,?4)
             ON CONFLICT(partition, actor_id) DO UPDATE
               SET scopes=excluded.scopes, updated_at_ms=excluded.updated_at_ms",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                partition,
                grant.actor.as_str(),
                encode_scope_lists(&grant.scopes),
                grant.updated_at_ms
            ])
        })
        .map(|_| ())
        .map_err(during("writing a grant"))
}

/// Deletes a grant; whether there was one.
pub(super) fn delete_grant(
    connection: &Connection,
    partition: &str,
    actor: &ActorId,
) -> Result<bool, StoreError> {
    connection
        .prepare_cached("DELETE FROM tidegate_grants WHERE partition=?1 AND actor_id=?2")
        .and_then(|mut statement| statement.execute([partition, actor.as_str()]))
        .map(|deleted| deleted > 0)
        .map_err(during("deleting a grant"))
}

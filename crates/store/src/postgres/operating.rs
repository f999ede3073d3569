//! Partitions at a glance, and grants.

use tidegate_engine::model::{LogBounds, Registry};
use tidegate_engine::{ActorId, CommitSeq, LogEpoch, PartitionId};
use tokio_postgres::{Error, Row};

use super::accepted;
use super::connection::Session;
use super::failure::during;
use super::read::schema_version;
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
 coalesce(p.max_commit_seq, 0), coalesce(p.horizon_seq, 0), f.required_writer_version::bigint";

/// Partitions in byte order after `after`, at most `limit`.
pub(super) async fn summarize(
    session: &mut Session,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<PartitionSummary>, StoreError> {
    let context = "listing partitions";
    let after = after.map(accepted::bound);
    let known: Vec<String> = [
        "sync_partitions",
        "sync_partition_registry",
        "sync_writer_fence",
    ]
    .iter()
    .map(|table| {
        format!(
            "SELECT partition FROM {table}
                 WHERE $1::text IS NULL OR partition COLLATE \"C\" > $1"
        )
    })
    .collect();
    let sql = format!(
        "{COLUMNS} FROM (SELECT u.partition FROM ({}) AS u
           ORDER BY u.partition COLLATE \"C\" LIMIT $2::bigint) AS k {SUMMARY}
         ORDER BY k.partition COLLATE \"C\"",
        known.join(" UNION ")
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    session
        .query(&sql, &[&after, &limit])
        .await
        .and_then(|rows| rows.iter().map(summary).collect())
        .map_err(during(context))
}

/// One partition.
pub(super) async fn summarize_one(
    session: &mut Session,
    partition: &str,
) -> Result<Option<PartitionSummary>, StoreError> {
    if !accepted::text(partition) {
        return Ok(None);
    }
    let sql = format!(
        "{COLUMNS} FROM (SELECT $1::text AS partition) AS k {SUMMARY}
         WHERE r.partition IS NOT NULL OR p.partition IS NOT NULL OR f.partition IS NOT NULL"
    );
    session
        .query_opt(&sql, &[&partition])
        .await
        .and_then(|row| row.as_ref().map(summary).transpose())
        .map_err(during("reading a partition"))
}

fn summary(row: &Row) -> Result<PartitionSummary, Error> {
    let epoch: Option<&str> = row.try_get(1)?;
    let required: Option<bool> = row.try_get(2)?;
    let fence: Option<i64> = row.try_get(6)?;
    Ok(PartitionSummary {
        id: PartitionId::from(row.try_get::<_, &str>(0)?),
        registry: epoch.map(|epoch| Registry {
            log_epoch: LogEpoch::from(epoch),
            epoch_required: required.unwrap_or(false),
        }),
        last_authenticated_at_ms: row.try_get(3)?,
        bounds: LogBounds {
            max: CommitSeq(row.try_get(4)?),
            horizon: CommitSeq(row.try_get(5)?),
        },
        fence: fence.map(schema_version),
    })
}

/// An actor's grant.
pub(super) async fn read_grant(
    session: &mut Session,
    partition: &str,
    actor: &ActorId,
) -> Result<Option<Grant>, StoreError> {
    let context = "reading a grant";
    if !accepted::text(partition) || !accepted::text(actor.as_str()) {
        return Ok(None);
    }
    let found = session
        .query_opt(
            "SELECT scopes, updated_at_ms FROM tidegate_grants WHERE partition=$1 AND actor_id=$2",
            &[&partition, &actor.as_str()],
        )
        .await
        .map_err(during(context))?;
    found
        .map(|row| {
            Ok(Grant {
                actor: actor.clone(),
                scopes: decode_scope_lists(row.try_get(0).map_err(during(context))?)?,
                updated_at_ms: row.try_get(1).map_err(during(context))?,
            })
        })
        .transpose()
}

/// Creates or replaces a grant.
pub(super) async fn put_grant(
    session: &mut Session,
    partition: &str,
    grant: &Grant,
) -> Result<(), StoreError> {
    session
        .execute(
            "INSERT INTO tidegate_grants(partition, actor_id, scopes, updated_at_ms) VALUES($1,$2,$3,$4)
             ON CONFLICT(partition, actor_id) DO UPDATE
               SET scopes=excluded.scopes, updated_at_ms=excluded.updated_at_ms",
            &[
                &partition,
                &grant.actor.as_str(),
                &encode_scope_lists(&grant.scopes),
                &grant.updated_at_ms,
            ],
        )
        .await
        .map(|_| ())
        .map_err(during("writing a grant"))
}

/// Deletes a grant; whether there was one.
pub(super) async fn delete_grant(
    session: &mut Session,
    partition: &str,
    actor: &ActorId,
) -> Result<bool, StoreError> {
    if !accepted::text(partition) || !accepted::text(actor.as_str()) {
        return Ok(false);
    }
    session
        .execute(
            "DELETE FROM tidegate_grants WHERE partition=$1 AND actor_id=$2",
            &[&partition, &actor.as_str()],
        )
        .await
        .map(|deleted| deleted > 0)
        .map_err(during("deleting a grant"))
}

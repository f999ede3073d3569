//! Registry, retention and the lists that maintenance walks.

use tidegate_engine::model::{ClientRecord, Registry};
use tidegate_engine::{CommitSeq, LogEpoch, PartitionId};

use super::connection::Session;
use super::failure::during;
use super::read::client_record;
use crate::error::StoreError;
use crate::{Pruned, Touch};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Creates the registry row, or refreshes a stale one.
pub(super) async fn touch(
    session: &mut Session,
    partition: &str,
    touch: &Touch,
) -> Result<(), StoreError> {
    let new_epoch = (touch.new_epoch)()?;
    session
        .execute(
            "INSERT INTO sync_partition_registry AS r (partition, log_epoch, last_authenticated_at_ms)
             VALUES($1,$2,$3)
             ON CONFLICT(partition) DO UPDATE SET last_authenticated_at_ms=excluded.last_authenticated_at_ms
             WHERE r.last_authenticated_at_ms < excluded.last_authenticated_at_ms - $4::bigint",
            &[
                &partition,
                &new_epoch.as_str(),
                &touch.now_ms,
                &touch.refresh_after_ms,
            ],
        )
        .await
        .map(|_| ())
        .map_err(during("registering a partition"))
}

/// A new epoch, required from now on; the client records of the old one go (§4.6).
pub(super) async fn rotate_epoch(
    session: &mut Session,
    partition: &str,
    epoch: &LogEpoch,
    now_ms: i64,
) -> Result<Registry, StoreError> {
    let context = "rotating a log epoch";
    session.begin(BEGIN).await.map_err(during(context))?;
    let rotated = async {
        session
            .execute(
                "INSERT INTO sync_partition_registry(partition, log_epoch, epoch_required, last_authenticated_at_ms)
                 VALUES($1,$2,true,$3)
                 ON CONFLICT(partition) DO UPDATE SET log_epoch=excluded.log_epoch, epoch_required=true,
                   last_authenticated_at_ms=excluded.last_authenticated_at_ms",
                &[&partition, &epoch.as_str(), &now_ms],
            )
            .await?;
        session
            .execute("DELETE FROM sync_clients WHERE partition=$1", &[&partition])
            .await?;
        session.commit().await
    }
    .await;
    if let Err(error) = rotated {
        session.rollback().await;
        return Err(during(context)(error));
    }
    Ok(Registry {
        log_epoch: epoch.clone(),
        epoch_required: true,
    })
}

/// Moves the horizon up to `through` and deletes what lies at or below it. Rows,
/// push results and reactions stay. Writers of the partition wait meanwhile.
pub(super) async fn prune(
    session: &mut Session,
    partition: &str,
    epoch: &LogEpoch,
    through: CommitSeq,
) -> Result<Pruned, StoreError> {
    session
        .begin("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0")
        .await
        .map_err(during(PRUNING))?;
    let pruned = prune_inside(session, partition, epoch, through).await;
    match pruned {
        Ok(pruned) => match session.commit().await {
            Ok(()) => Ok(pruned),
            Err(error) => {
                session.rollback().await;
                Err(during(PRUNING)(error))
            }
        },
        Err(error) => {
            session.rollback().await;
            Err(error)
        }
    }
}

const PRUNING: &str = "pruning a log";

async fn prune_inside(
    session: &mut Session,
    partition: &str,
    epoch: &LogEpoch,
    through: CommitSeq,
) -> Result<Pruned, StoreError> {
    // Shared, so that a rotation waits: what is pruned is the log it was computed for.
    let registered = session
        .query_opt(
            "SELECT log_epoch FROM sync_partition_registry WHERE partition=$1 FOR SHARE",
            &[&partition],
        )
        .await
        .map_err(during(PRUNING))?
        .ok_or(StoreError::UnknownPartition)?;
    let current: &str = registered.try_get(0).map_err(during(PRUNING))?;
    if current != epoch.as_str() {
        return Err(StoreError::EpochChanged);
    }
    let bounds = session
        .query_opt(
            "SELECT max_commit_seq, horizon_seq FROM sync_partitions WHERE partition=$1 FOR UPDATE",
            &[&partition],
        )
        .await
        .map_err(during(PRUNING))?;
    let (max, previous): (i64, i64) = match bounds {
        Some(row) => (
            row.try_get(0).map_err(during(PRUNING))?,
            row.try_get(1).map_err(during(PRUNING))?,
        ),
        None => (0, 0),
    };
    // Nothing beyond the head was ever written, so nothing beyond it is pruned.
    let horizon = through.0.min(max);
    if horizon <= previous {
        return Ok(Pruned {
            previous: CommitSeq(previous),
            horizon: CommitSeq(previous),
            removed: 0,
        });
    }
    let mut removed = 0;
    for sql in [
        "UPDATE sync_partitions SET horizon_seq=$2 WHERE partition=$1",
        // The index entries are found through the changes they stand for: its own
        // key does not begin with the commit.
        "DELETE FROM sync_change_scopes WHERE ctid = ANY(ARRAY(
           SELECT s.ctid FROM sync_changes AS c
           CROSS JOIN LATERAL jsonb_each_text(c.scopes) AS v
           CROSS JOIN LATERAL (SELECT ctid FROM sync_change_scopes
             WHERE partition=$1 AND tbl=c.tbl AND var=v.key AND value=v.value
               AND commit_seq=c.commit_seq LIMIT 1) AS s
           WHERE c.partition=$1 AND c.commit_seq<=$2::bigint))",
        "DELETE FROM sync_changes WHERE partition=$1 AND commit_seq<=$2",
        "DELETE FROM sync_tombstones WHERE partition=$1 AND commit_seq<=$2",
        "DELETE FROM sync_commits WHERE partition=$1 AND commit_seq<=$2",
    ] {
        removed = session
            .execute(sql, &[&partition, &horizon])
            .await
            .map_err(during(PRUNING))?;
    }
    Ok(Pruned {
        previous: CommitSeq(previous),
        horizon: CommitSeq(horizon),
        removed,
    })
}

pub(super) const COMMIT_BEFORE: &str =
    "SELECT coalesce(max(commit_seq), 0) FROM sync_commits WHERE partition=$1 AND created_at_ms<$2";

/// Newest commit created strictly before `created_before_ms`.
pub(super) async fn commit_before(
    session: &mut Session,
    partition: &str,
    created_before_ms: i64,
) -> Result<CommitSeq, StoreError> {
    let context = "finding a commit by time";
    let row = session
        .query_opt(COMMIT_BEFORE, &[&partition, &created_before_ms])
        .await
        .map_err(during(context))?;
    match row {
        Some(row) => row.try_get(0).map(CommitSeq).map_err(during(context)),
        None => Ok(CommitSeq(0)),
    }
}

/// All client records of a partition, in byte order of their ids.
pub(super) async fn list_clients(
    session: &mut Session,
    partition: &str,
) -> Result<Vec<ClientRecord>, StoreError> {
    let context = "listing clients";
    session
        .query(
            "SELECT client_id, actor_id, wire_version, cursor, subscriptions::text, updated_at_ms
             FROM sync_clients WHERE partition=$1 ORDER BY client_id COLLATE \"C\"",
            &[&partition],
        )
        .await
        .and_then(|rows| rows.iter().map(|row| client_record(row, 0)).collect())
        .map_err(during(context))
}

/// All registered partitions, in byte order.
pub(super) async fn list_partitions(session: &mut Session) -> Result<Vec<PartitionId>, StoreError> {
    let context = "listing partitions";
    session
        .query(
            "SELECT partition FROM sync_partition_registry ORDER BY partition COLLATE \"C\"",
            &[],
        )
        .await
        .and_then(|rows| {
            rows.iter()
                .map(|row| row.try_get::<_, &str>(0).map(PartitionId::from))
                .collect()
        })
        .map_err(during(context))
}

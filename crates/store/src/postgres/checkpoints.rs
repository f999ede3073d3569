//! Checkpoints, fences and what a backfill's worker asks for. A write locks what
//! it decides on, reads it, lets the engine's rules decide and stores what they
//! answer; a page's advance alone is a function in the database, part of its
//! batch's pipeline (`core_schema`).

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{TryStreamExt as _, pin_mut};
use tidegate_engine::backfill::checkpoint::{
    self, Activation, Advance, Checkpoint, CheckpointState, Coverage, Declare,
};
use tidegate_engine::backfill::scan::{self, PageId};
use tidegate_engine::{CommitSeq, OwnerEpoch, PartitionId, SchemaVersion};
use tokio_postgres::{Error, Row};

use super::accepted;
use super::connection::Session;
use super::failure::during;
use super::plan::quote;
use super::{AsyncWork, PostgresStore};
use crate::checkpoints::unknown_table;
use crate::error::StoreError;
use crate::pages::Pages;
use crate::stored::{decode_pace, encode_pace};
use crate::{Activate, BackfillControl, CheckpointStore};

const CONTEXT: &str = "keeping a backfill checkpoint";
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Work that grows with the data takes the time it takes.
const BEGIN_LONG_READ: &str =
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = 0";

const COLUMNS: &str =
    "partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms
 FROM sync_backfill_checkpoints";
/// Horizon and newest source change above a position, in one statement: no prune
/// comes between them.
pub(super) const COVERAGE: &str = "SELECT
 coalesce((SELECT horizon_seq FROM sync_partitions WHERE partition=$1), 0),
 (SELECT max(c.commit_seq) FROM unnest($2::text[]) AS source(tbl) CROSS JOIN LATERAL (
   SELECT commit_seq FROM sync_changes
   WHERE partition=$1 AND tbl=source.tbl AND commit_seq>$3::bigint
   ORDER BY commit_seq DESC LIMIT 1) AS c)";
pub(super) const PAGES: &str = "SELECT client_commit_id, result::text FROM sync_push_results
 WHERE partition=$1 AND client_id=$2 ORDER BY client_commit_id COLLATE \"C\"";
/// The row must exist to be locked; a batch locks it with its gate.
const CREATE_PARTITION: &str =
    "INSERT INTO sync_partitions(partition) VALUES($1) ON CONFLICT DO NOTHING";
const LOCK_PARTITION: &str = "SELECT 1 FROM sync_partitions WHERE partition=$1 FOR UPDATE";
const RAISE: &str =
    "INSERT INTO sync_writer_fence AS f (partition, required_writer_version) VALUES($1,$2)
 ON CONFLICT(partition) DO UPDATE
   SET required_writer_version=greatest(f.required_writer_version, excluded.required_writer_version)
 RETURNING required_writer_version";
const STORE: &str = "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms)
 VALUES($1,$2,$3,$4,$5,$6,$7,$8)
 ON CONFLICT(partition, name) DO UPDATE SET state=excluded.state,
   watermark=excluded.watermark, owner_epoch=excluded.owner_epoch,
   observed_rows=excluded.observed_rows, updated_at_ms=excluded.updated_at_ms";

fn checkpoint_row(row: &Row) -> Result<Checkpoint, StoreError> {
    let state: &str = row.try_get(3).map_err(during(CONTEXT))?;
    let state = CheckpointState::parse(state).ok_or(StoreError::Corrupt {
        what: "the state of a backfill checkpoint",
    })?;
    let read = || -> Result<Checkpoint, Error> {
        Ok(Checkpoint {
            partition: PartitionId::from(row.try_get::<_, &str>(0)?),
            name: row.try_get::<_, &str>(1)?.into(),
            schema_version: SchemaVersion(row.try_get(2)?),
            state,
            watermark: CommitSeq(row.try_get(4)?),
            owner_epoch: OwnerEpoch(row.try_get(5)?),
            observed_rows: row.try_get(6)?,
            updated_at_ms: row.try_get(7)?,
        })
    };
    read().map_err(during(CONTEXT))
}

/// Whether the row is locked until the transaction ends.
#[derive(Clone, Copy)]
enum Lock {
    Shared,
    ForUpdate,
}

async fn read(
    session: &mut Session,
    partition: &str,
    name: &str,
    lock: Lock,
) -> Result<Option<Checkpoint>, StoreError> {
    let lock = match lock {
        Lock::Shared => "",
        Lock::ForUpdate => " FOR UPDATE",
    };
    let sql = format!("SELECT {COLUMNS} WHERE partition=$1 AND name=$2{lock}");
    let found = session
        .query_opt(&sql, &[&partition, &name])
        .await
        .map_err(during(CONTEXT))?;
    found.as_ref().map(checkpoint_row).transpose()
}

async fn store(session: &mut Session, row: &Checkpoint) -> Result<(), StoreError> {
    session
        .execute(
            STORE,
            &[
                &row.partition.as_str(),
                &&*row.name,
                &row.schema_version.0,
                &row.state.as_str(),
                &row.watermark.0,
                &row.owner_epoch.0,
                &row.observed_rows,
                &row.updated_at_ms,
            ],
        )
        .await
        .map(|_| ())
        .map_err(during(CONTEXT))
}

async fn fence(
    session: &mut Session,
    partition: &str,
) -> Result<Option<SchemaVersion>, StoreError> {
    let context = "reading a writer fence";
    session
        .query_opt(
            "SELECT required_writer_version FROM sync_writer_fence WHERE partition=$1",
            &[&partition],
        )
        .await
        .map_err(during(context))?
        .map(|row| row.try_get(0).map(SchemaVersion).map_err(during(context)))
        .transpose()
}

/// Raises the fence. The caller holds the partition: a writer inside finishes
/// first, and whoever comes later is judged by the new fence.
async fn raise(
    session: &mut Session,
    partition: &str,
    required: SchemaVersion,
) -> Result<SchemaVersion, StoreError> {
    let context = "raising a writer fence";
    session
        .query_opt(RAISE, &[&partition, &required.0])
        .await
        .map_err(during(context))?
        .ok_or(StoreError::Corrupt {
            what: "a writer fence",
        })?
        .try_get(0)
        .map(SchemaVersion)
        .map_err(during(context))
}

/// Takes the partition's row: nobody commits to it until the transaction ends.
async fn hold(session: &mut Session, partition: &str) -> Result<(), StoreError> {
    for sql in [CREATE_PARTITION, LOCK_PARTITION] {
        session
            .execute(sql, &[&partition])
            .await
            .map_err(during(CONTEXT))?;
    }
    Ok(())
}

/// Whether what a transaction did is kept.
enum End<T> {
    Keep(T),
    Undo(T),
}

/// Ends the transaction that `outcome` was reached in.
async fn settle<T>(
    session: &mut Session,
    outcome: Result<End<T>, StoreError>,
) -> Result<T, StoreError> {
    match outcome {
        Ok(End::Keep(value)) => match session.commit().await {
            Ok(()) => Ok(value),
            Err(error) => {
                session.rollback().await;
                Err(during(CONTEXT)(error))
            }
        },
        Ok(End::Undo(value)) => {
            session.rollback().await;
            Ok(value)
        }
        Err(error) => {
            session.rollback().await;
            Err(error)
        }
    }
}

async fn declare(
    session: &mut Session,
    wanted: &Declare,
    now_ms: i64,
) -> Result<End<Checkpoint>, StoreError> {
    let partition = wanted.partition.as_str();
    hold(session, partition).await?;
    let existing = read(session, partition, &wanted.name, Lock::ForUpdate).await?;
    let declared = checkpoint::declare(existing.as_ref(), wanted, now_ms)?;
    if existing.is_none() {
        store(session, &declared).await?;
    }
    raise(session, partition, wanted.schema_version).await?;
    Ok(End::Keep(declared))
}

async fn claim(
    session: &mut Session,
    partition: &str,
    name: &str,
    version: SchemaVersion,
    now_ms: i64,
) -> Result<End<Checkpoint>, StoreError> {
    let existing = read(session, partition, name, Lock::ForUpdate).await?;
    let claimed = checkpoint::claim(existing.as_ref(), version, now_ms)?;
    store(session, &claimed).await?;
    Ok(End::Keep(claimed))
}

async fn advance(
    session: &mut Session,
    partition: &str,
    name: &str,
    to: Advance,
    now_ms: i64,
) -> Result<End<bool>, StoreError> {
    let existing = read(session, partition, name, Lock::ForUpdate).await?;
    let Some(advanced) = checkpoint::advance(existing.as_ref(), to, now_ms) else {
        return Ok(End::Undo(false));
    };
    store(session, &advanced).await?;
    Ok(End::Keep(true))
}

async fn activate(
    session: &mut Session,
    request: &Activate,
) -> Result<End<Activation>, StoreError> {
    let partition = request.partition.as_str();
    hold(session, partition).await?;
    let existing = read(session, partition, &request.name, Lock::ForUpdate).await?;
    let fence = fence(session, partition).await?;
    let above = coverage(session, partition, &request.sources, request.watermark).await?;
    let outcome = checkpoint::activate(
        existing.as_ref(),
        fence,
        above,
        request.owner_epoch,
        request.watermark,
        request.now_ms,
    )?;
    let Activation::Activated(row) = &outcome else {
        return Ok(End::Undo(outcome));
    };
    store(session, row).await?;
    Ok(End::Keep(outcome))
}

/// The log's horizon, and its newest commit above `seq` that touches a source.
async fn sources_above<S: AsRef<str>>(
    session: &mut Session,
    partition: &str,
    sources: &[S],
    seq: CommitSeq,
) -> Result<(CommitSeq, Option<CommitSeq>), StoreError> {
    let context = "reading the log of a backfill's sources";
    let names: Vec<&str> = sources
        .iter()
        .map(AsRef::as_ref)
        .filter(|name| accepted::text(name))
        .collect();
    let row = session
        .query_opt(COVERAGE, &[&partition, &names, &seq.0])
        .await
        .map_err(during(context))?
        .ok_or(StoreError::Corrupt { what: "log bounds" })?;
    let horizon = row.try_get(0).map_err(during(context))?;
    let newest: Option<i64> = row.try_get(1).map_err(during(context))?;
    Ok((CommitSeq(horizon), newest.map(CommitSeq)))
}

async fn coverage<S: AsRef<str>>(
    session: &mut Session,
    partition: &str,
    sources: &[S],
    seq: CommitSeq,
) -> Result<Coverage, StoreError> {
    let (horizon, newest) = sources_above(session, partition, sources, seq).await?;
    Ok(checkpoint::coverage(sources.len(), horizon, newest, seq))
}

/// Walks the results of a backfill's pages as they arrive: there may be many more
/// than are kept.
async fn pages(
    session: &mut Session,
    partition: &str,
    name: &str,
) -> Result<Vec<PageId>, StoreError> {
    let context = "reading the pages of a backfill";
    let statement = session.prepare(PAGES).await.map_err(during(context))?;
    let device = scan::client_id(name);
    let rows = session
        .client
        .query_raw(&statement, [partition, device.as_str()])
        .await
        .map_err(during(context))?;
    pin_mut!(rows);
    let mut pages = Pages::default();
    while let Some(row) = rows.try_next().await.map_err(during(context))? {
        let id = row.try_get(0).map_err(during(context))?;
        pages.take(id, row.try_get(1).map_err(during(context))?);
    }
    Ok(pages.finish())
}

/// Counts a partition's rows of a table, through its primary key.
pub(super) fn count_sql(table: &str) -> String {
    format!(
        "SELECT count(*) FROM {} WHERE _sync_partition=$1",
        quote(table)
    )
}

/// Each `$2`-th row id of a partition's rows of a table, in byte order.
pub(super) fn sample_sql(table: &str) -> String {
    format!(
        "SELECT id FROM (
           SELECT _sync_row_id AS id, row_number() OVER (ORDER BY _sync_row_id COLLATE \"C\") AS n
           FROM {} WHERE _sync_partition=$1) AS numbered WHERE n % $2::bigint = 0 ORDER BY n",
        quote(table)
    )
}

async fn count(session: &mut Session, partition: &str, table: &str) -> Result<u64, StoreError> {
    let context = "counting rows";
    let counted = session
        .query_opt(&count_sql(table), &[&partition])
        .await
        .map_err(during(context))?;
    let counted: i64 = match counted {
        Some(row) => row.try_get(0).map_err(during(context))?,
        None => 0,
    };
    Ok(u64::try_from(counted).unwrap_or(0))
}

async fn sample(
    session: &mut Session,
    partition: &str,
    table: &str,
    wanted: usize,
) -> Result<Vec<Arc<str>>, StoreError> {
    let context = "sampling row ids";
    let Ok(wanted) = u64::try_from(wanted) else {
        return Ok(Vec::new());
    };
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let all = count(session, partition, table).await?;
    let stride = i64::try_from(all.div_ceil(wanted).max(1)).unwrap_or(i64::MAX);
    let rows = session
        .query(&sample_sql(table), &[&partition, &stride])
        .await
        .map_err(during(context))?;
    rows.iter()
        .map(|row| row.try_get::<_, &str>(0).map(Arc::from))
        .collect::<Result<_, _>>()
        .map_err(during(context))
}

fn control_row(row: &Row) -> Result<BackfillControl, Error> {
    let workers: i32 = row.try_get(3)?;
    Ok(BackfillControl {
        partition: PartitionId::from(row.try_get::<_, &str>(0)?),
        name: row.try_get::<_, &str>(1)?.into(),
        paused: row.try_get(2)?,
        workers: u32::try_from(workers).unwrap_or(0),
        pace: row.try_get::<_, Option<&str>>(4)?.and_then(decode_pace),
        last_error: row.try_get(5)?,
        updated_at_ms: row.try_get(6)?,
    })
}

async fn put_control(session: &mut Session, control: &BackfillControl) -> Result<(), StoreError> {
    let workers = i32::try_from(control.workers).unwrap_or(i32::MAX);
    let pace = control.pace.as_ref().map(encode_pace);
    // A text column holds no NUL; an error's words may.
    let error = control
        .last_error
        .as_ref()
        .map(|text| text.replace('\0', "\u{FFFD}"));
    session
        .execute(
            "INSERT INTO tidegate_backfills(partition, name, paused, workers, pace, last_error, updated_at_ms)
             VALUES($1,$2,$3,$4,$5::text::jsonb,$6,$7)
             ON CONFLICT(partition, name) DO UPDATE SET paused=excluded.paused,
               workers=excluded.workers, pace=excluded.pace, last_error=excluded.last_error,
               updated_at_ms=excluded.updated_at_ms",
            &[
                &control.partition.as_str(),
                &&*control.name,
                &control.paused,
                &workers,
                &pace,
                &error,
                &control.updated_at_ms,
            ],
        )
        .await
        .map(|_| ())
        .map_err(during("storing the settings of a backfill"))
}

/// A write as a function of its session.
struct Written<F>(F);

#[async_trait]
impl<T, F> AsyncWork<T> for Written<F>
where
    T: Send + 'static,
    F: for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, Result<End<T>, StoreError>>
        + Send
        + 'static,
{
    async fn run(self, session: &mut Session) -> Result<T, StoreError> {
        session.begin(BEGIN).await.map_err(during(CONTEXT))?;
        let outcome = (self.0)(session).await;
        settle(session, outcome).await
    }
}

impl PostgresStore {
    /// Runs a transaction to its end, whether or not the caller waits for it.
    async fn transact<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, Result<End<T>, StoreError>>
            + Send
            + 'static,
    {
        self.write(Written(work)).await
    }

    /// The name of a table, if the schema has it: it becomes part of a statement.
    fn known(&self, table: &str) -> Result<String, StoreError> {
        self.plan()?
            .schema
            .table(table)
            .map(|_| table.to_owned())
            .ok_or_else(unknown_table)
    }
}

/// `WHERE` of a list of one partition's rows, or of all, and their order.
fn of(partition: Option<&PartitionId>) -> String {
    let one = partition.map_or("", |_| " WHERE partition=$1");
    format!("{one} ORDER BY partition COLLATE \"C\", name COLLATE \"C\"")
}

async fn list(
    session: &mut Session,
    sql: &str,
    partition: Option<&PartitionId>,
) -> Result<Vec<Row>, Error> {
    match partition {
        Some(partition) => session.query(sql, &[&partition.as_str()]).await,
        None => session.query(sql, &[]).await,
    }
}

/// Names that no row can have.
fn unstorable(partition: &PartitionId, name: &str) -> bool {
    !accepted::text(partition.as_str()) || !accepted::text(name)
}

#[async_trait]
impl CheckpointStore for PostgresStore {
    async fn declare_checkpoint(
        &self,
        wanted: &Declare,
        now_ms: i64,
    ) -> Result<Checkpoint, StoreError> {
        if unstorable(&wanted.partition, &wanted.name) {
            return Err(StoreError::BadDeclaration {
                name: wanted.name.to_string(),
                reason: "a name holds a NUL",
            });
        }
        let wanted = wanted.clone();
        self.transact(move |session| {
            Box::pin(async move { declare(session, &wanted, now_ms).await })
        })
        .await
    }

    async fn claim_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
        version: SchemaVersion,
        now_ms: i64,
    ) -> Result<Checkpoint, StoreError> {
        if unstorable(partition, name) {
            return Err(StoreError::CheckpointNotDeclared);
        }
        let (partition, name) = (partition.clone(), name.to_owned());
        self.transact(move |session| {
            Box::pin(
                async move { claim(session, partition.as_str(), &name, version, now_ms).await },
            )
        })
        .await
    }

    async fn advance_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
        to: Advance,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        if unstorable(partition, name) {
            return Ok(false);
        }
        let (partition, name) = (partition.clone(), name.to_owned());
        self.transact(move |session| {
            Box::pin(async move { advance(session, partition.as_str(), &name, to, now_ms).await })
        })
        .await
    }

    async fn activate_checkpoint(&self, request: &Activate) -> Result<Activation, StoreError> {
        if unstorable(&request.partition, &request.name) {
            return Err(StoreError::CheckpointFenceMissing);
        }
        let request = request.clone();
        self.transact(move |session| Box::pin(async move { activate(session, &request).await }))
            .await
    }

    async fn read_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
    ) -> Result<Option<Checkpoint>, StoreError> {
        if unstorable(partition, name) {
            return Ok(None);
        }
        let mut lease = self.lease().await?;
        read(&mut lease, partition.as_str(), name, Lock::Shared).await
    }

    async fn list_checkpoints(
        &self,
        partition: Option<&PartitionId>,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        let mut lease = self.lease().await?;
        let sql = format!("SELECT {COLUMNS}{}", of(partition));
        let rows = list(&mut lease, &sql, partition)
            .await
            .map_err(during(CONTEXT))?;
        rows.iter().map(checkpoint_row).collect()
    }

    async fn source_coverage_seq(
        &self,
        partition: &PartitionId,
        tables: &[&str],
    ) -> Result<CommitSeq, StoreError> {
        let mut lease = self.lease().await?;
        let (_, newest) =
            sources_above(&mut lease, partition.as_str(), tables, CommitSeq(0)).await?;
        Ok(newest.unwrap_or_default())
    }

    async fn has_source_changes_above(
        &self,
        partition: &PartitionId,
        tables: &[&str],
        seq: CommitSeq,
    ) -> Result<Coverage, StoreError> {
        let mut lease = self.lease().await?;
        coverage(&mut lease, partition.as_str(), tables, seq).await
    }

    async fn read_fence(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<SchemaVersion>, StoreError> {
        let mut lease = self.lease().await?;
        fence(&mut lease, partition.as_str()).await
    }

    async fn raise_fence(
        &self,
        partition: &PartitionId,
        required: SchemaVersion,
    ) -> Result<SchemaVersion, StoreError> {
        let partition = partition.clone();
        self.transact(move |session| {
            Box::pin(async move {
                hold(session, partition.as_str()).await?;
                Ok(End::Keep(
                    raise(session, partition.as_str(), required).await?,
                ))
            })
        })
        .await
    }

    async fn backfill_pages(
        &self,
        partition: &PartitionId,
        name: &str,
    ) -> Result<Vec<PageId>, StoreError> {
        if unstorable(partition, name) {
            return Ok(Vec::new());
        }
        let mut lease = self.lease().await?;
        lease
            .begin(BEGIN_LONG_READ)
            .await
            .map_err(during(CONTEXT))?;
        let found = pages(&mut lease, partition.as_str(), name).await;
        settle(&mut lease, found.map(End::Undo)).await
    }

    async fn count_rows(&self, partition: &PartitionId, table: &str) -> Result<u64, StoreError> {
        let table = self.known(table)?;
        let mut lease = self.lease().await?;
        lease
            .begin(BEGIN_LONG_READ)
            .await
            .map_err(during(CONTEXT))?;
        let counted = count(&mut lease, partition.as_str(), &table).await;
        settle(&mut lease, counted.map(End::Undo)).await
    }

    async fn sample_row_ids(
        &self,
        partition: &PartitionId,
        table: &str,
        wanted: usize,
    ) -> Result<Vec<Arc<str>>, StoreError> {
        let table = self.known(table)?;
        let mut lease = self.lease().await?;
        lease
            .begin(BEGIN_LONG_READ)
            .await
            .map_err(during(CONTEXT))?;
        let sampled = sample(&mut lease, partition.as_str(), &table, wanted).await;
        settle(&mut lease, sampled.map(End::Undo)).await
    }

    async fn list_backfill_controls(
        &self,
        partition: Option<&PartitionId>,
    ) -> Result<Vec<BackfillControl>, StoreError> {
        let context = "reading the settings of backfills";
        let mut lease = self.lease().await?;
        let sql = format!(
            "SELECT partition, name, paused, workers, pace::text, last_error, updated_at_ms
             FROM tidegate_backfills{}",
            of(partition)
        );
        let rows = list(&mut lease, &sql, partition)
            .await
            .map_err(during(context))?;
        rows.iter()
            .map(|row| control_row(row).map_err(during(context)))
            .collect()
    }

    async fn put_backfill_control(&self, control: &BackfillControl) -> Result<(), StoreError> {
        let control = control.clone();
        self.transact(move |session| {
            Box::pin(async move { put_control(session, &control).await.map(End::Keep) })
        })
        .await
    }
}

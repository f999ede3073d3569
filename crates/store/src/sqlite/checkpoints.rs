//! Checkpoints, fences and what a backfill's worker asks for. The one writer
//! serializes: a write reads what is stored, lets the engine's rules decide and
//! stores what they answer, inside its savepoint.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use tidegate_engine::backfill::checkpoint::{
    self, Activation, Advance, Checkpoint, CheckpointState, Coverage, Declare,
};
use tidegate_engine::backfill::scan::{self, PageId};
use tidegate_engine::{CommitSeq, OwnerEpoch, PartitionId, SchemaVersion};

use super::SqliteStore;
use super::failure::during;
use super::plan::quote;
use crate::checkpoints::unknown_table;
use crate::error::StoreError;
use crate::pages::Pages;
use crate::stored::{decode_pace, encode_pace};
use crate::{Activate, BackfillControl, CheckpointStore};

const CONTEXT: &str = "keeping a backfill checkpoint";
const COLUMNS: &str =
    "partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms
 FROM sync_backfill_checkpoints";

/// Horizon and newest source change above a position, in one statement: no prune
/// comes between them.
pub(super) const COVERAGE: &str = "SELECT
  coalesce((SELECT horizon_seq FROM sync_partitions WHERE partition=?1), 0),
  (SELECT max(newest) FROM (
     SELECT (SELECT commit_seq FROM sync_changes INDEXED BY sync_changes_by_table
             WHERE partition=?1 AND tbl=source.value AND commit_seq>?3
             ORDER BY commit_seq DESC LIMIT 1) AS newest
     FROM json_each(?2) AS source))";
pub(super) const PAGES: &str = "SELECT client_commit_id, result FROM sync_push_results
 WHERE partition=?1 AND client_id=?2 ORDER BY client_commit_id";

fn checkpoint_row(row: &Row<'_>) -> rusqlite::Result<Option<Checkpoint>> {
    let state: String = row.get(3)?;
    let Some(state) = CheckpointState::parse(&state) else {
        return Ok(None);
    };
    Ok(Some(Checkpoint {
        partition: PartitionId::from(row.get::<_, String>(0)?),
        name: row.get::<_, String>(1)?.into(),
        schema_version: SchemaVersion(row.get(2)?),
        state,
        watermark: CommitSeq(row.get(4)?),
        owner_epoch: OwnerEpoch(row.get(5)?),
        observed_rows: row.get(6)?,
        updated_at_ms: row.get(7)?,
    }))
}

const UNREADABLE: StoreError = StoreError::Corrupt {
    what: "the state of a backfill checkpoint",
};

fn read(
    connection: &Connection,
    partition: &str,
    name: &str,
) -> Result<Option<Checkpoint>, StoreError> {
    let found = connection
        .prepare_cached(&format!("SELECT {COLUMNS} WHERE partition=?1 AND name=?2"))
        .and_then(|mut statement| {
            statement
                .query_row([partition, name], checkpoint_row)
                .optional()
        })
        .map_err(during(CONTEXT))?;
    match found {
        Some(None) => Err(UNREADABLE),
        Some(found) => Ok(found),
        None => Ok(None),
    }
}

/// `WHERE` of a list of one partition's rows, or of all.
fn of(partition: Option<&str>) -> &'static str {
    partition.map_or("", |_| " WHERE partition=?1")
}

fn list(connection: &Connection, partition: Option<&str>) -> Result<Vec<Checkpoint>, StoreError> {
    let rows: Vec<Option<Checkpoint>> = connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS}{} ORDER BY partition, name",
            of(partition)
        ))
        .and_then(|mut statement| {
            statement
                .query_map(params_from_iter(partition), checkpoint_row)?
                .collect()
        })
        .map_err(during(CONTEXT))?;
    rows.into_iter().map(|row| row.ok_or(UNREADABLE)).collect()
}

fn store(connection: &Connection, row: &Checkpoint) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8)
             ON CONFLICT(partition, name) DO UPDATE SET state=excluded.state,
               watermark=excluded.watermark, owner_epoch=excluded.owner_epoch,
               observed_rows=excluded.observed_rows, updated_at_ms=excluded.updated_at_ms",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                row.partition.as_str(),
                &*row.name,
                row.schema_version.0,
                row.state.as_str(),
                row.watermark.0,
                row.owner_epoch.0,
                row.observed_rows,
                row.updated_at_ms,
            ])
        })
        .map(|_| ())
        .map_err(during(CONTEXT))
}

fn fence(connection: &Connection, partition: &str) -> Result<Option<SchemaVersion>, StoreError> {
    connection
        .prepare_cached("SELECT required_writer_version FROM sync_writer_fence WHERE partition=?1")
        .and_then(|mut statement| {
            statement
                .query_row([partition], |row| row.get(0).map(SchemaVersion))
                .optional()
        })
        .map_err(during("reading a writer fence"))
}

fn raise(
    connection: &Connection,
    partition: &str,
    required: SchemaVersion,
) -> Result<SchemaVersion, StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES(?1,?2)
             ON CONFLICT(partition) DO UPDATE
               SET required_writer_version=max(required_writer_version, excluded.required_writer_version)
             RETURNING required_writer_version",
        )
        .and_then(|mut statement| {
            statement.query_row(params![partition, required.0], |row| {
                row.get(0).map(SchemaVersion)
            })
        })
        .map_err(during("raising a writer fence"))
}

fn declare(
    connection: &Connection,
    wanted: &Declare,
    now_ms: i64,
) -> Result<Checkpoint, StoreError> {
    let partition = wanted.partition.as_str();
    let existing = read(connection, partition, &wanted.name)?;
    let declared = checkpoint::declare(existing.as_ref(), wanted, now_ms)?;
    if existing.is_none() {
        store(connection, &declared)?;
    }
    raise(connection, partition, wanted.schema_version)?;
    Ok(declared)
}

/// Advances a checkpoint; `false` = superseded, nothing written.
pub(super) fn advance(
    connection: &Connection,
    partition: &str,
    name: &str,
    to: Advance,
    now_ms: i64,
) -> Result<bool, StoreError> {
    let existing = read(connection, partition, name)?;
    match checkpoint::advance(existing.as_ref(), to, now_ms) {
        Some(advanced) => store(connection, &advanced).map(|()| true),
        None => Ok(false),
    }
}

/// The log's horizon, and its newest commit above `seq` that touches a source.
fn sources_above(
    connection: &Connection,
    partition: &str,
    sources: &[String],
    seq: CommitSeq,
) -> Result<(CommitSeq, Option<CommitSeq>), StoreError> {
    let list = serde_json::Value::from(sources).to_string();
    connection
        .prepare_cached(COVERAGE)
        .and_then(|mut statement| {
            statement.query_row(params![partition, list, seq.0], |row| {
                let newest: Option<i64> = row.get(1)?;
                Ok((CommitSeq(row.get(0)?), newest.map(CommitSeq)))
            })
        })
        .map_err(during("reading the log of a backfill's sources"))
}

fn coverage(
    connection: &Connection,
    partition: &str,
    sources: &[String],
    seq: CommitSeq,
) -> Result<Coverage, StoreError> {
    let (horizon, newest) = sources_above(connection, partition, sources, seq)?;
    Ok(checkpoint::coverage(sources.len(), horizon, newest, seq))
}

fn activate(connection: &Connection, request: &Activate) -> Result<Activation, StoreError> {
    let partition = request.partition.as_str();
    let existing = read(connection, partition, &request.name)?;
    let outcome = checkpoint::activate(
        existing.as_ref(),
        fence(connection, partition)?,
        coverage(connection, partition, &request.sources, request.watermark)?,
        request.owner_epoch,
        request.watermark,
        request.now_ms,
    )?;
    if let Activation::Activated(row) = &outcome {
        store(connection, row)?;
    }
    Ok(outcome)
}

fn pages(connection: &Connection, partition: &str, name: &str) -> Result<Vec<PageId>, StoreError> {
    let context = "reading the pages of a backfill";
    let mut statement = connection.prepare_cached(PAGES).map_err(during(context))?;
    let mut rows = statement
        .query([partition, scan::client_id(name).as_str()])
        .map_err(during(context))?;
    let mut pages = Pages::default();
    while let Some(row) = rows.next().map_err(during(context))? {
        let texts = row
            .get_ref(0)
            .and_then(|id| Ok((id.as_str()?, row.get_ref(1)?.as_str()?)));
        let (id, result) = texts.map_err(during(context))?;
        pages.take(id, result);
    }
    Ok(pages.finish())
}

/// Counts a partition's rows of a table, through its primary key.
pub(super) fn count_statement(table: &str) -> String {
    format!(
        "SELECT count(*) FROM {} WHERE _sync_partition=?1",
        quote(table)
    )
}

/// Walks a partition's row ids of a table, in the order of its primary key.
pub(super) fn row_ids_statement(table: &str) -> String {
    format!(
        "SELECT _sync_row_id FROM {} WHERE _sync_partition=?1 ORDER BY _sync_row_id",
        quote(table)
    )
}

fn count(connection: &Connection, partition: &str, table: &str) -> Result<u64, StoreError> {
    let counted: i64 = connection
        .query_row(&count_statement(table), [partition], |row| row.get(0))
        .map_err(during("counting rows"))?;
    Ok(u64::try_from(counted).unwrap_or(0))
}

fn sample(
    connection: &Connection,
    partition: &str,
    table: &str,
    wanted: usize,
) -> Result<Vec<Arc<str>>, StoreError> {
    let context = "sampling row ids";
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let all = usize::try_from(count(connection, partition, table)?).unwrap_or(usize::MAX);
    let stride = all.div_ceil(wanted).max(1);
    let mut statement = connection
        .prepare(&row_ids_statement(table))
        .map_err(during(context))?;
    let mut rows = statement.query([partition]).map_err(during(context))?;
    let mut sampled = Vec::new();
    let mut at = 0_usize;
    while let Some(row) = rows.next().map_err(during(context))? {
        at += 1;
        if at.is_multiple_of(stride) {
            let id = row.get_ref(0).and_then(|id| Ok(id.as_str()?));
            sampled.push(id.map_err(during(context))?.into());
        }
    }
    Ok(sampled)
}

fn controls(
    connection: &Connection,
    partition: Option<&str>,
) -> Result<Vec<BackfillControl>, StoreError> {
    connection
        .prepare_cached(&format!(
            "SELECT partition, name, paused, workers, pace, last_error, updated_at_ms
             FROM tidegate_backfills{} ORDER BY partition, name",
            of(partition)
        ))
        .and_then(|mut statement| {
            statement
                .query_map(params_from_iter(partition), |row| {
                    let pace: Option<String> = row.get(4)?;
                    Ok(BackfillControl {
                        partition: PartitionId::from(row.get::<_, String>(0)?),
                        name: row.get::<_, String>(1)?.into(),
                        paused: row.get(2)?,
                        workers: row.get(3)?,
                        pace: pace.as_deref().and_then(decode_pace),
                        last_error: row.get(5)?,
                        updated_at_ms: row.get(6)?,
                    })
                })?
                .collect()
        })
        .map_err(during("reading the settings of backfills"))
}

fn put_control(connection: &Connection, control: &BackfillControl) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO tidegate_backfills(partition, name, paused, workers, pace, last_error, updated_at_ms)
             VALUES(?1,?2,?3,?4,?5,?6,?7)
             ON CONFLICT(partition, name) DO UPDATE SET paused=excluded.paused,
               workers=excluded.workers, pace=excluded.pace, last_error=excluded.last_error,
               updated_at_ms=excluded.updated_at_ms",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                control.partition.as_str(),
                &*control.name,
                control.paused,
                control.workers,
                control.pace.as_ref().map(encode_pace),
                control.last_error,
                control.updated_at_ms,
            ])
        })
        .map(|_| ())
        .map_err(during("storing the settings of a backfill"))
}

fn owned(tables: &[&str]) -> Vec<String> {
    tables.iter().map(|table| (*table).to_owned()).collect()
}

#[async_trait]
impl CheckpointStore for SqliteStore {
    async fn declare_checkpoint(
        &self,
        wanted: &Declare,
        now_ms: i64,
    ) -> Result<Checkpoint, StoreError> {
        let wanted = wanted.clone();
        self.write(move |connection| declare(connection, &wanted, now_ms))
            .await
    }

    async fn claim_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
        version: SchemaVersion,
        now_ms: i64,
    ) -> Result<Checkpoint, StoreError> {
        let (partition, name) = (partition.clone(), name.to_owned());
        self.write(move |connection| {
            let existing = read(connection, partition.as_str(), &name)?;
            let claimed = checkpoint::claim(existing.as_ref(), version, now_ms)?;
            store(connection, &claimed)?;
            Ok(claimed)
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
        let (partition, name) = (partition.clone(), name.to_owned());
        self.write(move |connection| advance(connection, partition.as_str(), &name, to, now_ms))
            .await
    }

    async fn activate_checkpoint(&self, request: &Activate) -> Result<Activation, StoreError> {
        let request = request.clone();
        self.write(move |connection| activate(connection, &request))
            .await
    }

    async fn read_checkpoint(
        &self,
        partition: &PartitionId,
        name: &str,
    ) -> Result<Option<Checkpoint>, StoreError> {
        let (partition, name) = (partition.clone(), name.to_owned());
        self.readers
            .run(move |connection| read(connection, partition.as_str(), &name))
            .await
    }

    async fn list_checkpoints(
        &self,
        partition: Option<&PartitionId>,
    ) -> Result<Vec<Checkpoint>, StoreError> {
        let partition = partition.cloned();
        self.readers
            .run(move |connection| list(connection, partition.as_ref().map(PartitionId::as_str)))
            .await
    }

    async fn source_coverage_seq(
        &self,
        partition: &PartitionId,
        tables: &[&str],
    ) -> Result<CommitSeq, StoreError> {
        let (partition, tables) = (partition.clone(), owned(tables));
        self.readers
            .run(move |connection| {
                let (_, newest) =
                    sources_above(connection, partition.as_str(), &tables, CommitSeq(0))?;
                Ok(newest.unwrap_or_default())
            })
            .await
    }

    async fn has_source_changes_above(
        &self,
        partition: &PartitionId,
        tables: &[&str],
        seq: CommitSeq,
    ) -> Result<Coverage, StoreError> {
        let (partition, tables) = (partition.clone(), owned(tables));
        self.readers
            .run(move |connection| coverage(connection, partition.as_str(), &tables, seq))
            .await
    }

    async fn read_fence(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<SchemaVersion>, StoreError> {
        let partition = partition.clone();
        self.readers
            .run(move |connection| fence(connection, partition.as_str()))
            .await
    }

    async fn raise_fence(
        &self,
        partition: &PartitionId,
        required: SchemaVersion,
    ) -> Result<SchemaVersion, StoreError> {
        let partition = partition.clone();
        self.write(move |connection| raise(connection, partition.as_str(), required))
            .await
    }

    async fn backfill_pages(
        &self,
        partition: &PartitionId,
        name: &str,
    ) -> Result<Vec<PageId>, StoreError> {
        let (partition, name) = (partition.clone(), name.to_owned());
        self.readers
            .run(move |connection| pages(connection, partition.as_str(), &name))
            .await
    }

    async fn count_rows(&self, partition: &PartitionId, table: &str) -> Result<u64, StoreError> {
        let (partition, table) = (partition.clone(), self.known(table)?);
        self.readers
            .run(move |connection| count(connection, partition.as_str(), &table))
            .await
    }

    async fn sample_row_ids(
        &self,
        partition: &PartitionId,
        table: &str,
        wanted: usize,
    ) -> Result<Vec<Arc<str>>, StoreError> {
        let (partition, table) = (partition.clone(), self.known(table)?);
        self.readers
            .run(move |connection| sample(connection, partition.as_str(), &table, wanted))
            .await
    }

    async fn list_backfill_controls(
        &self,
        partition: Option<&PartitionId>,
    ) -> Result<Vec<BackfillControl>, StoreError> {
        let partition = partition.cloned();
        self.readers
            .run(move |connection| {
                controls(connection, partition.as_ref().map(PartitionId::as_str))
            })
            .await
    }

    async fn put_backfill_control(&self, control: &BackfillControl) -> Result<(), StoreError> {
        let control = control.clone();
        self.write(move |connection| put_control(connection, &control))
            .await
    }
}

impl SqliteStore {
    /// The name of a table, if the schema has it: it becomes part of a statement.
    fn known(&self, table: &str) -> Result<String, StoreError> {
        self.plan()?
            .schema
            .table(table)
            .map(|_| table.to_owned())
            .ok_or_else(unknown_table)
    }
}

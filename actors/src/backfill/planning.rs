//! From rows in the database to the changes of a page. Decoding and computing happen on
//! blocking threads: a projection may take its time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tidegate_engine::backfill::page::{
    RowChange, RowImage, SourceImage, plan_changes, target_keys,
};
use tidegate_engine::backfill::projection::{FailureReason, Projection, ProjectionFailure};
use tidegate_engine::backfill::scan::{KeyRange, RowId};
use tidegate_engine::model::{LogBounds, RowKey, StoredRow};
use tidegate_engine::schema::Schema;
use tidegate_store::{RangeQuery, Snapshot};

use super::patience::Trouble;
use super::run::{Ended, Run};

/// A page of a scan, computed.
pub(super) struct Planned {
    pub changes: Vec<RowChange>,
    /// Source rows read.
    pub rows: usize,
    /// The last one.
    pub last: Option<RowId>,
    /// Whether the range holds rows after it.
    pub more: bool,
}

/// Source rows as they are stored; `None` = deleted.
type Stored = Vec<(RowKey, Option<StoredRow>)>;

impl Run {
    pub async fn read_bounds(&self) -> Result<LogBounds, Trouble> {
        Ok(self.snapshot().await?.bounds())
    }

    pub async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Trouble> {
        Ok(self.env.store.snapshot(&self.key.partition).await?)
    }

    /// Reads and computes the next rows of a range.
    pub async fn plan_range(&self, range: &KeyRange, limit: usize) -> Result<Planned, Trouble> {
        let table = self
            .env
            .schema
            .table(&range.table)
            .ok_or_else(|| Ended::Failed(format!("there is no table {}", range.table)))?
            .id;
        let mut snapshot = self.snapshot().await?;
        let page = snapshot
            .read_range(RangeQuery {
                table,
                after: range.after.clone(),
                through: range.through.clone(),
                limit,
            })
            .await?;
        let rows: Stored = page
            .rows
            .into_iter()
            .map(|(row_id, row)| {
                let row_id = row_id.into();
                (RowKey { table, row_id }, Some(row))
            })
            .collect();
        Ok(Planned {
            rows: rows.len(),
            last: rows.last().map(|(key, _)| Arc::clone(&key.row_id)),
            more: page.more,
            changes: self.plan(snapshot, rows).await?,
        })
    }

    /// Reads and computes rows by key.
    pub async fn plan_rows(&self, keys: &[RowKey]) -> Result<Vec<RowChange>, Trouble> {
        let mut snapshot = self.snapshot().await?;
        let mut found: HashMap<RowKey, StoredRow> =
            snapshot.read_rows(keys).await?.into_iter().collect();
        let rows = keys
            .iter()
            .map(|key| (key.clone(), found.remove(key)))
            .collect();
        self.plan(snapshot, rows).await
    }

    /// Computes what source rows of a snapshot change in the target.
    async fn plan(
        &self,
        mut snapshot: Box<dyn Snapshot>,
        rows: Stored,
    ) -> Result<Vec<RowChange>, Trouble> {
        let (schema, projection) = (Arc::clone(&self.env.schema), Arc::clone(&self.projection));
        let (sources, keys) = off_thread(move || {
            let sources = images(&schema, rows)?;
            let keys: Vec<RowKey> = guarded(&schema, &sources, |sources| {
                target_keys(&schema, &*projection, sources)
            })?
            .into_iter()
            .collect();
            Ok((sources, keys))
        })
        .await?;
        let targets = if keys.is_empty() {
            Vec::new()
        } else {
            snapshot.read_rows(&keys).await?
        };
        // A page waits for its turn: it must not hold the database's past meanwhile.
        drop(snapshot);
        let (schema, projection) = (Arc::clone(&self.env.schema), Arc::clone(&self.projection));
        let planned = off_thread(move || compute(&schema, &*projection, &sources, targets)).await?;
        Ok(planned)
    }
}

fn compute(
    schema: &Schema,
    projection: &dyn Projection,
    sources: &[SourceImage],
    targets: Vec<(RowKey, StoredRow)>,
) -> Result<Vec<RowChange>, ProjectionFailure> {
    let targets = targets.into_iter().map(|(key, row)| (key, Some(row)));
    let stored: HashMap<RowKey, RowImage> = images(schema, targets.collect())?
        .into_iter()
        .filter_map(|image| Some((image.key, image.row?)))
        .collect();
    guarded(schema, sources, |sources| {
        plan_changes(schema, projection, sources, |key| stored.get(key).cloned())
    })
}

/// Decodes rows.
fn images(schema: &Schema, rows: Stored) -> Result<Vec<SourceImage>, ProjectionFailure> {
    rows.into_iter()
        .map(|(key, row)| {
            let table = schema.table_at(key.table);
            let row = row
                .map(|row| {
                    let values = ssp2::decode_row(&table.columns, &row.payload)
                        .map_err(|_| failure(schema, &key, FailureReason::BadRow))?;
                    Ok(RowImage {
                        server_version: row.server_version,
                        values: values.into(),
                    })
                })
                .transpose()?;
            Ok(SourceImage { key, row })
        })
        .collect()
}

/// Runs a transform over rows. If it panics, the first row over which it does so alone
/// says why the backfill stops.
fn guarded<T>(
    schema: &Schema,
    sources: &[SourceImage],
    transform: impl Fn(&[SourceImage]) -> Result<T, ProjectionFailure>,
) -> Result<T, ProjectionFailure> {
    let attempt = |sources: &[SourceImage]| catch_unwind(AssertUnwindSafe(|| transform(sources)));
    if let Ok(done) = attempt(sources) {
        return done;
    }
    let culprit = sources
        .iter()
        .find(|source| attempt(std::slice::from_ref(*source)).is_err())
        .or(sources.first());
    Err(match culprit {
        Some(source) => failure(schema, &source.key, FailureReason::Panicked),
        None => ProjectionFailure {
            table: String::new(),
            row_id: String::new(),
            part: None,
            reason: FailureReason::Panicked,
        },
    })
}

fn failure(schema: &Schema, key: &RowKey, reason: FailureReason) -> ProjectionFailure {
    ProjectionFailure {
        table: schema.table_at(key.table).name.clone(),
        row_id: key.row_id.to_string(),
        part: None,
        reason,
    }
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProjectionFailure> + Send + 'static,
) -> Result<T, Ended> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|failure| Ended::Failed(failure.to_string())),
        Err(failure) if failure.is_panic() => std::panic::resume_unwind(failure.into_panic()),
        // The runtime stops.
        Err(_) => Err(Ended::Stopped),
    }
}

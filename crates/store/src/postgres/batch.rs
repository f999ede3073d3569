//! Group commits as statements: every row of them as arrays. Several partitions'
//! batches may share the arrays, and so the transaction.

use std::sync::Arc;

use ssp2::{ColumnType, Value};
use tidegate_engine::model::{CommitBatch, Over, RowKey, RowWrite, StoredRow};
use tidegate_engine::push::encode_push_result;

use super::accepted;
use super::connection::Param;
use super::core_schema::{CALL_ADVANCE, CALL_GATE};
use super::flight::Mark;
use super::log::{batch_clients, log, new_row_scopes, reactions, row_scopes};
use super::plan::Plan;
use super::rows::{ScopeEntry, deletes, indexes, writes};
use super::statement::{Step, array};
use crate::error::CommitError;

/// A batch that the database can hold, its results encoded.
pub(super) struct Encoded {
    pub(super) batch: Arc<CommitBatch>,
    pub(super) results: Vec<String>,
}

/// A batch's place in the chain of those that are sent one right behind the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chained<'a> {
    /// The mark of the one before, whose end is not known yet.
    pub(super) after: Option<&'a Mark>,
    /// Its own, if one may be sent behind it.
    pub(super) mark: Option<&'a Mark>,
}

/// A row to be put.
#[derive(Clone, Copy)]
pub(super) struct Put<'a> {
    pub(super) partition: &'a str,
    pub(super) key: &'a RowKey,
    pub(super) row: &'a StoredRow,
    pub(super) values: &'a [Value],
    pub(super) over: Over,
}

impl Encoded {
    /// # Errors
    /// [`CommitError::Constraint`] for what the database could not store, found
    /// before it is asked: a text with a NUL.
    pub(super) fn new(plan: &Plan, batch: Arc<CommitBatch>) -> Result<Self, CommitError> {
        if let Some(key) = unstorable(plan, &batch) {
            let key = key.cloned();
            return Err(CommitError::Constraint { key });
        }
        let results: Vec<String> = batch
            .results
            .iter()
            .map(|(_, result)| encode_push_result(result))
            .collect();
        let reactions = batch
            .reactions
            .iter()
            .all(|queued| accepted::jsonb(&queued.planned.payload.to_string()));
        if !reactions || !results.iter().all(|result| accepted::jsonb(result)) {
            return Err(CommitError::Constraint { key: None });
        }
        Ok(Self { batch, results })
    }

    pub(super) fn partition(&self) -> &str {
        self.batch.partition.as_str()
    }
}

/// `Some(None)` when it is in no row.
fn unstorable<'a>(plan: &Plan, batch: &'a CommitBatch) -> Option<Option<&'a RowKey>> {
    let text = accepted::text;
    for put in batch_puts(batch) {
        let (table, _) = plan.table(put.key.table);
        let holds = text(&put.key.row_id)
            && put.row.scopes.iter().all(|(_, value)| text(value))
            && (!table.materialize
                || table.columns.iter().zip(put.values).all(|(column, value)| {
                    match (column.ty, value) {
                        (ColumnType::String | ColumnType::BlobRef, Value::Text(value)) => {
                            text(value)
                        }
                        _ => true,
                    }
                }));
        if !holds {
            return Some(Some(put.key));
        }
    }
    for commit in &batch.commits {
        let holds = text(commit.client_id.as_str())
            && text(&commit.client_commit_id)
            && text(commit.actor_id.as_str());
        if !holds {
            return Some(None);
        }
        let lost = commit.changes.iter().find(|change| {
            !text(&change.key.row_id) || !change.scopes.iter().all(|(_, value)| text(value))
        });
        if let Some(change) = lost {
            return Some(Some(&change.key));
        }
    }
    let results = batch
        .results
        .iter()
        .all(|(key, _)| text(key.client_id.as_str()) && text(&key.client_commit_id));
    (!results).then_some(None)
}

/// The puts of batches.
pub(super) fn puts(all: &[Encoded]) -> Vec<Put<'_>> {
    all.iter().flat_map(|one| batch_puts(&one.batch)).collect()
}

fn batch_puts(batch: &CommitBatch) -> impl Iterator<Item = Put<'_>> {
    batch.rows.iter().filter_map(|write| match write {
        RowWrite::Put {
            key,
            row,
            values,
            over,
        } => Some(Put {
            partition: batch.partition.as_str(),
            key,
            row,
            values,
            over: *over,
        }),
        RowWrite::Delete { .. } => None,
    })
}

/// What the gate is called with. The batches are sorted by partition: every writer takes
/// the rows of several partitions in that order.
pub(super) fn gate(all: &[Encoded]) -> Vec<Param<'_>> {
    let first = all.first().map(|one| &*one.batch);
    let (partitions, names): (Vec<&str>, Vec<&str>) = first
        .into_iter()
        .flat_map(|batch| batch.declared.iter())
        .map(|(partition, name)| (partition.as_str(), name.as_str()))
        .unzip();
    let each: Vec<&Encoded> = all.iter().collect();
    let count = |one: &&Encoded| i64::try_from(one.batch.commits.len()).unwrap_or(i64::MAX);
    vec![
        array(&each, |one| one.partition()),
        array(&each, |one| one.batch.expected_max.0),
        array(&each, count),
        Box::new(first.map_or(0, |batch| i64::from(batch.writer_version.0))),
        Box::new(partitions),
        Box::new(names),
    ]
}

/// The advance of a backfill page: it fails, and the batch with it, when the page's
/// owner was superseded.
fn advance(batch: &CommitBatch) -> Option<Step<'_>> {
    let page = batch.advance.as_ref()?;
    Some(Step {
        sql: CALL_ADVANCE,
        params: vec![
            Box::new(batch.partition.as_str()),
            Box::new(&*page.name),
            Box::new(page.to.owner_epoch.0),
            Box::new(page.to.watermark.0),
            Box::new(page.to.observed_rows),
            Box::new(page.now_ms),
        ],
    })
}

/// Everything that batches write.
pub(super) struct Written<'a> {
    batches: &'a [Encoded],
    /// One after the other.
    first: Vec<Step<'a>>,
    /// No two of these, nor of the rows' entries, `outdated` and `rows`, touch the same row.
    log: Vec<Step<'a>>,
    new_entries: Vec<ScopeEntry<'a>>,
    kept_entries: Vec<ScopeEntry<'a>>,
    outdated: Vec<Step<'a>>,
    /// One after the other.
    last: Vec<Step<'a>>,
    rows: Vec<Step<'a>>,
}

/// Rows' statements of a plain batch, at most: each combination of them is
/// a statement that every connection keeps.
const MOST_TABLES: usize = 6;

impl<'a> Written<'a> {
    pub(super) fn new(plan: &'a Plan, batches: &'a [Encoded]) -> Self {
        let mut first = Vec::new();
        first.extend(batches.iter().filter_map(|one| advance(&one.batch)));
        first.extend(deletes(plan, batches));
        let indexes = indexes(plan, batches);
        let mut last = indexes.blobs;
        last.extend(reactions(batches));
        last.extend(batch_clients(batches));
        Self {
            batches,
            first,
            log: log(plan, batches),
            new_entries: indexes.new,
            kept_entries: indexes.kept,
            outdated: indexes.outdated,
            last,
            rows: writes(plan, &puts(batches)),
        }
    }

    /// Whether one statement can write all of it.
    pub(super) fn is_plain(&self) -> bool {
        self.first.is_empty() && self.last.is_empty() && self.rows.len() <= MOST_TABLES
    }

    /// The parts of the statement that writes a plain batch.
    pub(super) fn into_parts(self) -> Vec<Step<'a>> {
        let new = (!self.new_entries.is_empty()).then(|| new_row_scopes(&self.new_entries));
        let kept = (!self.kept_entries.is_empty()).then(|| row_scopes(&self.kept_entries));
        let steps = self.log.into_iter().chain(new).chain(kept);
        steps.chain(self.outdated).chain(self.rows).collect()
    }

    /// The statements of an open transaction, in order.
    pub(super) fn steps(self, plan: &'a Plan) -> Vec<Step<'a>> {
        let (mut steps, rows) = self.rows_apart(plan);
        steps.extend(rows);
        steps
    }

    /// As [`Self::steps`], the rows' own ones, which come last, apart.
    pub(super) fn rows_apart(self, plan: &'a Plan) -> (Vec<Step<'a>>, Vec<Step<'a>>) {
        let mut steps = vec![Step {
            sql: CALL_GATE,
            params: gate(self.batches),
        }];
        steps.extend(self.first);
        steps.extend(self.outdated);
        let entries = [self.new_entries, self.kept_entries].concat();
        let all = self.log.into_iter().chain([row_scopes(&entries)]);
        steps.push(Step {
            sql: plan.log(),
            params: all.flat_map(|step| step.params).collect(),
        });
        steps.extend(self.last);
        (steps, self.rows)
    }
}

//! The content of a memory database: plain maps, cloned when a snapshot still
//! looks at them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ssp2::Value;
use tidegate_engine::keys::render_key;
use tidegate_engine::model::{
    ChildrenKey, ClientRecord, CommitBatch, Fetched, LogBounds, LoggedChange, LoggedCommit, Needs,
    Over, Registry, ResultKey, ResultLookup, RowKey, RowState, RowWrite, StoredPushResult,
    StoredRow,
};
use tidegate_engine::schema::migration::{self, TableChange, rewrite_payload};
use tidegate_engine::schema::{Schema, StoredLayouts, Table};
use tidegate_engine::{ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, TableId, scopes};

use crate::error::{CommitError, StoreError};
use crate::operating::Grant;
use crate::{Pruned, RowPage, ScanQuery, SchemaOutcome, Window, WindowQuery};

#[derive(Debug, Clone)]
struct Row {
    stored: Arc<StoredRow>,
    values: Arc<[Value]>,
}

/// One partition.
#[derive(Debug, Clone, Default)]
pub(super) struct Partition {
    pub(super) registry: Option<(Registry, i64)>,
    pub(super) max: CommitSeq,
    pub(super) horizon: CommitSeq,
    pub(super) layout_floor: CommitSeq,
    commits: BTreeMap<CommitSeq, LoggedCommit>,
    rows: BTreeMap<RowKey, Row>,
    tombstones: BTreeMap<RowKey, CommitSeq>,
    results: BTreeMap<ResultKey, Arc<StoredPushResult>>,
    pub(super) clients: BTreeMap<ClientId, ClientRecord>,
}

/// The database.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) schema: Option<Arc<Schema>>,
    pub(super) partitions: BTreeMap<PartitionId, Arc<Partition>>,
    pub(super) grants: BTreeMap<(PartitionId, ActorId), Grant>,
}

impl State {
    pub(super) fn partition(&self, id: &PartitionId) -> Arc<Partition> {
        self.partitions.get(id).cloned().unwrap_or_default()
    }

    pub(super) fn partition_mut(&mut self, id: &PartitionId) -> &mut Partition {
        Arc::make_mut(self.partitions.entry(id.clone()).or_default())
    }

    /// Verifies, or migrates every row at once.
    pub(super) fn ensure_schema(&mut self, new: Arc<Schema>) -> Result<SchemaOutcome, StoreError> {
        let Some(old) = self.schema.clone() else {
            self.schema = Some(new);
            return Ok(SchemaOutcome::Migrated { from: None });
        };
        let stored = StoredLayouts::of(&old);
        if old.version() > new.version() {
            return Err(StoreError::NewerSchema {
                stored: old.version(),
                running: new.version(),
            });
        }
        if old.version() == new.version() {
            return match stored.mismatch(&new) {
                None => Ok(SchemaOutcome::Verified),
                Some(mismatch) => Err(StoreError::StoredLayoutMismatch {
                    table: mismatch.table,
                    column: mismatch.column,
                }),
            };
        }
        let plan = migration::plan(&stored, &new).map_err(|refusals| {
            let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            StoreError::RefusedMigration {
                table: refusals
                    .first()
                    .map(|refusal| refusal.table.clone())
                    .unwrap_or_default(),
                reason: reasons.join("; "),
            }
        })?;
        let moved = plan
            .tables
            .iter()
            .any(|step| matches!(step.change, TableChange::Appended { .. }))
            || !plan.retired.is_empty();
        let mut partitions = BTreeMap::new();
        for (id, partition) in &self.partitions {
            let mut next = partition.migrated(&old, &new)?;
            if moved {
                next.layout_floor = next.max;
            }
            partitions.insert(id.clone(), Arc::new(next));
        }
        self.partitions = partitions;
        self.schema = Some(new);
        Ok(SchemaOutcome::Migrated {
            from: Some(old.version()),
        })
    }
}

impl Partition {
    pub(super) fn bounds(&self) -> LogBounds {
        LogBounds {
            max: self.max,
            horizon: self.horizon,
        }
    }

    fn migrated(&self, old: &Schema, new: &Schema) -> Result<Self, StoreError> {
        let renamed = |key: &RowKey| {
            new.table(&old.table_at(key.table).name)
                .map(|table| RowKey {
                    table: table.id,
                    row_id: Arc::clone(&key.row_id),
                })
        };
        let mut next = self.clone();
        next.rows.clear();
        for (key, row) in &self.rows {
            let Some(target) = renamed(key) else { continue };
            let (from, to) = (old.table_at(key.table), new.table_at(target.table));
            let payload = rewrite_payload(&from.columns, &to.columns, &row.stored.payload)
                .map_err(|_| StoreError::Corrupt {
                    what: "the payload of a row",
                })?;
            let mut values = row.values.to_vec();
            values.resize(to.columns.len(), Value::Null);
            let stored = StoredRow {
                payload,
                ..(*row.stored).clone()
            };
            next.rows.insert(
                target,
                Row {
                    stored: Arc::new(stored),
                    values: values.into(),
                },
            );
        }
        next.tombstones = self
            .tombstones
            .iter()
            .filter_map(|(key, seq)| Some((renamed(key)?, *seq)))
            .collect();
        for commit in next.commits.values_mut() {
            commit
                .changes
                .retain_mut(|change| match renamed(&change.key) {
                    Some(key) => {
                        change.key = key;
                        true
                    }
                    None => false,
                });
        }
        Ok(next)
    }

    /// Applies a batch to a copy, so that a refusal leaves nothing behind.
    pub(super) fn apply(
        &mut self,
        schema: &Schema,
        batch: &CommitBatch,
    ) -> Result<(), CommitError> {
        if self.max != batch.expected_max {
            return Err(CommitError::SequenceMoved);
        }
        let mut next = self.clone();
        for commit in &batch.commits {
            next.max = commit.seq;
            next.commits.insert(commit.seq, LoggedCommit::clone(commit));
        }
        for (key, result) in &batch.results {
            if next
                .results
                .insert(key.clone(), Arc::clone(result))
                .is_some()
            {
                return Err(CommitError::SequenceMoved);
            }
        }
        for write in &batch.rows {
            match write {
                RowWrite::Put {
                    key,
                    row,
                    values,
                    over,
                } => {
                    let row = Row {
                        stored: Arc::clone(row),
                        values: Arc::clone(values),
                    };
                    let before = next.rows.insert(key.clone(), row);
                    if before.is_some() && *over != Over::Row {
                        return Err(CommitError::Constraint {
                            key: Some(key.clone()),
                        });
                    }
                    if *over == Over::Tombstone {
                        next.tombstones.remove(key);
                    }
                }
                RowWrite::Delete { key, tombstone } => {
                    next.rows.remove(key);
                    next.tombstones.insert(key.clone(), *tombstone);
                }
            }
        }
        for write in &batch.rows {
            if let RowWrite::Put { key, .. } = write
                && next.collides(schema.table_at(key.table), key)
            {
                return Err(CommitError::Constraint {
                    key: Some(key.clone()),
                });
            }
        }
        next.record_clients(&batch.clients);
        *self = next;
        Ok(())
    }

    /// Whether another row has the same values under a unique index.
    fn collides(&self, table: &Table, key: &RowKey) -> bool {
        let Some(row) = self.rows.get(key) else {
            return false;
        };
        table
            .indexes
            .iter()
            .filter(|index| index.unique)
            .any(|index| {
                let of = |row: &Row| -> Vec<Value> {
                    index
                        .columns
                        .iter()
                        .map(|ordinal| row.values[*ordinal].clone())
                        .collect()
                };
                let wanted = of(row);
                !wanted.contains(&Value::Null)
                    && self
                        .table_rows(table.id)
                        .any(|(other, row)| other != key && of(row) == wanted)
            })
    }

    fn table_rows(&self, table: TableId) -> impl Iterator<Item = (&RowKey, &Row)> {
        let first = RowKey {
            table,
            row_id: "".into(),
        };
        self.rows
            .range(first..)
            .take_while(move |(key, _)| key.table == table)
    }

    pub(super) fn record_clients(&mut self, clients: &[ClientRecord]) {
        for client in clients {
            let bound = self.clients.get(&client.client_id);
            if bound.is_none_or(|known| known.actor_id == client.actor_id) {
                self.clients
                    .insert(client.client_id.clone(), client.clone());
            }
        }
    }

    pub(super) fn needs(&self, needs: &Needs) -> Fetched {
        let rows = needs.rows.iter().map(|key| {
            let state = match self.rows.get(key) {
                Some(row) => RowState::Present(Arc::clone(&row.stored)),
                None => RowState::Absent {
                    tombstone: self.tombstones.get(key).copied(),
                },
            };
            (key.clone(), state)
        });
        let results = needs.results.iter().map(|key| {
            let found = match self.results.get(key) {
                Some(result) => ResultLookup::Found(Arc::clone(result)),
                None => ResultLookup::Absent,
            };
            (key.clone(), found)
        });
        let children = needs
            .children
            .iter()
            .map(|key| (key.clone(), self.children(key)));
        Fetched {
            max: self.max,
            rows: rows.collect(),
            results: results.collect(),
            children: children.collect(),
        }
    }

    fn children(&self, key: &ChildrenKey) -> Vec<(RowKey, Arc<StoredRow>)> {
        let limit = usize::try_from(key.limit).unwrap_or(usize::MAX);
        self.table_rows(key.child)
            .filter(|(_, row)| {
                row.values
                    .get(usize::from(key.column))
                    .and_then(render_key)
                    .is_some_and(|parent| parent == *key.parent_row)
            })
            .take(limit)
            .map(|(child, row)| (child.clone(), Arc::clone(&row.stored)))
            .collect()
    }

    pub(super) fn window(&self, query: &WindowQuery) -> Window {
        let mut window = Window {
            commits: Vec::new(),
            scanned_through: query.through,
        };
        let (mut total, mut bytes) = (0, 0_usize);
        if query.after >= query.through {
            return window;
        }
        for commit in self.commits.range(query.after.next()..=query.through) {
            let mut commit = commit.1.clone();
            commit.changes.retain(|change| {
                change.key.table == query.table && scopes::matches(&query.scopes, &change.scopes)
            });
            if commit.changes.is_empty() {
                continue;
            }
            total += commit.changes.len();
            bytes += commit
                .changes
                .iter()
                .map(LoggedChange::bytes)
                .sum::<usize>();
            if let Some(last) = window.commits.last()
                && (total > query.max_changes || bytes > query.max_bytes)
            {
                window.scanned_through = last.seq;
                break;
            }
            window.commits.push(commit);
        }
        window
    }

    pub(super) fn scan(&self, query: &ScanQuery) -> RowPage {
        let after = query.after_row_id.as_deref();
        let matching = self.table_rows(query.table).filter(|(key, row)| {
            after.is_none_or(|after| &*key.row_id > after)
                && scopes::matches(&query.scopes, &row.stored.scopes)
        });
        let (mut rows, mut bytes) = (Vec::new(), 0_usize);
        for (key, row) in matching {
            bytes += row.stored.bytes(&key.row_id);
            if rows.len() == query.limit || (!rows.is_empty() && bytes > query.max_bytes) {
                return RowPage { rows, more: true };
            }
            rows.push((key.row_id.to_string(), (*row.stored).clone()));
        }
        RowPage { rows, more: false }
    }

    pub(super) fn prune(
        &mut self,
        epoch: &LogEpoch,
        through: CommitSeq,
    ) -> Result<Pruned, StoreError> {
        match &self.registry {
            None => return Err(StoreError::UnknownPartition),
            Some((registry, _)) if registry.log_epoch != *epoch => {
                return Err(StoreError::EpochChanged);
            }
            Some(_) => {}
        }
        let previous = self.horizon;
        let before = self.commits.len();
        self.horizon = previous.max(through.min(self.max));
        let horizon = self.horizon;
        if horizon > previous {
            self.commits.retain(|seq, _| *seq > horizon);
            self.tombstones.retain(|_, seq| *seq > horizon);
        }
        Ok(Pruned {
            previous,
            horizon,
            removed: u64::try_from(before - self.commits.len()).unwrap_or(u64::MAX),
        })
    }

    pub(super) fn commit_before(&self, created_before_ms: i64) -> CommitSeq {
        self.commits
            .values()
            .filter(|commit| commit.created_at_ms < created_before_ms)
            .map(|commit| commit.seq)
            .max()
            .unwrap_or_default()
    }
}

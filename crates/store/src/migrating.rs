//! A migration as a list of steps, decided before the first of them runs. The dry
//! run lists the very steps that the migration executes, so it cannot tell a
//! different story (docs/migrations.md rules 1 and 2).

mod rows;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use ssp2::ColumnType;
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::schema::migration::{self, TableChange};
use tidegate_engine::schema::{Schema, StoredLayouts, Table};
use tidegate_engine::{PartitionId, SchemaVersion, TableId};

use crate::error::StoreError;
use crate::operating::{MigrationPlan, TableFate, TablePlan};
use crate::physical::{MetaColumn, PhysicalColumn, verify};
use crate::stored::{check_declaration, refused};
use crate::{Declaration, Partitions};

pub(crate) use rows::{Pages, Rewrite, Uniques};
use steps::steps;

/// Where the SQL of the backends differs.
pub(crate) struct Dialect {
    pub(crate) meta: &'static [MetaColumn],
    pub(crate) create_table: fn(&Table) -> String,
    pub(crate) sql_type: fn(ColumnType) -> &'static str,
    /// Other programs declare JSON columns NOT NULL where the value must be NULL
    /// when the database refuses its text.
    pub(crate) json_becomes_nullable: bool,
}

/// What the catalog says of an app table; empty when there is none.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) columns: Vec<PhysicalColumn>,
    pub(crate) indexes: Vec<String>,
}

/// What a database is found to be, read in one view.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) marker: Option<(SchemaVersion, StoredLayouts)>,
    /// By table of the new schema.
    pub(crate) facts: BTreeMap<String, Facts>,
    /// Incomplete checkpoints of the running version.
    pub(crate) pending: Vec<PendingCheckpoint>,
    /// Every partition that has a log or is registered; for [`Partitions::Every`].
    pub(crate) partitions: Vec<String>,
    /// `(partition, name)` of checkpoints with a declared name that belong to
    /// another version.
    pub(crate) taken: BTreeMap<(String, String), SchemaVersion>,
}

/// One step of a migration.
pub(crate) enum Step {
    /// A statement.
    Run(String),
    /// `CREATE UNIQUE INDEX`: stored rows may break it.
    Unique(UniqueIndex),
    /// The rewrite of a table's rows.
    Rewrite(Rewrite),
}

/// A unique index to create.
pub(crate) struct UniqueIndex {
    pub(crate) sql: String,
    table: String,
    index: String,
    /// A query that gives a row when stored rows break it, where all of its columns
    /// exist already.
    pub(crate) violation: Option<String>,
}

impl UniqueIndex {
    /// Stored rows break it.
    pub(crate) fn broken(&self) -> StoreError {
        broken(&self.table, &self.index)
    }
}

fn broken(table: &str, index: &str) -> StoreError {
    StoreError::RefusedMigration {
        table: table.to_owned(),
        reason: format!("stored rows of table {table} break the unique index {index}"),
    }
}

/// A checkpoint to install, and the fence to raise with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Install {
    pub(crate) partition: String,
    pub(crate) name: String,
    pub(crate) version: SchemaVersion,
}

/// A migration that may run.
pub(crate) struct Migration {
    pub(crate) from: Option<SchemaVersion>,
    pub(crate) steps: Vec<Step>,
    /// Tables that change, in order.
    tables: Vec<(String, TableFate)>,
    pub(crate) changes_layouts: bool,
    pub(crate) installs: Vec<Install>,
}

impl Migration {
    /// Tables that change, in order.
    pub(crate) fn tables(&self) -> &[(String, TableFate)] {
        &self.tables
    }
}

/// What is to be done with a database.
pub(crate) enum Judged {
    /// Nothing: it fits.
    Fits,
    Migrate(Migration),
}

/// Whether the marker alone says that a migration is due.
pub(crate) fn is_older(
    marker: Option<&(SchemaVersion, StoredLayouts)>,
    running: SchemaVersion,
) -> bool {
    marker.is_none_or(|(stored, _)| *stored < running)
}

/// Judges what was found. Reads nothing, writes nothing.
///
/// # Errors
/// The refusals of `ensure_schema` that do not depend on stored rows.
pub(crate) fn judge(
    schema: &Schema,
    dialect: &Dialect,
    found: &Found,
    declarations: &[Declaration],
) -> Result<Judged, StoreError> {
    let running = schema.version();
    let judged = match &found.marker {
        Some((stored, _)) if *stored > running => {
            return Err(StoreError::NewerSchema {
                stored: *stored,
                running,
            });
        }
        Some((stored, layouts)) if *stored == running => {
            if let Some(mismatch) = layouts.mismatch(schema) {
                return Err(StoreError::StoredLayoutMismatch {
                    table: mismatch.table,
                    column: mismatch.column,
                });
            }
            verify_tables(schema, dialect, &found.facts)?;
            Judged::Fits
        }
        marker => {
            let none = StoredLayouts::default();
            let layouts = marker.as_ref().map_or(&none, |(_, layouts)| layouts);
            let mut migration = steps(schema, layouts, dialect, &found.facts)?;
            migration.from = marker.as_ref().map(|(stored, _)| *stored);
            migration.installs = installs(running, found, declarations)?;
            Judged::Migrate(migration)
        }
    };
    let undeclared = found.pending.iter().find(|pending| {
        !declarations.iter().any(|listed| {
            listed.name == pending.name && listed.partitions.contains(&pending.partition)
        })
    });
    match undeclared {
        Some(pending) => Err(StoreError::CheckpointIncomplete(pending.clone())),
        None => Ok(judged),
    }
}

/// How a stored row of a table becomes one of the schema; `None` where the database
/// has no such table yet.
///
/// # Errors
/// The refusals of `ensure_schema` for the stored layouts.
pub(crate) fn reading(
    schema: &Schema,
    marker: Option<&(SchemaVersion, StoredLayouts)>,
    table: TableId,
) -> Result<Option<Rewrite>, StoreError> {
    let Some((stored, layouts)) = marker else {
        return Ok(None);
    };
    let running = schema.version();
    if *stored > running {
        return Err(StoreError::NewerSchema {
            stored: *stored,
            running,
        });
    }
    let plan = migration::plan(layouts, schema).map_err(|refusals| refused(&refusals))?;
    let change = plan.tables.into_iter().find(|change| change.table == table);
    Ok(match change.map(|change| change.change) {
        None | Some(TableChange::Created) => None,
        Some(TableChange::Unchanged) => Some(Rewrite::new(table, None)),
        Some(TableChange::Appended { stored, .. }) => Some(Rewrite::new(table, Some(stored))),
    })
}

/// Compares the catalog with the schema.
///
/// # Errors
/// [`StoreError::PhysicalLayoutMismatch`]
pub(crate) fn verify_tables(
    schema: &Schema,
    dialect: &Dialect,
    facts: &BTreeMap<String, Facts>,
) -> Result<(), StoreError> {
    let none = Facts::default();
    schema.tables().iter().try_for_each(|table| {
        let facts = facts.get(&table.name).unwrap_or(&none);
        verify(table, dialect.meta, &facts.columns)
    })
}

fn installs(
    running: SchemaVersion,
    found: &Found,
    declarations: &[Declaration],
) -> Result<Vec<Install>, StoreError> {
    let mut installs: Vec<Install> = Vec::new();
    let mut seen = BTreeSet::new();
    for declaration in declarations {
        check_declaration(declaration, running)?;
        let partitions: Vec<&str> = match &declaration.partitions {
            Partitions::One(partition) => vec![partition.as_str()],
            Partitions::Every => found.partitions.iter().map(String::as_str).collect(),
        };
        for partition in partitions {
            let version = declaration.schema_version;
            let key = (partition.to_owned(), declaration.name.clone());
            if let Some(existing) = found.taken.get(&key)
                && *existing != version
            {
                return Err(StoreError::CheckpointVersionTaken {
                    name: declaration.name.clone(),
                    existing: *existing,
                });
            }
            if seen.insert((partition, declaration.name.as_str(), version)) {
                installs.push(Install {
                    partition: partition.to_owned(),
                    name: declaration.name.clone(),
                    version,
                });
            }
        }
    }
    let mut versions: BTreeMap<(&str, &str), SchemaVersion> = BTreeMap::new();
    for install in &installs {
        let key = (install.partition.as_str(), install.name.as_str());
        let first = *versions.entry(key).or_insert(install.version);
        if first != install.version {
            return Err(StoreError::CheckpointVersionTaken {
                name: install.name.clone(),
                existing: first,
            });
        }
    }
    Ok(installs)
}

/// The plan for people. `core` are the statements that the core tables lack,
/// `counted` the rows of each table that is rewritten.
pub(crate) fn describe(
    judged: &Judged,
    to: SchemaVersion,
    core: Vec<String>,
    counted: &BTreeMap<String, u64>,
    locks: Vec<String>,
) -> MigrationPlan {
    let mut plan = MigrationPlan {
        from: Some(to),
        to,
        tables: Vec::new(),
        ddl: core,
        locks,
        declarations: Vec::new(),
    };
    if let Judged::Migrate(migration) = judged {
        plan.from = migration.from;
        plan.tables = migration
            .tables
            .iter()
            .map(|(table, change)| TablePlan {
                table: table.clone(),
                change: *change,
                rows_to_rewrite: counted.get(table).copied().unwrap_or(0),
            })
            .collect();
        plan.ddl
            .extend(migration.steps.iter().filter_map(|step| match step {
                Step::Run(sql) => Some(sql.clone()),
                Step::Unique(index) => Some(index.sql.clone()),
                Step::Rewrite(_) => None,
            }));
        plan.declarations = migration
            .installs
            .iter()
            .map(|install| {
                (
                    PartitionId::from(install.partition.as_str()),
                    install.name.clone(),
                )
            })
            .collect();
    }
    plan
}

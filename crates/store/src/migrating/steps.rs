//! From the stored layouts and the catalog to the steps of a migration.

use std::collections::{BTreeMap, BTreeSet};

use ssp2::ColumnType;
use tidegate_engine::schema::migration::{self, TableChange};
use tidegate_engine::schema::{Schema, StoredLayouts, Table};

use super::{Dialect, Facts, Migration, Rewrite, Step, UniqueIndex};
use crate::error::StoreError;
use crate::operating::TableFate;
use crate::physical::{PhysicalColumn, create_index, quote, verify};
use crate::stored::{OWNED_INDEX_PREFIX, changes_layouts, refused};

/// The steps, in order.
///
/// # Errors
/// [`StoreError::RefusedMigration`] and [`StoreError::PhysicalLayoutMismatch`].
pub(super) fn steps(
    schema: &Schema,
    stored: &StoredLayouts,
    dialect: &Dialect,
    facts: &BTreeMap<String, Facts>,
) -> Result<Migration, StoreError> {
    let plan = migration::plan(stored, schema).map_err(|refusals| refused(&refusals))?;
    let none = Facts::default();
    let mut migration = Migration {
        from: None,
        steps: Vec::new(),
        tables: Vec::new(),
        changes_layouts: changes_layouts(&plan),
        installs: Vec::new(),
    };
    let mut indexes = Vec::new();
    for change in &plan.tables {
        let table = schema.table_at(change.table);
        let facts = facts.get(&table.name).unwrap_or(&none);
        let before = migration.steps.len();
        let gained = migrate_table(&mut migration.steps, table, facts, dialect, &change.change)?;
        let altered = migration.steps[before..]
            .iter()
            .any(|step| matches!(step, Step::Run(sql) if sql.starts_with("ALTER")));
        let created = index_steps(table, facts, &gained);
        let fate = match change.change {
            _ if facts.columns.is_empty() => Some(TableFate::Created),
            TableChange::Appended { .. } => Some(TableFate::Appended),
            _ if altered => Some(TableFate::Appended),
            _ if migration.steps.len() > before || !created.is_empty() => {
                Some(TableFate::Reindexed)
            }
            _ => None,
        };
        if let Some(fate) = fate {
            migration.tables.push((table.name.clone(), fate));
        }
        indexes.extend(created);
    }
    for table in &plan.retired {
        retire(&mut migration.steps, table);
        migration.tables.push((table.clone(), TableFate::Retired));
    }
    migration.steps.extend(indexes);
    Ok(migration)
}

/// Creates or aligns a table; the ordinals of the columns that it gains.
fn migrate_table(
    steps: &mut Vec<Step>,
    table: &Table,
    facts: &Facts,
    dialect: &Dialect,
    change: &TableChange,
) -> Result<Vec<usize>, StoreError> {
    if facts.columns.is_empty() {
        steps.push(Step::Run((dialect.create_table)(table)));
        return Ok(Vec::new());
    }
    drop_owned_indexes(steps, table, facts);
    let gained = align_columns(steps, table, facts, dialect)?;
    let (stored, appended_from) = match change {
        TableChange::Appended { stored, columns } => (Some(stored.clone()), columns.start),
        TableChange::Created | TableChange::Unchanged => (None, table.columns.len()),
    };
    // Appended columns are NULL already; others that appear now (a table that
    // begins to have SQL columns) hold what the payload holds.
    let filled: Vec<usize> = gained
        .iter()
        .copied()
        .filter(|ordinal| *ordinal < appended_from)
        .collect();
    if stored.is_some() || !filled.is_empty() {
        steps.push(Step::Rewrite(Rewrite {
            table: table.id,
            stored,
            filled,
        }));
    }
    Ok(gained)
}

/// Drops Tidegate's own indexes of a table, and one under a bare declared name,
/// as older databases have them.
fn drop_owned_indexes(steps: &mut Vec<Step>, table: &Table, facts: &Facts) {
    let declared: BTreeSet<&str> = table
        .indexes
        .iter()
        .map(|index| index.name.as_str())
        .collect();
    for name in &facts.indexes {
        if name.starts_with(OWNED_INDEX_PREFIX) || declared.contains(name.as_str()) {
            steps.push(Step::Run(format!("DROP INDEX {}", quote(name))));
        }
    }
}

/// Adds missing columns, all nullable in SQL, and drops app columns of a table
/// that no longer has any. The result must be what the schema wants: a table of
/// somebody else is found here, before anything is done to it.
fn align_columns(
    steps: &mut Vec<Step>,
    table: &Table,
    facts: &Facts,
    dialect: &Dialect,
) -> Result<Vec<usize>, StoreError> {
    let find = |name: &str| facts.columns.iter().find(|column| column.name == name);
    let mut columns: Vec<PhysicalColumn> = facts.columns.clone();
    let mut alter = |action: String| {
        let name = quote(&table.name);
        steps.push(Step::Run(format!("ALTER TABLE {name} {action}")));
    };
    let mut add = |alter: &mut dyn FnMut(String), name: &str, sql_type: &str| {
        alter(format!("ADD COLUMN {} {sql_type}", quote(name)));
        columns.push(PhysicalColumn {
            name: name.to_owned(),
            sql_type: sql_type.to_owned(),
            not_null: false,
            key_position: 0,
        });
    };
    for column in dialect.meta {
        if !column.not_null && find(column.name).is_none() {
            add(&mut alter, column.name, column.sql_type);
        }
    }
    let mut gained = Vec::new();
    let mut dropped = Vec::new();
    for (ordinal, column) in table.columns.iter().enumerate() {
        match (table.materialize, find(&column.name)) {
            (true, None) => {
                add(&mut alter, &column.name, (dialect.sql_type)(column.ty));
                gained.push(ordinal);
            }
            (true, Some(found))
                if dialect.json_becomes_nullable
                    && found.not_null
                    && column.ty == ColumnType::Json =>
            {
                let name = quote(&column.name);
                alter(format!("ALTER COLUMN {name} DROP NOT NULL"));
            }
            (false, Some(_)) => {
                alter(format!("DROP COLUMN {}", quote(&column.name)));
                dropped.push(column.name.as_str());
            }
            _ => {}
        }
    }
    columns.retain(|column| !dropped.contains(&column.name.as_str()));
    verify(table, dialect.meta, &columns)?;
    Ok(gained)
}

fn index_steps(table: &Table, facts: &Facts, gained: &[usize]) -> Vec<Step> {
    if !table.materialize {
        return Vec::new();
    }
    table
        .indexes
        .iter()
        .map(|index| {
            let sql = create_index(table, index);
            if !index.unique {
                return Step::Run(sql);
            }
            let is_stored = !facts.columns.is_empty()
                && !index.columns.iter().any(|ordinal| gained.contains(ordinal));
            Step::Unique(UniqueIndex {
                sql,
                table: table.name.clone(),
                index: index.name.clone(),
                violation: is_stored.then(|| violation(table, &index.columns)),
            })
        })
        .collect()
}

/// Finds values that a unique index would refuse; NULL never equals anything.
fn violation(table: &Table, ordinals: &[usize]) -> String {
    let columns: Vec<String> = ordinals
        .iter()
        .map(|ordinal| quote(&table.columns[*ordinal].name))
        .collect();
    let present: Vec<String> = columns
        .iter()
        .map(|column| format!("{column} IS NOT NULL"))
        .collect();
    format!(
        "SELECT 1 FROM {} WHERE {} GROUP BY _sync_partition, {} HAVING count(*) > 1 LIMIT 1",
        quote(&table.name),
        present.join(" AND "),
        columns.join(", ")
    )
}

/// Drops a table that the schema no longer has, with all that is kept per row of it.
fn retire(steps: &mut Vec<Step>, table: &str) {
    steps.push(Step::Run(format!("DROP TABLE IF EXISTS {}", quote(table))));
    let literal = table.replace('\'', "''");
    for index in ["sync_row_scopes", "sync_blob_refs", "sync_tombstones"] {
        steps.push(Step::Run(format!(
            "DELETE FROM {index} WHERE tbl='{literal}'"
        )));
    }
}

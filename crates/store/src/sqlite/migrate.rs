//! `ensure_schema`: verification at an equal version, migration from an older
//! one, refusal of a newer one (docs/migrations.md rules 1 and 2).

use std::collections::BTreeSet;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tidegate_engine::SchemaVersion;
use tidegate_engine::schema::migration::{self, TableChange, rewrite_payload};
use tidegate_engine::schema::{StoredLayouts, Table};

use super::catalog;
use super::commit::{bind_value, undeclared};
use super::core_schema;
use super::failure::{during, is_row_constraint, store_error};
use super::plan::{META_COLUMNS, Plan, create_index, create_table, quote, sql_type};
use crate::error::StoreError;
use crate::physical::{PhysicalColumn, verify};
use crate::stored::{changes_layouts, check_declaration, refused};
use crate::{Declaration, Partitions, SchemaOutcome};

const CONTEXT: &str = "migrating the schema";
/// Rows rewritten per page.
const PAGE: i64 = 1000;

/// Runs alone on the writer's connection.
pub(super) fn ensure(
    connection: &mut Connection,
    plan: &Plan,
    declarations: &[Declaration],
    now_ms: i64,
) -> Result<SchemaOutcome, StoreError> {
    core_schema::apply(connection)?;
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(during(CONTEXT))?;
    let running = plan.version();
    let marker = read_marker(&tx)?;
    let outcome = match &marker {
        Some((stored, _)) if *stored > running => {
            return Err(StoreError::NewerSchema {
                stored: *stored,
                running,
            });
        }
        Some((stored, layouts)) if *stored == running => {
            verify_layouts(&tx, plan, layouts)?;
            adopt_log(&tx, running)?;
            SchemaOutcome::Verified
        }
        _ => {
            let from = marker.as_ref().map(|(stored, _)| *stored);
            if let Some(stored) = from {
                adopt_log(&tx, stored)?;
            }
            let layouts = marker.map(|(_, layouts)| layouts).unwrap_or_default();
            migrate(&tx, plan, &layouts)?;
            install(&tx, running, declarations, now_ms)?;
            SchemaOutcome::Migrated { from }
        }
    };
    if let Some(pending) = undeclared(&tx, plan, |partition, name| {
        declarations
            .iter()
            .any(|listed| listed.name == name && listed.partitions.contains(partition))
    })? {
        return Err(StoreError::CheckpointIncomplete(pending));
    }
    tx.commit().map_err(during(CONTEXT))?;
    Ok(outcome)
}

fn read_marker(tx: &Connection) -> Result<Option<(SchemaVersion, StoredLayouts)>, StoreError> {
    let marker: Option<(i32, String)> = tx
        .query_row(
            "SELECT schema_version, layouts FROM sync_schema_meta WHERE id=1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(during(CONTEXT))?;
    marker
        .map(|(version, layouts)| {
            let layouts = StoredLayouts::parse(&layouts).map_err(|_| StoreError::Corrupt {
                what: "the stored layouts",
            })?;
            Ok((SchemaVersion(version), layouts))
        })
        .transpose()
}

fn verify_layouts(tx: &Connection, plan: &Plan, layouts: &StoredLayouts) -> Result<(), StoreError> {
    if let Some(mismatch) = layouts.mismatch(&plan.schema) {
        return Err(StoreError::StoredLayoutMismatch {
            table: mismatch.table,
            column: mismatch.column,
        });
    }
    verify_catalog(tx, plan)
}

fn verify_catalog(tx: &Connection, plan: &Plan) -> Result<(), StoreError> {
    plan.schema
        .tables()
        .iter()
        .try_for_each(|table| verify(table, &META_COLUMNS, &catalog::columns(tx, &table.name)?))
}

/// Another program may have brought the database to `stored`. Then commits that
/// do not say they were written at that version may have an older layout, and no
/// pull may begin below them.
fn adopt_log(tx: &Connection, stored: SchemaVersion) -> Result<(), StoreError> {
    let known = tx
        .prepare("SELECT 1 FROM tidegate_layouts WHERE partition='' AND schema_version=?1")
        .and_then(|mut statement| statement.exists([stored.0]))
        .map_err(during(CONTEXT))?;
    if known {
        return Ok(());
    }
    if stored.0 > 1 {
        tx.execute(
            "INSERT INTO tidegate_layouts(schema_version, partition, head_seq)
             SELECT ?1, partition, max(commit_seq) FROM sync_commits
             WHERE writer_version IS NOT ?1 GROUP BY partition
             ON CONFLICT(partition, schema_version) DO NOTHING",
            [stored.0],
        )
        .map_err(during(CONTEXT))?;
    }
    mark_known(tx, stored)
}

/// The empty partition's row says that the heads of this version are recorded.
fn mark_known(tx: &Connection, version: SchemaVersion) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO tidegate_layouts(schema_version, partition, head_seq) VALUES(?1,'',0)
         ON CONFLICT(partition, schema_version) DO NOTHING",
        [version.0],
    )
    .map(|_| ())
    .map_err(during(CONTEXT))
}

fn migrate(tx: &Connection, plan: &Plan, stored: &StoredLayouts) -> Result<(), StoreError> {
    let steps = migration::plan(stored, &plan.schema).map_err(|refusals| refused(&refusals))?;
    for step in &steps.tables {
        migrate_table(tx, plan.schema.table_at(step.table), &step.change)?;
    }
    for table in &steps.retired {
        retire(tx, table)?;
    }
    for table in plan.schema.tables() {
        create_indexes(tx, table)?;
    }
    verify_catalog(tx, plan)?;
    if changes_layouts(&steps) {
        tx.execute(
            "INSERT INTO tidegate_layouts(schema_version, partition, head_seq)
             SELECT ?1, partition, max_commit_seq FROM sync_partitions WHERE true
             ON CONFLICT(partition, schema_version) DO UPDATE
               SET head_seq=max(head_seq, excluded.head_seq)",
            [plan.version().0],
        )
        .map_err(during(CONTEXT))?;
    }
    mark_known(tx, plan.version())?;
    tx.execute(
        "INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES(1,?1,?2)
         ON CONFLICT(id) DO UPDATE SET schema_version=excluded.schema_version, layouts=excluded.layouts",
        params![plan.version().0, plan.schema.layouts_json()],
    )
    .map(|_| ())
    .map_err(during(CONTEXT))
}

fn migrate_table(tx: &Connection, table: &Table, change: &TableChange) -> Result<(), StoreError> {
    tx.execute_batch(&create_table(table))
        .map_err(during(CONTEXT))?;
    drop_owned_indexes(tx, table)?;
    let physical = catalog::columns(tx, &table.name)?;
    let gained = align_columns(tx, table, &physical)?;
    let (stored, appended_from) = match change {
        TableChange::Appended { stored, columns } => (Some(stored), columns.start),
        TableChange::Created | TableChange::Unchanged => (None, table.columns.len()),
    };
    // Appended columns are NULL already; others that appear now (a table that
    // begins to have SQL columns) hold what the payload holds.
    let filled: Vec<usize> = gained
        .into_iter()
        .filter(|ordinal| *ordinal < appended_from)
        .collect();
    if stored.is_none() && filled.is_empty() {
        return Ok(());
    }
    rewrite_rows(tx, table, stored.map(Vec::as_slice), &filled)
}

/// Adds missing columns, all nullable in SQL, and drops app columns of a table
/// that no longer has any. Returns the ordinals added.
fn align_columns(
    tx: &Connection,
    table: &Table,
    physical: &[PhysicalColumn],
) -> Result<Vec<usize>, StoreError> {
    let exists = |name: &str| physical.iter().any(|column| column.name == name);
    let alter = |action: String| {
        tx.execute_batch(&format!("ALTER TABLE {} {action}", quote(&table.name)))
            .map_err(during(CONTEXT))
    };
    for column in &META_COLUMNS {
        if !column.not_null && !exists(column.name) {
            alter(format!(
                "ADD COLUMN {} {}",
                quote(column.name),
                column.sql_type
            ))?;
        }
    }
    let mut gained = Vec::new();
    for (ordinal, column) in table.columns.iter().enumerate() {
        match (table.materialize, exists(&column.name)) {
            (true, false) => {
                alter(format!(
                    "ADD COLUMN {} {}",
                    quote(&column.name),
                    sql_type(column.ty)
                ))?;
                gained.push(ordinal);
            }
            (false, true) => alter(format!("DROP COLUMN {}", quote(&column.name)))?,
            _ => {}
        }
    }
    Ok(gained)
}

/// Rewrites every payload of a table, page by page in key order.
fn rewrite_rows(
    tx: &Connection,
    table: &Table,
    stored: Option<&[ssp2::Column]>,
    filled: &[usize],
) -> Result<(), StoreError> {
    let corrupt = || StoreError::Corrupt {
        what: "the payload of a row",
    };
    let name = quote(&table.name);
    let mut assignments = String::new();
    for ordinal in filled {
        assignments.push_str(&format!(", {}=?", quote(&table.columns[*ordinal].name)));
    }
    let mut update = tx
        .prepare(&format!(
            "UPDATE {name} SET _sync_payload=?{assignments} WHERE _sync_partition=? AND _sync_row_id=?"
        ))
        .map_err(during(CONTEXT))?;
    let mut page = tx
        .prepare(&format!(
            "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {name}
             WHERE (_sync_partition, _sync_row_id) > (?1, ?2)
             ORDER BY _sync_partition, _sync_row_id LIMIT ?3"
        ))
        .map_err(during(CONTEXT))?;
    // Every key is above ('', ''), but for a row whose key is exactly that.
    let mut after: Option<(String, String)> = None;
    let mut rewritten = 0_usize;
    let mut first = tx
        .prepare(&format!(
            "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {name}
             ORDER BY _sync_partition, _sync_row_id LIMIT ?1"
        ))
        .map_err(during(CONTEXT))?;
    loop {
        let read = |row: &rusqlite::Row<'_>| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, Vec<u8>>(2)?,
            ))
        };
        let rows: Vec<(String, String, Vec<u8>)> = match &after {
            None => first
                .query_map([PAGE], read)
                .and_then(Iterator::collect)
                .map_err(during(CONTEXT))?,
            Some((partition, row_id)) => page
                .query_map(params![partition, row_id, PAGE], read)
                .and_then(Iterator::collect)
                .map_err(during(CONTEXT))?,
        };
        let Some((partition, row_id, _)) = rows.last() else {
            return Ok(());
        };
        after = Some((partition.clone(), row_id.clone()));
        rewritten += rows.len();
        tracing::info!(table = %table.name, rewritten, "rewriting stored rows");
        for (partition, row_id, payload) in rows {
            let mut payload = Bytes::from(payload);
            if let Some(stored) = stored {
                payload =
                    rewrite_payload(stored, &table.columns, &payload).map_err(|_| corrupt())?;
            }
            let values = if filled.is_empty() {
                Vec::new()
            } else {
                ssp2::row::decode_row(&table.columns, &payload).map_err(|_| corrupt())?
            };
            let bind = |update: &mut rusqlite::Statement<'_>| -> rusqlite::Result<()> {
                update.raw_bind_parameter(1, &payload[..])?;
                for (at, ordinal) in filled.iter().enumerate() {
                    bind_value(update, 2 + at, &values[*ordinal])?;
                }
                update.raw_bind_parameter(2 + filled.len(), partition.as_str())?;
                update.raw_bind_parameter(3 + filled.len(), row_id.as_str())?;
                update.raw_execute().map(|_| ())
            };
            bind(&mut update).map_err(during(CONTEXT))?;
        }
    }
}

/// Drops Tidegate's own indexes of a table, and one under a bare declared name,
/// as older databases have them.
fn drop_owned_indexes(tx: &Connection, table: &Table) -> Result<(), StoreError> {
    let declared: BTreeSet<&str> = table
        .indexes
        .iter()
        .map(|index| index.name.as_str())
        .collect();
    for name in catalog::indexes(tx, &table.name)? {
        if name.starts_with(crate::stored::OWNED_INDEX_PREFIX) || declared.contains(name.as_str()) {
            tx.execute_batch(&format!("DROP INDEX {}", quote(&name)))
                .map_err(during(CONTEXT))?;
        }
    }
    Ok(())
}

fn create_indexes(tx: &Connection, table: &Table) -> Result<(), StoreError> {
    if !table.materialize {
        return Ok(());
    }
    for index in &table.indexes {
        tx.execute_batch(&create_index(table, index))
            .map_err(|error| {
                if is_row_constraint(&error) {
                    StoreError::RefusedMigration {
                        table: table.name.clone(),
                        reason: format!("stored rows break the unique index {}", index.name),
                    }
                } else {
                    store_error(CONTEXT, error)
                }
            })?;
    }
    Ok(())
}

/// Drops a table that the schema no longer has, with all that is kept per row of it.
fn retire(tx: &Connection, table: &str) -> Result<(), StoreError> {
    tx.execute_batch(&format!("DROP TABLE IF EXISTS {}", quote(table)))
        .map_err(during(CONTEXT))?;
    for index in ["sync_row_scopes", "sync_blob_refs", "sync_tombstones"] {
        tx.execute(&format!("DELETE FROM {index} WHERE tbl=?1"), [table])
            .map_err(during(CONTEXT))?;
    }
    Ok(())
}

/// Installs every declaration and raises its fence (rule 2).
fn install(
    tx: &Connection,
    running: SchemaVersion,
    declarations: &[Declaration],
    now_ms: i64,
) -> Result<(), StoreError> {
    for declaration in declarations {
        check_declaration(declaration, running)?;
        let partitions = match &declaration.partitions {
            Partitions::One(partition) => vec![partition.as_str().to_owned()],
            Partitions::Every => known_partitions(tx)?,
        };
        for partition in &partitions {
            install_one(tx, partition, declaration, now_ms)?;
        }
    }
    Ok(())
}

/// Every partition that has a log or is registered.
fn known_partitions(tx: &Connection) -> Result<Vec<String>, StoreError> {
    tx.prepare(
        "SELECT partition FROM sync_partitions
         UNION SELECT partition FROM sync_partition_registry ORDER BY 1",
    )
    .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
    .map_err(during(CONTEXT))
}

fn install_one(
    tx: &Connection,
    partition: &str,
    declaration: &Declaration,
    now_ms: i64,
) -> Result<(), StoreError> {
    let existing: Option<i32> = tx
        .query_row(
            "SELECT schema_version FROM sync_backfill_checkpoints WHERE partition=?1 AND name=?2",
            [partition, &declaration.name],
            |row| row.get(0),
        )
        .optional()
        .map_err(during(CONTEXT))?;
    if let Some(existing) = existing
        && existing != declaration.schema_version.0
    {
        return Err(StoreError::CheckpointVersionTaken {
            name: declaration.name.clone(),
            existing: SchemaVersion(existing),
        });
    }
    tx.execute(
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
             VALUES(?1,?2,?3,'declared',?4) ON CONFLICT(partition, name) DO NOTHING",
            params![
                partition,
                declaration.name,
                declaration.schema_version.0,
                now_ms
            ],
        )
        .map_err(during(CONTEXT))?;
    tx.execute(
            "INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES(?1,?2)
             ON CONFLICT(partition) DO UPDATE
               SET required_writer_version=max(required_writer_version, excluded.required_writer_version)",
            params![partition, declaration.schema_version.0],
        )
        .map_err(during(CONTEXT))?;
    Ok(())
}

//! `ensure_schema`: verification at an equal version, migration from an older
//! one, refusal of a newer one; and the dry run of a migration, which lists the
//! steps that the migration executes (docs/migrations.md rules 1 and 2).

use std::collections::BTreeMap;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::schema::{Schema, StoredLayouts};
use tidegate_engine::{PartitionId, SchemaVersion};

use super::catalog;
use super::commit::bind_value;
use super::core_schema;
use super::failure::{during, is_row_constraint, store_error};
use super::plan::{META_COLUMNS, Plan, create_table, quote, sql_type};
use super::readers::in_one_view;
use crate::error::StoreError;
use crate::failpoint::failpoint;
use crate::migrating::{
    Dialect, Facts, Found, Install, Judged, Migration, Pages, Rewrite, Step, Uniques, describe,
    is_older, judge, reading, verify_tables,
};
use crate::operating::{MigrationObserver, MigrationPlan, MigrationStep, SampleQuery, SampledRow};
use crate::{Declaration, Partitions, SchemaOutcome};

const CONTEXT: &str = "migrating the schema";

const DIALECT: Dialect = Dialect {
    meta: &META_COLUMNS,
    create_table,
    sql_type,
    json_becomes_nullable: false,
};

/// Runs alone on the writer's connection.
pub(super) fn ensure(
    connection: &mut Connection,
    plan: &Plan,
    declarations: &[Declaration],
    now_ms: i64,
    observer: &dyn MigrationObserver,
) -> Result<SchemaOutcome, StoreError> {
    core_schema::apply(connection)?;
    let migrates = is_older(read_marker(connection)?.as_ref(), plan.version());
    if migrates {
        observer.step(MigrationStep::WaitingForBarrier);
    }
    // The transaction is the barrier: no other writer of the file is inside.
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(during(CONTEXT))?;
    if migrates {
        observer.step(MigrationStep::BarrierHeld);
        failpoint("migrate.barrier_held");
    }
    // What stands behind the barrier is what counts: another process may have
    // migrated while this one waited.
    let found = find(&tx, &plan.schema, declarations)?;
    let outcome = match judge(&plan.schema, &DIALECT, &found, declarations)? {
        Judged::Fits => {
            adopt_log(&tx, plan.version())?;
            SchemaOutcome::Verified
        }
        Judged::Migrate(migration) => {
            if let Some(stored) = migration.from {
                adopt_log(&tx, stored)?;
            }
            execute(&tx, plan, &migration, observer)?;
            failpoint("migrate.before_marker");
            publish(&tx, plan, &migration)?;
            failpoint("migrate.before_declarations");
            install(&tx, &migration.installs, now_ms)?;
            observer.step(MigrationStep::Publishing);
            failpoint("migrate.before_commit");
            SchemaOutcome::Migrated {
                from: migration.from,
            }
        }
    };
    tx.commit().map_err(during(CONTEXT))?;
    if migrates {
        failpoint("migrate.after_commit");
    }
    Ok(outcome)
}

/// What [`ensure`] would do. Runs on a connection that can only read, in one view:
/// no writer waits for it.
pub(super) fn dry_run(
    connection: &Connection,
    schema: &Schema,
    declarations: &[Declaration],
) -> Result<MigrationPlan, StoreError> {
    in_one_view(connection, |connection| {
        let found = find(connection, schema, declarations)?;
        let judged = judge(schema, &DIALECT, &found, declarations)?;
        let mut counted = BTreeMap::new();
        if let Judged::Migrate(migration) = &judged {
            for step in &migration.steps {
                try_step(connection, schema, step, &mut counted)?;
            }
        }
        let core = core_schema::missing(connection)?;
        let locks = match &judged {
            Judged::Fits if core.is_empty() => Vec::new(),
            _ => vec![
                "the write lock of the database, from beginning to end: other writers wait (at most \
                 their busy timeout), readers go on"
                    .to_owned(),
            ],
        };
        Ok(describe(&judged, schema.version(), core, &counted, locks))
    })
}

/// Rows in the layout of `schema`, whatever the database's is.
pub(super) fn sample_rows(
    connection: &Connection,
    schema: &Schema,
    query: &SampleQuery,
) -> Result<Vec<SampledRow>, StoreError> {
    in_one_view(connection, |connection| {
        let marker = read_marker(connection)?;
        let Some(reading) = reading(schema, marker.as_ref(), query.table)? else {
            return Ok(Vec::new());
        };
        let table = schema.table_at(query.table);
        let sql = format!(
            "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {}
             WHERE ?1 IS NULL OR _sync_partition=?1
             ORDER BY _sync_partition, _sync_row_id LIMIT ?2",
            quote(&table.name)
        );
        let partition = query.partition.as_ref().map(PartitionId::as_str);
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let rows: Vec<StoredPayload> = connection
            .prepare(&sql)
            .and_then(|mut statement| {
                statement
                    .query_map(params![partition, limit], stored_payload)?
                    .collect()
            })
            .map_err(during(CONTEXT))?;
        rows.into_iter()
            .map(|row| {
                Ok(SampledRow {
                    payload: reading.row(table, row.payload)?.0,
                    partition: PartitionId::from(row.partition),
                    row_id: row.row_id,
                })
            })
            .collect()
    })
}

/// Finds what would make a step fail, and counts what it would rewrite.
fn try_step(
    connection: &Connection,
    schema: &Schema,
    step: &Step,
    counted: &mut BTreeMap<String, u64>,
) -> Result<(), StoreError> {
    match step {
        Step::Run(_) => Ok(()),
        Step::Unique(index) => match &index.violation {
            Some(query) if holds(connection, query)? => Err(index.broken()),
            _ => Ok(()),
        },
        Step::Rewrite(rewrite) => {
            let table = schema.table_at(rewrite.table);
            let mut uniques = Uniques::of(table, rewrite);
            let mut rows = 0_u64;
            walk(connection, schema, rewrite, |page| {
                for row in page {
                    let (_, values) = rewrite.row(table, row.payload)?;
                    uniques.row(&row.partition, &values)?;
                    rows += 1;
                }
                Ok(())
            })?;
            counted.insert(table.name.clone(), rows);
            Ok(())
        }
    }
}

fn holds(connection: &Connection, query: &str) -> Result<bool, StoreError> {
    connection
        .prepare(query)
        .and_then(|mut statement| statement.exists([]))
        .map_err(during(CONTEXT))
}

/// Reads everything that decides what is to be done. Any table may be missing.
fn find(
    tx: &Connection,
    schema: &Schema,
    declarations: &[Declaration],
) -> Result<Found, StoreError> {
    let marker = read_marker(tx)?;
    let migrates = is_older(marker.as_ref(), schema.version());
    let mut found = Found {
        marker,
        facts: facts(tx, schema)?,
        ..Found::default()
    };
    if core_schema::exists(tx, "sync_backfill_checkpoints")? {
        found.pending = tx
            .prepare(&super::read::pending_statement(schema.version()))
            .and_then(|mut statement| {
                let pending = |row: &Row<'_>| {
                    Ok(PendingCheckpoint {
                        partition: row.get(0)?,
                        name: row.get(1)?,
                    })
                };
                statement.query_map([], pending)?.collect()
            })
            .map_err(during(CONTEXT))?;
        for declaration in declarations.iter().filter(|_| migrates) {
            let taken: Vec<((String, String), SchemaVersion)> = tx
                .prepare_cached(
                    "SELECT partition, name, schema_version FROM sync_backfill_checkpoints
                     WHERE name=?1 AND schema_version<>?2",
                )
                .and_then(|mut statement| {
                    statement
                        .query_map(
                            params![declaration.name, declaration.schema_version.0],
                            |row| Ok(((row.get(0)?, row.get(1)?), SchemaVersion(row.get(2)?))),
                        )?
                        .collect()
                })
                .map_err(during(CONTEXT))?;
            found.taken.extend(taken);
        }
    }
    let every = |declaration: &Declaration| declaration.partitions == Partitions::Every;
    if migrates && declarations.iter().any(every) {
        found.partitions = known_partitions(tx)?;
    }
    Ok(found)
}

fn facts(tx: &Connection, schema: &Schema) -> Result<BTreeMap<String, Facts>, StoreError> {
    schema
        .tables()
        .iter()
        .map(|table| {
            let facts = Facts {
                columns: catalog::columns(tx, &table.name)?,
                indexes: catalog::indexes(tx, &table.name)?,
            };
            Ok((table.name.clone(), facts))
        })
        .collect()
}

/// Every partition that has a log or is registered.
fn known_partitions(tx: &Connection) -> Result<Vec<String>, StoreError> {
    let mut all = std::collections::BTreeSet::new();
    for table in ["sync_partitions", "sync_partition_registry"] {
        if core_schema::exists(tx, table)? {
            let names: Vec<String> = tx
                .prepare(&format!("SELECT partition FROM {table}"))
                .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
                .map_err(during(CONTEXT))?;
            all.extend(names);
        }
    }
    Ok(all.into_iter().collect())
}

/// The published version; `None` for a new database.
pub(super) fn published_version(
    connection: &Connection,
) -> Result<Option<SchemaVersion>, StoreError> {
    if !core_schema::exists(connection, "sync_schema_meta")? {
        return Ok(None);
    }
    connection
        .query_row(
            "SELECT schema_version FROM sync_schema_meta WHERE id=1",
            [],
            |row| row.get(0).map(SchemaVersion),
        )
        .optional()
        .map_err(during(CONTEXT))
}

fn read_marker(tx: &Connection) -> Result<Option<(SchemaVersion, StoredLayouts)>, StoreError> {
    if !core_schema::exists(tx, "sync_schema_meta")? {
        return Ok(None);
    }
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

/// Runs the steps in order; then the catalog must be what the schema wants.
fn execute(
    tx: &Connection,
    plan: &Plan,
    migration: &Migration,
    observer: &dyn MigrationObserver,
) -> Result<(), StoreError> {
    for step in &migration.steps {
        match step {
            Step::Run(sql) => {
                tracing::debug!(sql, "migrating");
                tx.execute_batch(sql).map_err(during(CONTEXT))?;
                failpoint("migrate.ddl");
            }
            Step::Unique(index) => {
                tracing::debug!(sql = index.sql, "migrating");
                tx.execute_batch(&index.sql).map_err(|error| {
                    if is_row_constraint(&error) {
                        index.broken()
                    } else {
                        store_error(CONTEXT, error)
                    }
                })?;
            }
            Step::Rewrite(rewrite) => rewrite_rows(tx, &plan.schema, rewrite, observer)?,
        }
    }
    verify_tables(&plan.schema, &DIALECT, &facts(tx, &plan.schema)?)
}

/// Raises the layout floors and publishes the marker.
fn publish(tx: &Connection, plan: &Plan, migration: &Migration) -> Result<(), StoreError> {
    if migration.changes_layouts {
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

struct StoredPayload {
    partition: String,
    row_id: String,
    payload: Bytes,
}

fn stored_payload(row: &Row<'_>) -> rusqlite::Result<StoredPayload> {
    Ok(StoredPayload {
        partition: row.get(0)?,
        row_id: row.get(1)?,
        payload: row.get::<_, Vec<u8>>(2)?.into(),
    })
}

/// Walks the rows of a table page by page in key order.
fn walk(
    tx: &Connection,
    schema: &Schema,
    rewrite: &Rewrite,
    mut take: impl FnMut(Vec<StoredPayload>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut pages = Pages::of(schema.table_at(rewrite.table), ["?1", "?1", "?2", "?3"]);
    let mut first = tx.prepare(&pages.first).map_err(during(CONTEXT))?;
    let mut next = tx.prepare(&pages.next).map_err(during(CONTEXT))?;
    let mut after: Option<(String, String)> = None;
    loop {
        // No key is known to be below all others, so the first page has none.
        let page: Vec<StoredPayload> = match &after {
            None => first.query_map([pages.rows()], stored_payload),
            Some((partition, row_id)) => {
                next.query_map(params![partition, row_id, pages.rows()], stored_payload)
            }
        }
        .and_then(Iterator::collect)
        .map_err(during(CONTEXT))?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after = Some((last.partition.clone(), last.row_id.clone()));
        pages.learn(page.len(), page.iter().map(|row| row.payload.len()).sum());
        take(page)?;
    }
}

/// Rewrites every row of a table.
fn rewrite_rows(
    tx: &Connection,
    schema: &Schema,
    rewrite: &Rewrite,
    observer: &dyn MigrationObserver,
) -> Result<(), StoreError> {
    let table = schema.table_at(rewrite.table);
    let name = quote(&table.name);
    let rows_total: i64 = tx
        .query_row(&format!("SELECT count(*) FROM {name}"), [], |row| {
            row.get(0)
        })
        .map_err(during(CONTEXT))?;
    tracing::info!(table = %table.name, rows = rows_total, "rewriting stored rows");
    let mut assignments = String::new();
    for ordinal in &rewrite.filled {
        assignments.push_str(&format!(", {}=?", quote(&table.columns[*ordinal].name)));
    }
    let mut update = tx
        .prepare(&format!(
            "UPDATE {name} SET _sync_payload=?{assignments} WHERE _sync_partition=? AND _sync_row_id=?"
        ))
        .map_err(during(CONTEXT))?;
    let filled = &rewrite.filled;
    let mut rows_done = 0_u64;
    walk(tx, schema, rewrite, |page| {
        for row in page {
            let (payload, values) = rewrite.row(table, row.payload)?;
            let bind = |update: &mut rusqlite::Statement<'_>| -> rusqlite::Result<()> {
                update.raw_bind_parameter(1, &payload[..])?;
                for (at, ordinal) in filled.iter().enumerate() {
                    bind_value(update, 2 + at, &values[*ordinal])?;
                }
                update.raw_bind_parameter(2 + filled.len(), row.partition.as_str())?;
                update.raw_bind_parameter(3 + filled.len(), row.row_id.as_str())?;
                update.raw_execute().map(|_| ())
            };
            bind(&mut update).map_err(during(CONTEXT))?;
            rows_done += 1;
        }
        observer.step(MigrationStep::Rewriting {
            table: table.name.clone(),
            rows_done,
            rows_total: rows_total.unsigned_abs(),
        });
        failpoint("migrate.page");
        Ok(())
    })
}

/// Installs every declaration and raises its fence (rule 2).
fn install(tx: &Connection, installs: &[Install], now_ms: i64) -> Result<(), StoreError> {
    let run = |install: &Install| -> rusqlite::Result<()> {
        tx.prepare_cached(
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
             VALUES(?1,?2,?3,'declared',?4) ON CONFLICT(partition, name) DO NOTHING",
        )?
        .execute(params![
            install.partition,
            install.name,
            install.version.0,
            now_ms
        ])?;
        tx.prepare_cached(
            "INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES(?1,?2)
             ON CONFLICT(partition) DO UPDATE
               SET required_writer_version=max(required_writer_version, excluded.required_writer_version)",
        )?
        .execute(params![install.partition, install.version.0])
        .map(|_| ())
    };
    installs
        .iter()
        .try_for_each(|install| run(install).map_err(during(CONTEXT)))
}

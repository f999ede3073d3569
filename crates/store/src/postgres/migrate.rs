//! `ensure_schema`: verification at an equal version, migration from an older
//! one, refusal of a newer one; and the dry run of a migration, which lists the
//! steps that the migration executes (docs/migrations.md rules 1 and 2).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::schema::{Schema, StoredLayouts, Table};
use tidegate_engine::{PartitionId, SchemaVersion};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::catalog;
use super::connection::{Param, references};
use super::core_schema::{self, BARRIER};
use super::failure::{during, store_error};
use super::plan::{META_COLUMNS, Plan, array_type, create_table, quote, sql_type};
use super::read::schema_version;
use super::rows::column_array;
use super::source_rows;
use crate::error::StoreError;
use crate::failpoint::pausing_failpoint;
use crate::migrating::{
    Dialect, Facts, Found, Install, Judged, Migration, Pages, Rewrite, Step, Uniques, describe,
    is_older, judge, reading, verify_tables,
};
use crate::operating::{
    MigrationObserver, MigrationPlan, MigrationStep, SampleQuery, SampledRow, TableFate,
};
use crate::{Declaration, Partitions, SchemaOutcome};

const CONTEXT: &str = "migrating the schema";

const DIALECT: Dialect = Dialect {
    meta: &META_COLUMNS,
    create_table,
    sql_type,
    json_becomes_nullable: true,
};

/// Runs on a connection of its own, whose timeouts the caller has set.
pub(super) async fn ensure(
    client: &Client,
    plan: &Plan,
    declarations: &[Declaration],
    now_ms: i64,
    observer: &dyn MigrationObserver,
) -> Result<SchemaOutcome, StoreError> {
    core_schema::apply(client).await?;
    let mut barrier = is_older(read_marker(client).await?.as_ref(), plan.version());
    loop {
        if barrier {
            observer.step(MigrationStep::WaitingForBarrier);
        }
        run(client, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        if barrier {
            // Nothing precedes it in this transaction.
            run(client, BARRIER).await?;
            observer.step(MigrationStep::BarrierHeld);
            pausing_failpoint("migrate.barrier_held").await;
        }
        let outcome = inside(client, plan, declarations, now_ms, observer, barrier).await;
        let end = match &outcome {
            Ok(Some(_)) => run(client, "COMMIT").await,
            _ => run(client, "ROLLBACK").await,
        };
        match outcome {
            Ok(Some(outcome)) => {
                if barrier {
                    pausing_failpoint("migrate.after_commit").await;
                }
                return end.map(|()| outcome);
            }
            // The marker fell since it was read, as after a restore: begin again.
            Ok(None) => end?,
            Err(error) => return Err(error),
        }
        barrier = true;
    }
}

/// `None` where a migration is due that has no barrier.
async fn inside(
    client: &Client,
    plan: &Plan,
    declarations: &[Declaration],
    now_ms: i64,
    observer: &dyn MigrationObserver,
    barrier: bool,
) -> Result<Option<SchemaOutcome>, StoreError> {
    // What stands behind the barrier is what counts: another process may have
    // migrated while this one waited.
    let found = find(client, &plan.schema, declarations).await?;
    match judge(&plan.schema, &DIALECT, &found, declarations)? {
        Judged::Fits => {
            adopt_log(client, plan.version()).await?;
            Ok(Some(SchemaOutcome::Verified))
        }
        Judged::Migrate(_) if !barrier => Ok(None),
        Judged::Migrate(migration) => {
            if let Some(stored) = migration.from {
                adopt_log(client, stored).await?;
            }
            execute_steps(client, plan, &migration, observer).await?;
            for statement in source_rows::byte_order_indexes(client, &plan.schema).await? {
                run(client, &statement).await?;
            }
            pausing_failpoint("migrate.before_marker").await;
            publish(client, plan, &migration).await?;
            pausing_failpoint("migrate.before_declarations").await;
            install(client, &migration.installs, now_ms).await?;
            observer.step(MigrationStep::Publishing);
            pausing_failpoint("migrate.before_commit").await;
            Ok(Some(SchemaOutcome::Migrated {
                from: migration.from,
            }))
        }
    }
}

/// What [`ensure`] would do. One read-only view, which no writer waits for.
pub(super) async fn dry_run(
    client: &Client,
    schema: &Schema,
    declarations: &[Declaration],
) -> Result<MigrationPlan, StoreError> {
    run(client, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let plan = dry_run_inside(client, schema, declarations).await;
    // Nothing was written: only the connection would mind a failure here.
    let _ = client.batch_execute("ROLLBACK").await;
    plan
}

async fn dry_run_inside(
    client: &Client,
    schema: &Schema,
    declarations: &[Declaration],
) -> Result<MigrationPlan, StoreError> {
    let found = find(client, schema, declarations).await?;
    let judged = judge(schema, &DIALECT, &found, declarations)?;
    let mut counted = BTreeMap::new();
    if let Judged::Migrate(migration) = &judged {
        for step in &migration.steps {
            try_step(client, schema, step, &mut counted).await?;
        }
    }
    let mut core = core_schema::missing(client).await?;
    let mut locks = Vec::new();
    if !core.is_empty() {
        locks.push(
            "EXCLUSIVE on sync_partitions while the core tables are brought up to date: commits wait, reads go on"
                .to_owned(),
        );
    }
    if let Judged::Migrate(migration) = &judged {
        core.extend(source_rows::byte_order_indexes(client, schema).await?);
        locks.push(
            "EXCLUSIVE on sync_partitions, first of all and until the end: commits wait, reads go on".to_owned(),
        );
        for (table, fate) in migration.tables() {
            if *fate != TableFate::Created {
                locks.push(format!(
                    "ACCESS EXCLUSIVE on {table}, from its first statement to the end: its reads wait too"
                ));
            }
        }
    }
    Ok(describe(&judged, schema.version(), core, &counted, locks))
}

/// Rows in the layout of `schema`, whatever the database's is.
pub(super) async fn sample_rows(
    client: &Client,
    schema: &Schema,
    query: &SampleQuery,
) -> Result<Vec<SampledRow>, StoreError> {
    run(client, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let rows = sample_rows_inside(client, schema, query).await;
    let _ = client.batch_execute("ROLLBACK").await;
    rows
}

async fn sample_rows_inside(
    client: &Client,
    schema: &Schema,
    query: &SampleQuery,
) -> Result<Vec<SampledRow>, StoreError> {
    let marker = read_marker(client).await?;
    let Some(reading) = reading(schema, marker.as_ref(), query.table)? else {
        return Ok(Vec::new());
    };
    let table = schema.table_at(query.table);
    let sql = format!(
        "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {}
         WHERE $1::text IS NULL OR _sync_partition=$1
         ORDER BY _sync_partition, _sync_row_id LIMIT $2::bigint",
        quote(&table.name)
    );
    let partition = query.partition.as_ref().map(PartitionId::as_str);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let rows = client
        .query(&sql, &[&partition, &limit])
        .await
        .map_err(during(CONTEXT))?;
    rows.iter()
        .map(|row| {
            Ok(SampledRow {
                partition: PartitionId::from(row.try_get::<_, &str>(0).map_err(during(CONTEXT))?),
                row_id: row.try_get(1).map_err(during(CONTEXT))?,
                payload: reading.row(table, payload(row)?)?.0,
            })
        })
        .collect()
}

/// Finds what would make a step fail, and counts what it would rewrite.
async fn try_step(
    client: &Client,
    schema: &Schema,
    step: &Step,
    counted: &mut BTreeMap<String, u64>,
) -> Result<(), StoreError> {
    match step {
        Step::Run(_) => Ok(()),
        Step::Unique(index) => {
            let Some(query) = &index.violation else {
                return Ok(());
            };
            let violated = client.query_opt(query, &[]).await;
            match violated.map_err(during(CONTEXT))? {
                Some(_) => Err(index.broken()),
                None => Ok(()),
            }
        }
        Step::Rewrite(rewrite) => {
            let table = schema.table_at(rewrite.table);
            let mut uniques = Uniques::of(table, rewrite);
            let mut walk = Walk::of(table);
            let mut rows = 0_u64;
            while let Some(page) = walk.page(client).await? {
                for row in &page {
                    let (_, values) = rewrite.row(table, payload(row)?)?;
                    uniques.row(row.try_get(0).map_err(during(CONTEXT))?, &values)?;
                    rows += 1;
                }
            }
            counted.insert(table.name.clone(), rows);
            Ok(())
        }
    }
}

async fn run(client: &Client, sql: &str) -> Result<(), StoreError> {
    client.batch_execute(sql).await.map_err(during(CONTEXT))
}

async fn execute(
    client: &Client,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<(), StoreError> {
    client
        .execute(sql, params)
        .await
        .map(|_| ())
        .map_err(during(CONTEXT))
}

/// Whether there is such a table.
async fn exists(client: &Client, table: &str) -> Result<bool, StoreError> {
    client
        .query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(during(CONTEXT))
}

/// Reads everything that decides what is to be done. Any table may be missing.
async fn find(
    client: &Client,
    schema: &Schema,
    declarations: &[Declaration],
) -> Result<Found, StoreError> {
    let marker = read_marker(client).await?;
    let migrates = is_older(marker.as_ref(), schema.version());
    let mut found = Found {
        marker,
        facts: facts(client, schema).await?,
        ..Found::default()
    };
    if exists(client, "sync_backfill_checkpoints").await? {
        let rows = client
            .query(
                "SELECT partition, name FROM sync_backfill_checkpoints
                 WHERE schema_version=$1 AND state <> 'activated'",
                &[&schema.version().0],
            )
            .await
            .map_err(during(CONTEXT))?;
        for row in rows {
            found.pending.push(PendingCheckpoint {
                partition: row.try_get(0).map_err(during(CONTEXT))?,
                name: row.try_get(1).map_err(during(CONTEXT))?,
            });
        }
        for declaration in declarations.iter().filter(|_| migrates) {
            let rows = client
                .query(
                    "SELECT partition, name, schema_version FROM sync_backfill_checkpoints
                     WHERE name=$1 AND schema_version<>$2",
                    &[&declaration.name, &declaration.schema_version.0],
                )
                .await
                .map_err(during(CONTEXT))?;
            for row in rows {
                found.taken.insert(
                    (
                        row.try_get(0).map_err(during(CONTEXT))?,
                        row.try_get(1).map_err(during(CONTEXT))?,
                    ),
                    SchemaVersion(row.try_get(2).map_err(during(CONTEXT))?),
                );
            }
        }
    }
    let every = |declaration: &Declaration| declaration.partitions == Partitions::Every;
    if migrates && declarations.iter().any(every) {
        found.partitions = known_partitions(client).await?;
    }
    Ok(found)
}

async fn facts(client: &Client, schema: &Schema) -> Result<BTreeMap<String, Facts>, StoreError> {
    let mut all = BTreeMap::new();
    for table in schema.tables() {
        let facts = Facts {
            columns: catalog::columns(client, &table.name).await?,
            indexes: catalog::indexes(client, &table.name).await?,
        };
        all.insert(table.name.clone(), facts);
    }
    Ok(all)
}

/// Every partition that has a log or is registered. Under the barrier none gets its
/// first commit meanwhile.
async fn known_partitions(client: &Client) -> Result<Vec<String>, StoreError> {
    let mut all = BTreeSet::new();
    for table in ["sync_partitions", "sync_partition_registry"] {
        if exists(client, table).await? {
            let rows = client
                .query(&format!("SELECT partition FROM {table}"), &[])
                .await
                .map_err(during(CONTEXT))?;
            for row in rows {
                all.insert(row.try_get(0).map_err(during(CONTEXT))?);
            }
        }
    }
    Ok(all.into_iter().collect())
}

/// The published version; `None` for a new database.
pub(super) async fn published_version(
    client: &Client,
) -> Result<Option<SchemaVersion>, StoreError> {
    if !exists(client, "sync_schema_meta").await? {
        return Ok(None);
    }
    let row = client
        .query_opt(
            "SELECT schema_version::bigint FROM sync_schema_meta WHERE id=1",
            &[],
        )
        .await
        .map_err(during(CONTEXT))?;
    row.map(|row| row.try_get(0).map(schema_version).map_err(during(CONTEXT)))
        .transpose()
}

async fn read_marker(
    client: &Client,
) -> Result<Option<(SchemaVersion, StoredLayouts)>, StoreError> {
    if !exists(client, "sync_schema_meta").await? {
        return Ok(None);
    }
    let row = client
        .query_opt(
            "SELECT schema_version::bigint, layouts FROM sync_schema_meta WHERE id=1",
            &[],
        )
        .await
        .map_err(during(CONTEXT))?;
    row.map(|row| {
        let stored: i64 = row.try_get(0).map_err(during(CONTEXT))?;
        let text: &str = row.try_get(1).map_err(during(CONTEXT))?;
        let layouts = StoredLayouts::parse(text).map_err(|_| StoreError::Corrupt {
            what: "the stored layouts",
        })?;
        Ok((schema_version(stored), layouts))
    })
    .transpose()
}

/// Another program may have brought the database to `stored`. Then commits that
/// do not say they were written at that version may have an older layout, and no
/// pull may begin below them.
async fn adopt_log(client: &Client, stored: SchemaVersion) -> Result<(), StoreError> {
    let known = client
        .query_opt(
            "SELECT 1 FROM tidegate_layouts WHERE partition='' AND schema_version=$1",
            &[&stored.0],
        )
        .await
        .map_err(during(CONTEXT))?;
    if known.is_some() {
        return Ok(());
    }
    if stored.0 > 1 {
        execute(
            client,
            "INSERT INTO tidegate_layouts(schema_version, partition, head_seq)
             SELECT $1, partition, max(commit_seq) FROM sync_commits
             WHERE writer_version IS DISTINCT FROM $1::integer GROUP BY partition
             ON CONFLICT(partition, schema_version) DO NOTHING",
            &[&stored.0],
        )
        .await?;
    }
    mark_known(client, stored).await
}

/// The empty partition's row says that the heads of this version are recorded.
async fn mark_known(client: &Client, version: SchemaVersion) -> Result<(), StoreError> {
    execute(
        client,
        "INSERT INTO tidegate_layouts(schema_version, partition, head_seq) VALUES($1,'',0)
         ON CONFLICT(partition, schema_version) DO NOTHING",
        &[&version.0],
    )
    .await
}

/// Runs the steps in order; then the catalog must be what the schema wants.
async fn execute_steps(
    client: &Client,
    plan: &Plan,
    migration: &Migration,
    observer: &dyn MigrationObserver,
) -> Result<(), StoreError> {
    for step in &migration.steps {
        match step {
            Step::Run(sql) => {
                tracing::debug!(sql, "migrating");
                run(client, sql).await?;
                pausing_failpoint("migrate.ddl").await;
            }
            Step::Unique(index) => {
                tracing::debug!(sql = index.sql, "migrating");
                client.batch_execute(&index.sql).await.map_err(|error| {
                    if error.code() == Some(&SqlState::UNIQUE_VIOLATION) {
                        index.broken()
                    } else {
                        store_error(CONTEXT, error)
                    }
                })?;
            }
            Step::Rewrite(rewrite) => {
                let table = plan.schema.table_at(rewrite.table);
                rewrite_rows(client, table, rewrite, observer).await?;
            }
        }
    }
    verify_tables(&plan.schema, &DIALECT, &facts(client, &plan.schema).await?)
}

/// Raises the layout floors and publishes the marker.
async fn publish(client: &Client, plan: &Plan, migration: &Migration) -> Result<(), StoreError> {
    if migration.changes_layouts {
        execute(
            client,
            "INSERT INTO tidegate_layouts AS l (schema_version, partition, head_seq)
             SELECT $1, partition, max_commit_seq FROM sync_partitions
             ON CONFLICT(partition, schema_version) DO UPDATE
               SET head_seq=greatest(l.head_seq, excluded.head_seq)",
            &[&plan.version().0],
        )
        .await?;
    }
    mark_known(client, plan.version()).await?;
    execute(
        client,
        "INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES(1,$1::integer,$2)
         ON CONFLICT(id) DO UPDATE SET schema_version=excluded.schema_version, layouts=excluded.layouts",
        &[&plan.version().0, &plan.schema.layouts_json()],
    )
    .await
}

/// The rows of a table, page by page in key order.
struct Walk {
    pages: Pages,
    after: Option<(String, String)>,
}

impl Walk {
    fn of(table: &Table) -> Self {
        Self {
            pages: Pages::of(table, ["$1", "$1", "$2", "$3"]),
            after: None,
        }
    }

    /// Rows of partition, row id and payload; `None` at the end.
    async fn page(&mut self, client: &Client) -> Result<Option<Vec<Row>>, StoreError> {
        let limit = self.pages.rows();
        // No key is known to be below all others, so the first page has none.
        let rows = match &self.after {
            None => client.query(&self.pages.first, &[&limit]).await,
            Some((partition, row_id)) => {
                let params: [&(dyn ToSql + Sync); 3] = [partition, row_id, &limit];
                client.query(&self.pages.next, &params).await
            }
        };
        let rows = rows.map_err(during(CONTEXT))?;
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        self.after = Some((
            last.try_get(0).map_err(during(CONTEXT))?,
            last.try_get(1).map_err(during(CONTEXT))?,
        ));
        let bytes = rows.iter().map(|row| row.raw_size_bytes()).sum();
        self.pages.learn(rows.len(), bytes);
        Ok(Some(rows))
    }
}

fn payload(row: &Row) -> Result<Bytes, StoreError> {
    let bytes: &[u8] = row.try_get(2).map_err(during(CONTEXT))?;
    Ok(Bytes::copy_from_slice(bytes))
}

/// The statement that rewrites a page: arrays of partitions, row ids and payloads,
/// then one of each filled column.
fn update_page(table: &Table, filled: &[usize]) -> String {
    let (mut assignments, mut arrays, mut aliases) = (String::new(), String::new(), String::new());
    for (n, ordinal) in filled.iter().enumerate() {
        let column = &table.columns[*ordinal];
        let cast = if column.ty == ssp2::ColumnType::Json {
            "::jsonb"
        } else {
            ""
        };
        assignments.push_str(&format!(", {}=u.v{n}{cast}", quote(&column.name)));
        arrays.push_str(&format!(", ${}::{}", 4 + n, array_type(column.ty)));
        aliases.push_str(&format!(", v{n}"));
    }
    format!(
        "UPDATE {} AS t SET _sync_payload=u.payload{assignments}
         FROM unnest($1::text[], $2::text[], $3::bytea[]{arrays}) AS u(partition, id, payload{aliases})
         WHERE t._sync_partition=u.partition AND t._sync_row_id=u.id",
        quote(&table.name)
    )
}

/// Rewrites every row of a table.
async fn rewrite_rows(
    client: &Client,
    table: &Table,
    rewrite: &Rewrite,
    observer: &dyn MigrationObserver,
) -> Result<(), StoreError> {
    let rows_total: i64 = client
        .query_one(&format!("SELECT count(*) FROM {}", quote(&table.name)), &[])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(during(CONTEXT))?;
    tracing::info!(table = %table.name, rows = rows_total, "rewriting stored rows");
    let filled = &rewrite.filled;
    let update = client
        .prepare(&update_page(table, filled))
        .await
        .map_err(during(CONTEXT))?;
    let mut walk = Walk::of(table);
    let mut rows_done = 0;
    while let Some(rows) = walk.page(client).await? {
        let (mut partitions, mut ids) = (Vec::<&str>::new(), Vec::<&str>::new());
        let (mut payloads, mut values) = (Vec::<Bytes>::new(), Vec::new());
        for row in &rows {
            partitions.push(row.try_get(0).map_err(during(CONTEXT))?);
            ids.push(row.try_get(1).map_err(during(CONTEXT))?);
            let (payload, decoded) = rewrite.row(table, payload(row)?)?;
            payloads.push(payload);
            values.push(decoded);
        }
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
        let mut params: Vec<Param<'_>> =
            vec![Box::new(partitions), Box::new(ids), Box::new(payloads)];
        for ordinal in filled {
            let column: Vec<_> = values.iter().map(|row| row.get(*ordinal)).collect();
            params.push(column_array(table.columns[*ordinal].ty, &column));
        }
        client
            .execute(&update, &references(&params))
            .await
            .map_err(during(CONTEXT))?;
        rows_done += rows.len() as u64;
        observer.step(MigrationStep::Rewriting {
            table: table.name.clone(),
            rows_done,
            rows_total: rows_total.unsigned_abs(),
        });
        pausing_failpoint("migrate.page").await;
    }
    Ok(())
}

/// Installs every declaration and raises its fence (rule 2).
async fn install(client: &Client, installs: &[Install], now_ms: i64) -> Result<(), StoreError> {
    if installs.is_empty() {
        return Ok(());
    }
    let partitions: Vec<&str> = installs.iter().map(|one| one.partition.as_str()).collect();
    let names: Vec<&str> = installs.iter().map(|one| one.name.as_str()).collect();
    let versions: Vec<i32> = installs.iter().map(|one| one.version.0).collect();
    execute(
        client,
        "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
         SELECT i.partition, i.name, i.version, 'declared', $4::bigint
         FROM unnest($1::text[], $2::text[], $3::integer[]) AS i(partition, name, version)
         ON CONFLICT(partition, name) DO NOTHING",
        &[&partitions, &names, &versions, &now_ms],
    )
    .await?;
    execute(
        client,
        "INSERT INTO sync_writer_fence AS f (partition, required_writer_version)
         SELECT i.partition, max(i.version)
         FROM unnest($1::text[], $2::integer[]) AS i(partition, version) GROUP BY i.partition
         ON CONFLICT(partition) DO UPDATE
           SET required_writer_version=greatest(f.required_writer_version, excluded.required_writer_version)",
        &[&partitions, &versions],
    )
    .await
}

//! `ensure_schema`: verification at an equal version, migration from an older
//! one, refusal of a newer one (docs/migrations.md rules 1 and 2).

use std::collections::BTreeSet;

use bytes::Bytes;
use tidegate_engine::SchemaVersion;
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::schema::migration::{self, TableChange, rewrite_payload};
use tidegate_engine::schema::{StoredLayouts, Table};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::batch::column_array;
use super::catalog;
use super::connection::{Param, references};
use super::core_schema::{self, BARRIER};
use super::failure::{during, store_error};
use super::plan::{META_COLUMNS, Plan, array_type, create_index, create_table, quote, sql_type};
use super::read::schema_version;
use crate::error::StoreError;
use crate::physical::{PhysicalColumn, verify};
use crate::stored::{OWNED_INDEX_PREFIX, changes_layouts, check_declaration, refused};
use crate::{Declaration, Partitions, SchemaOutcome};

const CONTEXT: &str = "migrating the schema";
/// Rows rewritten per page.
const PAGE: i64 = 1000;

/// Runs on a connection of its own, whose timeouts the caller has set.
pub(super) async fn ensure(
    client: &Client,
    plan: &Plan,
    declarations: &[Declaration],
    now_ms: i64,
) -> Result<SchemaOutcome, StoreError> {
    core_schema::apply(client).await?;
    let marker = read_marker(client).await?;
    run(client, "BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    if marker.is_none_or(|(stored, _)| stored < plan.version()) {
        run(client, BARRIER).await?;
    }
    // What stands behind the barrier is what counts: another process may have
    // migrated while this one waited.
    let outcome = inside(client, plan, declarations, now_ms).await;
    match outcome {
        Ok(outcome) => {
            run(client, "COMMIT").await?;
            Ok(outcome)
        }
        Err(error) => {
            let _ = client.batch_execute("ROLLBACK").await;
            Err(error)
        }
    }
}

async fn inside(
    client: &Client,
    plan: &Plan,
    declarations: &[Declaration],
    now_ms: i64,
) -> Result<SchemaOutcome, StoreError> {
    let running = plan.version();
    let marker = read_marker(client).await?;
    let outcome = match marker {
        Some((stored, _)) if stored > running => {
            return Err(StoreError::NewerSchema { stored, running });
        }
        Some((stored, layouts)) if stored == running => {
            if let Some(mismatch) = layouts.mismatch(&plan.schema) {
                return Err(StoreError::StoredLayoutMismatch {
                    table: mismatch.table,
                    column: mismatch.column,
                });
            }
            verify_catalog(client, plan).await?;
            adopt_log(client, running).await?;
            SchemaOutcome::Verified
        }
        marker => {
            let (from, layouts) = marker.unzip();
            if let Some(stored) = from {
                adopt_log(client, stored).await?;
            }
            migrate(client, plan, &layouts.unwrap_or_default()).await?;
            install(client, running, declarations, now_ms).await?;
            SchemaOutcome::Migrated { from }
        }
    };
    refuse_undeclared(client, running, declarations).await?;
    Ok(outcome)
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

async fn read_marker(
    client: &Client,
) -> Result<Option<(SchemaVersion, StoredLayouts)>, StoreError> {
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

async fn refuse_undeclared(
    client: &Client,
    running: SchemaVersion,
    declarations: &[Declaration],
) -> Result<(), StoreError> {
    let rows = client
        .query(
            "SELECT partition, name FROM sync_backfill_checkpoints
             WHERE schema_version=$1 AND state <> 'activated'",
            &[&running.0],
        )
        .await
        .map_err(during(CONTEXT))?;
    for row in rows {
        let partition: String = row.try_get(0).map_err(during(CONTEXT))?;
        let name: String = row.try_get(1).map_err(during(CONTEXT))?;
        let listed = declarations.iter().any(|declaration| {
            declaration.partitions.contains(&partition) && declaration.name == name
        });
        if !listed {
            return Err(StoreError::CheckpointIncomplete(PendingCheckpoint {
                partition,
                name,
            }));
        }
    }
    Ok(())
}

async fn verify_catalog(client: &Client, plan: &Plan) -> Result<(), StoreError> {
    for table in plan.schema.tables() {
        verify(
            table,
            &META_COLUMNS,
            &catalog::columns(client, &table.name).await?,
        )?;
    }
    Ok(())
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

async fn migrate(client: &Client, plan: &Plan, stored: &StoredLayouts) -> Result<(), StoreError> {
    let steps = migration::plan(stored, &plan.schema).map_err(|refusals| refused(&refusals))?;
    for step in &steps.tables {
        migrate_table(client, plan.schema.table_at(step.table), &step.change).await?;
    }
    for table in &steps.retired {
        retire(client, table).await?;
    }
    for table in plan.schema.tables() {
        create_indexes(client, table).await?;
    }
    verify_catalog(client, plan).await?;
    if changes_layouts(&steps) {
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

async fn migrate_table(
    client: &Client,
    table: &Table,
    change: &TableChange,
) -> Result<(), StoreError> {
    run(client, &create_table(table)).await?;
    drop_owned_indexes(client, table).await?;
    let physical = catalog::columns(client, &table.name).await?;
    let gained = align_columns(client, table, &physical).await?;
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
    rewrite_rows(client, table, stored.map(Vec::as_slice), &filled).await
}

/// Adds missing columns, all nullable in SQL, and drops app columns of a table
/// that no longer has any. Returns the ordinals added.
async fn align_columns(
    client: &Client,
    table: &Table,
    physical: &[PhysicalColumn],
) -> Result<Vec<usize>, StoreError> {
    let find = |name: &str| physical.iter().find(|column| column.name == name);
    let alter = async |action: String| {
        run(
            client,
            &format!("ALTER TABLE {} {action}", quote(&table.name)),
        )
        .await
    };
    for column in &META_COLUMNS {
        if !column.not_null && find(column.name).is_none() {
            alter(format!(
                "ADD COLUMN {} {}",
                quote(column.name),
                column.sql_type
            ))
            .await?;
        }
    }
    let mut gained = Vec::new();
    for (ordinal, column) in table.columns.iter().enumerate() {
        let name = quote(&column.name);
        match (table.materialize, find(&column.name)) {
            (true, None) => {
                alter(format!("ADD COLUMN {name} {}", sql_type(column.ty))).await?;
                gained.push(ordinal);
            }
            // Other programs declare it NOT NULL; a text that `jsonb` refuses needs NULL.
            (true, Some(found)) if found.not_null && column.ty == ssp2::ColumnType::Json => {
                alter(format!("ALTER COLUMN {name} DROP NOT NULL")).await?;
            }
            (false, Some(_)) => alter(format!("DROP COLUMN {name}")).await?,
            _ => {}
        }
    }
    Ok(gained)
}

/// Rewrites every payload of a table, page by page in key order.
async fn rewrite_rows(
    client: &Client,
    table: &Table,
    stored: Option<&[ssp2::Column]>,
    filled: &[usize],
) -> Result<(), StoreError> {
    let corrupt = || StoreError::Corrupt {
        what: "the payload of a row",
    };
    let name = quote(&table.name);
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
    let update = format!(
        "UPDATE {name} AS t SET _sync_payload=u.payload{assignments}
         FROM unnest($1::text[], $2::text[], $3::bytea[]{arrays}) AS u(partition, id, payload{aliases})
         WHERE t._sync_partition=u.partition AND t._sync_row_id=u.id"
    );
    let page = |condition: &str| {
        format!(
            "SELECT _sync_partition, _sync_row_id, _sync_payload FROM {name} {condition}
             ORDER BY _sync_partition, _sync_row_id LIMIT {PAGE}"
        )
    };
    let first = page("");
    let next = page("WHERE (_sync_partition, _sync_row_id) > ($1, $2)");
    let mut after: Option<(String, String)> = None;
    let mut rewritten = 0_usize;
    loop {
        let rows = match &after {
            None => client.query(&first, &[]).await,
            Some((partition, row_id)) => client.query(&next, &[partition, row_id]).await,
        };
        let rows = rows.map_err(during(CONTEXT))?;
        let Some(last) = rows.last() else {
            return Ok(());
        };
        after = Some((
            last.try_get(0).map_err(during(CONTEXT))?,
            last.try_get(1).map_err(during(CONTEXT))?,
        ));
        let (mut partitions, mut ids) = (Vec::<&str>::new(), Vec::<&str>::new());
        let (mut payloads, mut values) = (Vec::<Bytes>::new(), Vec::new());
        for row in &rows {
            partitions.push(row.try_get(0).map_err(during(CONTEXT))?);
            ids.push(row.try_get(1).map_err(during(CONTEXT))?);
            let bytes: &[u8] = row.try_get(2).map_err(during(CONTEXT))?;
            let mut payload = Bytes::copy_from_slice(bytes);
            if let Some(stored) = stored {
                payload =
                    rewrite_payload(stored, &table.columns, &payload).map_err(|_| corrupt())?;
            }
            if !filled.is_empty() {
                let decoded =
                    ssp2::row::decode_row(&table.columns, &payload).map_err(|_| corrupt())?;
                values.push(decoded);
            }
            payloads.push(payload);
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
        rewritten += rows.len();
        tracing::info!(table = %table.name, rewritten, "rewriting stored rows");
    }
}

/// Drops Tidegate's own indexes of a table, and one under a bare declared name,
/// as older databases have them.
async fn drop_owned_indexes(client: &Client, table: &Table) -> Result<(), StoreError> {
    let declared: BTreeSet<&str> = table
        .indexes
        .iter()
        .map(|index| index.name.as_str())
        .collect();
    for name in catalog::indexes(client, &table.name).await? {
        if name.starts_with(OWNED_INDEX_PREFIX) || declared.contains(name.as_str()) {
            run(client, &format!("DROP INDEX {}", quote(&name))).await?;
        }
    }
    Ok(())
}

async fn create_indexes(client: &Client, table: &Table) -> Result<(), StoreError> {
    if !table.materialize {
        return Ok(());
    }
    for index in &table.indexes {
        client
            .batch_execute(&create_index(table, index))
            .await
            .map_err(|error| {
                if error.code() == Some(&SqlState::UNIQUE_VIOLATION) {
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
async fn retire(client: &Client, table: &str) -> Result<(), StoreError> {
    run(client, &format!("DROP TABLE IF EXISTS {}", quote(table))).await?;
    for index in ["sync_row_scopes", "sync_blob_refs", "sync_tombstones"] {
        execute(
            client,
            &format!("DELETE FROM {index} WHERE tbl=$1"),
            &[&table],
        )
        .await?;
    }
    Ok(())
}

/// Installs every declaration and raises its fence (rule 2).
async fn install(
    client: &Client,
    running: SchemaVersion,
    declarations: &[Declaration],
    now_ms: i64,
) -> Result<(), StoreError> {
    for declaration in declarations {
        check_declaration(declaration, running)?;
        let partitions = match &declaration.partitions {
            Partitions::One(partition) => vec![partition.as_str().to_owned()],
            Partitions::Every => known_partitions(client).await?,
        };
        for partition in &partitions {
            install_one(client, partition, declaration, now_ms).await?;
        }
    }
    Ok(())
}

/// Every partition that has a log or is registered. Under the barrier none gets its
/// first commit meanwhile.
async fn known_partitions(client: &Client) -> Result<Vec<String>, StoreError> {
    let rows = client
        .query(
            "SELECT partition FROM sync_partitions
             UNION SELECT partition FROM sync_partition_registry ORDER BY 1",
            &[],
        )
        .await
        .map_err(during(CONTEXT))?;
    rows.iter()
        .map(|row| row.try_get(0).map_err(during(CONTEXT)))
        .collect()
}

async fn install_one(
    client: &Client,
    partition: &str,
    declaration: &Declaration,
    now_ms: i64,
) -> Result<(), StoreError> {
    let version = declaration.schema_version.0;
    let existing = client
        .query_opt(
            "SELECT schema_version FROM sync_backfill_checkpoints WHERE partition=$1 AND name=$2",
            &[&partition, &declaration.name],
        )
        .await
        .map_err(during(CONTEXT))?;
    if let Some(existing) = existing {
        let existing: i32 = existing.try_get(0).map_err(during(CONTEXT))?;
        if existing != version {
            return Err(StoreError::CheckpointVersionTaken {
                name: declaration.name.clone(),
                existing: SchemaVersion(existing),
            });
        }
    }
    execute(
            client,
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
             VALUES($1,$2,$3,'declared',$4) ON CONFLICT(partition, name) DO NOTHING",
            &[&partition, &declaration.name, &version, &now_ms],
        )
        .await?;
    execute(
            client,
            "INSERT INTO sync_writer_fence AS f (partition, required_writer_version) VALUES($1,$2)
             ON CONFLICT(partition) DO UPDATE
               SET required_writer_version=greatest(f.required_writer_version, excluded.required_writer_version)",
            &[&partition, &version],
        )
        .await?;
    Ok(())
}

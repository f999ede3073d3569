//! `tidegate migrate`: brings the database to the schema without serving, or shows
//! what that would do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tidegate_actors::{Clock as _, SystemClock};
use tidegate_engine::SchemaVersion;
use tidegate_store::SchemaOutcome;
use tidegate_store::operating::{MigrationPlan, TableFate};

use super::fail;
use crate::backfills;
use crate::cli::{Exit, MigrateArgs};
use crate::config::Layers;
use crate::migration_progress::{Telling, Voice, rough};
use crate::server::{self, ServeError};
use crate::telemetry;

/// The migration reads each row as the dry run does and then writes it back, which costs
/// about three times the reading (measured with a million small rows on SQLite).
const WRITING: u32 = 3;

/// Migrates, or shows what migrating would do.
pub fn run(arguments: &MigrateArgs) -> Exit {
    let runtime = match super::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(migrate(arguments)) {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => Exit::Success,
            Err(_) => Exit::Failure,
        },
        Err(error) => fail(&error),
    }
}

async fn migrate(arguments: &MigrateArgs) -> Result<String, ServeError> {
    let source = &arguments.source;
    let mut config = Layers::of_process(source.config.clone(), source.overrides()).load()?;
    if config.log.level == "info" {
        // The progress says it all.
        config.log.level = "warn".to_owned();
    }
    telemetry::start(&config.log);
    let schema = server::load_schema(&config)?;
    let projections = backfills::load_projections(&config, &schema)?;
    let declarations = backfills::declarations(&projections);
    let started = Instant::now();
    if arguments.dry_run {
        let store = server::open_store_to_read(&config).await?;
        let started = Instant::now();
        let plan = store.plan_migration(schema, &declarations).await;
        let took = started.elapsed();
        store.close().await;
        let plan = plan.map_err(ServeError::Preparation)?;
        return Ok(if arguments.json {
            format!("{}\n", plan_json(&plan, took))
        } else {
            describe(&plan, took)
        });
    }
    let lines = arguments.json || !std::io::stdout().is_terminal();
    let telling = Arc::new(Telling::new(if lines { Voice::Lines } else { Voice::Bar }));
    let store = server::open_store(&config).await?;
    let to = schema.version();
    let outcome = store
        .ensure_schema_observed(schema, &declarations, SystemClock.now_ms(), telling.clone())
        .await;
    store.close().await;
    telling.finish();
    let outcome = outcome.map_err(ServeError::Preparation)?;
    let rows = telling.rows_rewritten();
    Ok(if lines {
        format!("{}\n", outcome_json(&outcome, to, rows, started.elapsed()))
    } else {
        outcome_words(&outcome, to, rows, started.elapsed())
    })
}

fn outcome_json(outcome: &SchemaOutcome, to: SchemaVersion, rows: u64, took: Duration) -> Json {
    let (what, from) = match outcome {
        SchemaOutcome::Verified => ("verified", Some(to.0)),
        SchemaOutcome::Migrated { from } => ("migrated", from.map(|version| version.0)),
    };
    json!({
        "step": "done", "outcome": what, "from": from, "to": to.0,
        "rowsRewritten": rows, "seconds": took.as_secs_f64(),
    })
}

fn outcome_words(outcome: &SchemaOutcome, to: SchemaVersion, rows: u64, took: Duration) -> String {
    let to = to.0;
    match outcome {
        SchemaOutcome::Verified => format!("the database is at version {to} already\n"),
        SchemaOutcome::Migrated { from } => {
            let from = version_words(*from);
            let took = rough(took);
            format!("migrated from {from} to version {to}: {rows} rows rewritten in {took}\n")
        }
    }
}

fn version_words(version: Option<SchemaVersion>) -> String {
    match version {
        Some(version) => format!("version {}", version.0),
        None => "a new database".to_owned(),
    }
}

const fn fate_name(fate: TableFate) -> &'static str {
    match fate {
        TableFate::Created => "created",
        TableFate::Appended => "appended",
        TableFate::Retired => "retired",
        TableFate::Reindexed => "reindexed",
    }
}

const fn fate_words(fate: TableFate) -> &'static str {
    match fate {
        TableFate::Created => "is created",
        TableFate::Appended => "gains or loses columns",
        TableFate::Retired => "is dropped with its rows",
        TableFate::Reindexed => "has its indexes rebuilt",
    }
}

/// Rows that are rewritten, and how long they hold writers up.
struct Estimate {
    rows: u64,
    /// What reading and recoding them took in the dry run.
    read: Duration,
    whole: Duration,
}

impl Estimate {
    fn of(plan: &MigrationPlan, took: Duration) -> Self {
        Self {
            rows: plan.tables.iter().map(|table| table.rows_to_rewrite).sum(),
            read: took,
            whole: took.saturating_mul(1 + WRITING),
        }
    }

    fn basis(&self) -> String {
        format!(
            "the dry run read and recoded {} rows in {}; writing them back is counted as {WRITING} times that; \
             building indexes and waiting for writers to finish come on top",
            self.rows,
            rough(self.read),
        )
    }
}

fn plan_json(plan: &MigrationPlan, took: Duration) -> Json {
    let estimate = Estimate::of(plan, took);
    let tables: Vec<Json> = plan
        .tables
        .iter()
        .map(|table| {
            json!({
                "table": table.table,
                "change": fate_name(table.change),
                "rowsToRewrite": table.rows_to_rewrite,
            })
        })
        .collect();
    let declarations: Vec<Json> = plan
        .declarations
        .iter()
        .map(|(partition, name)| json!({"partition": partition.as_str(), "name": name}))
        .collect();
    json!({
        "from": plan.from.map(|version| version.0),
        "to": plan.to.0,
        "statements": plan.ddl,
        "tables": tables,
        "locks": plan.locks,
        "declarations": declarations,
        "estimate": {"seconds": estimate.whole.as_secs_f64(), "basis": estimate.basis()},
    })
}

fn describe(plan: &MigrationPlan, took: Duration) -> String {
    let to = plan.to.0;
    if plan.from == Some(plan.to) && plan.ddl.is_empty() {
        return format!("the database is at version {to} already: nothing would be done\n");
    }
    let mut out = format!("from {} to version {to}\n", version_words(plan.from));
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "\n{title}");
            for line in lines {
                let _ = writeln!(out, "  {line}");
            }
        }
    };
    let statements = plan.ddl.iter().map(|sql| {
        let one_line: Vec<&str> = sql.split_whitespace().collect();
        format!("{};", one_line.join(" "))
    });
    section("statements, in this order", statements.collect());
    let tables = plan.tables.iter().map(|table| {
        let rows = match (table.change, table.rows_to_rewrite) {
            (TableFate::Appended, rows) => format!(", {rows} rows to rewrite"),
            _ => String::new(),
        };
        format!("{} {}{rows}", table.table, fate_words(table.change))
    });
    section("tables", tables.collect());
    section("locks", plan.locks.clone());
    let mut partitions: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, name) in &plan.declarations {
        *partitions.entry(name).or_default() += 1;
    }
    let declarations = partitions
        .into_iter()
        .map(|(name, count)| format!("{name} in {count} partitions, with their writer fences"));
    section("backfills to declare", declarations.collect());
    let estimate = Estimate::of(plan, took);
    section(
        "duration",
        vec![format!(
            "about {}: {}",
            rough(estimate.whole),
            estimate.basis()
        )],
    );
    out.push_str("\nnothing was changed\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::PartitionId;
    use tidegate_store::operating::TablePlan;

    fn plan() -> MigrationPlan {
        MigrationPlan {
            from: Some(SchemaVersion(1)),
            to: SchemaVersion(2),
            tables: vec![
                TablePlan {
                    table: "notes".into(),
                    change: TableFate::Appended,
                    rows_to_rewrite: 1400,
                },
                TablePlan {
                    table: "labels".into(),
                    change: TableFate::Created,
                    rows_to_rewrite: 0,
                },
            ],
            ddl: vec!["ALTER TABLE notes\n  ADD COLUMN due".into()],
            locks: vec!["the lock".into()],
            declarations: vec![
                (PartitionId::from("p"), "due".into()),
                (PartitionId::from("q"), "due".into()),
            ],
        }
    }

    #[test]
    fn a_dry_run_tells_statements_rows_locks_and_how_long_it_takes() {
        let text = describe(&plan(), Duration::from_secs(2));
        for expected in [
            "from version 1 to version 2",
            "  ALTER TABLE notes ADD COLUMN due;",
            "  notes gains or loses columns, 1400 rows to rewrite",
            "  labels is created\n",
            "  the lock",
            "  due in 2 partitions, with their writer fences",
            "  about 8.0 s: the dry run read and recoded 1400 rows in 2.0 s",
            "nothing was changed",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        let json = plan_json(&plan(), Duration::from_secs(2));
        assert_eq!(json["tables"][0]["rowsToRewrite"], 1400);
        assert_eq!(json["tables"][1]["change"], "created");
        assert_eq!(json["estimate"]["seconds"], 8.0);
        assert_eq!(json["declarations"][1]["partition"], "q");
    }

    #[test]
    fn a_database_that_fits_needs_nothing() {
        let plan = MigrationPlan {
            from: Some(SchemaVersion(2)),
            tables: vec![],
            ddl: vec![],
            locks: vec![],
            declarations: vec![],
            ..plan()
        };
        let text = describe(&plan, Duration::ZERO);
        assert_eq!(
            text,
            "the database is at version 2 already: nothing would be done\n"
        );
    }
}

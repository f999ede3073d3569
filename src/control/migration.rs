//! How the database stands to the schema of this server.

use serde::Serialize;
use tidegate_actors::MigrationStatus;
use tidegate_store::operating::{MigrationPlan, MigrationStep, TableFate};
use utoipa::ToSchema;

use super::input::{Body, Nothing};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

/// How a migration stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MigrationView {
    running_schema_version: i32,
    /// The published version as last seen; null = none, or not known yet.
    stored_schema_version: Option<i32>,
    /// schema_compile, storage_migration, backfill_checkpoint, ready or newer.
    phase: &'static str,
    /// While one runs: waiting_for_barrier, barrier_held, rewriting or publishing.
    step: Option<&'static str>,
    /// The table whose rows are rewritten.
    table: Option<String>,
    /// Of that table.
    rows_done: u64,
    rows_total: u64,
    /// Over the last half minute.
    rows_per_second: f64,
    /// Milliseconds left for that table at that rate.
    left_ms: Option<u64>,
    /// Why the last run failed.
    last_error: Option<String>,
}

impl From<MigrationStatus> for MigrationView {
    fn from(status: MigrationStatus) -> Self {
        let (step, table) = match status.step {
            None => (None, None),
            Some(MigrationStep::WaitingForBarrier) => (Some("waiting_for_barrier"), None),
            Some(MigrationStep::BarrierHeld) => (Some("barrier_held"), None),
            Some(MigrationStep::Rewriting { table, .. }) => (Some("rewriting"), Some(table)),
            Some(MigrationStep::Publishing) => (Some("publishing"), None),
        };
        Self {
            running_schema_version: status.running.0,
            stored_schema_version: status.stored.map(|version| version.0),
            phase: status.phase.as_str(),
            step,
            table,
            rows_done: status.rows_done,
            rows_total: status.rows_total,
            rows_per_second: status.rate,
            left_ms: status.left_ms,
            last_error: status.last_error,
        }
    }
}

#[derive(Debug)]
struct ReadMigration;

impl Command for ReadMigration {
    const NAME: &'static str = "read the migration";
    const CHANGES: bool = false;
    type Answer = MigrationView;

    async fn run(self, station: &Station) -> Result<MigrationView, ControlError> {
        Ok(station.parts.coordinator.status().into())
    }
}

/// How the database stands to the schema
#[utoipa::path(get, path = "/control/v1/migration", responses((status = 200, body = MigrationView)))]
pub(crate) async fn read_migration(operator: OperatorData) -> Answer<MigrationView> {
    ask(&operator, ReadMigration).await
}

/// A table of a plan.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TablePlanView {
    table: String,
    /// created, appended, retired or reindexed.
    change: &'static str,
    /// Rows whose payload is rewritten.
    rows_to_rewrite: u64,
}

/// A checkpoint of a plan.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeclarationView {
    partition: String,
    checkpoint: String,
}

/// What a migration to the running schema would do now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MigrationPlanView {
    /// Null = a new database.
    from_schema_version: Option<i32>,
    to_schema_version: i32,
    /// Tables that change, in the order they are migrated.
    tables: Vec<TablePlanView>,
    /// Statements in order, without the rewrite of rows.
    ddl: Vec<String>,
    /// Locks it takes.
    locks: Vec<String>,
    /// Checkpoints it would install.
    declarations: Vec<DeclarationView>,
}

impl From<MigrationPlan> for MigrationPlanView {
    fn from(plan: MigrationPlan) -> Self {
        Self {
            from_schema_version: plan.from.map(|version| version.0),
            to_schema_version: plan.to.0,
            tables: plan
                .tables
                .into_iter()
                .map(|table| TablePlanView {
                    table: table.table,
                    change: match table.change {
                        TableFate::Created => "created",
                        TableFate::Appended => "appended",
                        TableFate::Retired => "retired",
                        TableFate::Reindexed => "reindexed",
                    },
                    rows_to_rewrite: table.rows_to_rewrite,
                })
                .collect(),
            ddl: plan.ddl,
            locks: plan.locks,
            declarations: plan
                .declarations
                .into_iter()
                .map(|(partition, checkpoint)| DeclarationView {
                    partition: partition.to_string(),
                    checkpoint,
                })
                .collect(),
        }
    }
}

#[derive(Debug)]
struct PlanMigration;

impl Command for PlanMigration {
    const NAME: &'static str = "plan a migration";
    const CHANGES: bool = false;
    type Answer = MigrationPlanView;

    async fn run(self, station: &Station) -> Result<MigrationPlanView, ControlError> {
        Ok(station.parts.coordinator.plan().await?.into())
    }
}

/// What a migration to the running schema would do now; changes nothing
#[utoipa::path(post, path = "/control/v1/migration/dry-run", request_body = Nothing,
    responses((status = 200, body = MigrationPlanView)))]
pub(crate) async fn plan_migration(
    operator: OperatorData,
    Body(Nothing {}): Body<Nothing>,
) -> Answer<MigrationPlanView> {
    ask(&operator, PlanMigration).await
}

//! What a backfill costs: its rate against a rewrite in SQL that leaves the same rows
//! behind, its memory, what live clients feel of it, and what the serve gate costs.

mod bulk;
mod control;
mod gate;
mod live;
mod process;
mod report;
mod rewrite;
mod seed;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidegate_client::ClientSchema;
use tidegate_test_postgres::{ClusterOptions, Server};

use crate::cli::{Plan, Scenario};
use crate::connection::Target;
use crate::runner::LoadError;

/// Schema 2: a computed column and a computed table.
pub const SCHEMA_TWO: &str = include_str!("../../../../config/schemas/demo-v2.json");

/// Partitions of the load are named after this; the seed is in the first.
const PREFIX: &str = "load";
/// The partition that everything happens in.
const PARTITION: &str = "load-0";

/// A part of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Rates against SQL, and memory
    Bulk,
    /// Latencies of live clients beside a paced backfill
    Live,
    /// What the serve gate costs
    Gate,
}

/// The measurements of backfills.
#[derive(Debug, Args)]
pub struct BackfillSuiteArgs {
    /// The server binary
    #[arg(long)]
    pub server_bin: PathBuf,
    /// The server built with RUSTFLAGS="--cfg tidegate_ungated"; without it the gate's
    /// cost is not measured
    #[arg(long)]
    pub ungated_bin: Option<PathBuf>,
    /// A Postgres on which databases may be created; a private throwaway cluster when
    /// left out
    #[arg(long)]
    pub database: Option<String>,
    /// Rows of the large table; the small one, to compare memory, has a tenth
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=50_000_000))]
    pub rows: u64,
    /// Bytes of text in each row
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=150))]
    pub payload_bytes: u64,
    /// Source rows per page of the bulk runs, and per commit of the rewrite
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub page_rows: u32,
    /// Workers of the bulk runs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: u32,
    /// Interleaved runs; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Seconds of each live run
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds before each live run is measured
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Clients of the live runs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// Nothing but that part; may be given more than once
    #[arg(long, value_enum)]
    pub only: Vec<Part>,
    /// KEY=VALUE for the server's environment
    #[arg(long = "server-env", value_parser = crate::cli::key_value)]
    pub server_env: Vec<(String, String)>,
}

impl BackfillSuiteArgs {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// A push-pull load on the seeded partition.
    fn plan(&self, label: &str, url: &str, schema: &str) -> Result<Plan, LoadError> {
        let seconds = |value| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| LoadError::Setup(format!("{value} is no number of seconds")))
        };
        let schema = ClientSchema::from_ir_json(schema).map_err(setup)?;
        Ok(Plan {
            label: label.to_owned(),
            scenario: Scenario::PushPull,
            clients: self.clients,
            partitions: 1,
            warmup: seconds(self.warmup)?,
            measured: seconds(self.seconds)?,
            ops_per_commit: 1,
            payload_bytes: usize::try_from(self.payload_bytes).unwrap_or(0),
            wire: ssp2::WireVersion::V3,
            rows_per_client: 64,
            shared_list: false,
            schema: Arc::new(schema),
            target: Target::parse(url)?,
            token: "load".to_owned(),
            partition_prefix: PREFIX.to_owned(),
        })
    }
}

/// Runs what is wanted, prints it as a line of JSON and as tables, and returns the number
/// of wrong answers.
///
/// # Errors
/// When Postgres or a server does not start, or a measurement cannot be made.
pub async fn run(args: &BackfillSuiteArgs) -> Result<u64, LoadError> {
    let mut report = report::Report::new(args);
    if args.wants(Part::Bulk) || args.wants(Part::Live) {
        let postgres = postgres(args.database.clone()).await?;
        let small = seed::Template::make(&postgres, args, args.rows / 10).await?;
        if args.wants(Part::Live) {
            live::measure(args, &small, &mut report).await?;
        }
        if args.wants(Part::Bulk) {
            report.small = bulk::backfills(args, &small).await?;
            drop(small);
            let large = seed::Template::make(&postgres, args, args.rows).await?;
            report.migration_rows_per_s = large.migration_rows_per_s;
            bulk::measure(args, &large, &mut report).await?;
        }
    }
    if let (true, Some(ungated)) = (args.wants(Part::Gate), &args.ungated_bin) {
        gate::measure(args, ungated, &mut report).await?;
    }
    println!("{}", serde_json::to_string(&report).map_err(setup)?);
    println!("{}", report.document());
    Ok(report.errors)
}

/// Large enough that neither way waits for checkpoints all the time.
async fn postgres(url: Option<String>) -> Result<Server, LoadError> {
    tokio::task::spawn_blocking(move || match url {
        Some(url) => Server::at(&url),
        None => Server::start(&ClusterOptions {
            settings: vec![
                "shared_buffers=512MB".to_owned(),
                "max_wal_size=4GB".to_owned(),
            ],
            ..ClusterOptions::default()
        }),
    })
    .await
    .map_err(setup)?
    .map_err(setup)
}

/// The same for every failure that ends the suite.
fn setup(error: impl std::fmt::Display) -> LoadError {
    LoadError::Setup(error.to_string())
}

//! The command line, and the plan of a load it amounts to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ssp2::WireVersion;
use tidegate_client::ClientSchema;

use crate::backfill::BackfillSuiteArgs;
use crate::connection::Target;
use crate::measure::Shape;
use crate::runner::LoadError;

/// Schema IR of the demo server.
pub const DEMO_SCHEMA: &str = include_str!("../data/demo-schema.json");

/// Drives an SSP2 server as fast as it answers, and checks every answer.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// A single load, when no command is given.
    #[command(flatten)]
    pub load: LoadArgs,
    /// A command.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Commands beside the single load.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Starts a server itself and compares batching, one commit per transaction and
    /// bare HTTP, in interleaved runs
    Suite(SuiteArgs),
    /// Compares a server on Postgres with the usual row-lock way and with the bare
    /// batch inserts, on the same Postgres in interleaved runs
    SuitePostgres(PostgresSuiteArgs),
    /// Measures backfills on Postgres: their rate against SQL, their memory, what live
    /// clients feel of them; and what the serve gate costs
    SuiteBackfill(BackfillSuiteArgs),
    /// Measures what Postgres does without a server in front of it
    Yardstick(YardstickArgs),
}

/// A single load against a running server.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Where the server is, like http://127.0.0.1:8787
    #[arg(long)]
    pub url: Option<String>,
    /// Process id of the server, to report its peak memory
    #[arg(long)]
    pub pid: Option<u32>,
    /// What to do.
    #[command(flatten)]
    pub load: LoadOptions,
}

/// The shape of a load.
#[derive(Debug, Clone, Args)]
pub struct LoadOptions {
    /// What each client does over and over
    #[arg(long, value_enum, default_value_t = Scenario::PushPull)]
    pub scenario: Scenario,
    /// Clients over all partitions, one connection and one request in flight each
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// Partitions the clients are spread over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub partitions: u32,
    /// Seconds measured
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Seconds before measuring begins
    #[arg(long, default_value_t = 2.0)]
    pub warmup: f64,
    /// Name of the run in its result
    #[arg(long, default_value = "")]
    pub label: String,
    /// Operations in each commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub ops_per_commit: u32,
    /// Bytes of text in each row
    #[arg(long, default_value_t = 100)]
    pub payload_bytes: usize,
    /// Wire version: 1, 2 or 3
    #[arg(long, default_value = "3", value_parser = wire_version)]
    pub wire: WireVersion,
    /// Rows each client writes to, over and over
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows_per_client: u64,
    /// All clients of a partition write and read one list
    #[arg(long)]
    pub shared_list: bool,
    /// Schema IR of the server; the demo schema when left out
    #[arg(long)]
    pub schema: Option<PathBuf>,
    /// Bearer token of every client
    #[arg(
        long,
        env = "TIDEGATE_LOAD_TOKEN",
        hide_env_values = true,
        default_value = "load"
    )]
    pub token: String,
    /// Partitions are named after this: load-0, load-1, …
    #[arg(long, default_value = "load")]
    pub partition_prefix: String,
}

/// A comparison of configurations of one server binary.
#[derive(Debug, Args)]
pub struct SuiteArgs {
    /// The server binary
    #[arg(long)]
    pub server_bin: PathBuf,
    /// Runs of each configuration; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Arguments for the server; none starts `serve`
    #[arg(long = "server-arg", allow_hyphen_values = true)]
    pub server_args: Vec<String>,
    /// KEY=VALUE for the server's environment
    #[arg(long = "server-env", value_parser = key_value)]
    pub server_env: Vec<(String, String)>,
    /// The load of the push-pull runs.
    #[command(flatten)]
    pub load: LoadOptions,
}

/// A comparison of a server on Postgres with Postgres alone.
#[derive(Debug, Args)]
pub struct PostgresSuiteArgs {
    /// The server binary
    #[arg(long)]
    pub server_bin: PathBuf,
    /// A server on which databases may be created; a private throwaway cluster when left out
    #[arg(long)]
    pub database: Option<String>,
    /// Microseconds that a relay adds to every round trip to the database, of the server and
    /// of what it is compared with, as if the database were another host; 0 is the direct way
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub database_rtt_us: u32,
    /// Runs of each configuration; medians are reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Arguments for the server; none starts `serve`
    #[arg(long = "server-arg", allow_hyphen_values = true)]
    pub server_args: Vec<String>,
    /// KEY=VALUE for the server's environment
    #[arg(long = "server-env", value_parser = key_value)]
    pub server_env: Vec<(String, String)>,
    /// Commits per batch of the floor; measured in the push-only runs when left out
    #[arg(long, value_parser = batch_size)]
    pub batch: Option<f64>,
    /// Clients of the runs on one partition, and of the row-lock way.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// How long, and how large the rows.
    #[command(flatten)]
    pub pace: Pace,
}

/// A measurement of Postgres alone.
#[derive(Debug, Args)]
pub struct YardstickArgs {
    /// What is measured.
    #[command(subcommand)]
    pub yardstick: Yardstick,
}

/// What is measured of Postgres alone.
#[derive(Debug, Subcommand)]
pub enum Yardstick {
    /// The usual way: one transaction per commit, which locks the partition's row and
    /// inserts each row with a statement of its own
    Rowlock {
        /// postgres://user:password@host:port/database; the tables are made if missing
        #[arg(long)]
        database: String,
        /// Writers, one connection each, all on one partition
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        clients: u32,
        /// How long, and how large the rows.
        #[command(flatten)]
        pace: Pace,
    },
    /// Nothing but the batch inserts, one batch after the other on one connection
    Floor {
        /// postgres://user:password@host:port/database; the tables are made if missing
        #[arg(long)]
        database: String,
        /// Commits per batch, on average
        #[arg(long, value_parser = batch_size)]
        batch: f64,
        /// Clients whose commits they are, in turn
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        clients: u32,
        /// How long, and how large the rows.
        #[command(flatten)]
        pace: Pace,
    },
}

/// How long a yardstick runs, and how large its rows are.
#[derive(Debug, Clone, Args)]
pub struct Pace {
    /// Seconds measured
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Seconds before measuring begins
    #[arg(long, default_value_t = 2.0)]
    pub warmup: f64,
    /// Name of the run in its result
    #[arg(long, default_value = "")]
    pub label: String,
    /// Bytes of text in each row
    #[arg(long, default_value_t = 100)]
    pub payload_bytes: usize,
}

impl Pace {
    /// Time before measuring, and time measured.
    ///
    /// # Errors
    /// When they are no times.
    pub fn times(&self) -> Result<(Duration, Duration), LoadError> {
        Ok((seconds(self.warmup)?, seconds(self.seconds)?))
    }
}

/// What each client does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// One request: a commit, and a pull from the last cursor
    PushPull,
    /// One request with a commit
    PushOnly,
    /// One request with a pull from the last cursor
    PullOnly,
    /// Of ten requests four push-pull, two push-only, four pull-only
    Mixed,
    /// GET /healthz: what HTTP alone costs
    Healthz,
}

impl Scenario {
    /// Its name on the command line and in results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PushPull => "push-pull",
            Self::PushOnly => "push-only",
            Self::PullOnly => "pull-only",
            Self::Mixed => "mixed",
            Self::Healthz => "healthz",
        }
    }
}

/// A load, ready to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name in the result.
    pub label: String,
    /// What each client does.
    pub scenario: Scenario,
    /// Clients over all partitions.
    pub clients: u32,
    /// Partitions.
    pub partitions: u32,
    /// Time before measuring.
    pub warmup: Duration,
    /// Time measured.
    pub measured: Duration,
    /// Operations in each commit.
    pub ops_per_commit: u32,
    /// Bytes of text in each row.
    pub payload_bytes: usize,
    /// Wire version.
    pub wire: WireVersion,
    /// Rows each client writes to.
    pub rows_per_client: u64,
    /// One list per partition.
    pub shared_list: bool,
    /// The server's schema.
    pub schema: Arc<ClientSchema>,
    /// The server.
    pub target: Target,
    /// Bearer token.
    pub token: String,
    /// Name of partitions before the number.
    pub partition_prefix: String,
}

impl Plan {
    /// The load as its result names it.
    pub fn shape(&self) -> Shape {
        Shape {
            label: self.label.clone(),
            scenario: self.scenario.as_str(),
            clients: self.clients,
            partitions: self.partitions,
        }
    }
}

impl LoadOptions {
    /// The load against the server at `url`.
    ///
    /// # Errors
    /// When the URL, the times or the schema cannot be used.
    pub fn plan(&self, url: &str) -> Result<Plan, LoadError> {
        let schema = match &self.schema {
            None => DEMO_SCHEMA.to_owned(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| LoadError::Setup(format!("{}: {error}", path.display())))?,
        };
        let schema = ClientSchema::from_ir_json(&schema)
            .map_err(|error| LoadError::Setup(error.to_string()))?;
        Ok(Plan {
            label: self.label.clone(),
            scenario: self.scenario,
            clients: self.clients,
            partitions: self.partitions.min(self.clients),
            warmup: seconds(self.warmup)?,
            measured: seconds(self.seconds)?,
            ops_per_commit: self.ops_per_commit,
            payload_bytes: self.payload_bytes,
            wire: self.wire,
            rows_per_client: self.rows_per_client,
            shared_list: self.shared_list,
            schema: Arc::new(schema),
            target: Target::parse(url)?,
            token: self.token.clone(),
            partition_prefix: self.partition_prefix.clone(),
        })
    }
}

fn seconds(value: f64) -> Result<Duration, LoadError> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| LoadError::Setup(format!("{value} is no number of seconds")))
}

fn batch_size(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|size| (1.0..=10_000.0).contains(size))
        .ok_or_else(|| "a batch has 1 to 10000 commits".to_owned())
}

fn wire_version(text: &str) -> Result<WireVersion, String> {
    match text {
        "1" => Ok(WireVersion::V1),
        "2" => Ok(WireVersion::V2),
        "3" => Ok(WireVersion::V3),
        _ => Err("the wire versions are 1, 2 and 3".to_owned()),
    }
}

/// KEY=VALUE
pub fn key_value(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| "write KEY=VALUE".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["tidegate-load"], args].concat())
    }

    #[test]
    fn a_single_load_has_sensible_defaults() {
        let cli = parse(&["--url", "http://127.0.0.1:8787"]).unwrap();
        assert!(cli.command.is_none());
        let plan = cli
            .load
            .load
            .plan(cli.load.url.as_deref().unwrap())
            .unwrap();
        assert_eq!(plan.scenario, Scenario::PushPull);
        assert_eq!((plan.clients, plan.partitions), (20, 1));
        assert_eq!(plan.measured, Duration::from_secs(10));
        assert_eq!(plan.warmup, Duration::from_secs(2));
        assert_eq!(plan.wire, WireVersion::V3);
        assert!(plan.schema.table("todos").is_some());
    }

    #[test]
    fn every_option_of_a_single_load_is_understood() {
        let cli = parse(&[
            "--url",
            "http://h:1",
            "--scenario",
            "mixed",
            "--clients",
            "8",
            "--partitions",
            "4",
            "--seconds",
            "0.5",
            "--warmup",
            "0",
            "--label",
            "x",
            "--ops-per-commit",
            "5",
            "--payload-bytes",
            "7",
            "--wire",
            "1",
            "--pid",
            "42",
            "--shared-list",
        ])
        .unwrap();
        assert_eq!(cli.load.pid, Some(42));
        let plan = cli.load.load.plan("http://h:1").unwrap();
        assert_eq!(plan.scenario, Scenario::Mixed);
        assert_eq!((plan.clients, plan.partitions), (8, 4));
        assert_eq!(plan.measured, Duration::from_millis(500));
        assert_eq!(plan.wire, WireVersion::V1);
        assert!(plan.shared_list);
        assert_eq!(plan.ops_per_commit, 5);
    }

    #[test]
    fn a_suite_takes_the_server_and_the_shape_of_its_load() {
        let cli = parse(&[
            "suite",
            "--server-bin",
            "/bin/server",
            "--seconds",
            "3",
            "--runs",
            "5",
            "--server-env",
            "A=b=c",
            "--server-arg",
            "--fast",
        ])
        .unwrap();
        let Some(Command::Suite(suite)) = cli.command else {
            panic!("not a suite");
        };
        assert_eq!(suite.runs, 5);
        assert_eq!(suite.server_env, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(suite.server_args, ["--fast"]);
        assert_eq!(
            suite.load.plan("http://h:1").unwrap().measured,
            Duration::from_secs(3)
        );
    }

    #[test]
    fn yardsticks_take_a_database_and_a_pace() {
        let url = "postgres://u@h/d";
        let cli = parse(&["yardstick", "rowlock", "--database", url, "--clients", "7"]).unwrap();
        let Some(Command::Yardstick(YardstickArgs {
            yardstick: Yardstick::Rowlock { clients, .. },
        })) = cli.command
        else {
            panic!("not a row-lock yardstick");
        };
        assert_eq!(clients, 7);
        let floor = ["yardstick", "floor", "--database", url, "--batch", "12.5"];
        let cli = parse(&[&floor[..], &["--seconds", "3"]].concat()).unwrap();
        let Some(Command::Yardstick(YardstickArgs {
            yardstick: Yardstick::Floor { batch, pace, .. },
        })) = cli.command
        else {
            panic!("not a floor");
        };
        assert!((batch - 12.5).abs() < f64::EPSILON);
        assert_eq!(
            pace.times().unwrap(),
            (Duration::from_secs(2), Duration::from_secs(3))
        );
        for wrong in ["0", "0.5", "NaN", "many"] {
            assert!(parse(&["yardstick", "floor", "--database", url, "--batch", wrong]).is_err());
        }
    }

    #[test]
    fn the_postgres_suite_measures_the_batch_unless_told() {
        let cli = parse(&["suite-postgres", "--server-bin", "/bin/server"]).unwrap();
        let Some(Command::SuitePostgres(suite)) = cli.command else {
            panic!("not the suite");
        };
        assert_eq!((suite.runs, suite.clients), (5, 20));
        assert!(suite.batch.is_none() && suite.database.is_none());
        assert_eq!(suite.database_rtt_us, 0);
    }

    #[test]
    fn the_postgres_suite_takes_a_distance_of_up_to_a_second() {
        let suite = |rtt| {
            let server = ["suite-postgres", "--server-bin", "/bin/server"];
            parse(&[&server[..], &["--database-rtt-us", rtt]].concat())
        };
        let Some(Command::SuitePostgres(far)) = suite("500").unwrap().command else {
            panic!("not the suite");
        };
        assert_eq!(far.database_rtt_us, 500);
        assert!(suite("1000001").is_err() && suite("-1").is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(parse(&["--scenario", "sideways"]).is_err());
        assert!(parse(&["--clients", "0"]).is_err());
        assert!(parse(&["--wire", "4"]).is_err());
        assert!(parse(&["--ops-per-commit", "501"]).is_err());
        let cli = parse(&["--seconds=-1"]).unwrap();
        assert!(cli.load.load.plan("http://h:1").is_err());
    }
}

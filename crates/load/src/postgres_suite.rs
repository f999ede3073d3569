//! The comparison of a server on Postgres with the usual row-lock way and with the
//! inserts alone, on the same Postgres and in the same run.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tidegate_test_postgres::{ClusterOptions, Server};

use crate::cli::{DEMO_SCHEMA, Pace, Plan, PostgresSuiteArgs, Scenario};
use crate::connection::Target;
use crate::distance::{RoundTrip, Way};
use crate::measure::{Report, median};
use crate::runner::{self, LoadError};
use crate::server::{ServerProcess, peak_rss_kib};
use crate::suite::{Summary, rows, summarize};
use crate::targets::{self, Measured, Verdict, verdicts};
use crate::yardstick::{Floor, RowLock, mean_batch, prepare, round_trip};

/// Partitions of the runs on many of them, and clients where one and many are compared.
const MANY: u32 = 64;
/// Partitions of the load are named after this.
const PREFIX: &str = "load";

/// A line of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Push,
    PushPull,
    PushPullOne,
    PushPullMany,
    RowLock,
    Floor,
    PushBeside,
    RowLockBeside,
}

const LINES: [(Line, &str); 8] = [
    (Line::Push, "push-only"),
    (Line::PushPull, "push-pull"),
    (Line::PushPullOne, "push-pull, 64 clients"),
    (Line::PushPullMany, "push-pull, 64 partitions"),
    (Line::RowLock, "row-lock"),
    (Line::Floor, "floor"),
    (Line::PushBeside, "push-only beside a row-lock writer"),
    (Line::RowLockBeside, "that row-lock writer"),
];

/// The reports of one line, run after run.
type Reports = [Vec<Report>; LINES.len()];

/// The whole comparison.
#[derive(Debug, Clone, Serialize)]
struct Comparison {
    label: String,
    runs: u32,
    seconds: f64,
    clients: u32,
    /// Commits per batch of the floor, and where the figure is from.
    mean_batch: Option<f64>,
    mean_batch_given: bool,
    database_rtt_us: RoundTrip,
    medians: Vec<Summary>,
    targets: Vec<Verdict>,
}

/// Runs the comparison, prints it as a line of JSON and as tables, and returns the
/// number of wrong answers.
///
/// # Errors
/// When Postgres or a server does not start, or a load cannot run.
pub async fn run(args: &PostgresSuiteArgs) -> Result<u64, LoadError> {
    let url = args.database.clone();
    let postgres = tokio::task::spawn_blocking(move || match url {
        Some(url) => Server::at(&url),
        None => Server::start(&ClusterOptions::default()),
    })
    .await
    .map_err(|error| LoadError::Setup(error.to_string()))?
    .map_err(|error| LoadError::Setup(error.to_string()))?;
    let way = blocking(|| Way::open(&postgres.url("postgres"), args.database_rtt_us))?;
    let mut suite = Suite {
        args,
        postgres: &postgres,
        round_trip: measured_round_trip(&postgres, &way, args.database_rtt_us).await?,
        way: &way,
        reports: Reports::default(),
        batches: Vec::new(),
    };
    // Interleaved, so that whatever else the machine does meets all of them alike.
    for turn in 1..=args.runs {
        suite.turn(turn).await?;
    }
    let comparison = suite.comparison();
    let json =
        serde_json::to_string(&comparison).map_err(|error| LoadError::Setup(error.to_string()))?;
    println!("{json}");
    println!("{}", document(&comparison));
    Ok(suite
        .reports
        .iter()
        .flatten()
        .map(|report| report.errors)
        .sum())
}

struct Suite<'a> {
    args: &'a PostgresSuiteArgs,
    postgres: &'a Server,
    way: &'a Way,
    round_trip: RoundTrip,
    reports: Reports,
    /// Mean batch of each push-only run.
    batches: Vec<f64>,
}

impl<'a> Suite<'a> {
    async fn turn(&mut self, turn: u32) -> Result<(), LoadError> {
        let clients = self.args.clients;
        let (pushed, batch) = self.push_alone().await?;
        self.keep(turn, Line::Push, pushed);
        self.batches.extend(batch);
        for (line, clients, partitions) in [
            (Line::PushPull, clients, 1),
            (Line::PushPullOne, MANY, 1),
            (Line::PushPullMany, MANY, MANY),
        ] {
            let scratch = self.scratch()?;
            let plan = self.plan(line, Scenario::PushPull, clients, partitions)?;
            let report = self.serve(&scratch, plan).await?;
            self.keep(turn, line, report);
        }
        let report = self.row_lock().await?;
        self.keep(turn, Line::RowLock, report);
        let batch = self.args.batch.or(batch).ok_or_else(|| {
            LoadError::Setup("nothing was pushed, so no batch can be measured".to_owned())
        })?;
        let report = self.floor(batch).await?;
        self.keep(turn, Line::Floor, report);
        let (pushed, beside) = self.push_beside().await?;
        self.keep(turn, Line::PushBeside, pushed);
        self.keep(turn, Line::RowLockBeside, beside);
        Ok(())
    }

    fn scratch(&self) -> Result<Scratch<'a>, LoadError> {
        Scratch::create(self.postgres, self.way)
    }

    /// A push-only run, and the mean batch of its commits.
    async fn push_alone(&self) -> Result<(Report, Option<f64>), LoadError> {
        let scratch = self.scratch()?;
        let plan = self.plan(Line::Push, Scenario::PushOnly, self.args.clients, 1)?;
        let report = self.serve(&scratch, plan).await?;
        // The first commits are the clients' lists, pushed while they set up.
        let batch = mean_batch(&scratch.url(), &partition(0), i64::from(self.args.clients)).await?;
        Ok((report, batch))
    }

    async fn row_lock(&self) -> Result<Report, LoadError> {
        let scratch = self.scratch()?;
        prepare(&scratch.url()).await?;
        RowLock {
            database: &scratch.measured_url,
            partition: &partition(0),
            clients: self.args.clients,
            pace: &self.pace(Line::RowLock),
        }
        .run()
        .await
    }

    async fn floor(&self, batch: f64) -> Result<Report, LoadError> {
        let scratch = self.scratch()?;
        prepare(&scratch.url()).await?;
        Floor {
            database: &scratch.measured_url,
            partition: &partition(0),
            batch,
            clients: self.args.clients,
            pace: &self.pace(Line::Floor),
        }
        .run()
        .await
    }

    /// A push-only run, and a row-lock writer at the same time on the same partition.
    async fn push_beside(&self) -> Result<(Report, Report), LoadError> {
        let scratch = self.scratch()?;
        prepare(&scratch.url()).await?;
        let plan = self.plan(Line::PushBeside, Scenario::PushOnly, self.args.clients, 1)?;
        let server = self.start(&scratch).await?;
        let plan = Plan {
            target: Target::parse(server.url())?,
            ..plan
        };
        let partition = partition(0);
        let pace = self.pace(Line::RowLockBeside);
        let writer = RowLock {
            database: &scratch.measured_url,
            partition: &partition,
            clients: 1,
            pace: &pace,
        };
        let (pushed, beside) = tokio::try_join!(runner::run(&plan), writer.run())?;
        Ok((finish(server, pushed).await?, beside))
    }

    /// A load on a server of its own.
    async fn serve(&self, scratch: &Scratch<'_>, plan: Plan) -> Result<Report, LoadError> {
        let server = self.start(scratch).await?;
        let plan = Plan {
            target: Target::parse(server.url())?,
            ..plan
        };
        let report = runner::run(&plan).await?;
        finish(server, report).await
    }

    async fn start(&self, scratch: &Scratch<'_>) -> Result<ServerProcess, LoadError> {
        ServerProcess::start(
            &self.args.server_bin,
            &self.args.server_args,
            &self.args.server_env,
            Some(&scratch.measured_url),
        )
        .await
    }

    /// A load in which every commit inserts a row, as every commit of the yardsticks does.
    fn plan(
        &self,
        line: Line,
        scenario: Scenario,
        clients: u32,
        partitions: u32,
    ) -> Result<Plan, LoadError> {
        let (warmup, measured) = self.args.pace.times()?;
        let schema = tidegate_client::ClientSchema::from_ir_json(DEMO_SCHEMA)
            .map_err(|error| LoadError::Setup(error.to_string()))?;
        Ok(Plan {
            label: label(line).to_owned(),
            scenario,
            clients,
            partitions,
            warmup,
            measured,
            ops_per_commit: 1,
            payload_bytes: self.args.pace.payload_bytes,
            wire: ssp2::WireVersion::V3,
            rows_per_client: u64::MAX,
            shared_list: false,
            schema: std::sync::Arc::new(schema),
            target: Target::parse("http://127.0.0.1")?,
            token: "load".to_owned(),
            partition_prefix: PREFIX.to_owned(),
        })
    }

    fn pace(&self, line: Line) -> Pace {
        Pace {
            label: label(line).to_owned(),
            ..self.args.pace.clone()
        }
    }

    fn keep(&mut self, turn: u32, line: Line, report: Report) {
        eprintln!("run {turn}/{}: {}", self.args.runs, report.to_json());
        self.reports[line as usize].push(report);
    }

    fn comparison(&self) -> Comparison {
        let medians: Vec<Summary> = LINES
            .iter()
            .zip(&self.reports)
            .filter_map(|((_, label), reports)| summarize(label, reports))
            .collect();
        let peak = self
            .reports
            .iter()
            .flatten()
            .filter_map(|report| report.server_peak_rss_kib)
            .max();
        Comparison {
            label: self.args.pace.label.clone(),
            runs: self.args.runs,
            seconds: self.args.pace.seconds,
            clients: self.args.clients,
            mean_batch: self.args.batch.or_else(|| median(&self.batches)),
            mean_batch_given: self.args.batch.is_some(),
            database_rtt_us: self.round_trip,
            targets: verdicts(&measured(&medians, peak)),
            medians,
        }
    }
}

/// The round trip on the way of what is measured, before there is any other load.
async fn measured_round_trip(
    postgres: &Server,
    way: &Way,
    asked: u32,
) -> Result<RoundTrip, LoadError> {
    let scratch = Scratch::create(postgres, way)?;
    let measured = round_trip(&scratch.measured_url).await?;
    Ok(RoundTrip {
        asked,
        measured: measured.as_secs_f64() * 1e6,
    })
}

/// Peak memory first: it is gone with the process.
async fn finish(server: ServerProcess, mut report: Report) -> Result<Report, LoadError> {
    report.server_peak_rss_kib = server.pid().and_then(peak_rss_kib);
    server.stop().await?;
    Ok(report)
}

fn partition(number: u32) -> String {
    format!("{PREFIX}-{number}")
}

fn label(line: Line) -> &'static str {
    LINES[line as usize].1
}

/// The figures that the targets speak of.
fn measured(medians: &[Summary], peak_kib: Option<u64>) -> Measured {
    let find = |line| medians.iter().find(|summary| summary.label == label(line));
    let rate = |line| find(line).map_or(0.0, |summary| summary.commits_per_s);
    // Without a median there was no answer: an endless tail, not a short one.
    let tail = |line| {
        find(line)
            .and_then(|summary| targets::ratio(summary.p99_us, summary.p50_us))
            .unwrap_or(f64::INFINITY)
    };
    Measured {
        push: rate(Line::Push),
        push_pull: rate(Line::PushPull),
        push_pull_one: rate(Line::PushPullOne),
        push_pull_many: rate(Line::PushPullMany),
        rowlock: rate(Line::RowLock),
        floor: rate(Line::Floor),
        push_tail: tail(Line::Push),
        push_pull_tail: tail(Line::PushPull),
        peak_mib: peak_kib.map(|kib| kib as f64 / 1024.0),
    }
}

fn document(comparison: &Comparison) -> String {
    let batch = comparison
        .mean_batch
        .map_or("-".to_owned(), |batch| format!("{batch:.1}"));
    let source = if comparison.mean_batch_given {
        "given"
    } else {
        "measured in the push-only runs"
    };
    format!(
        "{}\nMedians of {} runs of {} s, {} clients where not said otherwise, one operation per \
         commit, each an insert. Latencies of the floor are those of whole batches of {batch} \
         commits on average ({source}). {}\n\n{}",
        rows(&comparison.medians),
        comparison.runs,
        comparison.seconds,
        comparison.clients,
        comparison.database_rtt_us.sentence(),
        targets::table(&comparison.targets),
    )
}

/// A database of one run, dropped after it.
struct Scratch<'a> {
    postgres: &'a Server,
    name: String,
    /// How what is measured reaches it; set-up and counting go the direct way.
    measured_url: String,
}

impl<'a> Scratch<'a> {
    /// The checkpoint writes out what earlier runs left behind, so that no run pays
    /// for another one's.
    fn create(postgres: &'a Server, way: &Way) -> Result<Self, LoadError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "tidegate_load_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let measured_url = way.url(&postgres.url(&name))?;
        for statement in [&format!("CREATE DATABASE {name}"), "CHECKPOINT"] {
            blocking(|| postgres.execute(statement))
                .map_err(|error| LoadError::Setup(error.to_string()))?;
        }
        Ok(Self {
            postgres,
            name,
            measured_url,
        })
    }

    fn url(&self) -> String {
        self.postgres.url(&self.name)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _ = blocking(|| self.postgres.execute(&drop));
    }
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::measure::{Sample, Shape, Tally};

    fn report(line: Line, commits: u64, slowest: u64) -> Report {
        let mut tally = Tally::new().unwrap();
        for n in 0..commits {
            tally.record(&Sample {
                latency: Duration::from_millis(if n + 5 > commits { slowest } else { 1 }),
                commits: 1,
                ..Sample::default()
            });
        }
        let shape = Shape {
            label: label(line).to_owned(),
            scenario: "push-only",
            clients: 1,
            partitions: 1,
        };
        tally.report(shape, Duration::from_secs(1))
    }

    #[test]
    fn every_line_has_its_own_place() {
        for (at, (line, name)) in LINES.iter().enumerate() {
            assert_eq!(*line as usize, at);
            assert_eq!(label(*line), *name);
        }
    }

    #[test]
    fn the_targets_see_the_medians_of_their_lines() {
        let of = |line, commits: Vec<u64>, slowest| {
            let reports: Vec<Report> = commits
                .into_iter()
                .map(|commits| report(line, commits, slowest))
                .collect();
            summarize(label(line), &reports).unwrap()
        };
        let medians = [
            of(Line::Push, vec![100, 900, 200], 3),
            of(Line::PushPull, vec![150], 7),
            of(Line::RowLock, vec![10, 20], 1),
        ];
        let seen = measured(&medians, Some(2048));
        assert!((seen.push - 200.0).abs() < f64::EPSILON);
        assert!((seen.rowlock - 15.0).abs() < f64::EPSILON);
        assert!((seen.push_tail - 3.0).abs() < 0.01);
        assert!((seen.push_pull_tail - 7.0).abs() < 0.01);
        assert!(seen.floor.abs() < f64::EPSILON);
        assert_eq!(seen.peak_mib, Some(2.0));
    }

    #[test]
    fn a_line_that_answered_nothing_has_no_short_tail() {
        assert!(measured(&[], None).push_tail.is_infinite());
        let verdicts = verdicts(&measured(&[], None));
        assert!(verdicts.iter().all(|verdict| !verdict.met));
    }

    #[test]
    fn the_document_says_where_the_batch_is_from() {
        let text = document(&Comparison {
            label: String::new(),
            runs: 3,
            seconds: 2.0,
            clients: 20,
            mean_batch: Some(12.34),
            mean_batch_given: false,
            database_rtt_us: RoundTrip {
                asked: 500,
                measured: 640.0,
            },
            medians: vec![summarize("push-only", &[report(Line::Push, 10, 1)]).unwrap()],
            targets: verdicts(&Measured::default()),
        });
        assert!(text.contains("12.3 commits on average (measured"));
        assert!(text.contains("`SELECT 1` takes 640 µs"));
        assert!(text.contains("| push-only | push-only | 10 | 10 |"));
        assert!(text.contains("| target | wanted |"));
    }
}

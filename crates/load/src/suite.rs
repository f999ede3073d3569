//! The comparison that shows what group commit is worth: the same load on the same
//! server with and without batching, beside what HTTP alone costs.

use serde::Serialize;

use crate::cli::{Plan, Scenario, SuiteArgs};
use crate::measure::{Report, median};
use crate::runner::{self, LoadError};
use crate::server::{ServerProcess, peak_rss_kib};

/// A configuration under comparison.
struct Variant {
    label: &'static str,
    scenario: Option<Scenario>,
    environment: &'static [(&'static str, &'static str)],
}

const DURABLE: (&str, &str) = ("TIDEGATE_SQLITE__SYNCHRONOUS", "full");

const VARIANTS: [Variant; 3] = [
    Variant {
        label: "batched",
        scenario: None,
        environment: &[DURABLE],
    },
    Variant {
        label: "one-commit-per-transaction",
        scenario: None,
        environment: &[
            DURABLE,
            ("TIDEGATE_SQLITE__MAX_COMMITS_PER_TRANSACTION", "1"),
        ],
    },
    Variant {
        label: "healthz",
        scenario: Some(Scenario::Healthz),
        environment: &[DURABLE],
    },
];

/// Medians of one configuration's runs.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Name of the configuration.
    pub label: &'static str,
    /// What each client did.
    pub scenario: &'static str,
    /// Requests per second.
    pub rps: f64,
    /// Acknowledged commits per second.
    pub commits_per_s: f64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 95th percentile, microseconds.
    pub p95_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Peak resident memory of the server, where there was one.
    pub server_peak_rss_kib: Option<f64>,
    /// Wrong answers of all runs together.
    pub errors: u64,
}

/// The whole comparison.
#[derive(Debug, Clone, Serialize)]
struct Comparison {
    label: String,
    runs: u32,
    seconds: f64,
    clients: u32,
    partitions: u32,
    medians: Vec<Summary>,
    batched_to_single: Option<f64>,
    batched_to_healthz: Option<f64>,
}

/// Runs the comparison, prints it as a line of JSON and as a table, and returns the
/// number of wrong answers.
///
/// # Errors
/// When a server does not start or a load cannot run.
pub async fn run(args: &SuiteArgs) -> Result<u64, LoadError> {
    let mut reports: [Vec<Report>; 3] = Default::default();
    // Interleaved, so that whatever else the machine does meets all of them alike.
    for turn in 1..=args.runs {
        for (variant, reports) in VARIANTS.iter().zip(&mut reports) {
            let report = measure(args, variant).await?;
            eprintln!("run {turn}/{}: {}", args.runs, report.to_json());
            reports.push(report);
        }
    }
    let medians: Vec<Summary> = VARIANTS
        .iter()
        .zip(&reports)
        .filter_map(|(variant, reports)| summarize(variant.label, reports))
        .collect();
    let comparison = Comparison {
        label: args.load.label.clone(),
        runs: args.runs,
        seconds: args.load.seconds,
        clients: args.load.clients,
        partitions: args.load.partitions,
        batched_to_single: ratio(&medians, 0, 1),
        batched_to_healthz: ratio(&medians, 0, 2),
        medians,
    };
    let json =
        serde_json::to_string(&comparison).map_err(|error| LoadError::Setup(error.to_string()))?;
    println!("{json}");
    println!("{}", table(&comparison));
    Ok(reports.iter().flatten().map(|report| report.errors).sum())
}

async fn measure(args: &SuiteArgs, variant: &Variant) -> Result<Report, LoadError> {
    let mut environment: Vec<(String, String)> = variant
        .environment
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    environment.extend(args.server_env.iter().cloned());
    let server =
        ServerProcess::start(&args.server_bin, &args.server_args, &environment, None).await?;
    let plan = args.load.plan(server.url())?;
    let plan = Plan {
        label: variant.label.to_owned(),
        scenario: variant.scenario.unwrap_or(plan.scenario),
        ..plan
    };
    let mut report = runner::run(&plan).await?;
    report.server_peak_rss_kib = server.pid().and_then(peak_rss_kib);
    server.stop().await?;
    Ok(report)
}

/// The medians of a configuration's runs; `None` of no runs.
pub fn summarize(label: &'static str, reports: &[Report]) -> Option<Summary> {
    let of = |value: fn(&Report) -> f64| median(&reports.iter().map(value).collect::<Vec<_>>());
    let memory: Vec<f64> = reports
        .iter()
        .filter_map(|report| report.server_peak_rss_kib)
        .map(|kib| kib as f64)
        .collect();
    Some(Summary {
        label,
        scenario: reports.first()?.scenario,
        rps: of(|report| report.rps)?,
        commits_per_s: of(|report| report.commits_per_s)?,
        p50_us: of(|report| report.p50_us as f64)?,
        p95_us: of(|report| report.p95_us as f64)?,
        p99_us: of(|report| report.p99_us as f64)?,
        server_peak_rss_kib: median(&memory),
        errors: reports.iter().map(|report| report.errors).sum(),
    })
}

/// How many times the requests per second of one configuration are those of another.
fn ratio(medians: &[Summary], of: usize, to: usize) -> Option<f64> {
    let (of, to) = (medians.get(of)?.rps, medians.get(to)?.rps);
    (to > 0.0).then(|| (of / to * 1000.0).round() / 1000.0)
}

/// A Markdown table of medians.
pub fn rows(medians: &[Summary]) -> String {
    use std::fmt::Write as _;
    let mut out = String::from(
        "| configuration | scenario | requests/s | commits/s | p50 | p95 | p99 | server peak | errors |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in medians {
        let memory = row
            .server_peak_rss_kib
            .map_or("-".to_owned(), |kib| format!("{:.1} MiB", kib / 1024.0));
        let _ = writeln!(
            out,
            "| {} | {} | {:.0} | {:.0} | {:.2} ms | {:.2} ms | {:.2} ms | {memory} | {} |",
            row.label,
            row.scenario,
            row.rps,
            row.commits_per_s,
            row.p50_us / 1000.0,
            row.p95_us / 1000.0,
            row.p99_us / 1000.0,
            row.errors,
        );
    }
    out
}

fn table(comparison: &Comparison) -> String {
    use std::fmt::Write as _;
    let mut out = rows(&comparison.medians);
    let show = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}×"));
    let _ = writeln!(
        out,
        "\nMedians of {} runs of {} s, {} clients, {} partition(s). Batched against one commit \
         per transaction: {}; against bare HTTP: {}.",
        comparison.runs,
        comparison.seconds,
        comparison.clients,
        comparison.partitions,
        show(comparison.batched_to_single),
        show(comparison.batched_to_healthz),
    );
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::measure::{Sample, Tally};

    fn report(commits: u64, memory: u64) -> Report {
        let plan = Cli::try_parse_from(["x"])
            .unwrap()
            .load
            .load
            .plan("http://h:1")
            .unwrap();
        let mut tally = Tally::new().unwrap();
        for _ in 0..commits {
            tally.record(&Sample {
                latency: Duration::from_millis(2),
                round: true,
                commits: 1,
                ..Sample::default()
            });
        }
        let mut report = tally.report(plan.shape(), Duration::from_secs(1));
        report.server_peak_rss_kib = Some(memory);
        report
    }

    #[test]
    fn medians_and_ratios_come_from_all_runs() {
        let batched = summarize("batched", &[report(90, 1), report(100, 3), report(400, 2)]);
        let single = summarize("single", &[report(20, 1)]);
        let medians = vec![batched.unwrap(), single.unwrap()];
        assert!((medians[0].rps - 100.0).abs() < f64::EPSILON);
        assert_eq!(medians[0].server_peak_rss_kib, Some(2.0));
        assert_eq!(ratio(&medians, 0, 1), Some(5.0));
        assert_eq!(ratio(&medians, 0, 2), None);
    }

    #[test]
    fn the_table_has_a_row_for_each_configuration() {
        let medians = vec![summarize("batched", &[report(10, 2048)]).unwrap()];
        let text = table(&Comparison {
            label: String::new(),
            runs: 1,
            seconds: 1.0,
            clients: 2,
            partitions: 1,
            medians,
            batched_to_single: Some(2.5),
            batched_to_healthz: None,
        });
        assert!(text.contains("| batched | push-pull | 10 | 10 | 2.00 ms"));
        assert!(text.contains("2.0 MiB"));
        assert!(text.contains("2.50×"));
    }
}

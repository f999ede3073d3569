//! What a run counts, and the line it prints.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency told apart, in microseconds; longer ones count as this.
const LONGEST_US: u64 = 60_000_000;

/// Counts of one client, or of several merged.
#[derive(Debug)]
pub struct Tally {
    /// Latencies of correct answers in microseconds.
    latencies: Histogram<u64>,
    /// Correct answers.
    pub requests: u64,
    /// Correct answers to a sync round.
    pub rounds: u64,
    /// Commits acknowledged as applied.
    pub commits: u64,
    /// Answers that were wrong, or did not come.
    pub errors: u64,
    /// Body bytes received.
    pub bytes_in: u64,
    /// Body bytes sent.
    pub bytes_out: u64,
}

/// What was run, as its result names it.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Name of the run.
    pub label: String,
    /// What each client did.
    pub scenario: &'static str,
    /// Clients over all partitions.
    pub clients: u32,
    /// Partitions.
    pub partitions: u32,
}

/// One correct answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// From before the request was written until its answer was checked.
    pub latency: Duration,
    /// Whether it was a sync round.
    pub round: bool,
    /// Commits it acknowledged.
    pub commits: u64,
    /// Body bytes received.
    pub bytes_in: u64,
    /// Body bytes sent.
    pub bytes_out: u64,
}

impl Tally {
    /// Nothing counted.
    ///
    /// # Errors
    /// Never with the bounds above; the histogram checks them.
    pub fn new() -> Result<Self, hdrhistogram::CreationError> {
        Ok(Self {
            latencies: Histogram::new_with_bounds(1, LONGEST_US, 3)?,
            requests: 0,
            rounds: 0,
            commits: 0,
            errors: 0,
            bytes_in: 0,
            bytes_out: 0,
        })
    }

    /// Counts a correct answer.
    pub fn record(&mut self, sample: &Sample) {
        let micros = u64::try_from(sample.latency.as_micros()).unwrap_or(LONGEST_US);
        self.latencies.saturating_record(micros.max(1));
        self.requests += 1;
        self.rounds += u64::from(sample.round);
        self.commits += sample.commits;
        self.bytes_in += sample.bytes_in;
        self.bytes_out += sample.bytes_out;
    }

    /// Adds the counts of another client.
    ///
    /// # Errors
    /// Never between tallies of this type: their bounds are equal.
    pub fn merge(&mut self, other: &Self) -> Result<(), hdrhistogram::AdditionError> {
        self.latencies.add(&other.latencies)?;
        self.requests += other.requests;
        self.rounds += other.rounds;
        self.commits += other.commits;
        self.errors += other.errors;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        Ok(())
    }

    /// The result of a run that was measured for `elapsed`.
    pub fn report(&self, shape: Shape, elapsed: Duration) -> Report {
        let seconds = elapsed.as_secs_f64();
        let rate = |count: u64| {
            if seconds > 0.0 {
                rounded(count as f64 / seconds)
            } else {
                0.0
            }
        };
        let quantile = |q: f64| self.latencies.value_at_quantile(q);
        Report {
            label: shape.label,
            scenario: shape.scenario,
            clients: shape.clients,
            partitions: shape.partitions,
            seconds: rounded(seconds),
            rounds: self.rounds,
            commits: self.commits,
            requests: self.requests,
            rps: rate(self.requests),
            rounds_per_s: rate(self.rounds),
            commits_per_s: rate(self.commits),
            p50_us: quantile(0.50),
            p95_us: quantile(0.95),
            p99_us: quantile(0.99),
            max_us: self.latencies.max(),
            errors: self.errors,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            server_peak_rss_kib: None,
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the run.
    pub label: String,
    /// What each client did.
    pub scenario: &'static str,
    /// Clients over all partitions.
    pub clients: u32,
    /// Partitions.
    pub partitions: u32,
    /// Seconds measured.
    pub seconds: f64,
    /// Correct sync rounds.
    pub rounds: u64,
    /// Commits acknowledged.
    pub commits: u64,
    /// Correct answers of any kind.
    pub requests: u64,
    /// Requests per second.
    pub rps: f64,
    /// Sync rounds per second.
    pub rounds_per_s: f64,
    /// Acknowledged commits per second.
    pub commits_per_s: f64,
    /// Median latency, microseconds.
    pub p50_us: u64,
    /// 95th percentile, microseconds.
    pub p95_us: u64,
    /// 99th percentile, microseconds.
    pub p99_us: u64,
    /// Slowest answer, microseconds.
    pub max_us: u64,
    /// Wrong or missing answers, warm-up included.
    pub errors: u64,
    /// Body bytes received.
    pub bytes_in: u64,
    /// Body bytes sent.
    pub bytes_out: u64,
    /// Peak resident memory of the server, where it is known.
    pub server_peak_rss_kib: Option<u64>,
}

impl Report {
    /// The report as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The middle one; the mean of the two middle ones of an even number. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[mid]),
        _ => Some(f64::midpoint(sorted[mid - 1], sorted[mid])),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn shape() -> Shape {
        Cli::try_parse_from(["x", "--label", "it"])
            .unwrap()
            .load
            .load
            .plan("http://h:1")
            .unwrap()
            .shape()
    }

    #[test]
    fn a_report_adds_up_what_the_clients_counted() {
        let mut all = Tally::new().unwrap();
        for client in 0..2 {
            let mut tally = Tally::new().unwrap();
            for micros in 1..=50 {
                tally.record(&Sample {
                    latency: Duration::from_micros(micros + 50 * client),
                    round: true,
                    commits: 1,
                    bytes_in: 10,
                    bytes_out: 3,
                });
            }
            tally.errors = client;
            all.merge(&tally).unwrap();
        }
        let report = all.report(shape(), Duration::from_secs(2));
        assert_eq!(
            (report.requests, report.rounds, report.commits),
            (100, 100, 100)
        );
        assert_eq!((report.bytes_in, report.bytes_out), (1000, 300));
        assert_eq!(report.errors, 1);
        assert!((report.rps - 50.0).abs() < f64::EPSILON);
        assert_eq!((report.p50_us, report.p95_us, report.p99_us), (50, 95, 99));
        assert_eq!(report.max_us, 100);
    }

    #[test]
    fn the_report_is_one_line_with_every_key() {
        let json = Tally::new()
            .unwrap()
            .report(shape(), Duration::from_secs(1))
            .to_json();
        assert!(!json.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        for key in [
            "label",
            "scenario",
            "clients",
            "partitions",
            "seconds",
            "rounds",
            "commits",
            "requests",
            "rps",
            "rounds_per_s",
            "commits_per_s",
            "p50_us",
            "p95_us",
            "p99_us",
            "max_us",
            "errors",
            "bytes_in",
            "bytes_out",
            "server_peak_rss_kib",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!(value["label"], "it");
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}

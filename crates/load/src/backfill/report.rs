//! The figures of a suite, their targets, and how they are shown.

use std::fmt::Write as _;

use serde::Serialize;

use super::BackfillSuiteArgs;
use crate::measure::{self, median};

/// Rows per second of the backfill, as a share of the rewrite's.
const RATE_TO_REWRITE: f64 = 0.35;
/// p99 of live rounds beside a backfill, as multiples of that without one.
const P99_BESIDE: f64 = 2.0;
/// Peak memory of the large table, as multiples of the small one's.
const MEMORY_GROWTH: f64 = 1.25;
/// Processor time of a round, as multiples of one without the gate.
const GATE_COST: f64 = 1.05;

/// One unpaced backfill.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub rows: u64,
    /// From the declaration to the activation.
    pub seconds: f64,
    pub server_cpu_seconds: Option<f64>,
    pub server_peak_rss_kib: Option<u64>,
}

impl Run {
    fn rate(&self) -> f64 {
        self.rows as f64 / self.seconds
    }

    fn cpu_us_per_row(&self) -> Option<f64> {
        self.server_cpu_seconds
            .map(|cpu| cpu * 1e6 / self.rows as f64)
    }

    fn peak_mib(&self) -> Option<f64> {
        self.server_peak_rss_kib.map(|kib| kib as f64 / 1024.0)
    }

    pub fn line(&self) -> String {
        format!(
            "{:.1} s, {:.0} rows/s, {:.1} us CPU per row, peak {:.1} MiB",
            self.seconds,
            self.rate(),
            self.cpu_us_per_row().unwrap_or_default(),
            self.peak_mib().unwrap_or_default()
        )
    }
}

/// The runs of one kind of backfill and of its yardsticks.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Bulk {
    label: &'static str,
    rows: u64,
    pub backfill: Vec<Run>,
    pub rewrite_seconds: Vec<f64>,
    pub bare_seconds: Vec<f64>,
}

impl Bulk {
    pub fn new(label: &'static str, rows: u64) -> Self {
        Self {
            label,
            rows,
            backfill: Vec::new(),
            rewrite_seconds: Vec::new(),
            bare_seconds: Vec::new(),
        }
    }

    fn of(&self, read: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(&self.backfill.iter().filter_map(read).collect::<Vec<_>>())
    }

    fn rate(&self) -> Option<f64> {
        self.of(|run| Some(run.rate()))
    }

    fn rate_of(&self, seconds: &[f64]) -> Option<f64> {
        Some(self.rows as f64 / median(seconds)?)
    }
}

/// Rounds on servers with the gate and without it.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Gate {
    pub gated_rounds_per_s: Vec<f64>,
    pub ungated_rounds_per_s: Vec<f64>,
    /// Processor time of the server per round, microseconds.
    pub gated_cpu_us: Vec<f64>,
    pub ungated_cpu_us: Vec<f64>,
}

/// Everything measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    rows: u64,
    page_rows: u32,
    workers: u32,
    runs: u32,
    clients: u32,
    pub migration_rows_per_s: f64,
    pub small: Vec<Run>,
    pub bulk: Vec<Bulk>,
    pub alone: Vec<measure::Report>,
    pub beside: Vec<measure::Report>,
    pub beside_rows_per_s: Vec<f64>,
    pub gate: Option<Gate>,
    /// Wrong answers of all live runs.
    pub errors: u64,
}

impl Report {
    pub fn new(args: &BackfillSuiteArgs) -> Self {
        Self {
            rows: args.rows,
            page_rows: args.page_rows,
            workers: args.workers,
            runs: args.runs,
            clients: args.clients,
            migration_rows_per_s: 0.0,
            small: Vec::new(),
            bulk: Vec::new(),
            alone: Vec::new(),
            beside: Vec::new(),
            beside_rows_per_s: Vec::new(),
            gate: None,
            errors: 0,
        }
    }

    /// Tables in Markdown.
    pub fn document(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        if !self.bulk.is_empty() {
            let _ = writeln!(
                out,
                "| of {} rows | rows/s | against the rewrite | server CPU per row | server peak |\n|---|---:|---:|---:|---:|",
                self.rows
            );
            for bulk in &self.bulk {
                let rewrite = bulk.rate_of(&bulk.rewrite_seconds);
                let against = |rate: Option<f64>| share(ratio(rate, rewrite));
                let rate = bulk.rate();
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} | {} |",
                    bulk.label,
                    whole(rate),
                    against(rate),
                    unit(bulk.of(Run::cpu_us_per_row), "µs"),
                    unit(bulk.of(Run::peak_mib), "MiB"),
                );
                let _ = writeln!(
                    out,
                    "| its rewrite in SQL | {} | 100 % | - | - |",
                    whole(rewrite)
                );
                let bare = bulk.rate_of(&bulk.bare_seconds);
                let _ = writeln!(
                    out,
                    "| the app table alone in SQL | {} | {} | - | - |",
                    whole(bare),
                    against(bare)
                );
            }
            let _ = writeln!(
                out,
                "\nMedians of {} run(s), {} rows a page, {} worker(s). The storage migration before it rewrote {:.0} rows/s.\n",
                self.runs, self.page_rows, self.workers, self.migration_rows_per_s
            );
        }
        if !self.alone.is_empty() {
            let _ = writeln!(
                out,
                "| push and pull of {} clients | rounds/s | p50 | p99 | backfill, rows/s |\n|---|---:|---:|---:|---:|",
                self.clients
            );
            for (label, runs, rows) in [
                ("without a backfill", &self.alone, None),
                (
                    "beside a paced backfill",
                    &self.beside,
                    median(&self.beside_rows_per_s),
                ),
            ] {
                let of = |read: fn(&measure::Report) -> f64| {
                    median(&runs.iter().map(read).collect::<Vec<_>>())
                };
                let _ = writeln!(
                    out,
                    "| {label} | {} | {} | {} | {} |",
                    whole(of(|run| run.rounds_per_s)),
                    unit(of(|run| run.p50_us as f64 / 1000.0), "ms"),
                    unit(of(|run| run.p99_us as f64 / 1000.0), "ms"),
                    whole(rows)
                );
            }
            out.push('\n');
        }
        if let Some(gate) = &self.gate {
            let _ = writeln!(
                out,
                "| push and pull on SQLite | rounds/s | server CPU per round |\n|---|---:|---:|"
            );
            for (label, rates, costs) in [
                (
                    "with the gate",
                    &gate.gated_rounds_per_s,
                    &gate.gated_cpu_us,
                ),
                (
                    "built without it",
                    &gate.ungated_rounds_per_s,
                    &gate.ungated_cpu_us,
                ),
            ] {
                let _ = writeln!(
                    out,
                    "| {label} | {} | {} |",
                    whole(median(rates)),
                    unit(median(costs), "µs")
                );
            }
            out.push('\n');
        }
        out.push_str("| target | wanted | measured | met |\n|---|---:|---:|---|\n");
        for (name, value, bound, at_most) in self.targets() {
            let met = value.is_some_and(|value| {
                if at_most {
                    value <= bound
                } else {
                    value >= bound
                }
            });
            let _ = writeln!(
                out,
                "| {name} | {} {bound} | {} | {} |",
                if at_most { "≤" } else { "≥" },
                value.map_or("-".to_owned(), |value| format!("{value:.2}")),
                if met { "yes" } else { "no" }
            );
        }
        out
    }

    fn targets(&self) -> Vec<(String, Option<f64>, f64, bool)> {
        let mut targets = Vec::new();
        for (bulk, small) in self.bulk.iter().zip(&self.small) {
            let rewrite = bulk.rate_of(&bulk.rewrite_seconds);
            targets.push((
                format!("{}: rows/s / rewrite in SQL", bulk.label),
                ratio(bulk.rate(), rewrite),
                RATE_TO_REWRITE,
                false,
            ));
            targets.push((
                format!(
                    "{}: peak memory of {} rows / of {}",
                    bulk.label, bulk.rows, small.rows
                ),
                ratio(bulk.of(Run::peak_mib), small.peak_mib()),
                MEMORY_GROWTH,
                true,
            ));
        }
        let p99 = |runs: &[measure::Report]| {
            median(&runs.iter().map(|run| run.p99_us as f64).collect::<Vec<_>>())
        };
        if !self.alone.is_empty() {
            targets.push((
                "p99 beside a paced backfill / without".to_owned(),
                ratio(p99(&self.beside), p99(&self.alone)),
                P99_BESIDE,
                true,
            ));
        }
        if let Some(gate) = &self.gate {
            targets.push((
                "server CPU per round / without the gate".to_owned(),
                ratio(median(&gate.gated_cpu_us), median(&gate.ungated_cpu_us)),
                GATE_COST,
                true,
            ));
        }
        targets
    }
}

fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (of, to) = (of?, to?);
    (to > 0.0).then(|| of / to)
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

fn share(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.0} %", value * 100.0))
}

fn unit(value: Option<f64>, unit: &str) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1} {unit}"))
}

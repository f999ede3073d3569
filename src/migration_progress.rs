//! How far a running migration is, for people and for programs.

use std::io::Write;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use tidegate_store::MigrationObserver;
use tidegate_store::operating::MigrationStep;

/// A table's progress at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Table.
    pub table: String,
    /// Rows done.
    pub rows_done: u64,
    /// Rows in all.
    pub rows_total: u64,
    /// Rows per second since the table was begun.
    pub rows_per_second: f64,
    /// Seconds left at that rate; `None` while there is no rate.
    pub seconds_left: Option<f64>,
}

/// Measures the rewrite of tables.
#[derive(Debug)]
struct Meter {
    /// The table in work: since when, and rows that were done by then.
    table: Option<(String, Duration, u64)>,
    /// When something was last told.
    told: Option<Duration>,
    rows_of_tables_before: u64,
    rows_done: u64,
}

impl Meter {
    const fn new() -> Self {
        Self {
            table: None,
            told: None,
            rows_of_tables_before: 0,
            rows_done: 0,
        }
    }

    /// Takes a page that ended `at`, on any clock; `began` is when its work began.
    fn page(
        &mut self,
        table: &str,
        done: u64,
        total: u64,
        began: Duration,
        at: Duration,
    ) -> Progress {
        let begun = match &self.table {
            Some((name, begun, _)) if name == table => *begun,
            _ => {
                self.rows_of_tables_before = self.rows_done;
                self.table = Some((table.to_owned(), began, done));
                began
            }
        };
        self.rows_done = self.rows_of_tables_before + done;
        let seconds = at.saturating_sub(begun).as_secs_f64();
        let rate = if seconds > 0.0 {
            done as f64 / seconds
        } else {
            0.0
        };
        Progress {
            table: table.to_owned(),
            rows_done: done,
            rows_total: total,
            rows_per_second: rate,
            seconds_left: (rate > 0.0).then(|| total.saturating_sub(done) as f64 / rate),
        }
    }

    /// Whether it is time to tell something again: not more often than `interval`,
    /// and always at the end of a table.
    fn is_due(&mut self, progress: &Progress, at: Duration, interval: Duration) -> bool {
        let due = progress.rows_done >= progress.rows_total
            || self
                .told
                .is_none_or(|told| at.saturating_sub(told) >= interval);
        if due {
            self.told = Some(at);
        }
        due
    }
}

/// How progress is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// One line of a terminal, drawn again and again.
    Bar,
    /// JSON objects, one a line.
    Lines,
}

/// Tells how far a migration is.
#[derive(Debug)]
pub struct Telling {
    voice: Voice,
    start: Instant,
    state: Mutex<(Meter, Duration)>,
}

impl Telling {
    /// From now on.
    pub fn new(voice: Voice) -> Self {
        Self {
            voice,
            start: Instant::now(),
            state: Mutex::new((Meter::new(), Duration::ZERO)),
        }
    }

    /// Rows rewritten in all tables.
    pub fn rows_rewritten(&self) -> u64 {
        self.state.lock().0.rows_done
    }

    /// Ends the bar's line.
    pub fn finish(&self) {
        if self.voice == Voice::Bar {
            say("\r\x1b[K");
        }
    }
}

impl MigrationObserver for Telling {
    fn step(&self, step: MigrationStep) {
        let at = self.start.elapsed();
        let mut state = self.state.lock();
        let (meter, before) = &mut *state;
        let began = std::mem::replace(before, at);
        let progress = match &step {
            MigrationStep::Rewriting {
                table,
                rows_done,
                rows_total,
            } => {
                let progress = meter.page(table, *rows_done, *rows_total, began, at);
                let interval = match self.voice {
                    Voice::Bar => Duration::from_millis(100),
                    Voice::Lines => Duration::from_secs(1),
                };
                if !meter.is_due(&progress, at, interval) {
                    return;
                }
                Some(progress)
            }
            _ => None,
        };
        drop(state);
        match (self.voice, progress) {
            (Voice::Bar, Some(progress)) => say(&format!("\r\x1b[K{}", bar(&progress))),
            (Voice::Bar, None) => say(&format!("\r\x1b[K{}", words(&step))),
            (Voice::Lines, Some(progress)) => say(&format!(
                "{}\n",
                json!({
                    "step": name(&step),
                    "table": progress.table,
                    "rowsDone": progress.rows_done,
                    "rowsTotal": progress.rows_total,
                    "rowsPerSecond": progress.rows_per_second.round(),
                    "secondsLeft": progress.seconds_left.map(|left| (left * 10.0).round() / 10.0),
                })
            )),
            (Voice::Lines, None) => say(&format!("{}\n", json!({ "step": name(&step) }))),
        }
    }
}

/// A progress that nobody can read is no reason to stop.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

const fn name(step: &MigrationStep) -> &'static str {
    match step {
        MigrationStep::WaitingForBarrier => "waiting_for_barrier",
        MigrationStep::BarrierHeld => "barrier_held",
        MigrationStep::Rewriting { .. } => "rewriting",
        MigrationStep::Publishing => "publishing",
    }
}

const fn words(step: &MigrationStep) -> &'static str {
    match step {
        MigrationStep::WaitingForBarrier => "waiting for writers to finish",
        MigrationStep::BarrierHeld => "writers wait; changing tables",
        MigrationStep::Rewriting { .. } => "rewriting stored rows",
        MigrationStep::Publishing => "publishing the new version",
    }
}

/// One line, narrower than any terminal.
fn bar(progress: &Progress) -> String {
    const CELLS: u64 = 24;
    let total = progress.rows_total.max(1);
    let done = progress.rows_done.min(total);
    let filled = usize::try_from(done * CELLS / total).unwrap_or(0);
    let empty = usize::try_from(CELLS).unwrap_or(0) - filled;
    let left = match progress.seconds_left {
        Some(seconds) => format!(
            ", {} left",
            rough(Duration::from_secs_f64(seconds.min(1e9)))
        ),
        None => String::new(),
    };
    let table: String = progress.table.chars().take(16).collect();
    format!(
        "{table} [{}{}] {}% of {}, {:.0}/s{left}",
        "#".repeat(filled),
        ".".repeat(empty),
        done * 100 / total,
        progress.rows_total,
        progress.rows_per_second,
    )
}

/// A duration as people say it.
pub fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration.as_secs() {
        0..=9 => format!("{seconds:.1} s"),
        10..=119 => format!("{seconds:.0} s"),
        120..=7199 => format!("{} min", duration.as_secs().div_ceil(60)),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_rate_counts_from_the_tables_own_beginning() {
        let mut meter = Meter::new();
        let first = meter.page("a", 500, 1000, seconds(10), seconds(11));
        assert_eq!(
            (first.rows_per_second, first.seconds_left),
            (500.0, Some(1.0))
        );
        let last = meter.page("a", 1000, 1000, seconds(11), seconds(14));
        assert_eq!(
            (last.rows_per_second, last.seconds_left),
            (250.0, Some(0.0))
        );
        // Another table begins where the first ended, with a rate of its own.
        let next = meter.page("b", 10, 40, seconds(14), seconds(15));
        assert_eq!((next.rows_per_second, next.seconds_left), (10.0, Some(3.0)));
        assert_eq!(meter.rows_done, 1010);
        let none = Meter::new().page("a", 5, 10, seconds(1), seconds(1));
        assert_eq!((none.rows_per_second, none.seconds_left), (0.0, None));
    }

    #[test]
    fn a_table_is_told_at_its_end_and_not_too_often_before() {
        let mut meter = Meter::new();
        let mut told = Vec::new();
        for at in 1..=10 {
            let progress = meter.page("a", at, 10, seconds(at - 1), seconds(at));
            if meter.is_due(&progress, seconds(at), seconds(4)) {
                told.push(at);
            }
        }
        assert_eq!(told, [1, 5, 9, 10]);
    }

    #[test]
    fn the_bar_fits_a_terminal() {
        let progress = |done, total| Progress {
            table: "a_table_with_a_long_name".into(),
            rows_done: done,
            rows_total: total,
            rows_per_second: 123_456.0,
            seconds_left: Some(90.0),
        };
        assert_eq!(
            bar(&progress(500, 1000)),
            "a_table_with_a_l [############............] 50% of 1000, 123456/s, 90 s left"
        );
        for (done, total) in [(0, 0), (9, 3), (u64::MAX / 100, u64::MAX / 100)] {
            assert!(bar(&progress(done, total)).len() < 110);
        }
    }

    #[test]
    fn durations_are_rough() {
        let said = [0, 9, 10, 119, 120, 7199, 9000].map(|s| rough(seconds(s)));
        assert_eq!(
            said,
            [
                "0.0 s", "9.0 s", "10 s", "119 s", "2 min", "120 min", "2.5 h"
            ]
        );
    }
}

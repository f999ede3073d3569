//! How far a backfill is, as an operator sees it.

use std::collections::VecDeque;

/// Samples older than this say nothing of the present rate, milliseconds.
const WINDOW_MS: i64 = 30_000;
/// Samples closer together than this are merged, milliseconds.
const SAMPLE_MS: i64 = 250;

/// Rows done over time.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    samples: VecDeque<(i64, u64)>,
}

/// Where a scan stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Source rows seen.
    pub rows_done: u64,
    /// Source rows in all, as counted or estimated when the scan began; never
    /// below `rows_done`.
    pub rows_total: u64,
    /// Rows per second over the last half minute.
    pub rows_per_second: f64,
    /// Milliseconds left at that rate; `None` = not known yet.
    pub left_ms: Option<u64>,
}

impl Meter {
    /// Notes the total of rows seen so far. A total that falls begins a new scan.
    pub fn record(&mut self, rows_done: u64, now_ms: i64) {
        if let Some((at, rows)) = self.samples.back_mut() {
            if *rows > rows_done || *at > now_ms {
                self.samples.clear();
            } else if now_ms - *at < SAMPLE_MS && self.samples.len() > 1 {
                if let Some(last) = self.samples.back_mut() {
                    last.1 = rows_done;
                }
                return;
            }
        }
        self.samples.push_back((now_ms, rows_done));
        self.forget(now_ms);
    }

    /// The state at `now_ms`, given how many rows there are.
    pub fn progress(&mut self, rows_total: u64, now_ms: i64) -> Progress {
        self.forget(now_ms);
        let rows_done = self.samples.back().map_or(0, |(_, rows)| *rows);
        let rows_total = rows_total.max(rows_done);
        let rows_per_second = match self.samples.front() {
            Some((since, rows)) if now_ms > *since => {
                (rows_done - rows) as f64 * 1_000.0 / (now_ms - since) as f64
            }
            _ => 0.0,
        };
        let left = (rows_total - rows_done) as f64;
        let left_ms = if left == 0.0 {
            Some(0)
        } else if rows_per_second > 0.0 {
            Some((left / rows_per_second * 1_000.0).ceil() as u64)
        } else {
            None
        };
        Progress {
            rows_done,
            rows_total,
            rows_per_second,
            left_ms,
        }
    }

    /// Drops what is too old; the newest sample stays, it holds the total.
    fn forget(&mut self, now_ms: i64) {
        while self.samples.len() > 1
            && self
                .samples
                .front()
                .is_some_and(|(at, _)| now_ms - at > WINDOW_MS)
        {
            self.samples.pop_front();
        }
    }
}

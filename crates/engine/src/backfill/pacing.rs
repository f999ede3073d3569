//! How fast a backfill may write: a rate in rows per second that yields to live
//! pushes. Time is handed in; nothing here waits.

/// What an operator may set, at run time too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Rows per second at most.
    pub rows_per_second: f64,
    /// Rows that may be written at once after an idle time.
    pub burst_rows: f64,
    /// Wanted p99 latency of live pushes, milliseconds; `None` = do not yield.
    pub push_p99_target_ms: Option<f64>,
    /// The share of the rate that is kept however slow pushes are, 0 to 1: above
    /// zero, or a backfill under steady load never ends.
    pub least_share: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            rows_per_second: 5_000.0,
            burst_rows: 1_000.0,
            push_p99_target_ms: Some(100.0),
            least_share: 0.02,
        }
    }
}

/// The share given up when pushes are too slow, at each observation.
const BACK_OFF: f64 = 0.5;
/// The share of the full rate regained when they are not.
const RECOVERY: f64 = 0.05;

/// A token bucket whose rate follows the latency of live pushes: halved while they
/// are slower than their target, raised step by step while they are not.
#[derive(Debug, Clone, PartialEq)]
pub struct Pacer {
    pace: Pace,
    share: f64,
    tokens: f64,
    refilled_at_ms: i64,
}

impl Pacer {
    /// A full bucket.
    pub fn new(pace: Pace, now_ms: i64) -> Self {
        let pace = sane(pace);
        Self {
            share: 1.0,
            tokens: pace.burst_rows,
            refilled_at_ms: now_ms,
            pace,
        }
    }

    /// Changes the settings; what was earned under the old ones stays, up to the
    /// new burst.
    pub fn set(&mut self, pace: Pace, now_ms: i64) {
        self.refill(now_ms);
        self.pace = sane(pace);
        self.tokens = self.tokens.min(self.pace.burst_rows);
        self.share = self.share.max(self.pace.least_share);
    }

    /// Rows per second right now.
    pub fn rate(&self) -> f64 {
        self.pace.rows_per_second * self.share
    }

    /// Takes `rows` and tells how many milliseconds to wait before writing them.
    /// A page may exceed the bucket: it then waits for all that it overdraws.
    pub fn take(&mut self, rows: usize, now_ms: i64) -> u64 {
        self.refill(now_ms);
        self.tokens -= rows as f64;
        if self.tokens >= 0.0 {
            return 0;
        }
        (-self.tokens / self.rate() * 1_000.0).ceil() as u64
    }

    /// Learns the p99 latency of pushes since the last observation; `None` = there
    /// were none, nobody is in the way.
    pub fn observe(&mut self, push_p99_ms: Option<f64>, now_ms: i64) {
        self.refill(now_ms);
        let slow = match (push_p99_ms, self.pace.push_p99_target_ms) {
            (Some(seen), Some(target)) => seen > target,
            _ => false,
        };
        let share = if slow {
            self.share * BACK_OFF
        } else {
            self.share + RECOVERY
        };
        self.share = share.clamp(self.pace.least_share, 1.0);
    }

    fn refill(&mut self, now_ms: i64) {
        // A clock that steps back earns nothing and owes nothing.
        let elapsed_ms = now_ms.saturating_sub(self.refilled_at_ms).max(0);
        self.refilled_at_ms = now_ms;
        let earned = elapsed_ms as f64 / 1_000.0 * self.rate();
        self.tokens = (self.tokens + earned).min(self.pace.burst_rows);
    }
}

/// Settings under which a backfill still moves.
fn sane(pace: Pace) -> Pace {
    let positive = |value: f64, least: f64| if value >= least { value } else { least };
    Pace {
        rows_per_second: positive(pace.rows_per_second, 0.001),
        burst_rows: positive(pace.burst_rows, 1.0),
        push_p99_target_ms: pace.push_p99_target_ms.filter(|target| *target > 0.0),
        least_share: positive(pace.least_share, 0.001).min(1.0),
    }
}

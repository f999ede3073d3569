//! What a run and its supervisor tell each other: orders one way, the state of the work
//! the other.

use std::time::Instant;

use parking_lot::Mutex;
use tidegate_engine::OwnerEpoch;
use tidegate_engine::backfill::pacing::{Pace, Pacer};
use tidegate_engine::backfill::progress::{Meter, Progress};
use tokio::sync::watch;

use super::WorkerPhase;
use crate::latency::{Latencies, Seen};

/// What an operator wants of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Orders {
    /// End after the pages in flight.
    pub stop: bool,
    /// Workers wanted, at least 1.
    pub workers: u32,
    /// Pace.
    pub pace: Pace,
}

/// The board of one run.
#[derive(Debug)]
pub(crate) struct Board {
    orders: watch::Sender<Orders>,
    finished: watch::Sender<bool>,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: WorkerPhase,
    epoch: Option<OwnerEpoch>,
    running: u32,
    error: Option<String>,
    meter: Meter,
    /// Known while a scan runs.
    rows_total: Option<u64>,
    pacer: Pacer,
    pushes: Seen,
    observed_at_ms: i64,
}

/// Push latencies are looked at this often, milliseconds: a pace that follows single
/// pushes only swings.
const OBSERVE_EVERY_MS: i64 = 250;

impl Board {
    pub fn new(orders: Orders) -> Self {
        Self {
            orders: watch::Sender::new(orders),
            finished: watch::Sender::new(false),
            started: Instant::now(),
            state: Mutex::new(State {
                phase: WorkerPhase::Idle,
                epoch: None,
                running: 0,
                error: None,
                meter: Meter::default(),
                rows_total: None,
                pacer: Pacer::new(orders.pace, 0),
                pushes: Seen::default(),
                observed_at_ms: 0,
            }),
        }
    }

    /// Milliseconds since the run started, by a clock that never steps back.
    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    pub fn orders(&self) -> Orders {
        *self.orders.borrow()
    }

    /// A subscription to orders that come from now on.
    pub fn subscribe(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }

    /// Changes the orders; an equal one wakes nobody.
    pub fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_if_modified(|orders| {
            let before = *orders;
            change(orders);
            if before.pace != orders.pace {
                let now_ms = self.elapsed_ms();
                self.state.lock().pacer.set(orders.pace, now_ms);
            }
            before != *orders
        });
    }

    /// Ready once the run is told to stop.
    pub async fn stopped(&self) {
        // The sender lives as long as `self`: the wait cannot fail.
        let _ = self.orders.subscribe().wait_for(|orders| orders.stop).await;
    }

    pub fn finish(&self) {
        self.finished.send_replace(true);
    }

    /// Ready once the run has ended.
    pub async fn finished(&self) {
        let _ = self.finished.subscribe().wait_for(|done| *done).await;
    }

    pub fn enter(&self, phase: WorkerPhase) {
        let mut state = self.state.lock();
        state.phase = phase;
        if phase != WorkerPhase::Scanning {
            state.rows_total = None;
        }
    }

    pub fn phase(&self) -> WorkerPhase {
        self.state.lock().phase
    }

    pub fn claimed(&self, epoch: OwnerEpoch) {
        self.state.lock().epoch = Some(epoch);
    }

    pub fn epoch(&self) -> Option<OwnerEpoch> {
        self.state.lock().epoch
    }

    pub fn set_running(&self, workers: u32) {
        self.state.lock().running = workers;
    }

    pub fn running(&self) -> u32 {
        self.state.lock().running
    }

    pub fn set_error(&self, error: Option<String>) {
        self.state.lock().error = error;
    }

    pub fn error(&self) -> Option<String> {
        self.state.lock().error.clone()
    }

    pub fn expect_rows(&self, rows_total: u64) {
        self.state.lock().rows_total = Some(rows_total);
    }

    pub fn record_rows(&self, rows_done: i64) {
        let now_ms = self.elapsed_ms();
        let rows_done = u64::try_from(rows_done).unwrap_or(0);
        self.state.lock().meter.record(rows_done, now_ms);
    }

    pub fn progress(&self) -> Option<Progress> {
        let now_ms = self.elapsed_ms();
        let mut state = self.state.lock();
        let rows_total = state.rows_total?;
        Some(state.meter.progress(rows_total, now_ms))
    }

    /// The share of the rate that is in force.
    pub fn rate_share(&self) -> f64 {
        let rate = self.state.lock().pacer.rate();
        let full = self.orders().pace.rows_per_second;
        if full > 0.0 {
            (rate / full).min(1.0)
        } else {
            1.0
        }
    }

    /// Charges `rows` that were processed, and tells how many milliseconds to wait before
    /// the next ones. Looks at the partition's push latencies now and then.
    pub fn charge(&self, rows: usize, pushes: &Latencies) -> u64 {
        let now_ms = self.elapsed_ms();
        let mut state = self.state.lock();
        if now_ms - state.observed_at_ms >= OBSERVE_EVERY_MS {
            state.observed_at_ms = now_ms;
            let p99 = pushes.p99_since(&mut state.pushes);
            state.pacer.observe(p99, now_ms);
        }
        state.pacer.take(rows, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Slow pushes take rate away, quick ones give it back.
    #[test]
    fn the_rate_follows_the_latency_of_pushes() {
        let board = Board::new(Orders {
            stop: false,
            workers: 1,
            pace: Pace {
                push_p99_target_ms: Some(50.0),
                ..Pace::default()
            },
        });
        let pushes = Latencies::new();
        let observe = |took: Duration, until: &dyn Fn(f64) -> bool| {
            let patience = Instant::now();
            while !until(board.rate_share()) {
                assert!(patience.elapsed() < Duration::from_secs(20));
                pushes.record(took);
                board.charge(0, &pushes);
                std::thread::yield_now();
            }
        };
        observe(Duration::from_millis(400), &|share| share < 0.3);
        let low = board.rate_share();
        observe(Duration::from_millis(2), &|share| share > low);
    }
}

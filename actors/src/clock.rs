//! Where the service gets its time from.

use std::time::{SystemTime, UNIX_EPOCH};

/// Whether timers run on this thread. An actor that its thread's end finds not yet started
/// is started all the same, to be stopped: then none do.
pub(crate) fn timers_run() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

/// Wall clock, handed in so that decisions stay reproducible.
pub trait Clock: Send + Sync + 'static {
    /// Now, epoch milliseconds.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        // A clock before 1970 is a broken machine; 0 keeps the service answering.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
            })
    }
}

//! Steps at which a test may end the process, or hold it.
//!
//! With the cargo feature `failpoints` the environment variable `TIDEGATE_FAILPOINT`
//! names one of them, `name` or `name:count`, and the process aborts when it is reached
//! that often. Without the feature nothing of this is compiled in.

use async_trait::async_trait;

/// Hears of every step before it goes on. A test that never returns from it has the
/// process as it would stand there if it died.
#[async_trait]
pub trait Steps: Send + Sync + 'static {
    /// The work came to `step`.
    async fn reached(&self, step: &'static str);
}

/// Goes on at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSteps;

#[async_trait]
impl Steps for NoSteps {
    async fn reached(&self, _: &'static str) {}
}

/// Ends the process here when it was told to.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn failpoint(_step: &'static str) {}

/// Ends the process here when it was told to.
#[cfg(feature = "failpoints")]
pub(crate) fn failpoint(step: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Wanted {
        step: String,
        left: AtomicU64,
    }
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("TIDEGATE_FAILPOINT").ok()?;
        let (step, count) = parse(&text)?;
        Some(Wanted {
            step: step.to_owned(),
            left: AtomicU64::new(count),
        })
    });
    if let Some(wanted) = wanted
        && wanted.step == step
        && wanted.left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        std::process::abort();
    }
}

/// Reads `name` or `name:count`.
#[cfg(any(feature = "failpoints", test))]
fn parse(text: &str) -> Option<(&str, u64)> {
    match text.rsplit_once(':') {
        Some((step, count)) => Some((step, count.parse().ok().filter(|count| *count > 0)?)),
        None => Some((text, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failpoint_is_a_step_and_the_time_at_which_it_is_reached() {
        assert_eq!(parse("a.b"), Some(("a.b", 1)));
        assert_eq!(parse("a.b:3"), Some(("a.b", 3)));
        assert_eq!(parse("a.b:0"), None);
        assert_eq!(parse("a.b:x"), None);
    }
}

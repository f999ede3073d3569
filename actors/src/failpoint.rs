//! Steps that a test may hear of: at which it may end the process
//! ([`tidegate_store::failpoint`]), or hold it from inside.

use async_trait::async_trait;

pub(crate) use tidegate_store::failpoint::{failpoint, pausing_failpoint};

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

//! What end-to-end tests turn from outside: the clock and the scope resolver. Only a
//! server started with `--unsafe-test-clock` has them, on loopback alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_actors::{Clock, SystemClock};
use tidegate_engine::hooks::Allowed;
use utoipa::ToSchema;

use super::errors::{ControlCode, invalid};
use super::input::Body;
use super::{Answer, Command, ControlError, OperatorData, Station, ask};
use crate::auth::{Identity, Resolution, ResolveScopes};

/// The latest time that may be set, the year 9999.
const MAX_MS: i64 = 253_402_300_799_999;

#[derive(Debug, Clone, Copy)]
enum Reading {
    /// The machine's time and that many milliseconds.
    Running { offset_ms: i64 },
    /// Stands still.
    Stopped { at_ms: i64 },
}

/// A clock that can be set: it runs until then and stands still afterwards.
#[derive(Debug)]
pub struct TestClock(Mutex<Reading>);

impl Default for TestClock {
    fn default() -> Self {
        Self(Mutex::new(Reading::Running { offset_ms: 0 }))
    }
}

impl TestClock {
    /// Stops it at a time, epoch milliseconds.
    pub fn set(&self, at_ms: i64) {
        *self.0.lock() = Reading::Stopped { at_ms };
    }

    /// Moves it; a running one runs on.
    pub fn advance(&self, by_ms: i64) {
        let mut reading = self.0.lock();
        *reading = match *reading {
            Reading::Running { offset_ms } => Reading::Running {
                offset_ms: offset_ms.saturating_add(by_ms).min(MAX_MS),
            },
            Reading::Stopped { at_ms } => Reading::Stopped {
                at_ms: at_ms.saturating_add(by_ms).min(MAX_MS),
            },
        };
    }

    fn is_stopped(&self) -> bool {
        matches!(*self.0.lock(), Reading::Stopped { .. })
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        match *self.0.lock() {
            Reading::Running { offset_ms } => SystemClock.now_ms().saturating_add(offset_ms),
            Reading::Stopped { at_ms } => at_ms,
        }
    }
}

/// How the scope resolver behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResolverMode {
    /// As without the switch.
    Live,
    /// It fails in a way that revokes.
    Failing,
    /// What it asks is out of reach.
    Outage,
}

/// A scope resolver with a switch before it.
pub struct SwitchedResolver {
    inner: Arc<dyn ResolveScopes>,
    mode: AtomicU8,
}

impl SwitchedResolver {
    fn mode(&self) -> ResolverMode {
        match self.mode.load(Ordering::SeqCst) {
            0 => ResolverMode::Live,
            1 => ResolverMode::Failing,
            _ => ResolverMode::Outage,
        }
    }
}

#[async_trait]
impl ResolveScopes for SwitchedResolver {
    async fn resolve(&self, identity: &Identity) -> Resolution {
        match self.mode() {
            ResolverMode::Live => self.inner.resolve(identity).await,
            ResolverMode::Failing => Resolution::Known(Allowed::Failed),
            ResolverMode::Outage => Resolution::Outage,
        }
    }
}

/// The clock and the resolver of a server under test.
pub struct TestHooks {
    /// Its clock.
    pub clock: Arc<TestClock>,
    /// Its resolver.
    pub resolver: Arc<SwitchedResolver>,
}

impl TestHooks {
    /// Before that resolver.
    pub fn before(inner: Arc<dyn ResolveScopes>) -> Self {
        Self {
            clock: Arc::default(),
            resolver: Arc::new(SwitchedResolver {
                inner,
                mode: AtomicU8::new(0),
            }),
        }
    }
}

fn hooks(station: &Station) -> Result<&TestHooks, ControlError> {
    let hooks = station.parts.test_hooks.as_deref();
    hooks.ok_or_else(|| ControlCode::Unsupported.into())
}

/// How to turn the clock: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockBody {
    /// Stop it at that time, epoch milliseconds.
    set_ms: Option<i64>,
    /// Move it on by that many milliseconds.
    advance_ms: Option<i64>,
}

/// The clock.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClockView {
    /// Epoch milliseconds.
    now_ms: i64,
    /// Whether it stands still.
    stopped: bool,
}

#[derive(Debug)]
enum TurnClock {
    Set(i64),
    Advance(i64),
}

impl Command for TurnClock {
    const NAME: &'static str = "turn the clock";
    const CHANGES: bool = true;
    type Answer = ClockView;

    async fn run(self, station: &Station) -> Result<ClockView, ControlError> {
        let clock = &hooks(station)?.clock;
        match self {
            Self::Set(at_ms) => clock.set(at_ms),
            Self::Advance(by_ms) => clock.advance(by_ms),
        }
        Ok(ClockView {
            now_ms: clock.now_ms(),
            stopped: clock.is_stopped(),
        })
    }
}

/// Turn the clock of a server under test
#[utoipa::path(post, path = "/control/v1/test/clock", request_body = ClockBody,
    responses((status = 200, body = ClockView)))]
pub(crate) async fn turn_clock(
    operator: OperatorData,
    Body(body): Body<ClockBody>,
) -> Answer<ClockView> {
    const EXPECTED: &str = "milliseconds from 0 to 253402300799999 (the year 9999)";
    let fine = |value: i64| (0..=MAX_MS).contains(&value);
    let command = match (body.set_ms, body.advance_ms) {
        (Some(at), None) if fine(at) => TurnClock::Set(at),
        (None, Some(by)) if fine(by) => TurnClock::Advance(by),
        (Some(_), None) => return Err(invalid("set_ms", EXPECTED)),
        (None, Some(_)) => return Err(invalid("advance_ms", EXPECTED)),
        _ => return Err(invalid("set_ms", "one of set_ms and advance_ms")),
    };
    ask(&operator, command).await
}

/// How the resolver behaves.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolverBody {
    mode: ResolverMode,
}

#[derive(Debug)]
struct SwitchResolver(ResolverMode);

impl Command for SwitchResolver {
    const NAME: &'static str = "switch the resolver";
    const CHANGES: bool = true;
    type Answer = ResolverBody;

    async fn run(self, station: &Station) -> Result<ResolverBody, ControlError> {
        let resolver = &hooks(station)?.resolver;
        let mode = match self.0 {
            ResolverMode::Live => 0,
            ResolverMode::Failing => 1,
            ResolverMode::Outage => 2,
        };
        resolver.mode.store(mode, Ordering::SeqCst);
        Ok(ResolverBody {
            mode: resolver.mode(),
        })
    }
}

/// Switch the scope resolver of a server under test
#[utoipa::path(post, path = "/control/v1/test/resolver", request_body = ResolverBody,
    responses((status = 200, body = ResolverBody)))]
pub(crate) async fn switch_resolver(
    operator: OperatorData,
    Body(body): Body<ResolverBody>,
) -> Answer<ResolverBody> {
    ask(&operator, SwitchResolver(body.mode)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_until_it_is_set_and_stands_still_afterwards() {
        let clock = TestClock::default();
        let machine = SystemClock.now_ms();
        assert!((0..60_000).contains(&(clock.now_ms() - machine)));
        clock.advance(1_000_000);
        assert!((1_000_000..1_060_000).contains(&(clock.now_ms() - machine)));
        assert!(!clock.is_stopped());
        clock.set(5);
        clock.advance(7);
        assert_eq!(clock.now_ms(), 12);
        assert!(clock.is_stopped());
    }
}

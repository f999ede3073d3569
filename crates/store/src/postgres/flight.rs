//! Batches of a partition that are sent one right behind the other, on one connection:
//! the database begins with the next one when the one before has committed, without a
//! round trip in between (docs/postgres.md).

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::batch::Chained;
use super::commit::Whole;
use super::connection::Lease;
use crate::error::CommitError;
use crate::{Link, Passed};

/// What a batch leaves on its session when it commits. No two are the same, whichever
/// process uses the session.
#[derive(Debug, Clone)]
pub(super) struct Mark(Arc<str>);

impl Deref for Mark {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The batches under way that others may follow.
pub(super) struct Flights {
    flights: Mutex<Vec<Flight>>,
    process: u64,
    marks: AtomicU64,
}

/// A connection with batches under way.
struct Flight {
    lease: Arc<Lease>,
    newest: Link,
    mark: Mark,
}

/// Where a batch may be sent behind another one.
pub(super) struct Place {
    lease: Arc<Lease>,
    after: Mark,
}

type Outcome = Result<Option<Passed>, CommitError>;

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            flights: Mutex::default(),
            process: RandomState::new().build_hasher().finish(),
            marks: AtomicU64::new(0),
        }
    }

    fn mark(&self) -> Mark {
        let number = self.marks.fetch_add(1, Ordering::Relaxed);
        let mut mark = String::with_capacity(33);
        let _ = write!(mark, "{:x}-{number:x}", self.process);
        Mark(mark.into())
    }

    /// The place right behind the batch that `before` tells of, while it is under way and
    /// nobody else has taken that place.
    pub(super) fn behind(&self, before: &Link) -> Option<Place> {
        let flights = self.flights.lock();
        let flight = flights.iter().find(|flight| flight.newest.is(before))?;
        Some(Place {
            lease: Arc::clone(&flight.lease),
            after: flight.mark.clone(),
        })
    }

    /// Sends a batch that others may follow, and waits for its end; `own` tells of it.
    pub(super) async fn lead(&self, lease: Lease, whole: Whole<'_>, own: &Link) -> Outcome {
        let (lease, mark) = (Arc::new(lease), self.mark());
        let mut landing = Landing {
            flights: self,
            lease: &lease,
            own,
            durable: false,
        };
        let chained = Chained {
            after: None,
            mark: Some(&mark),
        };
        let sent = whole.send(&lease, chained, || {
            let mut flights = self.flights.lock();
            flights.push(Flight {
                lease: Arc::clone(&lease),
                newest: own.clone(),
                mark: mark.clone(),
            });
            Some(flights)
        });
        landing.end(sent.await.unwrap_or(Ok(None)))
    }

    /// Sends a batch to its place behind the one that `before` tells of, and waits for its
    /// end; `None` when that one has ended or somebody else has the place: nothing is sent.
    pub(super) async fn follow(
        &self,
        place: Place,
        before: &Link,
        whole: Whole<'_>,
        own: &Link,
    ) -> Option<Outcome> {
        let (Place { lease, after }, mark) = (place, self.mark());
        let mut landing = Landing {
            flights: self,
            lease: &lease,
            own,
            durable: false,
        };
        let chained = Chained {
            after: Some(&after),
            mark: Some(&mark),
        };
        let sent = whole.send(&lease, chained, || {
            let mut flights = self.flights.lock();
            let flight = flights.iter_mut().find(|one| one.newest.is(before))?;
            flight.newest = own.clone();
            flight.mark = mark.clone();
            Some(flights)
        });
        match sent.await {
            Some(outcome) => Some(landing.end(outcome)),
            None => {
                // Whoever is under way there goes on.
                landing.durable = true;
                None
            }
        }
    }
}

/// The end of a batch under way, however it comes.
struct Landing<'a> {
    flights: &'a Flights,
    lease: &'a Arc<Lease>,
    own: &'a Link,
    durable: bool,
}

impl Landing<'_> {
    fn end(&mut self, outcome: Result<Option<Vec<Passed>>, CommitError>) -> Outcome {
        self.durable = outcome.is_ok();
        outcome.map(|passed| passed.and_then(|all| all.into_iter().next()))
    }
}

impl Drop for Landing<'_> {
    /// Nobody follows a batch that has ended, nor anybody of a flight in which one failed.
    fn drop(&mut self) {
        let ended = |flight: &Flight| {
            Arc::ptr_eq(&flight.lease, self.lease) && (!self.durable || flight.newest.is(self.own))
        };
        let mut flights = self.flights.flights.lock();
        let Some(at) = flights.iter().position(ended) else {
            return;
        };
        let gone = flights.swap_remove(at);
        drop(flights);
        drop(gone);
    }
}

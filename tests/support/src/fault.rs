//! A transport that loses requests and answers on command, to test what only a bad
//! network shows: lost acknowledgements, replays, rounds that never happened.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::transport::{SegmentDownload, Transport, TransportError};

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the server.
    DropRequest,
    /// The server does the work; its answer is lost.
    DropResponse,
}

/// The faults to come: a queue, and after it random ones from a seed. Clones share
/// the same plan.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    queued: VecDeque<Option<Fault>>,
    random: Option<Random>,
    injected: usize,
}

#[derive(Debug)]
struct Random {
    state: u64,
    drop_request_percent: u64,
    drop_response_percent: u64,
}

impl Faults {
    /// No faults until some are queued.
    pub fn none() -> Self {
        Self::default()
    }

    /// Random faults, the same ones for the same seed. Percentages of all requests.
    pub fn random(seed: u64, drop_request_percent: u8, drop_response_percent: u8) -> Self {
        let faults = Self::default();
        faults.plan().random = Some(Random {
            state: seed,
            drop_request_percent: drop_request_percent.into(),
            drop_response_percent: drop_response_percent.into(),
        });
        faults
    }

    /// Queues the fault of the next request the queue says nothing about yet.
    pub fn push(&self, fault: Fault) {
        self.plan().queued.push_back(Some(fault));
    }

    /// Lets the next request the queue says nothing about yet pass.
    pub fn pass(&self) {
        self.plan().queued.push_back(None);
    }

    /// Ends all faults.
    pub fn clear(&self) {
        let mut plan = self.plan();
        plan.queued.clear();
        plan.random = None;
    }

    /// How many faults have happened.
    pub fn injected(&self) -> usize {
        self.plan().injected
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Fault> {
        let mut plan = self.plan();
        let fault = match plan.queued.pop_front() {
            Some(queued) => queued,
            None => plan.random.as_mut().and_then(Random::next),
        };
        plan.injected += usize::from(fault.is_some());
        fault
    }
}

impl Random {
    /// One draw of SplitMix64.
    fn next(&mut self) -> Option<Fault> {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let roll = (z ^ (z >> 31)) % 100;
        if roll < self.drop_request_percent {
            Some(Fault::DropRequest)
        } else if roll < self.drop_request_percent + self.drop_response_percent {
            Some(Fault::DropResponse)
        } else {
            None
        }
    }
}

/// A transport whose requests suffer the faults of a plan.
#[derive(Debug, Clone)]
pub struct FaultyTransport<T> {
    inner: T,
    faults: Faults,
}

impl<T> FaultyTransport<T> {
    /// Wraps a transport.
    pub fn new(inner: T, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

impl<T: Transport> Transport for FaultyTransport<T> {
    async fn round(&self, body: Bytes) -> Result<Bytes, TransportError> {
        let fault = self.faults.next();
        if fault == Some(Fault::DropRequest) {
            return Err(TransportError::Lost("request dropped".to_owned()));
        }
        let answer = self.inner.round(body).await;
        lose(fault, answer)
    }

    async fn segment(&self, download: &SegmentDownload) -> Result<Bytes, TransportError> {
        let fault = self.faults.next();
        if fault == Some(Fault::DropRequest) {
            return Err(TransportError::Lost("request dropped".to_owned()));
        }
        let answer = self.inner.segment(download).await;
        lose(fault, answer)
    }
}

fn lose(
    fault: Option<Fault>,
    answer: Result<Bytes, TransportError>,
) -> Result<Bytes, TransportError> {
    match fault {
        Some(_) => Err(TransportError::Lost("response dropped".to_owned())),
        None => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_yields_the_same_faults() {
        let draw = || {
            let faults = Faults::random(7, 20, 20);
            (0..200).map(|_| faults.next()).collect::<Vec<_>>()
        };
        let first = draw();
        assert_eq!(first, draw());
        assert!(first.contains(&Some(Fault::DropRequest)));
        assert!(first.contains(&Some(Fault::DropResponse)));
        assert!(first.contains(&None));
    }

    #[test]
    fn queued_faults_come_first_and_are_counted() {
        let faults = Faults::none();
        faults.pass();
        faults.push(Fault::DropResponse);
        assert_eq!(faults.next(), None);
        assert_eq!(faults.next(), Some(Fault::DropResponse));
        assert_eq!(faults.next(), None);
        assert_eq!(faults.injected(), 1);
    }
}

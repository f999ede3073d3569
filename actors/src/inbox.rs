//! The queues of one partition: what waits, whether a batch runs, whether it may. Pushes
//! and pages of backfills take turns, so that neither starves beside the other.
//!
//! It outlives the actor that works it off, so that an actor's end loses no push.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_engine::model::Fetched;
use tokio::sync::{Notify, oneshot};

use crate::admission::Permit;
use crate::error::PushError;
use crate::page_commit::QueuedPage;
use crate::request::{PushRequest, Pushed};
use crate::settings::QueueLimit;

/// A push that waits for its batch.
#[derive(Debug)]
pub(crate) struct QueuedPush {
    pub request: PushRequest,
    /// What was read for its commits.
    pub ahead: Option<Fetched>,
    pub permit: Permit,
    pub reply: oneshot::Sender<Result<Pushed, PushError>>,
}

/// What the queue did with a push.
#[derive(Debug)]
pub(crate) enum Queued {
    /// It waits; somebody must wake the actor.
    Wake,
    /// It waits; a running batch or an earlier wake-up will get to it.
    Waiting,
    /// The partition left memory meanwhile: take a fresh one.
    Gone(Box<QueuedPush>),
    /// The service stops.
    Stopping,
}

/// What the queue did with a page.
#[derive(Debug)]
pub(crate) enum PageQueued {
    /// It waits; somebody must wake the actor.
    Waiting,
    /// The partition left memory meanwhile: take a fresh one.
    Gone(QueuedPage),
    /// The service stops.
    Stopping,
}

/// What is to be done next.
#[derive(Debug)]
pub(crate) enum Work {
    /// A batch of pushes.
    Pushes(Vec<QueuedPush>),
    /// A batch of pushes beside the one that is being written.
    Next(Vec<QueuedPush>),
    /// A page.
    Page(QueuedPage),
}

/// The queue and its gatekeeping.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    idle: Notify,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<QueuedPush>,
    pages: VecDeque<QueuedPage>,
    /// Whether the last work was a page: pushes are next.
    page_was_last: bool,
    /// Reasons to let pages pass and no pushes.
    quiet: usize,
    phase: Phase,
    holds: usize,
    /// Batches and pages under way: two while one is decided beside one being written.
    running: usize,
    /// So many waiting pushes begin a batch beside the running one; `None` = none may.
    expected: Option<usize>,
    /// Pushes of the last batch and of the one before it.
    sizes: [usize; 2],
    last_work: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// No more pushes; what waits is finished.
    Stopping,
    /// Left memory.
    Gone,
}

/// So many pushes are worth a batch of their own while another one is written, after
/// batches of these sizes.
///
/// As many as the last ones held: those who wait for the one before have come back by
/// then, and the larger a batch the less each push of it costs. Where the batch is sent
/// ahead (see [`tidegate_store::Store::sends_ahead`]), two thirds: it is to be there when
/// the one before ends, and the last third would often come too late for that.
fn enough(sizes: [usize; 2], sent_ahead: bool) -> usize {
    let batches = if sent_ahead { 3 } else { 2 };
    sizes.iter().sum::<usize>().div_ceil(batches).max(1)
}

impl State {
    fn start_next(&mut self, limit: QueueLimit) -> Option<Work> {
        let enough = self
            .expected
            .is_some_and(|enough| self.queue.len() >= enough);
        if !enough || self.running > 1 || self.quiet > 0 || !self.pages.is_empty() {
            return None;
        }
        self.take_pushes(limit).map(Work::Next)
    }

    fn take_pushes(&mut self, limit: QueueLimit) -> Option<Vec<QueuedPush>> {
        let (mut operations, mut bytes) = (0, 0);
        let mut batch = Vec::new();
        while let Some(next) = self.queue.front() {
            operations += next.permit.load.operations;
            bytes += next.permit.load.bytes;
            let full = operations > limit.operations || bytes > limit.bytes;
            if full && !batch.is_empty() {
                break;
            }
            batch.extend(self.queue.pop_front());
        }
        if batch.is_empty() {
            return None;
        }
        self.expected = None;
        self.sizes = [batch.len(), self.sizes[0]];
        self.running += 1;
        self.page_was_last = false;
        Some(batch)
    }

    fn has_queued(&self) -> bool {
        !self.queue.is_empty() || !self.pages.is_empty()
    }
}

impl Inbox {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                pages: VecDeque::new(),
                page_was_last: false,
                quiet: 0,
                phase: Phase::Open,
                holds: 0,
                running: 0,
                expected: None,
                sizes: [0; 2],
                last_work: Instant::now(),
            }),
            idle: Notify::new(),
        }
    }

    pub fn push(&self, push: QueuedPush) -> Queued {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Gone => return Queued::Gone(Box::new(push)),
            Phase::Stopping => return Queued::Stopping,
            Phase::Open => {}
        }
        state.last_work = Instant::now();
        state.queue.push_back(push);
        let waiting = state.queue.len();
        if (waiting == 1 && state.running == 0) || state.expected == Some(waiting) {
            Queued::Wake
        } else {
            Queued::Waiting
        }
    }

    pub fn queue_page(&self, page: QueuedPage) -> PageQueued {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Gone => return PageQueued::Gone(page),
            Phase::Stopping => return PageQueued::Stopping,
            Phase::Open => {}
        }
        state.last_work = Instant::now();
        state.pages.push_back(page);
        PageQueued::Waiting
    }

    /// Starts a batch or a page: `None` when one runs, they are held, or there is nothing
    /// to do.
    ///
    /// The caller owes a [`Self::finish`].
    pub fn start(&self, limit: QueueLimit, held_by_all: &AtomicUsize) -> Option<Work> {
        let mut state = self.state.lock();
        if state.holds > 0 || held_by_all.load(Ordering::SeqCst) > 0 {
            return None;
        }
        if state.running > 0 {
            return state.start_next(limit);
        }
        let pushes_next = state.page_was_last && state.quiet == 0 && !state.queue.is_empty();
        if !pushes_next && let Some(page) = state.pages.pop_front() {
            state.running = 1;
            state.page_was_last = true;
            return Some(Work::Page(page));
        }
        if state.quiet > 0 {
            return None;
        }
        state.take_pushes(limit).map(Work::Pushes)
    }

    /// Lets the next batch begin beside the newest one, which is being written, as soon
    /// as [`enough`] pushes wait. `true` = so many wait already.
    pub fn expect_next(&self, sent_ahead: bool) -> bool {
        let mut state = self.state.lock();
        let expected = enough(state.sizes, sent_ahead);
        state.expected = Some(expected);
        state.running == 1 && state.queue.len() >= expected
    }

    /// No batch begins beside the newest one any more.
    pub fn expect_nothing(&self) {
        self.state.lock().expected = None;
    }

    /// Starts a batch without pushes, for client records alone: `false` when one runs.
    /// Holds do not stop it: it touches no application data.
    ///
    /// The caller owes a [`Self::finish`].
    pub fn start_flush(&self) -> bool {
        let mut state = self.state.lock();
        let free = state.running == 0;
        state.running = state.running.max(1);
        free
    }

    /// Ends a batch; `true` when more waits.
    pub fn finish(&self) -> bool {
        let mut state = self.state.lock();
        state.running -= 1;
        state.last_work = Instant::now();
        self.idle.notify_waiters();
        state.has_queued()
    }

    /// How long nothing has been done here.
    pub fn idle_for(&self) -> Duration {
        self.state.lock().last_work.elapsed()
    }

    /// Leaves memory if there is nothing at all to do; from then on pushes are sent elsewhere.
    pub fn leave(&self, may_leave: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        let busy = state.running > 0 || state.has_queued() || state.holds > 0 || state.quiet > 0;
        let idle = !busy && may_leave();
        if idle {
            state.phase = Phase::Gone;
        }
        idle
    }

    /// Whether this inbox left memory.
    pub fn is_gone(&self) -> bool {
        self.state.lock().phase == Phase::Gone
    }

    /// Whether an actor has something to do here.
    pub fn has_work(&self) -> bool {
        let state = self.state.lock();
        state.running > 0 || state.has_queued()
    }

    /// Pushes that wait.
    pub fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Pages that wait.
    pub fn queued_pages(&self) -> usize {
        self.state.lock().pages.len()
    }

    pub fn hold(&self) {
        self.state.lock().holds += 1;
    }

    pub fn release(&self) {
        let mut state = self.state.lock();
        state.holds = state.holds.saturating_sub(1);
    }

    /// Lets no push pass until [`Self::end_quiet`]; `false` when the partition left memory.
    pub fn begin_quiet(&self) -> bool {
        let mut state = self.state.lock();
        let here = state.phase != Phase::Gone;
        state.quiet += usize::from(here);
        here
    }

    pub fn end_quiet(&self) {
        let mut state = self.state.lock();
        state.quiet = state.quiet.saturating_sub(1);
    }

    /// Refuses new pushes from now on; what waits is finished.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Stopping;
        }
    }

    /// Takes every push that waits. Pages are dropped: their workers come back.
    pub fn empty(&self) -> Vec<QueuedPush> {
        let mut state = self.state.lock();
        state.pages.clear();
        state.queue.drain(..).collect()
    }

    /// Waits until no batch runs.
    pub async fn batch_finished(&self) {
        self.wait(|state| state.running == 0).await;
    }

    /// Waits until no batch runs and nothing waits.
    pub async fn worked_off(&self) {
        self.wait(|state| state.running == 0 && !state.has_queued())
            .await;
    }

    async fn wait(&self, reached: impl Fn(&State) -> bool) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the look, so that a change in between is not missed.
            idle.as_mut().enable();
            if reached(&self.state.lock()) {
                return;
            }
            idle.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::enough;

    #[test]
    fn a_batch_that_is_sent_ahead_waits_for_fewer() {
        assert_eq!(enough([0, 0], false), 1);
        assert_eq!(enough([0, 0], true), 1);
        assert_eq!(enough([9, 8], false), 9);
        assert_eq!(enough([9, 9], true), 6);
        assert_eq!(enough([1, 0], true), 1);
        // It never falls asleep: batches of one follow each other.
        assert_eq!(enough([1, 1], true), 1);
    }
}

//! Failures that a test injects into a [`super::MemoryStore`].

use std::collections::VecDeque;

use parking_lot::Mutex;
use tidegate_engine::model::RowKey;
use tokio::sync::watch;

/// How a commit fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitFault {
    /// `SequenceMoved`, as if another writer had been faster.
    LoseCas,
    /// A unique constraint at that row.
    Constraint(Option<RowKey>),
    /// The connection is lost at COMMIT; `written` says which way it went.
    OutcomeUnknown {
        /// Whether the batch became durable.
        written: bool,
    },
    /// The fence refuses.
    FenceRejected,
    /// The database cannot be reached.
    Unavailable,
}

/// Switches of a [`super::MemoryStore`].
#[derive(Debug)]
pub struct Faults {
    commits: Mutex<VecDeque<CommitFault>>,
    failing_reads: Mutex<u32>,
    held: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            commits: Mutex::default(),
            failing_reads: Mutex::default(),
            held: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
        }
    }
}

impl Faults {
    /// The next commit fails so; several calls queue up.
    pub fn fail_commit(&self, fault: CommitFault) {
        self.commits.lock().push_back(fault);
    }

    /// The next `count` reads of any kind answer `Unavailable`.
    pub fn fail_reads(&self, count: u32) {
        *self.failing_reads.lock() += count;
    }

    /// Commits wait, before anything of them is judged or written, until [`Self::release_commits`].
    pub fn hold_commits(&self) {
        self.held.send_replace(true);
    }

    /// Lets waiting commits go on.
    pub fn release_commits(&self) {
        self.held.send_replace(false);
    }

    /// Returns when `count` commits at least are waiting.
    pub async fn commits_waiting(&self, count: usize) {
        // The sender lives as long as `self`, so the channel cannot be closed.
        let _ = self
            .waiting
            .subscribe()
            .wait_for(|waiting| *waiting >= count)
            .await;
    }

    pub(super) async fn pass(&self) {
        let mut held = self.held.subscribe();
        if !*held.borrow_and_update() {
            return;
        }
        let _waiting = Waiting::enter(&self.waiting);
        let _ = held.wait_for(|held| !*held).await;
    }

    pub(super) fn next_commit(&self) -> Option<CommitFault> {
        self.commits.lock().pop_front()
    }

    pub(super) fn read_fails(&self) -> bool {
        let mut left = self.failing_reads.lock();
        let fails = *left > 0;
        *left = left.saturating_sub(1);
        fails
    }
}

/// Counts a waiting commit, also when its caller goes away.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn enter(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|waiting| *waiting += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

//! What the answer to one pull may gather (`limits.max_pull_bytes`).
//!
//! A spent budget ends the work: every further subscription is postponed, which
//! leaves its position where it was, and the client pulls again. What a client has
//! caught up with costs nothing then, so each round serves the ones after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes left, and whether the client has a reason to pull again.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    returns: bool,
}

impl Budget {
    /// A budget of that many bytes, one at least: a round must get somewhere.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            left: bytes.max(1),
            returns: false,
        }
    }

    /// Bytes left. The first commit or row of a read may be larger than that: what
    /// does not fit into any answer has to fit into one.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Whether there is nothing left.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Takes bytes out.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Notes that the answer holds commits or an unfinished bootstrap: with either, a
    /// client pulls again at once (§4.5, §4.7).
    pub(super) fn client_returns(&mut self) {
        self.returns = true;
    }

    /// Whether a window of the log is left for the next pull. A window that delivers
    /// nothing looks like one that is caught up, so a client must have another reason
    /// to come back.
    pub(super) fn postpones_windows(&self) -> bool {
        self.is_spent() && self.returns
    }
}

/// What every pull may gather, however full the process is: a round must get somewhere.
const LEAST_BYTES: usize = 64 * 1024;

/// What the answers of all pulls hold until they are sent (`limits.max_pulls_bytes`).
///
/// Nobody is refused: an answer gets a quarter of what is left, so that clients that
/// never read their answers make the others' smaller and cannot fill the memory.
#[derive(Debug)]
pub struct Account {
    capacity: usize,
    held: AtomicUsize,
}

impl Account {
    /// An account of that many bytes.
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            held: AtomicUsize::new(0),
        })
    }

    /// Bytes that answers hold now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Reserves what one answer may gather, `wanted` bytes at most.
    pub(super) fn reserve(self: &Arc<Self>, wanted: usize) -> Reservation {
        let share = self.capacity.saturating_sub(self.held()) / 4;
        let bytes = wanted.min(share.max(LEAST_BYTES));
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Reservation {
            account: Arc::clone(self),
            bytes,
        }
    }
}

/// What one answer holds; given back when it is sent or dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    bytes: usize,
}

impl Reservation {
    /// Bytes reserved.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces what was reserved by what the answer came to.
    pub(super) fn settle(&mut self, bytes: usize) {
        self.account.held.fetch_add(bytes, Ordering::Relaxed);
        self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_answers_make_later_ones_smaller_and_never_nothing() {
        let account = Account::new(1 << 20);
        let mut unsent = Vec::new();
        let mut sizes = Vec::new();
        for _ in 0..100 {
            let reservation = account.reserve(1 << 30);
            sizes.push(reservation.bytes());
            unsent.push(reservation);
        }
        assert_eq!(sizes[0], 1 << 18);
        assert!(sizes.is_sorted_by(|earlier, later| earlier >= later));
        assert_eq!(sizes[99], LEAST_BYTES);
        assert_eq!(account.held(), sizes.iter().sum::<usize>());
        assert!(account.held() < (1 << 20) + 100 * LEAST_BYTES);
        assert_eq!(account.reserve(10).bytes(), 10);
        unsent.clear();
        assert_eq!(account.held(), 0);
        assert_eq!(account.reserve(1 << 30).bytes(), 1 << 18);
    }

    #[test]
    fn an_answer_holds_what_it_came_to() {
        let account = Account::new(1 << 20);
        let mut reservation = account.reserve(1 << 17);
        reservation.settle(5);
        assert_eq!(account.held(), 5);
        // A single row may be larger than what was reserved.
        reservation.settle(1 << 19);
        assert_eq!(account.held(), 1 << 19);
        drop(reservation);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn a_window_is_postponed_only_when_something_else_brings_the_client_back() {
        let mut budget = Budget::new(10);
        budget.client_returns();
        assert!(!budget.postpones_windows());
        let mut budget = Budget::new(10);
        budget.spend(11);
        assert!(budget.is_spent() && !budget.postpones_windows());
        budget.client_returns();
        assert!(budget.postpones_windows());
    }

    #[test]
    fn a_budget_of_nothing_still_gets_somewhere() {
        assert!(!Budget::new(0).is_spent());
    }
}

//! What the answer to one pull may gather (`limits.max_pull_bytes`).
//!
//! A spent budget ends the work: every further subscription is postponed, which
//! leaves its position where it was, and the client pulls again. What a client has
//! caught up with costs nothing then, so each round serves the ones after it.

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

#[cfg(test)]
mod tests {
    use super::*;

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

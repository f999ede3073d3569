//! What one batch hands over to the next while it is still being written, so that the
//! next one is decided meanwhile and written right after it.

use parking_lot::Mutex;
use tidegate_store::Link;
use tokio::sync::watch;

use crate::view::Known;

/// What a batch knows once it is written, and whether it will have been.
#[derive(Debug)]
pub(crate) struct Given {
    pub known: Known,
    /// The reasons to distrust it that were counted before; see
    /// [`crate::partition::Partition::take_known`].
    pub generation: u64,
    pub link: Link,
}

/// What a batch begins with that begins while another one is being written.
#[derive(Debug)]
pub(crate) struct Lead {
    /// `None` when the one before took it back: the batch begins when that one has ended.
    pub given: Option<Given>,
    pub before: Ended,
}

/// The end of a batch: its answers and what it told the observer included.
#[derive(Debug, Clone)]
pub(crate) struct Ended(watch::Receiver<()>);

impl Ended {
    /// The batch has ended when the value is dropped.
    pub fn new() -> (watch::Sender<()>, Self) {
        let (running, ended) = watch::channel(());
        (running, Self(ended))
    }

    pub async fn wait(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// Where the running batch leaves what the next one may take.
#[derive(Debug, Default)]
pub(crate) struct Handover(Mutex<Slot>);

#[derive(Debug, Default)]
struct Slot {
    given: Option<Given>,
    newest: Option<Ended>,
    /// Of the newest batch.
    ticket: Ticket,
}

/// Which batch it is: one that is no longer the newest can neither give nor take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ticket(u64);

impl Handover {
    /// A batch begins: the next one will ask for its end.
    pub fn begin(&self, ended: Ended) -> Ticket {
        let mut slot = self.0.lock();
        slot.newest = Some(ended);
        slot.given = None;
        slot.ticket.0 += 1;
        slot.ticket
    }

    /// Leaves something to the batch after this one.
    pub fn give(&self, ticket: Ticket, given: Given) {
        let mut slot = self.0.lock();
        if slot.ticket == ticket {
            slot.given = Some(given);
        }
    }

    /// What this batch gave, unless the next one has it.
    pub fn take_back(&self, ticket: Ticket) -> Option<Given> {
        let mut slot = self.0.lock();
        let mine = slot.ticket == ticket;
        slot.given.take_if(|_| mine)
    }

    /// For a batch that begins beside the newest one; `None` when there is none. What was
    /// given before the last reason to distrust it came up is not handed out.
    pub fn take(&self, generation: u64) -> Option<Lead> {
        let mut slot = self.0.lock();
        let before = slot.newest.clone()?;
        let given = slot.given.take();
        Some(Lead {
            given: given.filter(|given| given.generation == generation),
            before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn given(generation: u64) -> Given {
        Given {
            known: Known::new(0, Memory::new(0).share()),
            generation,
            link: tidegate_store::chain().1,
        }
    }

    #[test]
    fn a_batch_takes_back_what_it_gave_but_nothing_of_the_next_one() {
        let handover = Handover::default();
        let first = handover.begin(Ended::new().1);
        handover.give(first, given(0));
        assert!(handover.take_back(first).is_some());
        assert!(handover.take_back(first).is_none());
        let second = handover.begin(Ended::new().1);
        handover.give(second, given(0));
        // Late to its end.
        assert!(handover.take_back(first).is_none());
        handover.give(first, given(1));
        let lead = handover.take(0).unwrap();
        assert!(lead.given.is_some_and(|given| given.generation == 0));
    }

    #[test]
    fn what_is_distrusted_is_not_handed_out() {
        let handover = Handover::default();
        assert!(handover.take(0).is_none());
        let ticket = handover.begin(Ended::new().1);
        handover.give(ticket, given(3));
        assert!(handover.take(4).unwrap().given.is_none());
    }

    #[tokio::test]
    async fn a_batch_has_ended_when_it_is_dropped() {
        let (running, ended) = Ended::new();
        let waiting = tokio::spawn(ended.wait());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(running);
        waiting.await.unwrap();
    }
}

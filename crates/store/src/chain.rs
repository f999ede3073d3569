//! Batches that were decided on top of one that is still being written.

use tokio::sync::watch;

use crate::error::CommitError;

/// Makes the two ends of a batch's outcome: who writes it settles the one, who was
/// decided on top of it watches the other.
pub fn chain() -> (Settle, Link) {
    let (sender, receiver) = watch::channel(None);
    (Settle(Some(sender)), Link(receiver))
}

/// Tells what became of a batch. Dropped unsettled, it tells that the batch is not known
/// to stand.
#[derive(Debug)]
pub struct Settle(Option<watch::Sender<Option<bool>>>);

impl Settle {
    /// Tells whether the batch is durable.
    pub fn settle(mut self, durable: bool) {
        self.tell(durable);
    }

    /// What the other end watches.
    pub fn link(&self) -> Link {
        // Settling takes it apart: nobody asks an end that has told.
        let ended = || watch::channel(Some(false)).1;
        Link(self.0.as_ref().map_or_else(ended, watch::Sender::subscribe))
    }

    fn tell(&mut self, durable: bool) {
        if let Some(sender) = self.0.take() {
            sender.send_replace(Some(durable));
        }
    }
}

impl Drop for Settle {
    fn drop(&mut self) {
        self.tell(false);
    }
}

/// The outcome of the batch that another one was decided on top of.
#[derive(Debug, Clone)]
pub struct Link(watch::Receiver<Option<bool>>);

impl Link {
    /// Whether the batch is known to be durable by now.
    pub fn stands(&self) -> bool {
        *self.0.borrow() == Some(true)
    }

    /// Whether both tell of the same batch.
    pub fn is(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }

    /// Waits until the batch's outcome is known; whether it is durable.
    pub async fn settled(mut self) -> bool {
        let settled = self.0.wait_for(Option::is_some).await;
        settled.is_ok_and(|settled| *settled == Some(true))
    }

    /// Waits likewise, for a batch that was decided on top of it.
    ///
    /// # Errors
    /// [`CommitError::Unfounded`] when the batch is not durable.
    pub async fn founded(self) -> Result<(), CommitError> {
        match self.settled().await {
            true => Ok(()),
            false => Err(CommitError::Unfounded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_stands_once_it_is_settled_as_durable_and_not_before() {
        let (settle, link) = chain();
        let waiting = tokio::spawn(link.clone().settled());
        assert!(!link.stands());
        settle.settle(true);
        assert!(link.stands() && waiting.await.is_ok_and(|durable| durable));
    }

    #[test]
    fn links_of_one_batch_are_the_same_and_no_others() {
        let (settle, link) = chain();
        assert!(settle.link().is(&link) && link.is(&link.clone()));
        assert!(!chain().0.link().is(&link));
    }

    #[tokio::test]
    async fn a_batch_that_nobody_settles_does_not_stand() {
        let (settle, link) = chain();
        drop(settle);
        assert!(!link.stands() && !link.settled().await);
        let (settle, link) = chain();
        settle.settle(false);
        assert!(!link.stands() && !link.settled().await);
    }
}

//! Two batches of a partition at a time: one that is being written, one that is decided
//! meanwhile on top of it.

use std::sync::Arc;

use tidegate_engine::model::CommitBatch;
use tidegate_store::Link;

use super::{Before, GroupCommit};
use crate::handover::{Given, Lead};
use crate::partition::Partition;
use crate::view::{Known, View};

/// What a batch begins with, the reasons to distrust it that were counted before, and
/// the batch that it begins beside.
pub(super) fn begin(partition: &Partition, lead: Option<Lead>) -> (Known, u64, Option<Before>) {
    let Some(Lead {
        given,
        before: ended,
    }) = lead
    else {
        let (known, generation) = partition.take_known();
        return (known, generation, None);
    };
    let (known, generation, link) = match given {
        Some(given) => (given.known, given.generation, Some(given.link)),
        // It takes what is known when the one before has ended.
        None => (partition.nothing_known(), 0, None),
    };
    (known, generation, Some(Before { ended, link }))
}

impl GroupCommit {
    /// Waits until the batch before has ended, its answers and observations included;
    /// whether what was decided on top of it stands. If not, this batch starts over from
    /// what that one left behind.
    pub(super) async fn follow(&mut self) -> bool {
        let Some(before) = self.before.take() else {
            return true;
        };
        before.ended.wait().await;
        let stands = before.link.is_some_and(|link| link.stands());
        if !stands {
            self.withdraw();
            let (known, generation) = self.partition.take_known();
            self.standing.view = View::new(known);
            self.generation = generation;
        }
        stands
    }

    /// Leaves to the next batch what will be known once `batch` is written, so that it
    /// can be decided meanwhile. Nothing is left when the CAS of the next one would not
    /// notice that this one failed, or when it must know more than its rows.
    pub(super) fn hand_over(&mut self, batch: &Arc<CommitBatch>, link: Link) {
        let decides_ahead = self.partition.service.settings.decide_ahead;
        if !decides_ahead || batch.commits.is_empty() || self.binds() {
            return;
        }
        self.standing.view.absorb(batch);
        let nothing = View::new(self.partition.nothing_known());
        let known = std::mem::replace(&mut self.standing.view, nothing).into_known();
        let given = Given {
            known,
            generation: self.generation,
            link,
        };
        self.partition.handover.give(self.ticket, given);
        self.handed_over = true;
        let sent_ahead = self.partition.service.store.sends_ahead();
        if self.partition.inbox.expect_next(sent_ahead) {
            self.partition.wake();
        }
    }

    /// Takes back what was handed over, unless the next batch has it; from now on none
    /// begins beside this one.
    pub(super) fn take_back(&mut self) -> Option<Given> {
        self.handed_over = false;
        let given = self.partition.handover.take_back(self.ticket);
        if given.is_some() {
            self.partition.inbox.expect_nothing();
        }
        given
    }

    /// What was handed over will not come true.
    pub(super) fn withdraw(&mut self) {
        if self.handed_over {
            self.take_back();
        }
    }

    /// Whether the batch binds client ids to actors.
    pub(super) fn binds(&self) -> bool {
        self.requests.iter().any(|request| request.bind.is_some())
    }
}

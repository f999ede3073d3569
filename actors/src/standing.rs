//! Where a batch or a page stands among all who write to the partition: what it knows of
//! rows and log, what it made durable, and what it saw of other writers.

use std::sync::Arc;

use tidegate_engine::CommitSeq;
use tidegate_engine::model::LoggedCommit;
use tidegate_store::CommitError;

use crate::contention::Sight;
use crate::error::PushError;
use crate::partition::Partition;
use crate::view::{Known, View};

#[derive(Debug)]
pub(crate) struct Standing {
    partition: Arc<Partition>,
    pub view: View,
    /// Commits that became durable, in order.
    pub commits: Vec<Arc<LoggedCommit>>,
    /// Whether the log moved by others.
    pub moved_elsewhere: bool,
    /// What is known of other writers.
    pub sight: Sight,
}

impl Standing {
    pub fn new(partition: Arc<Partition>, known: Known) -> Self {
        Self {
            partition,
            view: View::new(known),
            commits: Vec::new(),
            moved_elsewhere: false,
            sight: Sight::Unknown,
        }
    }

    /// Takes commits over that are durable now.
    pub fn committed(&mut self, commits: impl IntoIterator<Item = Arc<LoggedCommit>>) {
        let from = self.commits.len();
        self.commits.extend(commits);
        self.partition.tail.append(&self.commits[from..]);
    }

    /// Whether the head read under the lock is where this process left the log. If it is
    /// not, the tail and the observer are told, as of a lost race.
    pub fn head_is_ours(&mut self, expected: Option<CommitSeq>, head: CommitSeq) -> bool {
        match expected {
            Some(expected) if expected == head => self.sight = self.sight.and(Sight::Quiet),
            Some(_) => self.note_foreign_commit(),
            None => {}
        }
        expected == Some(head)
    }

    /// Somebody else committed: whatever was known is not true any more.
    pub fn lost_race(&mut self) {
        self.view.forget();
        self.note_foreign_commit();
    }

    pub fn note_foreign_commit(&mut self) {
        self.partition.service.counters.lost_races.add(1);
        self.partition.tail.invalidate();
        self.moved_elsewhere = true;
        self.sight = Sight::Foreign;
    }

    /// What is known may not be true.
    pub fn distrust(&mut self) {
        self.view.forget();
        self.partition.tail.invalidate();
    }

    /// What the callers are told when nothing was written.
    pub fn refused(&self, error: impl Into<CommitError>) -> PushError {
        let running = self.partition.service.schema.version();
        PushError::refused(&self.partition.id, running, error.into())
    }
}

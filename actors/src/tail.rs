//! The newest commits of a partition in memory, for pulls that are nearly caught up.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_engine::CommitSeq;
use tidegate_engine::model::LoggedCommit;

use crate::memory::Share;

/// A contiguous run of commits, all of them made durable by this process.
#[derive(Debug)]
pub struct Tail {
    max_commits: usize,
    max_bytes: usize,
    run: RwLock<Run>,
}

#[derive(Debug)]
struct Run {
    commits: VecDeque<Arc<LoggedCommit>>,
    bytes: usize,
    share: Share,
}

impl Run {
    fn clear(&mut self) {
        self.commits = VecDeque::new();
        self.bytes = 0;
        self.share.set(0);
    }
}

impl Tail {
    pub(crate) fn new(max_commits: usize, max_bytes: usize, share: Share) -> Self {
        Self {
            max_commits,
            max_bytes,
            run: RwLock::new(Run {
                commits: VecDeque::new(),
                bytes: 0,
                share,
            }),
        }
    }

    /// Every commit in `(after, max_seen]`, or `None` when the tail does not provably
    /// cover all of it.
    ///
    /// `max_seen` is the newest commit that the reader saw in the database; what came
    /// later is left out.
    pub fn read(&self, after: CommitSeq, max_seen: CommitSeq) -> Option<Vec<Arc<LoggedCommit>>> {
        if after >= max_seen {
            return (after == max_seen).then(Vec::new);
        }
        let run = self.run.read();
        let first = run.commits.front()?.seq;
        let last = run.commits.back()?.seq;
        if first > after.next() || last < max_seen {
            return None;
        }
        let skip = usize::try_from(after.0 + 1 - first.0).ok()?;
        let take = usize::try_from(max_seen.0 - after.0).ok()?;
        Some(run.commits.range(skip..skip + take).cloned().collect())
    }

    /// Adds commits that just became durable; starts afresh when they do not follow the
    /// last one.
    pub(crate) fn append(&self, commits: &[Arc<LoggedCommit>]) {
        let mut run = self.run.write();
        for commit in commits {
            if run
                .commits
                .back()
                .is_some_and(|last| last.seq.next() != commit.seq)
            {
                run.clear();
            }
            run.bytes += weight(commit);
            run.commits.push_back(Arc::clone(commit));
        }
        while run.commits.len() > self.max_commits || run.bytes > self.max_bytes {
            let Some(oldest) = run.commits.pop_front() else {
                break;
            };
            run.bytes -= weight(&oldest);
        }
        let bytes = run.bytes;
        run.share.set(bytes);
    }

    /// Forgets everything.
    pub(crate) fn invalidate(&self) {
        self.run.write().clear();
    }
}

/// Bytes that a commit takes, about: measured, the allocations around its own bytes take
/// more than those.
fn weight(commit: &LoggedCommit) -> usize {
    const COMMIT: usize = 384;
    const CHANGE: usize = 384;
    let changes = commit.changes.iter().map(|change| change.bytes() + CHANGE);
    changes.sum::<usize>() + commit.client_commit_id.len() + COMMIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn kept(commits: usize, bytes: usize) -> Tail {
        Tail::new(commits, bytes, Memory::new(0).share())
    }

    fn commit(seq: i64) -> Arc<LoggedCommit> {
        Arc::new(LoggedCommit {
            seq: CommitSeq(seq),
            client_id: "c".into(),
            client_commit_id: "x".into(),
            actor_id: "a".into(),
            created_at_ms: 0,
            changes: Vec::new(),
        })
    }
    fn seqs(tail: &Tail, after: i64, max: i64) -> Option<Vec<i64>> {
        tail.read(CommitSeq(after), CommitSeq(max))
            .map(|commits| commits.iter().map(|commit| commit.seq.0).collect())
    }

    #[test]
    fn it_answers_only_windows_that_it_covers_whole() {
        let tail = kept(100, 1 << 20);
        tail.append(&[commit(5), commit(6), commit(7)]);
        assert_eq!(seqs(&tail, 4, 7), Some(vec![5, 6, 7]));
        assert_eq!(seqs(&tail, 5, 6), Some(vec![6]));
        assert_eq!(seqs(&tail, 7, 7), Some(vec![]));
        assert_eq!(seqs(&tail, 3, 7), None, "commit 4 is not here");
        assert_eq!(seqs(&tail, 6, 8), None, "somebody else wrote commit 8");
        assert_eq!(
            seqs(&tail, 9, 8),
            None,
            "a cursor from the future is no window"
        );
    }

    #[test]
    fn a_gap_or_an_invalidation_starts_it_afresh() {
        let tail = kept(100, 1 << 20);
        tail.append(&[commit(5)]);
        tail.append(&[commit(7)]);
        assert_eq!(seqs(&tail, 4, 7), None);
        assert_eq!(seqs(&tail, 6, 7), Some(vec![7]));
        tail.invalidate();
        assert_eq!(seqs(&tail, 6, 7), None);
    }

    #[test]
    fn it_is_bounded_by_commits_and_bytes() {
        let tail = kept(2, 1 << 20);
        tail.append(&[commit(1), commit(2), commit(3)]);
        assert_eq!(seqs(&tail, 0, 3), None);
        assert_eq!(seqs(&tail, 1, 3), Some(vec![2, 3]));
        let tail = kept(100, weight(&commit(1)));
        tail.append(&[commit(1), commit(2)]);
        assert_eq!(seqs(&tail, 1, 2), Some(vec![2]));
        assert_eq!(seqs(&tail, 0, 2), None);
    }
}

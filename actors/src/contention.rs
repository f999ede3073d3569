//! When a partition's batches take the lock before they read.
//!
//! The CAS costs nothing while nobody else writes, and starves beside a writer that locks
//! the partition first: every decision is overtaken. So the first lost CAS makes the
//! partition pessimistic, and a run of batches that met nobody ends that.

/// What a batch found out about other writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sight {
    /// It does not know: nothing was read, or nothing to compare with was at hand.
    #[default]
    Unknown,
    /// The log stood where this process left it.
    Quiet,
    /// Somebody else committed.
    Foreign,
}

impl Sight {
    /// Adds what another read of the same batch found out.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Foreign, _) | (_, Self::Foreign) => Self::Foreign,
            (Self::Quiet, _) | (_, Self::Quiet) => Self::Quiet,
            (Self::Unknown, Self::Unknown) => Self::Unknown,
        }
    }
}

/// How the batches of a partition guard against other writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Contention {
    /// Decide on what is known; the CAS proves that it still was true.
    #[default]
    Optimistic,
    /// Take the lock first, read under it.
    Pessimistic {
        /// Batches in a row that met nobody.
        quiet: u32,
    },
}

impl Contention {
    pub fn is_pessimistic(self) -> bool {
        matches!(self, Self::Pessimistic { .. })
    }

    /// An attempt was overtaken by another writer.
    pub fn overtaken(&mut self) {
        *self = Self::Pessimistic { quiet: 0 };
    }

    /// A batch ended; after `enough` quiet ones in a row the CAS alone will do again.
    pub fn batch_ended(&mut self, sight: Sight, enough: u32) {
        let Self::Pessimistic { quiet } = self else {
            return;
        };
        match sight {
            Sight::Unknown => {}
            Sight::Quiet => *quiet += 1,
            Sight::Foreign => *quiet = 0,
        }
        if *quiet >= enough {
            *self = Self::Optimistic;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overtaken() -> Contention {
        let mut contention = Contention::default();
        contention.overtaken();
        contention
    }

    #[test]
    fn the_first_lost_cas_makes_it_pessimistic() {
        assert!(!Contention::default().is_pessimistic());
        assert!(overtaken().is_pessimistic());
    }

    #[test]
    fn foreign_commits_between_optimistic_batches_alone_do_not() {
        let mut contention = Contention::default();
        contention.batch_ended(Sight::Foreign, 16);
        assert_eq!(contention, Contention::Optimistic);
    }

    #[test]
    fn it_ends_after_enough_quiet_batches() {
        let mut contention = overtaken();
        for _ in 0..15 {
            contention.batch_ended(Sight::Quiet, 16);
            assert!(contention.is_pessimistic());
        }
        contention.batch_ended(Sight::Quiet, 16);
        assert_eq!(contention, Contention::Optimistic);
    }

    #[test]
    fn a_foreign_commit_restarts_the_count() {
        for disturb in [Contention::overtaken as fn(&mut Contention), |contention| {
            contention.batch_ended(Sight::Foreign, 2)
        }] {
            let mut contention = overtaken();
            contention.batch_ended(Sight::Quiet, 2);
            disturb(&mut contention);
            contention.batch_ended(Sight::Quiet, 2);
            assert!(contention.is_pessimistic());
            contention.batch_ended(Sight::Quiet, 2);
            assert!(!contention.is_pessimistic());
        }
    }

    #[test]
    fn a_batch_that_learned_nothing_does_not_count() {
        let mut contention = overtaken();
        for _ in 0..100 {
            contention.batch_ended(Sight::Unknown, 1);
        }
        assert!(contention.is_pessimistic());
    }

    #[test]
    fn with_nothing_to_wait_for_only_the_batch_that_lost_is_pessimistic() {
        let mut contention = overtaken();
        contention.batch_ended(Sight::Foreign, 0);
        assert!(!contention.is_pessimistic());
    }

    #[test]
    fn one_foreign_commit_is_seen_whatever_else_a_batch_reads() {
        assert_eq!(Sight::Quiet.and(Sight::Foreign), Sight::Foreign);
        assert_eq!(Sight::Foreign.and(Sight::Quiet), Sight::Foreign);
        assert_eq!(Sight::Unknown.and(Sight::Quiet), Sight::Quiet);
        assert_eq!(Sight::Unknown.and(Sight::Unknown), Sight::Unknown);
    }
}

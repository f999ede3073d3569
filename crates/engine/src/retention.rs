//! How far a partition's log may be pruned (§4.6): a rule over what is stored, with
//! the time handed in.

use crate::ids::CommitSeq;
use crate::model::{ClientRecord, LogBounds};

/// Milliseconds of a day.
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// How much of a log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// That many of the newest commits stay, whoever needs them.
    pub min_retained: u64,
    /// A client heard of within that many milliseconds holds back what it has not seen.
    pub active_window_ms: i64,
    /// A commit older than that many milliseconds goes, whoever has not seen it.
    pub age_force_ms: i64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            min_retained: 1_000,
            active_window_ms: 14 * DAY_MS,
            age_force_ms: 30 * DAY_MS,
        }
    }
}

/// How far a prune goes, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneTarget {
    /// The horizon that the rule allows; never below the one that stands.
    pub through: CommitSeq,
    /// The lowest cursor of an active client; `None` = nobody holds anything back.
    pub active_floor: Option<CommitSeq>,
}

impl Retention {
    /// Commits created before that time are old enough to go, epoch milliseconds.
    pub fn forced_before_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.age_force_ms)
    }

    /// The lowest cursor among clients heard of within the active window. A client
    /// without a cursor has nothing to continue from and holds nothing back.
    pub fn active_floor<'a>(
        &self,
        clients: impl IntoIterator<Item = &'a ClientRecord>,
        now_ms: i64,
    ) -> Option<CommitSeq> {
        let since = now_ms.saturating_sub(self.active_window_ms);
        clients
            .into_iter()
            .filter(|client| client.updated_at_ms >= since && client.cursor >= 0)
            .map(|client| CommitSeq(client.cursor))
            .min()
    }

    /// How far the log may go. `newest_forced` is the newest commit older than the age
    /// force, 0 for none (see [`Self::forced_before_ms`]).
    pub fn target(
        &self,
        bounds: LogBounds,
        active_floor: Option<CommitSeq>,
        newest_forced: CommitSeq,
    ) -> PruneTarget {
        let retained = i64::try_from(self.min_retained).unwrap_or(i64::MAX);
        let newest_kept_out = CommitSeq(bounds.max.0.saturating_sub(retained));
        // Without an active client nothing but the newest commits is held back.
        let wanted = active_floor.map_or(newest_kept_out, |floor| {
            floor.max(newest_forced).min(newest_kept_out)
        });
        PruneTarget {
            through: wanted.max(bounds.horizon),
            active_floor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssp2::WireVersion;

    const NOW: i64 = 1_000 * DAY_MS;

    fn client(cursor: i64, age_ms: i64) -> ClientRecord {
        ClientRecord {
            client_id: "c".into(),
            actor_id: "a".into(),
            wire_version: WireVersion::V2,
            cursor,
            subscriptions: Vec::new(),
            updated_at_ms: NOW - age_ms,
        }
    }

    fn through(floor: Option<i64>, forced: i64, max: i64, horizon: i64, kept: u64) -> i64 {
        let retention = Retention {
            min_retained: kept,
            ..Retention::default()
        };
        let bounds = LogBounds {
            max: CommitSeq(max),
            horizon: CommitSeq(horizon),
        };
        let target = retention.target(bounds, floor.map(CommitSeq), CommitSeq(forced));
        target.through.0
    }

    #[test]
    fn the_slowest_active_client_holds_back_what_it_has_not_seen() {
        assert_eq!(through(Some(40), 0, 5_000, 0, 1_000), 40);
        assert_eq!(through(Some(0), 0, 5_000, 0, 1_000), 0);
    }

    #[test]
    fn age_overrules_a_laggard_but_never_an_up_to_date_client() {
        assert_eq!(through(Some(40), 700, 5_000, 0, 1_000), 700);
        assert_eq!(through(Some(900), 700, 5_000, 0, 1_000), 900);
    }

    #[test]
    fn the_newest_commits_stay_whatever_their_age_and_readers() {
        assert_eq!(through(Some(4_900), 4_900, 5_000, 0, 1_000), 4_000);
        assert_eq!(through(None, 5_000, 5_000, 0, 1_000), 4_000);
        assert_eq!(through(None, 0, 800, 0, 1_000), 0);
        assert_eq!(through(None, 0, 800, 0, u64::MAX), 0);
    }

    #[test]
    fn without_an_active_client_only_the_newest_commits_stay() {
        assert_eq!(through(None, 0, 5_000, 0, 1_000), 4_000);
        assert_eq!(through(None, 0, 5_000, 0, 0), 5_000);
    }

    #[test]
    fn the_horizon_never_falls() {
        assert_eq!(through(Some(10), 0, 5_000, 300, 1_000), 300);
    }

    #[test]
    fn a_client_is_active_up_to_the_last_millisecond_of_the_window() {
        let retention = Retention::default();
        let window = retention.active_window_ms;
        let floor = |clients: &[ClientRecord]| retention.active_floor(clients, NOW);
        assert_eq!(floor(&[client(7, window)]), Some(CommitSeq(7)));
        assert_eq!(floor(&[client(7, window + 1)]), None);
        assert_eq!(
            floor(&[client(9, 0), client(3, window + 1), client(8, 5)]),
            Some(CommitSeq(8))
        );
        // It has not read anything yet.
        assert_eq!(floor(&[client(-1, 0)]), None);
        assert_eq!(floor(&[]), None);
    }

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        let retention = Retention::default();
        assert_eq!(retention.min_retained, 1_000);
        assert_eq!(retention.active_window_ms, 1_209_600_000);
        assert_eq!(retention.forced_before_ms(NOW), NOW - 2_592_000_000);
    }
}

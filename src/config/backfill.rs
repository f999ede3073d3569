//! `[backfill]`: which backfills are declared, and how they run unless an operator says
//! otherwise.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_actors::backfill::{BackfillSettings, MAX_WORKERS};
use tidegate_engine::backfill::pacing::Pace;

use super::{ConfigError, MAX_MS};

/// What the control endpoint takes as rates.
const MAX_ROWS_PER_SECOND: u64 = 10_000_000;
/// Each holds a snapshot of the database now and then.
const MAX_RUNS: u64 = 1_000;
/// A page is one commit, and one message to whoever pulls it.
const MAX_PAGE_ROWS: u64 = 10_000;
/// A claim is kept alive six times in a lease, each time with a write.
const MIN_LEASE_MS: u64 = 200;
/// What the control endpoint takes.
const MIN_SHARE: f64 = 0.001;

/// `[backfill]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backfill {
    /// Folder of declared backfills, one `*.toml` each; empty = none.
    pub dir: PathBuf,
    /// Checkpoints that the process works on at once.
    pub runs: usize,
    /// Source rows per second at most, of each checkpoint.
    pub rows_per_second: u64,
    /// Source rows that may be worked on at once after an idle time.
    pub burst_rows: u64,
    /// Source rows per page.
    pub page_rows: u64,
    /// Workers per checkpoint.
    pub workers: u32,
    /// Wanted p99 of live pushes, milliseconds; 0 = do not yield to them.
    pub push_p99_target_ms: u64,
    /// Share of the rate that is kept however slow pushes are.
    pub least_share: f64,
    /// How often checkpoints are looked for, milliseconds.
    pub poll_ms: u64,
    /// A checkpoint that its owner has not moved for that long is claimed, milliseconds.
    pub lease_ms: u64,
}

impl Default for Backfill {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            runs: 8,
            rows_per_second: 5_000,
            burst_rows: 1_000,
            page_rows: 500,
            workers: 1,
            push_p99_target_ms: 100,
            least_share: 0.02,
            poll_ms: 1_000,
            lease_ms: 15_000,
        }
    }
}

impl Backfill {
    /// How the workers run.
    pub fn settings(&self) -> BackfillSettings {
        BackfillSettings {
            runs: self.runs,
            page_rows: usize::try_from(self.page_rows).unwrap_or(usize::MAX),
            pace: Pace {
                rows_per_second: self.rows_per_second as f64,
                burst_rows: self.burst_rows as f64,
                push_p99_target_ms: (self.push_p99_target_ms > 0)
                    .then_some(self.push_p99_target_ms as f64),
                least_share: self.least_share,
            },
            workers: self.workers,
            poll: Duration::from_millis(self.poll_ms),
            lease: Duration::from_millis(self.lease_ms),
            ..BackfillSettings::default()
        }
    }

    /// Refuses what no backfill can run with.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let bounded = [
            ("backfill.runs", self.runs as u64, 1, MAX_RUNS),
            (
                "backfill.rows_per_second",
                self.rows_per_second,
                1,
                MAX_ROWS_PER_SECOND,
            ),
            (
                "backfill.burst_rows",
                self.burst_rows,
                1,
                MAX_ROWS_PER_SECOND,
            ),
            ("backfill.page_rows", self.page_rows, 1, MAX_PAGE_ROWS),
            (
                "backfill.workers",
                u64::from(self.workers),
                1,
                u64::from(MAX_WORKERS),
            ),
            (
                "backfill.push_p99_target_ms",
                self.push_p99_target_ms,
                0,
                MAX_MS,
            ),
            ("backfill.poll_ms", self.poll_ms, 10, MAX_MS),
            ("backfill.lease_ms", self.lease_ms, MIN_LEASE_MS, MAX_MS),
        ];
        for (key, value, least, most) in bounded {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::Invalid {
                    key,
                    message: format!("must be {least} to {most}"),
                });
            }
        }
        if !(MIN_SHARE..=1.0).contains(&self.least_share) {
            return Err(ConfigError::Invalid {
                key: "backfill.least_share",
                message: format!("must be {MIN_SHARE} to 1"),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_workers() {
        let (here, there) = (Backfill::default().settings(), BackfillSettings::default());
        assert_eq!(here.page_rows, there.page_rows);
        assert_eq!((here.runs, here.pace), (there.runs, there.pace));
        assert_eq!(here.workers, there.workers);
        assert_eq!((here.poll, here.lease), (there.poll, there.lease));
        assert!(Backfill::default().validate().is_ok());
    }

    #[test]
    fn no_target_means_not_to_yield() {
        let settings = Backfill {
            push_p99_target_ms: 0,
            ..Backfill::default()
        }
        .settings();
        assert_eq!(settings.pace.push_p99_target_ms, None);
    }

    #[test]
    fn each_bound_is_reported_by_its_key() {
        type Break = fn(&mut Backfill);
        let broken: [(&str, Break); 9] = [
            ("backfill.runs", |b| b.runs = 0),
            ("backfill.rows_per_second", |b| b.rows_per_second = 0),
            ("backfill.burst_rows", |b| b.burst_rows = 10_000_001),
            ("backfill.page_rows", |b| b.page_rows = 10_001),
            ("backfill.workers", |b| b.workers = 0),
            ("backfill.push_p99_target_ms", |b| {
                b.push_p99_target_ms = u64::MAX
            }),
            ("backfill.poll_ms", |b| b.poll_ms = 0),
            ("backfill.lease_ms", |b| b.lease_ms = 199),
            ("backfill.least_share", |b| b.least_share = f64::NAN),
        ];
        for (wanted, broken) in broken {
            let mut backfill = Backfill::default();
            broken(&mut backfill);
            let Err(ConfigError::Invalid { key, .. }) = backfill.validate() else {
                panic!("{wanted} is accepted");
            };
            assert_eq!(key, wanted);
        }
    }
}

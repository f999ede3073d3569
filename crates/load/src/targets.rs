//! What a server on Postgres has to reach, as ratios between runs on one machine.

use serde::Serialize;

/// Pushed commits, as multiples of the row-lock way's.
const PUSH_TO_ROWLOCK: f64 = 8.0;
/// Pushed commits, as a share of the floor's.
const PUSH_TO_FLOOR: f64 = 0.7;
/// Commits of push-pull rounds, as multiples of the row-lock way's.
const PUSH_PULL_TO_ROWLOCK: f64 = 4.0;
/// The 99th percentile, as multiples of the median.
const P99_TO_P50: f64 = 4.0;
/// Peak resident memory of the server, MiB.
const PEAK_MIB: f64 = 96.0;
/// Commits on many partitions, as a share of those on one.
const MANY_TO_ONE: f64 = 1.0;

/// Medians that the targets speak of; rates are commits per second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    /// Push-only on one partition.
    pub push: f64,
    /// Push-pull on one partition.
    pub push_pull: f64,
    /// Push-pull on one partition, with as many clients as there are partitions below.
    pub push_pull_one: f64,
    /// Push-pull on many partitions.
    pub push_pull_many: f64,
    /// The row-lock way.
    pub rowlock: f64,
    /// The inserts alone.
    pub floor: f64,
    /// 99th percentile over median of push-only.
    pub push_tail: f64,
    /// 99th percentile over median of push-pull.
    pub push_pull_tail: f64,
    /// The highest peak of any server process, where it is known.
    pub peak_mib: Option<f64>,
}

/// A target and how it was met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What is compared.
    pub name: &'static str,
    /// Measured; `None` where there is nothing to divide by.
    pub value: Option<f64>,
    /// The bound.
    pub target: f64,
    /// Whether the bound is the highest allowed value, not the lowest.
    pub at_most: bool,
    /// Whether the target is met.
    pub met: bool,
}

/// Every target against what was measured.
pub fn verdicts(measured: &Measured) -> Vec<Verdict> {
    let at_least = |name, value, target| verdict(name, value, target, false);
    let at_most = |name, value, target| verdict(name, value, target, true);
    let m = measured;
    vec![
        at_least(
            "push-only / row-lock",
            ratio(m.push, m.rowlock),
            PUSH_TO_ROWLOCK,
        ),
        at_least("push-only / floor", ratio(m.push, m.floor), PUSH_TO_FLOOR),
        at_least(
            "push-pull / row-lock",
            ratio(m.push_pull, m.rowlock),
            PUSH_PULL_TO_ROWLOCK,
        ),
        at_least(
            "64 partitions / the single partition, push-pull",
            ratio(m.push_pull_many, m.push_pull),
            MANY_TO_ONE,
        ),
        at_least(
            "64 partitions / one partition with as many clients, push-pull",
            ratio(m.push_pull_many, m.push_pull_one),
            MANY_TO_ONE,
        ),
        at_most("p99 / p50, push-only", Some(m.push_tail), P99_TO_P50),
        at_most("p99 / p50, push-pull", Some(m.push_pull_tail), P99_TO_P50),
        at_most("server peak memory, MiB", m.peak_mib, PEAK_MIB),
    ]
}

fn verdict(name: &'static str, value: Option<f64>, target: f64, at_most: bool) -> Verdict {
    let met = value.is_some_and(|value| {
        if at_most {
            value <= target
        } else {
            value >= target
        }
    });
    Verdict {
        name,
        value: value.map(rounded),
        target,
        at_most,
        met,
    }
}

/// How many times `of` is `to`.
pub fn ratio(of: f64, to: f64) -> Option<f64> {
    (to > 0.0).then(|| of / to)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A Markdown table of verdicts.
pub fn table(verdicts: &[Verdict]) -> String {
    use std::fmt::Write as _;
    let mut out = String::from("| target | wanted | measured | met |\n|---|---:|---:|---|\n");
    for verdict in verdicts {
        let sign = if verdict.at_most { "≤" } else { "≥" };
        let value = verdict
            .value
            .map_or("-".to_owned(), |value| format!("{value:.2}"));
        let met = if verdict.met { "yes" } else { "no" };
        let _ = writeln!(
            out,
            "| {} | {sign} {} | {value} | {met} |",
            verdict.name, verdict.target
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Measured {
        Measured {
            push: 8000.0,
            push_pull: 4000.0,
            push_pull_one: 5000.0,
            push_pull_many: 5000.0,
            rowlock: 1000.0,
            floor: 11_000.0,
            push_tail: 4.0,
            push_pull_tail: 2.0,
            peak_mib: Some(96.0),
        }
    }

    fn met(measured: &Measured) -> Vec<bool> {
        verdicts(measured).iter().map(|v| v.met).collect()
    }

    #[test]
    fn the_bounds_themselves_meet_the_targets() {
        assert_eq!(met(&good()), [true; 8]);
    }

    #[test]
    fn each_target_is_missed_by_its_own_figure_alone() {
        let cases = [
            (
                1,
                Measured {
                    floor: 12_000.0,
                    ..good()
                },
            ),
            (
                2,
                Measured {
                    push_pull: 3999.0,
                    ..good()
                },
            ),
            (
                3,
                Measured {
                    push_pull_one: 3000.0,
                    push_pull_many: 3999.0,
                    ..good()
                },
            ),
            (
                4,
                Measured {
                    push_pull_many: 4999.0,
                    ..good()
                },
            ),
            (
                5,
                Measured {
                    push_tail: 4.01,
                    ..good()
                },
            ),
            (
                6,
                Measured {
                    push_pull_tail: 9.0,
                    ..good()
                },
            ),
            (
                7,
                Measured {
                    peak_mib: Some(96.1),
                    ..good()
                },
            ),
            (
                7,
                Measured {
                    peak_mib: None,
                    ..good()
                },
            ),
        ];
        for (missed, measured) in cases {
            let expected: Vec<bool> = (0..8).map(|at| at != missed).collect();
            assert_eq!(met(&measured), expected, "{measured:?}");
        }
        let slower = Measured {
            push: 7990.0,
            ..good()
        };
        assert!(!met(&slower)[0]);
    }

    #[test]
    fn nothing_measured_meets_nothing_that_is_compared() {
        assert_eq!(ratio(5.0, 0.0), None);
        let all = verdicts(&Measured::default());
        assert!(all[..4].iter().all(|v| v.value.is_none() && !v.met));
    }

    #[test]
    fn the_table_shows_bound_and_figure() {
        let text = table(&verdicts(&good()));
        assert!(text.contains("| push-only / row-lock | ≥ 8 | 8.00 | yes |"));
        assert!(text.contains("| server peak memory, MiB | ≤ 96 | 96.00 | yes |"));
    }
}

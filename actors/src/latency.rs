//! How long pushes took lately, cheaply: a histogram of atomic counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per doubling: an estimate is off by at most an eighth.
const PER_DOUBLING: u32 = 8;
/// Doublings covered, from one microsecond to over a minute.
const DOUBLINGS: u32 = 27;
const BUCKETS: usize = (PER_DOUBLING * DOUBLINGS) as usize;

/// Push latencies of a partition, from admission to answer.
#[derive(Debug)]
pub(crate) struct Latencies {
    buckets: Box<[AtomicU64]>,
}

/// What a reader has seen of a histogram; each reader has its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    counts: Vec<u64>,
}

impl Latencies {
    pub fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// The 99th percentile in milliseconds of what came since this reader's last look;
    /// `None` when nothing did.
    pub fn p99_since(&self, seen: &mut Seen) -> Option<f64> {
        let now: Vec<u64> = self
            .buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let fresh: Vec<u64> = now
            .iter()
            .enumerate()
            .map(|(at, count)| {
                let before = seen.counts.get(at).copied().unwrap_or(0);
                // Fewer than before: the partition left memory meanwhile and counts anew.
                count.checked_sub(before).unwrap_or(*count)
            })
            .collect();
        seen.counts = now;
        let total: u64 = fresh.iter().sum();
        if total == 0 {
            return None;
        }
        let mut above = total / 100;
        for (at, count) in fresh.iter().enumerate().rev() {
            if *count > above {
                return Some(upper_bound_ms(at));
            }
            above -= count;
        }
        None
    }
}

fn bucket(micros: u64) -> usize {
    let micros = micros.max(1);
    let doubling = micros.ilog2().min(DOUBLINGS - 1);
    let base = 1_u64 << doubling;
    let part = (u128::from(micros - base) * u128::from(PER_DOUBLING) / u128::from(base))
        .min(u128::from(PER_DOUBLING - 1));
    doubling as usize * PER_DOUBLING as usize + usize::try_from(part).unwrap_or(0)
}

fn upper_bound_ms(bucket: usize) -> f64 {
    let per = PER_DOUBLING as usize;
    let (doubling, part) = (bucket / per, bucket % per);
    let base = (1_u64 << doubling) as f64;
    base * (1.0 + (part + 1) as f64 / per as f64) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p99_is_that_of_the_pushes_since_the_last_look() {
        let latencies = Latencies::new();
        let mut seen = Seen::default();
        assert_eq!(latencies.p99_since(&mut seen), None);
        for _ in 0..980 {
            latencies.record(Duration::from_millis(2));
        }
        for _ in 0..20 {
            latencies.record(Duration::from_millis(300));
        }
        let p99 = latencies.p99_since(&mut seen).unwrap_or_default();
        assert!((300.0..340.0).contains(&p99), "{p99}");
        assert_eq!(latencies.p99_since(&mut seen), None, "seen already");
        for _ in 0..1_000 {
            latencies.record(Duration::from_millis(2));
        }
        let p99 = latencies.p99_since(&mut seen).unwrap_or_default();
        assert!((2.0..2.3).contains(&p99), "{p99}");
    }

    #[test]
    fn one_slow_push_in_a_hundred_is_above_the_p99_and_two_are_not() {
        for (slow, expected) in [(1, 1.0..1.2), (2, 1_000.0..1_130.0)] {
            let latencies = Latencies::new();
            for _ in 0..100 - slow {
                latencies.record(Duration::from_millis(1));
            }
            for _ in 0..slow {
                latencies.record(Duration::from_secs(1));
            }
            let p99 = latencies
                .p99_since(&mut Seen::default())
                .unwrap_or_default();
            assert!(expected.contains(&p99), "{slow} slow: {p99}");
        }
    }

    #[test]
    fn a_histogram_that_began_anew_is_read_from_its_start() {
        let (old, new) = (Latencies::new(), Latencies::new());
        let mut seen = Seen::default();
        for _ in 0..10 {
            old.record(Duration::from_millis(1));
        }
        old.p99_since(&mut seen);
        new.record(Duration::from_millis(1));
        assert!(new.p99_since(&mut seen).is_some());
    }

    #[test]
    fn extremes_have_a_bucket() {
        for micros in [0, 1, u64::MAX] {
            assert!(bucket(micros) < BUCKETS);
        }
    }
}

//! Pace and progress, with time handed in.

use proptest::prelude::*;
use tidegate_engine::backfill::pacing::{Pace, Pacer};
use tidegate_engine::backfill::progress::Meter;

const PACE: Pace = Pace {
    rows_per_second: 100.0,
    burst_rows: 50.0,
    push_p99_target_ms: Some(20.0),
    least_share: 0.1,
};

#[test]
fn a_burst_is_free_and_the_rest_waits() {
    let mut pacer = Pacer::new(PACE, 0);
    assert_eq!(pacer.take(50, 0), 0);
    assert_eq!(pacer.take(10, 0), 100);
    assert_eq!(
        pacer.take(10, 100),
        100,
        "the debt is paid, the next page is not"
    );
    assert_eq!(pacer.take(50, 10_000), 0, "an idle time refills the bucket");
    assert_eq!(pacer.take(1, 10_000), 10, "but no more than the burst");
}

#[test]
fn slow_pushes_halve_the_rate_down_to_its_share() {
    let mut pacer = Pacer::new(PACE, 0);
    pacer.observe(Some(25.0), 0);
    assert_eq!(pacer.rate(), 50.0);
    for _ in 0..10 {
        pacer.observe(Some(25.0), 0);
    }
    assert_eq!(pacer.rate(), 10.0);
    pacer.observe(Some(19.0), 0);
    assert!(pacer.rate() > 10.0 && pacer.rate() < 20.0);
    for _ in 0..30 {
        pacer.observe(None, 0);
    }
    assert_eq!(pacer.rate(), 100.0);
}

#[test]
fn settings_change_at_run_time_and_never_stall() {
    let mut pacer = Pacer::new(PACE, 0);
    pacer.set(
        Pace {
            rows_per_second: f64::NAN,
            burst_rows: -1.0,
            push_p99_target_ms: None,
            least_share: 0.0,
        },
        0,
    );
    assert!(pacer.rate() > 0.0);
    pacer.set(PACE, 0);
    pacer.observe(Some(1e9), 0);
    assert_eq!(pacer.rate(), 50.0);
}

#[test]
fn progress_tells_rate_and_time_left() {
    let mut meter = Meter::default();
    assert_eq!(meter.progress(100, 0).left_ms, None);
    for (rows, at) in [(0, 0), (10, 1_000), (20, 2_000)] {
        meter.record(rows, at);
    }
    let progress = meter.progress(120, 2_000);
    assert_eq!((progress.rows_done, progress.rows_total), (20, 120));
    assert_eq!(progress.rows_per_second, 10.0);
    assert_eq!(progress.left_ms, Some(10_000));
    assert_eq!(
        meter.progress(5, 2_000).rows_total,
        20,
        "a stale count is no end"
    );
    assert_eq!(meter.progress(5, 2_000).left_ms, Some(0));
    // A worker that stands still has no rate, one that begins again a new one.
    assert_eq!(meter.progress(120, 90_000).rows_per_second, 0.0);
    meter.record(0, 91_000);
    meter.record(30, 92_000);
    assert_eq!(meter.progress(120, 92_000).rows_per_second, 30.0);
}

proptest! {
    /// Waiting as told, no stretch of time sees more than its rate, one burst and
    /// one page.
    #[test]
    fn the_rate_holds_over_any_pages(pages in prop::collection::vec((1..40_usize, 0..300_i64), 1..60)) {
        let mut pacer = Pacer::new(PACE, 0);
        let (mut now, mut rows) = (0_i64, 0.0);
        for (page, idle) in pages {
            now += idle;
            now += i64::try_from(pacer.take(page, now)).unwrap();
            rows += page as f64;
            prop_assert!(rows <= 50.0 + now as f64 / 10.0 + 1e-6);
        }
    }

    /// No clock, however it jumps, breaks the pacer or the meter.
    #[test]
    fn jumping_clocks_do_no_harm(steps in prop::collection::vec((any::<i64>(), 0..1_000_u64), 1..40)) {
        let (mut pacer, mut meter) = (Pacer::new(PACE, 0), Meter::default());
        for (now, rows) in steps {
            let now = now / 4;
            pacer.take(1, now);
            meter.record(rows, now);
            let progress = meter.progress(1_000, now);
            prop_assert!(progress.rows_per_second >= 0.0 && progress.rows_done <= progress.rows_total);
            prop_assert!(pacer.rate() > 0.0);
        }
    }
}

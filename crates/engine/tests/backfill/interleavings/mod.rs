//! Every interleaving of two workers, a new and an old writer, a pruner, crashes
//! and an impatient operator, over the crate's own transitions. The checker is
//! worth something only if it finds faults: each rule is broken once, and it must
//! find the consequence.

mod explorer;
mod machine;

use explorer::explore;
use machine::{Read, Rules, SOUND};

fn holds(rules: Rules) {
    let explored = explore(&rules);
    if let Some((fault, history)) = explored.fault {
        panic!("{fault} after:\n{}", history.join("\n"));
    }
    // The exploration was no empty one: it reached the end of many histories.
    assert!(explored.states > 1_000, "{}", explored.states);
    assert!(explored.activations > 100, "{}", explored.activations);
}

fn breaks(rules: Rules, expected: &str) {
    let (fault, history) = explore(&rules)
        .fault
        .expect("the broken rule went unnoticed");
    assert_eq!(fault, expected, "after:\n{}", history.join("\n"));
}

const NOT_COMPUTED: &str = "activated over a row that is not computed";
const UNSEEN: &str = "activated below a source change";

#[test]
fn no_interleaving_breaks_a_backfill_of_rows() {
    holds(SOUND);
}

#[test]
fn no_interleaving_breaks_a_backfill_of_columns_of_its_own_source() {
    holds(Rules {
        target_is_source: true,
        ..SOUND
    });
}

#[test]
fn the_horizon_may_be_read_after_the_window() {
    holds(Rules {
        read: Read::WindowThenHorizon,
        ..SOUND
    });
}

/// Read first, an old horizon vouches for changes that a prune then removes: safe
/// only while no prune can come between.
#[test]
fn the_horizon_may_be_read_first_only_if_the_pruner_waits() {
    let horizon_first = Rules {
        read: Read::HorizonThenWindow,
        ..SOUND
    };
    holds(Rules {
        pruner_waits_for_activation: true,
        ..horizon_first
    });
    breaks(horizon_first, UNSEEN);
}

#[test]
fn an_activation_beside_the_partitions_serialization_is_noticed() {
    breaks(
        Rules {
            writers_wait_for_activation: false,
            ..SOUND
        },
        UNSEEN,
    );
}

#[test]
fn an_advance_without_the_owners_epoch_is_noticed() {
    breaks(
        Rules {
            advance_checks_owner: false,
            ..SOUND
        },
        "a superseded owner advanced",
    );
}

#[test]
fn a_claim_that_shares_the_epoch_is_noticed() {
    breaks(
        Rules {
            claim_supersedes: false,
            ..SOUND
        },
        "two owners share an epoch",
    );
}

#[test]
fn a_page_outside_of_its_advances_transaction_is_noticed() {
    breaks(
        Rules {
            page_and_advance_are_one: false,
            ..SOUND
        },
        NOT_COMPUTED,
    );
}

#[test]
fn a_scan_that_starts_at_its_own_end_is_noticed() {
    breaks(
        Rules {
            scan_starts_before_it_reads: false,
            ..SOUND
        },
        NOT_COMPUTED,
    );
}

#[test]
fn a_watermark_that_runs_ahead_of_the_scan_is_noticed() {
    breaks(
        Rules {
            watermark_waits_for_the_scan: false,
            ..SOUND
        },
        NOT_COMPUTED,
    );
}

#[test]
fn an_activation_that_ignores_the_log_is_noticed() {
    let broken = Rules {
        activation_checks_coverage: false,
        ..SOUND
    };
    assert!([NOT_COMPUTED, UNSEEN].contains(&explore(&broken).fault.unwrap().0));
}

#[test]
fn a_pruned_window_taken_for_clean_is_noticed() {
    let broken = Rules {
        horizon_counts: false,
        ..SOUND
    };
    assert!([NOT_COMPUTED, UNSEEN].contains(&explore(&broken).fault.unwrap().0));
}

#[test]
fn an_activation_of_what_nobody_computed_is_noticed() {
    breaks(
        Rules {
            unclaimed_needs_watermark_zero: false,
            ..SOUND
        },
        NOT_COMPUTED,
    );
}

#[test]
fn a_fence_raised_at_activation_is_noticed() {
    breaks(
        Rules {
            fence_rises_at_declaration: false,
            ..SOUND
        },
        "an old writer committed after the declaration",
    );
}

#[test]
fn a_fence_that_is_set_instead_of_raised_is_noticed() {
    breaks(
        Rules {
            fence_never_falls: false,
            ..SOUND
        },
        "the fence fell",
    );
}

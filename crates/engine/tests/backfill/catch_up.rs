//! Following the log.

use tidegate_engine::CommitSeq;
use tidegate_engine::backfill::catch_up::{CatchUp, Next, after_activation, after_coverage};
use tidegate_engine::backfill::checkpoint::{Activation, Coverage};

use super::world::{key, table};

#[test]
fn a_window_names_each_changed_source_row_once() {
    let change = |seq, table_name, id| (CommitSeq(seq), key(table_name, id));
    let window = CatchUp::plan(
        CommitSeq(4),
        CommitSeq(9),
        &[table("todos"), table("counters")],
        [
            change(5, "todos", "b"),
            change(4, "todos", "below"),
            change(6, "cards", "target"),
            change(7, "todos", "a"),
            change(8, "todos", "b"),
            change(9, "counters", "1"),
            change(10, "todos", "above"),
        ],
        2,
    );
    let pages = [
        vec![key("todos", "a"), key("todos", "b")],
        vec![key("counters", "1")],
    ];
    assert_eq!(window.pages, pages);
    assert_eq!(
        window.watermark(0),
        CommitSeq(4),
        "the window is not complete yet"
    );
    assert_eq!(window.watermark(1), CommitSeq(9));
}

#[test]
fn an_empty_window_still_moves_the_watermark() {
    let window = CatchUp::plan(CommitSeq(4), CommitSeq(9), &[table("todos")], [], 10);
    assert!(window.pages.is_empty());
    assert_eq!(window.watermark(0), CommitSeq(9));
}

#[test]
fn a_worker_activates_only_over_a_clean_log() {
    let at = CommitSeq(7);
    assert_eq!(after_coverage(Coverage::Clean, at), Next::Activate(at));
    assert_eq!(after_coverage(Coverage::Changed, at), Next::CatchUp(at));
    assert_eq!(after_coverage(Coverage::Unverifiable, at), Next::ScanAgain);
    assert_eq!(after_activation(&Activation::Stale, at), Next::CatchUp(at));
    assert_eq!(
        after_activation(&Activation::Unverifiable, at),
        Next::ScanAgain
    );
}

//! §4.4 to §4.7, §5.7: planning pulls and building their frames.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use ssp2::{ChangeKind, PullHeader, ScopeLists, ScopeValues, SubStatus, Subscription};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::{LogBounds, LoggedChange, LoggedCommit, RowKey};
use tidegate_engine::pull::{
    Bootstrap, BootstrapToken, Delivery, INLINE_SEGMENT_BYTES, Incremental, SubPlan, commit_frame,
    delivery, next_cursor, plan, sub_end_bootstrap, sub_end_echo, sub_end_incremental,
    sub_end_postponed, sub_start,
};
use tidegate_engine::round::{Accept, AdmittedSub, PullLimits};
use tidegate_engine::schema::Schema;
use tidegate_engine::scopes::{Effective, effective};
use tidegate_engine::{CommitSeq, TableId};

const BOUNDS: LogBounds = LogBounds {
    max: CommitSeq(100),
    horizon: CommitSeq(40),
};

fn schema() -> Schema {
    let table = |name: &str| {
        json!({
            "name": name, "primaryKey": "id", "scopes": ["team:{team}"],
            "columns": [{"name": "id", "type": "string"}, {"name": "team", "type": "string"},
                        {"name": "note", "type": "bytes", "encrypted": name == "secrets"}],
        })
    };
    let tables = ["tasks", "lists", "secrets"].map(table);
    Schema::load(&json!({"version": 1, "tables": tables}).to_string()).unwrap()
}

fn scopes() -> ScopeLists {
    [("team", vec!["red".to_owned()])].into_iter().collect()
}

fn active() -> Effective {
    Effective::Active(scopes())
}

fn subscription(cursor: i64, state: Option<&str>) -> Subscription {
    Subscription {
        id: "s".into(),
        table: "tasks".into(),
        scopes: scopes(),
        params: None,
        cursor,
        bootstrap_state: state.map(str::to_owned),
    }
}

fn admitted(frame: &Subscription) -> AdmittedSub<'_> {
    AdmittedSub {
        frame,
        table: TableId(0),
    }
}

fn limits(accept: u8) -> PullLimits {
    PullLimits::clamp(&PullHeader {
        limit_commits: 20,
        limit_snapshot_rows: 30,
        max_snapshot_pages: 5,
        accept,
    })
    .unwrap()
}

fn planned(cursor: i64, state: Option<&str>) -> SubPlan {
    plan(
        &admitted(&subscription(cursor, state)),
        &active(),
        BOUNDS,
        &limits(3),
    )
}

fn window(after: i64) -> SubPlan {
    SubPlan::Incremental(Incremental {
        table: TableId(0),
        scopes: scopes(),
        after: CommitSeq(after),
        through: CommitSeq(100),
        max_changes: 20,
    })
}

fn pages(pin: i64, after_row_id: Option<&str>, restarted: bool) -> Bootstrap {
    Bootstrap {
        table: TableId(0),
        scopes: scopes(),
        pin: CommitSeq(pin),
        after_row_id: after_row_id.map(str::to_owned),
        pages: 5,
        page_rows: 30,
        restarted,
    }
}

fn bootstrap(pin: i64, after_row_id: Option<&str>, restarted: bool) -> SubPlan {
    SubPlan::Bootstrap(pages(pin, after_row_id, restarted))
}

fn token(pin: i64, row: &str) -> String {
    format!(r#"{{"asOfCommitSeq":{pin},"tables":["tasks"],"tableIndex":0,"rowCursor":{row}}}"#)
}

#[test]
fn s4_5_a_cursor_inside_the_log_gets_the_window_after_it() {
    for cursor in [40, 41, 99, 100] {
        assert_eq!(planned(cursor, None), window(cursor));
    }
}

#[test]
fn s4_6_a_cursor_behind_the_horizon_is_reset() {
    for cursor in [0, 1, 39] {
        assert_eq!(planned(cursor, None), SubPlan::Reset);
    }
}

#[test]
fn s4_7_a_negative_or_future_cursor_bootstraps_at_the_newest_commit() {
    for cursor in [-1, i64::MIN, 101, i64::MAX] {
        assert_eq!(planned(cursor, None), bootstrap(100, None, false));
    }
}

#[test]
fn s4_7_an_empty_log_bootstraps_at_zero_and_then_goes_on() {
    let empty = LogBounds::default();
    let at = |cursor| {
        plan(
            &admitted(&subscription(cursor, None)),
            &active(),
            empty,
            &limits(3),
        )
    };
    assert_eq!(at(-1), bootstrap(0, None, false));
    assert!(matches!(at(0), SubPlan::Incremental(_)));
}

#[test]
fn s4_7_a_usable_token_resumes_whatever_the_cursor_says() {
    for cursor in [-1, 0, 39, 50, 100, 101] {
        assert_eq!(
            planned(cursor, Some(&token(50, "\"t7\""))),
            bootstrap(50, Some("t7"), false)
        );
    }
    assert_eq!(
        planned(50, Some(&token(40, "null"))),
        bootstrap(40, None, false)
    );
    assert_eq!(
        planned(50, Some(&token(100, "\"\""))),
        bootstrap(100, Some(""), false)
    );
}

#[test]
fn s4_7_a_pin_behind_the_horizon_starts_over_with_a_fresh_pin() {
    assert_eq!(
        planned(39, Some(&token(39, "\"t7\""))),
        bootstrap(100, None, true)
    );
}

#[test]
fn s4_7_an_unusable_token_starts_over_silently_even_with_a_good_cursor() {
    for state in [
        "",
        "null",
        "7",
        "[]",
        "{",
        "{}",
        &token(101, "null"),
        &token(-1, "null"),
        &token(50, "7"),
        r#"{"asOfCommitSeq":50,"tables":["tasks"],"tableIndex":0}"#,
        r#"{"asOfCommitSeq":50,"tables":["lists"],"tableIndex":0,"rowCursor":null}"#,
        r#"{"asOfCommitSeq":50,"tables":["tasks","lists"],"tableIndex":0,"rowCursor":null}"#,
        r#"{"asOfCommitSeq":50,"tables":[],"tableIndex":0,"rowCursor":null}"#,
        r#"{"asOfCommitSeq":50,"tables":["tasks"],"tableIndex":1,"rowCursor":null}"#,
        r#"{"asOfCommitSeq":"50","tables":["tasks"],"tableIndex":0,"rowCursor":null}"#,
        r#"{"asOfCommitSeq":50.5,"tables":["tasks"],"tableIndex":0,"rowCursor":null}"#,
    ] {
        assert_eq!(
            planned(50, Some(state)),
            bootstrap(100, None, true),
            "{state}"
        );
    }
}

#[test]
fn s3_3_a_revoked_subscription_gets_nothing_whatever_it_presents() {
    for (cursor, state) in [(-1, None), (0, None), (50, None), (50, Some("{}"))] {
        let frame = subscription(cursor, state);
        let sub = admitted(&frame);
        let revoked = effective(&frame.scopes, &Allowed::Failed);
        let plan = plan(&sub, &revoked, BOUNDS, &limits(3));
        assert_eq!(plan, SubPlan::Revoked);
        let start = sub_start(&sub, &plan);
        assert_eq!(start.status, SubStatus::Revoked);
        assert_eq!(start.reason_code, "sync.scope_revoked");
        assert!(start.effective_scopes.is_empty() && !start.bootstrap);
        let end = sub_end_echo(&sub);
        assert_eq!((end.next_cursor, end.bootstrap_state), (cursor, None));
    }
}

#[test]
fn s4_6_a_horizon_that_passes_the_cursor_during_the_read_resets() {
    assert_eq!(window(50).recheck(CommitSeq(50)), window(50));
    assert_eq!(window(50).recheck(CommitSeq(51)), SubPlan::Reset);
    let pages = bootstrap(50, None, false);
    assert_eq!(
        pages.clone().recheck(CommitSeq(99)),
        pages,
        "rows do not come from the log"
    );
    assert_eq!(SubPlan::Revoked.recheck(CommitSeq(99)), SubPlan::Revoked);
}

#[test]
fn a_window_or_a_pin_below_a_layout_change_is_never_read() {
    let at = |floor, cursor, state: Option<&str>| {
        let bounds = BOUNDS.above_layout(CommitSeq(floor));
        let frame = subscription(cursor, state);
        plan(&admitted(&frame), &active(), bounds, &limits(3))
    };
    assert_eq!(at(70, 69, None), SubPlan::Reset);
    assert_eq!(at(70, 70, None), window(70));
    assert_eq!(
        at(70, 69, Some(&token(69, "\"t7\""))),
        bootstrap(100, None, true)
    );
    assert_eq!(at(10, 39, None), SubPlan::Reset, "the horizon still counts");
}

#[test]
fn s4_4_sub_start_tells_status_reason_and_scopes() {
    let frame = subscription(7, None);
    let start = |plan: &SubPlan| {
        let start = sub_start(&admitted(&frame), plan);
        assert_eq!(start.id, "s");
        (
            start.status,
            start.reason_code,
            start.effective_scopes,
            start.bootstrap,
        )
    };
    let none = ScopeLists::new();
    assert_eq!(
        start(&window(50)),
        (SubStatus::Active, String::new(), scopes(), false)
    );
    assert_eq!(
        start(&bootstrap(1, None, false)),
        (SubStatus::Active, String::new(), scopes(), true)
    );
    assert_eq!(
        start(&SubPlan::Reset),
        (SubStatus::Reset, "sync.cursor_expired".into(), none, false)
    );
}

#[test]
fn s4_5_the_cursor_advances_to_what_was_scanned_and_never_back() {
    assert_eq!(next_cursor(CommitSeq(50), CommitSeq(100)), CommitSeq(100));
    assert_eq!(next_cursor(CommitSeq(50), CommitSeq(50)), CommitSeq(50));
    assert_eq!(next_cursor(CommitSeq(50), CommitSeq(0)), CommitSeq(50));
    let end = sub_end_incremental(CommitSeq(50), CommitSeq(77));
    assert_eq!((end.next_cursor, end.bootstrap_state), (77, None));
}

#[test]
fn s4_7_every_bootstrap_answer_ends_at_its_pin_with_a_token_until_complete() {
    let frame = subscription(-1, None);
    let unfinished = sub_end_bootstrap(
        &admitted(&frame),
        &pages(60, None, false),
        Some("t9".into()),
    );
    assert_eq!(unfinished.next_cursor, 60);
    assert_eq!(
        unfinished.bootstrap_state.as_deref(),
        Some(token(60, "\"t9\"").as_str())
    );
    let complete = sub_end_bootstrap(&admitted(&frame), &pages(60, Some("t9"), false), None);
    assert_eq!((complete.next_cursor, complete.bootstrap_state), (60, None));
}

#[test]
fn s4_7_a_postponed_bootstrap_stays_at_its_pin_and_position() {
    let frame = subscription(-1, None);
    for position in [None, Some("t9")] {
        let end = sub_end_postponed(&admitted(&frame), &pages(60, position, false));
        assert_eq!(end.next_cursor, 60);
        let token = BootstrapToken::parse(&end.bootstrap_state.unwrap(), &frame.table).unwrap();
        assert_eq!(token.pin, CommitSeq(60));
        assert_eq!(token.after_row_id.as_deref(), position);
    }
}

#[test]
fn s4_7_tokens_are_written_byte_for_byte_as_specified() {
    let written = |row: Option<&str>, table: &str| {
        let token = BootstrapToken {
            pin: CommitSeq(3),
            after_row_id: row.map(str::to_owned),
        };
        token.format(table)
    };
    assert_eq!(
        written(None, "tasks"),
        r#"{"asOfCommitSeq":3,"tables":["tasks"],"tableIndex":0,"rowCursor":null}"#
    );
    assert_eq!(
        written(Some("a\"b\\c\n\u{1}é"), "t"),
        r#"{"asOfCommitSeq":3,"tables":["t"],"tableIndex":0,"rowCursor":"a\"b\\c\n\u0001é"}"#
    );
}

#[test]
fn s4_5_a_commit_frame_has_its_own_table_dictionary() {
    let schema = schema();
    let change = |table, row: &str, upsert: Option<(i64, &'static [u8])>| LoggedChange {
        key: RowKey {
            table: TableId(table),
            row_id: row.into(),
        },
        scopes: [("team", "red".to_owned())]
            .into_iter()
            .collect::<ScopeValues>(),
        upsert: upsert.map(|(version, row)| (version, row.into())),
    };
    let commit = LoggedCommit {
        seq: CommitSeq(9),
        client_id: "device".into(),
        client_commit_id: "c".into(),
        actor_id: "alice".into(),
        created_at_ms: 1234,
        changes: vec![
            change(1, "l1", Some((4, b"row"))),
            change(0, "t1", None),
            change(1, "l2", Some((1, b""))),
        ],
    };
    let frame = commit_frame(&schema, &commit);
    assert_eq!(
        (
            frame.commit_seq,
            frame.created_at_ms,
            frame.actor_id.as_str()
        ),
        (9, 1234, "alice")
    );
    assert_eq!(frame.tables, ["lists", "tasks"], "in order of first use");
    let indexes: Vec<_> = frame
        .changes
        .iter()
        .map(|c| (c.table_index, c.row_id.as_str()))
        .collect();
    assert_eq!(indexes, [(0, "l1"), (1, "t1"), (0, "l2")]);
    assert_eq!(
        frame.changes[0].kind,
        ChangeKind::Upsert {
            row_version: 4,
            row: "row".into()
        }
    );
    assert_eq!(frame.changes[1].kind, ChangeKind::Delete);
    assert_eq!(
        frame.changes[1].scopes.get("team").map(String::as_str),
        Some("red")
    );
}

#[test]
fn s5_7_small_segments_go_inline_as_far_as_the_client_takes_them() {
    let choose = |accept, bytes| delivery(Accept::new(accept).unwrap(), bytes);
    assert_eq!(choose(0b11, INLINE_SEGMENT_BYTES - 1), Delivery::Inline);
    assert_eq!(choose(0b11, INLINE_SEGMENT_BYTES), Delivery::Reference);
    assert_eq!(choose(0b01, usize::MAX), Delivery::Inline);
    assert_eq!(choose(0b10, 0), Delivery::Reference);
    assert_eq!(choose(0b1110, 0), Delivery::Reference);
}

#[test]
fn s5_3_an_image_stands_only_for_a_whole_plain_table_that_the_client_takes() {
    let schema = schema();
    let (plain, encrypted) = (
        schema.table("tasks").unwrap(),
        schema.table("secrets").unwrap(),
    );
    let start = pages(60, None, false);
    assert!(start.may_use_image(plain, &limits(0b111)));
    assert!(!start.may_use_image(plain, &limits(0b011)));
    assert!(!start.may_use_image(encrypted, &limits(0b111)));
    assert!(!pages(60, Some("t1"), false).may_use_image(plain, &limits(0b111)));
}

proptest! {
    #[test]
    fn tokens_round_trip(pin in 0i64..1 << 53, row in prop::option::of(any::<String>()), table in any::<String>()) {
        let token = BootstrapToken { pin: CommitSeq(pin), after_row_id: row };
        let written = token.format(&table);
        prop_assert_eq!(BootstrapToken::parse(&written, &table), Some(token));
    }

    #[test]
    fn a_plan_never_reads_outside_the_log(
        cursor in any::<i64>(), horizon in 0i64..50, length in 0i64..50,
        state in prop::option::of(prop_oneof![any::<String>(), (-5i64..120).prop_map(|pin| token(pin, "null"))]),
    ) {
        let bounds = LogBounds { max: CommitSeq(horizon + length), horizon: CommitSeq(horizon) };
        let frame = subscription(cursor, state.as_deref());
        match plan(&admitted(&frame), &Effective::Active(scopes()), bounds, &limits(3)) {
            SubPlan::Incremental(window) => {
                prop_assert!(state.is_none());
                prop_assert!(bounds.horizon <= window.after && window.after <= window.through);
                prop_assert_eq!(window.through, bounds.max);
            }
            SubPlan::Bootstrap(pages) => {
                prop_assert!(bounds.horizon <= pages.pin && pages.pin <= bounds.max);
                prop_assert!(!pages.restarted || pages.after_row_id.is_none());
            }
            SubPlan::Reset => prop_assert!(state.is_none() && 0 <= cursor && cursor < horizon),
            SubPlan::Revoked => prop_assert!(false, "it is active"),
        }
    }

    #[test]
    fn a_granted_subscription_is_answered_with_no_more_than_it_asked(values in prop::collection::vec("[a-c]", 1..4)) {
        let requested: ScopeLists = [("team", values.clone())].into_iter().collect();
        let granted = Allowed::Resolved(Arc::new([("team", vec!["a".to_owned()])].into_iter().collect()));
        let mut frame = subscription(-1, None);
        frame.scopes = requested;
        let plan = plan(&admitted(&frame), &effective(&frame.scopes, &granted), BOUNDS, &limits(3));
        let start = sub_start(&admitted(&frame), &plan);
        if values.iter().any(|value| value == "a") {
            prop_assert!(start.effective_scopes.get("team").unwrap().iter().all(|value| value == "a"));
        } else {
            prop_assert_eq!(start.status, SubStatus::Revoked);
        }
    }
}

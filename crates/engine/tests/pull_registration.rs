//! §4.1, §4.5, §8.1: what is remembered of a client after a round.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::json;
use ssp2::{ScopeLists, WireVersion};
use tidegate_engine::CommitSeq;
use tidegate_engine::model::{ClientRecord, RegisteredSubscription};
use tidegate_engine::pull::{Identity, SubOutcome, client_record_after};

fn scopes() -> ScopeLists {
    [("team", vec!["red".to_owned()])].into_iter().collect()
}

fn identity(now_ms: i64) -> Identity {
    Identity {
        client_id: "device".into(),
        actor_id: "alice".into(),
        wire_version: WireVersion::V3,
        now_ms,
    }
}

fn old_record() -> ClientRecord {
    let registered = |id: &str| RegisteredSubscription {
        id: id.into(),
        table: "tasks".into(),
        scopes: scopes(),
        extra: json!({"schemaVersion": 4}).as_object().unwrap().clone(),
    };
    ClientRecord {
        client_id: "device".into(),
        actor_id: "alice".into(),
        wire_version: WireVersion::V1,
        cursor: 33,
        subscriptions: vec![registered("a"), registered("b")],
        updated_at_ms: 1,
    }
}

fn outcome(id: &str, next: Option<i64>) -> SubOutcome {
    SubOutcome {
        id: id.into(),
        table: "lists".into(),
        active: next.map(|next| (scopes(), CommitSeq(next))),
    }
}

#[test]
fn s8_1_without_a_pull_header_registrations_and_cursor_stay() {
    let old = old_record();
    let record = client_record_after(Some(&old), identity(9), None);
    assert_eq!(record.subscriptions, old.subscriptions);
    assert_eq!((record.cursor, record.updated_at_ms), (33, 9));
    assert_eq!(
        record.wire_version,
        WireVersion::V3,
        "picks the delta encoding"
    );
    let fresh = client_record_after(None, identity(9), None);
    assert_eq!((fresh.cursor, fresh.subscriptions.len()), (-1, 0));
}

#[test]
fn s4_1_a_pull_replaces_registrations_and_omission_unregisters() {
    let outcomes = [
        outcome("b", Some(70)),
        outcome("c", Some(60)),
        outcome("d", None),
    ];
    let record = client_record_after(Some(&old_record()), identity(9), Some(&outcomes));
    let ids: Vec<_> = record.subscriptions.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids, ["b", "c"], "only active ones, in request order");
    assert_eq!(record.subscriptions[0].table, "lists");
    assert_eq!(record.subscriptions[0].scopes, scopes());
    assert_eq!(
        record.subscriptions[0].extra["schemaVersion"],
        json!(4),
        "kept with its id"
    );
    assert!(record.subscriptions[1].extra.is_empty());
}

#[test]
fn s4_5_the_recorded_cursor_is_the_minimum_over_active_subscriptions() {
    let cursor = |old: Option<&ClientRecord>, outcomes: &[SubOutcome]| {
        client_record_after(old, identity(9), Some(outcomes)).cursor
    };
    let old = old_record();
    assert_eq!(
        cursor(
            Some(&old),
            &[outcome("a", Some(70)), outcome("b", Some(60))]
        ),
        60
    );
    assert_eq!(
        cursor(Some(&old), &[outcome("a", Some(70)), outcome("b", None)]),
        70
    );
    assert_eq!(
        cursor(Some(&old), &[outcome("a", Some(10))]),
        10,
        "it may fall"
    );
    assert_eq!(
        cursor(Some(&old), &[outcome("a", None)]),
        33,
        "none active: the old value"
    );
    assert_eq!(cursor(Some(&old), &[]), 33);
    assert_eq!(cursor(None, &[outcome("a", None)]), -1);
}

//! migrations.md rule 8: the serve gate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};
use ssp2::{ErrorCode, SyncError};
use tidegate_engine::SchemaVersion;
use tidegate_engine::gate::{
    GateRefusal, GateToken, PendingCheckpoint, changed, judge_after, refusal,
};

const RUNNING: SchemaVersion = SchemaVersion(3);

fn token(stored: i32, epoch: &str, pending: &[(&str, &str)]) -> GateToken {
    GateToken {
        stored_version: SchemaVersion(stored),
        log_epoch: Some(epoch.into()),
        pending: pending
            .iter()
            .map(|(partition, name)| PendingCheckpoint {
                partition: (*partition).into(),
                name: (*name).into(),
            })
            .collect(),
    }
}

fn declared(entries: &[(&str, &str)]) -> BTreeSet<(String, String)> {
    entries
        .iter()
        .map(|(partition, name)| ((*partition).into(), (*name).into()))
        .collect()
}

fn details(refusal: GateRefusal) -> Json {
    let error = SyncError::from(refusal);
    assert_eq!(error.code, ErrorCode::SchemaNotReady);
    assert_eq!(error.message, "server schema is not ready for this request");
    Json::Object(error.details.unwrap())
}

#[test]
fn an_open_gate_serves() {
    for stored in [0, 2, 3] {
        assert_eq!(
            refusal(&token(stored, "e", &[]), RUNNING, &declared(&[])),
            None
        );
    }
}

#[test]
fn a_database_newer_than_the_process_is_refused() {
    let refusal = refusal(&token(4, "e", &[("p", "n")]), RUNNING, &declared(&[])).unwrap();
    assert_eq!(
        details(refusal),
        json!({"storedSchemaVersion": 4, "runningSchemaVersion": 3})
    );
}

#[test]
fn a_pending_checkpoint_of_any_partition_is_refused_unless_declared() {
    let pending = token(3, "e", &[("p", "n"), ("q", "m")]);
    let first = refusal(&pending, RUNNING, &declared(&[])).unwrap();
    assert_eq!(details(first), json!({"partition": "p", "projection": "n"}));
    let second = refusal(&pending, RUNNING, &declared(&[("p", "n")])).unwrap();
    assert_eq!(
        details(second),
        json!({"partition": "q", "projection": "m"})
    );
    assert_eq!(
        refusal(&pending, RUNNING, &declared(&[("p", "n"), ("q", "m")])),
        None
    );
}

#[test]
fn a_declaration_matches_partition_and_name_together() {
    let pending = token(3, "e", &[("p", "n")]);
    assert!(refusal(&pending, RUNNING, &declared(&[("q", "n"), ("p", "m")])).is_some());
}

#[test]
fn a_moved_version_or_epoch_between_two_reads_is_refused() {
    let before = token(3, "e", &[]);
    assert_eq!(
        changed(&before, &token(3, "e", &[("p", "n")])),
        None,
        "pending may change"
    );
    for after in [token(2, "e", &[]), token(3, "f", &[])] {
        assert_eq!(
            details(changed(&before, &after).unwrap()),
            json!({"logEpochChanged": true})
        );
    }
    let vanished = GateToken {
        log_epoch: None,
        ..before.clone()
    };
    assert_eq!(changed(&before, &vanished), Some(GateRefusal::EpochChanged));
}

#[test]
fn after_the_reads_ordinary_refusals_come_before_change() {
    let before = token(3, "e", &[]);
    let judge = |after: &GateToken| judge_after(&before, after, RUNNING, &declared(&[]));
    assert!(matches!(
        judge(&token(4, "f", &[])),
        Some(GateRefusal::NewerSchema { .. })
    ));
    assert!(matches!(
        judge(&token(3, "f", &[("p", "n")])),
        Some(GateRefusal::CheckpointPending(_))
    ));
    assert_eq!(judge(&token(3, "f", &[])), Some(GateRefusal::EpochChanged));
    assert_eq!(judge(&token(3, "e", &[])), None);
}

#[test]
fn a_restore_that_returns_to_the_same_version_is_betrayed_by_its_epoch() {
    let refused = judge_after(
        &token(3, "e", &[]),
        &token(3, "restored", &[]),
        RUNNING,
        &declared(&[]),
    );
    assert_eq!(refused, Some(GateRefusal::EpochChanged));
}

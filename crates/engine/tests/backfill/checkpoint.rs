//! The outcomes of migrations.md rules 2 to 7, on the in-memory model.

use proptest::prelude::*;
use tidegate_engine::backfill::checkpoint::{
    Activation, Advance, CheckpointError, CheckpointState, Coverage, Declare, writer_passes,
};
use tidegate_engine::backfill::model::{FenceRejected, Model};
use tidegate_engine::{CommitSeq, OwnerEpoch, PartitionId, SchemaVersion};

const V1: SchemaVersion = SchemaVersion(1);
const V2: SchemaVersion = SchemaVersion(2);
const V3: SchemaVersion = SchemaVersion(3);

fn p() -> PartitionId {
    "p".into()
}

fn wanted(version: SchemaVersion) -> Declare {
    Declare {
        partition: p(),
        name: "b".into(),
        schema_version: version,
    }
}

fn to(epoch: i64, watermark: i64, observed_rows: i64) -> Advance {
    Advance {
        owner_epoch: OwnerEpoch(epoch),
        watermark: CommitSeq(watermark),
        observed_rows,
    }
}

fn declared() -> Model {
    let mut model = Model::default();
    model.declare(&wanted(V2), 10).unwrap();
    model
}

fn activate(model: &mut Model, epoch: i64, at: i64) -> Result<Activation, CheckpointError> {
    model.activate(&p(), "b", OwnerEpoch(epoch), CommitSeq(at), &["todos"], 99)
}

#[test]
fn a_declaration_installs_the_checkpoint_and_raises_the_fence() {
    let model = declared();
    let row = model.checkpoint(&p(), "b").unwrap();
    assert_eq!(row.state, CheckpointState::Declared);
    assert_eq!(
        (row.watermark, row.owner_epoch),
        (CommitSeq(0), OwnerEpoch(0))
    );
    assert_eq!((row.observed_rows, row.updated_at_ms), (0, 10));
    assert_eq!(model.fence(&p()), Some(V2));
    assert_eq!(model.pending(V2).len(), 1);
    assert!(model.pending(V1).is_empty());
}

#[test]
fn a_repeated_declaration_returns_the_row_as_it_is() {
    let mut model = declared();
    model.claim(&p(), "b", V2, 20).unwrap();
    assert_eq!(
        model.declare(&wanted(V2), 30).unwrap(),
        *model.checkpoint(&p(), "b").unwrap()
    );
    assert!(matches!(
        activate(&mut model, 1, 0),
        Ok(Activation::Activated(_))
    ));
    let row = model.declare(&wanted(V2), 40).unwrap();
    assert_eq!(
        (row.state, row.updated_at_ms),
        (CheckpointState::Activated, 99)
    );
}

#[test]
fn a_name_at_another_version_is_refused_and_the_fence_stays() {
    let mut model = declared();
    let before = model.clone();
    assert!(matches!(
        model.declare(&wanted(V3), 20),
        Err(CheckpointError::VersionTaken { existing, .. }) if existing == V2
    ));
    assert_eq!(model, before);
}

#[test]
fn the_fence_never_falls() {
    let mut model = declared();
    assert_eq!(model.raise_fence(&p(), V1), V2);
    assert_eq!(model.raise_fence(&p(), V3), V3);
}

#[test]
fn old_writers_are_denied_from_the_declaration_on() {
    let mut model = Model::default();
    model.append(&p(), None, &["todos"]).unwrap();
    model.declare(&wanted(V2), 0).unwrap();
    for old in [None, Some(V1)] {
        assert_eq!(model.append(&p(), old, &["todos"]), Err(FenceRejected));
    }
    assert_eq!(model.append(&p(), Some(V2), &["todos"]), Ok(CommitSeq(2)));
    assert!(writer_passes(None, None));
    // Another partition has no fence.
    assert_eq!(model.append(&"q".into(), None, &[]), Ok(CommitSeq(1)));
}

#[test]
fn two_claimers_never_share_an_epoch() {
    let mut model = declared();
    assert_eq!(
        model.claim(&p(), "b", V2, 1).unwrap().owner_epoch,
        OwnerEpoch(1)
    );
    let second = model.claim(&p(), "b", V2, 2).unwrap();
    assert_eq!(second.owner_epoch, OwnerEpoch(2));
    assert_eq!(second.state, CheckpointState::Backfilling);
    assert!(!model.advance(&p(), "b", to(1, 5, 5), 3));
    assert_eq!(model.checkpoint(&p(), "b"), Some(&second));
    assert!(model.advance(&p(), "b", to(2, 5, 5), 3));
}

#[test]
fn absent_activated_and_other_version_checkpoints_are_not_claimable() {
    let mut model = declared();
    for (name, version) in [("other", V2), ("b", V1), ("b", V3)] {
        let refused = model.claim(&p(), name, version, 1).unwrap_err();
        assert_eq!(refused.code(), Some("sync.storage.checkpoint_not_declared"));
    }
    activate(&mut model, 0, 0).unwrap();
    assert_eq!(
        model.claim(&p(), "b", V2, 1),
        Err(CheckpointError::NotDeclared)
    );
}

#[test]
fn an_advance_stores_totals_and_needs_a_claim() {
    let mut model = declared();
    assert!(
        !model.advance(&p(), "b", to(0, 1, 1), 2),
        "nobody claimed it"
    );
    model.claim(&p(), "b", V2, 1).unwrap();
    assert!(model.advance(&p(), "b", to(1, 4, 100), 2));
    assert!(model.advance(&p(), "b", to(1, 3, 40), 3));
    let row = model.checkpoint(&p(), "b").unwrap();
    assert_eq!(
        (row.watermark, row.observed_rows, row.updated_at_ms),
        (CommitSeq(3), 40, 3)
    );
    activate(&mut model, 1, 3).unwrap();
    assert!(
        !model.advance(&p(), "b", to(1, 9, 9), 4),
        "activated is final"
    );
}

#[test]
fn coverage_is_clean_changed_or_unverifiable() {
    let mut model = Model::default();
    model.append(&p(), None, &["todos"]).unwrap();
    model.append(&p(), None, &["lists"]).unwrap();
    let above = |model: &Model, tables: &[&str], seq| {
        model.has_source_changes_above(&p(), tables, CommitSeq(seq))
    };
    assert_eq!(model.source_coverage_seq(&p(), &["todos"]), CommitSeq(1));
    assert_eq!(
        model.source_coverage_seq(&p(), &["todos", "lists"]),
        CommitSeq(2)
    );
    assert_eq!(model.source_coverage_seq(&p(), &[]), CommitSeq(0));
    assert_eq!(above(&model, &["todos"], 0), Coverage::Changed);
    assert_eq!(above(&model, &["todos"], 1), Coverage::Clean);
    assert_eq!(model.prune(&p(), CommitSeq(1)), CommitSeq(1));
    assert_eq!(above(&model, &["todos"], 0), Coverage::Unverifiable);
    // A change that is left is a change, however much is pruned.
    assert_eq!(above(&model, &["lists"], 0), Coverage::Changed);
    assert_eq!(above(&model, &[], 0), Coverage::Clean);
    assert_eq!(above(&model, &["todos"], 1), Coverage::Clean);
}

#[test]
fn an_activation_judges_fence_then_changes_then_the_log_then_the_owner() {
    let mut absent = Model::default();
    absent.raise_fence(&p(), V2);
    let refused = activate(&mut absent, 0, 0).unwrap_err();
    assert_eq!(
        refused.code(),
        Some("sync.storage.checkpoint_fence_missing")
    );

    let mut model = declared();
    model.claim(&p(), "b", V2, 1).unwrap();
    model.append(&p(), Some(V2), &["todos"]).unwrap();
    // Changed and of the wrong owner; pruned and of the wrong owner.
    assert_eq!(activate(&mut model, 7, 0), Ok(Activation::Stale));
    model.prune(&p(), CommitSeq(1));
    let before = model.clone();
    assert_eq!(activate(&mut model, 7, 0), Ok(Activation::Unverifiable));
    assert_eq!(activate(&mut model, 7, 1), Ok(Activation::Stale));
    assert_eq!(model, before, "only an activation changes anything");
    let Ok(Activation::Activated(row)) = activate(&mut model, 1, 1) else {
        panic!("clean and owned");
    };
    assert_eq!((row.watermark, row.updated_at_ms), (CommitSeq(1), 99));
    assert!(model.pending(V2).is_empty());
    assert_eq!(activate(&mut model, 1, 1), Ok(Activation::Stale), "once");
}

#[test]
fn an_unclaimed_checkpoint_is_activated_only_if_no_source_ever_changed() {
    let mut model = declared();
    model.append(&p(), Some(V2), &["lists"]).unwrap();
    assert!(matches!(
        activate(&mut model.clone(), 0, 0),
        Ok(Activation::Activated(_))
    ));
    model.append(&p(), Some(V2), &["todos"]).unwrap();
    assert_eq!(activate(&mut model, 0, 0), Ok(Activation::Stale));
    assert_eq!(
        activate(&mut model, 0, 2),
        Ok(Activation::Stale),
        "nobody computed it"
    );
}

#[test]
fn states_keep_their_stored_names() {
    for (state, name) in [
        (CheckpointState::Declared, "declared"),
        (CheckpointState::Backfilling, "backfilling"),
        (CheckpointState::Activated, "activated"),
    ] {
        assert_eq!(state.as_str(), name);
        assert_eq!(CheckpointState::parse(name), Some(state));
    }
    assert_eq!(CheckpointState::parse("done"), None);
}

proptest! {
    /// Whatever is called in whatever order: the fence and the epoch never fall,
    /// an activated row never changes, and an activation is never below a change.
    #[test]
    fn any_sequence_of_calls_keeps_the_promises(
        calls in prop::collection::vec((0..7_u8, 0..4_i64, 0..6_i64), 1..60),
    ) {
        let mut model = Model::default();
        let mut newest = 0;
        for (call, a, b) in calls {
            let before = model.clone();
            let version = SchemaVersion(i32::try_from(a).unwrap());
            match call {
                0 => drop(model.declare(&wanted(V2), b)),
                1 => drop(model.claim(&p(), "b", V2, b)),
                2 => drop(model.advance(&p(), "b", to(a, b, b), b)),
                3 => drop(activate(&mut model, a, b)),
                4 => drop(model.raise_fence(&p(), version)),
                5 => drop(model.prune(&p(), CommitSeq(b))),
                _ => if let Ok(seq) = model.append(&p(), Some(version), &["todos"]) {
                    newest = seq.0;
                },
            }
            prop_assert!(model.fence(&p()) >= before.fence(&p()));
            let (was, is) = (before.checkpoint(&p(), "b"), model.checkpoint(&p(), "b"));
            prop_assert!(is.map(|row| row.owner_epoch) >= was.map(|row| row.owner_epoch));
            if let Some(was) = was.filter(|row| row.state == CheckpointState::Activated) {
                prop_assert_eq!(Some(was), is);
            } else if let Some(is) = is.filter(|row| row.state == CheckpointState::Activated) {
                prop_assert!(is.watermark.0 >= newest);
            }
        }
    }
}

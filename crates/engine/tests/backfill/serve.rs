//! What a declaring process refuses while it backfills.

use ssp2::ErrorCode;
use tidegate_engine::backfill::projection::Projection;
use tidegate_engine::backfill::serve::{refusal, refused_tables};
use tidegate_engine::gate::PendingCheckpoint;

use super::world::*;

fn pending(partition: &str, name: &str) -> PendingCheckpoint {
    PendingCheckpoint {
        partition: partition.into(),
        name: name.into(),
    }
}

#[test]
fn the_target_of_a_pending_checkpoint_is_refused_and_nothing_else() {
    let (columns, rows) = (load(COLUMNS).unwrap(), load(ROWS).unwrap());
    let both: [&dyn Projection; 2] = [&columns, &rows];
    let refused = refused_tables(both, &[pending("p", "cards")], &"p".into());
    assert_eq!(
        refused.keys().copied().collect::<Vec<_>>(),
        [table("cards")]
    );
    let error = refusal(&refused, [table("todos"), table("cards")]).unwrap();
    assert_eq!(error.code, ErrorCode::SchemaNotReady);
    let shown = error.to_json();
    assert!(
        shown.to_string().contains(r#""projection":"cards""#),
        "{shown}"
    );
    assert!(shown.to_string().contains(r#""partition":"p""#), "{shown}");
    assert_eq!(refusal(&refused, [table("todos"), table("counters")]), None);
}

#[test]
fn other_partitions_and_activated_checkpoints_are_served() {
    let rows = load(ROWS).unwrap();
    let one: [&dyn Projection; 1] = [&rows];
    assert!(refused_tables(one, &[pending("q", "cards")], &"p".into()).is_empty());
    assert!(refused_tables(one, &[], &"p".into()).is_empty());
    assert!(refused_tables(one, &[pending("p", "other")], &"p".into()).is_empty());
}

#[test]
fn a_projection_may_be_served_half_computed_when_it_says_so() {
    let rows = load(&format!("serve_while_backfilling = true\n{ROWS}")).unwrap();
    let one: [&dyn Projection; 1] = [&rows];
    assert!(refused_tables(one, &[pending("p", "cards")], &"p".into()).is_empty());
}

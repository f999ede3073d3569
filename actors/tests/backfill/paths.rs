//! The ways between scan and activation.

use std::sync::Arc;

use tidegate_actors::backfill::BackfillSettings;
use tidegate_engine::CommitSeq;

use crate::steps::Script;
use crate::world::*;

#[actix::test]
async fn a_source_change_before_the_activation_makes_it_stale_and_goes_round() {
    let world = World::new(40, &[COLUMN]).await;
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    let directory = process.directory.clone();
    script.at("backfill.activate.before", move || async move {
        put(&directory, "r0007", " Late ").await;
    });
    process.activated(COLUMN).await;
    assert!(script.count("backfill.activate.before") >= 2);
    assert_eq!(script.count("backfill.scan.after_done"), 1);
    assert_column_is_right(&*process.store).await;
    process.die().await;
}

/// Prunes the whole log at that step, after a change: what changed is no longer told.
async fn pruned_at(step: &'static str) {
    let world = World::new(40, &[TABLE]).await;
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let store = world.store(&[projection(TABLE)]).await;
    let process = Process::start(Arc::clone(&store), vec![projection(TABLE)], settings);
    let directory = process.directory.clone();
    script.at(step, move || async move {
        put(&directory, "r0007", " Changed ").await;
        delete(&directory, "r0008").await;
        put(&directory, "r0009", " Changed ").await;
        let through = CommitSeq(max(&*store).await);
        store
            .prune(&partition(), &"e1".into(), through)
            .await
            .unwrap();
    });
    let status = process.activated(TABLE).await;
    assert!(status.checkpoint.watermark > CommitSeq(0));
    assert_eq!(script.count("backfill.scan.after_done"), 2, "{step}");
    let todos = rows(&*process.store, "todos").await;
    let cards = rows(&*process.store, "cards").await;
    assert_eq!(
        cards["card:r0007"].1[2],
        ssp2::Value::Text(" Changed ".to_owned())
    );
    assert_eq!(cards["card:r0009"].1[2], todos["r0009"].1[2]);
    process.die().await;
}

#[actix::test]
async fn a_log_pruned_past_the_watermark_before_the_catch_up_is_scanned_anew() {
    pruned_at("backfill.scan.after_done").await;
}

#[actix::test]
async fn a_log_pruned_past_the_watermark_before_the_activation_is_scanned_anew() {
    pruned_at("backfill.activate.before").await;
}

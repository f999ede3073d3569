//! Operators at work on a backfill that runs.

use serde_json::json;

use crate::kill::check;
use crate::panel::Panel;
use crate::plant::{NAME, Plant, SEEDS, SHOP, Shape, backfill, order, path, status_until};
use crate::process::{Backend, on_each_database};

on_each_database!(
    a_running_backfill_is_paused_paced_scaled_aborted_claimed_and_activated,
    a_row_that_cannot_be_computed_stops_the_backfill_visibly_until_it_is_corrected,
);

async fn pace(panel: &Panel, rows_per_second: f64) {
    let wanted =
        json!({"rows_per_second": rows_per_second, "burst_rows": 1, "push_p99_target_ms": null});
    let pace = Panel::ok(panel.put(&path(&format!("/{NAME}/pace")), wanted).await);
    assert_eq!(pace["pace"]["rows_per_second"], rows_per_second);
}

async fn a_running_backfill_is_paused_paced_scaled_aborted_claimed_and_activated(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (mut server, hold) = plant.new_held(Shape::Table, "backfill.claim.after");
    let panel = Panel::of(&mut server);
    hold.reached().await;
    // After one page the next one is far away.
    pace(&panel, 0.1).await;
    hold.release();
    let found = status_until(&panel, |found| found["rows_done"].as_u64() > Some(0)).await;
    assert_eq!(found["phase"], "scanning");
    assert_eq!(found["rows_total"], SEEDS);
    assert_eq!(found["owned_here"], true);
    let done = found["rows_done"].as_u64().unwrap();
    assert!(done < SEEDS as u64, "{found}");
    assert_eq!(found["observed_rows"].as_u64(), Some(done));
    let epoch = found["owner_epoch"].as_i64().unwrap();

    // It is not complete, and says so.
    let answer = Panel::ok(
        panel
            .post(&path(&format!("/{NAME}/activate")), json!({}))
            .await,
    );
    assert_eq!(answer["outcome"], "stale", "{answer}");

    order(&panel, "pause").await;
    status_until(&panel, |found| found["phase"] == "paused").await;
    pace(&panel, 100_000.0).await;
    // Paused in every process, and durably.
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));
    let mut server = plant.new_server(Shape::Table);
    let panel = Panel::of(&mut server);
    let found = status_until(&panel, |found| found["phase"] == "paused").await;
    assert_eq!(found["observed_rows"].as_u64(), Some(done), "{found}");
    assert_eq!(found["owner_epoch"].as_i64(), Some(epoch), "{found}");
    assert_eq!(found["pace"]["rows_per_second"], 100_000.0);

    pace(&panel, 0.1).await;
    order(&panel, "resume").await;
    order(&panel, "force-claim").await;
    let found = status_until(&panel, |found| {
        found["phase"] == "scanning" && found["owned_here"] == true
    })
    .await;
    let claimed = found["owner_epoch"].as_i64().unwrap();
    assert!(claimed > epoch, "{found}");
    let text = panel.ctl_text(&["workers", SHOP, NAME, "3"]);
    assert!(text.contains('3'), "{text}");
    status_until(&panel, |found| found["workers_wanted"] == 3).await;

    order(&panel, "abort").await;
    let found = status_until(&panel, |found| found["workers_running"] == 0).await;
    assert_eq!(found["state"], "backfilling", "{found}");
    order(&panel, "force-claim").await;
    let found = status_until(&panel, |found| found["workers_running"].as_u64() > Some(1)).await;
    assert!(found["owner_epoch"].as_i64() > Some(claimed), "{found}");

    pace(&panel, 1_000_000.0).await;
    let found = status_until(&panel, |found| found["phase"] == "activated").await;
    assert!(found["last_error"].is_null(), "{found}");
    let text = panel.ctl_text(&["activate", SHOP, NAME]);
    assert!(text.contains("activated"), "{text}");
    check(&plant, Shape::Table, &[]).await;
}

async fn a_row_that_cannot_be_computed_stops_the_backfill_visibly_until_it_is_corrected(
    on: Backend,
) {
    let plant = Plant::seeded(on).await;
    let good = backfill(Shape::Column, "");
    // The first rows are computed, a later one is no number.
    let bad = good.replace(
        "row.title.trim().lowerAscii()",
        "row.id < 's-0700' ? row.title.trim().lowerAscii() : string(int(row.title))",
    );
    assert_ne!(good, bad);
    plant.rewrite(Shape::Column, &bad);
    let mut server = plant.new_server(Shape::Column);
    let panel = Panel::of(&mut server);
    let found = status_until(&panel, |found| found["phase"] == "failed").await;
    let reason = found["last_error"].as_str().unwrap();
    assert!(reason.contains("title_key"), "{reason}");
    assert_eq!(found["state"], "backfilling", "{found}");
    // Another process reads the reason as well.
    server.terminate();
    assert_eq!(server.wait().code(), Some(0));
    plant.rewrite(Shape::Column, &good);
    let (mut server, hold) = plant.new_held(Shape::Column, "backfill.claim.before");
    let panel = Panel::of(&mut server);
    let found = status_until(&panel, |found| found["state"] == "backfilling").await;
    assert_eq!(found["last_error"].as_str(), Some(reason), "{found}");
    order(&panel, "force-claim").await;
    hold.reached().await;
    hold.release();
    plant.activated().await;
    let found = status_until(&panel, |found| found["phase"] == "activated").await;
    assert!(found["last_error"].is_null(), "{found}");
    check(&plant, Shape::Column, &[]).await;
}

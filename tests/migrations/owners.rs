//! Two server processes on one Postgres: one epoch wins, the other stands aside quietly.

use std::sync::Arc;

use serde_json::json;
use tokio::task::spawn_blocking;

use crate::kill::check;
use crate::panel::Panel;
use crate::plant::{NAME, Plant, Shape, order, path, status, status_until};
use crate::process::Backend;
use crate::writer::Writer;

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_that_start_at_once_migrate_once_and_fill_once() {
    let plant = Arc::new(Plant::seeded(Backend::Postgres).await);
    let start = || {
        let plant = Arc::clone(&plant);
        spawn_blocking(move || plant.new_server(Shape::Table))
    };
    let (one, other) = tokio::join!(start(), start());
    let servers = [one.unwrap(), other.unwrap()];
    let writers = [
        Writer::start(&servers[0].url, "ada", 2),
        Writer::start(&servers[1].url, "bob", 2),
    ];
    plant.activated().await;
    let mut diaries = Vec::new();
    for writer in writers {
        writer.more(1).await;
        diaries.push(writer.stop().await);
    }
    check(&plant, Shape::Table, &diaries).await;
    let migrated = plant.site.log();
    let migrated = migrated.matches("the database was migrated").count();
    // The seed's server is not in this log.
    assert_eq!(migrated, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_claim_supersedes_the_owner_whose_page_is_dropped() {
    let plant = Plant::seeded(Backend::Postgres).await;
    let (mut first, hold) = plant.new_held(Shape::Column, "backfill.page.before_commit:2");
    hold.reached().await;
    let mut second = plant.new_server(Shape::Column);
    let (owner, usurper) = (Panel::of(&mut first), Panel::of(&mut second));
    let found = status(&owner).await;
    assert_eq!(found["owned_here"], true, "{found}");
    let epoch = found["owner_epoch"].as_i64().unwrap();
    // Without force the second leaves it to the first, which moves it.
    let found = order(&usurper, "start").await;
    assert_eq!(found["owned_here"], false, "{found}");
    assert_eq!(plant.owner_epoch().await, epoch);

    order(&usurper, "force-claim").await;
    plant.activated().await;
    assert_eq!(plant.owner_epoch().await, epoch + 1);
    status_until(&usurper, |found| found["phase"] == "activated").await;
    // The first wakes up with its page in hand, and stops quietly.
    let log = "SELECT max(commit_seq) FROM sync_commits";
    let head = plant.sql.value(log).await;
    hold.release();
    let found = status_until(&owner, |found| found["workers_running"] == 0).await;
    assert_eq!(found["owned_here"], false, "{found}");
    assert_eq!(plant.sql.value(log).await, head);
    assert!(found["last_error"].is_null(), "{found}");
    assert_eq!(plant.owner_epoch().await, epoch + 1);
    check(&plant, Shape::Column, &[]).await;
    // Activated is final: nothing is left to claim.
    let (refused, _) = usurper
        .post(&path(&format!("/{NAME}/force-claim")), json!({}))
        .await;
    assert!((400..500).contains(&refused), "{refused}");
}

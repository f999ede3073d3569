//! What clients see while a backfill runs, and while nobody computes it.

use serde_json::{Value as Json, json};
use tidegate_client::{ClientError, OutcomeStatus, TransportError};

use crate::kill::check;
use crate::panel::{Panel, refusal};
use crate::plant::{
    EarlyEnd, NAME, Plant, SEEDS, SHOP, Shape, backfill, computed, order, path, reader, status,
    todo,
};
use crate::process::{Backend, Server, on_each_database};
use crate::sql::breath;
use crate::writer::Writer;

on_each_database!(
    a_backfill_under_live_load_activates_and_what_was_written_meanwhile_is_right,
    a_half_filled_table_is_refused_until_activation_and_all_else_is_served,
    a_target_that_may_be_read_half_computed_is_served,
    an_undeclared_incomplete_checkpoint_keeps_a_server_from_serving,
    a_running_server_that_cannot_compute_a_new_declaration_stops_serving,
);

/// The details of a pull's refusal.
#[track_caller]
fn pending(error: &ClientError) -> Json {
    let ClientError::Transport(TransportError::Refused { status, error }) = error else {
        panic!("{error}");
    };
    let error = error.as_ref().unwrap();
    assert_eq!(
        (*status, error.code.as_str()),
        (503, "sync.schema_not_ready")
    );
    assert!(error.retryable);
    Json::Object(error.details.clone().unwrap())
}

fn this_one() -> Json {
    json!({"partition": SHOP, "projection": NAME})
}

async fn a_backfill_under_live_load_activates_and_what_was_written_meanwhile_is_right(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (mut server, hold) = plant.new_held(Shape::Column, "backfill.page.before_commit:2");
    hold.reached().await;
    let writers = ["ada", "bob", "cem"].map(|name| Writer::start(&server.url, name, 2));
    for writer in &writers {
        writer.more(5).await;
    }
    let panel = Panel::of(&mut server);
    let found = status(&panel).await;
    assert_eq!(found["state"], "backfilling");

    let mut todos = reader(&server.url, "todos", 2, "todos");
    assert_eq!(pending(&todos.sync().await.unwrap_err()), this_one());
    let mut notes = reader(&server.url, "notes", 2, "notes");
    notes.sync().await.unwrap();
    assert_eq!(notes.replica().len("notes"), 1);
    // Pushed and pulled in one request: the push is durable, the pull refused.
    let commit = todos.edit([todo("t-mixed", " Mixed ")]).unwrap();
    assert_eq!(pending(&todos.sync().await.unwrap_err()), this_one());
    let kept = "SELECT title FROM todos WHERE _sync_row_id='t-mixed'";
    assert_eq!(plant.sql.value(kept).await, " Mixed ");

    hold.release();
    plant.activated().await;
    todos.sync().await.unwrap();
    assert!(matches!(
        todos.outcome(&commit),
        Some(OutcomeStatus::Cached(_))
    ));
    let row = todos.replica().row("todos", "t-mixed").unwrap();
    assert_eq!(row.text("title_key"), Some("mixed"));
    let mut diaries = Vec::new();
    for writer in writers {
        diaries.push(writer.stop().await);
    }
    check(&plant, Shape::Column, &diaries).await;
    let first = plant
        .sql
        .value("SELECT title_key FROM todos WHERE _sync_row_id='ada-0'")
        .await;
    assert_eq!(first, computed(" Written By ada 0"));
}

async fn a_half_filled_table_is_refused_until_activation_and_all_else_is_served(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (server, hold) = plant.new_held(Shape::Table, "backfill.page.before_commit:2");
    hold.reached().await;
    let writer = Writer::start(&server.url, "ada", 2);
    writer.more(3).await;
    let mut cards = reader(&server.url, "cards", 2, "cards");
    assert_eq!(pending(&cards.sync().await.unwrap_err()), this_one());
    // Its source is no target.
    let mut todos = reader(&server.url, "todos", 2, "todos");
    todos.sync().await.unwrap();
    assert!(todos.replica().len("todos") >= SEEDS);
    hold.release();
    plant.activated().await;
    let diary = writer.stop().await;
    cards.sync().await.unwrap();
    assert!(cards.replica().len("cards") >= SEEDS);
    check(&plant, Shape::Table, &[diary]).await;
}

async fn a_target_that_may_be_read_half_computed_is_served(on: Backend) {
    let plant = Plant::seeded(on).await;
    plant.rewrite(
        Shape::Column,
        &backfill(Shape::Column, "serve_while_backfilling = true"),
    );
    let (server, hold) = plant.new_held(Shape::Column, "backfill.page.before_commit:2");
    hold.reached().await;
    let mut todos = reader(&server.url, "todos", 2, "todos");
    todos.sync().await.unwrap();
    let replica = todos.replica();
    assert_eq!(replica.len("todos"), SEEDS);
    let filled = replica
        .row_ids("todos")
        .into_iter()
        .filter(|id| {
            let row = replica.row("todos", id).unwrap();
            row.text("title_key").is_some()
        })
        .count();
    assert!(filled > 0 && filled < SEEDS, "{filled}");
    hold.release();
    plant.activated().await;
    todos.sync().await.unwrap();
    let row = todos.replica().row("todos", "s-1099").unwrap();
    assert_eq!(row.text("title_key"), Some("title 1099"));
    check(&plant, Shape::Column, &[]).await;
}

async fn an_undeclared_incomplete_checkpoint_keeps_a_server_from_serving(on: Backend) {
    let plant = Plant::seeded(on).await;
    let (server, hold) = plant.new_held(Shape::Column, "backfill.page.before_commit:2");
    hold.reached().await;
    server.kill();
    let ended = plant.ends_early(EarlyEnd::Undeclared).await;
    assert_eq!(ended.code(), Some(5));
    let log = plant.site.log();
    assert!(
        log.contains(&format!(
            "backfill_checkpoint: checkpoint {NAME} of partition {SHOP}"
        )),
        "{log}"
    );
    // Declared again it serves, at once and while it goes on computing.
    let mut server = plant.new_server(Shape::Column);
    let mut notes = reader(&server.url, "notes", 2, "notes");
    notes.sync().await.unwrap();
    let (code, ready) = readyz(&server).await;
    assert_eq!(code, 200, "{ready}");
    order(&Panel::of(&mut server), "force-claim").await;
    plant.activated().await;
    check(&plant, Shape::Column, &[]).await;
    // Activated, it needs no declaration any more.
    drop(server);
    let server = plant.bare_server();
    let mut todos = reader(&server.url, "todos", 2, "todos");
    todos.sync().await.unwrap();
}

async fn readyz(server: &Server) -> (u16, Json) {
    let answer = reqwest::get(format!("{}/readyz", server.url))
        .await
        .unwrap();
    let status = answer.status().as_u16();
    let body = answer.bytes().await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn a_running_server_that_cannot_compute_a_new_declaration_stops_serving(on: Backend) {
    let plant = Plant::seeded(on).await;
    let bare = plant.bare_server();
    let mut notes = reader(&bare.url, "notes", 2, "notes");
    notes.sync().await.unwrap();
    // Held so that the checkpoint stays incomplete.
    let (mut able, hold) = plant.new_held(Shape::Column, "backfill.claim.before");
    let panel = Panel::of(&mut able);
    let declared = panel.post(&path(""), json!({"name": "other"})).await;
    assert_eq!(refusal(&declared).1, "control.projection_not_loaded");
    let declared = Panel::ok(panel.post(&path(""), json!({"name": NAME})).await);
    assert_eq!(declared["state"], "declared");
    assert_eq!(pending(&notes.sync().await.unwrap_err()), this_one());
    until_phase(&bare, 503, "backfill_checkpoint").await;
    let mut there = reader(&able.url, "there", 2, "notes");
    there.sync().await.unwrap();
    hold.release();
    plant.activated().await;
    notes.sync().await.unwrap();
    until_phase(&bare, 200, "serving").await;
}

async fn until_phase(server: &Server, code: u16, phase: &str) {
    let deadline = std::time::Instant::now() + crate::process::PATIENCE;
    loop {
        let found = readyz(server).await;
        if found.0 == code && found.1["phase"] == phase {
            assert_eq!(found.1["schemaVersion"], 2);
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{found:?}");
        breath().await;
    }
}

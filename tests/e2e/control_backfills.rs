//! The control endpoint at work: migrations, checkpoints, workers.

use serde_json::{Value as Json, json};
use tidegate_client::OutcomeStatus;

use crate::panel::{Panel, eventually, refusal};
use crate::process::{Backend, CONTROL_TOKEN, PATIENCE, Server, Site, on_each_database};
use crate::scenario::{client, todo};
use crate::upgrade::{Grown, HeldBarrier, write_old_rows};

on_each_database!(
    a_backfill_is_watched_and_steered_to_its_end,
    a_migration_is_told_before_it_happens,
);

/// A partition with one row that nobody has computed, held so that no page is written.
async fn held_partition(grown: &Grown, server: &Server, panel: &Panel, name: &str) -> String {
    let mut ada = grown.client(server, name);
    let commit = ada.edit([todo("t1", " Cheese ")]).unwrap();
    ada.sync().await.unwrap();
    assert_eq!(ada.outcome(&commit), Some(&OutcomeStatus::Applied(1)));
    let path = format!("/partitions/{name}");
    Panel::ok(panel.post(&format!("{path}/drain"), json!({})).await);
    path
}

fn first(answer: &Json) -> &Json {
    &answer["checkpoints"][0]
}

async fn computed(panel: &Panel, path: &str) -> Json {
    let rows = Panel::ok(panel.get(&format!("{path}/rows/todos")).await);
    rows["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["values"]["title_key"].clone())
        .collect()
}

async fn a_backfill_is_watched_and_steered_to_its_end(on: Backend) {
    const NAME: &str = "todo-title-key";
    let site = Site::on(on);
    write_old_rows(&site).await;
    let grown = Grown::at(&site);
    let mut server = site.start(&grown.args());
    let panel = Panel::of(&mut server);

    // The migration declared it, fenced older writers and computed the old rows.
    let list = "/partitions/default/checkpoints";
    let done = eventually(&panel, list, |answer| first(answer)["state"] == "activated").await;
    assert_eq!(first(&done)["name"], NAME);
    assert_eq!(first(&done)["schema_version"], 2);
    assert_eq!(first(&done)["projection_loaded"], true);
    let fence = Panel::ok(panel.get("/partitions/default/fence").await);
    assert_eq!(fence["required_writer_version"], 2);
    assert_eq!(
        computed(&panel, "/partitions/default").await,
        json!(["bread", "milk"])
    );
    let text = panel.ctl_text(&["checkpoints", "default"]);
    assert!(
        text.starts_with("NAME            SCHEMA VERSION  STATE"),
        "{text}"
    );
    assert!(text.contains("todo-title-key"), "{text}");
    // What is final cannot be claimed, and declaring it again changes nothing.
    let claim = panel
        .post(&format!("{list}/{NAME}/force-claim"), json!({}))
        .await;
    assert_eq!(
        refusal(&claim),
        (409, "sync.storage.checkpoint_not_declared")
    );
    let again = Panel::ok(panel.post(list, json!({"name": NAME})).await);
    assert_eq!(again["state"], "activated");

    // Workers, pace and claim of a running one.
    let path = held_partition(&grown, &server, &panel, "steered").await;
    let list = format!("{path}/checkpoints");
    let one = format!("{list}/{NAME}");
    Panel::ok(panel.post(&list, json!({"name": NAME})).await);
    let running = eventually(&panel, &list, |answer| first(answer)["owned_here"] == true).await;
    let epoch = first(&running)["owner_epoch"].as_i64().unwrap();
    assert_eq!(first(&running)["state"], "backfilling");
    let workers = Panel::ok(
        panel
            .put(&format!("{one}/workers"), json!({"count": 3}))
            .await,
    );
    assert_eq!(workers["workers_wanted"], 3);
    let body = json!({"rows_per_second": 50.5, "push_p99_target_ms": null});
    let pace = Panel::ok(panel.put(&format!("{one}/pace"), body).await);
    assert_eq!(pace["pace"]["rows_per_second"], 50.5);
    assert_eq!(pace["pace"]["push_p99_target_ms"], Json::Null);
    assert_eq!(pace["pace"]["burst_rows"], 1_000.0);
    Panel::ok(panel.post(&format!("{one}/force-claim"), json!({})).await);
    eventually(&panel, &list, |answer| {
        first(answer)["owner_epoch"].as_i64().unwrap() > epoch
    })
    .await;
    Panel::ok(panel.post(&format!("{path}/resume"), json!({})).await);
    eventually(&panel, &list, |answer| {
        first(answer)["state"] == "activated"
    })
    .await;
    assert_eq!(computed(&panel, &path).await, json!(["cheese"]));

    // Pausing holds until it is resumed; what is not complete is not activated.
    let path = held_partition(&grown, &server, &panel, "paused").await;
    let list = format!("{path}/checkpoints");
    let one = format!("{list}/{NAME}");
    Panel::ok(panel.post(&list, json!({"name": NAME})).await);
    eventually(&panel, &list, |answer| first(answer)["owned_here"] == true).await;
    Panel::ok(panel.post(&format!("{one}/abort"), json!({})).await);
    Panel::ok(panel.post(&format!("{one}/pause"), json!({})).await);
    eventually(&panel, &list, |answer| first(answer)["phase"] == "paused").await;
    let output = panel.ctl(&["--json", "activate", "paused", NAME]);
    assert_eq!(output.status.code(), Some(1));
    let outcome: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["outcome"], "stale");
    // While the partition is held none of these can come to an end by itself.
    let said = panel.ctl_text(&["resume", "paused", NAME]);
    assert!(said.ends_with("\nthe pause ended\n"), "{said}");
    // Whatever takes it up ends a pause, and says so when there was one.
    for command in ["start", "force-claim"] {
        panel.ctl_text(&["pause", "paused", NAME]);
        let said = panel.ctl_text(&[command, "paused", NAME]);
        assert!(said.ends_with("\nthe pause ended\n"), "{said}");
        let said = panel.ctl_text(&[command, "paused", NAME]);
        assert!(!said.contains("the pause ended"), "{said}");
        let answer = panel.ctl_text(&["--json", command, "paused", NAME]);
        let answer: Json = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["pause_ended"], false);
        assert_eq!(answer["name"], NAME);
        let help = panel.ctl_text(&[command, "--help"]);
        assert!(help.contains("ends a pause"), "{help}");
    }
    Panel::ok(panel.post(&format!("{path}/resume"), json!({})).await);
    eventually(&panel, &list, |answer| {
        first(answer)["state"] == "activated"
    })
    .await;
    assert_eq!(computed(&panel, &path).await, json!(["cheese"]));
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", site.log());
}

async fn a_migration_is_told_before_it_happens(on: Backend) {
    let site = Site::on(on);
    let mut server = site.start(&[]);
    let panel = Panel::of(&mut server);
    let told = Panel::ok(panel.get("/migration").await);
    assert_eq!(
        told,
        json!({"running_schema_version": 1, "stored_schema_version": 1, "phase": "ready", "step": null,
            "table": null, "rows_done": 0, "rows_total": 0, "rows_per_second": 0.0, "left_ms": null,
            "last_error": null})
    );
    let plan = Panel::ok(panel.post("/migration/dry-run", json!({})).await);
    assert_eq!(plan["from_schema_version"], 1);
    assert_eq!(plan["to_schema_version"], 1);
    assert_eq!(plan["tables"], json!([]));
    let text = panel.ctl_text(&["migration", "--dry-run"]);
    assert!(text.starts_with("schema version 1 to 1\n"), "{text}");
    let text = panel.ctl_text(&["migration"]);
    assert!(text.contains("phase                   ready\n"), "{text}");

    // Another process migrates past this one: it says so, and is not ready any more.
    let mut ada = client(&server.url, "ada");
    ada.edit([todo("t1", "bread")]).unwrap();
    ada.sync().await.unwrap();
    let grown = Grown::at(&site);
    let newer = site.start(&grown.args());
    let told = eventually(&panel, "/migration", |answer| answer["phase"] == "newer").await;
    assert_eq!(told["stored_schema_version"], 2);
    let ready = reqwest::get(format!("{}/readyz", server.url))
        .await
        .unwrap();
    assert_eq!(ready.status().as_u16(), 503);
    let reply = panel.get("/partitions/default/rows/todos").await;
    assert_eq!(refusal(&reply), (503, "sync.schema_not_ready"));
    newer.terminate();
    assert!(newer.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_answers_while_a_migration_waits() {
    let site = Site::on(Backend::Postgres);
    write_old_rows(&site).await;
    let grown = Grown::at(&site);
    let held = HeldBarrier::of(&site).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut args = grown.args().map(str::to_owned).to_vec();
    args.extend(["--control-listen".to_owned(), address.clone()]);
    let starting = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        (site.start(&args), site)
    });
    let client = reqwest::Client::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let asked = client
            .get(format!("http://{address}/control/v1/migration"))
            .bearer_auth(CONTROL_TOKEN)
            .send()
            .await;
        if let Ok(answer) = asked {
            let told: Json = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
            assert_eq!(told["running_schema_version"], 2, "{told}");
            if told["step"] == "waiting_for_barrier" {
                assert_eq!(told["phase"], "storage_migration");
                break;
            }
        }
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(!starting.is_finished());
    held.release().await;
    let (server, site) = starting.await.unwrap();
    server.terminate();
    assert!(server.wait().success(), "{}", site.log());
}

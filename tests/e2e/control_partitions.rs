//! The control endpoint at work: partitions, draining, grants.

use reqwest::Method;
use serde_json::{Value as Json, json};
use tidegate_client::{HttpTransport, OutcomeStatus, SubscriptionStatus, WireVersion};

use crate::panel::{Panel, Phone, commit, eventually, open, refusal};
use crate::process::{Backend, PATIENCE, Site, on_each_database};
use crate::scenario::{client, client_over, http, todo};

on_each_database!(
    partitions_clients_and_rows_can_be_looked_into,
    what_does_not_exist_is_404,
    a_drained_partition_waits_until_it_is_resumed,
    an_actor_sees_and_writes_what_it_was_granted,
    another_server_sees_a_grant_a_second_later,
    an_outage_of_the_resolver_revokes_nothing,
);

/// A client in a partition of its own choice.
fn client_in(url: &str, id: &str, partition: &str) -> Phone {
    let transport = HttpTransport::new(url, id, Some(partition)).unwrap();
    client_over(id, WireVersion::V3, |_| {}, transport)
}

async fn partitions_clients_and_rows_can_be_looked_into(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &[]);
    for partition in ["shop", "team:1", "zoo"] {
        let mut ada = client_in(&server.url, "ada", partition);
        commit(&mut ada, "t1", "bread").await;
        commit(&mut ada, "t2", "milk").await;
    }
    let first = Panel::ok(panel.get("/partitions?limit=2").await);
    assert_eq!(first["partitions"][0]["partition"], "shop");
    assert_eq!(first["partitions"][1]["partition"], "team:1");
    assert_eq!(first["next"], "team:1");
    let rest = Panel::ok(panel.get("/partitions?limit=2&after=team:1").await);
    assert_eq!(rest["partitions"].as_array().unwrap().len(), 1);
    assert_eq!(rest["next"], Json::Null);

    let shop = Panel::ok(panel.get("/partitions/shop").await);
    assert_eq!(shop, first["partitions"][0]);
    assert_eq!(shop["max_commit_seq"], 2);
    assert_eq!(shop["horizon_seq"], 0);
    assert_eq!(shop["epoch_required"], false);
    assert_eq!(shop["required_writer_version"], Json::Null);
    assert_eq!(shop["held"], false);
    assert!(shop["log_epoch"].is_string());

    // Records of clients are written a little later.
    let clients = eventually(&panel, "/partitions/team%3A1/clients", |answer| {
        answer["clients"][0]["cursor"] == 2
    })
    .await;
    assert_eq!(clients["clients"][0]["client"], "ada");
    assert_eq!(clients["clients"][0]["actor"], "ada");
    assert_eq!(clients["clients"][0]["wire_version"], 3);
    assert_eq!(clients["clients"][0]["subscriptions"], 1);
    assert_eq!(clients["next"], Json::Null);

    let page = Panel::ok(panel.get("/partitions/shop/rows/todos?limit=1").await);
    assert_eq!(
        page,
        json!({
            "partition": "shop", "table": "todos", "max_commit_seq": 2,
            "rows": [{
                "row_id": "t1", "version": 1, "scopes": {"list_id": "groceries"},
                "values": {"id": "t1", "list_id": "groceries", "title": "bread", "done": false,
                    "position": null, "notes": null},
            }],
            "next": "t1",
        })
    );
    let last = Panel::ok(panel.get("/partitions/shop/rows/todos?after=t1").await);
    assert_eq!(last["rows"][0]["row_id"], "t2");
    assert_eq!(last["next"], Json::Null);

    let text = panel.ctl_text(&["partitions", "--limit", "1"]);
    let mut lines = text.lines();
    let head = lines.next().unwrap();
    assert!(
        head.starts_with("PARTITION  MAX COMMIT SEQ  HORIZON SEQ"),
        "{text}"
    );
    assert!(lines.next().unwrap().starts_with("shop  "), "{text}");
    assert_eq!(lines.next(), Some("more: --after shop"));
    let text = panel.ctl_text(&["rows", "shop", "todos"]);
    assert!(
        text.lines().next().unwrap().ends_with("POSITION  NOTES"),
        "{text}"
    );
    assert!(text.contains("bread"), "{text}");
    let text = panel.ctl_text(&["--json", "partition", "shop"]);
    assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), shop);
}

async fn what_does_not_exist_is_404(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &[]);
    let p = "/partitions/nowhere";
    for (method, path, body) in [
        (Method::GET, "", Json::Null),
        (Method::GET, "/clients", Json::Null),
        (Method::GET, "/rows/todos", Json::Null),
        (Method::GET, "/fence", Json::Null),
        (Method::GET, "/checkpoints", Json::Null),
        (
            Method::POST,
            "/fence",
            json!({"required_writer_version": 1}),
        ),
        (Method::POST, "/checkpoints", json!({"name": "n"})),
        (Method::POST, "/checkpoints/n/start", json!({})),
        (Method::POST, "/checkpoints/n/activate", json!({})),
        (Method::PUT, "/checkpoints/n/workers", json!({"count": 2})),
        (Method::PUT, "/checkpoints/n/pace", json!({"burst_rows": 5})),
        (Method::POST, "/drain", json!({})),
        (Method::POST, "/resume", json!({})),
        (Method::POST, "/rotate-epoch", json!({})),
        (Method::POST, "/prune", json!({})),
    ] {
        let reply = panel.send(method, &format!("{p}{path}"), Some(body)).await;
        assert_eq!(
            refusal(&reply),
            (404, "control.unknown_partition"),
            "{path}"
        );
    }
    // Asking made nothing.
    let all = Panel::ok(panel.get("/partitions").await);
    assert_eq!(all, json!({"partitions": [], "next": null}));
    for reply in [
        panel.get(&format!("{p}/grants/ada")).await,
        panel.delete(&format!("{p}/grants/ada")).await,
    ] {
        assert_eq!(refusal(&reply), (404, "control.no_grant"));
    }

    commit(&mut client(&server.url, "ada"), "t1", "bread").await;
    let reply = panel.get("/partitions/default/rows/nothing").await;
    assert_eq!(refusal(&reply), (404, "control.unknown_table"));
    let c = "/partitions/default/checkpoints";
    assert_eq!(Panel::ok(panel.get(c).await), json!({"checkpoints": []}));
    for action in [
        "start",
        "pause",
        "resume",
        "activate",
        "force-claim",
        "abort",
    ] {
        let reply = panel
            .post(&format!("{c}/nothing/{action}"), json!({}))
            .await;
        assert_eq!(
            refusal(&reply),
            (404, "control.unknown_checkpoint"),
            "{action}"
        );
    }
    let reply = panel.post(c, json!({"name": "nothing"})).await;
    assert_eq!(refusal(&reply), (409, "control.projection_not_loaded"));
    for count in [0, 65] {
        let reply = panel
            .put(&format!("{c}/x/workers"), json!({"count": count}))
            .await;
        assert_eq!(refusal(&reply), (422, "control.invalid_value"));
    }
    let reply = panel
        .put(&format!("{c}/x/pace"), json!({"least_share": 0}))
        .await;
    assert_eq!(refusal(&reply), (422, "control.invalid_value"));
}

async fn a_drained_partition_waits_until_it_is_resumed(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &[]);
    let mut ada = client(&server.url, "ada");
    commit(&mut ada, "t1", "bread").await;
    let drained = Panel::ok(panel.post("/partitions/default/drain", json!({})).await);
    assert_eq!(
        drained,
        json!({"partition": "default", "held": true, "queued_pushes": 0})
    );
    let waiting = tokio::spawn(async move {
        let outcome = commit(&mut ada, "t2", "milk").await;
        (ada, outcome)
    });
    // Draining again is draining once, and shows the push that waits.
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let body = json!({"deadline_ms": 1_000});
        let again = Panel::ok(panel.post("/partitions/default/drain", body).await);
        if again["queued_pushes"] == 1 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{again}");
    }
    assert_eq!(
        Panel::ok(panel.get("/partitions/default").await)["max_commit_seq"],
        1
    );
    assert_eq!(
        Panel::ok(panel.get("/partitions/default").await)["held"],
        true
    );
    assert!(!waiting.is_finished());
    let released = panel.ctl_text(&["--json", "release", "default"]);
    assert!(released.contains("\"held\": false"), "{released}");
    let (mut ada, outcome) = waiting.await.unwrap();
    assert_eq!(outcome, OutcomeStatus::Applied(2));
    // Resuming what is not held is no error.
    Panel::ok(panel.post("/partitions/default/resume", json!({})).await);
    for deadline_ms in [0, 60_001] {
        let body = json!({"deadline_ms": deadline_ms});
        let reply = panel.post("/partitions/default/drain", body).await;
        assert_eq!(refusal(&reply), (422, "control.invalid_value"));
    }

    // What is held at the end is let go: the push that waits is finished.
    Panel::ok(panel.post("/partitions/default/drain", json!({})).await);
    ada.edit([todo("t3", "butter")]).unwrap();
    let waiting = tokio::spawn(async move {
        let _ = ada.sync().await;
        ada
    });
    let deadline = std::time::Instant::now() + PATIENCE;
    while Panel::ok(panel.post("/partitions/default/drain", json!({})).await)["queued_pushes"] != 1
    {
        assert!(std::time::Instant::now() < deadline);
    }
    server.terminate();
    let ada = waiting.await.unwrap();
    let outcomes = ada.outcomes();
    assert_eq!(
        outcomes[2].status,
        OutcomeStatus::Applied(3),
        "{}",
        site.log()
    );
    assert_eq!(server.wait().code(), Some(0), "{}", site.log());
}

fn granting(site: &Site) -> String {
    let path = site.path("grants.toml");
    std::fs::write(&path, "[auth]\nscopes = \"grants\"\n").unwrap();
    path.to_str().unwrap().to_owned()
}

fn is_revoked(client: &Phone) -> bool {
    let status = &client.subscription("todos").unwrap().status;
    match status {
        SubscriptionStatus::Revoked { reason } => {
            assert_eq!(reason, "sync.scope_revoked");
            true
        }
        _ => false,
    }
}

async fn an_actor_sees_and_writes_what_it_was_granted(on: Backend) {
    let site = Site::on(on);
    let config = granting(&site);
    let (server, panel) = open(&site, &["--config", &config]);
    let grant = "/partitions/default/grants";

    // Granted before the partition exists.
    let put = json!({"scopes": {"list_id": ["*"]}});
    let granted = Panel::ok(panel.put(&format!("{grant}/ada"), put.clone()).await);
    assert_eq!(granted["scopes"], put["scopes"]);
    assert_eq!(granted["in_force"], true);
    assert_eq!(Panel::ok(panel.get(&format!("{grant}/ada")).await), granted);
    let mut ada = client(&server.url, "ada");
    assert_eq!(
        commit(&mut ada, "t1", "bread").await,
        OutcomeStatus::Applied(1)
    );

    // Without a grant: nothing is pulled, what is pushed is forbidden.
    let mut ben = client(&server.url, "ben");
    let OutcomeStatus::Rejected(rejection) = commit(&mut ben, "t2", "milk").await else {
        panic!("{:?}", ben.outcomes());
    };
    assert_eq!(rejection.code, "sync.forbidden");
    assert!(is_revoked(&ben));
    assert!(ben.replica().is_empty());

    // With one for another list, no more.
    let text = panel.ctl_text(&[
        "grants",
        "put",
        "default",
        "ben",
        "--scope",
        "list_id=garden",
    ]);
    assert!(text.contains("{\"list_id\":[\"garden\"]}"), "{text}");
    let mut ben = client_over("ben-2", WireVersion::V3, |_| {}, http(&server.url, "ben"));
    ben.sync().await.unwrap();
    assert!(is_revoked(&ben));

    // With one for this list, from the next request on.
    let put = json!({"scopes": {"list_id": ["garden", "groceries"]}});
    Panel::ok(panel.put(&format!("{grant}/ben"), put).await);
    let mut ben = client_over("ben-3", WireVersion::V3, |_| {}, http(&server.url, "ben"));
    assert_eq!(
        commit(&mut ben, "t2", "milk").await,
        OutcomeStatus::Applied(2)
    );
    assert_eq!(ben.replica().row_ids("todos"), ["t1", "t2"]);

    // And without it again, at once.
    let gone = Panel::ok(panel.delete(&format!("{grant}/ben")).await);
    assert_eq!(
        gone,
        json!({"partition": "default", "actor": "ben", "deleted": true})
    );
    ben.sync().await.unwrap();
    assert!(is_revoked(&ben));
    assert!(ben.replica().is_empty());
    let again = panel.delete(&format!("{grant}/ben")).await;
    assert_eq!(refusal(&again), (404, "control.no_grant"));
}

async fn another_server_sees_a_grant_a_second_later(on: Backend) {
    let site = Site::on(on);
    let config = granting(&site);
    let (_server, panel) = open(&site, &["--config", &config]);
    let other = site.start(&["--config", &config]);
    // The other server remembers that there is none.
    let mut ben = client(&other.url, "ben");
    ben.sync().await.unwrap();
    assert!(is_revoked(&ben));
    let put = json!({"scopes": {"list_id": ["*"]}});
    Panel::ok(panel.put("/partitions/default/grants/ben", put).await);
    let changed = std::time::Instant::now();
    loop {
        let asked = std::time::Instant::now();
        let mut ben = client_over("probe", WireVersion::V3, |_| {}, http(&other.url, "ben"));
        ben.sync().await.unwrap();
        if !is_revoked(&ben) {
            break;
        }
        assert!(changed.elapsed() < PATIENCE);
        // Every request that begins a second after the change sees it.
        assert!(asked.duration_since(changed) <= std::time::Duration::from_secs(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_batch_does_not_end_is_not_held() {
    let site = Site::on(Backend::Postgres);
    let (server, panel) = open(&site, &[]);
    let mut ada = client(&server.url, "ada");
    commit(&mut ada, "t1", "bread").await;
    // Somebody else has the partition's row: the next batch waits for it.
    let (writer, connection) = tokio_postgres::connect(site.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    writer
        .batch_execute("BEGIN; SELECT 1 FROM sync_partitions FOR UPDATE")
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { commit(&mut ada, "t2", "milk").await });
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let body = json!({"deadline_ms": 50});
        let reply = panel.post("/partitions/default/drain", body).await;
        if reply.0 == 409 {
            assert_eq!(refusal(&reply), (409, "control.busy"));
            assert_eq!(reply.1["retryable"], true);
            break;
        }
        // The push was not there yet, or waits for the hold.
        Panel::ok(panel.post("/partitions/default/resume", json!({})).await);
        assert!(std::time::Instant::now() < deadline);
    }
    let seen = Panel::ok(panel.get("/partitions/default").await);
    assert_eq!(seen["held"], false);
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap(), OutcomeStatus::Applied(2));
    drop(writer);
    connection.await.unwrap().unwrap();
}

async fn an_outage_of_the_resolver_revokes_nothing(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &["--unsafe-test-clock"]);
    let mut ada = client(&server.url, "ada");
    commit(&mut ada, "t1", "bread").await;
    let mode = async |mode: &str| {
        let set = panel.post("/test/resolver", json!({"mode": mode})).await;
        assert_eq!(Panel::ok(set), json!({"mode": mode}));
    };
    mode("outage").await;
    let refused = ada.sync().await.unwrap_err();
    assert_eq!(refused.code(), Some("sync.auth_lease_required"));
    assert!(!is_revoked(&ada));
    mode("live").await;
    assert_eq!(
        commit(&mut ada, "t2", "milk").await,
        OutcomeStatus::Applied(2)
    );
    mode("failing").await;
    ada.sync().await.unwrap();
    assert!(is_revoked(&ada));
    assert!(ada.replica().is_empty());
}

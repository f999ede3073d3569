//! The control endpoint at work: epochs, fences, retention.

use serde_json::{Value as Json, json};
use ssp2::{PullHeader, Request, RequestFrame, RequestHeader, ResponseFrame, Subscription};
use tidegate_client::{OutcomeStatus, WireVersion};

use crate::panel::{Panel, commit, eventually, open, refusal};
use crate::process::{Backend, Server, Site, on_each_database};
use crate::scenario::{LIST, client, client_over, http, todo};

on_each_database!(
    a_rotated_epoch_resets_every_client,
    segments_of_the_old_epoch_are_unreachable_at_once,
    a_raised_fence_never_falls_and_stops_older_writers,
    a_log_is_pruned_up_to_what_somebody_needs,
);

async fn a_rotated_epoch_resets_every_client(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &[]);
    let mut ada = client(&server.url, "ada");
    commit(&mut ada, "t1", "bread").await;
    let before = ada.log_epoch().unwrap().to_owned();
    let rotated = Panel::ok(
        panel
            .post("/partitions/default/rotate-epoch", json!({}))
            .await,
    );
    let epoch = rotated["log_epoch"].as_str().unwrap().to_owned();
    assert_ne!(epoch, before);
    assert_eq!(rotated["epoch_required"], true);
    let seen = Panel::ok(panel.get("/partitions/default").await);
    assert_eq!(
        (&seen["log_epoch"], &seen["epoch_required"]),
        (&json!(epoch), &json!(true))
    );
    let clients = Panel::ok(panel.get("/partitions/default/clients").await);
    assert_eq!(clients["clients"], json!([]));

    assert_eq!(
        commit(&mut ada, "t2", "milk").await,
        OutcomeStatus::Applied(2)
    );
    assert_eq!(ada.log_epoch(), Some(epoch.as_str()));
    assert_eq!(ada.replica().row_ids("todos"), ["t1", "t2"]);
    let mut old = client_over("old", WireVersion::V1, |_| {}, http(&server.url, "old"));
    let refused = old.sync().await.unwrap_err();
    assert_eq!(refused.code(), Some("sync.client_wire_unsupported"));
}

/// The segment that a first pull of the shared list is referred to.
async fn segment(server: &Server) -> String {
    let frames = vec![
        RequestFrame::Header(RequestHeader {
            client_id: "probe".to_owned(),
            schema_version: 1,
            log_epoch: None,
        }),
        RequestFrame::PullHeader(PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            // By reference alone.
            accept: 2,
        }),
        RequestFrame::Subscription(Subscription {
            id: "s".to_owned(),
            table: "todos".to_owned(),
            scopes: [("list_id", vec![LIST.to_owned()])].into_iter().collect(),
            params: None,
            cursor: -1,
            bootstrap_state: None,
        }),
    ];
    let request = Request {
        version: WireVersion::V1,
        frames,
    };
    let probe = client(&server.url, "probe");
    let body = ssp2::encode_request(&request).unwrap();
    let answer = probe.send_raw(body).await.unwrap();
    let response = ssp2::decode_response(answer).unwrap();
    response
        .frames
        .iter()
        .find_map(|frame| match frame {
            ResponseFrame::SegmentRef(reference) => Some(reference.segment_id.clone()),
            _ => None,
        })
        .unwrap()
}

async fn segments_of_the_old_epoch_are_unreachable_at_once(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &[]);
    commit(&mut client(&server.url, "ada"), "t1", "bread").await;
    let id = segment(&server).await;
    let download = async || {
        let request = reqwest::Client::new()
            .get(format!("{}/segments/{id}", server.url))
            .bearer_auth("probe")
            .header("x-syncular-scopes", json!({"list_id": [LIST]}).to_string());
        let response = request.send().await.unwrap();
        response.status().as_u16()
    };
    assert_eq!(download().await, 200);
    Panel::ok(
        panel
            .post("/partitions/default/rotate-epoch", json!({}))
            .await,
    );
    assert_eq!(download().await, 404);
}

async fn a_raised_fence_never_falls_and_stops_older_writers(on: Backend) {
    let site = Site::on(on);
    let (server, panel) = open(&site, &[]);
    let mut ada = client(&server.url, "ada");
    commit(&mut ada, "t1", "bread").await;
    let fence = "/partitions/default/fence";
    let none = Panel::ok(panel.get(fence).await);
    assert_eq!(none["required_writer_version"], Json::Null);
    assert_eq!(none["running_schema_version"], 1);
    Panel::ok(
        panel
            .post(fence, json!({"required_writer_version": 1}))
            .await,
    );
    assert_eq!(
        commit(&mut ada, "t2", "milk").await,
        OutcomeStatus::Applied(2)
    );
    for version in [0, 2] {
        let body = json!({"required_writer_version": version});
        let reply = panel.post(fence, body).await;
        assert_eq!(refusal(&reply), (422, "control.invalid_value"));
    }
    let output = panel.ctl(&["raise-fence", "default", "2"]);
    assert_eq!(output.status.code(), Some(1));
    panel.ctl_text(&["raise-fence", "default", "2", "--force"]);
    let lower = Panel::ok(
        panel
            .post(fence, json!({"required_writer_version": 1}))
            .await,
    );
    assert_eq!(lower["required_writer_version"], 2);
    ada.edit([todo("t3", "butter")]).unwrap();
    let refused = ada.sync().await.unwrap_err();
    assert_eq!(refused.code(), Some("sync.schema_not_ready"));
    assert_eq!(
        Panel::ok(panel.get("/partitions/default").await)["max_commit_seq"],
        2
    );
}

async fn a_log_is_pruned_up_to_what_somebody_needs(on: Backend) {
    const DAY_MS: i64 = 86_400_000;
    let site = Site::on(on);
    let (server, panel) = open(&site, &["--unsafe-test-clock"]);
    Panel::ok(
        panel
            .post("/test/clock", json!({"set_ms": 1_000 * DAY_MS}))
            .await,
    );
    let mut ada = client(&server.url, "ada");
    commit(&mut ada, "t1", "bread").await;
    let mut ben = client(&server.url, "ben");
    ben.sync().await.unwrap();
    for at in 2..=6 {
        commit(&mut ada, &format!("t{at}"), "more").await;
    }
    eventually(&panel, "/partitions/default/clients", |answer| {
        answer["clients"][0]["cursor"] == 6 && answer["clients"][1]["cursor"] == 1
    })
    .await;
    let prune = "/partitions/default/prune";

    // By default the newest 1000 stay.
    let default = Panel::ok(panel.post(prune, json!({})).await);
    assert_eq!(default["horizon_seq"], 0);
    // Ben holds the log back.
    let dry = Panel::ok(
        panel
            .post(prune, json!({"min_retained": 2, "dry_run": true}))
            .await,
    );
    assert_eq!(
        dry,
        json!({"partition": "default", "dry_run": true, "active_floor_seq": 1, "age_forced_seq": 0,
            "max_commit_seq": 6, "target_seq": 1, "previous_horizon_seq": 0, "horizon_seq": 0,
            "removed_commits": 0})
    );
    let text = panel.ctl_text(&["prune", "default", "--min-retained", "2"]);
    assert!(text.contains("horizon_seq           1\n"), "{text}");
    // No longer active, he does not; the newest two stay in any case.
    Panel::ok(
        panel
            .post("/test/clock", json!({"advance_ms": 15 * DAY_MS}))
            .await,
    );
    ada.sync().await.unwrap();
    eventually(&panel, "/partitions/default/clients", |answer| {
        answer["clients"][0]["updated_at_ms"] == 1_015 * DAY_MS
    })
    .await;
    let done = Panel::ok(panel.post(prune, json!({"min_retained": 2})).await);
    assert_eq!(
        done,
        json!({"partition": "default", "dry_run": false, "active_floor_seq": 6, "age_forced_seq": 0,
            "max_commit_seq": 6, "target_seq": 4, "previous_horizon_seq": 1, "horizon_seq": 4,
            "removed_commits": 3})
    );
    // Age overrules a client that is active; the horizon never falls.
    let body =
        json!({"min_retained": 1, "active_window_ms": 100 * DAY_MS, "age_force_ms": 10 * DAY_MS});
    let forced = Panel::ok(panel.post(prune, body).await);
    assert_eq!(forced["active_floor_seq"], 1);
    assert_eq!(forced["age_forced_seq"], 6);
    assert_eq!(forced["horizon_seq"], 5);
    let again = Panel::ok(panel.post(prune, json!({"min_retained": 6})).await);
    assert_eq!(again["horizon_seq"], 5);
    // Ben starts over and has everything.
    ben.sync().await.unwrap();
    assert_eq!(
        ben.replica().versioned_dump(),
        ada.replica().versioned_dump()
    );
    let reply = panel.post(prune, json!({"age_force_ms": -1})).await;
    assert_eq!(refusal(&reply), (422, "control.invalid_value"));
}

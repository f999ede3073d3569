//! Edits, the outbox and push results.

use ssp2::*;
use tidegate_client::*;

use crate::script::*;

#[tokio::test]
async fn the_first_round_only_acquires_the_log_epoch() {
    let script = Script::default();
    let mut client = SyncClient::new(ClientConfig::new("d"), schema(), &script);
    client
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    client.edit([insert("t1", "a", "x")]).unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    script.v3([applied("d-1", 1), start(true), end(1, None)]);
    // The bootstrap brought nothing: the client had nothing more to ask.
    let report = client.sync().await.unwrap();
    assert_eq!((report.rounds, report.settled, report.resets), (2, 1, 1));
    let requests = script.requests();
    assert_eq!(epoch(&requests[0]), None);
    assert!(pushes(&requests[0]).is_empty());
    assert!(matches!(requests[0].frames[1], RequestFrame::PullHeader(_)));
    assert_eq!(epoch(&requests[1]).as_deref(), Some(EPOCH));
    assert_eq!(pushes(&requests[1]).len(), 1);
}

#[tokio::test]
async fn wire_1_knows_no_epoch_and_sends_full_rows() {
    let script = Script::default();
    let config = ClientConfig::new("d").wire(WireVersion::V1);
    let mut client = SyncClient::new(config, schema(), &script);
    client.edit([insert("t1", "a", "x")]).unwrap();
    client
        .edit([Edit::update("todos", "t1").set("title", "y")])
        .unwrap();
    let bare = ResponseFrame::Header(ResponseHeader {
        required_schema_version: None,
        latest_schema_version: None,
        epoch: None,
    });
    script.answer(
        WireVersion::V1,
        vec![bare, applied("d-1", 1), applied("d-2", 2)],
    );
    client.sync().await.unwrap();
    let pushed = pushes(&script.last_request());
    let OperationKind::Upsert(payload) = &pushed[1].operations[0].kind else {
        panic!("no upsert")
    };
    let columns = &schema().table("todos").unwrap().columns.clone();
    assert_eq!(decode_row(columns, payload).unwrap(), todo("t1", "a", "y"));
    // Without the row at hand there is no full row to send.
    let error = client
        .edit([Edit::update("todos", "elsewhere").set("title", "y")])
        .unwrap_err();
    assert!(matches!(error, EditError::RowNotHeld { .. }));
}

#[tokio::test]
async fn wire_3_updates_are_sparse_and_carry_the_known_version() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client
        .edit([Edit::update("todos", "t1")
            .set("title", "y")
            .base(Base::Known)])
        .unwrap();
    script.v3([
        applied("d-1", 11),
        start(false),
        commit(11, vec![upsert(&todo("t1", "a", "y"), 3)]),
        end(11, None),
    ]);
    script.v3([start(false), end(11, None)]);
    client.sync().await.unwrap();
    let requests = script.requests();
    let operation = pushes(&requests[3]).remove(0).operations.remove(0);
    assert_eq!(operation.base_version, Some(2));
    let OperationKind::Upsert(payload) = &operation.kind else {
        panic!("no upsert")
    };
    let table = schema().table("todos").unwrap().clone();
    let sparse = decode_sparse_row(&table.columns, table.primary_key, payload).unwrap();
    let present: Vec<_> = sparse.iter().map(Option::is_some).collect();
    assert_eq!(present, [true, false, true, false, false, false]);
    assert_eq!(client.replica().version("todos", "t1"), Some(3));
    assert_eq!(client.outcome("d-1"), Some(&OutcomeStatus::Applied(11)));
}

#[tokio::test]
async fn offline_edits_show_at_once_and_partial_writes_to_absent_rows_do_not() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x"), todo("t2", "a", "x")]).await;
    client
        .edit([
            insert("t3", "a", "new"),
            Edit::update("todos", "t3").set("done", true),
            Edit::update("todos", "t1").set("title", "mine"),
            Edit::delete("todos", "t2"),
            Edit::update("todos", "gone").set("title", "?"),
        ])
        .unwrap();
    let replica = client.replica();
    assert_eq!(replica.row_ids("todos"), ["t1", "t3"]);
    assert_eq!(
        replica.row("todos", "t1").unwrap().text("title"),
        Some("mine")
    );
    assert_eq!(
        replica.row("todos", "t3").unwrap().get("done"),
        Some(&Value::Boolean(true))
    );
    assert_eq!(
        replica.versioned_dump(),
        "# lists\n# todos\n\
         @2 id=\"t1\", list_id=\"a\", title=\"mine\", done=false, position=null, notes=null\n\
         @- id=\"t3\", list_id=\"a\", title=\"new\", done=true, position=null, notes=null\n"
    );
}

#[tokio::test]
async fn a_commit_with_a_bad_edit_leaves_nothing_behind() {
    let script = Script::default();
    let mut client = synced(&script, &[]).await;
    let before = client.replica().canonical_dump();
    for bad in [
        Edit::update("todos", "t1").set("colour", "red"),
        Edit::upsert("todos").set("id", "t1"),
        Edit::delete("nowhere", "t1"),
    ] {
        assert!(client.edit([insert("t9", "a", "x"), bad]).is_err());
    }
    assert_eq!(client.edit([]), Err(EditError::Empty));
    assert_eq!(client.pending().count(), 0);
    assert_eq!(client.replica().canonical_dump(), before);
}

#[tokio::test]
async fn pending_writes_stay_visible_over_fresh_server_rows() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client
        .edit([Edit::update("todos", "t1").set("title", "mine")])
        .unwrap();
    // The result cannot be served yet; the row moved on meanwhile.
    let mut theirs = todo("t1", "a", "theirs");
    theirs[3] = Value::Boolean(true);
    script.v3([
        failed("d-1", "sync.idempotency_cache_miss"),
        start(false),
        commit(11, vec![upsert(&theirs, 3)]),
        end(11, None),
    ]);
    script.v3([
        failed("d-1", "sync.idempotency_cache_miss"),
        start(false),
        end(11, None),
    ]);
    let report = client.sync().await.unwrap();
    assert_eq!(report.pending, 1);
    let row = client.replica().row("todos", "t1").unwrap();
    assert_eq!(row.text("title"), Some("mine"));
    assert_eq!(row.get("done"), Some(&Value::Boolean(true)));
    assert!(client.outcomes().is_empty());
}

#[tokio::test]
async fn a_lost_acknowledgement_is_replayed_under_the_same_id_and_bytes() {
    let script = Script::default();
    let client = synced(&script, &[]).await;
    drop(client);
    let faults = Faults::none();
    let mut client = SyncClient::new(
        ClientConfig::new("d"),
        schema(),
        FaultyTransport::new(&script, faults.clone()),
    );
    client.edit([insert("t1", "a", "x")]).unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    script.v3([applied("d-1", 1)]);
    faults.pass();
    faults.push(Fault::DropResponse);
    assert!(client.sync().await.unwrap_err().retryable());
    assert_eq!(client.pending().count(), 1);
    script.v3([result(
        "d-1",
        PushStatus::Cached(1),
        vec![OperationOutcome::Applied],
    )]);
    faults.push(Fault::DropRequest);
    client.sync_through_losses(2).await.unwrap();
    assert_eq!(faults.injected(), 2);
    assert_eq!(client.outcome("d-1"), Some(&OutcomeStatus::Cached(1)));
    let requests = script.requests();
    assert_eq!(requests.len(), 6, "a dropped request never arrives");
    assert_eq!(pushes(&requests[4]), pushes(&requests[5]));
}

#[tokio::test]
async fn a_rejected_commit_disappears_and_later_ones_stay() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client.edit([Edit::delete("todos", "t1")]).unwrap();
    client.edit([insert("t2", "a", "later")]).unwrap();
    script.v3([
        failed("d-1", "sync.forbidden"),
        ResponseFrame::PushResultDetails(PushResultDetails {
            client_commit_id: "d-1".into(),
            entries: vec![DetailEntry {
                op_index: 0,
                details_json: r#"{"reason":"why"}"#.into(),
            }],
        }),
        failed("d-2", "sync.idempotency_cache_miss"),
        start(false),
        end(10, None),
    ]);
    script.v3([
        failed("d-2", "sync.idempotency_cache_miss"),
        start(false),
        end(10, None),
    ]);
    client.sync().await.unwrap();
    assert_eq!(client.replica().row_ids("todos"), ["t1", "t2"]);
    let Some(OutcomeStatus::Rejected(rejection)) = client.outcome("d-1") else {
        panic!("not rejected")
    };
    assert_eq!(rejection.code, "sync.forbidden");
    assert_eq!(rejection.details.as_deref(), Some(r#"{"reason":"why"}"#));
    assert_eq!(rejection.commit.operations.len(), 1);
}

#[tokio::test]
async fn a_conflict_surfaces_the_server_row_and_the_conflicting_columns() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client
        .edit([Edit::update("todos", "t1")
            .set("title", "mine")
            .base(Base::Known)])
        .unwrap();
    let theirs = todo("t1", "a", "theirs");
    script.v3([
        conflict("d-1", &theirs),
        start(false),
        commit(11, vec![upsert(&theirs, 5)]),
        end(11, None),
    ]);
    script.v3([start(false), end(11, None)]);
    client.sync().await.unwrap();
    let open = client.conflicts()[0].clone();
    assert_eq!(open.server_row, theirs);
    assert_eq!(open.server_version, 5);
    assert_eq!(open.conflict_columns, ["title"]);
    assert_eq!(
        client.replica().row("todos", "t1").unwrap().text("title"),
        Some("theirs")
    );

    let id = client.resolve("d-1", Resolution::KeepLocal).unwrap();
    assert_eq!(id, "d-2");
    assert!(client.conflicts().is_empty());
    assert_eq!(
        client.replica().row("todos", "t1").unwrap().text("title"),
        Some("mine")
    );
    assert_eq!(
        client.pending().next().unwrap().operations[0].base_version,
        Some(5)
    );
    assert_eq!(client.resolve("d-1", Resolution::KeepServer), None);
}

#[tokio::test]
async fn policies_settle_conflicts_by_themselves() {
    for (resolution, pending) in [(Resolution::KeepServer, 0), (Resolution::KeepLocal, 1)] {
        let script = Script::default();
        let mut config = ClientConfig::new("d");
        config.conflicts = ConflictPolicy::Always(resolution);
        let mut client = SyncClient::new(config, schema(), &script);
        client
            .edit([insert("t1", "a", "mine").base(Base::Absent)])
            .unwrap();
        script.answer(WireVersion::V3, vec![header(true)]);
        script.v3([conflict("d-1", &todo("t1", "a", "theirs"))]);
        script.v3([failed("d-2", "sync.idempotency_cache_miss")]);
        client.sync().await.unwrap();
        assert!(client.conflicts().is_empty());
        assert_eq!(client.pending().count(), pending);
        assert!(matches!(
            client.outcome("d-1"),
            Some(OutcomeStatus::Conflict(_))
        ));
    }
}

#[tokio::test]
async fn pushes_go_in_order_and_whole_within_the_operation_budget() {
    let script = Script::default();
    let mut config = ClientConfig::new("d");
    config.max_operations = 3;
    let mut client = SyncClient::new(config, schema(), &script);
    let many = |n: usize| (0..n).map(|at| insert(&format!("t{at}"), "a", "x"));
    client.edit(many(2)).unwrap();
    client.edit(many(2)).unwrap();
    client.edit(many(1)).unwrap();
    client.edit(many(4)).unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    script.v3([applied("d-1", 1)]);
    script.v3([applied("d-2", 2), applied("d-3", 3)]);
    script.v3([applied("d-4", 4)]);
    client.sync().await.unwrap();
    let sent: Vec<Vec<String>> = script.requests()[1..]
        .iter()
        .map(|request| {
            pushes(request)
                .into_iter()
                .map(|c| c.client_commit_id)
                .collect()
        })
        .collect();
    assert_eq!(sent, [vec!["d-1"], vec!["d-2", "d-3"], vec!["d-4"]]);
}

#[tokio::test]
async fn a_refused_request_changes_nothing() {
    let script = Script::default();
    let mut client = synced(&script, &[]).await;
    client.edit([insert("t1", "a", "x")]).unwrap();
    let body = r#"{"code":"sync.rate_limited","category":"rate-limited","retryable":true,
        "recommendedAction":"retryLater","message":"slow down","details":{"n":1}}"#;
    let refusal = TransportError::Refused {
        status: 429,
        error: serde_json::from_str(body).unwrap(),
    };
    script.answers.lock().unwrap().push_back(Err(refusal));
    let error = client.sync().await.unwrap_err();
    assert_eq!(error.code(), Some("sync.rate_limited"));
    assert!(error.retryable());
    assert_eq!(client.pending().count(), 1);
}

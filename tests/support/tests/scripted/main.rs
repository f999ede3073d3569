//! The client against a transport that answers by script: what it asks, and what it
//! makes of each kind of answer.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod script;

use bytes::Bytes;
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
async fn a_log_reset_drops_the_replica_and_keeps_the_outbox() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client.edit([insert("t2", "a", "mine")]).unwrap();
    script.answer(WireVersion::V3, vec![header_of("epoch-2", true)]);
    let _ = client.sync().await.unwrap_err();
    assert_eq!(client.log_epoch(), Some("epoch-2"));
    assert_eq!(client.replica().row_ids("todos"), ["t2"]);
    let request = script.last_request();
    assert_eq!(epoch(&request).as_deref(), Some("epoch-2"));
    assert_eq!(subscriptions(&request)[0].cursor, -1);
    assert_eq!(pushes(&request)[0].client_commit_id, "d-1");
}

#[tokio::test]
async fn a_schema_floor_stops_syncing_until_an_upgrade() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client.edit([insert("t2", "a", "mine")]).unwrap();
    script.answer(
        WireVersion::V3,
        vec![ResponseFrame::Header(ResponseHeader {
            required_schema_version: Some(2),
            latest_schema_version: Some(3),
            epoch: Some(EpochHeader {
                log_epoch: "epoch-2".into(),
                reset_required: true,
            }),
        })],
    );
    let error = client.sync().await.unwrap_err();
    assert_eq!(error.code(), Some("sync.client_schema_unsupported"));
    let asked = script.requests().len();
    assert!(client.sync().await.is_err());
    assert_eq!(script.requests().len(), asked, "no request while stopped");
    assert_eq!(
        client.log_epoch(),
        Some(EPOCH),
        "the floor comes before the reset"
    );

    let newer = SCHEMA
        .replace("\"schemaVersion\": 1", "\"schemaVersion\": 2")
        .replace(
            r#"{ "name": "notes", "type": "string", "nullable": true }"#,
            r#"{ "name": "notes", "type": "string", "nullable": true },
           { "name": "due", "type": "integer", "nullable": true }"#,
        );
    client.upgrade_schema(ClientSchema::from_ir_json(&newer).unwrap());
    let _ = client.sync().await.unwrap_err();
    let request = script.last_request();
    let RequestFrame::Header(sent) = &request.frames[0] else {
        panic!("no header")
    };
    assert_eq!(sent.schema_version, 2);
    assert_eq!(pushes(&request)[0].client_commit_id, "d-1");
    assert_eq!(subscriptions(&request)[0].cursor, -1);
}

#[tokio::test]
async fn an_upgrade_drops_commits_the_new_schema_cannot_express() {
    let script = Script::default();
    let mut client = synced(&script, &[]).await;
    client
        .edit([insert("t2", "a", "x").set("notes", "n")])
        .unwrap();
    let newer = SCHEMA.replace("\"notes\"", "\"remarks\"");
    client.upgrade_schema(ClientSchema::from_ir_json(&newer).unwrap());
    assert_eq!(client.pending().count(), 0);
    assert_eq!(
        client.outcomes()[0].code(),
        Some("sync.outbox_incompatible")
    );
    assert_eq!(client.replica().len("todos"), 0);
}

#[tokio::test]
async fn a_paged_bootstrap_resumes_with_the_token_byte_for_byte() {
    let script = Script::default();
    let mut client = SyncClient::new(ClientConfig::new("d"), schema(), &script);
    client
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    let token = "{ \"opaque\" :1}";
    for (rows, token) in [("t1", Some(token)), ("t2", None)] {
        script.v3([
            start(true),
            ResponseFrame::SegmentInline(segment(&[todo(rows, "a", "x")])),
            end(7, token),
        ]);
    }
    script.v3([start(false), end(7, None)]);
    client.sync().await.unwrap();
    assert_eq!(client.replica().row_ids("todos"), ["t1", "t2"]);
    let sent = subscriptions(&script.requests()[2]).remove(0);
    assert_eq!(sent.cursor, 7);
    assert_eq!(sent.bootstrap_state.as_deref(), Some(token));
    assert!(client.subscription("s").unwrap().is_complete());
}

#[tokio::test]
async fn a_resumed_bootstrap_under_another_pin_starts_afresh() {
    let script = Script::default();
    let mut client = SyncClient::new(ClientConfig::new("d"), schema(), &script);
    client
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    let page = |id| ResponseFrame::SegmentInline(segment(&[todo(id, "a", "x")]));
    script.v3([start(true), page("gone"), end(7, Some("{}"))]);
    // The token had become useless: pinned anew, and "gone" is not there any more.
    script.v3([start(true), page("t1"), end(9, None)]);
    script.v3([start(true), page("t1"), end(9, None)]);
    script.v3([start(false), end(9, None)]);
    client.sync().await.unwrap();
    assert_eq!(client.replica().row_ids("todos"), ["t1"]);
    assert_eq!(subscriptions(&script.requests()[3])[0].cursor, -1);
}

#[tokio::test]
async fn a_reset_subscription_keeps_its_rows_until_the_bootstrap_replaces_them() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x"), todo("t2", "a", "x")]).await;
    script.v3([
        stopped(SubStatus::Reset, "sync.cursor_expired"),
        end(10, None),
    ]);
    let _ = client.sync().await.unwrap_err();
    assert_eq!(client.replica().row_ids("todos"), ["t1", "t2"]);
    assert_eq!(subscriptions(&script.last_request())[0].cursor, -1);
    script.v3([
        start(true),
        ResponseFrame::SegmentInline(segment(&[todo("t2", "a", "x")])),
        end(40, None),
    ]);
    script.v3([start(false), end(40, None)]);
    client.sync().await.unwrap();
    assert_eq!(client.replica().row_ids("todos"), ["t2"]);
}

#[tokio::test]
async fn a_bootstrap_without_rows_clears_what_was_there() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    script.v3([
        stopped(SubStatus::Reset, "sync.cursor_expired"),
        end(10, None),
    ]);
    script.v3([start(true), end(40, None)]);
    client.sync().await.unwrap();
    assert_eq!(client.replica().len("todos"), 0);
}

#[tokio::test]
async fn a_revocation_purges_the_effective_scopes_and_drops_provable_commits() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client.edit([insert("t2", "a", "in scope")]).unwrap();
    client.edit([insert("t3", "b", "elsewhere")]).unwrap();
    client.edit([Edit::delete("todos", "t1")]).unwrap();
    let miss = "sync.idempotency_cache_miss";
    script.v3([
        failed("d-1", miss),
        failed("d-2", miss),
        failed("d-3", miss),
        stopped(SubStatus::Revoked, "sync.scope_revoked"),
        end(10, None),
    ]);
    client.sync().await.unwrap();
    assert_eq!(client.replica().row_ids("todos"), ["t3"]);
    let pending: Vec<_> = client
        .pending()
        .map(|c| c.client_commit_id.as_str())
        .collect();
    assert_eq!(pending, ["d-2", "d-3"]);
    assert_eq!(client.outcomes()[0].code(), Some("sync.scope_revoked"));
    let sub = client.subscription("s").unwrap();
    assert!(
        matches!(&sub.status, SubscriptionStatus::Revoked { reason } if reason == "sync.scope_revoked")
    );
    let _ = client.sync().await;
    assert!(
        subscriptions(&script.last_request()).is_empty(),
        "not pulled any more"
    );
}

#[tokio::test]
async fn a_referenced_segment_is_downloaded_verified_and_applied() {
    let bytes = segment(&[todo("t1", "a", "x")]);
    let reference = |id: &str| {
        ResponseFrame::SegmentRef(SegmentRef {
            segment_id: id.into(),
            media_type: MediaType::Rows,
            table: "todos".into(),
            byte_length: 1,
            row_count: 1,
            as_of_commit_seq: 7,
            scope_digest: String::new(),
            row_cursor: None,
            next_row_cursor: None,
            url: None,
        })
    };
    let script = Script::default();
    let mut client = SyncClient::new(ClientConfig::new("d"), schema(), &script);
    client
        .subscribe("s", "todos", [("list_id", vec!["b", "a", "b"])])
        .unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    // Expired at first: the subscription makes no progress and is pulled again.
    let expired = TransportError::Refused {
        status: 404,
        error: None,
    };
    script
        .segments
        .lock()
        .unwrap()
        .extend([Err(expired), Ok(bytes.clone())]);
    for _ in 0..2 {
        script.v3([start(true), reference(&segment_id(&bytes)), end(7, None)]);
    }
    script.v3([start(false), end(7, None)]);
    let report = client.sync().await.unwrap();
    assert_eq!((report.expired_segments, report.segments), (1, 1));
    assert_eq!(client.replica().row_ids("todos"), ["t1"]);
    assert_eq!(
        script.downloads.lock().unwrap()[1].scopes,
        r#"{"list_id":["a","b"]}"#
    );

    let mut other = SyncClient::new(ClientConfig::new("e"), schema(), &script);
    other
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    script
        .segments
        .lock()
        .unwrap()
        .push_back(Ok(segment(&[todo("t9", "a", "x")])));
    script.v3([start(true), reference(&segment_id(&bytes)), end(7, None)]);
    assert!(matches!(other.sync().await, Err(ClientError::Protocol(_))));
    assert!(other.replica().is_empty());
}

#[tokio::test]
async fn an_error_frame_keeps_finished_subscriptions_and_aborts_the_open_one() {
    let script = Script::default();
    let mut client = SyncClient::new(ClientConfig::new("d"), schema(), &script);
    client
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    client
        .subscribe("z", "todos", [("list_id", vec!["z"])])
        .unwrap();
    script.answer(WireVersion::V3, vec![header(true)]);
    let ResponseFrame::SubStart(mut second) = start(true) else {
        panic!("no start")
    };
    second.id = "z".into();
    script.v3([
        start(true),
        ResponseFrame::SegmentInline(segment(&[todo("t1", "a", "x")])),
        end(7, None),
        ResponseFrame::SubStart(second),
        ResponseFrame::Error(ErrorFrame {
            code: "sync.internal_error".into(),
            message: "broken".into(),
            category: "internal".into(),
            retryable: true,
            recommended_action: "retryLater".into(),
            details: None,
        }),
    ]);
    let error = client.sync().await.unwrap_err();
    assert_eq!(error.code(), Some("sync.internal_error"));
    assert!(error.retryable());
    assert_eq!(client.subscription("s").unwrap().cursor, 7);
    assert_eq!(client.subscription("z").unwrap().cursor, -1);
    assert_eq!(client.replica().row_ids("todos"), ["t1"]);
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
async fn answers_that_do_not_answer_the_request_are_protocol_errors() {
    let wrong: [Vec<ResponseFrame>; 5] = [
        vec![header(false), end_of("other"), end(1, None)],
        vec![header(false)],
        vec![header_of("epoch-9", false), start(false), end(1, None)],
        vec![header(false), applied("x", 1), start(false), end(1, None)],
        vec![
            header(false),
            start(false),
            commit(11, vec![upsert(&todo("t1", "a", "x"), 1), broken()]),
            end(1, None),
        ],
    ];
    for frames in wrong {
        let script = Script::default();
        let mut client = synced(&script, &[]).await;
        script.answer(WireVersion::V3, frames);
        assert!(matches!(client.sync().await, Err(ClientError::Protocol(_))));
        assert!(
            client.replica().is_empty(),
            "a commit applies whole or not at all"
        );
        assert_eq!(client.subscription("s").unwrap().cursor, 10);
    }
}

#[tokio::test]
async fn a_subscription_id_stands_for_one_intent() {
    let script = Script::default();
    let mut client = synced(&script, &[todo("t1", "a", "x")]).await;
    client
        .subscribe("s", "todos", [("list_id", vec!["a"])])
        .unwrap();
    assert_eq!(client.subscription("s").unwrap().cursor, 10);
    assert!(
        client
            .subscribe("s", "todos", [("list_id", vec!["b"])])
            .is_err()
    );
    client.unsubscribe("s");
    assert!(client.replica().is_empty());
    assert!(client.subscriptions().is_empty());
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

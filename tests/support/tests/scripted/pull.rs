//! Pulls: bootstrap, windows, resets, revocation, segments.

use ssp2::*;
use tidegate_client::*;

use crate::script::*;

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

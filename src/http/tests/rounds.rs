//! Rounds: pushes, pulls, bootstraps, and what ends them early.

use super::*;

fn statuses(response: &Response) -> Vec<PushStatus> {
    response
        .frames
        .iter()
        .filter_map(|frame| match frame {
            ResponseFrame::PushResult(result) => Some(result.status),
            _ => None,
        })
        .collect()
}

fn commits(response: &Response) -> Vec<i64> {
    response
        .frames
        .iter()
        .filter_map(|frame| match frame {
            ResponseFrame::Commit(commit) => Some(commit.commit_seq),
            _ => None,
        })
        .collect()
}

fn end(response: &Response) -> (i64, Option<String>) {
    match response.frames.last() {
        Some(ResponseFrame::SubEnd(end)) => (end.next_cursor, end.bootstrap_state.clone()),
        other => panic!("{other:?}"),
    }
}

#[actix_web::test]
async fn a_combined_round_pushes_and_pulls_what_it_pushed() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    // Cursor 0 on an empty log: incremental, from memory.
    let response = device
        .round(
            vec![commit("c1", [1], "one"), commit("c2", [2, 3], "two")],
            Some(vec![todos(0, None)]),
        )
        .await
        .message();
    assert_eq!(
        statuses(&response),
        [PushStatus::Applied(1), PushStatus::Applied(2)]
    );
    assert_eq!(commits(&response), [1, 2]);
    assert_eq!(end(&response), (2, None));

    // The same request again: results are replayed, the pull is the same.
    let again = device
        .round(
            vec![commit("c1", [1], "one"), commit("c2", [2, 3], "two")],
            Some(vec![todos(0, None)]),
        )
        .await
        .message();
    assert_eq!(
        statuses(&again),
        [PushStatus::Cached(1), PushStatus::Cached(2)]
    );
    assert_eq!(again.frames[3..], response.frames[3..]);

    // Caught up: nothing but the section.
    let idle = device.round(vec![], Some(vec![todos(2, None)])).await;
    assert_eq!(end(&idle.message()), (2, None));
    assert!(commits(&idle.message()).is_empty());
}

#[actix_web::test]
async fn the_tail_and_the_database_give_the_same_answer() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    for number in 0..5 {
        let pushed = commit(&format!("c{number}"), [number, number + 1], "x");
        device.round(vec![pushed], None).await.message();
    }
    let from_tail = device.round(vec![], Some(vec![todos(1, None)])).await;
    assert_eq!(commits(&from_tail.message()), [2, 3, 4, 5]);
    // Another process on the same database has no tail.
    let other = server::prepare(
        service.config.clone(),
        service.schema.clone(),
        service.store(),
        Hooks::development(&service.schema),
    )
    .await
    .unwrap();
    let elsewhere = Device {
        service: &other,
        epoch: device.epoch.clone(),
        encoding: None,
    };
    let from_database = elsewhere.round(vec![], Some(vec![todos(1, None)])).await;
    assert_eq!(from_database.2, from_tail.2);
}

#[actix_web::test]
async fn a_request_over_the_operation_cap_applies_nothing() {
    let service = service(|config| config.limits.max_operations = 3).await;
    let device = Device::joined(&service).await;
    let reply = device
        .round(
            vec![commit("c1", [1, 2], "x"), commit("c2", [3, 4], "x")],
            None,
        )
        .await;
    assert_eq!(reply.code(), (400, "sync.too_many_operations".to_owned()));
    let fine = device.round(vec![commit("c1", [1], "x")], None).await;
    assert_eq!(statuses(&fine.message()), [PushStatus::Applied(1)]);
}

#[actix_web::test]
async fn a_client_id_belongs_to_its_first_actor() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    device
        .round(vec![], Some(vec![todos(0, None)]))
        .await
        .message();
    let body = device.body(vec![], Some(vec![todos(0, None)]));
    let other = sync_request(body).insert_header(("authorization", "Bearer ben"));
    let reply = send(&service, other).await;
    assert_eq!(reply.code(), (400, "sync.invalid_client_id".to_owned()));
}

#[actix_web::test]
async fn partitions_do_not_see_each_other() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    device
        .round(vec![commit("c1", [1], "x")], None)
        .await
        .message();
    let body = device.body(vec![], Some(vec![todos(-1, None)]));
    let other = sync_request(body).insert_header(("x-tidegate-partition", "other"));
    let response = send(&service, other).await.message();
    // Its epoch is another one, so the client is told to reset first.
    let [ResponseFrame::Header(header)] = &response.frames[..] else {
        panic!("{response:?}");
    };
    assert!(header.epoch.as_ref().unwrap().reset_required);
}

/// All rows of a bootstrap in pages, and how many answers it took.
async fn bootstrap(device: &Device<'_>, page_rows: i32) -> (usize, usize) {
    let (mut rows, mut answers, mut state, mut cursor) = (0, 0, None, -1);
    loop {
        let pull = vec![pull_header(0b01, page_rows), todos(cursor, state)];
        let response = device.round(vec![], Some(pull)).await.message();
        answers += 1;
        for frame in &response.frames {
            if let ResponseFrame::SegmentInline(bytes) = frame {
                let segment = ssp2::decode_segment(bytes.clone()).unwrap();
                rows += segment.blocks.iter().map(Vec::len).sum::<usize>();
            }
        }
        (cursor, state) = end(&response);
        if state.is_none() {
            return (rows, answers);
        }
    }
}

#[actix_web::test]
async fn a_bootstrap_goes_on_page_by_page_until_every_row_was_sent() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    assert_eq!(bootstrap(&device, 0).await, (0, 1));
    device
        .round(vec![commit("c1", 0..100, "x")], None)
        .await
        .message();
    assert_eq!(bootstrap(&device, 0).await, (100, 1));
    assert_eq!(bootstrap(&device, 10).await, (100, 3));
    assert_eq!(bootstrap(&device, 7).await, (100, 4));
}

#[actix_web::test]
async fn a_full_answer_ends_early_and_the_client_pulls_on() {
    let service = service(|config| config.limits.max_pull_bytes = 1_000).await;
    let device = Device::joined(&service).await;
    let title = "x".repeat(400);
    device
        .round(vec![commit("c1", 0..20, &title)], None)
        .await
        .message();
    let (rows, answers) = bootstrap(&device, 5).await;
    assert_eq!(rows, 20);
    assert!(answers > 2, "{answers}");
}

#[actix_web::test]
async fn subscriptions_and_scope_values_are_bounded_per_request() {
    let service = service(|config| {
        config.limits.max_subscriptions = 2;
        config.limits.max_scope_values = 3;
    })
    .await;
    let device = Device::joined(&service).await;
    let ask = |values: &[usize]| {
        let subscriptions = values.iter().enumerate().map(|(number, &count)| {
            let RequestFrame::Subscription(mut subscription) = todos(0, None) else {
                panic!("a subscription");
            };
            subscription.id = format!("s{number}");
            let lists: Vec<String> = (0..count).map(|list| format!("l{list}")).collect();
            subscription.scopes = [("list_id", lists)].into_iter().collect();
            RequestFrame::Subscription(subscription)
        });
        Some(subscriptions.collect())
    };
    let refused = (400, "sync.invalid_subscription".to_owned());
    device.round(vec![], ask(&[1, 2])).await.message();
    assert_eq!(device.round(vec![], ask(&[1, 1, 1])).await.code(), refused);
    assert_eq!(device.round(vec![], ask(&[2, 2])).await.code(), refused);
}

#[actix_web::test]
async fn large_answers_stream_in_every_coding() {
    let service = service(|_| {}).await;
    let mut device = Device::joined(&service).await;
    let title = "long title ".repeat(40);
    device
        .round(vec![commit("c1", 0..500, &title)], None)
        .await
        .message();
    let pull = || Some(vec![pull_header(0b01, 0), todos(-1, None)]);
    let plain = device.round(vec![], pull()).await;
    assert_eq!(plain.header("content-encoding"), None);
    for encoding in ["zstd", "gzip"] {
        device.encoding = Some(encoding);
        let reply = device.round(vec![], pull()).await;
        assert_eq!(reply.header("content-encoding"), Some(encoding));
        assert!(reply.2.len() < plain.2.len() / 4);
        assert_eq!(reply.message(), plain.message());
    }
}

#[actix_web::test]
async fn gzip_requests_are_accepted() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let body = device.body(vec![commit("c1", 0..50, "x")], None);
    let packed =
        crate::http::compression::compress(crate::http::compression::Coding::Gzip, &body).unwrap();
    assert!(packed.len() < body.len());
    let request = sync_request(packed).insert_header(("content-encoding", "gzip"));
    let response = send(&service, request).await.message();
    assert_eq!(statuses(&response), [PushStatus::Applied(1)]);
}

#[actix_web::test]
async fn an_ungranted_subscription_is_revoked() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let RequestFrame::Subscription(mut empty) = todos(7, None) else {
        unreachable!()
    };
    empty.scopes = ssp2::ScopeLists::new();
    let pull = vec![RequestFrame::Subscription(empty)];
    let response = device.round(vec![], Some(pull)).await.message();
    let ResponseFrame::SubStart(start) = &response.frames[1] else {
        panic!("{response:?}");
    };
    assert_eq!(start.status, SubStatus::Revoked);
    assert_eq!(end(&response), (7, None));
}

fn code_and_details(reply: &Reply) -> (u16, Json, Json) {
    let json = reply.json();
    (reply.0, json["code"].clone(), json["details"].clone())
}

#[actix_web::test]
async fn a_process_behind_the_published_schema_answers_schema_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("a.db").display());
    let old = service(|config| config.database.url = url.clone()).await;
    let device = Device::joined(&old).await;
    device
        .round(vec![commit("c1", [1], "x")], None)
        .await
        .message();

    let newer = folder.path().join("v2.json");
    let schema = server::DEMO_SCHEMA.replacen("\"version\": 1", "\"version\": 2", 1);
    std::fs::write(&newer, schema).unwrap();
    let _new = service(|config| {
        config.database.url = url;
        config.schema.file = newer;
    })
    .await;

    let expected = (
        503,
        json!("sync.schema_not_ready"),
        json!({"storedSchemaVersion": 2, "runningSchemaVersion": 1}),
    );
    let pushed = device.round(vec![commit("c2", [2], "x")], None).await;
    assert_eq!(code_and_details(&pushed), expected);
    let pulled = device.round(vec![], Some(vec![todos(0, None)])).await;
    assert_eq!(code_and_details(&pulled), expected);
    let downloaded = send(&old, segments::download("sha256:00", "{}")).await;
    assert_eq!(code_and_details(&downloaded), expected);
}

#[actix_web::test]
async fn a_rotated_epoch_resets_clients_and_forgets_what_memory_held() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let response = device
        .round(vec![commit("c1", [1], "x")], Some(vec![todos(0, None)]))
        .await
        .message();
    assert_eq!(commits(&response), [1]);
    service
        .store()
        .rotate_epoch(&"default".into(), "restored".into(), 1)
        .await
        .unwrap();

    let reset = device
        .round(vec![commit("c2", [2], "x")], Some(vec![todos(0, None)]))
        .await
        .message();
    let [ResponseFrame::Header(header)] = &reset.frames[..] else {
        panic!("{reset:?}");
    };
    let epoch = header.epoch.as_ref().unwrap();
    assert_eq!(
        (epoch.log_epoch.as_str(), epoch.reset_required),
        ("restored", true)
    );

    // Nothing of the refused push was applied, and the log still reads the same.
    let again = Device::joined(&service).await;
    let response = again.round(vec![], Some(vec![todos(0, None)])).await;
    assert_eq!(commits(&response.message()), [1]);

    // Wire 1 knows no epochs: it is refused from now on.
    let frames = vec![
        RequestFrame::Header(RequestHeader {
            client_id: "old-phone".to_owned(),
            schema_version: 1,
            log_epoch: None,
        }),
        pull_header(0b11, 0),
    ];
    let version = WireVersion::V1;
    let body = ssp2::encode_request(&Request { version, frames }).unwrap();
    let reply = send(&service, sync_request(body)).await;
    assert_eq!(
        reply.code(),
        (400, "sync.client_wire_unsupported".to_owned())
    );
}

#[actix_web::test]
async fn a_client_of_another_schema_is_answered_by_the_floor_alone() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    for schema_version in [2, 99] {
        let frames = vec![
            RequestFrame::Header(RequestHeader {
                client_id: "phone".to_owned(),
                schema_version,
                log_epoch: device.epoch.clone(),
            }),
            RequestFrame::PushCommit(commit("c1", [1], "x")),
        ];
        let version = WireVersion::V3;
        let body = ssp2::encode_request(&Request { version, frames }).unwrap();
        let response = send(&service, sync_request(body)).await.message();
        let [ResponseFrame::Header(header)] = &response.frames[..] else {
            panic!("{response:?}");
        };
        assert_eq!(header.required_schema_version, Some(1));
        assert_eq!(header.latest_schema_version, Some(1));
        assert!(!header.epoch.as_ref().unwrap().reset_required);
    }
    let response = device.round(vec![], Some(vec![todos(0, None)])).await;
    assert!(commits(&response.message()).is_empty());
}

//! The recorded request that the README sends: it must end in a success.

use super::*;

const RECORDED: &[u8] = include_bytes!("../../../config/first-request.bin");

/// One todo, pushed, and a pull of the list it is on; wire 1, which needs no log epoch.
fn request() -> Bytes {
    let schema = tidegate_engine::schema::Schema::load(server::DEMO_SCHEMA).unwrap();
    let row = [
        Value::Text("milk".to_owned()),
        Value::Text("groceries".to_owned()),
        Value::Text("Buy milk".to_owned()),
        Value::Boolean(false),
        Value::Null,
        Value::Null,
    ];
    let row = ssp2::encode_row(&schema.table("todos").unwrap().columns, &row).unwrap();
    let frames = vec![
        RequestFrame::Header(RequestHeader {
            client_id: "first-device".to_owned(),
            schema_version: 1,
            log_epoch: None,
        }),
        RequestFrame::PushCommit(PushCommit {
            client_commit_id: "first-commit".to_owned(),
            operations: vec![Operation {
                table: "todos".to_owned(),
                row_id: "milk".to_owned(),
                base_version: None,
                kind: OperationKind::Upsert(row),
            }],
        }),
        pull_header(0b11, 0),
        RequestFrame::Subscription(Subscription {
            id: "groceries".to_owned(),
            table: "todos".to_owned(),
            scopes: [("list_id", vec!["groceries".to_owned()])]
                .into_iter()
                .collect(),
            params: None,
            cursor: -1,
            bootstrap_state: None,
        }),
    ];
    ssp2::encode_request(&Request {
        version: WireVersion::V1,
        frames,
    })
    .unwrap()
}

#[actix_web::test]
async fn the_recorded_request_is_applied_and_answered_with_its_row() {
    let built = request();
    assert!(
        built == RECORDED,
        "record {built:?} as config/first-request.bin"
    );
    let service = service(|_| {}).await;
    for status in [PushStatus::Applied(1), PushStatus::Cached(1)] {
        let reply = send(&service, sync_request(Bytes::from_static(RECORDED))).await;
        let frames = reply.message().frames;
        let pushed = frames.iter().find_map(|frame| match frame {
            ResponseFrame::PushResult(result) => Some(result.status),
            _ => None,
        });
        assert_eq!(pushed, Some(status));
        let rows = frames.iter().find_map(|frame| match frame {
            ResponseFrame::SegmentInline(bytes) => ssp2::decode_segment(bytes.clone()).ok(),
            _ => None,
        });
        assert_eq!(rows.unwrap().blocks.concat().len(), 1);
    }
}

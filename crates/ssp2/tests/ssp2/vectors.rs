//! The golden vectors of every wire version.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use ssp2::*;

use crate::fixtures;

/// The cases of a manifest's list as (path of the case's file, case).
fn cases(directory: &str, list: &str, file: &str) -> Vec<(String, Json)> {
    let manifest = fixtures::json(&format!("vectors/{directory}/manifest.json"));
    let cases = manifest[list].as_array().unwrap();
    assert!(!cases.is_empty());
    cases
        .iter()
        .map(|case| {
            let path = format!("vectors/{directory}/{}", case[file].as_str().unwrap());
            (path, case.clone())
        })
        .collect()
}

fn check_valid(directory: &str, kind: Kind) {
    for (path, case) in cases(directory, "cases", "bin") {
        let bytes = fixtures::bytes(&path);
        let expected = fixtures::json(&format!(
            "vectors/{directory}/{}",
            case["json"].as_str().unwrap()
        ));
        let (found, rendered) =
            render_bytes(bytes.clone()).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found, kind, "{path}");
        assert_eq!(rendered, expected, "{path}");
        // Equal as text too: the fields stand in the order of their tables (§11.1 rule 2).
        assert_eq!(rendered.to_string(), expected.to_string(), "{path}");
        assert_eq!(reencode(bytes.clone()).unwrap(), bytes, "{path}");
    }
}

fn check_invalid(directory: &str, decode: impl Fn(Bytes) -> Option<DecodeError>) {
    for (path, case) in cases(directory, "invalid", "bin") {
        let error = decode(fixtures::bytes(&path)).unwrap_or_else(|| panic!("{path} decodes"));
        assert_eq!(error.code.as_str(), case["error"], "{path}");
    }
}

#[test]
fn request_vectors() {
    check_valid("v1-v2/request", Kind::Request);
    check_invalid("v1-v2/request", |bytes| decode_request(bytes).err());
}

#[test]
fn response_vectors() {
    check_valid("v1-v2/response", Kind::Response);
    check_invalid("v1-v2/response", |bytes| decode_response(bytes).err());
}

#[test]
fn segment_vectors() {
    check_valid("v1-v2/segment", Kind::Segment);
    check_invalid("v1-v2/segment", |bytes| decode_segment(bytes).err());
    check_invalid("v1-v2/segment", |bytes| {
        ssp2::segment::validate(&bytes).err()
    });
}

fn v3_columns() -> (Vec<Column>, usize) {
    let manifest = fixtures::json("vectors/v3/manifest.json");
    let columns: Vec<Column> = manifest["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| Column {
            name: column["name"].as_str().unwrap().to_owned(),
            ty: ColumnType::from_name(column["type"].as_str().unwrap()).unwrap(),
            nullable: column["nullable"].as_bool().unwrap(),
        })
        .collect();
    let key = columns
        .iter()
        .position(|column| column.name == manifest["primaryKey"])
        .unwrap();
    (columns, key)
}

/// The table of the version 3 messages.
fn task_columns() -> Vec<Column> {
    [
        ("id", ColumnType::String),
        ("project_id", ColumnType::String),
        ("title", ColumnType::String),
        ("done", ColumnType::Boolean),
    ]
    .map(|(name, ty)| Column {
        name: name.to_owned(),
        ty,
        nullable: false,
    })
    .to_vec()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn expected_value(ty: ColumnType, value: &Json) -> Value {
    match ty {
        _ if value.is_null() => Value::Null,
        ColumnType::Integer => Value::Integer(value.as_i64().unwrap()),
        ColumnType::Float => Value::Float(value.as_f64().unwrap()),
        ColumnType::Boolean => Value::Boolean(value.as_bool().unwrap()),
        ColumnType::Bytes | ColumnType::Crdt => Value::Bytes(
            STANDARD
                .decode(value["base64"].as_str().unwrap())
                .unwrap()
                .into(),
        ),
        _ => Value::Text(value.as_str().unwrap().to_owned()),
    }
}

#[test]
fn sparse_row_vectors() {
    let (columns, key) = v3_columns();
    for (path, case) in cases("v3", "cases", "bin") {
        let bytes = fixtures::bytes(&path);
        let row = decode_sparse_row(&columns, key, &bytes).unwrap();
        let expected: SparseRow = columns
            .iter()
            .map(|column| Some(expected_value(column.ty, case["values"].get(&column.name)?)))
            .collect();
        assert_eq!(row, expected, "{path}");
        assert_eq!(
            encode_sparse_row(&columns, key, &row).unwrap(),
            bytes,
            "{path}"
        );
        let rendered = render_sparse_row(&columns, key, &bytes).unwrap();
        let present: Vec<&String> = case["values"].as_object().unwrap().keys().collect();
        assert_eq!(
            rendered["values"]
                .as_object()
                .unwrap()
                .keys()
                .collect::<Vec<_>>(),
            present
        );
    }
}

#[test]
fn a_rendered_sparse_row_embeds_json_and_leaves_absent_columns_out() {
    let (columns, key) = v3_columns();
    let bytes = fixtures::bytes("vectors/v3/sparse-row.bin");
    let rendered = render_sparse_row(&columns, key, &bytes).unwrap();
    assert_eq!(
        rendered["values"],
        json!({"id": "n-1", "title": null, "meta": {"tags": ["a"]}})
    );
    assert_eq!(
        rendered["columns"][8],
        json!({"name": "doc", "type": "crdt", "nullable": true})
    );
}

#[test]
fn invalid_sparse_row_vectors() {
    let (columns, key) = v3_columns();
    let mut messages = Vec::new();
    for (path, case) in cases("v3", "invalid", "bin") {
        let error = decode_sparse_row(&columns, key, &fixtures::bytes(&path)).unwrap_err();
        assert_eq!(
            SyncError::from(error.clone()).code.as_str(),
            case["error"],
            "{path}"
        );
        messages.push(error.message);
    }
    assert_eq!(
        messages,
        [
            "the row has a presence padding bit set",
            "a column that is absent is NULL",
            "a column that is not nullable is NULL",
            "the primary key is absent",
        ]
    );
}

#[test]
fn version_3_request_vector() {
    let bytes = fixtures::bytes("vectors/v3/request-push-pull.bin");
    let request = decode_request(bytes.clone()).unwrap();
    assert_eq!(request.version, WireVersion::V3);
    assert_eq!(encode_request(&request).unwrap(), bytes);
    let [
        RequestFrame::Header(header),
        RequestFrame::PushCommit(commit),
        RequestFrame::PullHeader(pull),
        RequestFrame::Subscription(_),
    ] = request.frames.as_slice()
    else {
        panic!("{:?}", request.frames);
    };
    assert!(header.log_epoch.is_some());
    assert_eq!(pull.accept, 0b0111);
    let [upsert, delete] = commit.operations.as_slice() else {
        panic!("{:?}", commit.operations);
    };
    assert_eq!(upsert.base_version, Some(3));
    let OperationKind::Upsert(payload) = &upsert.kind else {
        panic!("{upsert:?}");
    };
    assert_eq!(
        decode_sparse_row(&task_columns(), 0, payload).unwrap(),
        [Some(text("t1")), None, Some(text("x")), None]
    );
    assert_eq!(delete.kind, OperationKind::Delete);
}

#[test]
fn version_3_response_vector() {
    let bytes = fixtures::bytes("vectors/v3/response-conflict-columns.bin");
    let response = decode_response(bytes.clone()).unwrap();
    assert_eq!(response.version, WireVersion::V3);
    assert_eq!(encode_response(&response).unwrap(), bytes);
    let [ResponseFrame::Header(_), ResponseFrame::PushResult(result)] = response.frames.as_slice()
    else {
        panic!("{:?}", response.frames);
    };
    assert_eq!(result.status, PushStatus::Rejected);
    let OperationOutcome::Conflict {
        server_version,
        server_row,
        conflict_columns,
        ..
    } = &result.results[0].outcome
    else {
        panic!("{result:?}");
    };
    assert_eq!((*server_version, conflict_columns[0]), (5, 0x04));
    assert_eq!(
        decode_row(&task_columns(), server_row).unwrap(),
        [text("t1"), text("p1"), text("y"), Value::Boolean(false)]
    );
    let rendered = render_response(&response);
    let record = &rendered["frames"][1]["results"][0];
    assert_eq!(record["conflictColumns"], STANDARD.encode(conflict_columns));
    assert_eq!(
        record.as_object().unwrap().keys().next_back().unwrap(),
        "conflictColumns"
    );
}

#[test]
fn realtime_vectors() {
    for (path, case) in cases("v1-v2/realtime", "cases", "json") {
        let expected = fixtures::json(&path);
        let text = expected.to_string();
        let again = if case["name"] == "presence-publish" {
            ClientMessage::parse(&text).unwrap().unwrap().to_json()
        } else {
            ServerEvent::parse(&text).unwrap().unwrap().to_json()
        };
        assert_eq!(again, text, "{path}");
    }
}

#[test]
fn invalid_realtime_vectors() {
    for (path, case) in cases("v1-v2/realtime", "invalid", "json") {
        let text = fixtures::json(&path).to_string();
        let error = if case["name"] == "presence-scalar-doc" {
            ClientMessage::parse(&text).unwrap_err()
        } else {
            ServerEvent::parse(&text).unwrap_err()
        };
        assert_eq!(error.code.as_str(), case["error"], "{path}");
    }
}

#[test]
fn scope_digests_match_the_published_ones() {
    let scopes = [("project", vec!["p1".to_owned()])].into_iter().collect();
    let bytes = fixtures::bytes("vectors/v1-v2/response/bootstrap-segments.bin");
    let (_, rendered) = render_bytes(bytes).unwrap();
    assert_eq!(rendered["frames"][2]["scopeDigest"], scope_digest(&scopes));
}

//! Golden vectors and recorded traces: decode, render, re-encode byte-equal.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::Value;
use ssp2::{
    ClientMessage, Column, ColumnType, ErrorCode, ResponseFrame, ServerEvent, SparseRow,
    decode_request, decode_response, decode_segment, decode_sparse_row, encode_request,
    encode_response, encode_segment, encode_sparse_row, render_message_json, render_sparse_row,
};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data")
        .join(path)
}

fn bytes(path: &Path) -> Bytes {
    Bytes::from(std::fs::read(path).unwrap())
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The cases of one list of a manifest.
fn cases(dir: &Path, list: &str) -> Vec<Value> {
    let manifest = json(&dir.join("manifest.json"));
    let cases = manifest[list].as_array().unwrap().clone();
    assert!(!cases.is_empty(), "{} has no {list}", dir.display());
    cases
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap()
}

fn reencode(kind: &str, input: &Bytes) -> Result<Bytes, ErrorCode> {
    let decoded = |error: ssp2::DecodeError| error.code;
    Ok(match kind {
        "request" => encode_request(&decode_request(input.clone()).map_err(decoded)?).unwrap(),
        "response" => encode_response(&decode_response(input.clone()).map_err(decoded)?).unwrap(),
        "segment" => encode_segment(&decode_segment(input.clone()).map_err(decoded)?).unwrap(),
        _ => panic!("no such kind: {kind}"),
    })
}

#[test]
fn golden_vectors_decode_render_and_reencode() {
    for kind in ["request", "response", "segment"] {
        let dir = data("vectors/v1-v2").join(kind);
        for case in cases(&dir, "cases") {
            let input = bytes(&dir.join(text(&case, "bin")));
            let name = text(&case, "name");
            assert_eq!(reencode(kind, &input), Ok(input.clone()), "{name}");
            let expected = json(&dir.join(text(&case, "json")));
            assert_eq!(render_message_json(input).unwrap(), expected, "{name}");
        }
    }
}

#[test]
fn renderings_keep_the_member_order_of_the_field_tables() {
    for kind in ["request", "response"] {
        let dir = data("vectors/v1-v2").join(kind);
        for case in cases(&dir, "cases") {
            let input = bytes(&dir.join(text(&case, "bin")));
            let expected = json(&dir.join(text(&case, "json"))).to_string();
            let rendered = render_message_json(input).unwrap().to_string();
            assert_eq!(rendered, expected, "{}", text(&case, "name"));
        }
    }
}

#[test]
fn invalid_vectors_fail_with_the_named_error() {
    for kind in ["request", "response", "segment"] {
        let dir = data("vectors/v1-v2").join(kind);
        for case in cases(&dir, "invalid") {
            let input = bytes(&dir.join(text(&case, "bin")));
            let expected = ErrorCode::parse(text(&case, "error")).unwrap();
            assert_eq!(
                reencode(kind, &input),
                Err(expected),
                "{}",
                text(&case, "name")
            );
        }
    }
}

#[test]
fn realtime_vectors_parse_and_serialize() {
    let dir = data("vectors/v1-v2/realtime");
    for case in cases(&dir, "cases") {
        let input = std::fs::read_to_string(dir.join(text(&case, "json"))).unwrap();
        let output = if text(&case, "name") == "presence-publish" {
            ClientMessage::parse(&input).unwrap().unwrap().to_json()
        } else {
            ServerEvent::parse(&input).unwrap().unwrap().to_json()
        };
        let compact = serde_json::from_str::<Value>(&input).unwrap().to_string();
        assert_eq!(output, compact, "{}", text(&case, "name"));
    }
    for case in cases(&dir, "invalid") {
        let input = std::fs::read_to_string(dir.join(text(&case, "json"))).unwrap();
        let error = if text(&case, "name") == "presence-scalar-doc" {
            ClientMessage::parse(&input).unwrap_err()
        } else {
            ServerEvent::parse(&input).unwrap_err()
        };
        assert_eq!(
            error.code.as_str(),
            text(&case, "error"),
            "{}",
            text(&case, "name")
        );
    }
}

fn v3_columns() -> Vec<Column> {
    let manifest = json(&data("vectors/v3/manifest.json"));
    let column = |column: &Value| Column {
        name: text(column, "name").to_owned(),
        ty: ColumnType::from_name(text(column, "type")).unwrap(),
        nullable: column["nullable"].as_bool().unwrap(),
    };
    manifest["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(column)
        .collect()
}

fn expected_cell(ty: ColumnType, value: &Value) -> ssp2::Value {
    match (ty, value) {
        (_, Value::Null) => ssp2::Value::Null,
        (ColumnType::Integer, value) => ssp2::Value::Integer(value.as_i64().unwrap()),
        (ColumnType::Float, value) => ssp2::Value::Float(value.as_f64().unwrap()),
        (ColumnType::Boolean, value) => ssp2::Value::Boolean(value.as_bool().unwrap()),
        (ColumnType::Bytes | ColumnType::Crdt, value) => {
            let encoded = value["base64"].as_str().unwrap();
            let decoded =
                base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded);
            ssp2::Value::Bytes(decoded.unwrap().into())
        }
        (_, value) => ssp2::Value::Text(value.as_str().unwrap().to_owned()),
    }
}

#[test]
fn sparse_row_vectors_decode_and_reencode() {
    let (dir, columns) = (data("vectors/v3"), v3_columns());
    for case in cases(&dir, "cases") {
        let input = bytes(&dir.join(text(&case, "bin")));
        let row = decode_sparse_row(&columns, 0, &input).unwrap();
        let values = case["values"].as_object().unwrap();
        let expected: SparseRow = columns
            .iter()
            .map(|column| {
                values
                    .get(&column.name)
                    .map(|value| expected_cell(column.ty, value))
            })
            .collect();
        assert_eq!(row, expected);
        assert_eq!(encode_sparse_row(&columns, 0, &row).unwrap(), input);
        let rendered = render_sparse_row(&columns, 0, &input).unwrap();
        let names: Vec<_> = rendered["values"].as_object().unwrap().keys().collect();
        assert_eq!(
            names,
            values.keys().collect::<Vec<_>>(),
            "absent columns have no member"
        );
    }
}

#[test]
fn invalid_sparse_row_vectors_fail_for_their_own_reason() {
    let (dir, columns) = (data("vectors/v3"), v3_columns());
    let reasons = [
        "presence padding",
        "absent is NULL",
        "not nullable",
        "primary key is absent",
    ];
    let invalid = cases(&dir, "invalid");
    assert_eq!(invalid.len(), reasons.len());
    for (case, reason) in invalid.iter().zip(reasons) {
        let input = bytes(&dir.join(text(case, "bin")));
        let error = decode_sparse_row(&columns, 0, &input).unwrap_err();
        assert!(
            error.message.contains(reason),
            "{}: {}",
            text(case, "bin"),
            error.message
        );
        assert_eq!(
            ssp2::SyncError::from(error).code.as_str(),
            text(case, "error")
        );
    }
}

#[test]
fn version_3_messages_reencode() {
    let dir = data("vectors/v3");
    for case in cases(&dir, "messages") {
        let name = text(&case, "bin");
        let kind = if name.starts_with("request") {
            "request"
        } else {
            "response"
        };
        let input = bytes(&dir.join(name));
        assert_eq!(reencode(kind, &input), Ok(input.clone()), "{name}");
        assert_eq!(render_message_json(input).unwrap()["wireVersion"], 3);
    }
}

#[test]
fn version_3_conflicts_carry_their_columns() {
    let input = bytes(&data("vectors/v3/response-conflict-columns.bin"));
    let rendered = render_message_json(input.clone()).unwrap();
    assert!(
        rendered.to_string().contains("\"conflictColumns\":\"BA"),
        "{rendered}"
    );
    assert!(decode_response(input).unwrap().frames.iter().any(
        |frame| matches!(frame, ResponseFrame::PushResult(result) if matches!(
            &result.results[0].outcome,
            ssp2::OperationOutcome::Conflict { server_version: 5, conflict_columns, .. } if conflict_columns[0] == 4
        ))
    ));
}

#[test]
fn traces_decode_render_and_reencode() {
    let mut seen = 0;
    for entry in std::fs::read_dir(data("traces")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let kind = match name.split_once('.').unwrap().1 {
            "req.bin" => "request",
            "res.bin" => "response",
            _ => continue,
        };
        let input = bytes(&path);
        assert_eq!(reencode(kind, &input), Ok(input.clone()), "{name}");
        assert_eq!(
            render_message_json(input).unwrap()["msgKind"],
            kind,
            "{name}"
        );
        seen += 1;
    }
    assert_eq!(seen, 82, "every trace is two messages");
}

#[test]
fn scope_digests_match_the_published_ones() {
    let scopes = [("project", vec!["p1".to_owned()])].into_iter().collect();
    let input = bytes(&data("vectors/v1-v2/response/bootstrap-segments.bin"));
    let rendered = render_message_json(input).unwrap();
    assert_eq!(
        rendered["frames"][2]["scopeDigest"],
        ssp2::scope_digest(&scopes)
    );
}

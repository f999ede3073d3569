//! Recorded rounds: every message decodes, re-encodes to the same bytes, renders,
//! and its rows decode with the schema of the server that wrote them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value as Json;
use ssp2::*;

use crate::fixtures;

fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixtures::data("traces"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn schema(name: &str) -> BTreeMap<String, Vec<Column>> {
    let trace = fixtures::json(&format!("traces/{name}.json"));
    trace["schema"]["tables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|table| {
            let columns = table["columns"]
                .as_array()
                .unwrap()
                .iter()
                .map(|column| Column {
                    name: column["name"].as_str().unwrap().to_owned(),
                    ty: ColumnType::from_name(column["type"].as_str().unwrap()).unwrap(),
                    nullable: column["nullable"].as_bool().unwrap(),
                });
            (
                table["name"].as_str().unwrap().to_owned(),
                columns.collect(),
            )
        })
        .collect()
}

fn check_row(columns: &[Column], row: &Bytes) {
    let values = decode_row(columns, row).unwrap();
    assert_eq!(encode_row(columns, &values).unwrap(), row);
}

#[test]
fn there_are_recorded_rounds() {
    assert!(names().len() >= 40);
}

#[test]
fn every_recorded_request_round_trips() {
    for name in names() {
        let bytes = fixtures::bytes(&format!("traces/{name}.req.bin"));
        let request =
            decode_request(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(encode_request(&request).unwrap(), bytes, "{name}");
        assert_eq!(reencode(bytes.clone()).unwrap(), bytes, "{name}");
        let (kind, rendered) = render_bytes(bytes).unwrap();
        assert_eq!(kind, Kind::Request, "{name}");
        assert_eq!(
            rendered["frames"].as_array().unwrap().len(),
            request.frames.len()
        );
        let schema = schema(&name);
        for frame in &request.frames {
            if let RequestFrame::PushCommit(commit) = frame {
                for operation in &commit.operations {
                    if let (OperationKind::Upsert(row), Some(columns)) =
                        (&operation.kind, schema.get(&operation.table))
                    {
                        check_row(columns, row);
                    }
                }
            }
        }
    }
}

#[test]
fn every_recorded_response_round_trips() {
    for name in names() {
        let bytes = fixtures::bytes(&format!("traces/{name}.res.bin"));
        if bytes.first() == Some(&b'{') {
            // Failed before the first byte: the JSON shape of §10.1 instead.
            let error: Json = serde_json::from_slice(&bytes).unwrap();
            let code = ErrorCode::parse(error["code"].as_str().unwrap()).unwrap();
            assert_eq!(error["category"], code.category().as_str(), "{name}");
            continue;
        }
        let response =
            decode_response(bytes.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(encode_response(&response).unwrap(), bytes, "{name}");
        assert_eq!(reencode(bytes.clone()).unwrap(), bytes, "{name}");
        let (kind, rendered) = render_bytes(bytes).unwrap();
        assert_eq!(kind, Kind::Response, "{name}");
        assert_eq!(
            rendered["frames"].as_array().unwrap().len(),
            response.frames.len()
        );
        let schema = schema(&name);
        for frame in &response.frames {
            match frame {
                ResponseFrame::Commit(commit) => {
                    for change in &commit.changes {
                        let table = &commit.tables[usize::from(change.table_index)];
                        if let ChangeKind::Upsert { row, .. } = &change.kind {
                            check_row(&schema[table], row);
                        }
                    }
                }
                ResponseFrame::SegmentInline(bytes) => {
                    let segment = decode_segment(bytes.clone()).unwrap();
                    assert_eq!(encode_segment(&segment).unwrap(), bytes, "{name}");
                    assert_eq!(
                        segment.header.columns, schema[&segment.header.table],
                        "{name}"
                    );
                }
                _ => {}
            }
        }
    }
}

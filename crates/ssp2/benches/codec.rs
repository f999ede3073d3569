//! Throughput of the codec: a commit of 500 changes, a segment of 10,000 rows.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ssp2::*;

fn columns() -> Vec<Column> {
    [
        ("id", ColumnType::String, false),
        ("project_id", ColumnType::String, false),
        ("title", ColumnType::String, false),
        ("done", ColumnType::Boolean, false),
        ("priority", ColumnType::Integer, true),
        ("score", ColumnType::Float, true),
        ("meta", ColumnType::Json, true),
    ]
    .map(|(name, ty, nullable)| Column {
        name: name.to_owned(),
        ty,
        nullable,
    })
    .to_vec()
}

fn values(index: i64) -> Vec<Value> {
    vec![
        Value::Text(format!("task-{index:08}")),
        Value::Text(format!("project-{}", index % 10)),
        Value::Text(format!("Write the report of week {index}, été compris")),
        Value::Boolean(index % 2 == 0),
        if index % 5 == 0 {
            Value::Null
        } else {
            Value::Integer(index)
        },
        Value::Float(0.5),
        Value::Text(format!("{{\"tags\":[\"a\",\"b\"],\"n\":{index}}}")),
    ]
}

fn response() -> Response {
    let columns = columns();
    let changes = (0..500).map(|index| Change {
        table_index: 0,
        row_id: format!("task-{index:08}"),
        scopes: [("project_id", format!("project-{}", index % 10))]
            .into_iter()
            .collect(),
        kind: ChangeKind::Upsert {
            row_version: 1 + index,
            row: encode_row(&columns, &values(index)).unwrap(),
        },
    });
    let commit = Commit {
        commit_seq: 42,
        created_at_ms: 1_782_993_600_000,
        actor_id: "actor-1".to_owned(),
        tables: vec!["tasks".to_owned()],
        changes: changes.collect(),
    };
    Response {
        version: WireVersion::V3,
        frames: vec![
            ResponseFrame::Header(ResponseHeader {
                required_schema_version: None,
                latest_schema_version: Some(1),
                epoch: Some(EpochHeader {
                    log_epoch: "epoch".to_owned(),
                    reset_required: false,
                }),
            }),
            ResponseFrame::SubStart(SubStart {
                id: "s".to_owned(),
                status: SubStatus::Active,
                reason_code: String::new(),
                effective_scopes: ScopeLists::new(),
                bootstrap: false,
            }),
            ResponseFrame::Commit(commit),
            ResponseFrame::SubEnd(SubEnd {
                next_cursor: 42,
                bootstrap_state: None,
            }),
        ],
    }
}

fn commit(criterion: &mut Criterion) {
    let response = response();
    let bytes = encode_response(&response).unwrap();
    let mut group = criterion.benchmark_group("commit of 500 changes");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| encode_response(black_box(&response)))
    });
    group.bench_function("decode", |b| {
        b.iter(|| decode_response(black_box(&bytes).clone()))
    });
    group.finish();
}

fn segment(criterion: &mut Criterion) {
    let header = SegmentHeader {
        table: "tasks".to_owned(),
        schema_version: 1,
        columns: columns(),
    };
    let rows: Vec<Vec<Value>> = (0..10_000).map(values).collect();
    let stored: Vec<Bytes> = rows
        .iter()
        .map(|row| encode_row(&header.columns, row).unwrap())
        .collect();
    let from_stored = || {
        let mut writer = SegmentWriter::new(&header);
        for row in &stored {
            writer.row(1, row);
        }
        writer.finish()
    };
    let bytes = from_stored();
    let mut group = criterion.benchmark_group("segment of 10,000 rows");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode values", |b| {
        b.iter(|| {
            let mut writer = SegmentWriter::new(&header);
            for row in black_box(&rows) {
                writer.row_values(1, row).unwrap();
            }
            writer.finish()
        });
    });
    group.bench_function("encode stored rows", |b| b.iter(from_stored));
    group.bench_function("decode", |b| {
        b.iter(|| decode_segment(black_box(&bytes).clone()))
    });
    group.bench_function("validate", |b| {
        b.iter(|| ssp2::segment::validate(black_box(&bytes)))
    });
    group.bench_function("segment id", |b| b.iter(|| segment_id(black_box(&bytes))));
    group.finish();
}

criterion_group!(benches, commit, segment);
criterion_main!(benches);

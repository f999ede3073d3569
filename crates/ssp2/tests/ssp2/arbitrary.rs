//! Arbitrary valid messages, rows and segments of every wire version.

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use ssp2::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,8}", ".{0,6}", Just("\u{FFFD}𝄞é".to_owned())]
}

fn name() -> impl Strategy<Value = String> {
    "[a-zé𝄞]{1,8}"
}

fn blob() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..24).prop_map(Bytes::from)
}

fn safe() -> impl Strategy<Value = i64> {
    prop_oneof![
        -10i64..1000,
        -MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER,
        Just(MAX_SAFE_INTEGER),
        Just(-MAX_SAFE_INTEGER),
    ]
}

fn json() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just(" [ 1 , 2e0 ] ".to_owned()),
        Just("\"\\ud800\"".to_owned()),
        safe().prop_map(|value| format!("{{\"a\": {value}}}")),
        (1usize..400).prop_map(|depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth))),
    ]
}

fn scope_lists() -> impl Strategy<Value = ScopeLists> {
    btree_map(text(), vec(text(), 0..3), 0..4).prop_map(|map| map.into_iter().collect())
}

fn scope_values() -> impl Strategy<Value = ScopeValues> {
    btree_map(text(), text(), 0..4).prop_map(|map| map.into_iter().collect())
}

fn unknown() -> impl Strategy<Value = UnknownFrame> {
    let types = prop_oneof![
        0x05u8..0x10,
        Just(0x17),
        Just(0x18),
        Just(0x1A),
        0x1Cu8..0x1F,
        0x20u8..=0xFF
    ];
    (types, blob()).prop_map(|(frame_type, payload)| UnknownFrame {
        frame_type,
        payload,
    })
}

fn version() -> impl Strategy<Value = WireVersion> {
    prop_oneof![
        Just(WireVersion::V1),
        Just(WireVersion::V2),
        Just(WireVersion::V3)
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let kind = prop_oneof![
        blob().prop_map(OperationKind::Upsert),
        Just(OperationKind::Delete)
    ];
    (text(), text(), option::of(safe()), kind).prop_map(|(table, row_id, base_version, kind)| {
        Operation {
            table,
            row_id,
            base_version,
            kind,
        }
    })
}

fn push_commit() -> impl Strategy<Value = RequestFrame> {
    (name(), vec(operation(), 1..4)).prop_map(|(client_commit_id, operations)| {
        RequestFrame::PushCommit(PushCommit {
            client_commit_id,
            operations,
        })
    })
}

fn subscription() -> impl Strategy<Value = RequestFrame> {
    (
        text(),
        text(),
        scope_lists(),
        option::of(json()),
        safe(),
        option::of(json()),
    )
        .prop_map(|(id, table, scopes, params, cursor, bootstrap_state)| {
            RequestFrame::Subscription(Subscription {
                id,
                table,
                scopes,
                params,
                cursor,
                bootstrap_state,
            })
        })
}

fn pull() -> impl Strategy<Value = Vec<RequestFrame>> {
    let header =
        (any::<i32>(), any::<i32>(), any::<i32>(), 0u8..16).prop_map(|(a, b, c, accept)| {
            RequestFrame::PullHeader(PullHeader {
                limit_commits: a,
                limit_snapshot_rows: b,
                max_snapshot_pages: c,
                accept,
            })
        });
    let rest = prop_oneof![3 => subscription(), 1 => unknown().prop_map(RequestFrame::Unknown)];
    (header, vec(rest, 0..4)).prop_map(|(header, rest)| [vec![header], rest].concat())
}

pub fn request() -> impl Strategy<Value = Request> {
    let pushes = prop_oneof![3 => push_commit(), 1 => unknown().prop_map(RequestFrame::Unknown)];
    (
        version(),
        name(),
        1i32..,
        option::of(text()),
        vec(pushes, 0..4),
        pull(),
        any::<bool>(),
    )
        .prop_map(
            |(version, client_id, schema_version, log_epoch, pushes, pull, with_pull)| {
                let header = RequestFrame::Header(RequestHeader {
                    client_id,
                    schema_version,
                    log_epoch: log_epoch.filter(|_| version >= WireVersion::V2),
                });
                let pushed = pushes
                    .iter()
                    .any(|frame| matches!(frame, RequestFrame::PushCommit(_)));
                let pull = if with_pull || !pushed { pull } else { vec![] };
                Request {
                    version,
                    frames: [vec![header], pushes, pull].concat(),
                }
            },
        )
}

fn outcome() -> impl Strategy<Value = OperationOutcome> {
    prop_oneof![
        Just(OperationOutcome::Applied),
        (text(), text(), safe(), blob(), blob()).prop_map(
            |(code, message, server_version, server_row, conflict_columns)| {
                OperationOutcome::Conflict {
                    code,
                    message,
                    server_version,
                    server_row,
                    conflict_columns,
                }
            }
        ),
        (text(), text(), any::<bool>()).prop_map(|(code, message, retryable)| {
            OperationOutcome::Error {
                code,
                message,
                retryable,
            }
        }),
    ]
}

fn push_result() -> impl Strategy<Value = Vec<ResponseFrame>> {
    let status = prop_oneof![
        safe().prop_map(PushStatus::Applied),
        safe().prop_map(PushStatus::Cached),
        Just(PushStatus::Rejected),
    ];
    let results = vec((any::<i32>(), outcome()), 0..3);
    (text(), status, results, option::of(0..i32::MAX)).prop_map(
        |(client_commit_id, status, results, detailed)| {
            let mut frames = vec![ResponseFrame::PushResult(PushResult {
                client_commit_id: client_commit_id.clone(),
                status,
                results: results
                    .into_iter()
                    .map(|(op_index, outcome)| OperationResult { op_index, outcome })
                    .collect(),
            })];
            if let (PushStatus::Rejected, Some(op_index)) = (status, detailed) {
                frames.push(ResponseFrame::PushResultDetails(PushResultDetails {
                    client_commit_id,
                    entries: vec![DetailEntry {
                        op_index,
                        details_json: r#"{ "reason" : "missing_parent" }"#.to_owned(),
                    }],
                }));
            }
            frames
        },
    )
}

fn commit() -> impl Strategy<Value = ResponseFrame> {
    let kind = prop_oneof![
        (safe(), blob()).prop_map(|(row_version, row)| ChangeKind::Upsert { row_version, row }),
        Just(ChangeKind::Delete),
    ];
    let changes = vec((0u16..2, text(), scope_values(), kind), 0..4);
    (safe(), safe(), text(), vec(text(), 2..4), changes).prop_map(
        |(commit_seq, created_at_ms, actor_id, tables, changes)| {
            let changes = changes
                .into_iter()
                .map(|(table_index, row_id, scopes, kind)| Change {
                    table_index,
                    row_id,
                    scopes,
                    kind,
                });
            ResponseFrame::Commit(Commit {
                commit_seq,
                created_at_ms,
                actor_id,
                tables,
                changes: changes.collect(),
            })
        },
    )
}

fn segment_frame() -> impl Strategy<Value = ResponseFrame> {
    let media = prop_oneof![Just(MediaType::Rows), Just(MediaType::Sqlite)];
    let numbers = (safe(), safe(), safe());
    let cursors = (option::of(text()), option::of(text()));
    prop_oneof![
        segment()
            .prop_map(|segment| ResponseFrame::SegmentInline(encode_segment(&segment).unwrap())),
        (
            text(),
            media,
            text(),
            numbers,
            text(),
            cursors,
            option::of((text(), safe()))
        )
            .prop_map(
                |(segment_id, media_type, table, numbers, scope_digest, cursors, url)| {
                    ResponseFrame::SegmentRef(SegmentRef {
                        segment_id,
                        media_type,
                        table,
                        byte_length: numbers.0,
                        row_count: numbers.1,
                        as_of_commit_seq: numbers.2,
                        scope_digest,
                        row_cursor: cursors.0,
                        next_row_cursor: cursors.1,
                        url,
                    })
                }
            ),
    ]
}

fn section() -> impl Strategy<Value = Vec<ResponseFrame>> {
    let status = prop_oneof![
        Just(SubStatus::Active),
        Just(SubStatus::Revoked),
        Just(SubStatus::Reset)
    ];
    let start = (text(), status, text(), scope_lists(), any::<bool>()).prop_map(
        |(id, status, reason_code, effective_scopes, bootstrap)| {
            ResponseFrame::SubStart(SubStart {
                id,
                status,
                reason_code,
                effective_scopes,
                bootstrap,
            })
        },
    );
    let body = prop_oneof![
        vec(commit(), 0..3),
        vec(segment_frame(), 0..3),
        vec(unknown().prop_map(ResponseFrame::Unknown), 0..2),
    ];
    let end = (safe(), option::of(json())).prop_map(|(next_cursor, bootstrap_state)| {
        ResponseFrame::SubEnd(SubEnd {
            next_cursor,
            bootstrap_state,
        })
    });
    (start, body, end).prop_map(|(start, body, end)| [vec![start], body, vec![end]].concat())
}

fn error() -> impl Strategy<Value = ResponseFrame> {
    (
        text(),
        text(),
        text(),
        any::<bool>(),
        text(),
        option::of(json()),
    )
        .prop_map(
            |(code, message, category, retryable, recommended_action, details)| {
                ResponseFrame::Error(ErrorFrame {
                    code,
                    message,
                    category,
                    retryable,
                    recommended_action,
                    details,
                })
            },
        )
}

pub fn response() -> impl Strategy<Value = Response> {
    let header = (
        option::of(any::<i32>()),
        option::of(any::<i32>()),
        text(),
        any::<bool>(),
    );
    let lease = option::of((text(), safe()));
    (
        version(),
        header,
        lease,
        vec(push_result(), 0..3),
        vec(section(), 0..3),
        option::of(error()),
    )
        .prop_map(|(version, header, lease, results, sections, error)| {
            let mut frames = vec![ResponseFrame::Header(ResponseHeader {
                required_schema_version: header.0,
                latest_schema_version: header.1,
                epoch: (version >= WireVersion::V2).then_some(EpochHeader {
                    log_epoch: header.2,
                    reset_required: header.3,
                }),
            })];
            frames.extend(lease.map(|(lease_id, expires_at_ms)| {
                ResponseFrame::Lease(Lease {
                    lease_id,
                    expires_at_ms,
                })
            }));
            frames.extend(results.into_iter().flatten());
            frames.extend(sections.into_iter().flatten());
            frames.extend(error);
            if version < WireVersion::V3 {
                // Below version 3 conflict columns are not on the wire.
                for frame in &mut frames {
                    if let ResponseFrame::PushResult(result) = frame {
                        for record in &mut result.results {
                            if let OperationOutcome::Conflict {
                                conflict_columns, ..
                            } = &mut record.outcome
                            {
                                conflict_columns.clear();
                            }
                        }
                    }
                }
            }
            Response { version, frames }
        })
}

pub fn columns() -> impl Strategy<Value = Vec<Column>> {
    vec((name(), 1u8..=8, any::<bool>()), 0..20).prop_map(|columns| {
        columns
            .into_iter()
            .map(|(name, tag, nullable)| Column {
                name,
                ty: ColumnType::from_tag(tag).unwrap(),
                nullable,
            })
            .collect()
    })
}

fn value(column: &Column) -> BoxedStrategy<Value> {
    let some = match column.ty {
        ColumnType::String => text().prop_map(Value::Text).boxed(),
        ColumnType::Integer => safe().prop_map(Value::Integer).boxed(),
        // NaN is unequal to itself; the bytes of NaNs have a test of their own.
        ColumnType::Float => proptest::num::f64::ANY
            .prop_map(|float| Value::Float(if float.is_nan() { 0.5 } else { float }))
            .boxed(),
        ColumnType::Boolean => any::<bool>().prop_map(Value::Boolean).boxed(),
        ColumnType::Json => json().prop_map(Value::Text).boxed(),
        ColumnType::Bytes | ColumnType::Crdt => blob().prop_map(Value::Bytes).boxed(),
        ColumnType::BlobRef => ("[0-9a-f]{64}", 0..=MAX_SAFE_INTEGER)
            .prop_map(|(hex, length)| {
                Value::Text(format!(
                    "{{\"blobId\":\"sha256:{hex}\",\"byteLength\":{length}}}"
                ))
            })
            .boxed(),
    };
    if column.nullable {
        prop_oneof![1 => Just(Value::Null), 2 => some].boxed()
    } else {
        some
    }
}

pub fn row(columns: &[Column]) -> BoxedStrategy<Vec<Value>> {
    columns.iter().map(value).collect::<Vec<_>>().boxed()
}

pub fn segment() -> impl Strategy<Value = Segment> {
    (text(), any::<i32>(), columns()).prop_flat_map(|(table, schema_version, columns)| {
        let row =
            (1..=MAX_SAFE_INTEGER, row(&columns)).prop_map(|(server_version, values)| SegmentRow {
                server_version,
                values,
            });
        vec(vec(row, 1..4), 0..3).prop_map(move |blocks| Segment {
            header: SegmentHeader {
                table: table.clone(),
                schema_version,
                columns: columns.clone(),
            },
            blocks,
        })
    })
}

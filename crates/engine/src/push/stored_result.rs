//! The stored form of a push outcome: `sync_push_results.result` (§2.3, §6.3).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use ssp2::{OperationOutcome, OperationResult};

use crate::ids::CommitSeq;
use crate::model::StoredPushResult;

use super::details::normalize_details;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    status: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit_seq: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recorded_at_ms: Option<i64>,
    results: Vec<Record<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    op_index: i32,
    status: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server_version: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server_row: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    conflict_columns: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<serde_json::Value>,
}

/// Renders a push outcome as the JSON that is stored.
pub fn encode_push_result(result: &StoredPushResult) -> String {
    let records = result
        .results
        .iter()
        .map(|record| Record {
            details: result
                .details
                .iter()
                .find(|(op_index, _)| *op_index == record.op_index)
                .and_then(|(_, json)| serde_json::from_str(json).ok()),
            ..encode_record(record)
        })
        .collect();
    let document = Document {
        status: if result.commit_seq.is_some() {
            "applied".into()
        } else {
            "rejected".into()
        },
        commit_seq: result.commit_seq.map(|seq| seq.0),
        recorded_at_ms: result.recorded_at_ms,
        results: records,
    };
    // Strings and integers under string keys: there is nothing that could fail.
    serde_json::to_string(&document).unwrap_or_default()
}

fn encode_record(record: &OperationResult) -> Record<'_> {
    let blank = Record {
        op_index: record.op_index,
        status: "applied".into(),
        code: None,
        message: None,
        server_version: None,
        server_row: None,
        conflict_columns: None,
        retryable: None,
        details: None,
    };
    match &record.outcome {
        OperationOutcome::Applied => blank,
        OperationOutcome::Conflict {
            code,
            message,
            server_version,
            server_row,
            conflict_columns,
        } => Record {
            status: "conflict".into(),
            code: Some(code.into()),
            message: Some(message.into()),
            server_version: Some(*server_version),
            server_row: Some(BASE64.encode(server_row)),
            conflict_columns: (!conflict_columns.is_empty())
                .then(|| BASE64.encode(conflict_columns)),
            ..blank
        },
        OperationOutcome::Error {
            code,
            message,
            retryable,
        } => Record {
            status: "error".into(),
            code: Some(code.into()),
            message: Some(message.into()),
            retryable: Some(*retryable),
            ..blank
        },
    }
}

/// Reads a stored push outcome. Unknown keys are ignored.
///
/// A conflict record from before conflict columns existed gets an empty
/// bitmap, which no table has; [`super::decide`] fills it on replay. `None`
/// when the text is not an outcome: it is then answered
/// `sync.idempotency_cache_miss`, and never overwritten.
pub fn decode_push_result(json: &str) -> Option<StoredPushResult> {
    let document: Document<'_> = serde_json::from_str(json).ok()?;
    let commit_seq = match (&*document.status, document.commit_seq) {
        ("applied", Some(seq)) if seq >= 1 => Some(CommitSeq(seq)),
        ("rejected", _) => None,
        _ => return None,
    };
    let mut results = Vec::with_capacity(document.results.len());
    let mut details = Vec::new();
    for record in document.results {
        if let Some(value) = &record.details {
            details.push((record.op_index, normalize_details(&value.to_string())?));
        }
        results.push(decode_record(record)?);
    }
    let all_applied = results
        .iter()
        .all(|record| record.outcome == OperationOutcome::Applied);
    if results.is_empty() || all_applied != commit_seq.is_some() {
        return None;
    }
    Some(StoredPushResult {
        commit_seq,
        recorded_at_ms: document.recorded_at_ms,
        results,
        details,
    })
}

fn decode_record(record: Record<'_>) -> Option<OperationResult> {
    let outcome = match &*record.status {
        "applied" => OperationOutcome::Applied,
        "conflict" => OperationOutcome::Conflict {
            code: record.code?.into_owned(),
            message: record.message?.into_owned(),
            server_version: record.server_version?,
            server_row: decode_base64(&record.server_row?)?,
            conflict_columns: match &record.conflict_columns {
                Some(text) => decode_base64(text)?,
                None => Bytes::new(),
            },
        },
        "error" => OperationOutcome::Error {
            code: record.code?.into_owned(),
            message: record.message?.into_owned(),
            retryable: record.retryable?,
        },
        _ => return None,
    };
    Some(OperationResult {
        op_index: record.op_index,
        outcome,
    })
}

fn decode_base64(text: &str) -> Option<Bytes> {
    BASE64.decode(text).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict(columns: &'static [u8]) -> StoredPushResult {
        StoredPushResult {
            commit_seq: None,
            recorded_at_ms: Some(1_700_000_000_000),
            results: vec![OperationResult {
                op_index: 2,
                outcome: OperationOutcome::Conflict {
                    code: "sync.version_conflict".into(),
                    message: "m".into(),
                    server_version: 7,
                    server_row: Bytes::from_static(&[0, 1, 255]),
                    conflict_columns: Bytes::from_static(columns),
                },
            }],
            details: vec![],
        }
    }

    #[test]
    fn an_applied_result_has_the_stored_shape() {
        let result = StoredPushResult {
            commit_seq: Some(CommitSeq(42)),
            recorded_at_ms: Some(5),
            results: vec![OperationResult {
                op_index: 0,
                outcome: OperationOutcome::Applied,
            }],
            details: vec![],
        };
        let json = encode_push_result(&result);
        assert_eq!(
            json,
            r#"{"status":"applied","commitSeq":42,"recordedAtMs":5,"results":[{"opIndex":0,"status":"applied"}]}"#
        );
        assert_eq!(decode_push_result(&json), Some(result));
    }

    #[test]
    fn a_conflict_has_the_stored_shape() {
        let json = encode_push_result(&conflict(&[6]));
        assert_eq!(
            json,
            r#"{"status":"rejected","recordedAtMs":1700000000000,"results":[{"opIndex":2,"status":"conflict","code":"sync.version_conflict","message":"m","serverVersion":7,"serverRow":"AAH/","conflictColumns":"Bg=="}]}"#
        );
        assert_eq!(decode_push_result(&json), Some(conflict(&[6])));
    }

    #[test]
    fn a_conflict_from_before_conflict_columns_is_readable() {
        let json = r#"{"status":"rejected","recordedAtMs":1700000000000,"results":[{"opIndex":2,"status":"conflict","code":"sync.version_conflict","message":"m","serverVersion":7,"serverRow":"AAH/"}]}"#;
        assert_eq!(decode_push_result(json), Some(conflict(&[])));
        assert_eq!(encode_push_result(&conflict(&[])), json);
    }

    #[test]
    fn details_survive_a_json_column_that_reorders_members() {
        let json = r#"{"results":[{"status":"error","details":{"references":{"row":"r","parent":"p"},"reason":"missing_parent"},"opIndex":0,"retryable":false,"message":"m","code":"sync.reference_violation","extra":1}],"status":"rejected","later":true}"#;
        let result = decode_push_result(json).unwrap();
        assert_eq!(
            result.details,
            vec![(
                0,
                r#"{"reason":"missing_parent","references":{"parent":"p","row":"r"}}"#.to_owned()
            )]
        );
        assert_eq!(
            decode_push_result(&encode_push_result(&result)),
            Some(result)
        );
    }

    #[test]
    fn what_is_no_outcome_is_unreadable() {
        for bad in [
            "",
            "null",
            "{}",
            r#"{"status":"applied","results":[{"opIndex":0,"status":"applied"}]}"#,
            r#"{"status":"applied","commitSeq":0,"results":[{"opIndex":0,"status":"applied"}]}"#,
            r#"{"status":"cached","commitSeq":1,"results":[]}"#,
            r#"{"status":"applied","commitSeq":1,"results":[]}"#,
            r#"{"status":"rejected","results":[{"opIndex":0,"status":"applied"}]}"#,
            r#"{"status":"rejected","results":[{"opIndex":0,"status":"error","code":"x"}]}"#,
            r#"{"status":"rejected","results":[{"opIndex":0,"status":"conflict","code":"c","message":"m","serverVersion":1,"serverRow":"@"}]}"#,
        ] {
            assert_eq!(decode_push_result(bad), None, "{bad}");
        }
    }
}

//! The error catalogue (§10), against a table of its own.

use ssp2::{ErrorCode, ErrorFrame, SyncError};

#[rustfmt::skip]
const TABLE: &[(&str, &str, bool, &str, u16)] = &[
    ("sync.auth_required", "auth-required", true, "refreshAuth", 401),
    ("sync.auth_lease_required", "auth-required", true, "refreshAuth", 401),
    ("sync.auth_lease_revoked", "auth-required", true, "refreshAuth", 401),
    ("sync.forbidden", "forbidden", false, "checkPermissions", 403),
    ("operation.forbidden", "forbidden", false, "checkPermissions", 403),
    ("blob.forbidden", "forbidden", false, "checkPermissions", 403),
    ("sync.invalid_request", "invalid-request", false, "fixRequest", 400),
    ("sync.invalid_subscription", "invalid-request", false, "fixRequest", 400),
    ("sync.empty_commit", "invalid-request", false, "fixRequest", 400),
    ("sync.constraint_violation", "invalid-request", false, "fixRequest", 400),
    ("sync.reference_violation", "invalid-request", false, "fixRequest", 400),
    ("operation.invalid_request", "invalid-request", false, "fixRequest", 400),
    ("operation.result_too_large", "invalid-request", false, "fixRequest", 400),
    ("blob.hash_mismatch", "invalid-request", false, "fixRequest", 400),
    ("blob.too_large", "invalid-request", false, "fixRequest", 413),
    ("sync.invalid_client_id", "invalid-request", false, "resetClientId", 400),
    ("sync.too_many_operations", "invalid-request", false, "splitBatch", 400),
    ("sync.unknown_table", "schema-mismatch", false, "regenerateClient", 400),
    ("sync.schema_mismatch", "schema-mismatch", false, "regenerateClient", 400),
    ("sync.client_schema_unsupported", "schema-mismatch", false, "upgradeClient", 400),
    ("sync.client_wire_unsupported", "schema-mismatch", false, "upgradeClient", 400),
    ("sync.row_missing", "not-found", false, "forceResync", 404),
    ("sync.not_found", "not-found", false, "forceResync", 404),
    ("sync.row_deleted", "not-found", false, "fixRequest", 400),
    ("blob.not_found", "not-found", false, "fixRequest", 404),
    ("operation.unknown", "not-found", false, "regenerateClient", 404),
    ("sync.segment_expired", "not-found", true, "retryLater", 404),
    ("sync.version_conflict", "conflict", false, "resolveConflict", 409),
    ("sync.cursor_expired", "reset-required", false, "rebootstrap", 400),
    ("sync.scope_revoked", "scope-revoked", false, "checkPermissions", 403),
    ("sync.rate_limited", "rate-limited", true, "retryLater", 429),
    ("sync.websocket_connection_limit", "rate-limited", true, "retryLater", 429),
    ("sync.missing_scopes", "internal", false, "inspectServer", 500),
    ("sync.crdt_merge_failed", "internal", false, "inspectServer", 500),
    ("operation.query_failed", "internal", false, "inspectServer", 500),
    ("operation.execution_failed", "internal", false, "inspectServer", 500),
    ("operation.storage_unsupported", "internal", false, "inspectServer", 500),
    ("sync.idempotency_cache_miss", "internal", true, "retryLater", 500),
    ("sync.internal_error", "internal", true, "retryLater", 500),
    ("sync.schema_not_ready", "internal", true, "retryLater", 503),
];

#[test]
fn every_code_stands_in_the_catalogue_with_its_row() {
    assert_eq!(ErrorCode::ALL.len(), TABLE.len());
    for (name, category, retryable, action, status) in TABLE {
        let code = ErrorCode::parse(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(code.as_str(), *name);
        assert_eq!(code.category().as_str(), *category, "{name}");
        assert_eq!(code.retryable(), *retryable, "{name}");
        assert_eq!(code.action().as_str(), *action, "{name}");
        assert_eq!(code.http_status(), *status, "{name}");
    }
    assert_eq!(
        ErrorCode::parse("sync.integrity_rejected"),
        None,
        "reserved, no producer"
    );
}

#[test]
fn an_error_is_json_in_the_shape_of_http() {
    let plain = SyncError::new(ErrorCode::RateLimited, "slow down");
    assert_eq!(
        plain.to_json().to_string(),
        r#"{"code":"sync.rate_limited","category":"rate-limited","retryable":true,"recommendedAction":"retryLater","message":"slow down"}"#
    );
    let mut details = serde_json::Map::new();
    details.insert("table".to_owned(), "notes".into());
    let detailed = plain.with_details(details);
    assert_eq!(
        detailed.to_json()["details"],
        serde_json::json!({"table": "notes"})
    );
    let frame = ErrorFrame::from(&detailed);
    assert_eq!(frame.details.as_deref(), Some(r#"{"table":"notes"}"#));
    assert_eq!(
        (
            frame.code.as_str(),
            frame.category.as_str(),
            frame.retryable
        ),
        ("sync.rate_limited", "rate-limited", true)
    );
    assert_eq!(
        (frame.recommended_action.as_str(), frame.message.as_str()),
        ("retryLater", "slow down")
    );
}

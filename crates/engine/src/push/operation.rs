//! One operation of a commit, up to its staged write (§3.4, §5.10.3, §6.2, §6.6,
//! §6.7). The order of the checks is the specification's.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{ErrorCode, Operation, OperationKind, OperationOutcome, ScopeValues, SparseRow, Value};

use crate::column_versions::ColumnVersions;
use crate::hooks::Allowed;
use crate::keys::render_key;
use crate::model::{Needs, RowKey, StoredRow};
use crate::schema::Table;
use crate::scopes::{authorize, stored_scopes};

use super::Context;
use super::conflict::{OnAbsent, OnPresent, judge_absent, judge_present};
use super::decision::{Refusal, Stop};
use super::hooks::StagedOperation;
use super::row_rules::{check_blobs, check_row, written};
use super::rows::decode_payload;
use super::staging::{Current, Lookup, PresentedReference, Staging};

/// Judges an operation and stages what it writes.
pub(super) fn apply(
    cx: &Context<'_>,
    staging: &mut Staging<'_>,
    op_index: usize,
    operation: &Operation,
) -> Result<(), Stop> {
    let Some(table) = cx.env.schema.table(&operation.table) else {
        return Err(Refusal::error(
            op_index,
            ErrorCode::UnknownTable,
            "the schema has no such table",
        )
        .into());
    };
    if matches!(cx.push.allowed, Allowed::Failed) {
        return Err(Refusal::forbidden(op_index).into());
    }
    let key = RowKey {
        table: table.id,
        row_id: operation.row_id.as_str().into(),
    };
    let target = Target {
        op_index,
        table,
        key,
    };
    match &operation.kind {
        OperationKind::Delete => delete(cx, staging, target),
        OperationKind::Upsert(payload) => {
            let payload = decode_payload(table, cx.push.wire, payload)
                .map_err(|error| invalid(op_index, error.message))?;
            let names_row = matches!(payload.get(table.primary_key), Some(Some(value))
                if render_key(value).as_deref() == Some(operation.row_id.as_str()));
            if !names_row {
                return Err(invalid(op_index, "rowId is not the payload's primary key"));
            }
            match staging.lookup(&target.key) {
                Lookup::Unknown => Err(unknown_row(target.key)),
                Lookup::Present(current) => update(
                    cx,
                    staging,
                    target,
                    operation.base_version,
                    &payload,
                    &current,
                ),
                Lookup::Absent { tombstone } => insert(
                    cx,
                    staging,
                    target,
                    operation.base_version,
                    &payload,
                    tombstone,
                ),
            }
        }
    }
}

/// The row an operation aims at.
struct Target<'a> {
    op_index: usize,
    table: &'a Table,
    key: RowKey,
}

fn unknown_row(key: RowKey) -> Stop {
    Stop::Unknown(Needs {
        rows: [key].into(),
        ..Needs::default()
    })
}

fn invalid(op_index: usize, message: &'static str) -> Stop {
    Refusal::error(op_index, ErrorCode::InvalidRequest, message).into()
}

fn update(
    cx: &Context<'_>,
    staging: &mut Staging<'_>,
    target: Target<'_>,
    base: Option<i64>,
    payload: &SparseRow,
    current: &Current,
) -> Result<(), Stop> {
    let Target {
        op_index, table, ..
    } = target;
    let row = &current.row;
    if !authorize(table, &row.scopes, cx.push.allowed) {
        return Err(Refusal::forbidden(op_index).into());
    }
    let stored = current.values(table).map_err(|_| Stop::corrupt())?;
    let versions = column_versions(table, row)?;
    match judge_present(
        table,
        cx.push.wire,
        base,
        payload,
        &stored,
        row.server_version,
        &versions,
    ) {
        OnPresent::Apply => {}
        OnPresent::ScopeChange => {
            return Err(invalid(op_index, "a scope column may not change"));
        }
        OnPresent::FutureBase => {
            return Err(invalid(
                op_index,
                "baseVersion is above the row's server_version",
            ));
        }
        OnPresent::Conflict(columns) => {
            return Err(Refusal {
                op_index,
                outcome: OperationOutcome::Conflict {
                    code: ErrorCode::VersionConflict.as_str().to_owned(),
                    message: conflict_message(base, row.server_version),
                    server_version: row.server_version,
                    server_row: row.payload.clone(),
                    conflict_columns: columns.to_bytes(),
                },
                details: None,
            }
            .into());
        }
    }
    let mut values = stored.to_vec();
    for (ordinal, pushed) in present(payload) {
        let keeps_stored = ordinal == table.primary_key || table.is_scope_column(ordinal);
        if !keeps_stored {
            values[ordinal] =
                written(cx, op_index, table, ordinal, pushed, Some(&stored[ordinal]))?;
        }
    }
    check_blobs(cx, op_index, table, payload)?;
    check_row(
        cx,
        op_index,
        table,
        &target.key.row_id,
        Some(&values),
        Some(&stored),
    )?;
    let written = present(payload).map(|(ordinal, _)| ordinal);
    let next = next_row(table, row, &values, versions, written)?;
    present_references(staging, &target, payload, &values);
    stage_upsert(
        staging,
        op_index,
        target.key,
        next,
        values.into(),
        Some((stored, row.server_version)),
    );
    Ok(())
}

fn conflict_message(base: Option<i64>, server_version: i64) -> String {
    match base {
        Some(0) | None => format!("the row already exists at server_version {server_version}"),
        Some(base) => {
            format!("baseVersion {base} does not match server_version {server_version}")
        }
    }
}

fn insert(
    cx: &Context<'_>,
    staging: &mut Staging<'_>,
    target: Target<'_>,
    base: Option<i64>,
    payload: &SparseRow,
    tombstone: bool,
) -> Result<(), Stop> {
    let Target {
        op_index, table, ..
    } = target;
    let mut values: Vec<Value> = payload
        .iter()
        .map(|value| value.clone().unwrap_or(Value::Null))
        .collect();
    let scopes_presented = table
        .scopes
        .iter()
        .all(|pattern| matches!(payload.get(pattern.column), Some(Some(_))));
    // Absence is disclosed only to an actor that holds the scopes it names.
    let mut scopes = None;
    if scopes_presented {
        let named = stored_scopes(table, &values)
            .filter(|scopes| authorize(table, scopes, cx.push.allowed));
        if named.is_none() {
            return Err(Refusal::forbidden(op_index).into());
        }
        scopes = named;
    }
    let complete = payload.iter().all(Option::is_some);
    let scopes: ScopeValues = match (
        judge_absent(cx.push.wire, base, tombstone, complete),
        scopes,
    ) {
        (OnAbsent::Insert, Some(scopes)) => scopes,
        (OnAbsent::RowDeleted, _) => {
            return Err(
                Refusal::error(op_index, ErrorCode::RowDeleted, "the row was deleted").into(),
            );
        }
        // A complete payload names its scopes, so an insert always has them.
        (OnAbsent::RowMissing | OnAbsent::Insert, _) => {
            return Err(
                Refusal::error(op_index, ErrorCode::RowMissing, "the row does not exist").into(),
            );
        }
    };
    for (ordinal, pushed) in present(payload) {
        values[ordinal] = written(cx, op_index, table, ordinal, pushed, None)?;
    }
    check_blobs(cx, op_index, table, payload)?;
    check_row(cx, op_index, table, &target.key.row_id, Some(&values), None)?;
    let row = StoredRow {
        server_version: 1,
        scopes,
        payload: encode(table, &values)?,
        column_versions: ColumnVersions::inserted(table.columns.len()).encode(1),
    };
    present_references(staging, &target, payload, &values);
    stage_upsert(staging, op_index, target.key, row, values.into(), None);
    Ok(())
}

fn delete(cx: &Context<'_>, staging: &mut Staging<'_>, target: Target<'_>) -> Result<(), Stop> {
    let Target {
        op_index,
        table,
        key,
    } = target;
    match staging.lookup(&key) {
        Lookup::Unknown => Err(unknown_row(key)),
        Lookup::Absent { .. } => {
            staging.operations.push(StagedOperation {
                op_index,
                table: table.id,
                row_id: key.row_id,
                delete: true,
                row: None,
                stored: None,
                stored_version: None,
                next_version: None,
            });
            Ok(())
        }
        Lookup::Present(current) => {
            if !authorize(table, &current.row.scopes, cx.push.allowed) {
                return Err(Refusal::forbidden(op_index).into());
            }
            stage_delete(cx, staging, op_index, table, key.clone(), &current)?;
            staging.deleted.push((op_index, key));
            Ok(())
        }
    }
}

/// Runs the row rule and stages the delete of an existing row, the client's or a
/// cascade's (§6.11).
pub(super) fn stage_delete(
    cx: &Context<'_>,
    staging: &mut Staging<'_>,
    op_index: usize,
    table: &Table,
    key: RowKey,
    current: &Current,
) -> Result<(), Stop> {
    let stored = if cx.wants_evidence() {
        Some(current.values(table).map_err(|_| Stop::corrupt())?)
    } else {
        None
    };
    check_row(cx, op_index, table, &key.row_id, None, stored.as_deref())?;
    staging.operations.push(StagedOperation {
        op_index,
        table: table.id,
        row_id: Arc::clone(&key.row_id),
        delete: true,
        row: None,
        stored,
        stored_version: Some(current.row.server_version),
        next_version: None,
    });
    staging.delete(key, &current.row);
    Ok(())
}

/// Runs the row rule and stages the clearing of one reference column (§6.11, SET
/// NULL): only that column's version moves.
pub(super) fn stage_clear(
    cx: &Context<'_>,
    staging: &mut Staging<'_>,
    op_index: usize,
    table: &Table,
    key: RowKey,
    current: &Current,
    column: usize,
) -> Result<(), Stop> {
    let row = &current.row;
    let stored = current.values(table).map_err(|_| Stop::corrupt())?;
    let versions = column_versions(table, row)?;
    let mut values = stored.to_vec();
    values[column] = Value::Null;
    check_row(
        cx,
        op_index,
        table,
        &key.row_id,
        Some(&values),
        Some(&stored),
    )?;
    let next = next_row(table, row, &values, versions, [column].into_iter())?;
    stage_upsert(
        staging,
        op_index,
        key,
        next,
        values.into(),
        Some((stored, row.server_version)),
    );
    Ok(())
}

fn stage_upsert(
    staging: &mut Staging<'_>,
    op_index: usize,
    key: RowKey,
    row: StoredRow,
    values: Arc<[Value]>,
    before: Option<(Arc<[Value]>, i64)>,
) {
    let (stored, stored_version) = before.unzip();
    staging.operations.push(StagedOperation {
        op_index,
        table: key.table,
        row_id: Arc::clone(&key.row_id),
        delete: false,
        row: Some(Arc::clone(&values)),
        stored,
        stored_version,
        next_version: Some(row.server_version),
    });
    staging.put(key, Arc::new(row), values);
}

/// The stored row after an upsert: one version up, and with it each written
/// column except the key (§6.2).
fn next_row(
    table: &Table,
    row: &StoredRow,
    values: &[Value],
    mut versions: ColumnVersions,
    written: impl Iterator<Item = usize>,
) -> Result<StoredRow, Stop> {
    let server_version = row.server_version + 1;
    written
        .filter(|&ordinal| ordinal != table.primary_key)
        .for_each(|ordinal| versions.set(ordinal, server_version));
    Ok(StoredRow {
        server_version,
        scopes: row.scopes.clone(),
        payload: encode(table, values)?,
        column_versions: versions.encode(server_version),
    })
}

fn column_versions(table: &Table, row: &StoredRow) -> Result<ColumnVersions, Stop> {
    ColumnVersions::decode(
        row.column_versions.as_deref(),
        row.server_version,
        table.columns.len(),
    )
    .map_err(|_| Stop::corrupt())
}

fn encode(table: &Table, values: &[Value]) -> Result<Bytes, Stop> {
    ssp2::encode_row(&table.columns, values).map_err(|_| Stop::corrupt())
}

fn present(payload: &SparseRow) -> impl Iterator<Item = (usize, &Value)> {
    payload
        .iter()
        .enumerate()
        .filter_map(|(ordinal, value)| Some((ordinal, value.as_ref()?)))
}

/// Notes the references that the payload presents, for the check at the end (§6.11).
fn present_references(
    staging: &mut Staging<'_>,
    target: &Target<'_>,
    payload: &SparseRow,
    values: &[Value],
) {
    for reference in &target.table.references {
        let presented = matches!(payload.get(reference.column), Some(Some(_)));
        if presented && let Some(parent) = render_key(&values[reference.column]) {
            staging.presented.push(PresentedReference {
                op_index: target.op_index,
                key: target.key.clone(),
                reference: reference.clone(),
                parent_row: parent.into(),
            });
        }
    }
}

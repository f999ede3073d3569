//! What the host has a say in, per row: merged crdt values, stored blobs and the
//! row rule (§5.10.3, §6.6, §6.7).

use std::panic::{AssertUnwindSafe, catch_unwind};

use ssp2::{ColumnType, ErrorCode, SparseRow, Value};

use crate::hooks::RowCheck;
use crate::schema::Table;

use super::Context;
use super::decision::{Refusal, Stop};
use super::rows::blob_ids;

/// Message of a row rule that failed instead of deciding (§6.7).
const ROW_VALIDATOR_FAILED: &str = "write validator failed";

/// What a present column holds after the write: the pushed value, or for a crdt
/// column the merge of both (§5.10.3). A pushed NULL is the empty document, whose
/// merge leaves what is stored.
pub(super) fn written(
    cx: &Context<'_>,
    op_index: usize,
    table: &Table,
    ordinal: usize,
    pushed: &Value,
    stored: Option<&Value>,
) -> Result<Value, Stop> {
    if table.columns[ordinal].ty != ColumnType::Crdt {
        return Ok(pushed.clone());
    }
    let Value::Bytes(incoming) = pushed else {
        return Ok(stored.unwrap_or(&Value::Null).clone());
    };
    let stored = match stored {
        Some(Value::Bytes(state)) => Some(state),
        _ => None,
    };
    let merged = cx.env.hooks.crdt_merger.as_ref().and_then(|merger| {
        let crdt_type = table.column_info[ordinal].crdt_type.as_deref()?;
        catch_unwind(AssertUnwindSafe(|| {
            merger.merge(crdt_type, stored, incoming)
        }))
        .ok()?
    });
    merged.map(Value::Bytes).ok_or_else(|| {
        Refusal::error(op_index, ErrorCode::CrdtMergeFailed, "CRDT merger failed").into()
    })
}

pub(super) fn check_blobs(
    cx: &Context<'_>,
    op_index: usize,
    table: &Table,
    payload: &SparseRow,
) -> Result<(), Stop> {
    let stored = |id: &str| {
        let blobs = cx.env.hooks.blobs.as_ref();
        blobs.is_some_and(|blobs| blobs.exists(cx.partition, id))
    };
    if blob_ids(table, payload).all(|id| stored(&id)) {
        return Ok(());
    }
    Err(Refusal::error(
        op_index,
        ErrorCode::BlobNotFound,
        "a referenced blob is not stored",
    )
    .into())
}

pub(super) fn check_row(
    cx: &Context<'_>,
    op_index: usize,
    table: &Table,
    row_id: &str,
    row: Option<&[Value]>,
    stored: Option<&[Value]>,
) -> Result<(), Stop> {
    let Some(validator) = &cx.env.hooks.row_validator else {
        return Ok(());
    };
    let check = RowCheck {
        partition: cx.partition,
        actor: cx.push.actor_id,
        table,
        row_id,
        row,
        stored,
    };
    match catch_unwind(AssertUnwindSafe(|| validator.validate(&check))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(rejection)) => Err(Refusal::host(op_index, rejection, ROW_VALIDATOR_FAILED).into()),
        Err(_) => Err(Refusal::error(
            op_index,
            ErrorCode::ConstraintViolation,
            ROW_VALIDATOR_FAILED,
        )
        .into()),
    }
}

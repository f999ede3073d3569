//! Row bytes of a push, by table and wire version.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{ColumnType, RowError, SparseRow, Value, WireVersion};

use crate::schema::Table;

/// Decodes an operation's payload: a full row below version 3, a sparse one since (§2.4, §6.1).
pub(super) fn decode_payload(
    table: &Table,
    wire: WireVersion,
    payload: &Bytes,
) -> Result<SparseRow, RowError> {
    if wire >= WireVersion::V3 {
        ssp2::decode_sparse_row(&table.columns, table.primary_key, payload)
    } else {
        let row = ssp2::decode_row(&table.columns, payload)?;
        Ok(row.into_iter().map(Some).collect())
    }
}

/// Decodes a stored row.
pub(super) fn decode_stored(table: &Table, payload: &Bytes) -> Result<Arc<[Value]>, RowError> {
    Ok(ssp2::decode_row(&table.columns, payload)?.into())
}

/// Ordinals of the columns that can conflict: neither the key, which never
/// changes, nor crdt columns, which merge (§6.2).
pub(super) fn comparable_columns(table: &Table) -> impl Iterator<Item = usize> {
    table
        .columns
        .iter()
        .enumerate()
        .filter(|(ordinal, column)| *ordinal != table.primary_key && column.ty != ColumnType::Crdt)
        .map(|(ordinal, _)| ordinal)
}

/// Ids of the blobs that a payload references (§6.6).
pub(super) fn blob_ids(table: &Table, payload: &SparseRow) -> impl Iterator<Item = String> {
    table
        .columns
        .iter()
        .zip(payload)
        .filter_map(|(column, value)| match value {
            Some(Value::Text(text)) if column.ty == ColumnType::BlobRef => {
                ssp2::blob_ref::blob_id(text)
            }
            _ => None,
        })
}

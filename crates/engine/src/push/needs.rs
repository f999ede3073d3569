//! What a push will certainly look at, so that a whole batch is read at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use ssp2::{Operation, OperationKind, PushCommit, SparseRow, Value, WireVersion};

use crate::ClientId;
use crate::hooks::Allowed;
use crate::keys::render_key;
use crate::model::{Needs, ResultKey, RowKey};
use crate::schema::{OnDelete, Schema, Table};

use super::references::children_of;
use super::rows::{blob_ids, decode_payload};
use super::staging::references_to;
use super::{PushEnv, PushInput};

/// The recorded result, the target rows, the parents that payloads name and the
/// children of rows to be deleted. A payload that does not decode names nothing;
/// [`super::decide`] refuses it.
pub fn initial_needs(env: &PushEnv<'_>, push: &PushInput<'_>) -> Needs {
    let mut needs = Needs::default();
    needs.results.insert(push.result_key());
    if matches!(push.allowed, Allowed::Failed) {
        return needs;
    }
    let operations = u32::try_from(push.commit.operations.len()).unwrap_or(u32::MAX);
    for operation in &push.commit.operations {
        let Some(table) = env.schema.table(&operation.table) else {
            continue;
        };
        if matches!(operation.kind, OperationKind::Delete) {
            let row_id: Arc<str> = operation.row_id.as_str().into();
            for (child, reference) in references_to(env.schema, table.id) {
                let wanted = match reference.on_delete {
                    OnDelete::Restrict => 1,
                    OnDelete::Cascade | OnDelete::SetNull => env.cascade_cap.saturating_add(1),
                };
                let of = children_of(child.id, reference.column, &row_id);
                // Siblings may be staged over what is read.
                needs
                    .children
                    .insert(of.limited(wanted.saturating_add(operations)));
            }
        }
        needs.rows.extend(rows_of(table, push.wire, operation));
    }
    needs
}

/// What can be read for the commits of one request before it is known what its actor
/// may do: their recorded results, target rows and parents. Nothing is decided by it.
pub fn needs_ahead<'a>(
    schema: &Schema,
    client_id: &ClientId,
    wire: WireVersion,
    commits: impl IntoIterator<Item = &'a PushCommit>,
) -> Needs {
    let mut needs = Needs::default();
    for commit in commits {
        needs.results.insert(ResultKey {
            client_id: client_id.clone(),
            client_commit_id: commit.client_commit_id.as_str().into(),
        });
        for operation in &commit.operations {
            if let Some(table) = schema.table(&operation.table) {
                needs.rows.extend(rows_of(table, wire, operation));
            }
        }
    }
    needs
}

/// The target row of an operation, and the parents that its payload names.
fn rows_of(table: &Table, wire: WireVersion, operation: &Operation) -> Vec<RowKey> {
    let mut rows = vec![RowKey {
        table: table.id,
        row_id: operation.row_id.as_str().into(),
    }];
    if let OperationKind::Upsert(payload) = &operation.kind
        && !table.references.is_empty()
        && let Ok(payload) = decode_payload(table, wire, payload)
    {
        rows.extend(parents(table, &payload));
    }
    rows
}

fn parents(table: &Table, payload: &SparseRow) -> impl Iterator<Item = RowKey> {
    table.references.iter().filter_map(|reference| {
        let value: &Value = payload.get(reference.column)?.as_ref()?;
        Some(RowKey {
            table: reference.parent,
            row_id: render_key(value)?.into(),
        })
    })
}

/// The blobs that a push references (§6.6), for a blob store that must be asked
/// before [`super::BlobLookup`] answers.
pub fn referenced_blobs(env: &PushEnv<'_>, push: &PushInput<'_>) -> BTreeSet<String> {
    let mut blobs = BTreeSet::new();
    for operation in &push.commit.operations {
        let Some(table) = env.schema.table(&operation.table) else {
            continue;
        };
        let has_blobs = table
            .columns
            .iter()
            .any(|column| column.ty == ssp2::ColumnType::BlobRef);
        if let OperationKind::Upsert(payload) = &operation.kind
            && has_blobs
            && let Ok(payload) = decode_payload(table, push.wire, payload)
        {
            blobs.extend(blob_ids(table, &payload));
        }
    }
    blobs
}

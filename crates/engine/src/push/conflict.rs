//! What an upsert means for the row it meets (§3.4 rule 5, §6.2): pure tables.

use ssp2::{ColumnSet, SparseRow, Value, WireVersion};

use crate::column_versions::ColumnVersions;
use crate::schema::Table;

use super::rows::comparable_columns;

/// What becomes of an upsert of an existing row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnPresent {
    /// Write it.
    Apply,
    /// A scope column differs from the stored one.
    ScopeChange,
    /// The base version was never issued.
    FutureBase,
    /// `sync.version_conflict`, with the columns that are in conflict.
    Conflict(ColumnSet),
}

/// Judges an authorized upsert of an existing row (§6.2 rules 2 to 6).
///
/// Below version 3 a payload is the whole row: it cannot leave a scope column
/// out, so a different one is ignored instead of refused, and the base is
/// compared with the row's version instead of each column's.
pub(super) fn judge_present(
    table: &Table,
    wire: WireVersion,
    base: Option<i64>,
    payload: &SparseRow,
    stored: &[Value],
    server_version: i64,
    versions: &ColumnVersions,
) -> OnPresent {
    let sparse = wire >= WireVersion::V3;
    if sparse {
        let moves_scope = table.scopes.iter().any(|pattern| {
            match (payload.get(pattern.column), stored.get(pattern.column)) {
                (Some(Some(pushed)), Some(current)) => !same(pushed, current),
                _ => false,
            }
        });
        if moves_scope {
            return OnPresent::ScopeChange;
        }
    }
    let Some(base) = base else {
        return OnPresent::Apply;
    };
    if sparse && base > server_version {
        return OnPresent::FutureBase;
    }
    let marked = |since: Option<i64>| {
        let mut columns = ColumnSet::new(table.columns.len());
        comparable_columns(table)
            .filter(|&column| matches!(payload.get(column), Some(Some(_))))
            .filter(|&column| since.is_none_or(|since| versions.get(column) > since))
            .for_each(|column| columns.insert(column));
        columns
    };
    if base == 0 {
        return OnPresent::Conflict(marked(None));
    }
    let columns = marked(Some(base));
    if sparse {
        return if columns.is_empty() {
            OnPresent::Apply
        } else {
            OnPresent::Conflict(columns)
        };
    }
    if base == server_version {
        OnPresent::Apply
    } else if columns.is_empty() {
        // The whole row is at odds although no comparable column moved, or the
        // base was never issued: no column can be singled out.
        OnPresent::Conflict(marked(None))
    } else {
        OnPresent::Conflict(columns)
    }
}

/// Equality of stored values: as `==`, but a float equals itself bit for bit.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits() || a == b,
        _ => a == b,
    }
}

/// What becomes of an upsert of an absent row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnAbsent {
    /// Insert at version 1.
    Insert,
    /// `sync.row_missing`
    RowMissing,
    /// `sync.row_deleted`
    RowDeleted,
}

/// Judges an upsert of an absent row (§6.2, the tombstone table). Old clients
/// know nothing of tombstones: theirs inserts.
pub(super) fn judge_absent(
    wire: WireVersion,
    base: Option<i64>,
    tombstone: bool,
    complete: bool,
) -> OnAbsent {
    match base {
        Some(0) if complete => OnAbsent::Insert,
        Some(_) => OnAbsent::RowMissing,
        None if tombstone && wire >= WireVersion::V3 => OnAbsent::RowDeleted,
        None if complete => OnAbsent::Insert,
        None => OnAbsent::RowMissing,
    }
}

//! What changes between the layouts a database was published with and a new
//! schema (migrations.md rule 1), and whether that change is allowed.
//!
//! Allowed: new tables, retired tables, nullable columns appended at the end.
//! Everything else would change the meaning of bytes already in the log or in a
//! client's replica, and is refused.

use std::fmt;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ssp2::{Column, RowError};

use super::layouts::StoredLayouts;
use super::{Schema, Table};
use crate::ids::TableId;

/// A migration that may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationPlan {
    /// One entry per table of the new schema, in its order.
    pub tables: Vec<TablePlan>,
    /// Stored tables that the new schema no longer has, sorted.
    pub retired: Vec<String>,
}

/// What happens to one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePlan {
    /// The table in the new schema.
    pub table: TableId,
    /// Its change.
    pub change: TableChange,
}

/// The change of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableChange {
    /// The database does not have it yet.
    Created,
    /// Its layout stays; payloads stay.
    Unchanged,
    /// Nullable columns are appended; every payload is rewritten.
    Appended {
        /// The stored layout, to decode payloads with.
        stored: Vec<Column>,
        /// Ordinals of the new columns.
        columns: Range<usize>,
    },
}

/// A change that is refused. The message is for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table {table}, column {column}: {reason}")]
pub struct MigrationRefusal {
    /// Table.
    pub table: String,
    /// Column.
    pub column: String,
    /// Why.
    pub reason: RefusalReason,
}

/// Why a layout change is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The stored column is gone (or renamed: the layout cannot tell).
    Removed,
    /// The stored column stands at another position.
    Moved,
    /// A column was inserted before stored ones.
    Inserted,
    /// Its type changed.
    Retyped {
        /// Stored type.
        from: &'static str,
        /// New type.
        to: &'static str,
    },
    /// Its nullability changed.
    Nullability,
    /// An appended column does not allow NULL, which stored rows would need.
    AppendedNotNullable,
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("a stored column may not be removed or renamed"),
            Self::Moved => f.write_str("a stored column may not be reordered"),
            Self::Inserted => f.write_str("a new column must come after all stored columns"),
            Self::Retyped { from, to } => {
                write!(f, "the type may not change (from {from} to {to})")
            }
            Self::Nullability => f.write_str("the nullability may not change"),
            Self::AppendedNotNullable => f.write_str("an appended column must be nullable"),
        }
    }
}

/// Plans the step from the stored layouts to `schema`; empty layouts are a new database.
///
/// # Errors
/// Every refused change, never empty.
pub fn plan(
    stored: &StoredLayouts,
    schema: &Schema,
) -> Result<MigrationPlan, Vec<MigrationRefusal>> {
    let mut refusals = Vec::new();
    let tables = schema
        .tables()
        .iter()
        .map(|table| TablePlan {
            table: table.id,
            change: match stored.table(&table.name) {
                None => TableChange::Created,
                Some(columns) => change(table, columns, &mut refusals),
            },
        })
        .collect();
    let retired = stored
        .table_names()
        .filter(|name| schema.table(name).is_none())
        .map(str::to_owned)
        .collect();
    if refusals.is_empty() {
        Ok(MigrationPlan { tables, retired })
    } else {
        Err(refusals)
    }
}

fn change(table: &Table, stored: &[Column], refusals: &mut Vec<MigrationRefusal>) -> TableChange {
    let before = refusals.len();
    let mut refuse = |column: &Column, reason| {
        refusals.push(MigrationRefusal {
            table: table.name.clone(),
            column: column.name.clone(),
            reason,
        });
    };
    for (ordinal, old) in stored.iter().enumerate() {
        match table.column(&old.name) {
            None => refuse(old, RefusalReason::Removed),
            Some(new) => {
                let column = &table.columns[new];
                if new != ordinal {
                    refuse(old, RefusalReason::Moved);
                }
                if column.ty != old.ty {
                    refuse(
                        old,
                        RefusalReason::Retyped {
                            from: old.ty.name(),
                            to: column.ty.name(),
                        },
                    );
                }
                if column.nullable != old.nullable {
                    refuse(old, RefusalReason::Nullability);
                }
            }
        }
    }
    for (ordinal, new) in table.columns.iter().enumerate() {
        if stored.iter().any(|old| old.name == new.name) {
            continue;
        }
        if ordinal < stored.len() {
            refuse(new, RefusalReason::Inserted);
        }
        if !new.nullable {
            refuse(new, RefusalReason::AppendedNotNullable);
        }
    }
    if refusals.len() > before || stored.len() == table.columns.len() {
        TableChange::Unchanged
    } else {
        TableChange::Appended {
            stored: stored.to_vec(),
            columns: stored.len()..table.columns.len(),
        }
    }
}

/// Rewrites a stored full row (§2.4) to a layout with appended nullable columns,
/// all of them NULL. Values keep their bytes; only the null bitmap changes.
///
/// # Errors
/// When `new` is not `old` plus nullable columns, or the row is shorter than its
/// null bitmap or sets padding bits.
pub fn rewrite_payload(old: &[Column], new: &[Column], row: &Bytes) -> Result<Bytes, RowError> {
    let error = |message, column| Err(RowError { message, column });
    if new.len() < old.len() || new[..old.len()] != *old {
        return error("the new layout does not extend the stored one", None);
    }
    if let Some(at) = new[old.len()..].iter().position(|column| !column.nullable) {
        return error("an appended column must be nullable", Some(old.len() + at));
    }
    let (had, has) = (old.len().div_ceil(8), new.len().div_ceil(8));
    if row.len() < had {
        return error("the row is shorter than its null bitmap", None);
    }
    let (bitmap, values) = row.split_at(had);
    let mut nulls = bitmap.to_vec();
    nulls.resize(has, 0);
    for ordinal in old.len()..new.len().max(had * 8) {
        let (byte, bit) = (ordinal / 8, 1 << (ordinal % 8));
        if byte < had && bitmap[byte] & bit != 0 {
            return error("the null bitmap sets a padding bit", None);
        }
        if ordinal < new.len() {
            nulls[byte] |= bit;
        }
    }
    let mut out = BytesMut::with_capacity(has + values.len());
    out.put_slice(&nulls);
    out.put_slice(values);
    Ok(out.freeze())
}

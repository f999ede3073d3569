//! Local edits, before they become an outbox commit.

use bytes::Bytes;
use ssp2::Value;

/// A local edit of one row. Several edits handed in together are one atomic commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit {
    pub(crate) table: String,
    pub(crate) kind: EditKind,
    pub(crate) base: Base,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EditKind {
    Upsert(Vec<(String, Value)>),
    Update(String, Vec<(String, Value)>),
    Delete(String),
}

/// The optimistic base version an edit carries (§6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Base {
    /// None: last write wins.
    #[default]
    None,
    /// The version the replica last received for the row; none when it holds none.
    Known,
    /// The row must not exist yet (0 on the wire).
    Absent,
    /// Exactly this version.
    Exact(i64),
}

/// Why an edit cannot be recorded. Nothing of the commit is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No operation at all: the server would answer `sync.empty_commit`.
    #[error("a commit needs at least one operation")]
    Empty,
    /// The schema has no such table.
    #[error("there is no table {0}")]
    UnknownTable(String),
    /// The table has no such column.
    #[error("table {table} has no column {column}")]
    UnknownColumn {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// An upsert leaves out a column that cannot be NULL, or the key.
    #[error("table {table}: column {column} needs a value")]
    MissingColumn {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// The primary key has no rendering as a row id.
    #[error("table {0}: this value cannot be a primary key")]
    InvalidKey(String),
    /// Wire 1 and 2 send whole rows, and the replica does not hold this one.
    #[error("table {table}: row {row_id} is not held, so its whole row cannot be sent")]
    RowNotHeld {
        /// The table.
        table: String,
        /// The row.
        row_id: String,
    },
}

impl Edit {
    /// Writes a whole row; nullable columns left out become NULL.
    #[must_use]
    pub fn upsert(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            kind: EditKind::Upsert(Vec::new()),
            base: Base::None,
        }
    }

    /// Writes some columns of a row: a sparse row on wire 3, the whole row as the
    /// replica shows it on wire 1 and 2.
    #[must_use]
    pub fn update(table: impl Into<String>, row_id: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            kind: EditKind::Update(row_id.into(), Vec::new()),
            base: Base::None,
        }
    }

    /// Deletes a row.
    #[must_use]
    pub fn delete(table: impl Into<String>, row_id: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            kind: EditKind::Delete(row_id.into()),
            base: Base::None,
        }
    }

    /// Sets a column; a deletion has none, and ignores it.
    #[must_use]
    pub fn set(mut self, column: impl Into<String>, value: impl IntoValue) -> Self {
        if let EditKind::Upsert(columns) | EditKind::Update(_, columns) = &mut self.kind {
            columns.push((column.into(), value.into_value()));
        }
        self
    }

    /// Sets the optimistic base version.
    #[must_use]
    pub fn base(mut self, base: Base) -> Self {
        self.base = base;
        self
    }
}

/// What can stand as a column value.
pub trait IntoValue {
    /// The value on the wire.
    fn into_value(self) -> Value;
}

impl IntoValue for Value {
    fn into_value(self) -> Value {
        self
    }
}
impl IntoValue for &str {
    fn into_value(self) -> Value {
        Value::Text(self.to_owned())
    }
}
impl IntoValue for String {
    fn into_value(self) -> Value {
        Value::Text(self)
    }
}
impl IntoValue for i64 {
    fn into_value(self) -> Value {
        Value::Integer(self)
    }
}
impl IntoValue for f64 {
    fn into_value(self) -> Value {
        Value::Float(self)
    }
}
impl IntoValue for bool {
    fn into_value(self) -> Value {
        Value::Boolean(self)
    }
}
impl IntoValue for Bytes {
    fn into_value(self) -> Value {
        Value::Bytes(self)
    }
}
impl<T: IntoValue> IntoValue for Option<T> {
    fn into_value(self) -> Value {
        self.map_or(Value::Null, IntoValue::into_value)
    }
}

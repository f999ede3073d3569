//! Row codecs (§2.4): full rows and wire-3 sparse rows.

use bytes::Bytes;

use crate::error::{ErrorCode, SyncError};

/// Column types with their wire tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// 1
    String = 1,
    /// 2
    Integer = 2,
    /// 3
    Float = 3,
    /// 4
    Boolean = 4,
    /// 5
    Json = 5,
    /// 6
    Bytes = 6,
    /// 7
    BlobRef = 7,
    /// 8
    Crdt = 8,
}

/// What the codec must know of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: ColumnType,
    /// Whether NULL is allowed.
    pub nullable: bool,
}

/// A decoded column value. Text kinds keep their raw text.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL
    Null,
    /// string, json and blob_ref
    Text(String),
    /// integer
    Integer(i64),
    /// float
    Float(f64),
    /// boolean
    Boolean(bool),
    /// bytes and crdt
    Bytes(Bytes),
}

/// A decoded sparse row: `None` = column absent.
pub type SparseRow = Vec<Option<Value>>;

/// Why row bytes do not decode, or values do not encode. Always `sync.invalid_request`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RowError {
    /// The rule broken; static and public.
    pub message: &'static str,
    /// Offending column ordinal where there is one.
    pub column: Option<usize>,
}

impl From<RowError> for SyncError {
    fn from(error: RowError) -> Self {
        Self::new(ErrorCode::InvalidRequest, error.message)
    }
}

//! What a backfill computes: a pure function from one source row to at most one
//! target row.

mod config;
mod declared;
mod expression;

use std::sync::Arc;

use ssp2::{ColumnType, Value};

use crate::ids::{SchemaVersion, TableId};
use crate::schema::{Schema, Table};

pub use config::{ConfigError, ProjectionConfig};
pub use declared::DeclaredProjection;
pub use expression::{MAX_EXPRESSION_BYTES, MAX_EXPRESSION_DEPTH, MAX_VALUE_BYTES};

/// What a projection fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Nullable columns of the source row itself; the target is the one source.
    /// A row that the projection leaves out has NULL in them.
    Columns(Vec<usize>),
    /// Rows of a table of their own. A source row that the projection leaves out,
    /// or that is deleted, has no target row.
    Rows,
}

/// A source row.
#[derive(Debug, Clone, Copy)]
pub struct SourceRow<'a> {
    /// Its table.
    pub table: &'a Table,
    /// Its id.
    pub row_id: &'a str,
    /// Its values, in column order.
    pub values: &'a [Value],
}

/// The computed part of a target row.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectedRow {
    /// Id of the target row.
    pub row_id: Arc<str>,
    /// Computed columns by ascending ordinal, the primary key included for
    /// [`Shape::Rows`]. Other columns keep what they hold; NULL in a new row.
    pub cells: Vec<(usize, Value)>,
}

/// The transform of a backfill (migrations.md "Projection"). Pure: the same row
/// gives the same result in every process that runs this version.
pub trait Projection: Send + Sync {
    /// The checkpoint's name.
    fn name(&self) -> &str;
    /// The schema version it belongs to.
    fn schema_version(&self) -> SchemaVersion;
    /// The tables whose rows it reads, in scan order; never empty.
    fn sources(&self) -> &[TableId];
    /// The table it fills.
    fn target(&self) -> TableId;
    /// What it fills there.
    fn shape(&self) -> &Shape;
    /// Whether its target may be read before it is complete.
    fn serve_while_backfilling(&self) -> bool {
        false
    }
    /// Identity of the definition: changes when the computed values may. Pages of
    /// another definition are no progress of this one.
    fn fingerprint(&self) -> &str;
    /// The target row of a source row, deleted ones included: known from its id alone.
    ///
    /// # Errors
    /// When the id gives no key.
    fn target_row_id(&self, source: &Table, row_id: &str) -> Result<Arc<str>, ProjectionFailure>;
    /// Computes the target row; `None` leaves the source row out.
    ///
    /// # Errors
    /// When a value cannot be computed or does not fit its column.
    fn project(&self, row: &SourceRow<'_>) -> Result<Option<ProjectedRow>, ProjectionFailure>;
}

/// The names of a projection's source tables, for questions about the log.
pub fn source_names<'a>(schema: &'a Schema, projection: &dyn Projection) -> Vec<&'a str> {
    let named = |id: &TableId| schema.table_at(*id).name.as_str();
    projection.sources().iter().map(named).collect()
}

/// Why a row has no projection. Stops the worker, is stored and shown to the
/// operator; it names the row and the column, never what they hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{table} row {row_id}{}: {reason}", .part.as_deref().map(|part| format!(", {part}")).unwrap_or_default())]
pub struct ProjectionFailure {
    /// Source table.
    pub table: String,
    /// Source row.
    pub row_id: String,
    /// The computed column, or `key`, `where`.
    pub part: Option<String>,
    /// Why.
    pub reason: FailureReason,
}

/// The kinds of projection failures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FailureReason {
    /// Integer arithmetic left its range.
    #[error("arithmetic overflows")]
    Overflow,
    /// Division or remainder by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A key or an index that a json value does not have.
    #[error("a json value has no such element")]
    NoSuchElement,
    /// An operation on types it does not take; NULL is such a type.
    #[error("an operation does not take values of these types")]
    TypeMismatch,
    /// A function refused its argument.
    #[error("a function refuses its argument")]
    ConversionFailed,
    /// The value is of another type than its column.
    #[error("the value is a {got}, the column a {}", .wanted.name())]
    WrongType {
        /// The column's type.
        wanted: ColumnType,
        /// The value's CEL type.
        got: String,
    },
    /// NULL for a column that takes none.
    #[error("the value is NULL, which the column does not take")]
    NullNotAllowed,
    /// An integer beyond 2^53 − 1.
    #[error("the integer is outside of the safe range")]
    UnsafeInteger,
    /// Infinite, or not a number.
    #[error("the number is not finite")]
    NotFinite,
    /// Not a JSON document, or not text of one.
    #[error("the value is not JSON")]
    NotJson,
    /// Beyond [`MAX_VALUE_BYTES`].
    #[error("the value is too large")]
    TooLarge,
    /// A key that is NULL or empty.
    #[error("the key is empty")]
    EmptyKey,
    /// Another source row of the same page has the same key.
    #[error("another source row has the same key")]
    KeyTaken,
    /// A scope column of the computed row is empty: the row would belong to nobody.
    #[error("the computed row has no scope")]
    NoScope,
    /// The scopes of a stored target row are others than the computed ones, and
    /// scopes never change (§3.4 rule 5).
    #[error("the computed row moves to another scope")]
    ScopeMoved,
    /// The row does not have its table's columns.
    #[error("the row does not fit its table")]
    BadRow,
    /// The transform panicked.
    #[error("the transform failed")]
    Panicked,
}

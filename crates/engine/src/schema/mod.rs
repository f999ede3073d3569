//! The compiled schema IR (§2.4, §3.1, §6.11). Built only by [`Schema::load`], so a
//! `Schema` in hand is valid.

pub mod layouts;
mod load;
pub mod migration;
mod patterns;
mod references;
mod report;

use std::collections::HashMap;

use ssp2::{Column, ColumnType};

use crate::ids::{SchemaVersion, TableId};

pub use layouts::{LayoutMismatch, LayoutsError, StoredLayouts};
pub use report::SchemaError;

/// A compiled schema. Table order is bootstrap order.
#[derive(Debug, Clone)]
pub struct Schema {
    pub(crate) version: SchemaVersion,
    pub(crate) tables: Vec<Table>,
    pub(crate) by_name: HashMap<String, TableId>,
}

/// A compiled table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its index.
    pub id: TableId,
    /// Name, also the SQL table's name.
    pub name: String,
    /// Codec columns in declaration order.
    pub columns: Vec<Column>,
    /// IR-only facts of each column, same order.
    pub column_info: Vec<ColumnInfo>,
    /// Ordinal of the primary key column.
    pub primary_key: usize,
    /// Scope patterns, at least one.
    pub scopes: Vec<ScopePattern>,
    /// Declared secondary indexes.
    pub indexes: Vec<Index>,
    /// Declared references, this table being the child.
    pub references: Vec<Reference>,
    /// Whether app columns exist as SQL columns.
    pub materialize: bool,
}

/// Column facts that never travel on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnInfo {
    /// Merger name of a crdt column.
    pub crdt_type: Option<String>,
    /// Client-side encrypted (type is then bytes).
    pub encrypted: bool,
    /// Type before encryption.
    pub declared_type: Option<ColumnType>,
}

/// `prefix:{variable}` over a column (§3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopePattern {
    /// Literal prefix, without the colon.
    pub prefix: String,
    /// Scope variable.
    pub variable: String,
    /// Ordinal of the column that holds its value.
    pub column: usize,
}

/// A declared index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Declared name.
    pub name: String,
    /// Column ordinals in order.
    pub columns: Vec<usize>,
    /// Whether it is unique (per partition).
    pub unique: bool,
}

/// A declared reference (§6.11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Ordinal of the child column.
    pub column: usize,
    /// Parent table.
    pub parent: TableId,
    /// What deleting the parent does.
    pub on_delete: OnDelete,
}

/// Action on delete of a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDelete {
    /// Refuse (default).
    Restrict,
    /// Delete the children.
    Cascade,
    /// Clear the child column.
    SetNull,
}

impl Table {
    /// The ordinal of the column of that name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
    /// Whether a scope pattern reads column `ordinal` (immutable on update, §3.4 rule 5).
    pub fn is_scope_column(&self, ordinal: usize) -> bool {
        self.scopes.iter().any(|scope| scope.column == ordinal)
    }
    /// Whether any column is encrypted by clients (§5.11): such a table is never
    /// served as a SQLite image.
    pub fn has_encrypted_column(&self) -> bool {
        self.column_info.iter().any(|info| info.encrypted)
    }
}

impl Schema {
    /// Its version.
    pub const fn version(&self) -> SchemaVersion {
        self.version
    }
    /// Tables in bootstrap order.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }
    /// The table of that name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.by_name
            .get(name)
            .map(|id| &self.tables[usize::from(id.0)])
    }
    /// The table of that index.
    ///
    /// # Panics
    /// When `id` comes from another schema.
    pub fn table_at(&self, id: TableId) -> &Table {
        &self.tables[usize::from(id.0)]
    }
}

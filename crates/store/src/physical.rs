//! App tables as SQL databases hold them: the columns that every one has,
//! identifiers, declared indexes, and whether what the catalog says can be read
//! and written (docs/migrations.md rule 1, `physical_layout_mismatch`).

use tidegate_engine::schema::{Index, Table};

use crate::error::StoreError;
use crate::stored::owned_index_name;

/// A column that every app table has. App columns stand after the second.
pub(crate) struct MetaColumn {
    pub(crate) name: &'static str,
    pub(crate) sql_type: &'static str,
    pub(crate) not_null: bool,
    /// 1-based position in the primary key, 0 = none.
    pub(crate) key_position: i64,
}

pub(crate) const fn meta(
    name: &'static str,
    sql_type: &'static str,
    not_null: bool,
    key_position: i64,
) -> MetaColumn {
    MetaColumn {
        name,
        sql_type,
        not_null,
        key_position,
    }
}

/// A column as the catalog declares it.
#[derive(Debug, Clone)]
pub(crate) struct PhysicalColumn {
    pub(crate) name: String,
    pub(crate) sql_type: String,
    pub(crate) not_null: bool,
    /// As in [`MetaColumn`].
    pub(crate) key_position: i64,
}

/// An SQL identifier in quotes.
pub(crate) fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// `CREATE INDEX` of a declared index: per partition, unique ones too.
pub(crate) fn create_index(table: &Table, index: &Index) -> String {
    let columns: Vec<String> = index
        .columns
        .iter()
        .map(|ordinal| quote(&table.columns[*ordinal].name))
        .collect();
    format!(
        "CREATE {}INDEX {} ON {} (\"_sync_partition\", {})",
        if index.unique { "UNIQUE " } else { "" },
        quote(&owned_index_name(&index.name)),
        quote(&table.name),
        columns.join(", ")
    )
}

/// Every declared column must exist; Tidegate's own columns must also have their
/// type, nullability and place in the key. Types of app columns are the stored
/// layouts' concern: columns added later are nullable in SQL by design.
///
/// # Errors
/// [`StoreError::PhysicalLayoutMismatch`] with the first difference.
pub(crate) fn verify(
    table: &Table,
    meta_columns: &[MetaColumn],
    physical: &[PhysicalColumn],
) -> Result<(), StoreError> {
    let mismatch = |column: Option<&str>, reason, expected: Option<&str>, actual: Option<&str>| {
        Err(StoreError::PhysicalLayoutMismatch {
            table: table.name.clone(),
            column: column.map(str::to_owned),
            reason,
            expected: expected.map(str::to_owned),
            actual: actual.map(str::to_owned),
        })
    };
    if physical.is_empty() {
        return mismatch(None, "missing_table", None, None);
    }
    let find = |name: &str| physical.iter().find(|column| column.name == name);
    let app_columns = table
        .columns
        .iter()
        .filter(|_| table.materialize)
        .map(|column| column.name.as_str());
    let names = meta_columns.iter().map(|column| column.name);
    for name in names.chain(app_columns) {
        if find(name).is_none() {
            return mismatch(Some(name), "missing_column", None, None);
        }
    }
    for expected in meta_columns {
        let Some(actual) = find(expected.name) else {
            continue;
        };
        if !actual.sql_type.eq_ignore_ascii_case(expected.sql_type) {
            return mismatch(
                Some(expected.name),
                "type",
                Some(expected.sql_type),
                Some(&actual.sql_type),
            );
        }
        if actual.not_null != expected.not_null {
            let words = |not_null| if not_null { "not_null" } else { "nullable" };
            return mismatch(
                Some(expected.name),
                "nullability",
                Some(words(expected.not_null)),
                Some(words(actual.not_null)),
            );
        }
    }
    for actual in physical {
        let expected = meta_columns
            .iter()
            .find(|column| column.name == actual.name)
            .map_or(0, |column| column.key_position);
        if actual.key_position != expected {
            return mismatch(Some(&actual.name), "primary_key", None, None);
        }
    }
    Ok(())
}

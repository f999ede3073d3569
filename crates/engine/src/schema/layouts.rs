//! Stored layouts: what the database says its payloads look like
//! (`sync_schema_meta.layouts`), as `{table: [{name, type, nullable}]}` with
//! columns in declaration order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use ssp2::{Column, ColumnType};

use super::{Schema, Table};

/// The layouts a database was last published with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredLayouts {
    tables: BTreeMap<String, Vec<Column>>,
}

/// The stored text is not a layouts document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored layouts are unreadable")]
pub struct LayoutsError;

/// The first place where stored layouts and a schema differ
/// (`sync.storage.stored_layout_mismatch`, §2.4 same-version readiness).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutMismatch {
    /// Table.
    pub table: String,
    /// Column, when the table is in both.
    pub column: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ColumnRecord<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    ty: std::borrow::Cow<'a, str>,
    nullable: bool,
}

impl StoredLayouts {
    /// Reads the stored text; an empty one is a database without layouts.
    ///
    /// # Errors
    /// [`LayoutsError`] when it is not such a document.
    pub fn parse(json: &str) -> Result<Self, LayoutsError> {
        if json.trim().is_empty() {
            return Ok(Self::default());
        }
        let records: BTreeMap<String, Vec<ColumnRecord<'_>>> =
            serde_json::from_str(json).map_err(|_| LayoutsError)?;
        let mut tables = BTreeMap::new();
        for (table, columns) in records {
            let columns = columns
                .into_iter()
                .map(|record| {
                    Ok(Column {
                        ty: ColumnType::from_name(&record.ty).ok_or(LayoutsError)?,
                        name: record.name.into_owned(),
                        nullable: record.nullable,
                    })
                })
                .collect::<Result<_, LayoutsError>>()?;
            tables.insert(table, columns);
        }
        Ok(Self { tables })
    }

    /// The layouts that publishing `schema` stores.
    pub fn of(schema: &Schema) -> Self {
        Self {
            tables: schema
                .tables()
                .iter()
                .map(|table| (table.name.clone(), table.columns.clone()))
                .collect(),
        }
    }

    /// The stored columns of a table.
    pub fn table(&self, name: &str) -> Option<&[Column]> {
        self.tables.get(name).map(Vec::as_slice)
    }

    /// Names of all stored tables, sorted.
    pub fn table_names(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// The first difference to `schema`: its tables in order, column by column,
    /// then tables that only the database has.
    pub fn mismatch(&self, schema: &Schema) -> Option<LayoutMismatch> {
        for table in schema.tables() {
            let stored = self.table(&table.name).unwrap_or_default();
            let count = table.columns.len().max(stored.len());
            for ordinal in 0..count {
                let (expected, actual) = (table.columns.get(ordinal), stored.get(ordinal));
                if expected != actual {
                    return Some(LayoutMismatch {
                        table: table.name.clone(),
                        column: expected.or(actual).map(|column| column.name.clone()),
                    });
                }
            }
        }
        self.table_names()
            .find(|name| schema.table(name).is_none())
            .map(|name| LayoutMismatch {
                table: name.to_owned(),
                column: None,
            })
    }
}

impl Schema {
    /// The layouts document to publish, tables and columns in declaration order.
    pub fn layouts_json(&self) -> String {
        let tables: Vec<String> = self.tables().iter().map(layout_entry).collect();
        format!("{{{}}}", tables.join(","))
    }
}

// Written by hand because a JSON map type would sort the tables.
fn layout_entry(table: &Table) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| {
            format!(
                "{{\"name\":{},\"type\":\"{}\",\"nullable\":{}}}",
                quoted(&column.name),
                column.ty.name(),
                column.nullable
            )
        })
        .collect();
    format!("{}:[{}]", quoted(&table.name), columns.join(","))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

//! Compiling a schema document: every rule it breaks is reported, each with the
//! JSON path where it is broken.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value as Json};
use ssp2::{Column, ColumnType};

use super::patterns::{read_indexes, read_scopes};
use super::references::{compile_references, read_references};
use super::report::{RESERVED_TABLE_PREFIXES, Report, SchemaError};
use super::{ColumnInfo, Schema, Table};
use crate::ids::{SchemaVersion, TableId};

impl Schema {
    /// Compiles a schema document (§2.4 "Schema IR", §3.1, §6.11), hand-written or
    /// as the client generator writes it. Unknown keys are ignored.
    ///
    /// # Errors
    /// Every broken rule, never empty.
    pub fn load(json: &str) -> Result<Self, Vec<SchemaError>> {
        let mut report = Report::default();
        let document: Json = match serde_json::from_str(json) {
            Ok(document) => document,
            Err(error) => {
                report.add("$", format!("is not JSON: {error}"));
                return Err(report.into_errors());
            }
        };
        let Some(root) = report.object(&document, "$") else {
            return Err(report.into_errors());
        };
        let version = read_version(&mut report, root);
        let (mut tables, mut references) = (Vec::new(), Vec::new());
        let entries = report.list(root, "tables", "$", true);
        if matches!(root.get("tables"), Some(Json::Array(tables)) if tables.is_empty()) {
            report.add("$.tables", "at least one table is needed");
        }
        if entries.len() > usize::from(u16::MAX) {
            report.add("$.tables", "too many tables");
            return Err(report.into_errors());
        }
        for (path, entry) in &entries {
            let id = TableId(u16::try_from(tables.len()).unwrap_or(u16::MAX));
            if let Some(object) = report.object(entry, path)
                && let Some(table) = read_table(&mut report, object, path, id)
            {
                references.push(read_references(&mut report, object, path));
                tables.push(table);
            }
        }
        check_unique_names(&mut report, &tables, &entries);
        let by_name = tables
            .iter()
            .map(|table| (table.name.clone(), table.id))
            .collect();
        // Tables that broke other rules still count as declared: one fault, one report.
        let declared = entries
            .iter()
            .filter_map(|(_, entry)| entry.get("name")?.as_str())
            .collect();
        compile_references(&mut report, &mut tables, &by_name, &declared, &references);
        match version {
            Some(version) if report.is_empty() => Ok(Self {
                version,
                tables,
                by_name,
            }),
            _ => Err(report.into_errors()),
        }
    }
}

fn read_version(report: &mut Report, root: &Map<String, Json>) -> Option<SchemaVersion> {
    let mut found = None;
    for key in ["schemaVersion", "version"] {
        let Some(json) = root.get(key) else { continue };
        let version = json
            .as_i64()
            .and_then(|version| i32::try_from(version).ok())
            .filter(|version| *version >= 1)
            .map(SchemaVersion);
        match (version, found) {
            (None, _) => report.add(
                format_args!("$.{key}"),
                "must be an integer from 1 to 2147483647",
            ),
            (Some(version), Some(other)) if version != other => {
                report.add(format_args!("$.{key}"), "differs from schemaVersion");
            }
            (version, _) => found = version,
        }
    }
    if !root.contains_key("schemaVersion") && !root.contains_key("version") {
        report.add("$.version", "is missing");
    }
    found
}

fn read_table(
    report: &mut Report,
    object: &Map<String, Json>,
    path: &str,
    id: TableId,
) -> Option<Table> {
    let name = report.text(object, "name", path);
    if let Some(name) = name {
        report.identifier(name, &format!("{path}.name"), &RESERVED_TABLE_PREFIXES);
    }
    let (columns, column_info) = read_columns(report, object, path);
    let ordinal = |name: &str| columns.iter().position(|column| column.name == name);
    let primary_key = report
        .text(object, "primaryKey", path)
        .and_then(|key| read_primary_key(report, key, &columns, path));
    let scopes = read_scopes(report, object, path, &columns);
    let indexes = read_indexes(report, object, path, &ordinal);
    let materialize = report.flag(object, "materialize", path);
    let has_references =
        matches!(object.get("references"), Some(Json::Array(items)) if !items.is_empty());
    if materialize == Some(false) && has_references {
        report.add(
            format_args!("{path}.materialize"),
            "a table with references must be materialized, or its rows are not found by their parent",
        );
    }
    let (name, primary_key) = (name?.to_owned(), primary_key?);
    let opaque = |at: usize| {
        let mut rest = (0..columns.len())
            .filter(|ordinal| *ordinal != at && !scopes.iter().any(|s| s.column == *ordinal))
            .peekable();
        rest.peek().is_some() && rest.all(|ordinal| column_info[ordinal].encrypted)
    };
    let materialize = materialize.unwrap_or_else(|| has_references || !opaque(primary_key));
    Some(Table {
        id,
        name,
        columns,
        column_info,
        primary_key,
        scopes,
        indexes,
        references: Vec::new(),
        materialize,
    })
}

fn read_columns(
    report: &mut Report,
    object: &Map<String, Json>,
    path: &str,
) -> (Vec<Column>, Vec<ColumnInfo>) {
    let (mut columns, mut infos) = (Vec::<Column>::new(), Vec::new());
    let mut seen = HashSet::new();
    let entries = report.list(object, "columns", path, true);
    if matches!(object.get("columns"), Some(Json::Array(list)) if list.is_empty()) {
        report.add(
            format_args!("{path}.columns"),
            "at least one column is needed",
        );
    }
    if entries.len() > usize::from(u16::MAX) {
        report.add(format_args!("{path}.columns"), "too many columns");
        return (columns, infos);
    }
    for (path, entry) in entries {
        let Some(object) = report.object(entry, &path) else {
            continue;
        };
        let name = report.text(object, "name", &path);
        if let Some(name) = name {
            report.identifier(name, &format!("{path}.name"), &[]);
            if !seen.insert(name.to_ascii_lowercase()) {
                report.add(
                    format_args!("{path}.name"),
                    format!("the column {name} is declared twice (case does not count)"),
                );
            }
        }
        let ty = report.text(object, "type", &path).and_then(|text| {
            let ty = ColumnType::from_name(text);
            if ty.is_none() {
                report.add(format_args!("{path}.type"), format!("unknown type {text}"));
            }
            ty
        });
        let nullable = report.flag(object, "nullable", &path).unwrap_or(false);
        let info = read_column_info(report, object, &path, ty);
        // A column whose type is broken still counts: references to it by name hold.
        if let Some(name) = name {
            columns.push(Column {
                name: name.to_owned(),
                ty: ty.unwrap_or(ColumnType::String),
                nullable,
            });
            infos.push(info);
        }
    }
    (columns, infos)
}

fn read_column_info(
    report: &mut Report,
    object: &Map<String, Json>,
    path: &str,
    ty: Option<ColumnType>,
) -> ColumnInfo {
    let crdt_type = report
        .optional_text(object, "crdtType", path)
        .map(str::to_owned);
    let encrypted = report.flag(object, "encrypted", path).unwrap_or(false);
    let declared_type = report
        .optional_text(object, "declaredType", path)
        .and_then(|text| {
            let ty = ColumnType::from_name(text);
            if ty.is_none() {
                report.add(
                    format_args!("{path}.declaredType"),
                    format!("unknown type {text}"),
                );
            }
            ty
        });
    match (ty, object.contains_key("crdtType")) {
        (Some(ColumnType::Crdt), false) => report.add(
            format_args!("{path}.crdtType"),
            "a crdt column must name its merger",
        ),
        (Some(ty), true) if ty != ColumnType::Crdt && crdt_type.is_some() => {
            report.add(
                format_args!("{path}.crdtType"),
                "only a crdt column has one",
            );
        }
        _ => {}
    }
    if encrypted && ty.is_some_and(|ty| ty != ColumnType::Bytes) {
        report.add(
            format_args!("{path}.type"),
            "an encrypted column must be of type bytes",
        );
    }
    ColumnInfo {
        crdt_type,
        encrypted,
        declared_type,
    }
}

fn read_primary_key(
    report: &mut Report,
    key: &str,
    columns: &[Column],
    path: &str,
) -> Option<usize> {
    let Some(ordinal) = columns.iter().position(|column| column.name == key) else {
        report.add(
            format_args!("{path}.primaryKey"),
            format!("the table has no column {key}"),
        );
        return None;
    };
    if !matches!(
        columns[ordinal].ty,
        ColumnType::String | ColumnType::Integer | ColumnType::Boolean | ColumnType::Json
    ) {
        report.add(
            format_args!("{path}.primaryKey"),
            "a primary key must be of type string, integer, boolean or json",
        );
    }
    Some(ordinal)
}

/// Table names, and index names across tables, share one namespace each in a
/// database, where case does not count.
fn check_unique_names(report: &mut Report, tables: &[Table], entries: &[(String, &Json)]) {
    let path_of = |name: &str| {
        entries
            .iter()
            .rev()
            .find(|(_, entry)| entry.get("name").and_then(Json::as_str) == Some(name))
            .map_or("$.tables", |(path, _)| path.as_str())
    };
    let mut names = HashSet::new();
    let mut index_names = HashMap::new();
    for table in tables {
        let path = path_of(&table.name);
        if !names.insert(table.name.to_ascii_lowercase()) {
            report.add(
                format_args!("{path}.name"),
                format!(
                    "the table {} is declared twice (case does not count)",
                    table.name
                ),
            );
        }
        for (at, index) in table.indexes.iter().enumerate() {
            let owner = index_names.insert(index.name.to_ascii_lowercase(), &table.name);
            if let Some(owner) = owner {
                report.add(
                    format_args!("{path}.indexes[{at}].name"),
                    format!("table {owner} already has an index {}", index.name),
                );
            }
        }
    }
}

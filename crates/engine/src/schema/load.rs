//! Compiling a schema document: every rule it breaks is reported, each with the
//! JSON path where it is broken.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::{Map, Value as Json};
use ssp2::{Column, ColumnType};

use super::references::{compile_references, read_references};
use super::types::parse_type;
use super::{ColumnInfo, Index, Schema, ScopePattern, Table};
use crate::ids::{SchemaVersion, TableId};

/// A broken rule of a schema document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct SchemaError {
    /// Where, as a JSON path: `$.tables[0].columns[2].type`.
    pub path: String,
    /// What rule, for the person who writes the schema.
    pub reason: String,
}

/// PostgreSQL cuts longer identifiers off, so two of them could become one.
const MAX_IDENTIFIER_BYTES: usize = 63;
const RESERVED_PREFIXES: [&str; 3] = ["sync_", "_sync_", "_syncular_"];
const RESERVED_TABLE_PREFIXES: [&str; 2] = ["tidegate_", "sqlite_"];

/// Collects broken rules.
#[derive(Default)]
pub(super) struct Report(Vec<SchemaError>);

impl Report {
    pub(super) fn add(&mut self, path: impl fmt::Display, reason: impl Into<String>) {
        self.0.push(SchemaError {
            path: path.to_string(),
            reason: reason.into(),
        });
    }

    /// A required, non-empty string of `object`.
    pub(super) fn text<'a>(
        &mut self,
        object: &'a Map<String, Json>,
        key: &str,
        path: &str,
    ) -> Option<&'a str> {
        match object.get(key) {
            Some(Json::String(text)) if !text.is_empty() => Some(text),
            Some(_) => {
                self.add(format_args!("{path}.{key}"), "must be a non-empty string");
                None
            }
            None => {
                self.add(format_args!("{path}.{key}"), "is missing");
                None
            }
        }
    }

    /// An optional string of `object`.
    pub(super) fn optional_text<'a>(
        &mut self,
        object: &'a Map<String, Json>,
        key: &str,
        path: &str,
    ) -> Option<&'a str> {
        match object.get(key) {
            None | Some(Json::Null) => None,
            Some(_) => self.text(object, key, path),
        }
    }

    fn flag(&mut self, object: &Map<String, Json>, key: &str, path: &str) -> Option<bool> {
        match object.get(key) {
            None | Some(Json::Null) => None,
            Some(Json::Bool(flag)) => Some(*flag),
            Some(_) => {
                self.add(format_args!("{path}.{key}"), "must be true or false");
                None
            }
        }
    }

    /// The entries of an array with their paths; an absent optional one is empty.
    pub(super) fn list<'a>(
        &mut self,
        object: &'a Map<String, Json>,
        key: &str,
        path: &str,
        required: bool,
    ) -> Vec<(String, &'a Json)> {
        match object.get(key) {
            Some(Json::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(at, item)| (format!("{path}.{key}[{at}]"), item))
                .collect(),
            None | Some(Json::Null) if !required => Vec::new(),
            None => {
                self.add(format_args!("{path}.{key}"), "is missing");
                Vec::new()
            }
            Some(_) => {
                self.add(format_args!("{path}.{key}"), "must be an array");
                Vec::new()
            }
        }
    }

    pub(super) fn object<'a>(
        &mut self,
        json: &'a Json,
        path: &str,
    ) -> Option<&'a Map<String, Json>> {
        let object = json.as_object();
        if object.is_none() {
            self.add(path, "must be an object");
        }
        object
    }

    fn identifier(&mut self, name: &str, path: &str, more_reserved: &[&str]) {
        let lower = name.to_ascii_lowercase();
        if RESERVED_PREFIXES
            .iter()
            .chain(more_reserved)
            .any(|prefix| lower.starts_with(prefix))
        {
            self.add(path, format!("the name {name} is reserved"));
        }
        if name.len() > MAX_IDENTIFIER_BYTES {
            self.add(path, "the name is longer than 63 bytes");
        }
        if name.contains('\0') {
            self.add(path, "the name holds a NUL character");
        }
    }
}

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
                return Err(report.0);
            }
        };
        let Some(root) = report.object(&document, "$") else {
            return Err(report.0);
        };
        let version = read_version(&mut report, root);
        let (mut tables, mut references) = (Vec::new(), Vec::new());
        let entries = report.list(root, "tables", "$", true);
        if matches!(root.get("tables"), Some(Json::Array(tables)) if tables.is_empty()) {
            report.add("$.tables", "at least one table is needed");
        }
        if entries.len() > usize::from(u16::MAX) {
            report.add("$.tables", "too many tables");
            return Err(report.0);
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
        compile_references(&mut report, &mut tables, &by_name, references);
        match version {
            Some(version) if report.0.is_empty() => Ok(Self {
                version,
                tables,
                by_name,
            }),
            _ => Err(report.0),
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
            let ty = parse_type(text);
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
            let ty = parse_type(text);
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

fn read_scopes(
    report: &mut Report,
    object: &Map<String, Json>,
    path: &str,
    columns: &[Column],
) -> Vec<ScopePattern> {
    let mut scopes: Vec<ScopePattern> = Vec::new();
    let entries = report.list(object, "scopes", path, true);
    if matches!(object.get("scopes"), Some(Json::Array(list)) if list.is_empty()) {
        report.add(
            format_args!("{path}.scopes"),
            "every table needs at least one scope pattern",
        );
    }
    for (path, entry) in entries {
        let no_fields = Map::new();
        let (pattern, fields) = match entry {
            Json::String(pattern) => (Some(pattern.as_str()), &no_fields),
            Json::Object(fields) => (report.text(fields, "pattern", &path), fields),
            _ => {
                report.add(&path, "must be a pattern or an object with one");
                continue;
            }
        };
        let Some(pattern) = pattern else { continue };
        let Some((prefix, variable)) = split_pattern(pattern) else {
            report.add(
                &path,
                "a pattern reads prefix:{variable}, with exactly one variable",
            );
            continue;
        };
        if report
            .optional_text(fields, "variable", &path)
            .is_some_and(|named| named != variable)
        {
            report.add(
                format_args!("{path}.variable"),
                "differs from the pattern's variable",
            );
        }
        let column = report
            .optional_text(fields, "column", &path)
            .unwrap_or(variable);
        let Some(ordinal) = columns.iter().position(|c| c.name == column) else {
            report.add(&path, format!("the table has no column {column}"));
            continue;
        };
        if matches!(columns[ordinal].ty, ColumnType::Bytes | ColumnType::Crdt) {
            report.add(
                &path,
                format!("the column {column} holds bytes, which are no scope value"),
            );
        }
        if scopes
            .iter()
            .any(|other| other.variable == variable && other.column != ordinal)
        {
            report.add(
                &path,
                format!("the variable {variable} maps to two different columns"),
            );
        }
        let scope = ScopePattern {
            prefix: prefix.to_owned(),
            variable: variable.to_owned(),
            column: ordinal,
        };
        if scopes.contains(&scope) {
            report.add(&path, "the pattern is declared twice");
        }
        scopes.push(scope);
    }
    scopes
}

/// Splits `prefix:{variable}`.
fn split_pattern(pattern: &str) -> Option<(&str, &str)> {
    let (prefix, rest) = pattern.split_once(":{")?;
    let variable = rest.strip_suffix('}')?;
    let plain = |text: &str| !text.is_empty() && !text.contains(['{', '}']);
    (plain(prefix) && plain(variable)).then_some((prefix, variable))
}

fn read_indexes(
    report: &mut Report,
    object: &Map<String, Json>,
    path: &str,
    ordinal: &dyn Fn(&str) -> Option<usize>,
) -> Vec<Index> {
    let mut indexes = Vec::new();
    for (path, entry) in report.list(object, "indexes", path, false) {
        let Some(object) = report.object(entry, &path) else {
            continue;
        };
        let name = report.text(object, "name", &path);
        let unique = report.flag(object, "unique", &path).unwrap_or(false);
        let entries = report.list(object, "columns", &path, true);
        if matches!(object.get("columns"), Some(Json::Array(list)) if list.is_empty()) {
            report.add(format_args!("{path}.columns"), "an index needs a column");
        }
        let mut columns = Vec::new();
        for (path, entry) in entries {
            match entry.as_str().map(|name| (name, ordinal(name))) {
                None => report.add(&path, "must be a column name"),
                Some((name, None)) => report.add(&path, format!("the table has no column {name}")),
                Some((name, Some(at))) if columns.contains(&at) => {
                    report.add(
                        &path,
                        format!("the column {name} stands in the index twice"),
                    );
                }
                Some((_, Some(at))) => columns.push(at),
            }
        }
        if let Some(name) = name {
            indexes.push(Index {
                name: name.to_owned(),
                columns,
                unique,
            });
        }
    }
    indexes
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

//! Scope patterns and indexes of a table in a schema document (§3.1).

use serde_json::{Map, Value as Json};
use ssp2::{Column, ColumnType};

use super::report::Report;
use super::{Index, ScopePattern};

pub(super) fn read_scopes(
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

pub(super) fn read_indexes(
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

//! Compiling declared references (§6.11).

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value as Json};

use super::report::Report;
use super::{OnDelete, Reference, Table};
use crate::ids::TableId;

/// A reference as the document words it.
pub(super) struct Draft {
    path: String,
    column: String,
    parent: String,
    on_delete: OnDelete,
}

pub(super) fn read_references(
    report: &mut Report,
    object: &Map<String, Json>,
    path: &str,
) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for (path, entry) in report.list(object, "references", path, false) {
        let Some(object) = report.object(entry, &path) else {
            continue;
        };
        let column = report.text(object, "column", &path).map(str::to_owned);
        let parent = report.text(object, "parentTable", &path).map(str::to_owned);
        let on_delete = match report.optional_text(object, "onDelete", &path) {
            None | Some("RESTRICT") => OnDelete::Restrict,
            Some("CASCADE") => OnDelete::Cascade,
            Some("SET NULL") => OnDelete::SetNull,
            Some(_) => {
                report.add(
                    format_args!("{path}.onDelete"),
                    "must be RESTRICT, CASCADE or SET NULL",
                );
                OnDelete::Restrict
            }
        };
        if let (Some(column), Some(parent)) = (column, parent) {
            drafts.push(Draft {
                path,
                column,
                parent,
                on_delete,
            });
        }
    }
    drafts
}

/// Resolves the drafts of each table (same order) once all tables are known.
pub(super) fn compile_references(
    report: &mut Report,
    tables: &mut [Table],
    by_name: &HashMap<String, TableId>,
    declared: &HashSet<&str>,
    drafts: &[Vec<Draft>],
) {
    let compiled: Vec<Vec<Reference>> = drafts
        .iter()
        .enumerate()
        .map(|(at, drafts)| {
            let mut references: Vec<Reference> = Vec::new();
            for draft in drafts {
                let reference = compile(report, tables, by_name, declared, &tables[at], draft);
                if let Some(reference) = reference {
                    if references.iter().any(|r| r.column == reference.column) {
                        report.add(
                            format_args!("{}.column", draft.path),
                            "the column has two references",
                        );
                    }
                    references.push(reference);
                }
            }
            references
        })
        .collect();
    for (table, references) in tables.iter_mut().zip(compiled) {
        table.references = references;
    }
}

fn compile(
    report: &mut Report,
    tables: &[Table],
    by_name: &HashMap<String, TableId>,
    declared: &HashSet<&str>,
    child: &Table,
    draft: &Draft,
) -> Option<Reference> {
    let path = &draft.path;
    let column = child.column(&draft.column);
    if column.is_none() {
        report.add(
            format_args!("{path}.column"),
            format!("the table has no column {}", draft.column),
        );
    }
    let parent = by_name.get(&draft.parent).copied();
    if parent.is_none() && !declared.contains(draft.parent.as_str()) {
        report.add(
            format_args!("{path}.parentTable"),
            format!("there is no table {}", draft.parent),
        );
    }
    let (column, parent) = (column?, parent?);
    let parent_table = &tables[usize::from(parent.0)];
    if !child.indexes.iter().any(|index| index.columns == [column]) {
        report.add(
            format_args!("{path}.column"),
            "a reference column needs an index of its own, to find children by their parent",
        );
    }
    if child.columns[column].ty != parent_table.columns[parent_table.primary_key].ty {
        report.add(
            format_args!("{path}.column"),
            "its type must be that of the parent's primary key",
        );
    }
    if patterns(child) != patterns(parent_table) {
        report.add(
            format_args!("{path}.parentTable"),
            "parent and child must have the same scope patterns",
        );
    }
    if draft.on_delete == OnDelete::SetNull {
        if !child.columns[column].nullable {
            report.add(
                format_args!("{path}.onDelete"),
                "SET NULL needs a nullable column",
            );
        }
        if child.is_scope_column(column) || child.primary_key == column {
            report.add(
                format_args!("{path}.onDelete"),
                "SET NULL may not clear a scope column or a primary key",
            );
        }
    }
    Some(Reference {
        column,
        parent,
        on_delete: draft.on_delete,
    })
}

fn patterns(table: &Table) -> BTreeSet<(&str, &str)> {
    table
        .scopes
        .iter()
        .map(|scope| (scope.prefix.as_str(), scope.variable.as_str()))
        .collect()
}

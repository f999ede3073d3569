//! `tidegate check`: validates a schema and explains what it means.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use tidegate_engine::backfill::projection::{Projection, Shape, source_names};
use tidegate_engine::schema::{OnDelete, Schema, Table};

use super::complain;
use crate::backfills;
use crate::cli::Exit;
use crate::server::ServeError;

/// Explains the schema of a file, or every rule it breaks; then the backfills.
pub fn run(path: &Path, backfills: Option<&Path>) -> Exit {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            complain(&format_args!("cannot read {}: {error}", path.display()));
            return Exit::Usage;
        }
    };
    match Schema::load(&text) {
        Ok(schema) => {
            let mut text = explain(&schema);
            if let Some(folder) = backfills {
                match backfills::load_folder(folder, &schema) {
                    Ok(projections) => explain_backfills(&schema, &projections, &mut text),
                    Err(error) => return refuse(&error),
                }
            }
            match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => Exit::Success,
                Err(_) => Exit::Failure,
            }
        }
        Err(errors) => {
            for error in &errors {
                complain(&format_args!("{}: {}", error.path, error.reason));
            }
            let rules = if errors.len() == 1 { "rule" } else { "rules" };
            complain(&format_args!(
                "{} breaks {} {rules}",
                path.display(),
                errors.len()
            ));
            Exit::InvalidSchema
        }
    }
}

/// Backfills that cannot be used, each rule on a line of its own.
fn refuse(error: &ServeError) -> Exit {
    match error {
        ServeError::InvalidBackfills(broken) => broken.iter().for_each(|one| complain(one)),
        other => complain(other),
    }
    error.exit()
}

fn explain_backfills(schema: &Schema, projections: &[Arc<dyn Projection>], out: &mut String) {
    for projection in projections {
        let target = schema.table_at(projection.target());
        let fills = match projection.shape() {
            Shape::Columns(ordinals) => {
                let names: Vec<&str> = ordinals
                    .iter()
                    .map(|&at| target.columns[at].name.as_str())
                    .collect();
                format!("{} of {}", names.join(", "), target.name)
            }
            Shape::Rows => format!("rows of {}", target.name),
        };
        let served = if projection.serve_while_backfilling() {
            "read while it runs"
        } else {
            "not read before it is complete"
        };
        let sources = source_names(schema, &**projection).join(", ");
        let name = projection.name();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "\nbackfill {name}\n  fills {fills} from {sources}, {served}"
        );
    }
}

/// What a server does with the schema, in words.
fn explain(schema: &Schema) -> String {
    let mut out = String::new();
    let tables = schema.tables().len();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "schema version {}, {tables} {}",
        schema.version().0,
        if tables == 1 { "table" } else { "tables" }
    );
    for table in schema.tables() {
        explain_table(schema, table, &mut out);
    }
    out
}

fn explain_table(schema: &Schema, table: &Table, out: &mut String) {
    let name_of = |ordinal: usize| table.columns[ordinal].name.as_str();
    let _ = writeln!(out, "\n{}", table.name);
    for (ordinal, (column, info)) in table.columns.iter().zip(&table.column_info).enumerate() {
        let _ = write!(out, "  {:<20} {}", column.name, column.ty.name());
        if ordinal == table.primary_key {
            out.push_str(", primary key");
        }
        if column.nullable {
            out.push_str(", nullable");
        }
        if let Some(merger) = &info.crdt_type {
            let _ = write!(out, ", merged as {merger}");
        }
        if info.encrypted {
            out.push_str(", encrypted by clients");
        }
        out.push('\n');
    }
    for scope in &table.scopes {
        let _ = writeln!(
            out,
            "  scope {}:{{{}}} from column {}",
            scope.prefix,
            scope.variable,
            name_of(scope.column)
        );
    }
    for index in &table.indexes {
        let columns: Vec<&str> = index.columns.iter().map(|&at| name_of(at)).collect();
        let _ = writeln!(
            out,
            "  {}index {} on {}",
            if index.unique { "unique " } else { "" },
            index.name,
            columns.join(", ")
        );
    }
    for reference in &table.references {
        let action = match reference.on_delete {
            OnDelete::Restrict => "deleting the parent is refused",
            OnDelete::Cascade => "deleted with the parent",
            OnDelete::SetNull => "cleared with the parent",
        };
        let _ = writeln!(
            out,
            "  {} refers to {}: {action}",
            name_of(reference.column),
            schema.table_at(reference.parent).name
        );
    }
    if !table.materialize {
        out.push_str("  stored as opaque rows, without SQL columns\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_schema_is_explained() {
        let schema = Schema::load(crate::server::DEMO_SCHEMA).unwrap();
        let text = explain(&schema);
        for expected in [
            "schema version 1, 2 tables",
            "primary key",
            "scope list:{list_id} from column id",
            "scope list:{list_id} from column list_id",
            "index todos_by_list on list_id",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
    }

    #[test]
    fn a_broken_schema_and_a_missing_file_have_their_own_exits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schema.json");
        assert_eq!(run(&path, None), Exit::Usage);
        std::fs::write(&path, "{\"version\":1,\"tables\":[{}]}").unwrap();
        assert_eq!(run(&path, None), Exit::InvalidSchema);
        std::fs::write(&path, crate::server::DEMO_SCHEMA).unwrap();
        assert_eq!(run(&path, None), Exit::Success);
    }
}

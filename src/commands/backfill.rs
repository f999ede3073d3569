//! `tidegate backfill preview`: what a declared backfill computes of the rows that
//! are there, before anything is declared or migrated. It only reads.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use ssp2::{Column, Value};
use tidegate_engine::PartitionId;
use tidegate_engine::backfill::projection::{ProjectedRow, Projection, SourceRow};
use tidegate_engine::schema::{Schema, Table};
use tidegate_store::operating::{SampleQuery, SampledRow};
use tidegate_store::{Store, StoreError};

use super::{complain, fail};
use crate::backfills;
use crate::cli::{Exit, PreviewArgs};
use crate::config::Layers;
use crate::server::{self, ServeError};
use crate::telemetry;

/// Characters of a value that are shown at most.
const SHOWN: usize = 40;

/// Shows source rows and what the backfill makes of them.
pub fn run(arguments: &PreviewArgs) -> Exit {
    let runtime = match super::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(preview(arguments)) {
        Ok(exit) => exit,
        Err(error) => fail(&error),
    }
}

async fn preview(arguments: &PreviewArgs) -> Result<Exit, ServeError> {
    let source = &arguments.source;
    let config = Layers::of_process(source.config.clone(), source.overrides()).load()?;
    telemetry::start(&config.log);
    let schema = server::load_schema(&config)?;
    let projections = backfills::load_projections(&config, &schema)?;
    let Some(projection) = projections
        .iter()
        .find(|projection| projection.name() == arguments.name)
    else {
        let names: Vec<&str> = projections.iter().map(|one| one.name()).collect();
        complain(&format_args!(
            "no backfill is called {}; declared are: {}",
            arguments.name,
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        ));
        return Ok(Exit::Usage);
    };
    let store = server::open_existing_store(&config).await?;
    let rows = read(&*store, &schema, &**projection, arguments).await;
    store.close().await;
    let previews: Vec<Preview> = rows?
        .iter()
        .map(|(table, row)| Preview::of(&schema, table, row, &**projection))
        .collect::<Result<_, _>>()?;
    let text = if arguments.json {
        previews.iter().map(Preview::json_line).collect()
    } else {
        describe(&previews, projection.name())
    };
    if std::io::stdout().write_all(text.as_bytes()).is_err() {
        return Ok(Exit::Failure);
    }
    let failed = previews.iter().any(|preview| preview.computed.is_err());
    Ok(if failed { Exit::Failure } else { Exit::Success })
}

/// The first rows of the source tables, in the layout of the schema.
async fn read<'s>(
    store: &dyn Store,
    schema: &'s Arc<Schema>,
    projection: &dyn Projection,
    arguments: &PreviewArgs,
) -> Result<Vec<(&'s Table, SampledRow)>, StoreError> {
    let mut rows = Vec::new();
    for table in projection.sources() {
        let query = SampleQuery {
            table: *table,
            partition: arguments.partition.as_deref().map(PartitionId::from),
            limit: arguments.limit.saturating_sub(rows.len()),
        };
        let found = store.sample_rows(Arc::clone(schema), query).await?;
        let table = schema.table_at(*table);
        rows.extend(found.into_iter().map(|row| (table, row)));
    }
    Ok(rows)
}

/// One source row and what the backfill makes of it.
struct Preview<'s> {
    source: &'s Table,
    target: &'s Table,
    partition: PartitionId,
    row_id: String,
    values: Vec<Value>,
    /// `Ok(None)` when the row is left out; the failure otherwise.
    computed: Result<Option<ProjectedRow>, String>,
}

impl<'s> Preview<'s> {
    fn of(
        schema: &'s Schema,
        source: &'s Table,
        row: &SampledRow,
        projection: &dyn Projection,
    ) -> Result<Self, StoreError> {
        let values = ssp2::row::decode_row(&source.columns, &row.payload).map_err(|_| {
            StoreError::Corrupt {
                what: "the payload of a row",
            }
        })?;
        let computed = projection
            .project(&SourceRow {
                table: source,
                row_id: &row.row_id,
                values: &values,
            })
            .map_err(|failure| match failure.part {
                Some(part) => format!("{part}: {}", failure.reason),
                None => failure.reason.to_string(),
            });
        Ok(Self {
            source,
            target: schema.table_at(projection.target()),
            partition: row.partition.clone(),
            row_id: row.row_id.clone(),
            values,
            computed,
        })
    }

    fn json_line(&self) -> String {
        let source = object(self.source.columns.iter().zip(&self.values));
        let mut line = json!({
            "table": self.source.name,
            "partition": self.partition.as_str(),
            "rowId": self.row_id,
            "source": source,
        });
        match &self.computed {
            Ok(Some(row)) => {
                line["target"] = json!(self.target.name);
                line["targetRowId"] = json!(&*row.row_id);
                line["computed"] = object(self.cells(row));
            }
            Ok(None) => line["computed"] = Json::Null,
            Err(failure) => line["failure"] = json!(failure),
        }
        format!("{line}\n")
    }

    fn cells<'r>(&'r self, row: &'r ProjectedRow) -> impl Iterator<Item = (&'r Column, &'r Value)> {
        row.cells
            .iter()
            .filter_map(|(ordinal, value)| Some((self.target.columns.get(*ordinal)?, value)))
    }

    /// The right-hand column, line by line.
    fn right(&self) -> Vec<String> {
        match &self.computed {
            Ok(Some(row)) => {
                let mut lines = Vec::new();
                if *row.row_id != *self.row_id || self.target.name != self.source.name {
                    let id = shown(&Value::Text(row.row_id.to_string()));
                    lines.push(format!("{} {id}", self.target.name));
                }
                let cells = self.cells(row);
                lines.extend(cells.map(|(column, value)| entry(column, value)));
                lines
            }
            Ok(None) => vec!["(left out)".to_owned()],
            Err(failure) => vec![format!("FAILED {failure}")],
        }
    }
}

fn object<'r>(cells: impl Iterator<Item = (&'r Column, &'r Value)>) -> Json {
    let cells = cells.map(|(column, value)| (column.name.clone(), to_json(value)));
    Json::Object(cells.collect::<Map<_, _>>())
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Text(text) => json!(text),
        Value::Integer(number) => json!(number),
        Value::Float(number) => json!(number),
        Value::Boolean(boolean) => json!(boolean),
        Value::Bytes(bytes) => json!(hex(bytes)),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A value as it is shown to people: nothing in it reaches the terminal raw.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "NULL".to_owned(),
        Value::Text(text) => {
            let start: String = text.chars().take(SHOWN + 1).collect();
            format!("{start:?}")
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(boolean) => boolean.to_string(),
        Value::Bytes(bytes) => hex(&bytes[..bytes.len().min(SHOWN)]),
    };
    if text.chars().count() <= SHOWN {
        return text;
    }
    let start: String = text.chars().take(SHOWN - 1).collect();
    format!("{start}…")
}

fn entry(column: &Column, value: &Value) -> String {
    format!("{} = {}", column.name, shown(value))
}

fn describe(previews: &[Preview<'_>], name: &str) -> String {
    let mut out = String::new();
    let lefts: Vec<Vec<String>> = previews
        .iter()
        .map(|preview| {
            let cells = preview.source.columns.iter().zip(&preview.values);
            cells.map(|(column, value)| entry(column, value)).collect()
        })
        .collect();
    let all = lefts.iter().flatten();
    let width = all.map(|line| line.chars().count()).max().unwrap_or(0);
    for (preview, left) in previews.iter().zip(&lefts) {
        let id = |text: &str| shown(&Value::Text(text.to_owned()));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{} {} in partition {}",
            preview.source.name,
            id(&preview.row_id),
            id(preview.partition.as_str())
        );
        let right = preview.right();
        for at in 0..left.len().max(right.len()) {
            let line = left.get(at).map_or("", String::as_str);
            match right.get(at) {
                Some(computed) => {
                    let _ = writeln!(out, "  {line:<width$}  │ {computed}");
                }
                None => {
                    let _ = writeln!(out, "  {line:<width$}  │");
                }
            }
        }
        out.push('\n');
    }
    let count = |which: fn(&Preview<'_>) -> bool| previews.iter().filter(|one| which(one)).count();
    let _ = writeln!(
        out,
        "{name}: {} rows read, {} computed, {} left out, {} failed; nothing was written",
        previews.len(),
        count(|one| matches!(one.computed, Ok(Some(_)))),
        count(|one| matches!(one.computed, Ok(None))),
        count(|one| one.computed.is_err()),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short_and_harmless_to_a_terminal() {
        assert_eq!(shown(&Value::Null), "NULL");
        assert_eq!(
            shown(&Value::Text("a\u{1b}[2J\n".into())),
            r#""a\u{1b}[2J\n""#
        );
        let long = shown(&Value::Text("ü".repeat(100)));
        assert_eq!(long.chars().count(), SHOWN);
        assert!(long.ends_with('…'));
        assert_eq!(shown(&Value::Bytes(vec![0, 255].into())), "0x00ff");
        assert!(shown(&Value::Bytes(vec![7; 100].into())).ends_with('…'));
    }
}

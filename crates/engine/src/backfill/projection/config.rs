//! The configuration form of a projection, and its check against the schema:
//! every broken rule is reported, each with its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use ssp2::{Column, ColumnType, Value};

use super::declared::{ComputedColumn, DeclaredProjection};
use super::expression::{Expression, Variables, fit};
use super::{FailureReason, Shape};
use crate::schema::{Schema, Table};

/// Longest name of a backfill, bytes.
const MAX_NAME_BYTES: usize = 128;

/// A broken rule of a backfill's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {reason}")]
pub struct ConfigError {
    /// The key: `columns.title_key`. Empty for the document itself.
    pub location: String,
    /// What rule, for the person who writes the configuration.
    pub reason: String,
}

/// One declared backfill, as in `config/backfills/*.toml`.
///
/// Without `key` it fills nullable columns of its one source table; with `key`,
/// rows of a table of their own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectionConfig {
    /// The checkpoint's name.
    pub name: String,
    /// The schema version it belongs to.
    pub schema_version: i32,
    /// Tables whose rows are read.
    pub sources: Vec<String>,
    /// Table that is filled.
    pub target: String,
    /// Primary key of the target row: an expression over the source row's primary
    /// key and `source` alone, so that a deleted source row still has it.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether the target may be read before it is complete.
    #[serde(default)]
    pub serve_while_backfilling: bool,
    /// Source rows for which it is not true are left out.
    #[serde(default, rename = "where")]
    pub filter: Option<String>,
    /// Target column to expression.
    pub columns: BTreeMap<String, String>,
}

impl ProjectionConfig {
    /// Reads the TOML form.
    ///
    /// # Errors
    /// Where it is no TOML, misses a key, or has one that means nothing.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError {
            location: error
                .span()
                .map(|span| {
                    let before = &text.as_bytes()[..span.start.min(text.len())];
                    format!(
                        "line {}",
                        1 + before.iter().filter(|b| **b == b'\n').count()
                    )
                })
                .unwrap_or_default(),
            reason: error.message().to_owned(),
        })
    }

    /// Identity of the definition: what decides the computed values.
    fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        let mut field = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        field(&self.target);
        field(self.key.as_deref().unwrap_or_default());
        field(self.filter.as_deref().unwrap_or_default());
        field(&self.sources.len().to_string());
        self.sources.iter().for_each(|source| field(source));
        for (column, expression) in &self.columns {
            field(column);
            field(expression);
        }
        let digest = hash.finalize();
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

#[derive(Default)]
struct Report(Vec<ConfigError>);

impl Report {
    fn add(&mut self, location: impl fmt::Display, reason: impl Into<String>) {
        self.0.push(ConfigError {
            location: location.to_string(),
            reason: reason.into(),
        });
    }
}

impl DeclaredProjection {
    /// Checks a configuration against the schema and compiles it.
    ///
    /// # Errors
    /// Every broken rule, never empty.
    pub fn load(config: &ProjectionConfig, schema: &Schema) -> Result<Self, Vec<ConfigError>> {
        let mut report = Report::default();
        check_identity(&mut report, config, schema);
        let sources = read_sources(&mut report, config, schema);
        let target = schema.table(&config.target);
        if target.is_none() {
            report.add("target", unknown_table(&config.target));
        }
        let Some(target) = target else {
            return Err(report.0);
        };
        check_shape(&mut report, config, &sources, target);
        let computed = read_columns(&mut report, config, &sources, target);
        let key = read_key(&mut report, config, &sources, target);
        let filter = config.filter.as_deref().and_then(|text| {
            let boolean = Column {
                name: "where".to_owned(),
                ty: ColumnType::Boolean,
                nullable: false,
            };
            compile(&mut report, "where", text, &sources, &boolean)
        });
        let own_columns: &[ComputedColumn] = if key.is_none() { &computed } else { &[] };
        for (location, expression) in computed
            .iter()
            .map(|c| (format!("columns.{}", c.column.name), &c.expression))
            .chain(filter.iter().map(|f| ("where".to_owned(), f)))
        {
            for own in own_columns {
                if expression.columns().contains(&own.column.name) {
                    report.add(
                        &location,
                        format!("reads {}, which this backfill computes", own.column.name),
                    );
                }
            }
        }
        if !report.0.is_empty() {
            return Err(report.0);
        }
        let reads = computed
            .iter()
            .map(|column| &column.expression)
            .chain(&filter)
            .flat_map(|expression| expression.columns().iter().cloned())
            .collect();
        Ok(Self {
            name: config.name.clone(),
            schema_version: schema.version(),
            sources: sources.iter().map(|table| table.id).collect(),
            target: target.id,
            shape: if key.is_some() {
                Shape::Rows
            } else {
                Shape::Columns(computed.iter().map(|column| column.ordinal).collect())
            },
            serve_while_backfilling: config.serve_while_backfilling,
            fingerprint: config.fingerprint(),
            computed,
            key,
            filter,
            reads,
        })
    }
}

fn unknown_table(name: &str) -> String {
    format!("the schema has no table {name}")
}

fn check_identity(report: &mut Report, config: &ProjectionConfig, schema: &Schema) {
    if config.name.is_empty() || config.name.len() > MAX_NAME_BYTES {
        report.add("name", format!("must have 1 to {MAX_NAME_BYTES} bytes"));
    }
    if config.name.chars().any(char::is_control) {
        report.add("name", "holds a control character");
    }
    if config.schema_version != schema.version().0 {
        let version = schema.version().0;
        report.add(
            "schema_version",
            format!("the schema's version is {version}"),
        );
    }
}

fn read_sources<'s>(
    report: &mut Report,
    config: &ProjectionConfig,
    schema: &'s Schema,
) -> Vec<&'s Table> {
    if config.sources.is_empty() {
        report.add("sources", "at least one table is needed");
    }
    let mut seen = BTreeSet::new();
    let mut tables = Vec::new();
    for (at, name) in config.sources.iter().enumerate() {
        let location = format!("sources[{at}]");
        match schema.table(name) {
            None => report.add(location, unknown_table(name)),
            Some(_) if !seen.insert(name) => report.add(location, "is named twice"),
            Some(table) => tables.push(table),
        }
    }
    tables
}

fn check_shape(report: &mut Report, config: &ProjectionConfig, sources: &[&Table], target: &Table) {
    if config.columns.is_empty() {
        report.add("columns", "at least one column is needed");
    }
    let is_source = config.sources.contains(&target.name);
    if config.key.is_none() {
        if !is_source || config.sources.len() != 1 {
            report.add(
                "key",
                "is missing: without it the target must be the one source, whose columns are filled",
            );
        }
        return;
    }
    if is_source {
        report.add(
            "target",
            "a table that is filled by key cannot be a source too",
        );
    }
    let key = &target.columns[target.primary_key].name;
    for (ordinal, column) in target.columns.iter().enumerate() {
        if ordinal == target.primary_key || config.columns.contains_key(&column.name) {
            continue;
        }
        if target.is_scope_column(ordinal) {
            let name = &column.name;
            report.add(
                "columns",
                format!("{name} is missing: it is a scope column of the target"),
            );
        } else if !column.nullable {
            let name = &column.name;
            report.add("columns", format!("{name} is missing: it is not nullable"));
        }
    }
    if config.columns.contains_key(key) {
        report.add(
            format_args!("columns.{key}"),
            "is the primary key; key computes it",
        );
    }
    for source in sources {
        if source.column_info[source.primary_key].encrypted {
            report.add("key", format!("the key of {} is encrypted", source.name));
        }
    }
}

fn read_columns(
    report: &mut Report,
    config: &ProjectionConfig,
    sources: &[&Table],
    target: &Table,
) -> Vec<ComputedColumn> {
    let mut computed = Vec::new();
    for (name, text) in &config.columns {
        let location = format!("columns.{name}");
        let Some(ordinal) = target.column(name) else {
            report.add(location, format!("{} has no such column", target.name));
            continue;
        };
        let column = &target.columns[ordinal];
        if matches!(column.ty, ColumnType::BlobRef | ColumnType::Crdt) {
            let ty = column.ty.name();
            report.add(&location, format!("a {ty} column cannot be computed"));
            continue;
        }
        if target.column_info[ordinal].encrypted {
            report.add(&location, "an encrypted column cannot be computed");
            continue;
        }
        if config.key.is_none() {
            if ordinal == target.primary_key || target.is_scope_column(ordinal) {
                report.add(&location, "a key or scope column never changes");
            } else if !column.nullable {
                report.add(&location, "must be nullable: old rows have no value yet");
            }
        }
        if let Some(expression) = compile(report, &location, text, sources, column) {
            computed.push(ComputedColumn {
                ordinal,
                column: column.clone(),
                expression,
            });
        }
    }
    computed.sort_by_key(|column| column.ordinal);
    computed
}

fn read_key(
    report: &mut Report,
    config: &ProjectionConfig,
    sources: &[&Table],
    target: &Table,
) -> Option<ComputedColumn> {
    let text = config.key.as_deref()?;
    let column = Column {
        nullable: false,
        ..target.columns[target.primary_key].clone()
    };
    let expression = compile(report, "key", text, sources, &column)?;
    for source in sources {
        let key = &source.columns[source.primary_key].name;
        if expression.columns().iter().any(|column| column != key) {
            report.add(
                "key",
                format!(
                    "may read the primary key of {} alone, which is {key}",
                    source.name
                ),
            );
        }
    }
    Some(ComputedColumn {
        ordinal: target.primary_key,
        column,
        expression,
    })
}

/// Compiles an expression and checks it against each source: the columns it reads,
/// and the type that it gives.
fn compile(
    report: &mut Report,
    location: &str,
    text: &str,
    sources: &[&Table],
    result: &Column,
) -> Option<Expression> {
    let expression = match Expression::compile(text) {
        Ok(expression) => expression,
        Err(reason) => {
            report.add(location, reason);
            return None;
        }
    };
    for source in sources {
        let mut readable = true;
        for name in expression.columns() {
            match source.column(name) {
                None => {
                    report.add(location, format!("{} has no column {name}", source.name));
                    readable = false;
                }
                Some(ordinal) if source.column_info[ordinal].encrypted => {
                    report.add(location, format!("{name} is encrypted by clients"));
                    readable = false;
                }
                Some(_) => {}
            }
        }
        if readable && let Some(reason) = probe(&expression, source, result) {
            report.add(location, reason);
        }
    }
    Some(expression)
}

/// Runs an expression on a row of sample values and reports an error that is due
/// to types alone: what depends on values is found when the backfill runs. A json
/// column may hold anything, so expressions over one are not probed.
fn probe(expression: &Expression, source: &Table, result: &Column) -> Option<String> {
    let reads = |name: &str| expression.columns().contains(name);
    let samples: Vec<Value> = source.columns.iter().map(|c| sample(c.ty)).collect();
    if source
        .columns
        .iter()
        .any(|c| c.ty == ColumnType::Json && reads(&c.name))
    {
        return None;
    }
    let row = Variables::bind(&source.name, &source.columns, &samples, reads).ok()?;
    let outcome = expression
        .evaluate(&row)
        .and_then(|value| fit(result, &value));
    match outcome {
        Err(
            reason @ (FailureReason::TypeMismatch
            | FailureReason::WrongType { .. }
            | FailureReason::NotJson
            | FailureReason::Panicked),
        ) => Some(reason.to_string()),
        _ => None,
    }
}

fn sample(ty: ColumnType) -> Value {
    match ty {
        ColumnType::String | ColumnType::BlobRef => Value::Text("a".to_owned()),
        ColumnType::Json => Value::Text("null".to_owned()),
        ColumnType::Integer => Value::Integer(1),
        ColumnType::Float => Value::Float(1.5),
        ColumnType::Boolean => Value::Boolean(true),
        ColumnType::Bytes | ColumnType::Crdt => Value::Bytes(b"a".as_slice().into()),
    }
}

//! A projection declared in configuration: CEL expressions per column.

use std::collections::BTreeSet;
use std::sync::Arc;

use ssp2::{ColumnType, Value};

use super::expression::{Expression, Variables, fit};
use super::{FailureReason, ProjectedRow, Projection, ProjectionFailure, Shape, SourceRow};
use crate::ids::{SchemaVersion, TableId};
use crate::keys::render_key;
use crate::schema::Table;

/// A computed column.
#[derive(Debug)]
pub(super) struct ComputedColumn {
    pub(super) ordinal: usize,
    pub(super) column: ssp2::Column,
    pub(super) expression: Expression,
}

/// A projection of CEL expressions. Built by [`DeclaredProjection::load`], so it
/// fits its schema.
#[derive(Debug)]
pub struct DeclaredProjection {
    pub(super) name: String,
    pub(super) schema_version: SchemaVersion,
    pub(super) sources: Vec<TableId>,
    pub(super) target: TableId,
    pub(super) shape: Shape,
    pub(super) serve_while_backfilling: bool,
    pub(super) fingerprint: String,
    /// Ascending by ordinal.
    pub(super) computed: Vec<ComputedColumn>,
    /// [`Shape::Rows`]: the target's primary key.
    pub(super) key: Option<ComputedColumn>,
    pub(super) filter: Option<Expression>,
    /// Columns that any expression reads.
    pub(super) reads: BTreeSet<String>,
}

fn failure(
    table: &Table,
    row_id: &str,
    part: Option<&str>,
    reason: FailureReason,
) -> ProjectionFailure {
    ProjectionFailure {
        table: table.name.clone(),
        row_id: row_id.to_owned(),
        part: part.map(str::to_owned),
        reason,
    }
}

/// The primary key value behind a row id; the inverse of [`render_key`].
fn key_value(ty: ColumnType, row_id: &str) -> Option<Value> {
    match ty {
        ColumnType::Integer => row_id.parse().ok().map(Value::Integer),
        ColumnType::Boolean => row_id.parse().ok().map(Value::Boolean),
        ColumnType::String | ColumnType::Json => Some(Value::Text(row_id.to_owned())),
        _ => None,
    }
}

impl DeclaredProjection {
    /// The target's key value and row id for the source row of that id.
    fn target_key(
        &self,
        key: &ComputedColumn,
        source: &Table,
        row_id: &str,
    ) -> Result<(Arc<str>, Value), ProjectionFailure> {
        let fail = |reason| failure(source, row_id, Some("key"), reason);
        let column = source
            .columns
            .get(source.primary_key)
            .ok_or_else(|| fail(FailureReason::BadRow))?;
        let value = key_value(column.ty, row_id).ok_or_else(|| fail(FailureReason::BadRow))?;
        let columns = std::slice::from_ref(column);
        let variables = Variables::bind(&source.name, columns, &[value], |_| true)
            .map_err(|(_, reason)| fail(reason))?;
        let value = key
            .expression
            .evaluate(&variables)
            .and_then(|value| fit(&key.column, &value))
            .map_err(fail)?;
        match render_key(&value) {
            Some(id) if !id.is_empty() => Ok((id.into(), value)),
            _ => Err(fail(FailureReason::EmptyKey)),
        }
    }

    fn takes(&self, row: &SourceRow<'_>, variables: &Variables) -> Result<bool, ProjectionFailure> {
        let Some(filter) = &self.filter else {
            return Ok(true);
        };
        let fail = |reason| failure(row.table, row.row_id, Some("where"), reason);
        match filter.evaluate(variables).map_err(fail)? {
            cel::Value::Bool(takes) => Ok(takes),
            other => Err(fail(FailureReason::WrongType {
                wanted: ColumnType::Boolean,
                got: other.type_of().to_string(),
            })),
        }
    }
}

impl Projection for DeclaredProjection {
    fn name(&self) -> &str {
        &self.name
    }

    fn schema_version(&self) -> SchemaVersion {
        self.schema_version
    }

    fn sources(&self) -> &[TableId] {
        &self.sources
    }

    fn target(&self) -> TableId {
        self.target
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn serve_while_backfilling(&self) -> bool {
        self.serve_while_backfilling
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn target_row_id(&self, source: &Table, row_id: &str) -> Result<Arc<str>, ProjectionFailure> {
        match &self.key {
            None => Ok(row_id.into()),
            Some(key) => Ok(self.target_key(key, source, row_id)?.0),
        }
    }

    fn project(&self, row: &SourceRow<'_>) -> Result<Option<ProjectedRow>, ProjectionFailure> {
        let fail = |part: Option<&str>, reason| failure(row.table, row.row_id, part, reason);
        if row.values.len() != row.table.columns.len() {
            return Err(fail(None, FailureReason::BadRow));
        }
        let variables =
            Variables::bind(&row.table.name, &row.table.columns, row.values, |column| {
                self.reads.contains(column)
            })
            .map_err(|(at, reason)| fail(Some(&row.table.columns[at].name), reason))?;
        if !self.takes(row, &variables)? {
            return Ok(None);
        }
        let mut cells = Vec::with_capacity(self.computed.len() + 1);
        for computed in &self.computed {
            let value = computed
                .expression
                .evaluate(&variables)
                .and_then(|value| fit(&computed.column, &value))
                .map_err(|reason| fail(Some(&computed.column.name), reason))?;
            cells.push((computed.ordinal, value));
        }
        let row_id = match &self.key {
            None => row.row_id.into(),
            Some(key) => {
                let (row_id, value) = self.target_key(key, row.table, row.row_id)?;
                cells.push((key.ordinal, value));
                cells.sort_by_key(|(ordinal, _)| *ordinal);
                row_id
            }
        };
        Ok(Some(ProjectedRow { row_id, cells }))
    }
}

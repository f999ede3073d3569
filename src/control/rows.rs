//! The rows of a table as they are stored, whatever their scopes.

use std::collections::BTreeMap;

use actix_web::web::Path;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use ssp2::{Column, ColumnType, SyncError, Value, decode_row};
use tidegate_engine::PartitionId;
use tidegate_engine::gate::GateRefusal;
use tidegate_engine::model::StoredRow;
use tidegate_engine::schema::Table;
use tidegate_store::{RangeQuery, StoreError};
use utoipa::ToSchema;

use super::errors::ControlCode;
use super::input::{Page, PageQuery, Query, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

/// A stored row.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RowView {
    row_id: String,
    /// Server version.
    version: i64,
    /// Values by column; bytes in base64, json as JSON.
    #[schema(value_type = Object)]
    values: Map<String, Json>,
    /// Stored scopes.
    scopes: BTreeMap<String, String>,
}

/// A page of rows, by row id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RowPageView {
    partition: String,
    table: String,
    /// Newest commit of the view that the page was read in.
    max_commit_seq: i64,
    rows: Vec<RowView>,
    /// The `after` of the next page; null at the end.
    next: Option<String>,
}

fn values(columns: &[Column], row: &StoredRow) -> Result<Map<String, Json>, StoreError> {
    let values = decode_row(columns, &row.payload).map_err(|_| StoreError::Corrupt {
        what: "the payload of a row",
    })?;
    let cells = columns.iter().zip(values);
    Ok(cells
        .map(|(column, value)| (column.name.clone(), cell(column.ty, value)))
        .collect())
}

fn cell(ty: ColumnType, value: Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Text(text) if matches!(ty, ColumnType::Json | ColumnType::BlobRef) => {
            // Text that is no JSON is shown as what it is.
            serde_json::from_str(&text).unwrap_or(Json::String(text))
        }
        Value::Text(text) => text.into(),
        Value::Integer(value) => value.into(),
        // Infinities have no number in JSON.
        Value::Float(value) if !value.is_finite() => value.to_string().into(),
        Value::Float(value) => value.into(),
        Value::Boolean(value) => value.into(),
        Value::Bytes(bytes) => STANDARD.encode(bytes).into(),
    }
}

fn row_view(table: &Table, row_id: String, row: &StoredRow) -> Result<RowView, StoreError> {
    Ok(RowView {
        row_id,
        version: row.server_version,
        values: values(&table.columns, row)?,
        scopes: row
            .scopes
            .iter()
            .map(|(variable, value)| (variable.to_owned(), value.clone()))
            .collect(),
    })
}

#[derive(Debug)]
struct ReadRows {
    partition: PartitionId,
    table: String,
    page: Page,
}

impl Command for ReadRows {
    const NAME: &'static str = "read rows";
    const CHANGES: bool = false;
    type Answer = RowPageView;

    async fn run(self, station: &Station) -> Result<RowPageView, ControlError> {
        let parts = &station.parts;
        let table = parts
            .schema
            .table(&self.table)
            .ok_or(ControlCode::UnknownTable)?;
        station.known(&self.partition).await?;
        let mut snapshot = parts.store.snapshot(&self.partition).await?;
        let read = snapshot
            .read_range(RangeQuery {
                table: table.id,
                after: self.page.after.map(Into::into),
                through: None,
                limit: self.page.limit,
            })
            .await;
        let max = snapshot.bounds().max;
        drop(snapshot);
        // Rows of a schema that this process does not know cannot be decoded; asked
        // after the read, so that no migration comes in between.
        let (token, _) = parts.store.read_gate(&self.partition).await?;
        let running = parts.schema.version();
        if token.stored_version > running {
            let stored = token.stored_version;
            return Err(SyncError::from(GateRefusal::NewerSchema { stored, running }).into());
        }
        let page = read?;
        let rows: Vec<RowView> = page
            .rows
            .into_iter()
            .map(|(row_id, row)| row_view(table, row_id, &row))
            .collect::<Result<_, _>>()?;
        let next = rows.last().filter(|_| page.more);
        Ok(RowPageView {
            next: next.map(|last| last.row_id.clone()),
            partition: self.partition.to_string(),
            table: self.table,
            max_commit_seq: max.0,
            rows,
        })
    }
}

/// A table's rows, whatever their scopes
#[utoipa::path(get, path = "/control/v1/partitions/{p}/rows/{table}",
    params(("p" = String, Path, description = "Partition"), ("table" = String, Path, description = "Table"), PageQuery),
    responses((status = 200, body = RowPageView)))]
pub(crate) async fn read_rows(
    operator: OperatorData,
    path: Path<(String, String)>,
    Query(page): Query<PageQuery>,
) -> Answer<RowPageView> {
    let (p, table) = path.into_inner();
    let command = ReadRows {
        partition: partition(p)?,
        table,
        page: page.check()?,
    };
    ask(&operator, command).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_are_plain_json() {
        let text = |text: &str| Value::Text(text.to_owned());
        assert_eq!(cell(ColumnType::String, text("{}")), json!("{}"));
        assert_eq!(cell(ColumnType::Json, text("{\"a\":1}")), json!({"a": 1}));
        assert_eq!(cell(ColumnType::Json, text("{")), json!("{"));
        assert_eq!(cell(ColumnType::Integer, Value::Integer(7)), json!(7));
        assert_eq!(cell(ColumnType::Float, Value::Float(0.5)), json!(0.5));
        assert_eq!(
            cell(ColumnType::Float, Value::Float(f64::INFINITY)),
            json!("inf")
        );
        assert_eq!(cell(ColumnType::Boolean, Value::Boolean(true)), json!(true));
        let bytes = Value::Bytes(bytes::Bytes::from_static(b"\x00\xff"));
        assert_eq!(cell(ColumnType::Bytes, bytes), json!("AP8="));
        assert_eq!(cell(ColumnType::Bytes, Value::Null), Json::Null);
    }
}

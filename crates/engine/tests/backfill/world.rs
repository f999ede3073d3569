//! A schema with sources and targets of backfills.

use std::sync::Arc;

use ssp2::Value;
use tidegate_engine::TableId;
use tidegate_engine::backfill::page::{RowImage, SourceImage};
use tidegate_engine::backfill::projection::{ConfigError, DeclaredProjection, ProjectionConfig};
use tidegate_engine::model::RowKey;
use tidegate_engine::schema::Schema;

pub fn schema() -> Schema {
    Schema::load(
        r#"{
          "schemaVersion": 2,
          "tables": [
            { "name": "todos", "primaryKey": "id", "scopes": ["list:{list_id}"], "columns": [
              { "name": "id", "type": "string" },
              { "name": "list_id", "type": "string" },
              { "name": "title", "type": "string" },
              { "name": "size", "type": "integer", "nullable": true },
              { "name": "meta", "type": "json", "nullable": true },
              { "name": "secret", "type": "bytes", "nullable": true, "encrypted": true },
              { "name": "title_key", "type": "string", "nullable": true },
              { "name": "half", "type": "float", "nullable": true },
              { "name": "long", "type": "boolean", "nullable": true },
              { "name": "summary", "type": "json", "nullable": true },
              { "name": "raw", "type": "bytes", "nullable": true },
              { "name": "photo", "type": "blob_ref", "nullable": true } ] },
            { "name": "counters", "primaryKey": "id", "scopes": ["list:{list_id}"], "columns": [
              { "name": "id", "type": "integer" },
              { "name": "list_id", "type": "string" },
              { "name": "title", "type": "string" } ] },
            { "name": "cards", "primaryKey": "id", "scopes": ["list:{list_id}"], "columns": [
              { "name": "id", "type": "string" },
              { "name": "list_id", "type": "string" },
              { "name": "label", "type": "string" },
              { "name": "note", "type": "string", "nullable": true } ] }
          ]
        }"#,
    )
    .unwrap()
}

pub const COLUMNS: &str = r#"
name = "title-key"
schema_version = 2
sources = ["todos"]
target = "todos"
where = "row.title != ''"

[columns]
title_key = "row.title.trim().lowerAscii()"
half = "row.size == null ? null : double(row.size) / 2.0"
long = "size(row.title) > 10"
summary = "{'title': row.title, 'tags': row.meta == null ? [] : row.meta.tags, 'a': 1}"
raw = "bytes(row.title)"
"#;

pub const ROWS: &str = r#"
name = "cards"
schema_version = 2
sources = ["todos", "counters"]
target = "cards"
key = "source + ':' + string(row.id)"
where = "!row.title.startsWith('#')"

[columns]
list_id = "row.list_id"
label = "row.title"
"#;

pub fn load(text: &str) -> Result<DeclaredProjection, Vec<ConfigError>> {
    DeclaredProjection::load(&ProjectionConfig::parse(text).unwrap(), &schema())
}

pub fn table(name: &str) -> TableId {
    schema().table(name).unwrap().id
}

pub fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

pub fn todo(
    id: &str,
    list: &str,
    title: &str,
    size: Option<i64>,
    meta: Option<&str>,
) -> Vec<Value> {
    let mut row = vec![Value::Null; 12];
    row[0] = text(id);
    row[1] = text(list);
    row[2] = text(title);
    row[3] = size.map_or(Value::Null, Value::Integer);
    row[4] = meta.map_or(Value::Null, text);
    row
}

pub fn image(version: i64, values: Vec<Value>) -> RowImage {
    RowImage {
        server_version: version,
        values: values.into(),
    }
}

pub fn key(table_name: &str, row_id: &str) -> RowKey {
    RowKey {
        table: table(table_name),
        row_id: Arc::from(row_id),
    }
}

pub fn source(table_name: &str, row_id: &str, row: Option<RowImage>) -> SourceImage {
    SourceImage {
        key: key(table_name, row_id),
        row,
    }
}

//! What a client knows of its schema: tables, columns, keys and scope columns.

use std::collections::HashMap;

use serde::Deserialize;
use ssp2::{Column, ColumnType, ScopeLists, Value};

/// Why a schema document is refused.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// Not JSON, or not the shape of a schema IR.
    #[error("the schema is not valid IR JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A name is used that the document does not declare, or a shape rule is broken.
    #[error("table {table}: {problem}")]
    Table {
        /// The table at fault.
        table: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// A client's schema: tables in declaration order.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientSchema {
    version: i32,
    tables: Vec<ClientTable>,
    by_name: HashMap<String, usize>,
}

/// One table as the client codes and purges it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientTable {
    /// Name.
    pub name: String,
    /// Codec columns in declaration order.
    pub columns: Vec<Column>,
    /// Ordinal of the primary key.
    pub primary_key: usize,
    /// Scope variables with the column that holds their value.
    pub scopes: Vec<ScopeColumn>,
}

/// A scope variable and the local column that holds its value (§3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeColumn {
    /// The variable.
    pub variable: String,
    /// Ordinal of its column.
    pub column: usize,
}

#[derive(Deserialize)]
struct IrSchema {
    #[serde(alias = "schemaVersion")]
    version: i32,
    tables: Vec<IrTable>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IrTable {
    name: String,
    primary_key: String,
    columns: Vec<IrColumn>,
    scopes: Vec<IrScope>,
}

#[derive(Deserialize)]
struct IrColumn {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    #[serde(default)]
    nullable: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum IrScope {
    Pattern(String),
    Mapped {
        pattern: String,
        column: Option<String>,
        variable: Option<String>,
    },
}

impl ClientSchema {
    /// Reads a schema IR document (§2.4). Keys a client has no use for are ignored.
    ///
    /// # Errors
    /// When the text is not IR JSON, or a key or scope column is not declared.
    pub fn from_ir_json(text: &str) -> Result<Self, SchemaError> {
        let ir: IrSchema = serde_json::from_str(text)?;
        let tables = ir
            .tables
            .into_iter()
            .map(ClientTable::from_ir)
            .collect::<Result<Vec<_>, _>>()?;
        let mut by_name = HashMap::with_capacity(tables.len());
        for (at, table) in tables.iter().enumerate() {
            if by_name.insert(table.name.clone(), at).is_some() {
                return Err(SchemaError::Table {
                    table: table.name.clone(),
                    problem: "declared twice".to_owned(),
                });
            }
        }
        Ok(Self {
            version: ir.version,
            tables,
            by_name,
        })
    }

    /// The schema version the client declares in its requests.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Tables in declaration order.
    pub fn tables(&self) -> &[ClientTable] {
        &self.tables
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Option<&ClientTable> {
        self.index(name).map(|at| &self.tables[at])
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

impl ClientTable {
    fn from_ir(ir: IrTable) -> Result<Self, SchemaError> {
        let fail = |problem: String| SchemaError::Table {
            table: ir.name.clone(),
            problem,
        };
        let ordinal = |name: &str| ir.columns.iter().position(|column| column.name == name);
        let primary_key = ordinal(&ir.primary_key)
            .ok_or_else(|| fail(format!("primary key {} is not a column", ir.primary_key)))?;
        let mut scopes = Vec::with_capacity(ir.scopes.len());
        for scope in &ir.scopes {
            let (pattern, column, variable) = match scope {
                IrScope::Pattern(pattern) => (pattern, None, None),
                IrScope::Mapped {
                    pattern,
                    column,
                    variable,
                } => (pattern, column.as_deref(), variable.as_deref()),
            };
            let inside = pattern
                .split_once(":{")
                .and_then(|(_, rest)| rest.strip_suffix('}'))
                .filter(|inside| !inside.is_empty())
                .ok_or_else(|| fail(format!("{pattern} is not a prefix:{{variable}} pattern")))?;
            let variable = variable.unwrap_or(inside);
            let column = column.unwrap_or(variable);
            scopes.push(ScopeColumn {
                variable: variable.to_owned(),
                column: ordinal(column)
                    .ok_or_else(|| fail(format!("scope column {column} is not a column")))?,
            });
        }
        let columns = ir
            .columns
            .iter()
            .map(|column| {
                Ok(Column {
                    name: column.name.clone(),
                    ty: ColumnType::from_name(&column.ty)
                        .ok_or_else(|| fail(format!("there is no type {}", column.ty)))?,
                    nullable: column.nullable,
                })
            })
            .collect::<Result<_, SchemaError>>()?;
        Ok(Self {
            columns,
            primary_key,
            scopes,
            name: ir.name,
        })
    }

    /// The ordinal of a column.
    pub fn ordinal(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == column)
    }

    /// The local scope column of a variable, if the schema maps it.
    pub(crate) fn scope_column(&self, variable: &str) -> Option<usize> {
        self.scopes
            .iter()
            .find(|scope| scope.variable == variable)
            .map(|scope| scope.column)
    }

    /// Whether every variable of `scopes` has a local column, so that rows can be
    /// matched against it at all (§3.3 fails closed otherwise).
    pub(crate) fn can_match(&self, scopes: &ScopeLists) -> bool {
        scopes
            .iter()
            .all(|(variable, _)| self.scope_column(variable).is_some())
    }

    /// Whether a row whose columns `value` yields lies in `scopes` (§3.3). An
    /// empty map matches nothing.
    pub(crate) fn row_in<'v>(
        &self,
        scopes: &ScopeLists,
        value: impl Fn(usize) -> Option<&'v Value>,
    ) -> bool {
        !scopes.is_empty()
            && scopes.iter().all(|(variable, allowed)| {
                self.scope_column(variable)
                    .and_then(&value)
                    .and_then(render_scope_value)
                    .is_some_and(|stored| allowed.contains(&stored))
            })
    }
}

/// Renders a key or scope value (§2.3): text as it is, integers in decimal,
/// booleans as words, floats as JavaScript prints them. `None` has no rendering.
pub(crate) fn render_scope_value(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bytes(_) => None,
        Value::Text(text) => Some(text.clone()),
        Value::Integer(integer) => Some(integer.to_string()),
        Value::Boolean(boolean) => Some(boolean.to_string()),
        Value::Float(float) => Some(ssp2::js_number(*float)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IR: &str = include_str!("../tests/data/schema.json");

    #[test]
    fn an_ir_document_yields_columns_keys_and_scope_columns() {
        let schema = ClientSchema::from_ir_json(IR).unwrap();
        assert_eq!(schema.version(), 1);
        let names: Vec<_> = schema.tables().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["lists", "todos"]);
        let lists = schema.table("lists").unwrap();
        assert_eq!(
            lists.scopes,
            [ScopeColumn {
                variable: "list_id".into(),
                column: 0
            }]
        );
        let todos = schema.table("todos").unwrap();
        assert_eq!(todos.primary_key, 0);
        assert_eq!(todos.columns[4].ty, ColumnType::Integer);
        assert!(todos.columns[4].nullable);
        assert_eq!(todos.scope_column("list_id"), Some(1));
    }

    #[test]
    fn a_scope_pattern_over_an_unknown_column_is_refused() {
        let error = ClientSchema::from_ir_json(
            r#"{"schemaVersion":1,"tables":[{"name":"t","primaryKey":"id",
               "columns":[{"name":"id","type":"string"}],"scopes":["p:{gone}"]}]}"#,
        )
        .unwrap_err();
        assert!(error.to_string().contains("gone"));
    }

    #[test]
    fn rows_match_scopes_only_in_every_variable() {
        let schema = ClientSchema::from_ir_json(IR).unwrap();
        let todos = schema.table("todos").unwrap();
        let row = [Value::Text("t1".into()), Value::Text("a".into())];
        let scopes: ScopeLists = [("list_id", vec!["a".to_owned()])].into_iter().collect();
        assert!(todos.row_in(&scopes, |at| row.get(at)));
        let other: ScopeLists = [("list_id", vec!["b".to_owned()])].into_iter().collect();
        assert!(!todos.row_in(&other, |at| row.get(at)));
        assert!(!todos.row_in(&ScopeLists::new(), |at| row.get(at)));
    }

    #[test]
    fn scope_values_render_as_the_server_stores_them() {
        assert_eq!(render_scope_value(&Value::Integer(-7)).unwrap(), "-7");
        assert_eq!(render_scope_value(&Value::Float(3.0)).unwrap(), "3");
        assert_eq!(render_scope_value(&Value::Float(-0.0)).unwrap(), "0");
        assert_eq!(render_scope_value(&Value::Float(0.5)).unwrap(), "0.5");
        assert_eq!(render_scope_value(&Value::Boolean(true)).unwrap(), "true");
        assert_eq!(render_scope_value(&Value::Null), None);
    }
}

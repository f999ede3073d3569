//! One CEL expression of a declared backfill: compiled once, bounded, and run over
//! rows without a way to loop, to read anything but its row, or to panic.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Context, Env, ExecutionError, Value as Cel};
use ssp2::{Column, ColumnType, MAX_SAFE_INTEGER, Value, canonical_json};

use super::FailureReason;

/// Longest expression, bytes.
pub const MAX_EXPRESSION_BYTES: usize = 2_048;
/// Deepest nesting of an expression's operations. Evaluation recurses this deep at most.
pub const MAX_EXPRESSION_DEPTH: usize = 24;
/// Brackets that an expression may open: the parser recurses at each.
const MAX_BRACKETS: usize = 64;
/// Largest computed value, bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// The parser takes long chains of operators by recursion. That depth is bounded
/// by the expression's length, but by far more than an ordinary thread's stack.
const COMPILER_STACK_BYTES: usize = 256 << 20;

/// The row's columns.
const ROW: &str = "row";
/// The name of the source table.
const SOURCE: &str = "source";

const OPERATORS: [&str; 17] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
];

/// Functions whose cost and result stay within the size of their arguments.
const FUNCTIONS: [&str; 18] = [
    operators::IN,
    "size",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "bytes",
    "contains",
    "startsWith",
    "endsWith",
    "lowerAscii",
    "upperAscii",
    "trim",
    "substring",
    "charAt",
    "indexOf",
    "lastIndexOf",
];

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib().with_optional_support(false);
    // Cannot fail on a fresh environment; without it the functions are merely unknown.
    let _declared = env.add_extension(cel::extensions::strings);
    Arc::new(env)
});

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    root: IdedExpr,
    columns: BTreeSet<String>,
}

impl Expression {
    /// Compiles an expression over `row.<column>` and `source`, the source table's
    /// name. Comprehensions (`map`, `filter`, `exists`, ...) are refused: without
    /// them an expression's cost is bounded by its length and its row.
    ///
    /// # Errors
    /// The broken rule, for the person who writes the configuration.
    pub fn compile(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("is empty".to_owned());
        }
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(format!("is longer than {MAX_EXPRESSION_BYTES} bytes"));
        }
        let brackets = text.bytes().filter(|byte| b"([{".contains(byte)).count();
        if brackets > MAX_BRACKETS {
            return Err(format!("opens more than {MAX_BRACKETS} brackets"));
        }
        std::thread::scope(|scope| {
            let compiler = std::thread::Builder::new()
                .stack_size(COMPILER_STACK_BYTES)
                .spawn_scoped(scope, || parse(text));
            match compiler.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(compiled)) => compiled,
                _ => Err("could not be compiled".to_owned()),
            }
        })
    }

    /// The columns it reads.
    pub fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why there is no value; never the row's contents.
    pub fn evaluate(&self, row: &Variables) -> Result<Cel, FailureReason> {
        catch_unwind(AssertUnwindSafe(|| Cel::resolve(&self.root, &row.context)))
            .map_err(|_| FailureReason::Panicked)?
            .map_err(|error| reason(&error))
    }
}

fn parse(text: &str) -> Result<Expression, String> {
    let root = ENVIRONMENT.parser().parse(text).map_err(|errors| {
        errors.errors.first().map_or_else(
            || "is not an expression".to_owned(),
            |error| {
                let message = error.msg.lines().next().unwrap_or_default();
                format!("line {}: {message}", error.pos.0)
            },
        )
    })?;
    let mut columns = BTreeSet::new();
    check(&root, MAX_EXPRESSION_DEPTH, &mut columns)?;
    Ok(Expression { root, columns })
}

/// Walks an expression, collecting the columns it reads and refusing what it may not do.
fn check(node: &IdedExpr, depth: usize, columns: &mut BTreeSet<String>) -> Result<(), String> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(format!(
            "nests its operations deeper than {MAX_EXPRESSION_DEPTH}"
        ));
    };
    let is_row = |node: &IdedExpr| matches!(&node.expr, Expr::Ident(name) if name == ROW);
    match &node.expr {
        Expr::Literal(_) => Ok(()),
        Expr::Ident(name) if name == SOURCE => Ok(()),
        Expr::Ident(name) if name == ROW => {
            Err("uses row as a whole; name its columns, as in row.title".to_owned())
        }
        Expr::Ident(name) => Err(format!("uses the unknown name {name}")),
        Expr::Select(select) if is_row(&select.operand) => {
            columns.insert(select.field.clone());
            Ok(())
        }
        Expr::Select(select) => check(&select.operand, depth, columns),
        Expr::Call(call) => {
            if call.func_name == operators::INDEX
                && let [row, index] = call.args.as_slice()
                && is_row(row)
                && let Expr::Literal(LiteralValue::String(name)) = &index.expr
            {
                columns.insert(name.inner().to_owned());
                return Ok(());
            }
            let name = call.func_name.as_str();
            if !OPERATORS.contains(&name) && !FUNCTIONS.contains(&name) {
                return Err(format!("calls the unknown function {name}"));
            }
            call.target
                .iter()
                .map(AsRef::as_ref)
                .chain(&call.args)
                .try_for_each(|part| check(part, depth, columns))
        }
        Expr::List(list) => list
            .elements
            .iter()
            .try_for_each(|part| check(part, depth, columns)),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                check(&entry.key, depth, columns)?;
                check(&entry.value, depth, columns)
            }
            EntryExpr::StructField(_) => Err("builds a struct".to_owned()),
        }),
        Expr::Comprehension(_) => Err("loops; map, filter, all and exists are off".to_owned()),
        Expr::Struct(_) => Err("builds a struct".to_owned()),
        Expr::Unspecified => Err("is not an expression".to_owned()),
    }
}

/// A row as an expression sees it.
pub struct Variables {
    context: Context<'static, 'static>,
}

impl Variables {
    /// Binds those columns of a row that `wanted` names. A json column is its
    /// parsed document, everything else its value.
    ///
    /// # Errors
    /// A json column whose text does not parse, with its ordinal.
    pub fn bind(
        source: &str,
        columns: &[Column],
        values: &[Value],
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, (usize, FailureReason)> {
        let mut row = HashMap::new();
        for (at, (column, value)) in columns.iter().zip(values).enumerate() {
            if wanted(&column.name) {
                let bound = bind(column.ty, value).map_err(|reason| (at, reason))?;
                row.insert(column.name.clone(), bound);
            }
        }
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable_from_value(ROW, row);
        context.add_variable_from_value(SOURCE, source);
        Ok(Self { context })
    }
}

fn bind(ty: ColumnType, value: &Value) -> Result<Cel, FailureReason> {
    Ok(match value {
        Value::Null => Cel::Null,
        Value::Text(text) if ty == ColumnType::Json => {
            from_json(serde_json::from_str(text).map_err(|_| FailureReason::NotJson)?)
        }
        Value::Text(text) => Cel::String(Arc::new(text.clone())),
        Value::Integer(number) => Cel::Int(*number),
        Value::Float(number) => Cel::Float(*number),
        Value::Boolean(flag) => Cel::Bool(*flag),
        Value::Bytes(bytes) => Cel::Bytes(Arc::new(bytes.to_vec())),
    })
}

fn from_json(json: serde_json::Value) -> Cel {
    use serde_json::Value as Json;
    match json {
        Json::Null => Cel::Null,
        Json::Bool(flag) => Cel::Bool(flag),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Cel::Int(integer),
            (None, Some(float)) => Cel::Float(float),
            (None, None) => Cel::Null,
        },
        Json::String(text) => Cel::String(Arc::new(text)),
        Json::Array(items) => Cel::List(Arc::new(items.into_iter().map(from_json).collect())),
        Json::Object(fields) => Cel::from(
            fields
                .into_iter()
                .map(|(key, value)| (key, from_json(value)))
                .collect::<HashMap<_, _>>(),
        ),
    }
}

fn to_json(value: &Cel) -> Option<serde_json::Value> {
    use serde_json::Value as Json;
    Some(match value {
        Cel::Null => Json::Null,
        Cel::Bool(flag) => (*flag).into(),
        Cel::Int(number) => (*number).into(),
        Cel::UInt(number) => (*number).into(),
        Cel::Float(number) => Json::Number(serde_json::Number::from_f64(*number)?),
        Cel::String(text) => text.as_str().into(),
        Cel::List(items) => Json::Array(items.iter().map(to_json).collect::<Option<_>>()?),
        Cel::Map(map) => Json::Object(
            map.map
                .iter()
                .map(|(key, value)| match key {
                    cel::objects::Key::String(key) => Some((key.to_string(), to_json(value)?)),
                    _ => None,
                })
                .collect::<Option<_>>()?,
        ),
        _ => return None,
    })
}

/// Fits a computed value to its column. Nothing is converted silently: `double(n)`
/// and `string(n)` say so in the expression. A json column takes any document and
/// stores its canonical text, so that equal documents are equal texts.
///
/// # Errors
/// Why the value does not fit.
pub fn fit(column: &Column, value: &Cel) -> Result<Value, FailureReason> {
    let wrong = |got: &Cel| FailureReason::WrongType {
        wanted: column.ty,
        got: got.type_of().to_string(),
    };
    let fitted = match (column.ty, value) {
        (_, Cel::Null) if column.nullable => Value::Null,
        (_, Cel::Null) => return Err(FailureReason::NullNotAllowed),
        (ColumnType::String, Cel::String(text)) => Value::Text(text.as_str().to_owned()),
        (ColumnType::Integer, Cel::Int(number)) => Value::Integer(*number),
        (ColumnType::Integer, Cel::UInt(number)) => {
            Value::Integer(i64::try_from(*number).map_err(|_| FailureReason::UnsafeInteger)?)
        }
        (ColumnType::Float, Cel::Float(number)) if number.is_finite() => Value::Float(*number),
        (ColumnType::Float, Cel::Float(_)) => return Err(FailureReason::NotFinite),
        (ColumnType::Boolean, Cel::Bool(flag)) => Value::Boolean(*flag),
        (ColumnType::Json, document) => {
            let json = to_json(document).ok_or(FailureReason::NotJson)?;
            Value::Text(canonical_json(&json))
        }
        (ColumnType::Bytes, Cel::Bytes(bytes)) => Value::Bytes(bytes.as_slice().to_vec().into()),
        (_, other) => return Err(wrong(other)),
    };
    match &fitted {
        Value::Integer(number) if number.unsigned_abs() > MAX_SAFE_INTEGER.unsigned_abs() => {
            Err(FailureReason::UnsafeInteger)
        }
        Value::Text(text) if text.len() > MAX_VALUE_BYTES => Err(FailureReason::TooLarge),
        Value::Bytes(bytes) if bytes.len() > MAX_VALUE_BYTES => Err(FailureReason::TooLarge),
        _ => Ok(fitted),
    }
}

/// Sorts an evaluation error. Its own text may quote the row and is dropped.
fn reason(error: &ExecutionError) -> FailureReason {
    match error {
        ExecutionError::Overflow(..) => FailureReason::Overflow,
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            FailureReason::DivisionByZero
        }
        ExecutionError::NoSuchKey(_)
        | ExecutionError::IndexOutOfBounds(_)
        | ExecutionError::UnsupportedIndex(..) => FailureReason::NoSuchElement,
        ExecutionError::NoSuchOverload(_)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. }
        | ExecutionError::InvalidArgumentCount { .. }
        | ExecutionError::MissingArgumentOrTarget
        | ExecutionError::UndeclaredReference(_)
        | ExecutionError::UnsupportedKeyType(_) => FailureReason::TypeMismatch,
        _ => FailureReason::ConversionFailed,
    }
}

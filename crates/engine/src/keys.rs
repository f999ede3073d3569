//! How column values become text: primary keys (row ids) and scope values
//! (§2.4 primary-key eligibility, §3.1).

use ssp2::{Value, js_number};

/// Renders a primary-key value as a row id (§2.4): string as is, integer in
/// decimal, boolean as `true`/`false`, json as its raw text.
///
/// `None` for values that no eligible key type holds: null, floats and bytes.
pub fn render_key(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(boolean(*flag).to_owned()),
        Value::Null | Value::Float(_) | Value::Bytes(_) => None,
    }
}

/// Renders the value of a scope column (§3.1). Floats read as JavaScript's
/// `String(n)`.
///
/// `None` denies: null, the empty string and bytes have no scope.
pub fn render_scope_value(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) if text.is_empty() => None,
        Value::Text(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(boolean(*flag).to_owned()),
        Value::Float(number) => Some(js_number(*number)),
        Value::Null | Value::Bytes(_) => None,
    }
}

const fn boolean(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

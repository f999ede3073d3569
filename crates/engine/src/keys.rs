//! How column values become text: primary keys (row ids) and scope values
//! (§2.4 primary-key eligibility, §3.1).

use ssp2::Value;

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

/// A number as ECMAScript's `Number::toString` in radix 10 writes it.
fn js_number(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number == 0.0 {
        return "0".into();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    // Rust's `{:e}` gives the shortest digits that round-trip, as ECMAScript
    // wants; only the layout around them differs.
    let scientific = format!("{:e}", number.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if number < 0.0 { "-" } else { "" };
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    let body = if (0..21).contains(&exponent) {
        if exponent + 1 >= count {
            format!("{digits}{}", zeros(exponent + 1 - count))
        } else {
            let split = usize::try_from(exponent + 1).unwrap_or(0);
            format!("{}.{}", &digits[..split], &digits[split..])
        }
    } else if (-6..0).contains(&exponent) {
        format!("0.{}{digits}", zeros(-exponent - 1))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let power = exponent.unsigned_abs();
        let (first, rest) = digits.split_at(1);
        if rest.is_empty() {
            format!("{first}e{sign}{power}")
        } else {
            format!("{first}.{rest}e{sign}{power}")
        }
    };
    format!("{sign}{body}")
}

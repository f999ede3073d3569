//! Canonical JSON (§11.2), the scope digest (§3.5) and JavaScript's number text.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::scope_map::{ScopeLists, cmp_utf16};

/// Lowercase hex of `bytes`.
pub(crate) fn push_hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
}

/// A finite number as JavaScript's `String(n)` renders it; `NaN`, `Infinity` and
/// `-Infinity` for the others.
pub fn js_number(value: f64) -> String {
    ryu_js::Buffer::new().format(value).to_owned()
}

/// Canonical JSON: keys by UTF-16 code unit, no white space, shortest numbers.
pub fn canonical_json(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            members.sort_by(|(a, _), (b, _)| cmp_utf16(a, b));
            out.push('{');
            for (index, (key, value)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(key, out);
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::String(text) => write_text(text, out),
        Value::Number(number) => match number.as_f64() {
            // JavaScript renders negative zero as "0", as ryu-js does.
            Some(float) if !number.is_i64() && !number.is_u64() => out.push_str(&js_number(float)),
            _ => {
                let _ = write!(out, "{number}");
            }
        },
        Value::Bool(_) | Value::Null => {
            let _ = write!(out, "{value}");
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    let _ = write!(out, "{}", Value::from(text));
}

/// The canonical JSON of a scope map: values sorted and unique.
pub fn canonical_scopes(scopes: &ScopeLists) -> String {
    let mut out = String::from("{");
    for (index, (key, values)) in scopes.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_text(key, &mut out);
        out.push_str(":[");
        let mut values: Vec<&String> = values.iter().collect();
        values.sort_by(|a, b| cmp_utf16(a, b));
        values.dedup();
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            write_text(value, &mut out);
        }
        out.push(']');
    }
    out.push('}');
    out
}

/// SHA-256, in lowercase hex, of the canonical JSON of the effective scopes.
pub fn scope_digest(effective: &ScopeLists) -> String {
    let mut digest = String::with_capacity(64);
    push_hex(&Sha256::digest(canonical_scopes(effective)), &mut digest);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_json_sorts_by_code_unit_and_renders_numbers_as_javascript_does() {
        let value: Value =
            serde_json::from_str(r#"{"\uFF5E":1,"𐀀":2.50,"a":[1e21,-0.0,0.000001,1e-7]}"#).unwrap();
        assert_eq!(
            canonical_json(&value),
            "{\"a\":[1e+21,0,0.000001,1e-7],\"𐀀\":2.5,\"～\":1}"
        );
    }

    #[test]
    fn the_scope_digest_ignores_order_and_duplicates() {
        let a: ScopeLists = [("p", vec!["2".to_owned(), "1".to_owned(), "2".to_owned()])]
            .into_iter()
            .collect();
        let b: ScopeLists = [("p", vec!["1".to_owned(), "2".to_owned()])]
            .into_iter()
            .collect();
        assert_eq!(canonical_scopes(&a), r#"{"p":["1","2"]}"#);
        assert_eq!(scope_digest(&a), scope_digest(&b));
    }
}

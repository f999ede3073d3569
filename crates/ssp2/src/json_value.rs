//! Parsing of validated JSON text into values, as JavaScript would see them. For
//! the debug rendering only: nothing in production reads these values.

use serde_json::{Map, Number, Value};

use crate::digest::js_number;

/// Nesting up to which a document becomes structure; a deeper one stays text,
/// because a `Value` is dropped recursively.
const MAX_DEPTH: usize = 100;

const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Parses a valid document. Numbers are doubles; infinite ones become null (§11.1
/// rule 10). Lone surrogates, which a Rust string cannot hold, become U+FFFD.
pub(crate) fn parse(text: &str) -> Value {
    let mut parser = Parser {
        rest: text.trim_start_matches(WHITE_SPACE),
        depth: 0,
    };
    parser
        .value()
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A number as JavaScript's JSON shows it: integral values without a fraction,
/// non-finite ones as null (§11.1 rule 10).
pub(crate) fn number(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    serde_json::from_str::<Number>(&js_number(value)).map_or(Value::Null, Value::Number)
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else {
            return false;
        };
        self.rest = rest.trim_start_matches(WHITE_SPACE);
        true
    }

    fn value(&mut self) -> Option<Value> {
        for (token, value) in [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
        ] {
            if self.eat(token) {
                return Some(value);
            }
        }
        match self.rest.as_bytes().first()? {
            b'"' => self.string().map(Value::String),
            b'[' => self.nested(Self::array),
            b'{' => self.nested(Self::object),
            _ => self.number(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Value>) -> Option<Value> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn array(&mut self) -> Option<Value> {
        self.eat("[");
        let mut items = Vec::new();
        if self.eat("]") {
            return Some(Value::Array(items));
        }
        loop {
            items.push(self.value()?);
            if self.eat("]") {
                return Some(Value::Array(items));
            }
            self.eat(",").then_some(())?;
        }
    }

    fn object(&mut self) -> Option<Value> {
        self.eat("{");
        let mut members = Map::new();
        if self.eat("}") {
            return Some(Value::Object(members));
        }
        loop {
            let key = self.string()?;
            self.eat(":").then_some(())?;
            let value = self.value()?;
            members.insert(key, value);
            if self.eat("}") {
                return Some(Value::Object(members));
            }
            self.eat(",").then_some(())?;
        }
    }

    fn number(&mut self) -> Option<Value> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let value = self.rest[..end].parse::<f64>().ok()?;
        self.rest = self.rest[end..].trim_start_matches(WHITE_SPACE);
        Some(number(value))
    }

    fn string(&mut self) -> Option<String> {
        let mut chars = self.rest.strip_prefix('"')?.chars();
        let mut units: Vec<u16> = Vec::new();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => match chars.next()? {
                    'u' => {
                        let mut unit = 0;
                        for _ in 0..4 {
                            unit = unit * 16 + chars.next()?.to_digit(16)?;
                        }
                        units.push(u16::try_from(unit).ok()?);
                    }
                    'b' => units.push(8),
                    'f' => units.push(12),
                    'n' => units.push(10),
                    'r' => units.push(13),
                    't' => units.push(9),
                    other => units.push(u16::try_from(u32::from(other)).ok()?),
                },
                plain => units.extend_from_slice(plain.encode_utf16(&mut [0; 2])),
            }
        }
        self.rest = chars.as_str().trim_start_matches(WHITE_SPACE);
        Some(String::from_utf16_lossy(&units))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use serde_json::json;

    #[test]
    fn numbers_and_strings_are_read_as_javascript_reads_them() {
        let text = " { \"a\" : [ 1.0 , -0 , 2.5e1, 1e999, 0.1 ], \"b\":\"\\ud834\\udd1e\\ud800\\n\\/é\", \"\":{} } ";
        let expected = json!({"a": [1, 0, 25, null, 0.1], "b": "𝄞\u{fffd}\n/é", "": {}});
        assert_eq!(parse(text), expected);
        assert_eq!(parse("9007199254740993"), json!(9_007_199_254_740_992_i64));
        assert_eq!(parse("9007199254740994"), json!(9_007_199_254_740_994_i64));
        assert_eq!(parse("1e21").to_string(), "1e+21");
    }

    #[test]
    fn a_document_too_deep_for_a_value_stays_text() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(parse(&deep), json!(deep));
    }
}

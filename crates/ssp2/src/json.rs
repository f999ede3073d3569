//! Raw JSON text: validation without interpretation.

use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Whether `text` is one JSON document (RFC 8259), of any depth. Unpaired
/// surrogate escapes are allowed, as JavaScript's parser allows them.
pub fn is_valid_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The members of a JSON object in document order, each value as raw text; `None`
/// when `text` is not an object or a member stands twice.
pub(crate) fn object_members(text: &str) -> Option<Vec<(String, Box<RawValue>)>> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, Box<RawValue>)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members: Self::Value = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                if members.iter().any(|(other, _)| *other == key) {
                    return Err(serde::de::Error::custom("a member stands twice"));
                }
                members.push((key, value));
            }
            Ok(members)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let members = deserializer.deserialize_map(Members).ok()?;
    deserializer.end().ok()?;
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::is_valid_json;

    #[test]
    fn accepts_what_a_javascript_parser_accepts() {
        for text in [
            "null",
            " 1 ",
            "-0.5e+3",
            "1e999",
            "\"\\ud800\"",
            "[1, 2]",
            "{\"a\":{}}",
            "\"\u{10000}\"",
        ] {
            assert!(is_valid_json(text), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(is_valid_json(&deep), "depth is not limited");
    }

    #[test]
    fn refuses_what_it_refuses() {
        for text in [
            "",
            "01",
            "1.",
            ".5",
            "nul",
            "[1,]",
            "{a:1}",
            "'a'",
            "1 2",
            "\"\t\"",
            "\"\\x\"",
            "NaN",
            "\u{feff}1",
        ] {
            assert!(!is_valid_json(text), "{text}");
        }
    }
}

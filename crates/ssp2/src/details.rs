//! Rejection details (§6.3.1): a small, bounded, normalized JSON object.

use crate::json::object_members;
use crate::message::DetailEntry;

/// Validated details of a rejection. Holding one means it is inside all bounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RejectionDetails {
    field_paths: Vec<String>,
    reason: Option<String>,
    required_action: Option<String>,
    references: Vec<(String, String)>,
}

/// The bound or shape that a details object breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DetailsError(&'static str);

impl RejectionDetails {
    /// Builds details and checks every bound.
    ///
    /// # Errors
    /// Names the bound that is broken.
    pub fn new(
        field_paths: Vec<String>,
        reason: Option<String>,
        required_action: Option<String>,
        references: Vec<(String, String)>,
    ) -> Result<Self, DetailsError> {
        let references: Vec<(String, String)> = references
            .into_iter()
            .map(|(key, value)| (key, value.trim().to_owned()))
            .collect();
        let details = Self {
            field_paths,
            reason,
            required_action,
            references,
        };
        details.check()?;
        if details.to_json().len() > 4096 {
            return Err(DetailsError("details are above 4,096 bytes"));
        }
        Ok(details)
    }

    /// Reads a `detailsJson`.
    ///
    /// # Errors
    /// Names the bound or shape that is broken.
    pub fn parse(text: &str) -> Result<Self, DetailsError> {
        let shape = DetailsError("details are not an object of the known members");
        if text.len() > 4096 {
            return Err(DetailsError("details are above 4,096 bytes"));
        }
        let mut details = Self::default();
        let mut empty_list = false;
        for (key, value) in object_members(text).ok_or(shape)? {
            let value = value.get();
            match key.as_str() {
                "fieldPaths" => {
                    details.field_paths = serde_json::from_str(value).map_err(|_| shape)?;
                    empty_list |= details.field_paths.is_empty();
                }
                "reason" => details.reason = Some(serde_json::from_str(value).map_err(|_| shape)?),
                "requiredAction" => {
                    details.required_action = Some(serde_json::from_str(value).map_err(|_| shape)?);
                }
                "references" => {
                    for (key, value) in object_members(value).ok_or(shape)? {
                        let value: String = serde_json::from_str(value.get()).map_err(|_| shape)?;
                        if value.trim() != value {
                            return Err(DetailsError("a reference value is not trimmed"));
                        }
                        details.references.push((key, value));
                    }
                    empty_list |= details.references.is_empty();
                }
                _ => return Err(shape),
            }
        }
        if empty_list {
            return Err(DetailsError("a details member is empty"));
        }
        details.check()?;
        Ok(details)
    }

    /// The normalized JSON text.
    pub fn to_json(&self) -> String {
        let mut members = Vec::new();
        let text = |value: &str| serde_json::Value::from(value).to_string();
        if !self.field_paths.is_empty() {
            let paths: Vec<String> = self.field_paths.iter().map(|path| text(path)).collect();
            members.push(format!("\"fieldPaths\":[{}]", paths.join(",")));
        }
        if let Some(reason) = &self.reason {
            members.push(format!("\"reason\":{}", text(reason)));
        }
        if let Some(action) = &self.required_action {
            members.push(format!("\"requiredAction\":{}", text(action)));
        }
        if !self.references.is_empty() {
            let pairs: Vec<String> = self
                .references
                .iter()
                .map(|(key, value)| format!("{}:{}", text(key), text(value)))
                .collect();
            members.push(format!("\"references\":{{{}}}", pairs.join(",")));
        }
        format!("{{{}}}", members.join(","))
    }

    fn check(&self) -> Result<(), DetailsError> {
        if self.field_paths.is_empty()
            && self.reason.is_none()
            && self.required_action.is_none()
            && self.references.is_empty()
        {
            return Err(DetailsError("details have no member"));
        }
        if self.field_paths.len() > 32 || !self.field_paths.iter().all(|path| is_field_path(path)) {
            return Err(DetailsError("field paths are malformed or more than 32"));
        }
        if has_duplicate(self.field_paths.iter()) {
            return Err(DetailsError("a field path stands twice"));
        }
        for token in [&self.reason, &self.required_action].into_iter().flatten() {
            if token.chars().count() > 96 || !is_token(token) {
                return Err(DetailsError("a reason or action is not a stable token"));
            }
        }
        if self.references.len() > 16 || has_duplicate(self.references.iter().map(|(key, _)| key)) {
            return Err(DetailsError("references are duplicated or more than 16"));
        }
        for (key, value) in &self.references {
            if key.len() > 64 || !is_token(key) {
                return Err(DetailsError("a reference key is not a stable token"));
            }
            if value.is_empty() || value.len() > 256 || value.chars().any(char::is_control) {
                return Err(DetailsError(
                    "a reference value is empty, too long or holds a control character",
                ));
            }
        }
        Ok(())
    }
}

/// The rules of a details frame's entries: not empty, unique indexes that are not
/// negative, bounded details.
pub(crate) fn check_entries(entries: &[DetailEntry]) -> Result<(), &'static str> {
    if entries.is_empty() {
        return Err("a details frame has no entries");
    }
    let mut indexes: Vec<i32> = entries.iter().map(|entry| entry.op_index).collect();
    indexes.sort_unstable();
    if indexes[0] < 0 {
        return Err("a detail's opIndex is negative");
    }
    if indexes.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a detail's opIndex stands twice");
    }
    if entries
        .iter()
        .any(|entry| RejectionDetails::parse(&entry.details_json).is_err())
    {
        return Err("details are not a bounded details object");
    }
    Ok(())
}

fn has_duplicate<'a>(items: impl Iterator<Item = &'a String>) -> bool {
    let mut items: Vec<&String> = items.collect();
    items.sort_unstable();
    items.windows(2).any(|pair| pair[0] == pair[1])
}

/// `[a-z][a-z0-9]*([._-][a-z0-9]+)*`
fn is_token(text: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && text
            .split(['.', '_', '-'])
            .all(|part| !part.is_empty() && part.bytes().all(lower))
}

/// `identifier(.identifier)*`, at most 160 characters.
fn is_field_path(text: &str) -> bool {
    text.chars().count() <= 160
        && text.split('.').all(|part| {
            let mut bytes = part.bytes();
            bytes
                .next()
                .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
                && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_round_trip_in_normal_form() {
        let text = r#"{"fieldPaths":["list_id"],"reason":"missing_parent","references":{"parent":"lists","row":"l-1"}}"#;
        let details = RejectionDetails::parse(text).unwrap();
        assert_eq!(details.to_json(), text);
    }

    #[test]
    fn details_bounds_are_enforced() {
        for text in [
            "{}",
            "[]",
            r#"{"reason":"Not-Lower"}"#,
            r#"{"reason":"a..b"}"#,
            r#"{"reason":"ok","reason":"ok"}"#,
            r#"{"other":1}"#,
            r#"{"fieldPaths":[]}"#,
            r#"{"fieldPaths":["a","a"]}"#,
            r#"{"fieldPaths":["1a"]}"#,
            r#"{"references":{}}"#,
            r#"{"references":{"k":""}}"#,
            r#"{"references":{"k":" v"}}"#,
            r#"{"references":{"k":"v","k":"w"}}"#,
            r#"{"references":{"k":"a\u0000b"}}"#,
        ] {
            assert!(RejectionDetails::parse(text).is_err(), "{text}");
        }
        let long = format!("{{\"reason\":\"{}\"}}", "a".repeat(97));
        assert!(RejectionDetails::parse(&long).is_err());
    }
}

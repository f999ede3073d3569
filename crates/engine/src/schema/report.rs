//! Broken rules of a schema document, and reading its parts while collecting them.

use std::fmt;

use serde_json::{Map, Value as Json};

/// A broken rule of a schema document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct SchemaError {
    /// Where, as a JSON path: `$.tables[0].columns[2].type`.
    pub path: String,
    /// What rule, for the person who writes the schema.
    pub reason: String,
}

/// PostgreSQL cuts longer identifiers off, so two of them could become one.
const MAX_IDENTIFIER_BYTES: usize = 63;
const RESERVED_PREFIXES: [&str; 3] = ["sync_", "_sync_", "_syncular_"];
pub(super) const RESERVED_TABLE_PREFIXES: [&str; 2] = ["tidegate_", "sqlite_"];

/// Collects broken rules.
#[derive(Default)]
pub(super) struct Report(Vec<SchemaError>);

impl Report {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_errors(self) -> Vec<SchemaError> {
        self.0
    }

    pub(super) fn add(&mut self, path: impl fmt::Display, reason: impl Into<String>) {
        self.0.push(SchemaError {
            path: path.to_string(),
            reason: reason.into(),
        });
    }

    /// A required, non-empty string of `object`.
    pub(super) fn text<'a>(
        &mut self,
        object: &'a Map<String, Json>,
        key: &str,
        path: &str,
    ) -> Option<&'a str> {
        match object.get(key) {
            Some(Json::String(text)) if !text.is_empty() => Some(text),
            Some(_) => {
                self.add(format_args!("{path}.{key}"), "must be a non-empty string");
                None
            }
            None => {
                self.add(format_args!("{path}.{key}"), "is missing");
                None
            }
        }
    }

    /// An optional string of `object`.
    pub(super) fn optional_text<'a>(
        &mut self,
        object: &'a Map<String, Json>,
        key: &str,
        path: &str,
    ) -> Option<&'a str> {
        match object.get(key) {
            None | Some(Json::Null) => None,
            Some(_) => self.text(object, key, path),
        }
    }

    pub(super) fn flag(
        &mut self,
        object: &Map<String, Json>,
        key: &str,
        path: &str,
    ) -> Option<bool> {
        match object.get(key) {
            None | Some(Json::Null) => None,
            Some(Json::Bool(flag)) => Some(*flag),
            Some(_) => {
                self.add(format_args!("{path}.{key}"), "must be true or false");
                None
            }
        }
    }

    /// The entries of an array with their paths; an absent optional one is empty.
    pub(super) fn list<'a>(
        &mut self,
        object: &'a Map<String, Json>,
        key: &str,
        path: &str,
        required: bool,
    ) -> Vec<(String, &'a Json)> {
        match object.get(key) {
            Some(Json::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(at, item)| (format!("{path}.{key}[{at}]"), item))
                .collect(),
            None | Some(Json::Null) if !required => Vec::new(),
            None => {
                self.add(format_args!("{path}.{key}"), "is missing");
                Vec::new()
            }
            Some(_) => {
                self.add(format_args!("{path}.{key}"), "must be an array");
                Vec::new()
            }
        }
    }

    pub(super) fn object<'a>(
        &mut self,
        json: &'a Json,
        path: &str,
    ) -> Option<&'a Map<String, Json>> {
        let object = json.as_object();
        if object.is_none() {
            self.add(path, "must be an object");
        }
        object
    }

    /// Checks a name that will be an SQL identifier.
    pub(super) fn identifier(&mut self, name: &str, path: &str, more_reserved: &[&str]) {
        let lower = name.to_ascii_lowercase();
        if RESERVED_PREFIXES
            .iter()
            .chain(more_reserved)
            .any(|prefix| lower.starts_with(prefix))
        {
            self.add(path, format!("the name {name} is reserved"));
        }
        if name.len() > MAX_IDENTIFIER_BYTES {
            self.add(path, "the name is longer than 63 bytes");
        }
        if name.contains('\0') {
            self.add(path, "the name holds a NUL character");
        }
    }
}

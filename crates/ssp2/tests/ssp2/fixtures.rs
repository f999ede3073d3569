//! Where the test data is, and how it is read.

use std::path::PathBuf;

use bytes::Bytes;
use serde_json::Value;

pub fn data(path: &str) -> PathBuf {
    [
        env!("CARGO_MANIFEST_DIR"),
        "..",
        "..",
        "tests",
        "data",
        path,
    ]
    .iter()
    .collect()
}

pub fn bytes(path: &str) -> Bytes {
    std::fs::read(data(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
        .into()
}

pub fn json(path: &str) -> Value {
    serde_json::from_slice(&bytes(path)).unwrap()
}

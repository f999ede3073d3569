//! The SSP2 wire codec: envelope, frames, rows, SSG2 segments, realtime control
//! messages, canonical rendering and the error catalogue.
//!
//! No I/O, no clock, no schema knowledge beyond what a caller hands in. Section
//! numbers (§) refer to the public SSP2 specification.
#![forbid(unsafe_code)]

pub mod error;
pub mod message;
pub mod row;
pub mod scope_map;

pub use error::{DecodeError, ErrorCode, SyncError};
pub use message::*;
pub use row::{Column, ColumnType, RowError, SparseRow, Value};
pub use scope_map::{ScopeLists, ScopeMap, ScopeValues};

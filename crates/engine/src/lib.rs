//! The rules of the protocol as pure functions: schema, scopes, push decisions,
//! pull plans and the serve gate. No I/O, no clock, no async runtime.
//!
//! Section numbers (§) refer to the public SSP2 specification.
#![forbid(unsafe_code)]

pub mod backfill;
pub mod column_versions;
pub mod gate;
pub mod hooks;
pub mod ids;
pub mod keys;
pub mod model;
pub mod pull;
pub mod push;
pub mod retention;
pub mod round;
pub mod schema;
pub mod scopes;

pub use ids::{
    ActorId, ClientId, CommitSeq, LogEpoch, OwnerEpoch, PartitionId, SchemaVersion, TableId,
};

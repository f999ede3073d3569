//! §6: how a push is decided. Every case asserts the answer and the state.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, outside of test functions"
)]

mod absent_row;
mod atomicity;
mod authorization;
mod delete;
mod existing_row;
mod host_rules;
mod model;
mod needs;
mod references;
mod replay;
mod unique;
mod world;

//! The client against a transport that answers by script: what it asks, and what it
//! makes of each kind of answer.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod pull;
mod push;
mod script;

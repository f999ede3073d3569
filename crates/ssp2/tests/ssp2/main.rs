//! The wire codec against golden vectors, recorded rounds and its own rules.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod allocation;
mod arbitrary;
mod catalogue;
mod fields;
mod fixtures;
mod grammar;
mod properties;
mod raw;
mod realtime;
mod traces;
mod vectors;

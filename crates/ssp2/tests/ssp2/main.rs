//! The wire codec against golden vectors, recorded rounds and its own rules.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixtures;
mod traces;
mod vectors;

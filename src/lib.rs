//! The Tidegate service: configuration, HTTP surface, sync rounds and the command
//! line, on top of the partition actors. The binary is a thin shell over this
//! library; tests and embedding programs use the same pieces.
#![forbid(unsafe_code)]

pub mod auth;
pub mod backfills;
pub mod cli;
pub mod commands;
pub mod config;
pub mod control;
pub mod http;
pub mod migration_progress;
mod serve_error;
pub mod server;
pub mod shutdown;
pub mod sync;
pub mod telemetry;

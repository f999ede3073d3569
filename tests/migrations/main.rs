//! Migrations, fences and declared backfills proved with real processes, on SQLite files
//! and on Postgres: what is killed, raced, restored and operated here is the program itself.
#![allow(clippy::unwrap_used)]

#[path = "../e2e/panel.rs"]
#[allow(dead_code)]
mod panel;
#[path = "../e2e/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../e2e/scenario.rs"]
#[allow(dead_code)]
mod scenario;

mod barrier;
mod fence;
mod kill;
mod live;
mod operating;
mod owners;
mod plant;
mod release;
mod restore;
mod sql;
mod writer;

//! Migrations, fences and declared backfills proved with real processes, on SQLite files
//! and on Postgres: what is killed, raced, restored and operated here is the program itself.
//! Most of it needs failpoints, which a build without debug assertions does not have.
#![allow(clippy::unwrap_used)]

#[path = "../e2e/panel.rs"]
#[allow(dead_code, unused_imports)]
mod panel;
#[path = "../e2e/process.rs"]
#[allow(dead_code, unused_imports)]
mod process;
#[path = "../e2e/scenario.rs"]
#[allow(dead_code, unused_imports)]
mod scenario;

#[cfg(debug_assertions)]
mod barrier;
#[cfg(debug_assertions)]
mod fence;
#[cfg(debug_assertions)]
mod kill;
#[cfg(debug_assertions)]
mod live;
#[cfg(debug_assertions)]
mod operating;
#[cfg(debug_assertions)]
mod owners;
#[cfg(debug_assertions)]
mod plant;
mod release;
#[cfg(debug_assertions)]
mod restore;
#[cfg(debug_assertions)]
mod sql;
#[cfg(debug_assertions)]
mod writer;

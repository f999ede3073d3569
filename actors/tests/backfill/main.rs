//! Declared backfills from their declaration to their activation: with live
//! pushes beside them, killed at every step, owned by two processes. What the rows hold in
//! the end is compared with what the projections give for the sources directly.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod coordinator;
mod crashes;
mod failures;
mod fragile;
#[cfg(all(debug_assertions, unix))]
mod kills;
mod life;
mod owners;
mod pages;
mod paths;
mod postgres;
mod steps;
mod turns;
mod world;

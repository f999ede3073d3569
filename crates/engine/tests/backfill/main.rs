//! Declared backfills: checkpoint rules, their behaviour under every interleaving,
//! projections, pages, scans, pacing and what is refused meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod catch_up;
mod checkpoint;
mod interleavings;
mod pacing;
mod page;
mod projection;
mod scan;
mod serve;
mod world;

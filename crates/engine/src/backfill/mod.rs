//! Declared backfills (migrations.md), the pure part: the life of a checkpoint,
//! the transform, the plan of a worker and what is not served meanwhile.
//!
//! A new schema version adds columns or rows that are computed from others. A
//! backfill is **declared** together with the migration, which raises the writer
//! fence, so that no old program can undo it; **claimed** by one owner at a time,
//! who computes old rows page by page ([`scan`], [`page`]) and then follows the
//! log ([`catch_up`]) until no source change is left; and **activated** once that
//! is proven. Who may write and what is complete is decided by [`checkpoint`]
//! alone, in the same transaction as the rows.
//!
//! A worker that dies anywhere is replaced by one that claims again: pages are
//! found again by their commit ids, and a page that has nothing left to change
//! writes nothing.

pub mod catch_up;
pub mod checkpoint;
pub mod model;
pub mod pacing;
pub mod page;
pub mod progress;
pub mod projection;
pub mod scan;
pub mod serve;

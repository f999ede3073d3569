//! The partition actors' promises, each tested where it could break: with a store whose
//! every call can be blocked, lost or refused, and no sleeps in place of conditions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod batching;
mod clients;
mod contention;
mod failures;
mod lifecycle;
mod promises;
mod races;
mod refusals;
mod store;
mod succession;
mod world;

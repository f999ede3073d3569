//! The actors of the service: who serializes pushes, who holds the migration barrier,
//! who carries deltas. No HTTP, no SQL.
//!
//! A push takes this way: [`PartitionHandle::push`] asks for a permit (`admission`), queues
//! in the partition's `inbox`, and wakes its actor (`partition`); the actor starts a batch
//! whenever none runs (`batch`); the batch reads, decides and writes (`group_commit`, on a
//! `view` of the log at one position; beside other writers under a lock, see `contention`), answers its callers, and tells the observer.
#![forbid(unsafe_code)]

mod access;
mod admission;
pub mod backfill;
mod batch;
mod clients;
mod clock;
mod contention;
mod coordinator;
mod deciding;
mod declared;
mod directory;
mod error;
mod failpoint;
mod group_commit;
mod handover;
mod inbox;
mod latency;
mod memory;
mod observer;
mod page_commit;
mod partition;
mod request;
mod resolve;
mod row_cache;
mod serve;
mod service;
mod settings;
mod standing;
mod statistics;
mod tail;
mod trail;
mod view;

pub use clock::{Clock, SystemClock};
pub use coordinator::{
    Coordinator, CoordinatorParts, CoordinatorSettings, MigrationPhase, MigrationStatus,
    MigrationWatch, NoWatch,
};
pub use directory::{Directory, HoldAll, HoldTimeout, PartitionHandle, Shutdown};
pub use error::PushError;
pub use failpoint::{NoSteps, Steps};
pub use observer::{CommitObserver, NoObserver};
pub use page_commit::PageOutcome;
pub use request::{Decisions, PushRequest};
pub use serve::{Entry, NotServed, Pass, ServeGate, ServedTables, TailView, Verified, View};
pub use service::Parts;
pub use settings::{QueueLimit, Settings};
pub use statistics::Statistics;
pub use tail::Tail;

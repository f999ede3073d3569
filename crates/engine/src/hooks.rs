//! Seams for embedding. Ready implementations live in the service.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{ScopeLists, Value};

use crate::ids::{ActorId, PartitionId};
use crate::schema::Table;

/// What the host's scope resolver answered for a request (§3.2).
#[derive(Debug, Clone, PartialEq)]
pub enum Allowed {
    /// Variable to values; `*` = any value.
    Resolved(Arc<ScopeLists>),
    /// The resolver failed: subscriptions revoke, operations are forbidden.
    Failed,
}

/// A deliberate rejection by a host rule (§6.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRejection {
    /// Host code; never starts with a protocol prefix.
    pub code: String,
    /// Public message.
    pub message: String,
    /// Normalized §6.3.1 details JSON.
    pub details: Option<String>,
}

/// What a row validator sees (§6.7).
#[derive(Debug)]
pub struct RowCheck<'a> {
    /// Partition.
    pub partition: &'a PartitionId,
    /// Actor.
    pub actor: &'a ActorId,
    /// Table.
    pub table: &'a Table,
    /// Row.
    pub row_id: &'a str,
    /// The row that will persist; `None` = delete.
    pub row: Option<&'a [Value]>,
    /// The stored row; `None` = insert.
    pub stored: Option<&'a [Value]>,
}

/// Per-row business rules (§6.7).
pub trait ValidateRow: Send + Sync {
    /// # Errors
    /// A deliberate rejection.
    fn validate(&self, check: &RowCheck<'_>) -> Result<(), HostRejection>;
}

/// Merges crdt columns (§5.10.3). Pure.
pub trait MergeCrdt: Send + Sync {
    /// Merged state, or `None` when the merge failed (`sync.crdt_merge_failed`).
    fn merge(&self, crdt_type: &str, stored: Option<&Bytes>, incoming: &Bytes) -> Option<Bytes>;
}

//! Client records on their way to the database, and bindings made by this process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_engine::model::ClientRecord;
use tidegate_engine::{ActorId, ClientId};

/// What became of a noted record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// The first unwritten one: a write must be scheduled.
    First,
    /// A write is scheduled already.
    Queued,
    /// Too many clients are unwritten.
    Dropped,
}

/// Unwritten client records, the newest per client.
#[derive(Debug)]
pub(crate) struct Ledger {
    limit: usize,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    pending: HashMap<ClientId, ClientRecord>,
    /// Since when a record waits.
    waiting_since: Option<Instant>,
    writing: HashMap<ClientId, ClientRecord>,
}

impl Ledger {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            records: Mutex::default(),
        }
    }

    pub fn note(&self, record: ClientRecord) -> Noted {
        let mut records = self.records.lock();
        let len = records.pending.len();
        if len >= self.limit && !records.pending.contains_key(&record.client_id) {
            return Noted::Dropped;
        }
        records.pending.insert(record.client_id.clone(), record);
        if len == 0 {
            records.waiting_since = Some(Instant::now());
            Noted::First
        } else {
            Noted::Queued
        }
    }

    /// Whether a record has waited for `delay`, or `many` wait. Records change with every
    /// round of a client; written with every batch they would cost as much as its commit.
    pub fn is_due(&self, delay: Duration, many: usize) -> bool {
        let records = self.records.lock();
        let waited = records
            .waiting_since
            .is_none_or(|since| since.elapsed() >= delay);
        !records.pending.is_empty() && (waited || records.pending.len() >= many)
    }

    /// Moves up to `max` records into writing.
    pub fn begin_write(&self, max: usize) -> Vec<ClientRecord> {
        let mut records = self.records.lock();
        let taken: Vec<ClientRecord> = if records.pending.len() <= max {
            std::mem::take(&mut records.pending).into_values().collect()
        } else {
            let ids: Vec<ClientId> = records.pending.keys().take(max).cloned().collect();
            ids.iter()
                .filter_map(|id| records.pending.remove(id))
                .collect()
        };
        if records.pending.is_empty() {
            records.waiting_since = None;
        }
        for record in &taken {
            records
                .writing
                .insert(record.client_id.clone(), record.clone());
        }
        taken
    }

    /// Ends a write; records that did not become durable wait again unless a newer one does.
    pub fn end_write(&self, durable: bool) {
        let mut records = self.records.lock();
        let written = std::mem::take(&mut records.writing);
        if !durable {
            for (id, record) in written {
                records.pending.entry(id).or_insert(record);
            }
        }
    }

    /// The newest record of a client that may not be in the database yet.
    pub fn latest(&self, client: &ClientId) -> Option<ClientRecord> {
        let records = self.records.lock();
        records
            .pending
            .get(client)
            .or_else(|| records.writing.get(client))
            .cloned()
    }

    pub fn is_empty(&self) -> bool {
        let records = self.records.lock();
        records.pending.is_empty() && records.writing.is_empty()
    }

    /// Forgets all records: those of a restored database's past must not come back.
    pub fn clear(&self) {
        *self.records.lock() = Records::default();
    }

    pub fn has_pending(&self) -> bool {
        !self.records.lock().pending.is_empty()
    }
}

/// Durable bindings of client ids (§1.5) made by this process: a request whose preamble
/// was read before such a binding must still see it.
///
/// Memory is bounded by two generations; a binding outlives at least `GENERATION` others,
/// far longer than any request that could still race with it.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    young: HashMap<ClientId, ActorId>,
    old: HashMap<ClientId, ActorId>,
}

impl Bindings {
    const GENERATION: usize = 8_192;

    pub fn get(&self, client: &ClientId) -> Option<&ActorId> {
        self.young.get(client).or_else(|| self.old.get(client))
    }

    pub fn made(&mut self, client: ClientId, actor: ActorId) {
        if self.young.len() >= Self::GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(client, actor);
    }

    /// A rotated epoch deletes client records, bindings with them.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

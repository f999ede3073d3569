//! Client records on their way to the database, and bindings made by this process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_engine::model::ClientRecord;
use tidegate_engine::{ActorId, ClientId};

use crate::memory::Share;

/// What became of a noted record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// The first unwritten one: a write must be scheduled.
    First,
    /// A write is scheduled already.
    Queued,
    /// Too many clients are unwritten, or too many bytes of all partitions' clients.
    Dropped,
}

/// Unwritten client records, the newest per client.
#[derive(Debug)]
pub(crate) struct Ledger {
    limit: usize,
    records: Mutex<Records>,
}

#[derive(Debug)]
struct Records {
    pending: HashMap<ClientId, ClientRecord>,
    /// Since when a record waits.
    waiting_since: Option<Instant>,
    writing: HashMap<ClientId, ClientRecord>,
    /// Whether a batch has what is in `writing`.
    is_writing: bool,
    share: Share,
}

impl Ledger {
    pub fn new(limit: usize, share: Share) -> Self {
        Self {
            limit,
            records: Mutex::new(Records {
                pending: HashMap::new(),
                waiting_since: None,
                writing: HashMap::new(),
                is_writing: false,
                share,
            }),
        }
    }

    pub fn note(&self, record: ClientRecord) -> Noted {
        let mut records = self.records.lock();
        let len = records.pending.len();
        let bytes = weight(&record);
        let old = records.pending.get(&record.client_id).map(weight);
        let full = old.is_none() && len >= self.limit;
        if full || !records.share.fits(bytes) {
            return Noted::Dropped;
        }
        records.pending.insert(record.client_id.clone(), record);
        let held = records.share.held() + bytes - old.unwrap_or_default();
        records.share.set(held);
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

    /// Moves up to `max` records into writing; `None` while others are being written. The
    /// caller owes an [`Self::end_write`] for what it got.
    pub fn begin_write(&self, max: usize) -> Option<Vec<ClientRecord>> {
        let mut records = self.records.lock();
        if std::mem::replace(&mut records.is_writing, true) {
            return None;
        }
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
        Some(taken)
    }

    /// Ends a write; records that did not become durable wait again unless a newer one does.
    pub fn end_write(&self, durable: bool) {
        let mut records = self.records.lock();
        records.is_writing = false;
        let written = std::mem::take(&mut records.writing);
        let mut gone = 0;
        for (id, record) in written {
            if durable || records.pending.contains_key(&id) {
                gone += weight(&record);
            } else {
                records.pending.insert(id, record);
            }
        }
        let held = records.share.held().saturating_sub(gone);
        records.share.set(held);
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
        let mut records = self.records.lock();
        records.pending.clear();
        records.writing.clear();
        records.waiting_since = None;
        records.share.set(0);
    }

    pub fn has_pending(&self) -> bool {
        !self.records.lock().pending.is_empty()
    }
}

/// What a record occupies, bytes, about.
fn weight(record: &ClientRecord) -> usize {
    const OVERHEAD: usize = 128;
    let ids = record.client_id.as_str().len() + record.actor_id.as_str().len();
    let subscriptions = record.subscriptions.iter().map(|subscription| {
        let scopes = subscription.scopes.iter().map(|(name, values)| {
            let values = values.iter().map(|value| value.len() + OVERHEAD / 4);
            name.len() + values.sum::<usize>()
        });
        OVERHEAD + subscription.id.len() + subscription.table.len() + scopes.sum::<usize>()
    });
    2 * OVERHEAD + ids + subscriptions.sum::<usize>()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn record(id: &str) -> ClientRecord {
        ClientRecord {
            client_id: id.into(),
            actor_id: "ada".into(),
            wire_version: ssp2::WireVersion::V3,
            cursor: 0,
            subscriptions: Vec::new(),
            updated_at_ms: 0,
        }
    }

    #[test]
    fn records_are_bounded_over_all_partitions_and_give_their_bytes_back() {
        let memory = Memory::new(2 * weight(&record("a")));
        let (one, other) = (
            Ledger::new(10, memory.share()),
            Ledger::new(10, memory.share()),
        );
        assert_eq!(one.note(record("a")), Noted::First);
        assert_eq!(other.note(record("a")), Noted::First);
        assert_eq!(one.note(record("b")), Noted::Dropped);
        one.begin_write(10);
        one.end_write(true);
        assert_eq!(memory.held(), weight(&record("a")));
        assert_eq!(one.note(record("b")), Noted::First);
        // Neither a failed write nor a newer record is counted twice.
        other.begin_write(10);
        other.end_write(false);
        assert_eq!(memory.held(), 2 * weight(&record("a")));
        other.clear();
        drop(one);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn one_batch_at_a_time_writes_records() {
        let ledger = Ledger::new(10, Memory::new(1 << 20).share());
        ledger.note(record("a"));
        assert_eq!(ledger.begin_write(10).map(|taken| taken.len()), Some(1));
        ledger.note(record("b"));
        assert!(ledger.begin_write(10).is_none());
        ledger.end_write(false);
        assert_eq!(ledger.begin_write(10).map(|taken| taken.len()), Some(2));
        ledger.end_write(true);
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_partition_has_a_bound_of_its_own() {
        let ledger = Ledger::new(1, Memory::new(1 << 20).share());
        assert_eq!(ledger.note(record("a")), Noted::First);
        assert_eq!(ledger.note(record("a")), Noted::Queued);
        assert_eq!(ledger.note(record("b")), Noted::Dropped);
    }
}

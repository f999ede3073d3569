//! Rows of one partition that were read or written lately, least recently used out first.

use std::collections::{BTreeMap, HashMap};

use tidegate_engine::model::{RowKey, RowState};

use crate::memory::Share;

/// A cache of row states bounded by bytes. It is true for exactly one position of the
/// log; whoever owns it drops it when that position was not reached by its own commits.
#[derive(Debug)]
pub(crate) struct RowCache {
    limit: usize,
    used: usize,
    share: Share,
    tick: u64,
    slots: HashMap<RowKey, Slot>,
    order: BTreeMap<u64, RowKey>,
}

#[derive(Debug)]
struct Slot {
    state: RowState,
    bytes: usize,
    tick: u64,
}

impl RowCache {
    pub fn new(limit: usize, share: Share) -> Self {
        Self {
            limit,
            used: 0,
            share,
            tick: 0,
            slots: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    pub fn contains(&self, key: &RowKey) -> bool {
        self.slots.contains_key(key)
    }

    pub fn get(&mut self, key: &RowKey) -> Option<RowState> {
        let slot = self.slots.get_mut(key)?;
        self.tick += 1;
        if let Some(key) = self.order.remove(&slot.tick) {
            self.order.insert(self.tick, key);
        }
        slot.tick = self.tick;
        Some(slot.state.clone())
    }

    pub fn put(&mut self, key: RowKey, state: RowState) {
        self.remove(&key);
        // Pruning removes a tombstone without moving the log, so it is not ours to keep.
        if matches!(state, RowState::Absent { tombstone: Some(_) }) {
            return;
        }
        let bytes = weight(&key, &state);
        if bytes > self.limit {
            return;
        }
        self.tick += 1;
        self.used += bytes;
        self.order.insert(self.tick, key.clone());
        self.slots.insert(
            key,
            Slot {
                state,
                bytes,
                tick: self.tick,
            },
        );
        while self.used > self.limit {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            if let Some(slot) = self.slots.remove(&oldest) {
                self.used -= slot.bytes;
            }
        }
    }

    pub fn remove(&mut self, key: &RowKey) {
        if let Some(slot) = self.slots.remove(key) {
            self.used -= slot.bytes;
            self.order.remove(&slot.tick);
        }
    }

    pub fn clear(&mut self) {
        self.used = 0;
        self.slots = HashMap::new();
        self.order = BTreeMap::new();
        self.report(0);
    }

    /// Tells the process's budget what is held now, with `beside` bytes that live and
    /// end with these rows. Not with every row: all partitions share that counter.
    pub fn report(&mut self, beside: usize) {
        self.share.set(self.used + beside);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}

fn weight(key: &RowKey, state: &RowState) -> usize {
    const OVERHEAD: usize = 256;
    let row = match state {
        RowState::Present(row) => {
            row.payload.len() + row.column_versions.as_ref().map_or(0, bytes::Bytes::len) + OVERHEAD
        }
        RowState::Absent { .. } => 0,
    };
    row + key.row_id.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use tidegate_engine::{CommitSeq, TableId};

    fn key(id: &str) -> RowKey {
        RowKey {
            table: TableId(0),
            row_id: id.into(),
        }
    }
    const ABSENT: RowState = RowState::Absent { tombstone: None };

    #[test]
    fn the_least_recently_used_row_leaves_first() {
        let mut cache = RowCache::new(3 * weight(&key("a"), &ABSENT), Memory::new(0).share());
        for id in ["a", "b", "c"] {
            cache.put(key(id), ABSENT);
        }
        assert!(cache.get(&key("a")).is_some());
        cache.put(key("d"), ABSENT);
        assert_eq!(cache.len(), 3);
        assert!(cache.get(&key("b")).is_none());
        assert!(cache.get(&key("a")).is_some());
    }

    #[test]
    fn a_tombstone_is_never_kept_because_pruning_removes_it_silently() {
        let memory = Memory::new(1 << 20);
        let mut cache = RowCache::new(1 << 20, memory.share());
        cache.put(key("a"), ABSENT);
        cache.put(
            key("a"),
            RowState::Absent {
                tombstone: Some(CommitSeq(3)),
            },
        );
        assert!(cache.get(&key("a")).is_none());
        assert_eq!(cache.used, 0);
        cache.put(key("b"), ABSENT);
        cache.report(0);
        assert_eq!(memory.held(), cache.used);
        cache.clear();
        assert_eq!(memory.held(), 0);
    }
}

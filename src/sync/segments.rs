//! Bootstrap segments kept for download by reference (§5.1, §5.5): bounded, in
//! memory, shared by content. A lost segment costs a client one more pull.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_engine::{CommitSeq, LogEpoch, PartitionId, SchemaVersion, TableId};

/// One content, published for one context. Equal rows give equal bytes, so one
/// segment can have many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Tenant whose rows these are.
    pub partition: PartitionId,
    /// Its log epoch.
    pub epoch: LogEpoch,
    /// Digest of the effective scopes (§3.5).
    pub digest: Arc<str>,
    /// Schema of the rows.
    pub schema: SchemaVersion,
    /// Their table.
    pub table: TableId,
    /// Pin of the bootstrap.
    pub pin: CommitSeq,
}

#[derive(Debug)]
struct Published {
    publication: Publication,
    expires_at_ms: i64,
}

#[derive(Debug)]
struct Entry {
    bytes: Bytes,
    publications: Vec<Published>,
    stamp: u64,
}

impl Entry {
    fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        self.bytes.len() + OVERHEAD * (1 + self.publications.len())
    }
}

#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<Arc<str>, Entry>,
    by_age: BTreeMap<u64, Arc<str>>,
    weight: usize,
    stamp: u64,
}

/// What a download finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing of this partition and epoch has that content (`sync.not_found`).
    Unknown,
    /// Everything that has it is past its time (`sync.segment_expired`).
    Expired,
    /// Published; any of the digests authorizes.
    Live {
        /// The segment.
        bytes: Bytes,
        /// Digests of its live publications, each with its table.
        digests: Vec<(Arc<str>, TableId)>,
    },
}

/// Two contents with one address.
#[derive(Debug, thiserror::Error)]
#[error("two segments have the same address")]
pub struct Collision;

/// The cache. The least recently published or downloaded segment goes first.
#[derive(Debug)]
pub struct SegmentCache {
    capacity: usize,
    ttl_ms: i64,
    shelf: Mutex<Shelf>,
}

/// Contexts kept per segment; identical (mostly empty) segments of many pins
/// would grow without it.
const MAX_PUBLICATIONS: usize = 1_024;

impl SegmentCache {
    /// A cache of `capacity` bytes whose segments can be downloaded for `ttl_ms`.
    pub fn new(capacity: usize, ttl_ms: i64) -> Self {
        Self {
            capacity,
            ttl_ms,
            shelf: Mutex::default(),
        }
    }

    /// Publishes `bytes` under their address.
    ///
    /// # Errors
    /// [`Collision`] when other bytes have the same address.
    pub fn publish(
        &self,
        id: &str,
        bytes: Bytes,
        publication: Publication,
        now_ms: i64,
    ) -> Result<(), Collision> {
        let expires_at_ms = now_ms.saturating_add(self.ttl_ms);
        let mut shelf = self.shelf.lock();
        let shelf = &mut *shelf;
        shelf.stamp += 1;
        let stamp = shelf.stamp;
        if let Some(entry) = shelf.entries.get_mut(id) {
            if entry.bytes != bytes {
                return Err(Collision);
            }
            shelf.weight -= entry.weight();
            let same = entry
                .publications
                .iter_mut()
                .find(|known| known.publication == publication);
            match same {
                Some(known) => known.expires_at_ms = expires_at_ms,
                None => {
                    if entry.publications.len() >= MAX_PUBLICATIONS {
                        entry.publications.remove(0);
                    }
                    entry.publications.push(Published {
                        publication,
                        expires_at_ms,
                    });
                }
            }
            shelf.weight += entry.weight();
        } else {
            let entry = Entry {
                bytes,
                publications: vec![Published {
                    publication,
                    expires_at_ms,
                }],
                stamp,
            };
            shelf.weight += entry.weight();
            shelf.entries.insert(id.into(), entry);
            shelf.by_age.insert(stamp, id.into());
        }
        shelf.touch(id, stamp);
        shelf.shrink(self.capacity);
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.shelf.lock().weight
    }

    /// Looks a segment up for a download inside `partition` at `epoch`.
    pub fn find(
        &self,
        id: &str,
        partition: &PartitionId,
        epoch: &LogEpoch,
        running: SchemaVersion,
        now_ms: i64,
    ) -> Found {
        let mut shelf = self.shelf.lock();
        let shelf = &mut *shelf;
        let Some(entry) = shelf.entries.get(id) else {
            return Found::Unknown;
        };
        let mut known = false;
        let mut digests = Vec::new();
        for published in &entry.publications {
            let publication = &published.publication;
            if publication.partition != *partition || publication.epoch != *epoch {
                continue;
            }
            known = true;
            // Rows of an older schema are no longer what a client of this one may apply.
            if now_ms < published.expires_at_ms && publication.schema == running {
                digests.push((Arc::clone(&publication.digest), publication.table));
            }
        }
        if !known {
            return Found::Unknown;
        }
        if digests.is_empty() {
            return Found::Expired;
        }
        let bytes = entry.bytes.clone();
        shelf.stamp += 1;
        shelf.touch(id, shelf.stamp);
        Found::Live { bytes, digests }
    }
}

impl Shelf {
    fn touch(&mut self, id: &str, stamp: u64) {
        if let Some(entry) = self.entries.get_mut(id)
            && let Some(name) = self.by_age.remove(&entry.stamp)
        {
            entry.stamp = stamp;
            self.by_age.insert(stamp, name);
        }
    }

    fn shrink(&mut self, capacity: usize) {
        // The newest one stays whatever its size: its reference is about to be sent.
        while self.weight > capacity && self.entries.len() > 1 {
            let Some((_, oldest)) = self.by_age.pop_first() else {
                return;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.weight -= entry.weight();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(partition: &str, epoch: &str, digest: &str, pin: i64) -> Publication {
        Publication {
            partition: partition.into(),
            epoch: epoch.into(),
            digest: digest.into(),
            schema: SchemaVersion(1),
            table: TableId(0),
            pin: CommitSeq(pin),
        }
    }

    fn find(cache: &SegmentCache, id: &str, partition: &str, epoch: &str, now: i64) -> Found {
        cache.find(id, &partition.into(), &epoch.into(), SchemaVersion(1), now)
    }

    #[test]
    fn one_content_has_many_publications() {
        let cache = SegmentCache::new(1 << 20, 100);
        let bytes = Bytes::from_static(b"rows");
        for (digest, now) in [("d1", 0), ("d2", 50)] {
            cache
                .publish("s", bytes.clone(), publication("p", "e", digest, 1), now)
                .unwrap();
        }
        let live = |digests: &[&str]| Found::Live {
            bytes: bytes.clone(),
            digests: digests.iter().map(|&d| (d.into(), TableId(0))).collect(),
        };
        assert_eq!(find(&cache, "s", "p", "e", 99), live(&["d1", "d2"]));
        // The younger one never extends the older one's life.
        assert_eq!(find(&cache, "s", "p", "e", 100), live(&["d2"]));
        assert_eq!(find(&cache, "s", "p", "e", 150), Found::Expired);
        // Publishing the same context again does.
        cache
            .publish("s", bytes.clone(), publication("p", "e", "d1", 1), 140)
            .unwrap();
        assert_eq!(find(&cache, "s", "p", "e", 150), live(&["d1"]));
    }

    #[test]
    fn another_partition_or_epoch_finds_nothing() {
        let cache = SegmentCache::new(1 << 20, 100);
        cache
            .publish("s", Bytes::new(), publication("p", "e", "d", 1), 0)
            .unwrap();
        assert_eq!(find(&cache, "s", "q", "e", 0), Found::Unknown);
        assert_eq!(find(&cache, "s", "p", "f", 0), Found::Unknown);
        assert_eq!(find(&cache, "t", "p", "e", 0), Found::Unknown);
        // Even when it is expired elsewhere.
        assert_eq!(find(&cache, "s", "q", "e", 1_000), Found::Unknown);
    }

    #[test]
    fn rows_of_another_schema_count_as_expired() {
        let cache = SegmentCache::new(1 << 20, 100);
        cache
            .publish("s", Bytes::new(), publication("p", "e", "d", 1), 0)
            .unwrap();
        let found = cache.find("s", &"p".into(), &"e".into(), SchemaVersion(2), 0);
        assert_eq!(found, Found::Expired);
    }

    #[test]
    fn it_holds_no_more_than_its_capacity_and_drops_the_stalest() {
        let cache = SegmentCache::new(3_500, 100);
        let publish = |id: &str, fill: u8| {
            cache
                .publish(
                    id,
                    Bytes::from(vec![fill; 1_000]),
                    publication("p", "e", "d", 1),
                    0,
                )
                .unwrap();
        };
        publish("a", 1);
        publish("b", 2);
        assert!(matches!(find(&cache, "a", "p", "e", 0), Found::Live { .. }));
        publish("c", 3);
        assert_eq!(find(&cache, "b", "p", "e", 0), Found::Unknown);
        assert!(matches!(find(&cache, "a", "p", "e", 0), Found::Live { .. }));
        assert!(matches!(find(&cache, "c", "p", "e", 0), Found::Live { .. }));
    }

    #[test]
    fn publications_of_one_content_are_bounded() {
        let cache = SegmentCache::new(1 << 30, 100);
        for pin in 0..2_000 {
            cache
                .publish("s", Bytes::new(), publication("p", "e", "d", pin), 0)
                .unwrap();
        }
        assert_eq!(cache.shelf.lock().entries["s"].publications.len(), 1_024);
    }

    #[test]
    fn a_collision_is_loud() {
        let cache = SegmentCache::new(1 << 20, 100);
        let publication = publication("p", "e", "d", 1);
        cache
            .publish("s", Bytes::from_static(b"x"), publication.clone(), 0)
            .unwrap();
        assert!(
            cache
                .publish("s", Bytes::from_static(b"y"), publication, 0)
                .is_err()
        );
    }
}

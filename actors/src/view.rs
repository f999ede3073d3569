//! What a batch knows of its partition at one position of the log.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_engine::CommitSeq;
use tidegate_engine::model::{
    CommitBatch, Fetched, Needs, ResultKey, ResultLookup, RowKey, RowState,
};
use tidegate_store::StoreError;

use crate::access::Access;
use crate::memory::Share;
use crate::partition::Partition;
use crate::row_cache::RowCache;
use crate::trail::{Trail, state_after};

/// What outlives a batch: rows as of `max`. True as long as every commit since was ours.
#[derive(Debug)]
pub(crate) struct Known {
    max: Option<CommitSeq>,
    rows: RowCache,
    /// The batches that led to `max`.
    trail: Trail,
}

impl Known {
    pub fn new(row_cache_bytes: usize, share: Share) -> Self {
        Self {
            max: None,
            rows: RowCache::new(row_cache_bytes, share),
            trail: Trail::default(),
        }
    }
}

/// A consistent picture: everything in it is true at `max`.
#[derive(Debug)]
pub(crate) struct View {
    known: Known,
    rows: HashMap<RowKey, RowState>,
    results: HashMap<ResultKey, ResultLookup>,
}

/// What became of reads that were made before their batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// What they know is in the view, unless it was too old.
    Used,
    /// One of them saw a commit of somebody else.
    Moved,
}

/// Why needs were not supplied.
#[derive(Debug)]
pub(crate) enum Missing {
    /// Somebody else committed; the view starts over.
    Moved,
    /// Storage failed.
    Store(StoreError),
}

impl View {
    pub fn new(known: Known) -> Self {
        Self {
            known,
            rows: HashMap::new(),
            results: HashMap::new(),
        }
    }

    /// The position of the log that everything here is true at, if any is known.
    pub fn position(&self) -> Option<CommitSeq> {
        self.known.max
    }

    /// Takes over what was read for the batch before it began. Nothing is taken over
    /// while the position of the log is not known: the reads may be older than a batch
    /// of ours that is not known of either.
    pub fn adopt(&mut self, reads: Vec<Fetched>) -> Adopted {
        let Some(now) = self.known.max else {
            return Adopted::Used;
        };
        if reads.iter().any(|read| read.max > now) {
            return Adopted::Moved;
        }
        let found = self.known.trail.bring_forward(reads, now);
        // What is here already is as new.
        for (key, state) in found.rows {
            self.rows.entry(key).or_insert(state);
        }
        for (key, lookup) in found.results {
            self.results.entry(key).or_insert(lookup);
        }
        Adopted::Used
    }

    /// Whether [`Self::supply`] would have to read.
    pub fn lacks(&mut self, needs: &Needs) -> bool {
        let Self {
            known,
            rows,
            results,
        } = self;
        known.max.is_none()
            || !needs.children.is_empty()
            || !needs.results.iter().all(|key| results.contains_key(key))
            || !needs
                .rows
                .iter()
                .all(|key| rows.contains_key(key) || known.rows.contains(key))
    }

    /// Answers `needs` from memory and, in one read, from the database. The answer holds
    /// everything that was asked for.
    pub async fn supply(
        &mut self,
        partition: &Partition,
        access: &mut Access<'_>,
        needs: &Needs,
    ) -> Result<Fetched, Missing> {
        let counters = &partition.service.counters;
        let mut missing = Needs {
            children: needs.children.clone(),
            ..Needs::default()
        };
        for key in &needs.rows {
            if self.rows.contains_key(key) {
                continue;
            }
            match self.known.rows.get(key) {
                Some(state) => {
                    counters.cache_hits.add(1);
                    self.rows.insert(key.clone(), state);
                }
                None => {
                    counters.cache_misses.add(1);
                    missing.rows.insert(key.clone());
                }
            }
        }
        missing.results.extend(
            needs
                .results
                .iter()
                .filter(|key| !self.results.contains_key(key))
                .cloned(),
        );
        let mut children = Vec::new();
        if self.known.max.is_none() || missing != Needs::default() {
            counters.reads.add(1);
            let fetched = access
                .read_needs(&partition.id, &missing)
                .await
                .map_err(Missing::Store)?;
            let moved = self.known.max.is_some_and(|max| max != fetched.max);
            if moved {
                self.forget();
            }
            self.known.max = Some(fetched.max);
            self.rows.extend(fetched.rows);
            self.results.extend(fetched.results);
            if moved {
                return Err(Missing::Moved);
            }
            children = fetched.children;
        }
        Ok(Fetched {
            max: self.known.max.unwrap_or_default(),
            rows: lookup(&self.rows, &needs.rows),
            results: lookup(&self.results, &needs.results),
            children,
        })
    }

    /// Takes over what a batch of ours just wrote.
    pub fn absorb(&mut self, batch: &Arc<CommitBatch>) {
        self.known.max = Some(batch.head_after());
        self.known.trail.append(batch);
        for write in &batch.rows {
            self.rows.insert(write.key().clone(), state_after(write));
        }
        for (key, result) in &batch.results {
            self.results
                .insert(key.clone(), ResultLookup::Found(Arc::clone(result)));
        }
    }

    /// Forgets everything: somebody else committed.
    pub fn forget(&mut self) {
        self.known.max = None;
        self.known.rows.clear();
        self.known.trail.clear();
        self.rows.clear();
        self.results.clear();
    }

    /// What the next batch may start from.
    pub fn into_known(mut self) -> Known {
        for (key, state) in self.rows {
            self.known.rows.put(key, state);
        }
        self.known.rows.report(self.known.trail.bytes());
        self.known
    }
}

fn lookup<'k, K: Clone + Eq + std::hash::Hash + 'k, V: Clone>(
    from: &HashMap<K, V>,
    keys: impl IntoIterator<Item = &'k K>,
) -> Vec<(K, V)> {
    keys.into_iter()
        .filter_map(|key| from.get(key).map(|value| (key.clone(), value.clone())))
        .collect()
}

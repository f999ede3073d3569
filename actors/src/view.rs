//! What a batch knows of its partition at one position of the log.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_engine::CommitSeq;
use tidegate_engine::model::{
    CommitBatch, Fetched, Needs, ResultKey, ResultLookup, RowKey, RowState, RowWrite,
};
use tidegate_store::StoreError;

use crate::access::Access;
use crate::memory::Share;
use crate::partition::Partition;
use crate::row_cache::RowCache;

/// What outlives a batch: rows as of `max`. True as long as every commit since was ours.
#[derive(Debug)]
pub(crate) struct Known {
    max: Option<CommitSeq>,
    rows: RowCache,
}

impl Known {
    pub fn new(row_cache_bytes: usize, share: Share) -> Self {
        Self {
            max: None,
            rows: RowCache::new(row_cache_bytes, share),
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
    pub fn absorb(&mut self, batch: &CommitBatch) {
        let last = batch.commits.last().map(|commit| commit.seq);
        self.known.max = Some(last.unwrap_or(batch.expected_max));
        for write in &batch.rows {
            let (key, state) = match write {
                RowWrite::Put { key, row, .. } => (key, RowState::Present(Arc::clone(row))),
                RowWrite::Delete { key, tombstone } => (
                    key,
                    RowState::Absent {
                        tombstone: Some(*tombstone),
                    },
                ),
            };
            self.rows.insert(key.clone(), state);
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
        self.rows.clear();
        self.results.clear();
    }

    /// What the next batch may start from.
    pub fn into_known(mut self) -> Known {
        for (key, state) in self.rows {
            self.known.rows.put(key, state);
        }
        self.known.rows.report();
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

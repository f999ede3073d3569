//! What all partitions of the process share.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use actix::ArbiterHandle;
use parking_lot::RwLock;
use ssp2::ErrorCode;
use tidegate_engine::PartitionId;
use tidegate_engine::gate;
use tidegate_engine::push::PushHooks;
use tidegate_engine::schema::Schema;
use tidegate_store::{CommitError, Declared, Store};

use crate::admission::Gauge;
use crate::clock::Clock;
use crate::error::PushError;
use crate::memory::Memory;
use crate::observer::CommitObserver;
use crate::partition::Partition;
use crate::settings::Settings;
use crate::statistics::Counters;

/// What the partition actors work with, handed in at start.
pub struct Parts {
    /// Storage.
    pub store: Arc<dyn Store>,
    /// The running schema.
    pub schema: Arc<Schema>,
    /// Host rules.
    pub hooks: Arc<PushHooks>,
    /// Checkpoints that this process declares.
    pub declared: Declared,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Who hears of durable commits.
    pub observer: Arc<dyn CommitObserver>,
}

/// The process's partitions and what they share.
pub(crate) struct Service {
    pub store: Arc<dyn Store>,
    pub schema: Arc<Schema>,
    pub hooks: Arc<PushHooks>,
    pub declared: RwLock<Declared>,
    /// Held while what is declared is read and changed.
    pub declaring: tokio::sync::Mutex<()>,
    pub clock: Arc<dyn Clock>,
    pub observer: Arc<dyn CommitObserver>,
    pub settings: Settings,
    pub counters: Counters,
    pub gauge: Arc<Gauge>,
    /// Rows and commits that partitions keep.
    pub memory: Arc<Memory>,
    /// Client records on their way to the database.
    pub unwritten: Arc<Memory>,
    relieving: AtomicBool,
    /// Whether the last write that was tried failed for a reason of the database's own.
    pub writes_fail: AtomicBool,
    /// Migration barriers in force; while there is one no batch of pushes starts.
    pub held_by_all: AtomicUsize,
    stopping: AtomicBool,
    arbiters: Vec<ArbiterHandle>,
    next_arbiter: AtomicUsize,
    hasher: RandomState,
    shards: Vec<RwLock<HashMap<PartitionId, Arc<Partition>>>>,
}

const SHARDS: usize = 32;

impl Service {
    pub fn new(parts: Parts, settings: Settings, arbiters: Vec<ArbiterHandle>) -> Self {
        Self {
            store: parts.store,
            schema: parts.schema,
            hooks: parts.hooks,
            declared: RwLock::new(parts.declared),
            declaring: tokio::sync::Mutex::new(()),
            clock: parts.clock,
            observer: parts.observer,
            counters: Counters::default(),
            gauge: Arc::new(Gauge::new(settings.process_queue)),
            memory: Memory::new(settings.memory_bytes),
            unwritten: Memory::new(settings.unwritten_bytes),
            relieving: AtomicBool::new(false),
            writes_fail: AtomicBool::new(false),
            settings,
            held_by_all: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            arbiters,
            next_arbiter: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    /// The reason of a failure that has none of its own: after another process migrated,
    /// rows and tables may be unreadable for this version, and that is the gate's to say.
    pub async fn explain(&self, partition: &PartitionId, error: PushError) -> PushError {
        if error.error.code != ErrorCode::InternalError {
            return error;
        }
        let Ok((token, _)) = self.store.read_gate(partition).await else {
            return error;
        };
        let declared = Arc::clone(&self.declared.read());
        match gate::refusal(&token, self.schema.version(), &declared) {
            Some(refusal) => PushError::not_ready(refusal.into()),
            None => error,
        }
    }

    fn shard(&self, id: &PartitionId) -> &RwLock<HashMap<PartitionId, Arc<Partition>>> {
        let hash = self.hasher.hash_one(id);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }

    /// The partition, brought into memory when it is not there.
    pub fn enter(self: &Arc<Self>, id: &PartitionId) -> Arc<Partition> {
        let shard = self.shard(id);
        if let Some(partition) = shard.read().get(id)
            && !partition.inbox.is_gone()
        {
            return Arc::clone(partition);
        }
        let mut shard = shard.write();
        if let Some(partition) = shard.get(id)
            && !partition.inbox.is_gone()
        {
            return Arc::clone(partition);
        }
        let partition = Arc::new(Partition::new(id.clone(), Arc::clone(self)));
        if self.is_stopping() {
            partition.inbox.stop();
        }
        shard.insert(id.clone(), Arc::clone(&partition));
        drop(shard);
        // Its actor is also what makes it leave memory again.
        partition.wake();
        partition
    }

    /// Removes a partition that left memory.
    pub fn forget(&self, partition: &Arc<Partition>) {
        let mut shard = self.shard(&partition.id).write();
        if shard
            .get(&partition.id)
            .is_some_and(|current| Arc::ptr_eq(current, partition))
        {
            shard.remove(&partition.id);
        }
    }

    /// All partitions in memory.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.read().values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Notes how a write ended. A refusal (a lost race, a fence, a constraint) is an
    /// answer of a database that works.
    pub fn note_write<T>(&self, written: &Result<T, CommitError>) {
        let failed = matches!(
            written,
            Err(CommitError::Store(_) | CommitError::OutcomeUnknown(_))
        );
        if self.writes_fail.load(Ordering::Relaxed) != failed {
            self.writes_fail.store(failed, Ordering::Relaxed);
        }
    }

    /// Makes partitions forget rows and commits when all of them hold too much, those
    /// first that have done nothing for longest.
    pub fn relieve(&self) {
        if !self.memory.is_over() || self.relieving.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut partitions: Vec<_> = self
            .partitions()
            .into_iter()
            .map(|partition| (partition.inbox.idle_for(), partition))
            .collect();
        partitions.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        for (_, partition) in partitions {
            if self.memory.is_relieved() {
                break;
            }
            partition.distrust();
            self.counters.relieved.add(1);
        }
        self.relieving.store(false, Ordering::SeqCst);
    }

    /// The thread for the next actor, in turn.
    pub fn next_arbiter(&self) -> ArbiterHandle {
        let turn = self.next_arbiter.fetch_add(1, Ordering::Relaxed);
        self.arbiters[turn % self.arbiters.len()].clone()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Whether this call is the first to stop the service.
    pub fn begin_stopping(&self) -> bool {
        !self.stopping.swap(true, Ordering::SeqCst)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

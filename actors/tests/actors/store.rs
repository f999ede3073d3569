//! A store in memory whose every commit can be scripted: blocked, lost, refused,
//! applied without an answer.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_engine::gate::{GateToken, PendingCheckpoint};
use tidegate_engine::model::*;
use tidegate_engine::schema::Schema;
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion};
use tidegate_store::*;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A door in a store call: the test sees when it is reached and opens it.
#[derive(Debug)]
pub struct Gate {
    reached: Semaphore,
    open: Semaphore,
}

impl Gate {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            reached: Semaphore::new(0),
            open: Semaphore::new(0),
        })
    }
    pub async fn reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }
    pub fn open(&self) {
        self.open.add_permits(1);
    }
    async fn pass(&self) {
        self.reached.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }
}

/// What the next `commit_batch` does instead of simply committing.
pub enum OnCommit {
    /// Nothing out of the ordinary.
    Pass,
    /// Waits at the gate, then commits.
    Block(Arc<Gate>),
    /// Waits at the gate, then does the other.
    Then(Arc<Gate>, Box<OnCommit>),
    /// Another process commits first.
    Foreign(Foreign),
    /// Another process raises this row's version first, if it exists.
    Touch(RowKey),
    /// Refuses, writing nothing.
    Refuse(CommitError),
    /// Writes, but the answer is lost.
    WriteThenUnknown,
    /// Writes nothing, and the answer is lost.
    LoseThenUnknown,
    /// Panics before or after writing.
    Panic { written: bool },
}

/// A commit of another process.
pub struct Foreign {
    pub key: RowKey,
    pub row: Arc<StoredRow>,
}

/// What the next `read_needs` does.
pub enum OnRead {
    Pass,
    Unavailable,
    Block(Arc<Gate>),
    /// Another process commits first; under a lock it cannot, and waits.
    Foreign(Foreign),
    Panic,
}

/// What the next `begin_locked` does.
pub enum OnLock {
    Pass,
    Unavailable,
    Block(Arc<Gate>),
    /// Another process commits before the lock is taken.
    Foreign(Foreign),
    /// Another process raises this row's version before the lock is taken, if it exists.
    Touch(RowKey),
}

#[derive(Default)]
pub struct Log {
    pub max: CommitSeq,
    pub rows: HashMap<RowKey, Arc<StoredRow>>,
    pub tombstones: HashMap<RowKey, CommitSeq>,
    pub results: HashMap<ResultKey, Arc<StoredPushResult>>,
    pub commits: Vec<LoggedCommit>,
    pub clients: BTreeMap<String, ClientRecord>,
    /// How often other processes raised a row's version.
    pub touches: HashMap<RowKey, i64>,
}

impl Log {
    fn fetch(&self, needs: &Needs) -> Fetched {
        let row = |key: &RowKey| match self.rows.get(key) {
            Some(row) => RowState::Present(Arc::clone(row)),
            None => RowState::Absent {
                tombstone: self.tombstones.get(key).copied(),
            },
        };
        let result = |key: &ResultKey| match self.results.get(key) {
            Some(result) => ResultLookup::Found(Arc::clone(result)),
            None => ResultLookup::Absent,
        };
        Fetched {
            max: self.max,
            rows: needs
                .rows
                .iter()
                .map(|key| (key.clone(), row(key)))
                .collect(),
            results: needs
                .results
                .iter()
                .map(|key| (key.clone(), result(key)))
                .collect(),
            children: Vec::new(),
        }
    }
}

/// One partition's worth of storage for each partition id.
#[derive(Default)]
pub struct TestStore {
    logs: Mutex<HashMap<PartitionId, Log>>,
    on_commit: Mutex<VecDeque<OnCommit>>,
    on_read: Mutex<VecDeque<OnRead>>,
    on_record: Mutex<VecDeque<()>>,
    on_lock: Mutex<VecDeque<OnLock>>,
    /// Taken by `begin_locked`.
    held: Mutex<HashMap<PartitionId, Arc<Semaphore>>>,
    /// As a backend whose `begin_locked` excludes nobody.
    lockless: AtomicBool,
    /// Row ids that violate a constraint when written.
    violating: Mutex<HashSet<String>>,
    /// Sizes of the batches that were tried, in commits and rejections.
    tried: Mutex<Vec<usize>>,
    pub reads: AtomicUsize,
    /// Those of the reads that were made under a lock.
    pub locked_reads: AtomicUsize,
    /// Calls of `begin_locked`.
    pub locks: AtomicUsize,
    /// The schema version that another process has published.
    published: Mutex<Option<SchemaVersion>>,
}

impl TestStore {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }
    pub fn next_commit(&self, action: OnCommit) {
        self.on_commit.lock().push_back(action);
    }
    pub fn next_read(&self, action: OnRead) {
        self.on_read.lock().push_back(action);
    }
    pub fn next_lock(&self, action: OnLock) {
        self.on_lock.lock().push_back(action);
    }
    /// Another process migrates.
    pub fn publish(&self, version: SchemaVersion) {
        *self.published.lock() = Some(version);
    }
    pub fn lock_nothing(&self) {
        self.lockless.store(true, Ordering::SeqCst);
    }
    pub fn locks(&self) -> usize {
        self.locks.load(Ordering::SeqCst)
    }
    /// Whether somebody holds the partition.
    pub fn is_held(&self, partition: &PartitionId) -> bool {
        self.lock_of(partition).available_permits() == 0
    }
    fn lock_of(&self, partition: &PartitionId) -> Arc<Semaphore> {
        let mut held = self.held.lock();
        let lock = held.entry(partition.clone());
        Arc::clone(lock.or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
    async fn hold(&self, partition: &PartitionId) -> OwnedSemaphorePermit {
        self.lock_of(partition).acquire_owned().await.unwrap()
    }
    pub fn fail_next_record(&self) {
        self.on_record.lock().push_back(());
    }
    pub fn violate(&self, row: &str) {
        self.violating.lock().insert(row.into());
    }
    pub fn tried(&self) -> Vec<usize> {
        self.tried.lock().clone()
    }
    pub fn with<T>(&self, partition: &PartitionId, look: impl FnOnce(&mut Log) -> T) -> T {
        look(self.logs.lock().entry(partition.clone()).or_default())
    }
    pub fn foreign_commit(&self, partition: &PartitionId, foreign: Foreign) {
        self.with(partition, |log| {
            log.max = log.max.next();
            log.tombstones.remove(&foreign.key);
            log.rows.insert(foreign.key, foreign.row);
        });
    }
    fn touch(&self, partition: &PartitionId, key: RowKey) {
        self.with(partition, |log| {
            if let Some(row) = log.rows.get_mut(&key) {
                Arc::make_mut(row).server_version += 1;
                log.max = log.max.next();
                *log.touches.entry(key).or_default() += 1;
            }
        });
    }
    fn write(&self, batch: &CommitBatch) -> Result<(), CommitError> {
        let violating = self.violating.lock();
        for write in &batch.rows {
            if let RowWrite::Put { key, .. } = write
                && violating.contains(&*key.row_id)
            {
                return Err(CommitError::Constraint {
                    key: Some(key.clone()),
                });
            }
        }
        self.with(&batch.partition, |log| {
            if log.max != batch.expected_max {
                return Err(CommitError::SequenceMoved);
            }
            for commit in &batch.commits {
                assert_eq!(commit.seq, log.max.next(), "sequence numbers have no gaps");
                log.max = commit.seq;
                log.commits.push(LoggedCommit::clone(commit));
            }
            for (key, result) in &batch.results {
                let doubled = log.results.insert(key.clone(), Arc::clone(result));
                assert!(doubled.is_none(), "a result is stored once: {key:?}");
            }
            for write in &batch.rows {
                match write {
                    RowWrite::Put { key, row, .. } => {
                        log.tombstones.remove(key);
                        log.rows.insert(key.clone(), Arc::clone(row));
                    }
                    RowWrite::Delete { key, tombstone } => {
                        log.rows.remove(key);
                        log.tombstones.insert(key.clone(), *tombstone);
                    }
                }
            }
            record(log, &batch.clients);
            Ok(())
        })
    }
}

fn record(log: &mut Log, clients: &[ClientRecord]) {
    let mut seen = HashSet::new();
    for client in clients {
        assert!(seen.insert(client.client_id.clone()), "one record a client");
        let actor = log
            .clients
            .get(client.client_id.as_str())
            .map(|known| known.actor_id.clone());
        let mut client = client.clone();
        client.actor_id = actor.unwrap_or(client.actor_id);
        log.clients.insert(client.client_id.to_string(), client);
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("scripted".into())
}

impl TestStore {
    /// Reads as scripted; a foreign commit that a lock keeps waiting goes to `waiting`.
    async fn read(
        &self,
        partition: &PartitionId,
        needs: &Needs,
        waiting: Option<&mut Waiting>,
    ) -> Result<Fetched, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let action = self.on_read.lock().pop_front();
        match action {
            None | Some(OnRead::Pass) => {}
            Some(OnRead::Unavailable) => return Err(unavailable()),
            Some(OnRead::Block(gate)) => gate.pass().await,
            Some(OnRead::Foreign(foreign)) => match waiting {
                Some(waiting) => waiting.foreign.push(foreign),
                None => self.foreign_commit(partition, foreign),
            },
            Some(OnRead::Panic) => panic!("scripted"),
        }
        Ok(self.with(partition, |log| log.fetch(needs)))
    }

    /// Commits as scripted.
    async fn commit(
        &self,
        batch: &CommitBatch,
        waiting: Option<&mut Waiting>,
    ) -> Result<(), CommitError> {
        self.tried.lock().push(batch.results.len());
        let action = self.on_commit.lock().pop_front();
        let mut action = action.unwrap_or(OnCommit::Pass);
        while let OnCommit::Then(gate, then) = action {
            gate.pass().await;
            action = *then;
        }
        match (action, waiting) {
            (OnCommit::Pass | OnCommit::Then(..), _) => {}
            (OnCommit::Block(gate), _) => gate.pass().await,
            (OnCommit::Foreign(foreign), None) => self.foreign_commit(&batch.partition, foreign),
            (OnCommit::Foreign(foreign), Some(waiting)) => waiting.foreign.push(foreign),
            (OnCommit::Touch(key), None) => self.touch(&batch.partition, key),
            (OnCommit::Touch(key), Some(waiting)) => waiting.touches.push(key),
            (OnCommit::Refuse(error), _) => return Err(error),
            (OnCommit::WriteThenUnknown, _) => {
                self.write(batch)?;
                return Err(CommitError::OutcomeUnknown("scripted".into()));
            }
            (OnCommit::LoseThenUnknown, _) => {
                return Err(CommitError::OutcomeUnknown("scripted".into()));
            }
            (OnCommit::Panic { written }, _) => {
                if written {
                    self.write(batch)?;
                }
                panic!("scripted")
            }
        }
        self.write(batch)
    }
}

/// Foreign writers that wait for a lock.
#[derive(Default)]
struct Waiting {
    foreign: Vec<Foreign>,
    touches: Vec<RowKey>,
}

/// The lock of a partition. When it goes, those who waited for it commit.
struct Held<'a> {
    store: &'a TestStore,
    partition: PartitionId,
    waiting: Waiting,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for foreign in waiting.foreign {
            self.store.foreign_commit(&self.partition, foreign);
        }
        for key in waiting.touches {
            self.store.touch(&self.partition, key);
        }
    }
}

#[async_trait]
impl LockedPartition for Held<'_> {
    async fn read_needs(&mut self, needs: &Needs) -> Result<Fetched, StoreError> {
        self.store.locked_reads.fetch_add(1, Ordering::SeqCst);
        let waiting = self.permit.is_some().then_some(&mut self.waiting);
        self.store.read(&self.partition, needs, waiting).await
    }

    async fn commit(mut self: Box<Self>, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        let waiting = self.permit.is_some().then_some(&mut self.waiting);
        self.store.commit(&batch, waiting).await
    }
}

impl CheckpointStore for TestStore {}
impl OperatorStore for TestStore {}

impl TestStore {
    fn preamble(&self, partition: &PartitionId) -> Preamble {
        let epoch = LogEpoch::from("epoch");
        let stored_version = self.published.lock().unwrap_or(SchemaVersion(1));
        Preamble {
            registry: Registry {
                log_epoch: epoch.clone(),
                epoch_required: false,
            },
            gate: GateToken {
                stored_version,
                log_epoch: Some(epoch),
                pending: Vec::new(),
            },
            bounds: LogBounds {
                max: self.with(partition, |log| log.max),
                horizon: CommitSeq(0),
            },
            layout_floor: CommitSeq(0),
            client: None,
        }
    }
}

#[async_trait]
impl Store for TestStore {
    async fn read_needs(
        &self,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError> {
        self.read(partition, needs, None).await
    }

    async fn commit_batch(&self, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        self.commit(&batch, None).await
    }

    async fn begin_locked<'a>(
        &'a self,
        partition: &PartitionId,
    ) -> Result<Box<dyn LockedPartition + 'a>, StoreError> {
        self.locks.fetch_add(1, Ordering::SeqCst);
        let action = self.on_lock.lock().pop_front();
        match action {
            None | Some(OnLock::Pass) => {}
            Some(OnLock::Unavailable) => return Err(unavailable()),
            Some(OnLock::Block(gate)) => gate.pass().await,
            Some(OnLock::Foreign(foreign)) => self.foreign_commit(partition, foreign),
            Some(OnLock::Touch(key)) => self.touch(partition, key),
        }
        let permit = match self.lockless.load(Ordering::SeqCst) {
            true => None,
            false => Some(self.hold(partition).await),
        };
        Ok(Box::new(Held {
            store: self,
            partition: partition.clone(),
            waiting: Waiting::default(),
            permit,
        }))
    }

    async fn record_clients(
        &self,
        partition: &PartitionId,
        clients: Vec<ClientRecord>,
    ) -> Result<(), StoreError> {
        if self.on_record.lock().pop_front().is_some() {
            return Err(unavailable());
        }
        self.with(partition, |log| record(log, &clients));
        Ok(())
    }

    // Not used by partition actors.
    async fn ensure_schema_observed(
        &self,
        _: Arc<Schema>,
        _: &[Declaration],
        _: i64,
        _: Arc<dyn MigrationObserver>,
    ) -> Result<SchemaOutcome, StoreError> {
        Err(StoreError::Closed)
    }
    async fn read_preamble_ahead(
        &self,
        partition: &PartitionId,
        _: &ClientId,
        _: Touch,
        ahead: Needs,
    ) -> Result<(Preamble, Option<Fetched>), StoreError> {
        let preamble = self.preamble(partition);
        let fetched = self.with(partition, |log| log.fetch(&ahead));
        Ok((preamble, Some(fetched)))
    }
    async fn read_gate(&self, _: &PartitionId) -> Result<(GateToken, LogBounds), StoreError> {
        let stored_version = (*self.published.lock()).ok_or(StoreError::Closed)?;
        let token = GateToken {
            stored_version,
            log_epoch: None,
            pending: Vec::new(),
        };
        let (max, horizon) = (CommitSeq(0), CommitSeq(0));
        Ok((token, LogBounds { max, horizon }))
    }
    async fn snapshot(&self, _: &PartitionId) -> Result<Box<dyn Snapshot>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rotate_epoch(
        &self,
        _: &PartitionId,
        _: LogEpoch,
        _: i64,
    ) -> Result<Registry, StoreError> {
        Err(StoreError::Closed)
    }
    async fn prune(
        &self,
        _: &PartitionId,
        _: &LogEpoch,
        _: CommitSeq,
    ) -> Result<Pruned, StoreError> {
        Err(StoreError::Closed)
    }
    async fn commit_before(&self, _: &PartitionId, _: i64) -> Result<CommitSeq, StoreError> {
        Err(StoreError::Closed)
    }
    async fn list_clients(&self, _: &PartitionId) -> Result<Vec<ClientRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn list_partitions(&self) -> Result<Vec<PartitionId>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn close(&self) {}
}

pub fn newer_schema() -> CommitError {
    CommitError::SchemaChanged {
        stored: SchemaVersion(9),
    }
}
pub fn pending_checkpoint() -> CommitError {
    CommitError::CheckpointPending(PendingCheckpoint {
        partition: "p".into(),
        name: "totals".into(),
    })
}

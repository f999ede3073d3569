//! A store in plain memory, for tests of what uses a store: the same contract as
//! the databases, plus [`Faults`]. It cannot fence other writers, so it refuses
//! declarations.

mod faults;
mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::{ClientRecord, CommitBatch, Fetched, LogBounds, Needs, Registry};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion};

pub use faults::{CommitFault, Faults};

use crate::error::{CommitError, StoreError};
use crate::operating::{Grant, PartitionSummary};
use crate::preamble::keys;
use crate::{
    CheckpointStore, Declaration, MigrationObserver, OperatorStore, Preamble, Pruned, RowPage,
    ScanQuery, SchemaOutcome, Snapshot, Store, Touch, Window, WindowQuery,
};
use state::{Partition, State};

/// A handle of a database in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    /// What this handle's `ensure_schema` last succeeded with.
    running: Mutex<Option<Arc<Schema>>>,
    closed: AtomicBool,
    faults: Faults,
}

impl MemoryStore {
    /// An empty database.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Another handle of the same database, as after a restart.
    pub fn reopen(&self) -> Arc<Self> {
        Arc::new(Self {
            state: Arc::clone(&self.state),
            ..Self::default()
        })
    }

    /// Its switches.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    fn readable(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        if self.faults.read_fails() {
            return Err(unavailable());
        }
        self.writable()
    }

    fn writable(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        self.open()?;
        if self.running.lock().is_none() {
            return Err(StoreError::NotPrepared);
        }
        Ok(self.state.lock())
    }

    fn open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        Ok(())
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("injected by a test".into())
}

fn gate(state: &State, partition: &Partition) -> GateToken {
    GateToken {
        stored_version: state
            .schema
            .as_ref()
            .map_or(SchemaVersion(0), |schema| schema.version()),
        log_epoch: partition
            .registry
            .as_ref()
            .map(|(registry, _)| registry.log_epoch.clone()),
        pending: Vec::new(),
    }
}

impl CheckpointStore for MemoryStore {}

fn summary(id: &PartitionId, partition: &Partition) -> PartitionSummary {
    PartitionSummary {
        id: id.clone(),
        registry: partition
            .registry
            .as_ref()
            .map(|(registry, _)| registry.clone()),
        last_authenticated_at_ms: partition.registry.as_ref().map(|(_, at)| *at),
        bounds: partition.bounds(),
        fence: None,
    }
}

#[async_trait]
impl OperatorStore for MemoryStore {
    async fn summarize_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionSummary>, StoreError> {
        let state = self.readable()?;
        let all = state.partitions.iter();
        Ok(all
            .filter(|(id, _)| after.is_none_or(|after| *id > after))
            .take(limit)
            .map(|(id, partition)| summary(id, partition))
            .collect())
    }

    async fn summarize_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionSummary>, StoreError> {
        let state = self.readable()?;
        let found = state.partitions.get(partition);
        Ok(found.map(|found| summary(partition, found)))
    }

    async fn read_grant(
        &self,
        partition: &PartitionId,
        actor: &ActorId,
    ) -> Result<Option<Grant>, StoreError> {
        let key = (partition.clone(), actor.clone());
        Ok(self.readable()?.grants.get(&key).cloned())
    }

    async fn put_grant(&self, partition: &PartitionId, grant: &Grant) -> Result<(), StoreError> {
        let key = (partition.clone(), grant.actor.clone());
        self.writable()?.grants.insert(key, grant.clone());
        Ok(())
    }

    async fn delete_grant(
        &self,
        partition: &PartitionId,
        actor: &ActorId,
    ) -> Result<bool, StoreError> {
        let key = (partition.clone(), actor.clone());
        Ok(self.writable()?.grants.remove(&key).is_some())
    }

    async fn published_version(&self) -> Result<Option<SchemaVersion>, StoreError> {
        self.open()?;
        let state = self.state.lock();
        Ok(state.schema.as_ref().map(|schema| schema.version()))
    }
}

impl MemoryStore {
    /// The preamble; a new partition is registered.
    fn preamble(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: &Touch,
    ) -> Result<Preamble, StoreError> {
        let mut state = self.readable()?;
        let entry = state.partition_mut(partition);
        if entry.registry.is_none() {
            let registry = Registry {
                log_epoch: (touch.new_epoch)()?,
                epoch_required: false,
            };
            entry.registry = Some((registry, touch.now_ms));
        }
        let Some((registry, at)) = entry.registry.as_mut() else {
            return Err(StoreError::UnknownPartition);
        };
        if touch.now_ms.saturating_sub(*at) > touch.refresh_after_ms {
            *at = touch.now_ms;
        }
        let registry = registry.clone();
        let found = state.partition(partition);
        Ok(Preamble {
            registry,
            gate: gate(&state, &found),
            bounds: found.bounds(),
            layout_floor: found.layout_floor,
            client: found.clients.get(client).cloned(),
        })
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn ensure_schema_observed(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
        _now_ms: i64,
        _observer: Arc<dyn MigrationObserver>,
    ) -> Result<SchemaOutcome, StoreError> {
        if !declarations.is_empty() {
            return Err(StoreError::CheckpointUnsupported);
        }
        self.open()?;
        let outcome = self.state.lock().ensure_schema(Arc::clone(&schema))?;
        *self.running.lock() = Some(schema);
        Ok(outcome)
    }

    async fn read_preamble_ahead(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: Touch,
        ahead: Needs,
    ) -> Result<(Preamble, Option<Fetched>), StoreError> {
        let preamble = self.preamble(partition, client, &touch)?;
        if keys(&ahead) == 0 {
            return Ok((preamble, None));
        }
        let fetched = self.read_needs(partition, &ahead).await?;
        Ok((preamble, Some(fetched)))
    }

    async fn read_gate(
        &self,
        partition: &PartitionId,
    ) -> Result<(GateToken, LogBounds), StoreError> {
        let state = self.readable()?;
        let found = state.partition(partition);
        Ok((gate(&state, &found), found.bounds()))
    }

    async fn read_needs(
        &self,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError> {
        Ok(self.readable()?.partition(partition).needs(needs))
    }

    async fn commit_batch(&self, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        self.faults.pass().await;
        let fault = self.faults.next_commit();
        match &fault {
            Some(CommitFault::LoseCas) => return Err(CommitError::SequenceMoved),
            Some(CommitFault::Constraint(key)) => {
                return Err(CommitError::Constraint { key: key.clone() });
            }
            Some(CommitFault::FenceRejected) => return Err(CommitError::FenceRejected),
            Some(CommitFault::Unavailable) => return Err(unavailable().into()),
            Some(CommitFault::OutcomeUnknown { written: false }) => {
                return Err(CommitError::OutcomeUnknown("injected by a test".into()));
            }
            Some(CommitFault::OutcomeUnknown { written: true }) | None => {}
        }
        if batch.advance.is_some() {
            return Err(StoreError::CheckpointUnsupported.into());
        }
        let mut state = self.writable()?;
        let schema = state.schema.clone().ok_or(StoreError::NotPrepared)?;
        if schema.version() != batch.writer_version {
            return Err(CommitError::SchemaChanged {
                stored: schema.version(),
            });
        }
        state
            .partition_mut(&batch.partition)
            .apply(&schema, &batch)?;
        match fault {
            Some(_) => Err(CommitError::OutcomeUnknown("injected by a test".into())),
            None => Ok(()),
        }
    }

    async fn record_clients(
        &self,
        partition: &PartitionId,
        clients: Vec<ClientRecord>,
    ) -> Result<(), StoreError> {
        let mut state = self.writable()?;
        state.partition_mut(partition).record_clients(&clients);
        Ok(())
    }

    async fn snapshot(&self, partition: &PartitionId) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(MemorySnapshot(
            self.readable()?.partition(partition),
        )))
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: LogEpoch,
        now_ms: i64,
    ) -> Result<Registry, StoreError> {
        let mut state = self.writable()?;
        let partition = state.partition_mut(partition);
        let registry = Registry {
            log_epoch: epoch,
            epoch_required: true,
        };
        partition.registry = Some((registry.clone(), now_ms));
        partition.clients.clear();
        Ok(registry)
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        through: CommitSeq,
    ) -> Result<Pruned, StoreError> {
        let mut state = self.writable()?;
        state.partition_mut(partition).prune(epoch, through)
    }

    async fn commit_before(
        &self,
        partition: &PartitionId,
        created_before_ms: i64,
    ) -> Result<CommitSeq, StoreError> {
        let state = self.readable()?;
        Ok(state.partition(partition).commit_before(created_before_ms))
    }

    async fn list_clients(&self, partition: &PartitionId) -> Result<Vec<ClientRecord>, StoreError> {
        let found = self.readable()?.partition(partition);
        Ok(found.clients.values().cloned().collect())
    }

    async fn list_partitions(&self) -> Result<Vec<PartitionId>, StoreError> {
        let state = self.readable()?;
        let registered = state
            .partitions
            .iter()
            .filter(|(_, partition)| partition.registry.is_some());
        Ok(registered.map(|(id, _)| id.clone()).collect())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.open()?;
        if self.faults.read_fails() {
            return Err(unavailable());
        }
        Ok(())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

struct MemorySnapshot(Arc<Partition>);

#[async_trait]
impl Snapshot for MemorySnapshot {
    fn bounds(&self) -> LogBounds {
        self.0.bounds()
    }

    fn layout_floor(&self) -> CommitSeq {
        self.0.layout_floor
    }

    async fn read_window(&mut self, query: WindowQuery) -> Result<Window, StoreError> {
        Ok(self.0.window(&query))
    }

    async fn scan_rows(&mut self, query: ScanQuery) -> Result<RowPage, StoreError> {
        Ok(self.0.scan(&query))
    }
}

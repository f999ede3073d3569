//! The serve gate as the only way from a request to data (migrations.md rule 8).
//!
//! A request [enters](ServeGate::enter), which reads and judges a fresh token; names
//! the tables it reads, which are judged against pending backfills
//! ([`Entry::tables`]); and reads inside [`Entry::read`] or [`Entry::read_tail`],
//! which judge a second token before they hand anything out. Snapshots and the tail
//! of a partition cannot be had in another way, so an answer that was not verified
//! cannot be written.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use tidegate_engine::backfill::projection::Projection;
use tidegate_engine::backfill::serve::refused_tables;
use tidegate_engine::gate::{self, GateRefusal, GateToken};
use tidegate_engine::model::{ClientRecord, Fetched, LogBounds, LoggedCommit, Needs};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion, TableId};
use tidegate_store::{
    Passed, Preamble, RowPage, ScanQuery, Snapshot, Store, StoreError, Touch, Window, WindowQuery,
};

use crate::directory::{Directory, PartitionHandle};
use crate::error::PushError;
use crate::failpoint::pausing_failpoint;
use crate::request::{Decisions, PushRequest};
use crate::tail::Tail;

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum NotServed {
    /// The gate is shut: `sync.schema_not_ready`, retryable.
    #[error("the serve gate refuses")]
    Refused(GateRefusal),
    /// Storage failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<GateRefusal> for NotServed {
    fn from(refusal: GateRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Every request's way to data.
#[derive(Clone)]
pub struct ServeGate {
    store: Arc<dyn Store>,
    directory: Directory,
    running: SchemaVersion,
    projections: Arc<[Arc<dyn Projection>]>,
}

impl ServeGate {
    /// The gate of a process that runs schema version `running` and computes
    /// `projections`.
    pub fn new(
        store: Arc<dyn Store>,
        directory: Directory,
        running: SchemaVersion,
        projections: Vec<Arc<dyn Projection>>,
    ) -> Self {
        Self {
            store,
            directory,
            running,
            projections: projections.into(),
        }
    }

    /// Enters with everything that a round must know first, in one read, which also
    /// reads what its commits need ([`needs_ahead`](tidegate_engine::push::needs_ahead)).
    ///
    /// # Errors
    /// [`NotServed`]
    pub async fn enter(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: Touch,
        ahead: Needs,
    ) -> Result<(Entry<'_>, Preamble), NotServed> {
        let (preamble, ahead) = self
            .store
            .read_preamble_ahead(partition, client, touch, ahead)
            .await?;
        let handle = self.directory.partition(partition);
        handle.observe_epoch(&preamble.registry.log_epoch);
        self.judge(&preamble.gate)?;
        let entry = Entry {
            gate: self,
            partition: partition.clone(),
            layout_floor: preamble.layout_floor,
            floor: preamble.pull_floor(),
            token: preamble.gate.clone(),
            ahead: Mutex::new(ahead),
            passed: Mutex::new(None),
            handle,
        };
        Ok((entry, preamble))
    }

    /// Enters for something that was read before, as a segment: the log epoch of the
    /// partition, `None` for one that was never registered.
    ///
    /// # Errors
    /// [`NotServed`]
    pub async fn pass(&self, partition: &PartitionId) -> Result<Pass<'_>, NotServed> {
        let (token, _) = self.store.read_gate(partition).await?;
        self.judge(&token)?;
        Ok(Pass {
            gate: self,
            partition: partition.clone(),
            token,
        })
    }

    /// The running schema version.
    pub fn running(&self) -> SchemaVersion {
        self.running
    }

    fn judge(&self, token: &GateToken) -> Result<(), GateRefusal> {
        if cfg!(tidegate_ungated) {
            return Ok(());
        }
        match gate::refusal(token, self.running, &self.directory.declared()) {
            Some(refusal) => Err(refusal),
            None => Ok(()),
        }
    }

    /// Judges the tables of a request against pending backfills.
    fn judge_tables(
        &self,
        partition: &PartitionId,
        token: &GateToken,
        tables: impl IntoIterator<Item = TableId>,
    ) -> Result<(), GateRefusal> {
        let projections = self.projections.iter().map(|projection| &**projection);
        let refused = refused_tables(projections, &token.pending, partition);
        match tables.into_iter().find_map(|table| refused.get(&table)) {
            Some(pending) => Err(GateRefusal::CheckpointPending(pending.clone())),
            None => Ok(()),
        }
    }
}

/// An open gate for what was read and published before.
pub struct Pass<'g> {
    gate: &'g ServeGate,
    partition: PartitionId,
    token: GateToken,
}

impl Pass<'_> {
    /// The partition's log epoch.
    pub fn epoch(&self) -> Option<&LogEpoch> {
        self.token.log_epoch.as_ref()
    }

    /// Judges a table whose rows are about to be sent.
    ///
    /// # Errors
    /// [`GateRefusal::CheckpointPending`]
    pub fn table(&self, table: TableId) -> Result<(), GateRefusal> {
        self.gate
            .judge_tables(&self.partition, &self.token, [table])
    }
}

/// A request that the gate let in.
pub struct Entry<'g> {
    gate: &'g ServeGate,
    partition: PartitionId,
    layout_floor: CommitSeq,
    /// As it was at the entry.
    floor: CommitSeq,
    token: GateToken,
    /// What was read for the commits; the push takes it.
    ahead: Mutex<Option<Fetched>>,
    /// What the gate saw inside the push's transaction.
    passed: Mutex<Option<Arc<Passed>>>,
    handle: PartitionHandle,
}

/// Tables that a request may read, each judged. Made by [`Entry::tables`] alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedTables(BTreeSet<TableId>);

/// What was read, and verified since.
#[derive(Debug)]
pub struct Verified<T> {
    /// The data.
    pub data: T,
    /// The lowest cursor that a pull may continue from now: pruning may have moved
    /// it while the data was read.
    pub floor: CommitSeq,
}

impl Entry<'_> {
    /// [`PartitionHandle::push`]: it meets the gate again inside its transaction.
    ///
    /// # Errors
    /// As there.
    pub async fn push(&self, request: PushRequest) -> Result<Decisions, PushError> {
        pausing_failpoint("gate.before_push").await;
        let ahead = self.ahead.lock().take();
        let pushed = self.handle.push_ahead(request, ahead).await?;
        *self.passed.lock() = pushed.passed;
        Ok(pushed.decisions)
    }

    /// [`PartitionHandle::bind_client`]
    ///
    /// # Errors
    /// As there.
    pub async fn bind_client(&self, record: ClientRecord) -> Result<(), PushError> {
        self.handle.bind_client(record).await
    }

    /// [`PartitionHandle::record_client`]
    pub fn record_client(&self, record: ClientRecord) {
        self.handle.record_client(record);
    }

    /// [`PartitionHandle::pending_client`]
    pub fn pending_client(&self, client: &ClientId) -> Option<ClientRecord> {
        self.handle.pending_client(client)
    }

    /// Judges the tables that the request reads.
    ///
    /// # Errors
    /// [`GateRefusal::CheckpointPending`] for the first one whose backfill is incomplete
    /// and which may not be read half-computed.
    pub fn tables(
        &self,
        tables: impl IntoIterator<Item = TableId>,
    ) -> Result<ServedTables, GateRefusal> {
        let tables: BTreeSet<TableId> = tables.into_iter().collect();
        self.gate
            .judge_tables(&self.partition, &self.token, tables.iter().copied())?;
        Ok(ServedTables(tables))
    }

    /// Reads from one snapshot, then judges a fresh token: the ordinary refusals
    /// first, then whether it moved since the entry.
    ///
    /// # Errors
    /// Those of `work`, and [`NotServed`].
    pub async fn read<T, E: From<NotServed>>(
        &self,
        tables: &ServedTables,
        work: impl AsyncFnOnce(&mut View<'_>) -> Result<T, E>,
    ) -> Result<Verified<T>, E> {
        pausing_failpoint("gate.before_read").await;
        let snapshot = self.gate.store.snapshot(&self.partition).await;
        let mut view = View {
            snapshot: snapshot.map_err(NotServed::from)?,
            tables,
        };
        let worked = work(&mut view).await;
        drop(view);
        let data = match worked {
            Ok(data) => data,
            Err(error) => {
                // What a migration changed meanwhile may well be unreadable for this version.
                return Err(match self.verify(tables).await {
                    Err(NotServed::Refused(refusal)) => NotServed::Refused(refusal).into(),
                    _ => error,
                });
            }
        };
        let floor = self.verify(tables).await?;
        Ok(Verified { data, floor })
    }

    /// Reads from the partition's newest commits in memory, then judges a fresh
    /// token as [`Self::read`] does. `None` = they do not reach back far enough.
    ///
    /// The token that the gate took inside the push's own transaction is as fresh, for
    /// commits up to that transaction's: they were in memory when it was taken, and a
    /// commit never changes.
    ///
    /// # Errors
    /// [`NotServed`]
    pub async fn read_tail<T>(
        &self,
        tables: &ServedTables,
        work: impl FnOnce(&TailView<'_>) -> Option<T>,
    ) -> Result<Option<Verified<T>>, NotServed> {
        let passed = self.passed.lock().clone();
        let tail = self.handle.tail();
        let view = TailView {
            tail: &tail,
            through: passed.as_ref().map(|passed| passed.bounds.max),
        };
        let Some(data) = work(&view) else {
            return Ok(None);
        };
        let floor = match passed {
            Some(passed) => self.judge_second(tables, &passed.token, passed.bounds)?,
            None => self.verify(tables).await?,
        };
        Ok(Some(Verified { data, floor }))
    }

    /// The layout floor cannot have moved: a migration fails the gate.
    async fn verify(&self, tables: &ServedTables) -> Result<CommitSeq, NotServed> {
        // The build that measures what the gate costs (docs/benchmarks.md).
        if cfg!(tidegate_ungated) {
            return Ok(self.floor);
        }
        pausing_failpoint("gate.before_verify").await;
        let (token, bounds) = self.gate.store.read_gate(&self.partition).await?;
        Ok(self.judge_second(tables, &token, bounds)?)
    }

    fn judge_second(
        &self,
        tables: &ServedTables,
        token: &GateToken,
        bounds: LogBounds,
    ) -> Result<CommitSeq, GateRefusal> {
        let gate = self.gate;
        if cfg!(tidegate_ungated) {
            return Ok(self.floor);
        }
        let declared = gate.directory.declared();
        if let Some(refusal) = gate::judge_after(&self.token, token, gate.running, &declared) {
            return Err(refusal);
        }
        gate.judge_tables(&self.partition, token, tables.0.iter().copied())?;
        Ok(bounds.above_layout(self.layout_floor).horizon)
    }
}

/// The newest commits in memory, as far as their token reaches.
pub struct TailView<'a> {
    tail: &'a Tail,
    /// `None` = the token is still to be read.
    through: Option<CommitSeq>,
}

impl TailView<'_> {
    /// [`Tail::read`]
    pub fn read(&self, after: CommitSeq, through: CommitSeq) -> Option<Vec<Arc<LoggedCommit>>> {
        if self.through.is_some_and(|limit| through > limit) {
            return None;
        }
        self.tail.read(after, through)
    }
}

/// A snapshot of the tables that the gate let through.
pub struct View<'a> {
    snapshot: Box<dyn Snapshot>,
    tables: &'a ServedTables,
}

impl View<'_> {
    /// Bounds for a reader of the current row layout.
    pub fn bounds(&self) -> LogBounds {
        self.snapshot
            .bounds()
            .above_layout(self.snapshot.layout_floor())
    }

    /// A log window of one of the tables.
    ///
    /// # Errors
    /// Storage failures; [`StoreError::Unsupported`] for a table that was not judged.
    pub async fn read_window(&mut self, query: WindowQuery) -> Result<Window, StoreError> {
        self.judged(query.table)?;
        self.snapshot.read_window(query).await
    }

    /// A page of rows of one of the tables.
    ///
    /// # Errors
    /// As [`Self::read_window`].
    pub async fn scan_rows(&mut self, query: ScanQuery) -> Result<RowPage, StoreError> {
        self.judged(query.table)?;
        self.snapshot.scan_rows(query).await
    }

    fn judged(&self, table: TableId) -> Result<(), StoreError> {
        if self.tables.0.contains(&table) {
            Ok(())
        } else {
            Err(StoreError::Unsupported)
        }
    }
}

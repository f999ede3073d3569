//! From a partition's name to the actor that owns it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::Arbiter;
use parking_lot::Mutex;
use tidegate_engine::backfill::page::BackfillPage;
use tidegate_engine::model::{ClientRecord, Fetched};
use tidegate_engine::{ClientId, LogEpoch, PartitionId};
use tidegate_store::Declared;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::admission::{Load, Permit};
use crate::batch;
use crate::clients::Noted;
use crate::error::PushError;
use crate::inbox::{PageQueued, Queued, QueuedPush};
use crate::latency::Latencies;
use crate::page_commit::{Moved, PageOutcome, QueuedPage};
use crate::partition::Partition;
use crate::request::{Decisions, PushRequest, Pushed};
use crate::service::{Parts, Service};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::tail::Tail;

/// All partitions of this process. Cheap to clone; usable from any thread.
#[derive(Debug, Clone)]
pub struct Directory {
    service: Arc<Service>,
    arbiters: Arc<Mutex<Vec<Arbiter>>>,
}

/// A batch was still running when the time to wait for it was over; nothing is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a partition did not come to rest in time")]
pub struct HoldTimeout;

/// What a shutdown could not finish; all zero when it finished everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shutdown {
    /// Queued pushes that were answered with a retryable error.
    pub refused_pushes: usize,
    /// Partitions with a batch still running; its callers are answered if the process lives.
    pub running_batches: usize,
    /// Partitions with unwritten client records.
    pub unwritten_clients: usize,
}

/// Keeps every partition from starting a batch; released on drop.
#[derive(Debug)]
#[must_use = "dropping it releases the partitions"]
pub struct HoldAll {
    service: Arc<Service>,
}

impl Drop for HoldAll {
    fn drop(&mut self) {
        // What was held for may have rewritten rows without moving any log.
        for partition in self.service.partitions() {
            partition.distrust();
        }
        if self.service.held_by_all.fetch_sub(1, Ordering::SeqCst) == 1 {
            for partition in self.service.partitions() {
                partition.wake();
            }
        }
    }
}

impl Directory {
    /// Starts the threads for partition actors. Call it inside an actix system.
    pub fn start(parts: Parts, settings: Settings) -> Self {
        let arbiters: Vec<Arbiter> = (0..settings.arbiters.max(1))
            .map(|_| Arbiter::new())
            .collect();
        let handles = arbiters.iter().map(Arbiter::handle).collect();
        Self {
            service: Arc::new(Service::new(parts, settings, handles)),
            arbiters: Arc::new(Mutex::new(arbiters)),
        }
    }

    /// The handle of a partition, which is brought into memory.
    pub fn partition(&self, id: &PartitionId) -> PartitionHandle {
        PartitionHandle {
            partition: self.service.enter(id),
        }
    }

    /// Replaces the checkpoints that this process declares; batches from now on carry them.
    pub fn set_declared(&self, declared: Declared) {
        *self.service.declared.write() = declared;
    }

    /// The checkpoints `(partition, name)` that this process declares now.
    pub fn declared(&self) -> Declared {
        Arc::clone(&self.service.declared.read())
    }

    /// The right to change what is declared, after a look at the database.
    pub(crate) async fn declaring(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.service.declaring.lock().await
    }

    /// Forgets what is known of a partition's rows and its tail: for one whose
    /// tables somebody else than its actor changed, as a prune does.
    pub fn distrust(&self, id: &PartitionId) {
        self.service.enter(id).distrust();
    }

    /// Holds one partition: waits for its running batch and starts no other one until
    /// [`Self::resume`]. Pushes queue up meanwhile.
    ///
    /// # Errors
    /// When the batch does not end within `deadline`; nothing is held then.
    pub async fn drain(&self, id: &PartitionId, deadline: Duration) -> Result<(), HoldTimeout> {
        loop {
            let partition = self.service.enter(id);
            partition.inbox.hold();
            if partition.inbox.is_gone() {
                continue;
            }
            if timeout(deadline, partition.inbox.batch_finished())
                .await
                .is_err()
            {
                partition.inbox.release();
                partition.wake();
                return Err(HoldTimeout);
            }
            return Ok(());
        }
    }

    /// Lets a held partition go on, with fresh reads.
    pub fn resume(&self, id: &PartitionId) {
        let partition = self.service.enter(id);
        partition.distrust();
        partition.inbox.release();
        partition.wake();
    }

    /// Holds every partition, those that come into memory later too, until the guard is
    /// dropped: the in-process half of the migration barrier.
    ///
    /// # Errors
    /// When a running batch does not end within `deadline`; nothing is held then.
    pub async fn hold_all(&self, deadline: Duration) -> Result<HoldAll, HoldTimeout> {
        self.service.held_by_all.fetch_add(1, Ordering::SeqCst);
        let guard = HoldAll {
            service: Arc::clone(&self.service),
        };
        let deadline = Instant::now() + deadline;
        for partition in self.service.partitions() {
            timeout_at(deadline, partition.inbox.batch_finished())
                .await
                .map_err(|_| HoldTimeout)?;
        }
        Ok(guard)
    }

    /// Stops: refuses new pushes with a retryable error, finishes queued ones, writes
    /// client records, ends the actors. What is not done by the deadline is reported.
    pub async fn shutdown(&self, deadline: Duration) -> Shutdown {
        let deadline = Instant::now() + deadline;
        self.service.begin_stopping();
        let partitions = self.service.partitions();
        let mut tasks = JoinSet::new();
        for partition in &partitions {
            partition.inbox.stop();
            partition.wake();
            let partition = Arc::clone(partition);
            tasks.spawn(async move {
                let _ = timeout_at(deadline, finish(&partition)).await;
            });
        }
        while tasks.join_next().await.is_some() {}

        let mut report = Shutdown::default();
        for partition in &partitions {
            for push in partition.inbox.empty() {
                report.refused_pushes += 1;
                let _ = push.reply.send(Err(PushError::unavailable()));
            }
            report.running_batches += usize::from(partition.inbox.has_work());
            report.unwritten_clients += usize::from(!partition.ledger.is_empty());
            partition.inbox.leave(|| true);
            partition.dismiss();
            self.service.forget(partition);
        }
        // A running batch lives on an arbiter: it is left to end by itself.
        if report.running_batches == 0 {
            for arbiter in self.arbiters.lock().drain(..) {
                arbiter.stop();
            }
        }
        report
    }

    /// Whether the last write that was tried failed for a reason of the database's own,
    /// such as a full disk. It says nothing of the next one: see
    /// [`Self::writes_succeed_again`].
    pub fn writes_fail(&self) -> bool {
        self.service.writes_fail.load(Ordering::Relaxed)
    }

    /// Tells that a write was probed and succeeded.
    pub fn writes_succeed_again(&self) {
        self.service.writes_fail.store(false, Ordering::Relaxed);
    }

    /// What the partition actors did and hold.
    pub fn statistics(&self) -> Statistics {
        let queued = self.service.gauge.current();
        Statistics {
            partitions: self.service.partitions().len(),
            queued_operations: queued.operations,
            queued_bytes: queued.bytes,
            memory_bytes: self.service.memory.held(),
            ..self.service.counters.snapshot()
        }
    }
}

/// Holds back the pushes of a partition; see [`PartitionHandle::quiet`].
#[derive(Debug)]
#[must_use = "dropping it lets pushes pass"]
pub(crate) struct Quiet {
    partition: Arc<Partition>,
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.partition.inbox.end_quiet();
        self.partition.wake();
    }
}

/// Works off a stopping partition's queue, then writes its client records.
async fn finish(partition: &Arc<Partition>) {
    const PAUSE: Duration = Duration::from_millis(50);
    partition.inbox.worked_off().await;
    while !partition.ledger.is_empty() {
        if partition.inbox.start_flush() {
            batch::run(Arc::clone(partition), Vec::new(), None).await;
            if !partition.ledger.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        } else {
            partition.inbox.batch_finished().await;
        }
    }
}

/// Whether a client id is one of the server's own backfills.
fn is_backfill(client: &ClientId) -> bool {
    client.as_str().starts_with("[\"backfill\",")
}

/// One partition's door.
#[derive(Debug, Clone)]
pub struct PartitionHandle {
    partition: Arc<Partition>,
}

impl PartitionHandle {
    /// The partition as it is in memory now; the one in hand may have left.
    fn current(&self) -> Arc<Partition> {
        if self.partition.inbox.is_gone() {
            self.partition.service.enter(&self.partition.id)
        } else {
            Arc::clone(&self.partition)
        }
    }

    /// Decides the commits in order and makes them durable (§6): one decision per commit.
    ///
    /// Dropping the future cancels nothing. A request without commits only makes its
    /// binding durable.
    ///
    /// # Errors
    /// `sync.rate_limited` at once when too much is queued; `sync.invalid_client_id` when
    /// the id to bind was bound to another actor meanwhile; `sync.schema_not_ready` when
    /// the gate refused inside the transaction; `sync.internal_error` otherwise. Repeating
    /// the request is safe after each of them.
    pub async fn push(&self, request: PushRequest) -> Result<Decisions, PushError> {
        let pushed = self.push_ahead(request, None).await?;
        Ok(pushed.decisions)
    }

    /// [`Self::push`] with what was read for its commits before: while the partition
    /// wrote other batches, perhaps.
    pub(crate) async fn push_ahead(
        &self,
        request: PushRequest,
        ahead: Option<Fetched>,
    ) -> Result<Pushed, PushError> {
        let service = &self.partition.service;
        let admitted = Instant::now();
        // Under such an id a client could record pages as done that nobody computed.
        if is_backfill(&request.client_id) {
            return Err(PushError::bound_elsewhere());
        }
        let gauges = [
            Arc::clone(&self.current().gauge),
            Arc::clone(&service.gauge),
        ];
        let Some(permit) = Permit::try_acquire(gauges, Load::of(&request.commits)) else {
            service.counters.rate_limited.add(1);
            return Err(PushError::overloaded());
        };
        let (reply, answer) = oneshot::channel();
        let mut push = QueuedPush {
            request,
            ahead,
            permit,
            reply,
        };
        let mut partition = self.current();
        loop {
            match partition.inbox.push(push) {
                Queued::Wake => {
                    partition.wake();
                    break;
                }
                Queued::Waiting => break,
                Queued::Gone(back) => {
                    push = *back;
                    partition = service.enter(&self.partition.id);
                }
                Queued::Stopping => return Err(PushError::unavailable()),
            }
        }
        // The sender goes away unanswered only when the process ends.
        let answer = answer
            .await
            .unwrap_or_else(|_| Err(PushError::unavailable()));
        partition.latencies.record(admitted.elapsed());
        answer
    }

    /// Commits a page of a backfill (migrations.md rule 5): its rows and its checkpoint's
    /// advance together, after the pushes that run and in turn with those that wait. A row
    /// that changed since the page was planned is left out.
    ///
    /// Dropping the future cancels nothing.
    ///
    /// # Errors
    /// `sync.constraint_violation` when a row of it can never be written; otherwise as
    /// [`Self::push`], and repeating the page is safe.
    pub async fn commit_page(&self, page: BackfillPage) -> Result<PageOutcome, PushError> {
        self.queue_page(Arc::new(page), Moved::LeaveOut).await
    }

    /// [`Self::commit_page`], telling what to do about rows that changed.
    pub(crate) async fn queue_page(
        &self,
        page: Arc<BackfillPage>,
        moved: Moved,
    ) -> Result<PageOutcome, PushError> {
        let (reply, answer) = oneshot::channel();
        let mut queued = QueuedPage { page, moved, reply };
        let mut partition = self.current();
        loop {
            match partition.inbox.queue_page(queued) {
                PageQueued::Waiting => {
                    partition.wake();
                    break;
                }
                PageQueued::Gone(back) => {
                    queued = back;
                    partition = partition.service.enter(&partition.id);
                }
                PageQueued::Stopping => return Err(PushError::unavailable()),
            }
        }
        answer
            .await
            .unwrap_or_else(|_| Err(PushError::unavailable()))
    }

    /// Lets pages pass and holds pushes back until the guard is dropped: the last steps of
    /// a backfill under steady load. Keep it short.
    pub(crate) fn quiet(&self) -> Quiet {
        loop {
            let partition = self.current();
            if partition.inbox.begin_quiet() {
                return Quiet { partition };
            }
        }
    }

    /// How long pushes took lately.
    pub(crate) fn latencies<T>(&self, read: impl FnOnce(&Latencies) -> T) -> T {
        read(&self.current().latencies)
    }

    /// Binds a new client id to its actor and makes that durable (§1.5), for a request
    /// without commits.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub async fn bind_client(&self, record: ClientRecord) -> Result<(), PushError> {
        self.push(PushRequest {
            client_id: record.client_id.clone(),
            actor_id: record.actor_id.clone(),
            wire: record.wire_version,
            allowed: tidegate_engine::hooks::Allowed::Failed,
            commits: Vec::new(),
            bind: Some(record),
        })
        .await
        .map(|_| ())
    }

    /// Notes a known client's record; it is written with the next batch or shortly after.
    pub fn record_client(&self, record: ClientRecord) {
        let mut partition = self.current();
        loop {
            match partition.ledger.note(record.clone()) {
                Noted::First => partition.wake(),
                Noted::Queued => {}
                Noted::Dropped => {
                    partition.service.counters.dropped_records.add(1);
                    tracing::warn!(partition = %partition.id, "too many unwritten client records");
                }
            }
            // It may have left memory between the look and the note.
            if !partition.inbox.is_gone() || partition.service.is_stopping() {
                return;
            }
            partition = partition.service.enter(&partition.id);
        }
    }

    /// A client's record when a newer one than the database's is on its way there.
    pub fn pending_client(&self, client: &ClientId) -> Option<ClientRecord> {
        self.current().ledger.latest(client)
    }

    /// Tells the log epoch that a request's preamble read. When it changed, the database
    /// was restored (§2.1) and everything in memory is dropped.
    pub fn observe_epoch(&self, epoch: &LogEpoch) {
        self.current().observe_epoch(epoch);
    }

    /// The partition's newest commits. Requests read them through [`crate::ServeGate`].
    pub fn tail(&self) -> Arc<Tail> {
        Arc::clone(&self.current().tail)
    }

    #[cfg(test)]
    pub(crate) fn in_memory(&self) -> Arc<Partition> {
        self.current()
    }

    /// Pushes that wait for a batch.
    pub fn queued(&self) -> usize {
        self.current().inbox.queued()
    }

    /// Backfill pages that wait for their turn.
    pub fn queued_pages(&self) -> usize {
        self.current().inbox.queued_pages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backfills_client_id_is_told_from_those_of_clients() {
        let own = tidegate_engine::backfill::scan::client_id("a \"name\"");
        assert!(is_backfill(&own));
        for client in ["", "c", "backfill", "[\"backfills\",1]"] {
            assert!(!is_backfill(&client.into()), "{client}");
        }
    }
}

//! The partition actor: serializes a partition's pushes in group commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, SpawnHandle};
use parking_lot::Mutex;
use tidegate_engine::{LogEpoch, PartitionId};

use crate::admission::Gauge;
use crate::batch::{self, Known};
use crate::clients::{Bindings, Ledger};
use crate::clock::timers_run;
use crate::contention::Contention;
use crate::handover::Handover;
use crate::inbox::{Inbox, Work};
use crate::latency::Latencies;
use crate::page_commit;
use crate::service::Service;
use crate::tail::Tail;

/// Everything of a partition in memory; shared by its actor, its running batch and the
/// requests that use it. An actor may end and another one take over.
#[derive(Debug)]
pub(crate) struct Partition {
    pub id: PartitionId,
    pub service: Arc<Service>,
    pub inbox: Inbox,
    pub tail: Arc<Tail>,
    pub ledger: Ledger,
    pub bindings: Mutex<Bindings>,
    pub gauge: Arc<Gauge>,
    /// How long pushes took lately.
    pub latencies: Latencies,
    /// How batches guard against other writers.
    pub contention: Mutex<Contention>,
    pub handover: Handover,
    known: Mutex<Option<Known>>,
    /// Counts the reasons to distrust what is known; see [`Self::take_known`].
    generation: AtomicU64,
    epoch: Mutex<Option<LogEpoch>>,
    address: Mutex<Option<Addr<PartitionActor>>>,
}

impl Partition {
    pub fn new(id: PartitionId, service: Arc<Service>) -> Self {
        let settings = &service.settings;
        Self {
            inbox: Inbox::new(),
            tail: Arc::new(Tail::new(
                settings.tail_commits,
                settings.tail_bytes,
                service.memory.share(),
            )),
            ledger: Ledger::new(settings.pending_clients, service.unwritten.share()),
            bindings: Mutex::default(),
            contention: Mutex::default(),
            handover: Handover::default(),
            gauge: Arc::new(Gauge::new(settings.partition_queue)),
            latencies: Latencies::new(),
            known: Mutex::new(None),
            generation: AtomicU64::new(0),
            epoch: Mutex::new(None),
            address: Mutex::new(None),
            id,
            service,
        }
    }

    /// Makes the actor look at the inbox; starts one when there is none.
    pub fn wake(self: &Arc<Self>) {
        let mut address = self.address.lock();
        match &*address {
            Some(actor) if actor.connected() => actor.do_send(Wake),
            _ => *address = Some(self.start_actor()),
        }
    }

    fn start_actor(self: &Arc<Self>) -> Addr<PartitionActor> {
        let partition = Arc::clone(self);
        PartitionActor::start_in_arbiter(&self.service.next_arbiter(), |_| PartitionActor {
            partition,
            flush_timer: None,
            flush_due: false,
        })
    }

    /// Ends the actor; the partition must have left memory.
    pub fn dismiss(&self) {
        if let Some(actor) = self.address.lock().take() {
            actor.do_send(Dismiss);
        }
    }

    /// Takes what is known of rows for a batch; give it back with [`Self::keep_known`].
    pub fn take_known(&self) -> (Known, u64) {
        let generation = self.generation.load(Ordering::SeqCst);
        let known = self.known.lock().take();
        (known.unwrap_or_else(|| self.nothing_known()), generation)
    }

    /// What a batch starts from when nothing is known.
    pub fn nothing_known(&self) -> Known {
        let limit = self.service.settings.row_cache_bytes;
        Known::new(limit, self.service.memory.share())
    }

    /// Keeps what is known, unless a reason to distrust it came up since it was taken.
    pub fn keep_known(&self, known: Known, generation: u64) {
        let mut slot = self.known.lock();
        if self.generation.load(Ordering::SeqCst) == generation {
            *slot = Some(known);
        }
    }

    /// Forgets rows and the tail: the next batch reads everything afresh.
    pub fn distrust(&self) {
        let mut slot = self.known.lock();
        self.generation.fetch_add(1, Ordering::SeqCst);
        *slot = None;
        drop(slot);
        self.tail.invalidate();
    }

    /// Notes the partition's log epoch as a request saw it. Another one than before
    /// means that the database was restored: nothing in memory is true any more (§2.1).
    pub fn observe_epoch(&self, epoch: &LogEpoch) {
        let mut known = self.epoch.lock();
        if known.as_ref() == Some(epoch) {
            return;
        }
        if known.replace(epoch.clone()).is_some() {
            self.distrust();
            self.bindings.lock().clear();
            self.ledger.clear();
        }
    }
}

/// Owns the order of one partition's pushes.
///
/// It only decides *when* a batch starts. The batch itself runs as its own task (see
/// [`crate::batch`]), so neither a slow database nor a failing batch occupies the actor.
#[derive(Debug)]
pub(crate) struct PartitionActor {
    partition: Arc<Partition>,
    flush_timer: Option<SpawnHandle>,
    flush_due: bool,
}

/// There may be something to do.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Wake;

/// The partition left memory.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct Dismiss;

impl PartitionActor {
    fn work(&mut self, ctx: &mut Context<Self>) {
        let partition = &self.partition;
        let service = &partition.service;
        let work = partition
            .inbox
            .start(service.settings.batch, &service.held_by_all);
        if let Some(work) = work {
            let partition = Arc::clone(partition);
            match work {
                Work::Pushes(pushes) => {
                    // The batch takes client records along that are due.
                    self.flush_due = false;
                    tokio::spawn(batch::run(partition, pushes, None));
                }
                Work::Next(pushes) => {
                    let generation = partition.generation.load(Ordering::SeqCst);
                    let lead = partition.handover.take(generation);
                    tokio::spawn(batch::run(partition, pushes, lead));
                }
                Work::Page(page) => {
                    tokio::spawn(page_commit::run(partition, page));
                }
            }
        } else if self.flush_due && partition.ledger.has_pending() {
            if partition.inbox.start_flush() {
                self.flush_due = false;
                tokio::spawn(batch::run(Arc::clone(partition), Vec::new(), None));
            }
        } else {
            self.flush_due = false;
        }
        if self.flush_timer.is_none() && partition.ledger.has_pending() {
            self.flush_timer = Some(ctx.run_later(service.settings.flush_delay, |actor, ctx| {
                actor.flush_timer = None;
                actor.flush_due = true;
                actor.work(ctx);
            }));
        }
    }

    fn leave_if_idle(&mut self, ctx: &mut Context<Self>) {
        let partition = &self.partition;
        if partition.inbox.idle_for() >= partition.service.settings.idle_after
            && partition.inbox.leave(|| partition.ledger.is_empty())
        {
            partition.service.forget(partition);
            partition.distrust();
            ctx.stop();
        }
    }
}

impl Actor for PartitionActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !timers_run() {
            return;
        }
        ctx.run_interval(
            self.partition.service.settings.idle_after,
            Self::leave_if_idle,
        );
        self.work(ctx);
    }
}

impl Handler<Wake> for PartitionActor {
    type Result = ();

    fn handle(&mut self, _: Wake, ctx: &mut Context<Self>) {
        self.work(ctx);
    }
}

impl Handler<Dismiss> for PartitionActor {
    type Result = ();

    fn handle(&mut self, _: Dismiss, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

impl Drop for PartitionActor {
    /// An actor that ends with work left (a panic, its thread's end) is replaced; the
    /// queue is not its own and survives.
    fn drop(&mut self) {
        let partition = &self.partition;
        let wanted = partition.inbox.has_work() || partition.ledger.has_pending();
        if wanted && !partition.inbox.is_gone() && !partition.service.is_stopping() {
            let mut address = partition.address.lock();
            *address = Some(partition.start_actor());
        }
    }
}

#[cfg(test)]
#[path = "../tests/actors/store.rs"]
#[allow(dead_code, clippy::unwrap_used)]
mod test_store;

#[cfg(test)]
mod tests {
    use super::test_store::{Gate, OnRead, TestStore};
    use super::*;
    use crate::{Directory, NoObserver, Parts, PushRequest, Settings, SystemClock};
    use tidegate_engine::hooks::Allowed;

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Die;

    impl Handler<Die> for PartitionActor {
        type Result = ();
        fn handle(&mut self, _: Die, _: &mut Context<Self>) {
            panic!("scripted")
        }
    }

    fn request(id: &str) -> PushRequest {
        PushRequest {
            client_id: "c".into(),
            actor_id: "alice".into(),
            wire: ssp2::WireVersion::V2,
            allowed: Allowed::Failed,
            commits: vec![ssp2::PushCommit {
                client_commit_id: id.into(),
                operations: vec![ssp2::Operation {
                    table: "notes".into(),
                    row_id: "r".into(),
                    base_version: None,
                    kind: ssp2::OperationKind::Delete,
                }],
            }],
            bind: None,
        }
    }

    #[actix::test]
    async fn an_actor_that_dies_is_replaced_and_loses_neither_batch_nor_queue() {
        let store = TestStore::new();
        let schema = r#"{"schemaVersion": 1, "tables": [{"name": "notes", "primaryKey": "id",
            "columns": [{"name": "id", "type": "string"}], "scopes": ["id:{id}"]}]}"#;
        let schema = tidegate_engine::schema::Schema::load(schema).unwrap();
        let parts = Parts {
            store: store.clone(),
            schema: Arc::new(schema),
            hooks: Arc::default(),
            declared: Arc::default(),
            clock: Arc::new(SystemClock),
            observer: Arc::new(NoObserver),
        };
        let directory = Directory::start(parts, Settings::default());
        let handle = directory.partition(&"p".into());
        let gate = Gate::new();
        store.next_read(OnRead::Block(gate.clone()));
        let push = |id: &str| {
            let (handle, request) = (handle.clone(), request(id));
            tokio::spawn(async move { handle.push(request).await })
        };
        let running = push("k1");
        gate.reached().await;
        let queued = push("k2");
        while handle.queued() == 0 {
            tokio::task::yield_now().await;
        }
        let partition = handle.in_memory();
        let dead = partition.address.lock().clone().unwrap();
        dead.do_send(Die);
        while dead.connected() {
            tokio::task::yield_now().await;
        }
        gate.open();
        // Not allowed anything, both commits are rejected: decided all the same.
        for answer in [running, queued] {
            assert_eq!(answer.await.unwrap().unwrap().len(), 1);
        }
        assert_eq!(store.tried(), [1, 1]);
    }
}

//! The Postgres backend: a pool of connections with prepared statements, group
//! commits in one pipelined round trip behind a commit gate in the database, and
//! repeatable-read snapshots (docs/postgres.md).

mod accepted;
mod batch;
mod catalog;
mod checkpoints;
mod commit;
mod connection;
mod core_schema;
mod driver;
mod failure;
mod flight;
mod locked;
mod log;
mod maintain;
mod migrate;
mod needs;
mod operating;
mod options;
mod pipeline;
mod plan;
mod preambles;
#[cfg(test)]
mod query_plans;
mod read;
mod rows;
mod snapshot;
mod source_rows;
mod statement;
mod tls;
mod turns;
mod window;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod world;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bb8::{ManageConnection as _, Pool, QueueStrategy};
use parking_lot::RwLock;
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::{ClientRecord, CommitBatch, Fetched, LogBounds, Needs, Registry};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, SchemaVersion};

pub use options::{ConnectError, PostgresOptions};

use crate::ensured::Ensured;
use crate::error::{CommitError, StoreError};
use crate::operating::{Grant, MigrationPlan, PartitionSummary, SampleQuery, SampledRow};
use crate::preamble::Found;
use crate::{
    Declaration, Link, LockedPartition, MigrationObserver, OperatorStore, Passed, Preamble, Pruned,
    SchemaOutcome, Settle, Snapshot, Store, Touch, chain,
};
use connection::{Lease, LogFailures, Manager, Session};
use driver::Driver;
use failure::during;
use needs::NeedsReader;
use plan::Plan;
use preambles::{Preambles, Question};
use writer::{Chained, Writer};

#[derive(Clone)]
struct Pools {
    /// Short work.
    short: Pool<Manager>,
    /// Snapshots, held as long as their readers are slow.
    snapshots: Pool<Manager>,
}

/// A Postgres database behind [`Store`].
pub struct PostgresStore {
    manager: Manager,
    /// `None` once the store is closed.
    pools: RwLock<Option<Pools>>,
    /// Held shared by every write: closing waits for them.
    writes: Arc<tokio::sync::RwLock<()>>,
    preambles: Preambles,
    needs: NeedsReader,
    writer: Writer,
    plan: RwLock<Option<Arc<Plan>>>,
    /// Held during a run, so that concurrent callers share it.
    ensured: tokio::sync::Mutex<Option<Ensured>>,
    migration_lock_timeout: Duration,
    /// Last: what is still under way ends with it.
    driver: Driver,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Reaches the database and checks that it can serve.
    ///
    /// # Errors
    /// [`ConnectError`]: each kind is one line for the operator.
    pub async fn connect(options: PostgresOptions) -> Result<Arc<Self>, ConnectError> {
        let target = options::target(&options)?;
        let tls = tls::connector(&target.verification)?;
        let driver = Driver::start().map_err(|error| ConnectError::Unreachable(Box::new(error)))?;
        let manager = Manager::new(target.config, tls, &options, driver.handle());
        tokio::time::timeout(options.connect_timeout, manager.probe())
            .await
            .unwrap_or_else(|elapsed| Err(ConnectError::Unreachable(Box::new(elapsed))))?;
        let pool = |manager: &Manager, size: u32| {
            Pool::builder()
                .max_size(size.max(1))
                .connection_timeout(options.connect_timeout)
                .test_on_check_out(false)
                // The connection used last: its process has everything at hand.
                .queue_strategy(QueueStrategy::Lifo)
                .error_sink(Box::new(LogFailures))
                .build_unchecked(manager.clone())
        };
        let pools = Pools {
            short: pool(&manager, options.pool_size),
            snapshots: pool(&manager.planning_each_time(), options.snapshot_pool_size),
        };
        Ok(Arc::new(Self {
            pools: RwLock::new(Some(pools)),
            manager,
            writes: Arc::new(tokio::sync::RwLock::new(())),
            preambles: Preambles::new(),
            needs: NeedsReader::new(),
            writer: Writer::new(options.transactions),
            plan: RwLock::new(None),
            ensured: tokio::sync::Mutex::new(None),
            migration_lock_timeout: options.migration_lock_timeout,
            driver,
        }))
    }

    fn plan(&self) -> Result<Arc<Plan>, StoreError> {
        self.plan.read().clone().ok_or(StoreError::NotPrepared)
    }

    async fn lease(&self) -> Result<Lease, StoreError> {
        take(&self.pools()?.short).await
    }

    fn pools(&self) -> Result<Pools, StoreError> {
        self.pools.read().clone().ok_or(StoreError::Closed)
    }

    /// Work that must not end in the middle because a caller stopped waiting.
    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: AsyncWork<T>,
    {
        let guard = Arc::clone(&self.writes).read_owned().await;
        let mut lease = self.lease().await?;
        let task = self.driver.spawn(async move {
            let _guard = guard;
            work.run(&mut lease).await
        });
        task.await
            .unwrap_or_else(|error| Err(StoreError::failed("a storage task", error)))
    }

    /// Reads a preamble together with those that wait at the same time; without
    /// `client` the gate token and the bounds alone.
    async fn preamble(
        &self,
        partition: &PartitionId,
        client: Option<&ClientId>,
        ahead: Needs,
    ) -> Result<Found, StoreError> {
        let question = Question {
            plan: self.plan()?,
            partition: partition.as_str().to_owned(),
            client: client.map(|id| id.as_str().to_owned()),
            ahead,
        };
        let pool = self.pools()?.short;
        self.preambles.read(&self.driver, pool, question).await
    }

    async fn register(&self, partition: &PartitionId, touch: Touch) -> Result<(), StoreError> {
        self.write(Register {
            partition: partition.clone(),
            touch,
        })
        .await
    }

    /// A connection outside the pool, with a migration's timeouts on the session.
    async fn migration_session(&self) -> Result<Session, StoreError> {
        self.pools()?;
        let context = "connecting for a migration";
        let manager = self.manager.planning_each_time();
        let session = manager.connect().await.map_err(during(context))?;
        let timeout = self
            .migration_lock_timeout
            .as_millis()
            .min(i32::MAX as u128);
        session
            .client
            .batch_execute(&format!(
                "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
                 SET lock_timeout = {timeout}"
            ))
            .await
            .map_err(during(context))?;
        Ok(session)
    }
}

/// A connection of a pool.
async fn take(pool: &Pool<Manager>) -> Result<Lease, StoreError> {
    loop {
        let lease = pool.get_owned().await.map_err(|error| match error {
            bb8::RunError::User(error) => StoreError::Unavailable(Box::new(error)),
            bb8::RunError::TimedOut => {
                StoreError::Unavailable("no connection became free in time".into())
            }
        })?;
        // A connection that ended while it was idle is replaced; its drop
        // takes it out of the pool.
        if !lease.client.is_closed() {
            return Ok(lease);
        }
    }
}

/// One write on a leased connection.
#[async_trait]
trait AsyncWork<T>: Send + 'static {
    async fn run(self, session: &mut Session) -> Result<T, StoreError>;
}

struct Register {
    partition: PartitionId,
    touch: Touch,
}

#[async_trait]
impl AsyncWork<()> for Register {
    async fn run(self, session: &mut Session) -> Result<(), StoreError> {
        maintain::touch(session, self.partition.as_str(), &self.touch).await
    }
}

struct RecordClients {
    partition: PartitionId,
    clients: Vec<ClientRecord>,
}

#[async_trait]
impl AsyncWork<()> for RecordClients {
    async fn run(self, session: &mut Session) -> Result<(), StoreError> {
        let context = "recording clients";
        let partition = self.partition.as_str();
        let records: Vec<_> = self.clients.iter().map(|one| (partition, one)).collect();
        let step = log::clients(&records);
        let statement = session.prepare(step.sql).await.map_err(during(context))?;
        session
            .client
            .execute(&statement, &connection::references(&step.params))
            .await
            .map(|_| ())
            .map_err(during(context))
    }
}

struct Rotate {
    partition: PartitionId,
    epoch: LogEpoch,
    now_ms: i64,
}

#[async_trait]
impl AsyncWork<Registry> for Rotate {
    async fn run(self, session: &mut Session) -> Result<Registry, StoreError> {
        maintain::rotate_epoch(session, self.partition.as_str(), &self.epoch, self.now_ms).await
    }
}

struct Prune {
    partition: PartitionId,
    epoch: LogEpoch,
    through: CommitSeq,
}

#[async_trait]
impl AsyncWork<Pruned> for Prune {
    async fn run(self, session: &mut Session) -> Result<Pruned, StoreError> {
        maintain::prune(session, self.partition.as_str(), &self.epoch, self.through).await
    }
}

struct PutGrant {
    partition: PartitionId,
    grant: Grant,
}

#[async_trait]
impl AsyncWork<()> for PutGrant {
    async fn run(self, session: &mut Session) -> Result<(), StoreError> {
        operating::put_grant(session, self.partition.as_str(), &self.grant).await
    }
}

struct DeleteGrant {
    partition: PartitionId,
    actor: ActorId,
}

#[async_trait]
impl AsyncWork<bool> for DeleteGrant {
    async fn run(self, session: &mut Session) -> Result<bool, StoreError> {
        operating::delete_grant(session, self.partition.as_str(), &self.actor).await
    }
}

#[async_trait]
impl OperatorStore for PostgresStore {
    async fn summarize_partitions(
        &self,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionSummary>, StoreError> {
        self.plan()?;
        let mut lease = self.lease().await?;
        operating::summarize(&mut lease, after.map(PartitionId::as_str), limit).await
    }

    async fn summarize_partition(
        &self,
        partition: &PartitionId,
    ) -> Result<Option<PartitionSummary>, StoreError> {
        self.plan()?;
        let mut lease = self.lease().await?;
        operating::summarize_one(&mut lease, partition.as_str()).await
    }

    async fn read_grant(
        &self,
        partition: &PartitionId,
        actor: &ActorId,
    ) -> Result<Option<Grant>, StoreError> {
        self.plan()?;
        let mut lease = self.lease().await?;
        operating::read_grant(&mut lease, partition.as_str(), actor).await
    }

    async fn put_grant(&self, partition: &PartitionId, grant: &Grant) -> Result<(), StoreError> {
        self.plan()?;
        self.write(PutGrant {
            partition: partition.clone(),
            grant: grant.clone(),
        })
        .await
    }

    async fn delete_grant(
        &self,
        partition: &PartitionId,
        actor: &ActorId,
    ) -> Result<bool, StoreError> {
        self.plan()?;
        self.write(DeleteGrant {
            partition: partition.clone(),
            actor: actor.clone(),
        })
        .await
    }

    async fn plan_migration(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
    ) -> Result<MigrationPlan, StoreError> {
        let session = self.migration_session().await?;
        migrate::dry_run(&session.client, &schema, declarations).await
    }

    async fn sample_rows(
        &self,
        schema: Arc<Schema>,
        query: SampleQuery,
    ) -> Result<Vec<SampledRow>, StoreError> {
        let session = self.migration_session().await?;
        migrate::sample_rows(&session.client, &schema, &query).await
    }

    async fn published_version(&self) -> Result<Option<SchemaVersion>, StoreError> {
        let lease = self.lease().await?;
        migrate::published_version(&lease.client).await
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn ensure_schema_observed(
        &self,
        schema: Arc<Schema>,
        declarations: &[Declaration],
        now_ms: i64,
        observer: Arc<dyn MigrationObserver>,
    ) -> Result<SchemaOutcome, StoreError> {
        let mut ensured = self.ensured.lock().await;
        let wanted = Ensured::new(Arc::clone(&schema), declarations);
        if ensured.as_ref().is_some_and(|done| done.covers(&wanted)) {
            return Ok(SchemaOutcome::Verified);
        }
        let plan = Arc::new(Plan::new(schema));
        let session = self.migration_session().await?;
        let (running, list) = (Arc::clone(&plan), declarations.to_vec());
        let task = tokio::spawn(async move {
            migrate::ensure(&session.client, &running, &list, now_ms, &*observer).await
        });
        let outcome = task
            .await
            .unwrap_or_else(|error| Err(StoreError::failed("a storage task", error)))
            .map_err(failure::while_preparing)?;
        *self.plan.write() = Some(plan);
        *ensured = Some(wanted);
        Ok(outcome)
    }

    async fn read_preamble_ahead(
        &self,
        partition: &PartitionId,
        client: &ClientId,
        touch: Touch,
        ahead: Needs,
    ) -> Result<(Preamble, Option<Fetched>), StoreError> {
        if !accepted::text(partition.as_str()) {
            return Err(StoreError::UnknownPartition);
        }
        let found = self.preamble(partition, Some(client), ahead).await?;
        match &found.registry {
            Some(_) if found.is_fresh(&touch) => {}
            Some(_) => {
                // Nobody's answer depends on the refreshed time: the request does not wait for it.
                let lease = self.lease().await?;
                let (partition, mut lease) = (partition.clone(), lease);
                tokio::spawn(async move {
                    if let Err(error) =
                        maintain::touch(&mut lease, partition.as_str(), &touch).await
                    {
                        tracing::debug!(
                            error = %crate::error_chain(&error),
                            "refreshing a partition failed"
                        );
                    }
                });
            }
            None => {
                self.register(partition, touch).await?;
                let nothing = Needs::default();
                let found = self.preamble(partition, Some(client), nothing).await?;
                return found.registered();
            }
        }
        found.registered()
    }

    async fn read_gate(
        &self,
        partition: &PartitionId,
    ) -> Result<(GateToken, LogBounds), StoreError> {
        let found = self.preamble(partition, None, Needs::default()).await?;
        Ok((found.gate, found.view.bounds))
    }

    async fn read_needs(
        &self,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError> {
        let (plan, pool) = (self.plan()?, self.pools()?.short);
        self.needs
            .read(&self.driver, pool, plan, partition, needs)
            .await
    }

    async fn commit_batch(&self, batch: Arc<CommitBatch>) -> Result<(), CommitError> {
        let (settle, _) = chain();
        self.commit_chained(batch, None, settle).await.map(|_| ())
    }

    async fn commit_chained(
        &self,
        batch: Arc<CommitBatch>,
        after: Option<Link>,
        settle: Settle,
    ) -> Result<Option<Passed>, CommitError> {
        let plan = self.plan()?;
        let guard = Arc::clone(&self.writes).read_owned().await;
        let pool = self.pools()?.short;
        let chained = Chained { after, settle };
        self.writer
            .write(&self.driver, pool, plan, batch, chained, guard)
            .await
    }

    fn sends_ahead(&self) -> bool {
        true
    }

    async fn begin_locked<'a>(
        &'a self,
        partition: &PartitionId,
    ) -> Result<Box<dyn LockedPartition + 'a>, StoreError> {
        let plan = self.plan()?;
        let guard = Arc::clone(&self.writes).read_owned().await;
        let lease = self.lease().await?;
        Ok(Box::new(
            locked::begin(lease, guard, plan, partition, self.driver.handle()).await?,
        ))
    }

    async fn record_clients(
        &self,
        partition: &PartitionId,
        clients: Vec<ClientRecord>,
    ) -> Result<(), StoreError> {
        self.write(RecordClients {
            partition: partition.clone(),
            clients,
        })
        .await
    }

    async fn snapshot(&self, partition: &PartitionId) -> Result<Box<dyn Snapshot>, StoreError> {
        let plan = self.plan()?;
        let lease = take(&self.pools()?.snapshots).await?;
        Ok(Box::new(snapshot::begin(lease, plan, partition).await?))
    }

    async fn rotate_epoch(
        &self,
        partition: &PartitionId,
        epoch: LogEpoch,
        now_ms: i64,
    ) -> Result<Registry, StoreError> {
        self.write(Rotate {
            partition: partition.clone(),
            epoch,
            now_ms,
        })
        .await
    }

    async fn prune(
        &self,
        partition: &PartitionId,
        epoch: &LogEpoch,
        through: CommitSeq,
    ) -> Result<Pruned, StoreError> {
        self.write(Prune {
            partition: partition.clone(),
            epoch: epoch.clone(),
            through,
        })
        .await
    }

    async fn commit_before(
        &self,
        partition: &PartitionId,
        created_before_ms: i64,
    ) -> Result<CommitSeq, StoreError> {
        let mut lease = self.lease().await?;
        maintain::commit_before(&mut lease, partition.as_str(), created_before_ms).await
    }

    async fn list_clients(&self, partition: &PartitionId) -> Result<Vec<ClientRecord>, StoreError> {
        let mut lease = self.lease().await?;
        maintain::list_clients(&mut lease, partition.as_str()).await
    }

    async fn list_partitions(&self) -> Result<Vec<PartitionId>, StoreError> {
        let mut lease = self.lease().await?;
        maintain::list_partitions(&mut lease).await
    }

    async fn probe_write(&self) -> Result<(), StoreError> {
        let lease = self.lease().await?;
        // A transaction with an id of its own ends with a record in the log of the server.
        lease
            .client
            .batch_execute("SELECT txid_current()")
            .await
            .map_err(during("probing a write"))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let lease = self.lease().await?;
        lease
            .client
            .batch_execute("SELECT 1")
            .await
            .map_err(during("pinging the database"))
    }

    async fn close(&self) {
        *self.pools.write() = None;
        // Every write holds the other side of this lock until its last answer.
        let _done = self.writes.write().await;
    }
}

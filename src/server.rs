//! The service: what all requests share, and its life from start to end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::{App, HttpServer, web};
use tidegate_actors::backfill::{BackfillParts, Backfills};
use tidegate_actors::{
    Clock, Coordinator, CoordinatorParts, CoordinatorSettings, Directory, MigrationPhase,
    NoObserver, NoWatch, Parts, ServeGate, Shutdown, SystemClock,
};
use tidegate_engine::LogEpoch;
use tidegate_engine::backfill::projection::Projection;
use tidegate_engine::push::PushHooks;
use tidegate_engine::schema::Schema;
use tidegate_store::{Declared, EpochSource, SchemaOutcome, Store, StoreError};
use tokio::task::JoinHandle;

use crate::auth::grants::Grants;
use crate::auth::{Authenticate, DevelopmentAuth, Everything, ResolveScopes};
use crate::config::{Config, ScopeSource};
use crate::control::test_hooks::TestHooks;
use crate::http;
use crate::http::health::PhaseCell;
pub use crate::serve_error::ServeError;
use crate::shutdown::Deadline;
use crate::sync::Account;
use crate::sync::segments::SegmentCache;
use doors::Door;
pub use doors::Doors;
pub use exposure::{check_exposure, check_test_hooks};
pub use opening::{load_schema, open_existing_store, open_store, open_store_to_read};
use operations::RunningControl;

/// The schema served when none is configured.
pub const DEMO_SCHEMA: &str = include_str!("../config/schemas/demo.json");

/// Everything a request needs; shared by all threads.
pub struct Service {
    /// Configuration.
    pub config: Config,
    /// Served schema.
    pub schema: Arc<Schema>,
    /// A request's only way to data.
    pub gate: ServeGate,
    // Not for requests: they would pass the gate by.
    store: Arc<dyn Store>,
    directory: Directory,
    /// Who asks.
    pub authenticate: Arc<dyn Authenticate>,
    /// What they may see.
    pub scopes: Arc<dyn ResolveScopes>,
    /// What the unsent answers of pulls hold.
    pub pulls: Arc<Account>,
    /// Segments for download.
    pub segments: SegmentCache,
    /// What the server is doing.
    pub phase: PhaseCell,
    /// Time.
    pub clock: Arc<dyn Clock>,
    coordinator: Coordinator,
    /// Empty until the database is prepared.
    backfills: Arc<OnceLock<Backfills>>,
    projections: Vec<Arc<dyn Projection>>,
    /// Epochs for new partitions.
    pub new_epoch: EpochSource,
    grants: Option<Arc<Grants>>,
    test_hooks: Option<Arc<TestHooks>>,
    requests: AtomicU64,
}

/// What an embedding program may replace.
pub struct Hooks {
    /// Who asks.
    pub authenticate: Arc<dyn Authenticate>,
    /// What they may see.
    pub scopes: Arc<dyn ResolveScopes>,
    /// Rules a push passes.
    pub push: Arc<PushHooks>,
    /// Backfills that this process computes, and by that declares.
    pub projections: Vec<Arc<dyn Projection>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The resolver that reads grants, where grants are what counts: told of changes.
    pub grants: Option<Arc<Grants>>,
    /// What tests may turn over the control endpoint.
    pub test_hooks: Option<Arc<TestHooks>>,
}

impl Hooks {
    /// Development authentication: a bearer token is an actor, who may do everything.
    pub fn development(schema: &Schema) -> Self {
        Self {
            authenticate: Arc::new(DevelopmentAuth),
            scopes: Arc::new(Everything::of(schema)),
            push: Arc::default(),
            projections: Vec::new(),
            clock: Arc::new(SystemClock),
            grants: None,
            test_hooks: None,
        }
    }

    /// Development authentication with the scopes that the configuration names.
    pub fn configured(config: &Config, schema: &Arc<Schema>, store: &Arc<dyn Store>) -> Self {
        let development = Self::development(schema);
        match config.auth.scopes {
            ScopeSource::Everything => development,
            ScopeSource::Grants => {
                let grants = Arc::new(Grants::new(Arc::clone(store), Arc::clone(schema)));
                Self {
                    scopes: Arc::clone(&grants) as Arc<dyn ResolveScopes>,
                    grants: Some(grants),
                    ..development
                }
            }
        }
    }

    /// The same, with a clock and a resolver that the control endpoint can turn.
    #[must_use]
    pub fn under_test(self) -> Self {
        let hooks = Arc::new(TestHooks::before(self.scopes));
        Self {
            scopes: Arc::clone(&hooks.resolver) as Arc<dyn ResolveScopes>,
            clock: Arc::clone(&hooks.clock) as Arc<dyn Clock>,
            test_hooks: Some(hooks),
            ..self
        }
    }
}

/// A server that answers.
pub struct Running {
    address: SocketAddr,
    service: web::Data<Service>,
    handle: ServerHandle,
    server: JoinHandle<std::io::Result<()>>,
    control: Option<RunningControl>,
}

impl Service {
    /// A number that names a request in the log and in its error answer.
    pub fn next_request_id(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the database answers, and takes writes: after one failed, a probe must
    /// succeed before requests should come here again.
    ///
    /// # Errors
    /// When it does not.
    pub async fn check_storage(&self) -> Result<(), StoreError> {
        if !self.directory.writes_fail() {
            return self.store.ping().await;
        }
        self.store.probe_write().await?;
        self.directory.writes_succeed_again();
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Where the process stands to the database's schema.
    pub fn migration_phase(&self) -> MigrationPhase {
        self.coordinator.status().phase
    }

    /// Brings the database to the schema.
    async fn ensure(&self) -> Result<(), ServeError> {
        let schema_version = self.schema.version().0;
        let ensured = self.coordinator.ensure().await;
        match ensured.map_err(ServeError::Preparation)? {
            SchemaOutcome::Verified => {
                tracing::info!(schema_version, "the database fits the schema");
            }
            SchemaOutcome::Migrated { from } => tracing::info!(
                from = from.map_or(0, |version| version.0),
                schema_version,
                "the database was migrated"
            ),
        }
        Ok(())
    }

    /// Starts the workers of backfills; the database must be prepared.
    fn begin_backfills(&self) {
        let parts = BackfillParts {
            directory: self.directory.clone(),
            store: Arc::clone(&self.store),
            schema: Arc::clone(&self.schema),
            projections: self.projections.clone(),
            clock: Arc::clone(&self.clock),
        };
        self.backfills
            .get_or_init(|| Backfills::start(parts, self.config.backfill.settings()));
    }

    /// Ends the workers, which write through the partitions.
    async fn end_backfills(&self, deadline: Duration) {
        if let Some(backfills) = self.backfills.get() {
            backfills.stop(deadline).await;
        }
    }

    fn new(config: Config, schema: Arc<Schema>, store: Arc<dyn Store>, hooks: Hooks) -> Self {
        let clock = hooks.clock;
        let parts = Parts {
            store: Arc::clone(&store),
            schema: Arc::clone(&schema),
            hooks: hooks.push,
            declared: Declared::default(),
            clock: Arc::clone(&clock),
            observer: Arc::new(NoObserver),
        };
        let directory = Directory::start(parts, opening::settings(&config));
        let ttl = i64::try_from(config.segments.ttl_ms).unwrap_or(i64::MAX);
        Self {
            pulls: Account::new(config.limits.max_pulls_bytes),
            segments: SegmentCache::new(config.segments.cache_bytes, ttl),
            gate: ServeGate::new(
                Arc::clone(&store),
                directory.clone(),
                schema.version(),
                hooks.projections.clone(),
            ),
            coordinator: Coordinator::start(
                CoordinatorParts {
                    directory: directory.clone(),
                    store: Arc::clone(&store),
                    schema: Arc::clone(&schema),
                    declarations: crate::backfills::declarations(&hooks.projections),
                    projections: hooks.projections.clone(),
                    clock: Arc::clone(&clock),
                    watch: Arc::new(NoWatch),
                },
                CoordinatorSettings::default(),
            ),
            backfills: Arc::default(),
            projections: hooks.projections,
            config,
            schema,
            store,
            directory,
            authenticate: hooks.authenticate,
            scopes: hooks.scopes,
            phase: PhaseCell::default(),
            new_epoch: Arc::new(random_epoch),
            // Different per process start, so that ids of two runs do not collide in one log.
            requests: AtomicU64::new(u64::from(std::process::id()) << 40 | clock_bits(&*clock)),
            clock,
            grants: hooks.grants,
            test_hooks: hooks.test_hooks,
        }
    }
}

/// 128 unpredictable bits for a partition that has no epoch yet.
fn random_epoch() -> Result<LogEpoch, StoreError> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits).map_err(|error| StoreError::failed("drawing a log epoch", error))?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)).into())
}

fn clock_bits(clock: &dyn Clock) -> u64 {
    (clock.now_ms().unsigned_abs() & 0xff_ffff) << 16
}

/// Prepares the database and starts serving `config.listen`. Runs inside an actix system.
/// Backfills wait for [`Running::begin_backfills`].
///
/// # Errors
/// Everything that keeps the server from answering; nothing stays open then.
pub async fn start(
    config: Config,
    schema: Arc<Schema>,
    store: Arc<dyn Store>,
    hooks: Hooks,
) -> Result<Running, ServeError> {
    match Doors::reserve(&config) {
        Ok(doors) => start_behind(doors, config, schema, store, hooks).await,
        Err(error) => {
            store.close().await;
            Err(error)
        }
    }
}

/// [`start`] at addresses that were taken before the store was opened, so that opening it
/// created nothing for a server that cannot serve.
///
/// # Errors
/// As [`start`].
pub async fn start_behind(
    doors: Doors,
    config: Config,
    schema: Arc<Schema>,
    store: Arc<dyn Store>,
    hooks: Hooks,
) -> Result<Running, ServeError> {
    let service = web::Data::new(Service::new(config, schema, Arc::clone(&store), hooks));
    // Before the database is prepared: a long migration can be watched.
    let started = match RunningControl::start(&service, doors.control) {
        Err(error) => Err(error),
        Ok(control) => match begin(&service, doors.requests).await {
            Ok((address, server)) => Ok(Running {
                address,
                handle: server.handle(),
                server: tokio::task::spawn_local(server),
                service: service.clone(),
                control,
            }),
            Err(error) => {
                if let Some(control) = control {
                    control.stop().await;
                }
                Err(error)
            }
        },
    };
    if started.is_err() {
        service.end_backfills(Duration::ZERO).await;
        service.directory.shutdown(Duration::ZERO).await;
        store.close().await;
    }
    started
}

async fn begin(
    service: &web::Data<Service>,
    door: Door,
) -> Result<(SocketAddr, Server), ServeError> {
    service.ensure().await?;
    listen(service, door)
}

/// Brings the database to the schema and starts the partition actors, without listening
/// and without working on backfills.
///
/// # Errors
/// [`ServeError::Preparation`]
pub async fn prepare(
    config: Config,
    schema: Arc<Schema>,
    store: &Arc<dyn Store>,
    hooks: Hooks,
) -> Result<web::Data<Service>, ServeError> {
    let service = web::Data::new(Service::new(config, schema, Arc::clone(store), hooks));
    service.ensure().await?;
    Ok(service)
}

fn listen(service: &web::Data<Service>, door: Door) -> Result<(SocketAddr, Server), ServeError> {
    let config = &service.config;
    let listen = door.address;
    let workers = config.worker_threads();
    let limits = config.limits.clone();
    let keep_alive = Duration::from_millis(config.http.keep_alive_ms);
    let deadline_seconds = config.shutdown.deadline_ms.div_ceil(1000);
    let failed = |source| ServeError::Listen {
        address: listen,
        source,
    };
    let opened = door.open().map_err(failed)?;
    let data = service.clone();
    let server = HttpServer::new(move || App::new().app_data(data.clone()).configure(http::routes))
        .workers(workers)
        .max_connections(limits.max_connections.div_ceil(workers))
        .keep_alive(keep_alive)
        .client_request_timeout(Duration::from_millis(limits.request_timeout_ms))
        .tcp_nodelay(true)
        .shutdown_timeout(deadline_seconds)
        .disable_signals()
        .listen(opened)
        .map_err(failed)?;
    let address = server.addrs().first().copied().unwrap_or(listen);
    Ok((address, server.run()))
}

impl Running {
    /// Starts working on backfills. Apart, so that whoever started the server has said
    /// where it is before work begins that may go wrong.
    pub fn begin_backfills(&self) {
        self.service.begin_backfills();
    }

    /// The address it really listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the control endpoint, unless it is off.
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control.as_ref().map(|control| control.address)
    }

    /// What its requests share.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Waits until the server ends by itself, which only a failure makes it do.
    pub async fn failed(&mut self) -> ServeError {
        let ended = match &mut self.control {
            None => (&mut self.server).await,
            Some(control) => tokio::select! {
                ended = &mut self.server => ended,
                ended = &mut control.server => ended,
            },
        };
        let source = match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => std::io::Error::other("the server ended"),
            Err(error) => std::io::Error::other(error),
        };
        ServeError::System {
            context: "serving failed",
            source,
        }
    }

    /// Ends gracefully: readiness fails, accepting stops, requests in flight
    /// finish, partitions flush, the store closes.
    ///
    /// # Errors
    /// [`ServeError::Forced`] when the configured deadline passes first.
    pub async fn stop(self) -> Result<(), ServeError> {
        let settings = self.service.config.shutdown.clone();
        let deadline = Deadline::after(Duration::from_millis(settings.deadline_ms));
        self.service.phase.drain();
        if settings.drain_ms > 0 {
            tokio::time::sleep(Duration::from_millis(settings.drain_ms)).await;
        }
        // A part of the time is kept for what must happen after the last request.
        let for_requests = deadline.left().mul_f32(0.8);
        if let Some(control) = &self.control {
            control.stop().await;
        }
        let (requests_done, ()) = tokio::join!(
            tokio::time::timeout(for_requests, self.handle.stop(true)),
            self.service.end_backfills(for_requests),
        );
        let requests_done = requests_done.is_ok();
        if !requests_done {
            self.handle.stop(false).await;
        }
        let left = self.service.directory.shutdown(deadline.left()).await;
        let flushed = left == Shutdown::default()
            && tokio::time::timeout(deadline.left(), self.service.store.close())
                .await
                .is_ok();
        if !requests_done {
            return Err(ServeError::Forced("requests were still in flight"));
        }
        if !flushed {
            return Err(ServeError::Forced("storage was still busy"));
        }
        Ok(())
    }
}

mod doors;
mod exposure;
mod opening;
mod operations;

#[cfg(test)]
mod tests;

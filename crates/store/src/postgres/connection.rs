//! Pooled connections. Each carries its prepared statements, and whether a
//! transaction may be open on it: such a connection never goes back to the pool.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bb8::{ManageConnection, PooledConnection};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::core_schema;
use super::options::{ConnectError, OLDEST_SERVER, PostgresOptions};

pub(super) type Lease = PooledConnection<'static, Manager>;
/// How statements are planned that look rows up by their keys: once, perhaps while the
/// tables are small and nobody has counted their rows. The index of a part of the key then
/// looks as good as that of the whole key, and stays in the plan while the table grows.
/// Both settings rule it out: the lookups ask for the order of the whole key.
pub(super) const PLANNING: &str =
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_sort = off";
/// One parameter of a statement.
pub(super) type Param<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// Opens connections.
#[derive(Clone)]
pub(super) struct Manager {
    config: Config,
    tls: MakeRustlsConnect,
    /// Session settings, as one simple query.
    settings: String,
    /// The threads that drive the connections.
    driver: Handle,
}

impl Manager {
    /// Opens connections whose statements are planned once, for all arguments and
    /// for tables of any size: [`Self::planning_each_time`] does not.
    pub(super) fn new(
        config: Config,
        tls: MakeRustlsConnect,
        options: &PostgresOptions,
        driver: Handle,
    ) -> Self {
        let millis = |duration: Duration| duration.as_millis().min(i32::MAX as u128);
        let settings = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; \
             SET idle_in_transaction_session_timeout = {}; \
             SET default_transaction_isolation = 'read committed'; \
             SET jit = off; {PLANNING}; \
             SET client_min_messages = warning; \
             SELECT set_config('synchronous_commit', 'on', false)
               WHERE current_setting('synchronous_commit') = 'off'",
            millis(options.statement_timeout),
            millis(options.lock_timeout),
            millis(options.idle_in_transaction_timeout),
        );
        Self {
            config,
            tls,
            settings,
            driver,
        }
    }

    /// The same for statements whose plan depends on their arguments and on what
    /// the tables hold by now.
    pub(super) fn planning_each_time(&self) -> Self {
        Self {
            settings: format!(
                "{}; RESET plan_cache_mode; RESET enable_seqscan; RESET enable_sort",
                self.settings
            ),
            ..self.clone()
        }
    }

    /// Checks what a server must be before anything else is tried on it.
    pub(super) async fn probe(&self) -> Result<(), ConnectError> {
        let session = self.connect().await.map_err(ConnectError::from_driver)?;
        let found = session
            .client
            .query_one(PROBE, &[&core_schema::tables()])
            .await
            .map_err(ConnectError::from_driver)?;
        let version: i32 = found.get(0);
        if version < OLDEST_SERVER {
            return Err(ConnectError::TooOld {
                major: version / 10_000,
            });
        }
        if found.get::<_, bool>(1) {
            return Err(ConnectError::ReadOnly);
        }
        if found.get::<_, String>(2) != "UTF8" {
            return Err(ConnectError::NotUtf8);
        }
        if !found.get::<_, bool>(3) {
            return Err(ConnectError::MissingPermission(
                "a schema on the search_path in which it may use and create tables",
            ));
        }
        if !found.get::<_, bool>(4) {
            return Err(ConnectError::MissingPermission(
                "SELECT, INSERT, UPDATE and DELETE on every table named sync_* or tidegate_*",
            ));
        }
        Ok(())
    }
}

/// Tables that exist need no CREATE, but every kind of access.
const PROBE: &str = "SELECT current_setting('server_version_num')::int,
 pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
 current_setting('server_encoding'),
 CASE WHEN to_regclass('sync_partitions') IS NULL
   THEN coalesce(has_schema_privilege(current_schema(), 'CREATE, USAGE'), false)
     AND coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
   ELSE true END,
 NOT EXISTS (SELECT 1 FROM unnest($1::text[]) AS t(name)
   WHERE to_regclass(t.name) IS NOT NULL AND NOT (
     has_table_privilege(to_regclass(t.name), 'SELECT')
     AND has_table_privilege(to_regclass(t.name), 'INSERT')
     AND has_table_privilege(to_regclass(t.name), 'UPDATE')
     AND has_table_privilege(to_regclass(t.name), 'DELETE')))";

impl ManageConnection for Manager {
    type Connection = Session;
    type Error = Error;

    async fn connect(&self) -> Result<Session, Error> {
        let manager = self.clone();
        let connecting = self
            .driver
            .spawn(async move { manager.connect_here().await });
        match connecting.await {
            Ok(connected) => connected,
            Err(failure) if failure.is_panic() => std::panic::resume_unwind(failure.into_panic()),
            // The threads ended with the store: nobody waits for this connection.
            Err(_) => std::future::pending().await,
        }
    }

    async fn is_valid(&self, _session: &mut Session) -> Result<(), Error> {
        // Never asked: see `has_broken`. A round trip per request would find no
        // more than the request's own statement does.
        Ok(())
    }

    fn has_broken(&self, session: &mut Session) -> bool {
        session.in_doubt || *session.under_way.get_mut() > 0 || session.client.is_closed()
    }
}

impl Manager {
    /// Connects on the current thread's runtime, which then drives the connection.
    async fn connect_here(&self) -> Result<Session, Error> {
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(
                    error = %crate::error_chain(&error),
                    "a connection ended"
                );
            }
        });
        client.batch_execute(&self.settings).await?;
        Ok(Session {
            client,
            statements: Mutex::default(),
            in_doubt: false,
            under_way: AtomicUsize::new(0),
        })
    }
}

/// Failed background connects, for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFailures;

impl bb8::ErrorSink<Error> for LogFailures {
    fn sink(&self, error: Error) {
        tracing::warn!(error = %crate::error_chain(&error), "connecting to the database failed");
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<Error>> {
        Box::new(*self)
    }
}

/// One connection.
pub(super) struct Session {
    pub(super) client: Client,
    statements: Mutex<HashMap<Box<str>, Statement>>,
    /// A transaction may be open: the pool drops the connection.
    pub(super) in_doubt: bool,
    /// Statements that are transactions by themselves and whose end is not known.
    under_way: AtomicUsize,
}

impl Session {
    /// The statement of that text; prepared at its first use on this connection.
    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.statements.lock().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.lock().insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// A statement that is a transaction by itself departs: until its end is known, see
    /// [`Self::landed`], the pool takes the connection for broken.
    pub(super) fn departed(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// The end of a statement that departed is known.
    pub(super) fn landed(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// All statements of a pipeline, the missing ones prepared in one round trip.
    pub(super) async fn prepare_all<'a>(
        &self,
        all: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<Vec<Statement>, Error> {
        let mut missing: Vec<&str> = {
            let known = self.statements.lock();
            let unknown = all.clone().filter(|sql| !known.contains_key(*sql));
            unknown.collect()
        };
        missing.sort_unstable();
        missing.dedup();
        let prepared = try_join_all(missing.iter().map(|sql| self.client.prepare(sql))).await?;
        let mut known = self.statements.lock();
        for (sql, statement) in missing.into_iter().zip(prepared) {
            known.insert(sql.into(), statement);
        }
        Ok(all.filter_map(|sql| known.get(sql).cloned()).collect())
    }

    pub(super) async fn query(
        &mut self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(sql).await?;
        self.client.query(&statement, params).await
    }

    pub(super) async fn query_opt(
        &mut self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    pub(super) async fn execute(
        &mut self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        let statement = self.prepare(sql).await?;
        self.client.execute(&statement, params).await
    }

    /// Opens a transaction; until [`Session::commit`] or [`Session::rollback`]
    /// has succeeded the connection is in doubt.
    pub(super) async fn begin(&mut self, sql: &str) -> Result<(), Error> {
        self.in_doubt = true;
        self.client.batch_execute(sql).await
    }

    /// Commits a transaction in which every statement succeeded.
    pub(super) async fn commit(&mut self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await?;
        self.in_doubt = false;
        Ok(())
    }

    /// Ends whatever transaction is open. Where that fails the pool drops the connection.
    pub(super) async fn rollback(&mut self) {
        self.in_doubt = true;
        if self.client.batch_execute("ROLLBACK").await.is_ok() {
            self.in_doubt = false;
        }
    }
}

/// Rolls back in the background and returns the connection.
pub(super) fn release(mut lease: Lease) {
    if !lease.in_doubt {
        return;
    }
    // Without a runtime the drop closes the connection, which rolls back too.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { lease.rollback().await });
    }
}

/// Whether the error is the echo of an earlier one in the same transaction.
pub(super) fn is_echo(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| *code == SqlState::IN_FAILED_SQL_TRANSACTION)
}

/// Parameters as the driver takes them.
pub(super) fn references<'p>(params: &'p [Param<'_>]) -> Vec<&'p (dyn ToSql + Sync)> {
    params
        .iter()
        .map(|param| &**param as &(dyn ToSql + Sync))
        .collect()
}

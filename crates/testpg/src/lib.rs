//! A Postgres for tests.
//!
//! [`Server::shared`] gives the server that `TIDEGATE_TEST_POSTGRES_URL` names
//! (its user must be allowed to create databases), or starts a private throwaway
//! cluster from the installed binaries: a temporary directory, a free port, gone
//! at the end of the process however that ends. [`Database::create`] makes an
//! empty database in it.
#![forbid(unsafe_code)]

mod cluster;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_postgres::NoTls;

use cluster::Cluster;
pub use cluster::ClusterOptions;

/// The variable that names a server to use instead of a private one.
pub const URL_VARIABLE: &str = "TIDEGATE_TEST_POSTGRES_URL";

/// Why there is no Postgres to test with.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No server binaries were found.
    #[error(
        "no Postgres server is installed: run `apt-get install postgresql` (or `brew install postgresql`), \
         or set TIDEGATE_TEST_POSTGRES_URL to a server on which databases may be created"
    )]
    NotInstalled,
    /// The cluster could not be made or did not start.
    #[error("the private Postgres cluster did not start: {0}")]
    NotStarted(String),
    /// The server refused.
    #[error("the test server refused: {0}")]
    Refused(String),
}

/// A server on which databases may be created.
#[derive(Debug)]
pub struct Server {
    /// How to reach the database of its own URL.
    base: tokio_postgres::Config,
    url: UrlParts,
    /// Stops the cluster when dropped.
    cluster: Option<Cluster>,
}

#[derive(Debug, Clone)]
struct UrlParts {
    before_database: String,
    after_database: String,
}

impl UrlParts {
    /// Splits `postgres://user@host:port/database?options` around the database.
    fn of(url: &str) -> Self {
        let authority = url.find("://").map_or(0, |at| at + 3);
        let (url, options) = url.find('?').map_or((url, ""), |at| url.split_at(at));
        let end = url[authority..]
            .find('/')
            .map_or(url.len(), |at| authority + at);
        Self {
            before_database: url[..end].to_owned(),
            after_database: options.to_owned(),
        }
    }

    fn with(&self, database: &str) -> String {
        format!("{}/{database}{}", self.before_database, self.after_database)
    }
}

impl Server {
    /// The server that all tests of this process share.
    ///
    /// # Errors
    /// [`Error`] when there is none; every later call says the same.
    pub fn shared() -> Result<&'static Self, Error> {
        static SHARED: OnceLock<Result<Server, Error>> = OnceLock::new();
        SHARED
            .get_or_init(|| match std::env::var(URL_VARIABLE) {
                Ok(url) if !url.is_empty() => Self::at(&url),
                _ => Self::start(&ClusterOptions::from_env()),
            })
            .as_ref()
            .map_err(Clone::clone)
    }

    /// A server that already runs.
    ///
    /// # Errors
    /// [`Error::Refused`] when the URL is none.
    pub fn at(url: &str) -> Result<Self, Error> {
        let base = url
            .parse()
            .map_err(|error: tokio_postgres::Error| Error::Refused(error.to_string()))?;
        Ok(Self {
            base,
            url: UrlParts::of(url),
            cluster: None,
        })
    }

    /// Starts a private cluster that ends with this value, or with the process.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::NotStarted`].
    pub fn start(options: &ClusterOptions) -> Result<Self, Error> {
        let cluster = Cluster::start(options)?;
        let mut server = Self::at(&cluster.url())?;
        server.cluster = Some(cluster);
        Ok(server)
    }

    /// The URL of a database on this server.
    pub fn url(&self, database: &str) -> String {
        self.url.with(database)
    }

    /// Runs statements in the database of the server's own URL, from any thread.
    ///
    /// # Errors
    /// [`Error::Refused`] with the server's words.
    pub fn execute(&self, statements: &str) -> Result<(), Error> {
        execute(&self.base, statements)
    }
}

/// Runs on a thread of its own: the caller may be inside a runtime.
fn execute(config: &tokio_postgres::Config, statements: &str) -> Result<(), Error> {
    let run = move || -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await.map_err(words)?;
            let connection = tokio::spawn(connection);
            let done = client.batch_execute(statements).await.map_err(words);
            drop(client);
            let _ = connection.await;
            done
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| Err("the connection panicked".into()))
        .map_err(Error::Refused)
}

fn words(error: tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// An empty database, dropped with its connections when this value is.
#[derive(Debug)]
pub struct Database {
    server: &'static Server,
    name: String,
}

impl Database {
    /// Creates one on the shared server.
    ///
    /// # Errors
    /// [`Error`] when there is no server, or it refuses.
    pub fn create() -> Result<Self, Error> {
        Self::create_with("")
    }

    /// Creates one with further options of `CREATE DATABASE`, such as a locale.
    ///
    /// # Errors
    /// As [`Database::create`].
    pub fn create_with(options: &str) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let server = Server::shared()?;
        let name = format!(
            "tidegate_test_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        server.execute(&format!("CREATE DATABASE {name} {options}"))?;
        Ok(Self { server, name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its connection URL.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// The server it is on.
    pub const fn server(&self) -> &'static Server {
        self.server
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A private cluster goes as a whole; a given server must be left as it was.
        if self.server.cluster.is_none() {
            let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
            let _ = self.server.execute(&drop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_url_keeps_user_host_and_options() {
        let parts = UrlParts::of("postgres://u:p@host:5433/old?sslmode=disable");
        assert_eq!(
            parts.with("new"),
            "postgres://u:p@host:5433/new?sslmode=disable"
        );
        assert_eq!(
            UrlParts::of("postgres://u@host").with("new"),
            "postgres://u@host/new"
        );
    }
}

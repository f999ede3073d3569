//! What can be configured. `config/default.toml` documents every key; a test
//! holds it equal to the defaults here.

mod backfill;
mod control;
mod layers;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use backfill::Backfill;
pub use control::{Control, ControlListen, ControlToken};
pub use layers::{Layers, Overrides};

/// What the HTTP server takes.
const MAX_WORKERS: u64 = 512;
/// Each reader is a thread with a connection of its own.
const MAX_READER_THREADS: u64 = 128;
/// About 24 days: what SQLite takes.
const MAX_MS: u64 = i32::MAX as u64;

/// The whole configuration. Every key has a default, so that an unknown key is
/// recognized by its absence here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// `[database]`
    pub database: Database,
    /// `[schema]`
    pub schema: SchemaSource,
    /// `[backfill]`
    pub backfill: Backfill,
    /// `[sqlite]`
    pub sqlite: Sqlite,
    /// `[postgres]`
    pub postgres: Postgres,
    /// `[limits]`
    pub limits: Limits,
    /// `[partition]`
    pub partition: Partition,
    /// `[segments]`
    pub segments: Segments,
    /// `[http]`
    pub http: Http,
    /// `[auth]`
    pub auth: Auth,
    /// `[control]`
    pub control: Control,
    /// `[shutdown]`
    pub shutdown: Shutdown,
    /// `[log]`
    pub log: Log,
}

/// `[database]`
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// `sqlite:PATH`, `sqlite::memory:` or `postgres://…`.
    pub url: String,
}

/// The URL may hold a password: it is never shown.
impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// Where the database is, parsed from [`Database::url`].
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A SQLite file.
    SqliteFile(PathBuf),
    /// A SQLite database that ends with the process.
    SqliteMemory,
    /// A Postgres server.
    Postgres(String),
}

/// The URL of a Postgres server may hold a password: it is never shown.
impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SqliteFile(path) => f.debug_tuple("SqliteFile").field(path).finish(),
            Self::SqliteMemory => f.write_str("SqliteMemory"),
            Self::Postgres(_) => f.write_str("Postgres(..)"),
        }
    }
}

impl Database {
    /// Parses the URL.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for any other scheme or an empty path. The
    /// message never repeats the URL, which may hold a password.
    pub fn parse(&self) -> Result<DatabaseUrl, ConfigError> {
        let invalid = |message: &str| ConfigError::Invalid {
            key: "database.url",
            message: message.to_owned(),
        };
        if let Some(path) = self.url.strip_prefix("sqlite:") {
            return match path {
                ":memory:" => Ok(DatabaseUrl::SqliteMemory),
                "" => Err(invalid("sqlite: needs a path, or :memory:")),
                path if path.ends_with('/') => {
                    Err(invalid("sqlite: needs the path of a file, not of a folder"))
                }
                path => Ok(DatabaseUrl::SqliteFile(PathBuf::from(
                    path.strip_prefix("//").unwrap_or(path),
                ))),
            };
        }
        if self.url.starts_with("postgres://") || self.url.starts_with("postgresql://") {
            return Ok(DatabaseUrl::Postgres(self.url.clone()));
        }
        Err(invalid(
            "expected sqlite:PATH, sqlite::memory: or postgres://…",
        ))
    }
}

/// `[schema]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchemaSource {
    /// Schema IR file; empty = the built-in demo schema.
    pub file: PathBuf,
}

/// When SQLite waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchronous {
    /// Acknowledged = on disk.
    Full,
    /// Acknowledged = safe from a crash of the process.
    Normal,
}

/// `[sqlite]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sqlite {
    /// Durability.
    pub synchronous: Synchronous,
    /// Milliseconds.
    pub busy_timeout_ms: u64,
    /// Reader threads, ≥ 1.
    pub reader_threads: usize,
    /// Group commits per transaction; 0 = no limit.
    pub max_commits_per_transaction: usize,
}

/// `[postgres]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// Connections for short work, ≥ 1.
    pub pool_size: u32,
    /// Connections for bootstraps, ≥ 1.
    pub snapshot_pool_size: u32,
    /// Group commits under way at a time; 0 = by the processors of this machine.
    pub transactions: u32,
    /// Milliseconds.
    pub statement_timeout_ms: u64,
    /// Milliseconds.
    pub lock_timeout_ms: u64,
    /// Milliseconds.
    pub idle_in_transaction_timeout_ms: u64,
    /// Milliseconds.
    pub connect_timeout_ms: u64,
    /// Milliseconds.
    pub migration_lock_timeout_ms: u64,
}

impl Postgres {
    /// Zero would mean "for ever" to the server, or make waiting pointless.
    fn first_zero(&self) -> Option<&'static str> {
        let pools = [
            ("postgres.pool_size", u64::from(self.pool_size)),
            (
                "postgres.snapshot_pool_size",
                u64::from(self.snapshot_pool_size),
            ),
        ];
        pools
            .into_iter()
            .chain(self.times())
            .find_map(|(key, value)| (value == 0).then_some(key))
    }

    /// Every time, milliseconds.
    fn times(&self) -> [(&'static str, u64); 5] {
        [
            ("postgres.statement_timeout_ms", self.statement_timeout_ms),
            ("postgres.lock_timeout_ms", self.lock_timeout_ms),
            (
                "postgres.idle_in_transaction_timeout_ms",
                self.idle_in_transaction_timeout_ms,
            ),
            ("postgres.connect_timeout_ms", self.connect_timeout_ms),
            (
                "postgres.migration_lock_timeout_ms",
                self.migration_lock_timeout_ms,
            ),
        ]
    }
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a body as sent.
    pub max_body_bytes: usize,
    /// Bytes of a body after decompression.
    pub max_decoded_bytes: usize,
    /// Push operations per request (`sync.too_many_operations`).
    pub max_operations: usize,
    /// Subscriptions per request.
    pub max_subscriptions: usize,
    /// Requested scope values per request, over all subscriptions.
    pub max_scope_values: usize,
    /// Rows a commit may cascade to (§6.11).
    pub max_cascade_rows: u32,
    /// Bytes of rows that a pull gathers before it cuts short.
    pub max_pull_bytes: usize,
    /// Bytes that the unsent answers of all pulls gather before each is cut short.
    pub max_pulls_bytes: usize,
    /// Milliseconds.
    pub request_timeout_ms: u64,
    /// Connections of the whole process.
    pub max_connections: usize,
}

/// `[partition]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Operations per group commit.
    pub max_batch_operations: usize,
    /// Operations waiting at most.
    pub queue_operations: usize,
    /// Payload bytes waiting at most.
    pub queue_bytes: usize,
    /// Milliseconds.
    pub idle_stop_ms: u64,
    /// Bytes of the row cache.
    pub cache_bytes: usize,
    /// Bytes of the commit tail.
    pub tail_bytes: usize,
    /// Bytes of all row caches and commit tails together.
    pub process_memory_bytes: usize,
    /// Batches without a foreign commit before optimism returns.
    pub quiet_batches: u32,
}

/// `[segments]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segments {
    /// Bytes of the segment cache.
    pub cache_bytes: usize,
    /// Milliseconds a segment can be downloaded.
    pub ttl_ms: u64,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Threads; 0 = one per processor.
    pub workers: usize,
    /// Milliseconds.
    pub keep_alive_ms: u64,
    /// Bytes.
    pub compress_min_bytes: usize,
}

/// `[auth]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// Development authentication beyond loopback.
    pub insecure_dev: bool,
    /// Who says what an actor may see and write.
    pub scopes: ScopeSource,
}

/// Who says what an actor may see and write (§3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScopeSource {
    /// Nobody: every actor may do everything.
    #[serde(rename = "*")]
    Everything,
    /// The grants in the database; an actor without one holds nothing.
    #[serde(rename = "grants")]
    Grants,
}

/// `[shutdown]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// Milliseconds from the signal to the end.
    pub deadline_ms: u64,
    /// Milliseconds that readiness fails before accepting stops.
    pub drain_ms: u64,
}

/// Shape of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Level or filter directives.
    pub level: String,
    /// Shape.
    pub format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            database: Database {
                url: "sqlite:./data/tidegate.db".to_owned(),
            },
            schema: SchemaSource {
                file: PathBuf::new(),
            },
            backfill: Backfill::default(),
            sqlite: Sqlite {
                synchronous: Synchronous::Full,
                busy_timeout_ms: 5_000,
                reader_threads: 2,
                max_commits_per_transaction: 0,
            },
            postgres: Postgres {
                pool_size: 16,
                snapshot_pool_size: 16,
                transactions: 0,
                statement_timeout_ms: 30_000,
                lock_timeout_ms: 15_000,
                idle_in_transaction_timeout_ms: 60_000,
                connect_timeout_ms: 5_000,
                migration_lock_timeout_ms: 600_000,
            },
            limits: Limits {
                max_body_bytes: 16 * MIB,
                max_decoded_bytes: 64 * MIB,
                max_operations: 500,
                max_subscriptions: 1_000,
                max_scope_values: 20_000,
                max_cascade_rows: 1_000,
                max_pull_bytes: 32 * MIB,
                max_pulls_bytes: 256 * MIB,
                request_timeout_ms: 30_000,
                max_connections: 20_000,
            },
            partition: Partition {
                max_batch_operations: 5_000,
                queue_operations: 20_000,
                queue_bytes: 64 * MIB,
                idle_stop_ms: 60_000,
                cache_bytes: 2 * MIB,
                tail_bytes: 4 * MIB,
                process_memory_bytes: 24 * MIB,
                quiet_batches: 16,
            },
            segments: Segments {
                cache_bytes: 128 * MIB,
                ttl_ms: 3_600_000,
            },
            http: Http {
                workers: 0,
                keep_alive_ms: 75_000,
                compress_min_bytes: 1_024,
            },
            auth: Auth {
                insecure_dev: false,
                scopes: ScopeSource::Everything,
            },
            control: Control::default(),
            shutdown: Shutdown {
                deadline_ms: 10_000,
                drain_ms: 0,
            },
            log: Log {
                level: "info".to_owned(),
                format: LogFormat::Auto,
            },
        }
    }
}

impl Config {
    /// Checks what types cannot say.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] names the key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.database.parse()?;
        let at_least_one = [
            ("sqlite.reader_threads", self.sqlite.reader_threads),
            ("limits.max_body_bytes", self.limits.max_body_bytes),
            ("limits.max_decoded_bytes", self.limits.max_decoded_bytes),
            ("limits.max_operations", self.limits.max_operations),
            ("limits.max_subscriptions", self.limits.max_subscriptions),
            ("limits.max_scope_values", self.limits.max_scope_values),
            ("limits.max_connections", self.limits.max_connections),
            (
                "partition.max_batch_operations",
                self.partition.max_batch_operations,
            ),
            ("partition.queue_bytes", self.partition.queue_bytes),
        ];
        let zero = at_least_one
            .into_iter()
            .find_map(|(key, value)| (value == 0).then_some(key))
            .or_else(|| self.postgres.first_zero());
        if let Some(key) = zero {
            return Err(ConfigError::Invalid {
                key,
                message: "must be at least 1".to_owned(),
            });
        }
        self.check_upper_bounds()?;
        self.backfill.validate()?;
        if self.limits.request_timeout_ms == 0 {
            return Err(ConfigError::Invalid {
                key: "limits.request_timeout_ms",
                message: "must be at least 1".to_owned(),
            });
        }
        if self.partition.queue_operations < self.limits.max_operations {
            return Err(ConfigError::Invalid {
                key: "partition.queue_operations",
                message: "must be at least limits.max_operations, or a full request never fits"
                    .to_owned(),
            });
        }
        if self.shutdown.drain_ms >= self.shutdown.deadline_ms {
            return Err(ConfigError::Invalid {
                key: "shutdown.drain_ms",
                message: "must be less than shutdown.deadline_ms".to_owned(),
            });
        }
        crate::telemetry::check_filter(&self.log.level).map_err(|message| ConfigError::Invalid {
            key: "log.level",
            message,
        })
    }

    /// Values beyond these end in a panic or an overflow further down.
    fn check_upper_bounds(&self) -> Result<(), ConfigError> {
        let bounded = [
            ("http.workers", self.http.workers as u64, MAX_WORKERS),
            (
                "sqlite.reader_threads",
                self.sqlite.reader_threads as u64,
                MAX_READER_THREADS,
            ),
            (
                "sqlite.busy_timeout_ms",
                self.sqlite.busy_timeout_ms,
                MAX_MS,
            ),
            // Each takes a connection.
            (
                "postgres.transactions",
                u64::from(self.postgres.transactions),
                u64::from(self.postgres.pool_size),
            ),
            (
                "limits.request_timeout_ms",
                self.limits.request_timeout_ms,
                MAX_MS,
            ),
            (
                "partition.idle_stop_ms",
                self.partition.idle_stop_ms,
                MAX_MS,
            ),
            ("segments.ttl_ms", self.segments.ttl_ms, MAX_MS),
            ("http.keep_alive_ms", self.http.keep_alive_ms, MAX_MS),
            ("shutdown.deadline_ms", self.shutdown.deadline_ms, MAX_MS),
        ];
        let times = self
            .postgres
            .times()
            .map(|(key, value)| (key, value, MAX_MS));
        match bounded
            .into_iter()
            .chain(times)
            .find(|(_, value, max)| value > max)
        {
            None => Ok(()),
            Some((key, _, max)) => Err(ConfigError::Invalid {
                key,
                message: format!("must be at most {max}"),
            }),
        }
    }

    /// Time a request may take until its answer begins.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.limits.request_timeout_ms)
    }

    /// Threads that serve connections.
    pub fn worker_threads(&self) -> usize {
        match self.http.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            n => n,
        }
    }
}

/// Why a configuration is refused (exit code 2).
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {message}")]
    Syntax {
        /// Its path.
        path: PathBuf,
        /// Parser's words, one line.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown configuration key {key} (in {origin})")]
    UnknownKey {
        /// Dotted key.
        key: String,
        /// Where it was set.
        origin: String,
    },
    /// A value of the wrong type, or not among the allowed ones.
    #[error("wrong value for {key} (in {origin}): {message}")]
    WrongValue {
        /// Dotted key.
        key: String,
        /// Where it was set.
        origin: String,
        /// What is expected.
        message: String,
    },
    /// A value that makes no sense.
    #[error("{key}: {message}")]
    Invalid {
        /// Dotted key.
        key: &'static str,
        /// What is expected.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_urls() {
        let parse = |url: &str| {
            Database {
                url: url.to_owned(),
            }
            .parse()
        };
        assert_eq!(parse("sqlite::memory:").unwrap(), DatabaseUrl::SqliteMemory);
        assert_eq!(
            parse("sqlite:./a/b.db").unwrap(),
            DatabaseUrl::SqliteFile("./a/b.db".into())
        );
        assert_eq!(
            parse("sqlite:///var/a.db").unwrap(),
            DatabaseUrl::SqliteFile("/var/a.db".into())
        );
        assert!(matches!(
            parse("postgres://u:secret@h/d").unwrap(),
            DatabaseUrl::Postgres(_)
        ));
        for bad in [
            "",
            "sqlite:",
            "sqlite:./data/",
            "sqlite:///",
            "mysql://u:secret@h/d",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.starts_with("database.url: "), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_configuration_never_shows_the_database_url() {
        let mut config = Config::default();
        config.database.url = "postgres://u:secret@h/d".to_owned();
        assert!(!format!("{config:?}").contains("secret"));
        assert!(!format!("{:?}", config.database.parse().unwrap()).contains("secret"));
    }

    #[test]
    fn values_that_would_break_something_further_down_are_refused() {
        type Spoil = fn(&mut Config);
        let cases: [(&str, Spoil); 9] = [
            ("postgres.statement_timeout_ms", |config| {
                config.postgres.statement_timeout_ms = 1 << 31;
            }),
            ("postgres.migration_lock_timeout_ms", |config| {
                config.postgres.migration_lock_timeout_ms = u64::MAX;
            }),
            ("http.workers", |config| config.http.workers = 513),
            ("postgres.transactions", |config| {
                config.postgres.transactions = config.postgres.pool_size + 1;
            }),
            ("sqlite.reader_threads", |config| {
                config.sqlite.reader_threads = 100_000;
            }),
            ("sqlite.busy_timeout_ms", |config| {
                config.sqlite.busy_timeout_ms = 1 << 31;
            }),
            ("segments.ttl_ms", |config| {
                config.segments.ttl_ms = u64::MAX
            }),
            ("limits.max_subscriptions", |config| {
                config.limits.max_subscriptions = 0;
            }),
            ("log.level", |config| config.log.level = "loud".to_owned()),
        ];
        for (key, spoil) in cases {
            let mut config = Config::default();
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{key}: ")), "{error}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        let mut config = Config::default();
        config.validate().unwrap();
        config.partition.queue_operations = 10;
        let error = config.validate().unwrap_err().to_string();
        assert!(error.starts_with("partition.queue_operations: "), "{error}");
        let mut config = Config::default();
        config.postgres.lock_timeout_ms = 0;
        let error = config.validate().unwrap_err().to_string();
        assert!(error.starts_with("postgres.lock_timeout_ms: "), "{error}");
    }
}

//! From the configuration to the schema, the store and the settings of the actors.

use std::fs::DirBuilder;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_actors::{QueueLimit, Settings};
use tidegate_engine::schema::Schema;
use tidegate_store::Store;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::sqlite::{self, SqliteOptions, SqliteStore};

use super::{DEMO_SCHEMA, ServeError};
use crate::config::{Config, DatabaseUrl, Synchronous};

/// Reads and compiles the configured schema.
///
/// # Errors
/// [`ServeError::SchemaUnreadable`] or [`ServeError::InvalidSchema`] with every broken rule.
pub fn load_schema(config: &Config) -> Result<Arc<Schema>, ServeError> {
    let path = &config.schema.file;
    let text = if path.as_os_str().is_empty() {
        DEMO_SCHEMA.to_owned()
    } else {
        std::fs::read_to_string(path).map_err(|source| ServeError::SchemaUnreadable {
            path: path.display().to_string(),
            source,
        })?
    };
    Schema::load(&text).map(Arc::new).map_err(|errors| {
        ServeError::InvalidSchema(errors.iter().map(ToString::to_string).collect())
    })
}

/// Opens the configured database. Where the folder of a SQLite file is missing it is made
/// for the owner alone (0700), as the file is.
///
/// # Errors
/// [`ServeError::Storage`], [`ServeError::DatabaseFolder`] or [`ServeError::Postgres`].
pub async fn open_store(config: &Config) -> Result<Arc<dyn Store>, ServeError> {
    let path = match config.database.parse()? {
        DatabaseUrl::Postgres(url) => {
            return Ok(PostgresStore::connect(postgres_options(config, url)).await?);
        }
        DatabaseUrl::SqliteMemory => None,
        DatabaseUrl::SqliteFile(path) => {
            make_folder(&path)?;
            Some(path)
        }
    };
    let store = SqliteStore::open(sqlite_options(config, path))?;
    Ok(store)
}

/// The folder of a database file, and those above it. One that exists stays as it is.
fn make_folder(database: &Path) -> Result<(), ServeError> {
    let folder = database.parent();
    let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(folder)
        .map_err(|source| ServeError::DatabaseFolder {
            path: database.display().to_string(),
            source,
        })
}

/// Opens the configured database to read it alone: none is created. Where there is
/// no SQLite file it is an empty database that ends with the process.
///
/// # Errors
/// As [`open_store`].
pub async fn open_store_to_read(config: &Config) -> Result<Arc<dyn Store>, ServeError> {
    match open_existing_store(config).await {
        Err(ServeError::NoDatabase { .. }) => Ok(SqliteStore::open(sqlite_options(config, None))?),
        opened => opened,
    }
}

/// [`open_store`] of a database that exists.
///
/// # Errors
/// [`ServeError::NoDatabase`], or as [`open_store`].
pub async fn open_existing_store(config: &Config) -> Result<Arc<dyn Store>, ServeError> {
    match config.database.parse()? {
        DatabaseUrl::SqliteFile(path) if !path.exists() => Err(ServeError::NoDatabase {
            path: path.display().to_string(),
        }),
        _ => open_store(config).await,
    }
}

fn sqlite_options(config: &Config, path: Option<PathBuf>) -> SqliteOptions {
    let options = match path {
        Some(path) => SqliteOptions::file(path),
        None => SqliteOptions::memory(),
    };
    let wanted = &config.sqlite;
    SqliteOptions {
        synchronous: match wanted.synchronous {
            Synchronous::Full => sqlite::Synchronous::Full,
            Synchronous::Normal => sqlite::Synchronous::Normal,
        },
        busy_timeout: Duration::from_millis(wanted.busy_timeout_ms),
        reader_threads: wanted.reader_threads,
        max_commits_per_tx: Some(wanted.max_commits_per_transaction).filter(|&limit| limit > 0),
        ..options
    }
}

pub(super) fn postgres_options(config: &Config, url: String) -> PostgresOptions {
    let wanted = &config.postgres;
    PostgresOptions {
        pool_size: wanted.pool_size,
        snapshot_pool_size: wanted.snapshot_pool_size,
        transactions: NonZero::new(wanted.transactions as usize),
        statement_timeout: Duration::from_millis(wanted.statement_timeout_ms),
        lock_timeout: Duration::from_millis(wanted.lock_timeout_ms),
        idle_in_transaction_timeout: Duration::from_millis(wanted.idle_in_transaction_timeout_ms),
        connect_timeout: Duration::from_millis(wanted.connect_timeout_ms),
        migration_lock_timeout: Duration::from_millis(wanted.migration_lock_timeout_ms),
        ..PostgresOptions::new(url)
    }
}

pub(super) fn settings(config: &Config) -> Settings {
    let wanted = &config.partition;
    let defaults = Settings::default();
    // A partition's batch is one job for the writer, which never splits it; no commit
    // is without an operation, so this bounds its commits too.
    let commits = match config.sqlite.max_commits_per_transaction {
        0 => usize::MAX,
        limit => limit,
    };
    let lock_wait = Duration::from_millis(config.postgres.lock_timeout_ms);
    Settings {
        batch: QueueLimit {
            operations: wanted.max_batch_operations.min(commits),
            ..defaults.batch
        },
        partition_queue: QueueLimit {
            operations: wanted.queue_operations,
            bytes: wanted.queue_bytes,
        },
        cascade_cap: config.limits.max_cascade_rows,
        row_cache_bytes: wanted.cache_bytes,
        tail_bytes: wanted.tail_bytes,
        memory_bytes: wanted.process_memory_bytes,
        quiet_batches: wanted.quiet_batches,
        batch_deadline: defaults
            .batch_deadline
            .max(lock_wait + Duration::from_secs(5)),
        idle_after: Duration::from_millis(wanted.idle_stop_ms),
        ..defaults
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::Database;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[actix_web::test]
    async fn a_folder_that_is_made_is_the_owners_and_one_that_exists_stays() {
        let root = tempfile::tempdir().unwrap();
        let existing = root.path().join("existing");
        std::fs::create_dir(&existing).unwrap();
        std::fs::set_permissions(&existing, Permissions::from_mode(0o755)).unwrap();
        for file in ["deep/er/a.db", "deep/er/b.db"] {
            let config = Config {
                database: Database {
                    url: format!("sqlite:{}", existing.join(file).display()),
                },
                ..Config::default()
            };
            open_store(&config).await.unwrap().close().await;
            assert_eq!(mode(&existing.join(file)), 0o600);
        }
        assert_eq!(mode(&existing), 0o755);
        assert_eq!(mode(&existing.join("deep")), 0o700);
        assert_eq!(mode(&existing.join("deep/er")), 0o700);
        make_folder(Path::new("here.db")).unwrap();
    }
}

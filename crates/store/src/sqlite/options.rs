//! How a SQLite database is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags};

use super::failure::during;
use crate::error::StoreError;

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A file, created when absent.
    File(PathBuf),
    /// A private database that vanishes with the store. It lives in a private
    /// directory of the system's temporary storage, never synced to disk: only
    /// so do readers see snapshots beside the writer exactly as with a file.
    Memory,
}

/// How often the log of the database is forced to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// With every COMMIT: acknowledged = durable, power loss included.
    #[default]
    Full,
    /// At checkpoints: a power loss may take the latest acknowledged commits, a crash
    /// of the process does not.
    Normal,
}

/// Options of [`super::SqliteStore::open`].
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Where the database is.
    pub location: Location,
    /// Durability of a COMMIT.
    pub synchronous: Synchronous,
    /// Threads that serve reads.
    pub reader_threads: usize,
    /// Snapshots open at once; more wait.
    pub max_snapshots: usize,
    /// How long to wait for another program's lock.
    pub busy_timeout: Duration,
    /// Writes that may wait for the writer thread; more wait outside.
    pub queue_depth: usize,
    /// Commits that may share a transaction; `None` = all that are queued. A batch is
    /// never split: to measure one commit per transaction, batches must hold one commit.
    pub max_commits_per_tx: Option<usize>,
}

impl SqliteOptions {
    /// Options for a database file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// Options for a database in memory.
    pub fn memory() -> Self {
        Self::at(Location::Memory)
    }

    fn at(location: Location) -> Self {
        Self {
            location,
            synchronous: Synchronous::Full,
            reader_threads: 2,
            max_snapshots: 32,
            busy_timeout: Duration::from_secs(5),
            queue_depth: 1024,
            max_commits_per_tx: None,
        }
    }
}

/// The directory of a [`Location::Memory`] database; removed with the last owner.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn create() -> Result<Arc<Self>, StoreError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let name = format!(
            "tidegate-{}-{nanos}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(&path)
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        Ok(Arc::new(Self(path)))
    }

    pub(super) fn database(&self) -> PathBuf {
        self.0.join("data.sqlite")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Prepared statements kept per connection: several per app table.
pub(super) const STATEMENT_CACHE: usize = 512;

/// Makes an empty file that its owner alone may read and write, where there is none.
/// SQLite gives its log and its index of it the mode of the database.
#[cfg(unix)]
fn create_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new();
    file.write(true).mode(0o600);
    if path.is_symlink() && !path.exists() {
        // SQLite would create what the link names.
        file.create(true);
    } else {
        // One that exists is not even opened: closing it would let go of the locks that
        // this process holds on it.
        file.create_new(true);
    }
    match file.open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Opens the writer's connection and puts the database into WAL mode.
pub(super) fn open_writer(path: &Path, options: &SqliteOptions) -> Result<Connection, StoreError> {
    let context = "opening the database";
    #[cfg(unix)]
    create_private(path).map_err(|error| StoreError::Unavailable(Box::new(error)))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(during(context))?;
    connection
        .busy_timeout(options.busy_timeout)
        .map_err(during(context))?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    let mode: String = connection
        .query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))
        .map_err(during(context))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(StoreError::failed(
            context,
            "the file system does not support write-ahead logging",
        ));
    }
    let synchronous = match (&options.location, options.synchronous) {
        (Location::Memory, _) => "OFF",
        (Location::File(_), Synchronous::Full) => "FULL",
        (Location::File(_), Synchronous::Normal) => "NORMAL",
    };
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous={synchronous}; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-65536;
             PRAGMA wal_autocheckpoint=8000; PRAGMA journal_size_limit=67108864;"
        ))
        .map_err(during(context))?;
    Ok(connection)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn modes(database: &Path) -> Vec<u32> {
        ["", "-wal", "-shm"]
            .map(|end| format!("{}{end}", database.display()))
            .into_iter()
            .map(|path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777)
            .collect()
    }

    /// Opens a database and writes, so that there is a log.
    fn write(path: &Path) -> Connection {
        let connection = open_writer(path, &SqliteOptions::file(path)).unwrap();
        connection
            .execute_batch("CREATE TABLE IF NOT EXISTS t (n); INSERT INTO t VALUES (1)")
            .unwrap();
        connection
    }

    #[test]
    fn a_new_database_is_its_owners_alone_and_so_is_its_log() {
        let folder = Scratch::create().unwrap();
        let path = folder.0.join("a.db");
        let open = write(&path);
        assert_eq!(modes(&path), [0o600; 3]);
        drop(open);
        write(&path);
    }

    #[test]
    fn a_database_that_exists_keeps_its_mode() {
        let folder = Scratch::create().unwrap();
        let path = folder.0.join("a.db");
        drop(write(&path));
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let _open = write(&path);
        assert_eq!(modes(&path), [0o640; 3]);
    }

    #[test]
    fn what_a_link_names_is_created_privately_too() {
        let folder = Scratch::create().unwrap();
        let (link, path) = (folder.0.join("link.db"), folder.0.join("a.db"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let _open = write(&link);
        assert_eq!(modes(&path), [0o600; 3]);
    }
}

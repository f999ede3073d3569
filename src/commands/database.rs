//! The database that a command works on.

use std::fs::DirBuilder;
use std::path::Path;
use std::sync::Arc;

use tidegate_store::Store;

use super::failure::Failure;
use crate::config::{Config, DatabaseUrl};
use crate::server::{self, ServeError};

/// Opens the configured database. Where the folder of a SQLite file is missing it is made
/// for the owner alone, as the file is.
///
/// # Errors
/// As [`server::open_store`], outside of every phase: nothing is migrated yet.
pub(super) async fn open(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    if let DatabaseUrl::SqliteFile(path) = config.database.parse()? {
        make_folder(&path).map_err(Failure::outside)?;
    }
    server::open_store(config).await.map_err(Failure::outside)
}

/// Opens the configured database to read it, as [`server::open_store_to_read`] does.
///
/// # Errors
/// As [`open`].
pub(super) async fn open_to_read(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    server::open_store_to_read(config)
        .await
        .map_err(Failure::outside)
}

/// Opens the configured database, which must exist.
///
/// # Errors
/// [`ServeError::NoDatabase`], or as [`open`].
pub(super) async fn open_existing(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    server::open_existing_store(config)
        .await
        .map_err(Failure::outside)
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

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_folder_that_is_made_is_the_owners_and_one_that_exists_stays() {
        let root = tempfile::tempdir().unwrap();
        let existing = root.path().join("existing");
        std::fs::create_dir(&existing).unwrap();
        std::fs::set_permissions(&existing, Permissions::from_mode(0o755)).unwrap();
        make_folder(&existing.join("deep/er/a.db")).unwrap();
        make_folder(&existing.join("deep/er/b.db")).unwrap();
        assert_eq!(mode(&existing), 0o755);
        assert_eq!(mode(&existing.join("deep")), 0o700);
        assert_eq!(mode(&existing.join("deep/er")), 0o700);
        make_folder(Path::new("here.db")).unwrap();
    }
}

//! Why a server does not start or ends badly, and the exit code that says so.

use std::net::SocketAddr;

use tidegate_store::StoreError;
use tidegate_store::postgres::ConnectError;

use crate::cli::Exit;
use crate::config::ConfigError;

/// Why a server did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Development authentication would be open to a network.
    #[error(
        "development authentication only serves loopback addresses; listening on {0} needs --insecure-dev-auth"
    )]
    InsecureAuth(SocketAddr),
    /// The control endpoint would be open to a network with a token that nobody chose.
    #[error(
        "without control.token the control endpoint only serves loopback addresses; listening on {0} needs control.token (TIDEGATE_CONTROL_TOKEN)"
    )]
    ControlWithoutToken(SocketAddr),
    /// Test hooks would be open to a network.
    #[error("--unsafe-test-clock only serves loopback addresses, not {0}")]
    TestHooksExposed(SocketAddr),
    /// Test hooks without the endpoint that turns them.
    #[error("--unsafe-test-clock needs the control endpoint, which is off")]
    TestHooksUnreachable,
    /// The schema file cannot be read.
    #[error("cannot read the schema file {path}: {source}")]
    SchemaUnreadable {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The schema breaks rules.
    #[error("the schema is not valid: {}", .0.join("; "))]
    InvalidSchema(Vec<String>),
    /// The folder of the backfills, or a file in it, cannot be read.
    #[error("cannot read the backfills {path}: {source}")]
    BackfillsUnreadable {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Backfills break rules.
    #[error("the backfills are not valid: {}", .0.join("; "))]
    InvalidBackfills(Vec<String>),
    /// The folder of the database cannot be made.
    #[error("cannot create the folder of the database {path}: {source}")]
    DatabaseFolder {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is no database to read.
    #[error("there is no database {path}")]
    NoDatabase {
        /// Its path.
        path: String,
    },
    /// The storage refuses, before or after it is prepared.
    #[error("{}", chain(.0))]
    Storage(#[from] StoreError),
    /// The database cannot be brought to the schema, or what that takes cannot be found out.
    #[error("{}", chain(.0))]
    Preparation(StoreError),
    /// Postgres cannot be used. No message of these holds the URL.
    #[error("{}", chain(.0))]
    Postgres(#[from] ConnectError),
    /// No listening.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No listening for operators.
    #[error(
        "cannot listen on {address} for the control endpoint: {source} (control.listen or --control-listen: another address, port 0, or off)"
    )]
    ControlListen {
        /// Address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The system refuses something basic.
    #[error("{context}: {source}")]
    System {
        /// What was tried.
        context: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The deadline or a second signal cut the shutdown short.
    #[error("shutdown was cut short: {0}")]
    Forced(&'static str),
}

pub(crate) use tidegate_store::error_chain as chain;

impl ServeError {
    /// The exit code of the process (`tidegate --help` lists them).
    pub fn exit(&self) -> Exit {
        match self {
            Self::Config(_)
            | Self::InsecureAuth(_)
            | Self::ControlWithoutToken(_)
            | Self::TestHooksExposed(_)
            | Self::TestHooksUnreachable
            | Self::SchemaUnreadable { .. }
            | Self::BackfillsUnreadable { .. }
            | Self::InvalidBackfills(_) => Exit::Usage,
            Self::InvalidSchema(_) => Exit::InvalidSchema,
            Self::DatabaseFolder { .. } | Self::NoDatabase { .. } => Exit::Database,
            Self::Storage(error) | Self::Preparation(error) => match error {
                StoreError::NewerSchema { .. }
                | StoreError::StoredLayoutMismatch { .. }
                | StoreError::PhysicalLayoutMismatch { .. }
                | StoreError::RefusedMigration { .. }
                | StoreError::CheckpointIncomplete(_)
                | StoreError::CheckpointVersionTaken { .. } => Exit::StorageMismatch,
                StoreError::NotPermitted(_) => Exit::DatabasePermission,
                _ => Exit::Database,
            },
            Self::Postgres(error) => match error {
                ConnectError::BadUrl(_) => Exit::DatabaseUrl,
                ConnectError::Unreachable(_) => Exit::DatabaseUnreachable,
                ConnectError::Tls(_) => Exit::DatabaseTls,
                ConnectError::WrongPassword => Exit::DatabasePassword,
                ConnectError::UnknownDatabase => Exit::DatabaseUnknown,
                ConnectError::TooOld { .. } => Exit::DatabaseTooOld,
                ConnectError::ReadOnly => Exit::DatabaseReadOnly,
                ConnectError::MissingPermission(_) => Exit::DatabasePermission,
                ConnectError::NotUtf8 => Exit::DatabaseEncoding,
                ConnectError::Refused(_) => Exit::Database,
            },
            Self::Listen { .. } | Self::ControlListen { .. } => Exit::Listen,
            Self::System { .. } => Exit::Failure,
            Self::Forced(_) => Exit::Forced,
        }
    }

    /// The phase of the preparation that failed: `schema_compile`, `storage_migration` or
    /// `backfill_checkpoint`. `None` for a failure outside of these, such as of a database
    /// that cannot be opened.
    pub fn phase(&self) -> Option<&'static str> {
        match self {
            Self::SchemaUnreadable { .. } | Self::InvalidSchema(_) => Some("schema_compile"),
            Self::Preparation(StoreError::CheckpointIncomplete(_)) => Some("backfill_checkpoint"),
            Self::Preparation(_) => Some("storage_migration"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_named_where_the_preparation_failed_and_nowhere_else() {
        let opening = ServeError::from(StoreError::failed("opening", "no"));
        assert_eq!(opening.phase(), None);
        let folder = ServeError::DatabaseFolder {
            path: "a.db".to_owned(),
            source: std::io::Error::other("no"),
        };
        assert_eq!(folder.phase(), None);
        let preparing = ServeError::Preparation(StoreError::failed("migrating", "no"));
        assert_eq!(preparing.phase(), Some("storage_migration"));
        let schema = ServeError::InvalidSchema(Vec::new());
        assert_eq!(schema.phase(), Some("schema_compile"));
    }
}

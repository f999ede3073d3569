//! How the database is reached, and why it could not be.

use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;

use super::tls::Verification;

/// Oldest server that is served, as `server_version_num` counts.
pub(super) const OLDEST_SERVER: i32 = 130_000;

/// Options of a [`super::PostgresStore`].
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database?sslmode=…&sslrootcert=…`.
    /// `sslmode` is one of disable, prefer, require (encrypted, the server not
    /// verified unless `sslrootcert` is given), verify-ca and verify-full (both
    /// verify the certificate and the name, which is stricter than other clients'
    /// verify-ca; against `sslrootcert`, or the system's roots).
    pub url: String,
    /// Connections for short work, at most.
    pub pool_size: u32,
    /// Connections for snapshots, at most. They are held while an answer
    /// streams, so they are apart: slow readers must not stop writers.
    pub snapshot_pool_size: u32,
    /// Group commits of different partitions under way at a time, at most; `None` = one for
    /// every two processors of this machine, up to four.
    pub transactions: Option<NonZero<usize>>,
    /// A statement may not run longer.
    pub statement_timeout: Duration,
    /// A lock may not be waited for longer. A push behind a migration waits for it.
    pub lock_timeout: Duration,
    /// A transaction that its process has forgotten ends after this time.
    pub idle_in_transaction_timeout: Duration,
    /// How long a caller waits for a connection, new or pooled.
    pub connect_timeout: Duration,
    /// How long a migration waits for writers inside to finish; it holds off
    /// new ones meanwhile.
    pub migration_lock_timeout: Duration,
    /// `application_name`, as `pg_stat_activity` shows it.
    pub application_name: String,
}

impl PostgresOptions {
    /// Defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            pool_size: 16,
            snapshot_pool_size: 16,
            transactions: None,
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(15),
            idle_in_transaction_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            migration_lock_timeout: Duration::from_secs(600),
            application_name: "tidegate".into(),
        }
    }
}

/// The URL holds a password: it is never shown.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("pool_size", &self.pool_size)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .finish_non_exhaustive()
    }
}

/// Why a store could not be opened. Each is one line for the operator; the
/// driver's words stay in the source.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL is not one.
    #[error("the database URL is not valid: {0}")]
    BadUrl(&'static str),
    /// Nobody answers at the address, or not in time.
    #[error("the database server cannot be reached")]
    Unreachable(#[source] crate::error::Source),
    /// TLS could not be agreed on.
    #[error("the TLS connection to the database server failed")]
    Tls(#[source] crate::error::Source),
    /// The server does not accept the user or the password.
    #[error("the database server refused the user name or the password")]
    WrongPassword,
    /// There is no such database.
    #[error("the database does not exist")]
    UnknownDatabase,
    /// The server is older than Postgres 13.
    #[error("the database server is Postgres {major}; 13 or newer is needed")]
    TooOld {
        /// Its major version.
        major: i32,
    },
    /// A standby, or a server switched to read-only.
    #[error("the database is read-only (a standby?); connect to the primary")]
    ReadOnly,
    /// The role may not do what is needed.
    #[error("the database role lacks a permission: {0}")]
    MissingPermission(&'static str),
    /// The database's encoding is not UTF-8.
    #[error("the database's encoding must be UTF8")]
    NotUtf8,
    /// The server refused for another reason.
    #[error("the database server refused the connection")]
    Refused(#[source] crate::error::Source),
}

impl ConnectError {
    pub(super) fn from_driver(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(code)
                if *code == SqlState::INVALID_PASSWORD
                    || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                Self::WrongPassword
            }
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => Self::UnknownDatabase,
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                Self::MissingPermission("CONNECT on the database")
            }
            Some(code)
                if *code == SqlState::CANNOT_CONNECT_NOW
                    || *code == SqlState::TOO_MANY_CONNECTIONS =>
            {
                Self::Unreachable(Box::new(error))
            }
            Some(_) => Self::Refused(Box::new(error)),
            None => {
                // The kinds of the driver's errors are private; their words are fixed.
                let words = error.to_string();
                if words.contains("password missing") || words.contains("invalid configuration") {
                    Self::WrongPassword
                } else if words.contains("TLS handshake") {
                    Self::Tls(Box::new(error))
                } else {
                    Self::Unreachable(Box::new(error))
                }
            }
        }
    }
}

/// The URL, taken apart.
pub(super) struct Target {
    pub(super) config: tokio_postgres::Config,
    pub(super) verification: Verification,
}

/// Reads the URL. `sslmode` and `sslrootcert` are ours: the driver knows only
/// part of the first and nothing of the second.
pub(super) fn target(options: &PostgresOptions) -> Result<Target, ConnectError> {
    let url = options.url.trim();
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(ConnectError::BadUrl("it must begin with postgres://"));
    }
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut mode, mut root, mut rest) = ("prefer", None, Vec::new());
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("sslmode", value)) => mode = value,
            Some(("sslrootcert", value)) => root = Some(percent_decoded(value)?),
            _ => rest.push(parameter),
        }
    }
    let cleaned = if rest.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", rest.join("&"))
    };
    let mut config: tokio_postgres::Config = cleaned.parse().map_err(|_| {
        ConnectError::BadUrl("expected postgres://user:password@host:port/database")
    })?;
    if config.get_hosts().is_empty() {
        return Err(ConnectError::BadUrl("it names no host"));
    }
    let root = root.filter(|path| path != "system");
    let (ssl, verification) = match (mode, root) {
        ("disable", _) => (SslMode::Disable, Verification::None),
        ("allow" | "prefer", _) => (SslMode::Prefer, Verification::None),
        ("require", None) => (SslMode::Require, Verification::None),
        ("require", Some(path)) => (SslMode::Require, Verification::File(path)),
        ("verify-ca" | "verify-full", None) => (SslMode::Require, Verification::System),
        ("verify-ca" | "verify-full", Some(path)) => (SslMode::Require, Verification::File(path)),
        _ => return Err(ConnectError::BadUrl("unknown sslmode")),
    };
    config
        .ssl_mode(ssl)
        .application_name(&options.application_name)
        .connect_timeout(options.connect_timeout)
        .keepalives_idle(Duration::from_secs(30))
        // A network that swallows everything must not hold a batch for ever.
        .tcp_user_timeout(options.statement_timeout + options.lock_timeout);
    Ok(Target {
        config,
        verification,
    })
}

fn percent_decoded(text: &str) -> Result<String, ConnectError> {
    let bad = || ConnectError::BadUrl("a parameter is not percent-encoded text");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = tail.get(..2).ok_or_else(bad)?;
        let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Target, ConnectError> {
        target(&PostgresOptions::new(url))
    }

    #[test]
    fn sslmode_decides_on_encryption_and_verification() {
        for (query, ssl, verification) in [
            ("", SslMode::Prefer, Verification::None),
            ("?sslmode=disable", SslMode::Disable, Verification::None),
            ("?sslmode=require", SslMode::Require, Verification::None),
            (
                "?sslmode=require&sslrootcert=%2Fetc%2Fca.pem",
                SslMode::Require,
                Verification::File("/etc/ca.pem".into()),
            ),
            (
                "?sslmode=verify-full",
                SslMode::Require,
                Verification::System,
            ),
            (
                "?sslrootcert=system&sslmode=verify-ca&connect_timeout=3",
                SslMode::Require,
                Verification::System,
            ),
        ] {
            let target = read(&format!("postgres://u:p@h:1/d{query}")).unwrap();
            assert_eq!(target.config.get_ssl_mode(), ssl, "{query}");
            assert_eq!(target.verification, verification, "{query}");
        }
    }

    #[test]
    fn a_bad_url_says_what_is_wrong() {
        for url in [
            "",
            "mysql://h/d",
            "host=localhost",
            "postgres://u@h:port/d",
            "postgres:///d",
            "postgres://u@h/d?sslmode=maybe",
            "postgres://u@h/d?sslrootcert=%zz",
            "postgres://u@h/d?nonsense=1",
        ] {
            assert!(matches!(read(url), Err(ConnectError::BadUrl(_))), "{url}");
        }
    }

    #[test]
    fn options_never_show_the_password() {
        let options = PostgresOptions::new("postgres://u:secret@h/d");
        assert!(!format!("{options:?}").contains("secret"));
    }
}

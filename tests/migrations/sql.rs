//! The database as another program sees it.

use std::time::{Duration, Instant};

use tidegate_test_postgres::{Database, Server};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::process::{Backend, PATIENCE, Site};

/// A row as text.
pub type Row = Vec<Option<String>>;

/// A program of its own beside the servers.
#[derive(Clone)]
pub enum Sql {
    Sqlite(std::path::PathBuf),
    Postgres(String),
}

impl Sql {
    pub fn of(site: &Site) -> Self {
        match site.url().strip_prefix("sqlite:") {
            Some(path) => Self::Sqlite(path.into()),
            None => Self::Postgres(site.url().to_owned()),
        }
    }

    /// Runs statements; the database's words when it refuses.
    pub async fn run(&self, statements: &str) -> Result<(), String> {
        match self {
            Self::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path).unwrap();
                connection.busy_timeout(PATIENCE).unwrap();
                connection
                    .execute_batch(statements)
                    .map_err(|error| error.to_string())
            }
            Self::Postgres(url) => {
                let session = Session::open(url).await;
                session.run(statements).await
            }
        }
    }

    /// The rows of a query.
    pub async fn rows(&self, query: &str) -> Vec<Row> {
        match self {
            Self::Sqlite(path) => sqlite_rows(path, query),
            Self::Postgres(url) => Session::open(url).await.rows(query).await,
        }
    }

    /// The only value of a query.
    pub async fn value(&self, query: &str) -> String {
        let rows = self.rows(query).await;
        assert_eq!(rows.len(), 1, "{query}");
        rows[0][0].clone().unwrap_or_default()
    }

    /// Polls until a query has this value.
    pub async fn until(&self, query: &str, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.value(query).await;
            if found == wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{query}: {found}, never {wanted}"
            );
            breath().await;
        }
    }

    /// SQL for the bytes of a column as lower-case hex digits.
    pub fn hex(&self, column: &str) -> String {
        match self {
            Self::Sqlite(_) => format!("lower(hex({column}))"),
            Self::Postgres(_) => format!("encode({column}, 'hex')"),
        }
    }
}

/// Between two looks at a condition.
pub async fn breath() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn sqlite_rows(path: &std::path::Path, query: &str) -> Vec<Row> {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    let mut statement = connection.prepare(query).unwrap();
    let columns = statement.column_count();
    let rows = statement
        .query_map([], |row| {
            (0..columns)
                .map(|at| {
                    Ok(match row.get_ref(at)? {
                        rusqlite::types::ValueRef::Null => None,
                        rusqlite::types::ValueRef::Integer(number) => Some(number.to_string()),
                        rusqlite::types::ValueRef::Real(number) => Some(number.to_string()),
                        rusqlite::types::ValueRef::Text(text)
                        | rusqlite::types::ValueRef::Blob(text) => {
                            Some(String::from_utf8_lossy(text).into_owned())
                        }
                    })
                })
                .collect()
        })
        .unwrap();
    rows.map(Result::unwrap).collect()
}

/// A session on Postgres that stays open: for locks.
pub struct Session(tokio_postgres::Client);

impl Session {
    pub async fn open(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    pub async fn run(&self, statements: &str) -> Result<(), String> {
        self.0
            .batch_execute(statements)
            .await
            .map_err(|error| match error.as_db_error() {
                Some(refusal) => refusal.message().to_owned(),
                None => error.to_string(),
            })
    }

    pub async fn rows(&self, query: &str) -> Vec<Row> {
        let messages = self.0.simple_query(query).await.unwrap();
        messages
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(
                    (0..row.len())
                        .map(|at| row.get(at).map(str::to_owned))
                        .collect(),
                ),
                _ => None,
            })
            .collect()
    }
}

/// A database with its content, from which sites begin.
pub enum Template {
    Sqlite(Vec<u8>),
    Postgres(Database),
}

impl Template {
    /// What is in a site whose server has ended.
    pub fn sqlite(site: &Site) -> Self {
        Self::Sqlite(std::fs::read(site.path("tidegate.db")).unwrap())
    }

    /// A site with a copy of it.
    pub fn copy(&self) -> (Site, Option<Copied>) {
        match self {
            Self::Sqlite(bytes) => {
                let site = Site::on(Backend::Sqlite);
                std::fs::write(site.path("tidegate.db"), bytes).unwrap();
                (site, None)
            }
            Self::Postgres(database) => {
                let copied = Copied::of(&database.url());
                let site = Site::at(&copied.url);
                (site, Some(copied))
            }
        }
    }
}

/// A database made from a template; dropped with this value.
pub struct Copied {
    name: String,
    url: String,
}

impl Copied {
    fn of(url: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static MADE: AtomicU32 = AtomicU32::new(0);
        let server = Server::shared().unwrap();
        let template = url.rsplit('/').next().unwrap();
        let template = template.split('?').next().unwrap();
        let name = format!("{template}_{}", MADE.fetch_add(1, Ordering::Relaxed));
        server
            .execute(&format!(
                "CREATE DATABASE \"{name}\" TEMPLATE \"{template}\""
            ))
            .unwrap();
        let url = server.url(&name);
        Self { name, url }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Ok(server) = Server::shared() {
            let _ = server.execute(&format!(
                "DROP DATABASE IF EXISTS \"{}\" WITH (FORCE)",
                self.name
            ));
        }
    }
}

//! A database of the shared test server, as the contract's harness and for tests
//! that look at it with their own connections.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tidegate_engine::model::CommitBatch;
use tidegate_engine::schema::Schema;
use tidegate_store::contract::Harness;
use tidegate_store::contract::fixture::*;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::{CommitError, Store};
use tidegate_test_postgres::Database;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

pub struct Postgres(Database);

impl Postgres {
    pub fn new() -> Self {
        Self(Database::create().unwrap())
    }

    pub fn with(options: &str) -> Self {
        Self(Database::create_with(options).unwrap())
    }

    pub fn url(&self) -> String {
        self.0.url()
    }

    pub fn options(&self) -> PostgresOptions {
        let mut options = PostgresOptions::new(self.0.url());
        options.pool_size = 8;
        options
    }

    pub async fn store(&self) -> Arc<PostgresStore> {
        PostgresStore::connect(self.options()).await.unwrap()
    }

    /// A connection of another program.
    pub async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.0.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

#[async_trait]
impl Harness for Postgres {
    async fn open(&self) -> Arc<dyn Store> {
        self.store().await
    }

    async fn try_sql(&self, statements: &str) -> Result<(), String> {
        self.connect()
            .await
            .batch_execute(statements)
            .await
            .map_err(|error| error.as_db_error().unwrap().message().to_owned())
    }

    async fn query(&self, query: &str) -> Vec<Vec<Option<String>>> {
        let messages = self.connect().await.simple_query(query).await.unwrap();
        messages
            .into_iter()
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

/// Publishes the fixture's schema.
pub async fn prepare(store: &PostgresStore) -> Arc<Schema> {
    let schema = compile(&document());
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    schema
}

/// One commit of a note that no other commit has.
pub fn one(schema: &Schema, expected: i64, id: &str) -> CommitBatch {
    batch(
        schema,
        "p",
        expected,
        &[vec![put(NOTES, note(id, "l1", "o1", None))]],
    )
}

/// The same with a client record: a kind that is not one statement but several in a
/// transaction.
pub fn several(schema: &Schema, expected: i64, id: &str) -> CommitBatch {
    let mut batch = one(schema, expected, id);
    batch.clients.push(client("device", "actor", 0));
    batch
}

/// Makes a batch, in one of the two ways to write it.
pub type Make = fn(&Schema, i64, &str) -> CommitBatch;

/// Both ways to write a batch.
pub const BOTH: [Make; 2] = [one, several];

/// Writes a batch in a task of its own.
pub fn spawn(
    store: &Arc<PostgresStore>,
    batch: CommitBatch,
) -> tokio::task::JoinHandle<Result<(), CommitError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.commit_batch(Arc::new(batch)).await })
}

/// Waits until a query of one boolean says true.
pub async fn until(client: &Client, query: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if client.query_one(query, &[]).await.unwrap().get(0) {
            return;
        }
        assert!(Instant::now() < deadline, "never true: {query}");
        tokio::task::yield_now().await;
    }
}

/// Waits until some session of this database waits for a lock.
pub async fn until_waiting(client: &Client, count: i32) {
    until(
        client,
        &format!(
            "SELECT count(*) = {count} FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ),
    )
    .await;
}

//! A store on a database of its own, and a connection that watches it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_engine::schema::Schema;
use tidegate_test_postgres::Database;
use tokio_postgres::{Client, NoTls};

use super::{PostgresOptions, PostgresStore};
use crate::Store as _;
use crate::contract::fixture::{compile, document};

pub(super) struct World {
    pub(super) store: Arc<PostgresStore>,
    pub(super) schema: Arc<Schema>,
    pub(super) watch: Client,
    database: Database,
}

impl World {
    pub(super) async fn new() -> Self {
        let database = Database::create().unwrap();
        let store = PostgresStore::connect(PostgresOptions::new(database.url()))
            .await
            .unwrap();
        let schema = compile(&document());
        store
            .ensure_schema(Arc::clone(&schema), &[], 1)
            .await
            .unwrap();
        let watch = connect(&database).await;
        Self {
            store,
            schema,
            watch,
            database,
        }
    }

    /// A connection of another program.
    pub(super) async fn connect(&self) -> Client {
        connect(&self.database).await
    }

    pub(super) async fn count(&self, sql: &str) -> i64 {
        self.watch.query_one(sql, &[]).await.unwrap().get(0)
    }
}

async fn connect(database: &Database) -> Client {
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until a query of one boolean says true.
pub(super) async fn until(client: &Client, query: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !client
        .query_one(query, &[])
        .await
        .unwrap()
        .get::<_, bool>(0)
    {
        assert!(Instant::now() < deadline, "never true: {query}");
        tokio::task::yield_now().await;
    }
}

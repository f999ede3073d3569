//! Connections to the measured database, and what they learn from it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_engine::schema::Schema;
use tidegate_store::Store;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::{Client, NoTls};

use crate::cli::DEMO_SCHEMA;
use crate::runner::LoadError;

/// Queries of which the middle one tells how long a round trip takes.
const ROUND_TRIPS: usize = 200;

/// Epoch milliseconds.
pub(super) fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|elapsed| i64::try_from(elapsed.as_millis()).ok())
        .unwrap_or(0)
}

/// A failed statement, with the server's own words: the operator of a yardstick
/// owns the database.
pub(super) fn refused(error: tokio_postgres::Error) -> LoadError {
    LoadError::Setup(error.as_db_error().map_or_else(
        || error.to_string(),
        |database| format!("{}: {}", database.code().code(), database.message()),
    ))
}

/// Connects, without TLS.
pub(super) async fn connect(url: &str) -> Result<Client, LoadError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(refused)?;
    // Ends with the client; its error shows up as the failed statement's.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

/// Makes the tables of the demo schema, as the server makes them.
///
/// # Errors
/// When the database cannot be reached, or holds other tables.
pub async fn prepare(url: &str) -> Result<(), LoadError> {
    let setup = |error: &dyn std::fmt::Display| LoadError::Setup(error.to_string());
    let schema = Schema::load(DEMO_SCHEMA)
        .map_err(|_| LoadError::Setup("the demo schema does not load".to_owned()))?;
    let store = PostgresStore::connect(PostgresOptions::new(url))
        .await
        .map_err(|error| setup(&error))?;
    let prepared = store.ensure_schema(Arc::new(schema), &[], now_ms()).await;
    store.close().await;
    prepared.map(|_| ()).map_err(|error| setup(&error))
}

/// How long `SELECT 1` takes on a connection that does nothing else: the median of 200.
///
/// # Errors
/// When the database does not answer.
pub async fn round_trip(url: &str) -> Result<Duration, LoadError> {
    let client = connect(url).await?;
    let mut times = [Duration::ZERO; ROUND_TRIPS];
    for time in &mut times {
        let asked = Instant::now();
        client.simple_query("SELECT 1").await.map_err(refused)?;
        *time = asked.elapsed();
    }
    times.sort_unstable();
    Ok(times[ROUND_TRIPS / 2])
}

/// How many commits of a partition after `after` shared a transaction, on average.
/// `None` when there are none.
///
/// # Errors
/// When the database does not answer.
pub async fn mean_batch(url: &str, partition: &str, after: i64) -> Result<Option<f64>, LoadError> {
    let client = connect(url).await?;
    let row = client
        .query_one(
            "SELECT count(*), count(DISTINCT xmin::text) FROM sync_commits
             WHERE partition = $1 AND commit_seq > $2",
            &[&partition, &after],
        )
        .await
        .map_err(refused)?;
    let (commits, transactions): (i64, i64) = (row.get(0), row.get(1));
    Ok((transactions > 0).then(|| commits as f64 / transactions as f64))
}

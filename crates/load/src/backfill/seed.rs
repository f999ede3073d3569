//! A database with rows of schema 1, migrated to schema 2 and not yet computed; copied for
//! every run, so that all of them begin alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ssp2::{OperationOutcome, OperationResult, Value};
use tidegate_engine::ids::{CommitSeq, PartitionId};
use tidegate_engine::model::{
    CommitBatch, LoggedChange, LoggedCommit, Over, ResultKey, RowKey, RowWrite, StoredPushResult,
    StoredRow,
};
use tidegate_engine::schema::Schema;
use tidegate_engine::scopes::stored_scopes;
use tidegate_store::Store;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_test_postgres::Server;
use tokio_postgres::{Client, NoTls};

use super::{BackfillSuiteArgs, PARTITION, SCHEMA_TWO, setup};
use crate::cli::DEMO_SCHEMA;
use crate::runner::LoadError;

/// Rows of a client's commit.
const COMMIT_ROWS: u64 = 100;
/// Commits of a batch.
const BATCH_COMMITS: u64 = 50;
/// Rows in a list.
const LIST_ROWS: u64 = 1_000;

/// A database to copy.
pub(super) struct Template<'a> {
    database: Scratch<'a>,
    pub rows: u64,
    /// Rows per second of the storage migration from schema 1 to 2.
    pub migration_rows_per_s: f64,
}

impl<'a> Template<'a> {
    pub async fn make(
        postgres: &'a Server,
        args: &BackfillSuiteArgs,
        rows: u64,
    ) -> Result<Self, LoadError> {
        let database = Scratch::create(postgres, None)?;
        let began = Instant::now();
        let store = open(&database.url()).await?;
        store
            .ensure_schema(schema(DEMO_SCHEMA)?, &[], now_ms())
            .await
            .map_err(setup)?;
        let seeder = Seeder {
            store: &*store,
            schema: schema(DEMO_SCHEMA)?,
            text: "x".repeat(usize::try_from(args.payload_bytes).unwrap_or(0)),
        };
        seeder.seed(rows).await?;
        let seeded = began.elapsed();
        store.close().await;
        let store = open(&database.url()).await?;
        let began = Instant::now();
        store
            .ensure_schema(schema(SCHEMA_TWO)?, &[], now_ms())
            .await
            .map_err(setup)?;
        let migrated = began.elapsed();
        store.close().await;
        eprintln!(
            "{rows} rows: seeded in {:.1} s, migrated to schema 2 in {:.1} s",
            seeded.as_secs_f64(),
            migrated.as_secs_f64()
        );
        let client = connect(&database.url()).await?;
        client
            .batch_execute("VACUUM ANALYZE")
            .await
            .map_err(setup)?;
        Ok(Self {
            database,
            rows,
            migration_rows_per_s: rows as f64 / migrated.as_secs_f64(),
        })
    }

    /// A copy of its own for a run.
    pub fn copy(&self) -> Result<Scratch<'a>, LoadError> {
        Scratch::create(self.database.postgres, Some(&self.database.name))
    }
}

async fn open(url: &str) -> Result<Arc<PostgresStore>, LoadError> {
    PostgresStore::connect(PostgresOptions::new(url))
        .await
        .map_err(setup)
}

fn schema(text: &str) -> Result<Arc<Schema>, LoadError> {
    Schema::load(text)
        .map(Arc::new)
        .map_err(|_| setup("the demo schema does not load"))
}

/// Connects, without TLS.
pub(super) async fn connect(url: &str) -> Result<Client, LoadError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(setup)?;
    // Ends with the client; its error shows up as the failed statement's.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

/// Epoch milliseconds.
pub(super) fn now_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .ok()
        .and_then(|elapsed| i64::try_from(elapsed.as_millis()).ok())
        .unwrap_or(0)
}

/// Writes rows as if clients had pushed them, in large batches.
struct Seeder<'s> {
    store: &'s dyn Store,
    schema: Arc<Schema>,
    text: String,
}

impl Seeder<'_> {
    async fn seed(&self, rows: u64) -> Result<(), LoadError> {
        let mut head = 0;
        let mut first = 0;
        while first < rows {
            let count = (rows - first).min(COMMIT_ROWS * BATCH_COMMITS);
            let batch = self.batch(head, first, count)?;
            head += i64::try_from(batch.commits.len()).unwrap_or(0);
            self.store
                .commit_batch(Arc::new(batch))
                .await
                .map_err(setup)?;
            first += count;
        }
        Ok(())
    }

    fn batch(&self, head: i64, first: u64, count: u64) -> Result<CommitBatch, LoadError> {
        let mut batch = CommitBatch {
            partition: PartitionId::from(PARTITION),
            expected_max: CommitSeq(head),
            writer_version: self.schema.version(),
            declared: Arc::default(),
            commits: Vec::new(),
            results: Vec::new(),
            rows: Vec::new(),
            clients: Vec::new(),
            reactions: Vec::new(),
            advance: None,
        };
        let numbers: Vec<u64> = (first..first + count).collect();
        for numbers in numbers.chunks(usize::try_from(COMMIT_ROWS).unwrap_or(1)) {
            let seq = CommitSeq(head + 1 + i64::try_from(batch.commits.len()).unwrap_or(0));
            self.commit(&mut batch, seq, numbers)?;
        }
        Ok(batch)
    }

    fn commit(
        &self,
        batch: &mut CommitBatch,
        seq: CommitSeq,
        numbers: &[u64],
    ) -> Result<(), LoadError> {
        let table = self
            .schema
            .table("todos")
            .ok_or_else(|| setup("there is no table todos"))?;
        let mut changes = Vec::with_capacity(numbers.len());
        for number in numbers {
            let row_id: Arc<str> = format!("seed-{number:09}").into();
            let values = [
                Value::Text(row_id.to_string()),
                Value::Text(format!("list-{:06}", number / LIST_ROWS)),
                Value::Text(format!(" Title {number} {} ", self.text)),
                Value::Boolean(false),
                Value::Null,
                Value::Null,
            ];
            let payload = ssp2::encode_row(&table.columns, &values).map_err(setup)?;
            let scopes =
                stored_scopes(table, &values).ok_or_else(|| setup("a row has no scopes"))?;
            let key = RowKey {
                table: table.id,
                row_id,
            };
            changes.push(LoggedChange {
                key: key.clone(),
                scopes: scopes.clone(),
                upsert: Some((1, payload.clone())),
            });
            batch.rows.push(RowWrite::Put {
                key,
                row: Arc::new(StoredRow {
                    server_version: 1,
                    scopes,
                    payload,
                    column_versions: None,
                }),
                values: Arc::new(values),
                over: Over::Nothing,
            });
        }
        let client_commit_id: Arc<str> = format!("seed-{}", seq.0).into();
        batch.results.push((
            ResultKey {
                client_id: "seed".into(),
                client_commit_id: Arc::clone(&client_commit_id),
            },
            Arc::new(StoredPushResult {
                commit_seq: Some(seq),
                recorded_at_ms: Some(now_ms()),
                results: vec![OperationResult {
                    op_index: 0,
                    outcome: OperationOutcome::Applied,
                }],
                details: Vec::new(),
            }),
        ));
        batch.commits.push(Arc::new(LoggedCommit {
            seq,
            client_id: "seed".into(),
            client_commit_id,
            actor_id: "seed".into(),
            created_at_ms: now_ms(),
            changes,
        }));
        Ok(())
    }
}

/// A database that is dropped with this value.
pub(super) struct Scratch<'a> {
    postgres: &'a Server,
    name: String,
}

impl<'a> Scratch<'a> {
    /// An empty one, or a copy. The checkpoint writes out what earlier runs left behind,
    /// so that no run pays for another one's.
    fn create(postgres: &'a Server, template: Option<&str>) -> Result<Self, LoadError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "tidegate_backfill_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let create = match template {
            None => format!("CREATE DATABASE {name}"),
            // Copying files writes no log; older servers know no other way.
            Some(template) => {
                format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
            }
        };
        for statement in [create.as_str(), "CHECKPOINT"] {
            blocking(|| postgres.execute(statement)).map_err(setup)?;
        }
        Ok(Self { postgres, name })
    }

    pub fn url(&self) -> String {
        self.postgres.url(&self.name)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _ = blocking(|| self.postgres.execute(&drop));
    }
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

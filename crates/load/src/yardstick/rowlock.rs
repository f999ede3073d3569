//! The usual way: a transaction per commit, in which the lock on the partition's row
//! orders the writers.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

use super::database::{connect, refused};
use super::rows::{ACTOR, Todos, WRITER_VERSION};
use crate::cli::Pace;
use crate::measure::{Report, Sample, Shape, Tally};
use crate::runner::{LoadError, run_name, tally};

const PARTITION: &str = "INSERT INTO sync_partitions(partition) VALUES ($1) ON CONFLICT DO NOTHING";
const LOCK: &str = "SELECT max_commit_seq FROM sync_partitions WHERE partition = $1 FOR UPDATE";
const ADVANCE: &str = "UPDATE sync_partitions SET max_commit_seq = $2 WHERE partition = $1";
const COMMIT: &str = "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
 VALUES ($1, $2, $3, $4, $5, $6, $7)";
const CHANGE: &str = "INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
 VALUES ($1, $2, 0, 'todos', $3, 1, 1, $4::text::jsonb, $5)";
const CHANGE_SCOPE: &str = "INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
 VALUES ($1, 'todos', 'list_id', $2, $3)";
const ROW_SCOPE: &str = "INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
 VALUES ($1, 'todos', 'list_id', $2, $3)";
const RESULT: &str = "INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
 VALUES ($1, $2, $3, $4::text::jsonb)";
const TODO: &str = r#"INSERT INTO todos("_sync_partition", "_sync_row_id", "id", "list_id", "title", "done", "_sync_server_version", "_sync_scopes", "_sync_payload")
 VALUES ($1, $2, $2, $3, $4, FALSE, 1, $5::text::jsonb, $6)"#;

/// A run of the row-lock way.
#[derive(Debug, Clone, Copy)]
pub struct RowLock<'a> {
    /// Where.
    pub database: &'a str,
    /// The partition that all writers share.
    pub partition: &'a str,
    /// Writers, one connection each.
    pub clients: u32,
    /// How long, and how large the rows.
    pub pace: &'a Pace,
}

impl RowLock<'_> {
    /// Connects all writers and runs them side by side.
    ///
    /// # Errors
    /// When one cannot connect; failed transactions are counted instead.
    pub async fn run(&self) -> Result<Report, LoadError> {
        let (warmup, measured) = self.pace.times()?;
        let run = run_name();
        let mut writers = Vec::new();
        for number in 0..self.clients {
            let todos = Todos::new(&run, number, self.pace.payload_bytes)?;
            writers.push(Writer::open(self.database, self.partition, todos).await?);
        }
        let begin = Instant::now() + warmup;
        let end = begin + measured;
        let mut loops = JoinSet::new();
        for writer in writers {
            loops.spawn(writer.run(begin, end));
        }
        let mut total = tally()?;
        while let Some(done) = loops.join_next().await {
            let done = done.map_err(|error| LoadError::Setup(error.to_string()))??;
            total
                .merge(&done)
                .map_err(|error| LoadError::Setup(error.to_string()))?;
        }
        let shape = Shape {
            label: self.pace.label.clone(),
            scenario: "rowlock",
            clients: self.clients,
            partitions: 1,
        };
        Ok(total.report(shape, measured))
    }
}

/// A writer with its connection and its prepared statements.
struct Writer {
    client: Client,
    partition: String,
    todos: Todos,
    lock: Statement,
    commit: Statement,
    change: Statement,
    change_scope: Statement,
    row_scope: Statement,
    result: Statement,
    todo: Statement,
    advance: Statement,
}

impl Writer {
    async fn open(database: &str, partition: &str, todos: Todos) -> Result<Self, LoadError> {
        let client = connect(database).await?;
        client
            .execute(PARTITION, &[&partition])
            .await
            .map_err(refused)?;
        let prepare = async |sql| client.prepare(sql).await.map_err(refused);
        Ok(Self {
            lock: prepare(LOCK).await?,
            commit: prepare(COMMIT).await?,
            change: prepare(CHANGE).await?,
            change_scope: prepare(CHANGE_SCOPE).await?,
            row_scope: prepare(ROW_SCOPE).await?,
            result: prepare(RESULT).await?,
            todo: prepare(TODO).await?,
            advance: prepare(ADVANCE).await?,
            partition: partition.to_owned(),
            todos,
            client,
        })
    }

    async fn run(mut self, begin: Instant, end: Instant) -> Result<Tally, LoadError> {
        let mut tally = tally()?;
        loop {
            let sent = Instant::now();
            if sent >= end {
                return Ok(tally);
            }
            match self.write().await {
                Ok(()) => {}
                // A broken transaction would only break the next one too.
                Err(error) => {
                    eprintln!("tidegate-load: {error}");
                    tally.errors += 1;
                    return Ok(tally);
                }
            }
            let done = Instant::now();
            if done >= begin && done <= end {
                tally.record(&sample(done - sent));
            }
        }
    }

    /// One commit, a round trip for each statement.
    async fn write(&mut self) -> Result<(), LoadError> {
        let insert = self.todos.next()?;
        let (partition, client_id) = (&self.partition, &self.todos.client_id);
        let (list_id, scopes) = (&self.todos.list_id, &self.todos.scopes);
        let payload = &insert.payload[..];
        let transaction = self.client.transaction().await.map_err(refused)?;
        let head = transaction
            .query_one(&self.lock, &[partition])
            .await
            .map_err(refused)?;
        let seq: i64 = head.get::<_, i64>(0) + 1;
        let run = async |statement, params: &[&(dyn tokio_postgres::types::ToSql + Sync)]| {
            transaction
                .execute(statement, params)
                .await
                .map(|_| ())
                .map_err(refused)
        };
        run(
            &self.commit,
            &[
                partition,
                &seq,
                client_id,
                &insert.client_commit_id,
                &ACTOR,
                &insert.created_at_ms,
                &WRITER_VERSION,
            ],
        )
        .await?;
        run(
            &self.change,
            &[partition, &seq, &insert.row_id, scopes, &payload],
        )
        .await?;
        run(&self.change_scope, &[partition, list_id, &seq]).await?;
        run(&self.row_scope, &[partition, list_id, &insert.row_id]).await?;
        let result = insert.result(seq);
        run(
            &self.result,
            &[partition, client_id, &insert.client_commit_id, &result],
        )
        .await?;
        run(
            &self.todo,
            &[
                partition,
                &insert.row_id,
                list_id,
                &self.todos.title,
                scopes,
                &payload,
            ],
        )
        .await?;
        run(&self.advance, &[partition, &seq]).await?;
        transaction.commit().await.map_err(refused)
    }
}

fn sample(latency: Duration) -> Sample {
    Sample {
        latency,
        commits: 1,
        ..Sample::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yardstick::prepare;

    #[tokio::test(flavor = "multi_thread")]
    async fn writers_of_one_partition_leave_a_log_without_gaps() {
        let database = tidegate_test_postgres::Database::create().unwrap();
        let url = database.url();
        prepare(&url).await.unwrap();
        let pace = Pace {
            seconds: 0.5,
            warmup: 0.0,
            label: "it".to_owned(),
            payload_bytes: 10,
        };
        let yardstick = RowLock {
            database: &url,
            partition: "p",
            clients: 4,
            pace: &pace,
        };
        let report = yardstick.run().await.unwrap();
        assert_eq!(report.errors, 0);
        assert!(report.commits > 0 && report.commits == report.requests);
        assert_eq!((report.scenario, report.clients), ("rowlock", 4));
        let client = connect(&url).await.unwrap();
        let row = client
            .query_one(
                "SELECT (SELECT max_commit_seq FROM sync_partitions WHERE partition='p'), max(commit_seq), count(*),
                   (SELECT count(*) FROM todos), (SELECT count(*) FROM sync_changes),
                   (SELECT count(*) FROM sync_change_scopes), (SELECT count(*) FROM sync_row_scopes),
                   (SELECT count(*) FROM sync_push_results)
                 FROM sync_commits WHERE partition='p'",
                &[],
            )
            .await
            .unwrap();
        let counts: Vec<i64> = (0..8).map(|column| row.get(column)).collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        // At most one commit of each writer came after the end.
        let written = counts[0].cast_unsigned();
        assert!((report.commits..=report.commits + 4).contains(&written));
    }
}

//! The inserts alone: what a batch of commits costs Postgres at least.

use std::time::Instant;

use futures_util::future::try_join_all;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::{connect, refused};
use super::rows::{ACTOR, TodoInsert, Todos, WRITER_VERSION};
use crate::cli::Pace;
use crate::measure::{Report, Sample, Shape};
use crate::runner::{LoadError, run_name, tally};

const INSERTS: [&str; 6] = [
    "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
 SELECT $1, u.seq, u.client, u.commit, $2, u.at, $3
 FROM unnest($4::bigint[], $5::text[], $6::text[], $7::bigint[]) AS u(seq, client, commit, at)",
    "INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
 SELECT $1, u.seq, 0, 'todos', u.id, 1, 1, u.scopes::jsonb, u.payload
 FROM unnest($2::bigint[], $3::text[], $4::text[], $5::bytea[]) AS u(seq, scopes, id, payload)",
    "INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
 SELECT $1, 'todos', 'list_id', u.list, u.seq FROM unnest($2::text[], $3::bigint[]) AS u(list, seq)",
    "INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
 SELECT $1, 'todos', 'list_id', u.list, u.id FROM unnest($2::text[], $3::text[]) AS u(list, id)",
    "INSERT INTO sync_push_results(partition, client_id, client_commit_id, result)
 SELECT $1, u.client, u.commit, u.result::jsonb
 FROM unnest($2::text[], $3::text[], $4::text[]) AS u(client, commit, result)",
    r#"INSERT INTO todos("_sync_partition", "_sync_row_id", "id", "list_id", "title", "done", "_sync_server_version", "_sync_scopes", "_sync_payload")
 SELECT $1, u.id, u.id, u.list, $2, FALSE, 1, u.scopes::jsonb, u.payload
 FROM unnest($3::text[], $4::text[], $5::text[], $6::bytea[]) AS u(list, scopes, id, payload)"#,
];

/// A run of the inserts alone.
#[derive(Debug, Clone, Copy)]
pub struct Floor<'a> {
    /// Where.
    pub database: &'a str,
    /// The partition.
    pub partition: &'a str,
    /// Commits per batch, on average.
    pub batch: f64,
    /// Whose they are, in turn: a batch of a server holds commits of different clients, and
    /// so do its pages in the indexes.
    pub clients: u32,
    /// How long, and how large the rows.
    pub pace: &'a Pace,
}

/// Whole batch sizes whose mean is a given one.
#[derive(Debug)]
struct Sizes {
    mean: f64,
    owed: f64,
}

impl Sizes {
    const fn of(mean: f64) -> Self {
        Self { mean, owed: 0.0 }
    }

    fn next(&mut self) -> usize {
        self.owed += self.mean;
        let size = self.owed.round().max(1.0);
        self.owed -= size;
        size as usize
    }
}

impl Floor<'_> {
    /// Inserts batch after batch on one connection. A batch is a transaction whose
    /// statements travel together, as the server's do.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn run(&self) -> Result<Report, LoadError> {
        let (warmup, measured) = self.pace.times()?;
        let client = connect(self.database).await?;
        let mut statements = Vec::new();
        for sql in INSERTS {
            statements.push(client.prepare(sql).await.map_err(refused)?);
        }
        let head = client
            .query_one(
                "SELECT coalesce(max(commit_seq), 0) FROM sync_commits WHERE partition = $1",
                &[&self.partition],
            )
            .await
            .map_err(refused)?;
        let mut seq: i64 = head.get(0);
        let run = run_name();
        let mut clients = (0..self.clients)
            .map(|number| Todos::new(&run, number, self.pace.payload_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let mut turns = (0..clients.len()).cycle();
        let mut sizes = Sizes::of(self.batch);
        let mut tally = tally()?;
        let begin = Instant::now() + warmup;
        let end = begin + measured;
        loop {
            let sent = Instant::now();
            if sent >= end {
                break;
            }
            let batch = turns
                .by_ref()
                .take(sizes.next())
                .map(|turn| Ok((turn, clients[turn].next()?)))
                .collect::<Result<Vec<_>, LoadError>>()?;
            self.insert(&client, &statements, &clients, &batch, seq + 1)
                .await?;
            seq += i64::try_from(batch.len()).unwrap_or(0);
            let done = Instant::now();
            if done >= begin && done <= end {
                tally.record(&Sample {
                    latency: done - sent,
                    commits: batch.len() as u64,
                    ..Sample::default()
                });
            }
        }
        let shape = Shape {
            label: self.pace.label.clone(),
            scenario: "floor",
            clients: 1,
            partitions: 1,
        };
        Ok(tally.report(shape, measured))
    }

    async fn insert(
        &self,
        client: &Client,
        statements: &[Statement],
        clients: &[Todos],
        batch: &[(usize, TodoInsert)],
        first: i64,
    ) -> Result<(), LoadError> {
        let seqs: Vec<i64> = (first..).take(batch.len()).collect();
        let inserts = || batch.iter().map(|(_, insert)| insert);
        let each = |read: fn(&TodoInsert) -> &str| inserts().map(read).collect::<Vec<&str>>();
        let commits = each(|insert| &insert.client_commit_id);
        let ids = each(|insert| &insert.row_id);
        let payloads: Vec<&[u8]> = inserts().map(|insert| &insert.payload[..]).collect();
        let times: Vec<i64> = inserts().map(|insert| insert.created_at_ms).collect();
        let results: Vec<String> = inserts()
            .zip(&seqs)
            .map(|(insert, seq)| insert.result(*seq))
            .collect();
        let partition = &self.partition;
        let owners = || batch.iter().map(|(turn, _)| &clients[*turn]);
        let client_ids: Vec<&str> = owners().map(|todos| &*todos.client_id).collect();
        let lists: Vec<&str> = owners().map(|todos| &*todos.list_id).collect();
        let scopes: Vec<&str> = owners().map(|todos| &*todos.scopes).collect();
        let title = clients.first().map_or("", |todos| &*todos.title);
        let params: [&[&(dyn ToSql + Sync)]; 6] = [
            &[
                partition,
                &ACTOR,
                &WRITER_VERSION,
                &seqs,
                &client_ids,
                &commits,
                &times,
            ],
            &[partition, &seqs, &scopes, &ids, &payloads],
            &[partition, &lists, &seqs],
            &[partition, &lists, &ids],
            &[partition, &client_ids, &commits, &results],
            &[partition, &title, &lists, &scopes, &ids, &payloads],
        ];
        // Polled in order, each future sends its statement before any answer is awaited.
        let inserts = try_join_all(
            statements
                .iter()
                .zip(params)
                .map(|(statement, params)| client.execute(statement, params)),
        );
        let (begun, inserted, committed) = tokio::join!(
            biased;
            client.batch_execute("BEGIN"),
            inserts,
            client.batch_execute("COMMIT"),
        );
        begun
            .and(inserted.map(|_| ()))
            .and(committed)
            .map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yardstick::{mean_batch, prepare};

    #[test]
    fn batch_sizes_have_the_wanted_mean() {
        for mean in [1.0, 1.25, 17.6, 20.0] {
            let mut sizes = Sizes::of(mean);
            let total: usize = (0..1000).map(|_| sizes.next()).sum();
            assert!((total as f64 / 1000.0 - mean).abs() < 0.01, "{mean}");
        }
        let mut sizes = Sizes::of(2.5);
        assert!((0..100).all(|_| matches!(sizes.next(), 2 | 3)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn batches_are_counted_as_the_commits_in_them() {
        let database = tidegate_test_postgres::Database::create().unwrap();
        let url = database.url();
        prepare(&url).await.unwrap();
        assert_eq!(mean_batch(&url, "p", 0).await.unwrap(), None);
        let pace = Pace {
            seconds: 0.4,
            warmup: 0.0,
            label: String::new(),
            payload_bytes: 10,
        };
        let yardstick = Floor {
            database: &url,
            partition: "p",
            batch: 4.0,
            clients: 3,
            pace: &pace,
        };
        let report = yardstick.run().await.unwrap();
        assert!(report.requests > 0);
        assert_eq!(report.commits, 4 * report.requests);
        // What shares a transaction is a batch, in the database's own account of it.
        assert_eq!(mean_batch(&url, "p", 0).await.unwrap(), Some(4.0));
        // A second run goes on where the first one ended.
        assert!(yardstick.run().await.unwrap().commits > 0);
        let client = connect(&url).await.unwrap();
        let row = client
            .query_one(
                "SELECT max(commit_seq), count(*), (SELECT count(*) FROM todos), (SELECT count(*) FROM sync_changes),
                   (SELECT count(*) FROM sync_change_scopes), (SELECT count(*) FROM sync_row_scopes),
                   (SELECT count(*) FROM sync_push_results) FROM sync_commits",
                &[],
            )
            .await
            .unwrap();
        let counts: Vec<i64> = (0..7).map(|column| row.get(column)).collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
}

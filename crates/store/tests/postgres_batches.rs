//! The ways to write a batch: as one statement, as several in a transaction, and beside
//! batches of other partitions. What is stored, and what the gate is said to have seen,
//! does not depend on the way.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use postgres_support::{Postgres, prepare};
use tidegate_engine::gate::PendingCheckpoint;
use tidegate_engine::model::{CommitBatch, Over, RowWrite};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, TableId};
use tidegate_store::contract::fixture::*;
use tidegate_store::contract::over::{Content, filed, project, secret, task};
use tidegate_store::{CommitError, Passed, Store, chain};
use tokio_postgres::Client;

/// Tables and kinds of puts that one statement writes, at most.
const MOST_COMBINATIONS: usize = 6;

async fn write(store: &dyn Store, batch: CommitBatch) -> Option<Passed> {
    let (settle, _) = chain();
    let written = store.commit_chained(Arc::new(batch), None, settle).await;
    written.unwrap()
}

/// Reproducible numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // Xorshift; never 0.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What a round's batches are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Puts into few tables, none that touches a blob.
    Few,
    /// Puts into all tables.
    All,
    /// Deletes as well.
    Deletes,
    /// Puts over rows and new ones in every table, the notes' new alone.
    Many,
}

const ROUNDS: [Round; 5] = [
    Round::Few,
    Round::All,
    Round::Deletes,
    Round::Many,
    Round::Few,
];

fn values(random: &mut Random, table: TableId, id: u64, blobs: bool) -> Vec<ssp2::Value> {
    let scope = ["a", "b", "c"][usize::try_from(random.below(3)).unwrap()];
    let name = format!("k{id}");
    match table {
        NOTES => {
            let blob =
                (blobs && random.chance(50)).then(|| if random.chance(50) { 'a' } else { 'b' });
            filed(&name, scope, blob)
        }
        PROJECTS => project(&name, scope),
        TASKS => task(i64::try_from(id).unwrap(), scope),
        _ => secret(&name, scope),
    }
}

/// One to three commits; some rows are written by several of them.
fn commits(random: &mut Random, round: Round, number: u64, content: &Content) -> Vec<Vec<Op>> {
    let schema = compile(&document());
    // New ones every time, and those of earlier rounds.
    let fresh = 1_000 + number * 10;
    let mut commits = Vec::new();
    for _ in 0..=random.below(3) {
        let mut ops = Vec::new();
        for table in [NOTES, PROJECTS, TASKS, SECRETS] {
            let kept_out = match round {
                Round::Few => table == NOTES || random.chance(20),
                _ => false,
            };
            if kept_out {
                continue;
            }
            for _ in 0..random.below(4) {
                let old = random.chance(60);
                let id = if old {
                    random.below(6)
                } else {
                    fresh + random.below(5)
                };
                let values = values(random, table, id, round != Round::Many);
                let stored = content.over(&key_of(&schema, table, &values));
                if round == Round::Many && table == NOTES && stored == Over::Row {
                    continue;
                }
                let version = i64::try_from(2 + random.below(9)).unwrap();
                let op = if round == Round::Deletes && random.chance(50) {
                    Op::Delete(table, values)
                } else if random.chance(50) {
                    Op::Put(table, values, 1)
                } else {
                    Op::Put(table, values, version)
                };
                ops.push(op);
            }
        }
        commits.push(ops);
    }
    if round == Round::Many {
        let (mut over, mut new) = (Vec::new(), Vec::new());
        for table in [PROJECTS, TASKS, SECRETS] {
            over.push(put_again(table, values(random, table, 900, false)));
            new.push(put(table, values(random, table, fresh + 7, false)));
        }
        new.push(put(NOTES, values(random, NOTES, fresh + 7, false)));
        commits.push([over, new].concat());
    }
    commits
}

/// Whether the batch is of the kind that one statement writes.
fn is_plain(batch: &CommitBatch) -> bool {
    let mut combinations = BTreeSet::new();
    for write in &batch.rows {
        let RowWrite::Put {
            key, values, over, ..
        } = write
        else {
            return false;
        };
        let stored = *over == Over::Row;
        combinations.insert((key.table, stored));
        if key.table == NOTES && (stored || values[9] != ssp2::Value::Null) {
            return false;
        }
    }
    combinations.len() <= MOST_COMBINATIONS
}

/// Everything that batches write, without the partition.
async fn contents(client: &Client, partition: &str) -> Vec<(&'static str, Vec<String>)> {
    let mut all = Vec::new();
    for (table, column) in [
        ("sync_partitions", "partition"),
        ("sync_commits", "partition"),
        ("sync_changes", "partition"),
        ("sync_change_scopes", "partition"),
        ("sync_row_scopes", "partition"),
        ("sync_blob_refs", "partition"),
        ("sync_tombstones", "partition"),
        ("sync_push_results", "partition"),
        ("notes", "_sync_partition"),
        ("projects", "_sync_partition"),
        ("tasks", "_sync_partition"),
        ("secrets", "_sync_partition"),
    ] {
        let sql = format!(
            "SELECT (to_jsonb(t) - '{column}')::text FROM {table} AS t WHERE {column}=$1 ORDER BY 1"
        );
        let rows = client.query(&sql, &[&partition]).await.unwrap();
        all.push((table, rows.iter().map(|row| row.get(0)).collect()));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_a_batch_is_written_makes_no_difference_to_what_is_stored() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    let watch = database.connect().await;
    let (mut plain, mut several) = (Content::new("plain"), Content::new("several"));
    let seed = [vec![
        put(PROJECTS, project("k900", "a")),
        put(TASKS, task(900, "a")),
        put(SECRETS, secret("k900", "a")),
    ]];
    plain.write(&*store, &seed).await;
    several.write(&*store, &seed).await;
    let mut random = Random(0x5eed_0f7e_57ed);
    // As one statement; with deletes; with too many combinations.
    let (mut as_one, mut deleting, mut too_many) = (0, 0, 0);
    for number in 0..30_u64 {
        let round = ROUNDS[usize::try_from(number).unwrap() % ROUNDS.len()];
        let commits = commits(&mut random, round, number, &plain);
        let batch = plain.batch(&commits);
        let expected = is_plain(&batch);
        let deletes = |write: &RowWrite| matches!(write, RowWrite::Delete { .. });
        as_one += usize::from(expected);
        deleting += usize::from(batch.rows.iter().any(deletes));
        too_many += usize::from(round == Round::Many);
        let passed = write(&*store, batch).await;
        // One statement tells what its gate saw.
        assert_eq!(passed.is_some(), expected, "round {number}");
        let mut batch = several.batch(&commits);
        batch.clients.push(client("device", "actor", 0));
        assert_eq!(write(&*store, batch).await, None, "round {number}");
        let (ours, theirs) = (
            contents(&watch, "plain").await,
            contents(&watch, "several").await,
        );
        for (ours, theirs) in ours.into_iter().zip(theirs) {
            assert_eq!(ours, theirs, "round {number}");
        }
        plain.assert_stored(&database, &*store).await;
        several.assert_stored(&database, &*store).await;
    }
    assert!(as_one >= 8, "{as_one}");
    assert!(deleting >= 5, "{deleting}");
    assert!(too_many >= 5, "{too_many}");
}

#[tokio::test]
async fn each_of_several_batches_in_a_transaction_is_told_what_its_gate_saw() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    let watch = database.connect().await;
    watch
        .batch_execute(
            "INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
             VALUES ('p3', 'totals', 1, 'declared', 0), ('other', 'totals', 1, 'declared', 0),
                    ('other', 'done', 1, 'activated', 0)",
        )
        .await
        .unwrap();
    let checkpoint = |partition: &str| PendingCheckpoint {
        partition: partition.to_owned(),
        name: "totals".to_owned(),
    };
    let pending = vec![checkpoint("other"), checkpoint("p3")];
    let declared: BTreeSet<(String, String)> = pending
        .iter()
        .map(|one| (one.partition.clone(), one.name.clone()))
        .collect();
    let declared = Arc::new(declared);
    // Each partition has a head, a horizon and an epoch of its own; the last one is not
    // registered.
    let partitions: Vec<String> = (0..6).map(|n| format!("p{n}")).collect();
    let mut heads: Vec<i64> = Vec::new();
    for (partition, length) in partitions.iter().zip(1_i64..) {
        for expected in 0..length {
            let mut batch = batch(&schema, partition, expected, &note_again());
            batch.declared = Arc::clone(&declared);
            write(&*store, batch).await;
        }
        heads.push(length);
        if length < 6 {
            let epoch = format!("epoch of {partition}");
            let touch = touch(1, &epoch);
            store
                .read_preamble(&p(partition), &ClientId::from("d"), touch)
                .await
                .unwrap();
            store
                .prune(
                    &p(partition),
                    &LogEpoch::from(epoch.as_str()),
                    CommitSeq(length / 2),
                )
                .await
                .unwrap();
        }
    }
    let mut shared = 0;
    for _ in 0..20 {
        let batches = partitions.iter().zip(&heads).map(|(partition, head)| {
            // A row of a table without blobs: all of it is one statement.
            let ops = [
                vec![put_again(PROJECTS, project("a", "w"))],
                vec![put_again(TASKS, task(*head, "w"))],
            ];
            let mut batch = batch(&schema, partition, *head, &ops);
            batch.declared = Arc::clone(&declared);
            write(&*store, batch)
        });
        // In no order of their names.
        let mut batches: Vec<_> = batches.collect();
        batches.reverse();
        let mut told = join_all(batches).await;
        told.reverse();
        for ((partition, head), passed) in partitions.iter().zip(&mut heads).zip(told) {
            *head += 2;
            let passed = passed.unwrap();
            let (token, bounds) = store.read_gate(&p(partition)).await.unwrap();
            assert_eq!(passed.token.pending, pending);
            assert_eq!(passed.bounds.max, CommitSeq(*head));
            assert_eq!(passed, Passed { token, bounds }, "{partition}");
        }
        let most: i64 = watch
            .query_one(
                "SELECT max(n) FROM (SELECT count(DISTINCT partition) AS n FROM sync_commits GROUP BY xmin::text) AS each",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        shared = shared.max(most);
    }
    assert!(shared > 1, "no transaction wrote several partitions");
    let horizons: Vec<i64> = watch
        .query(
            "SELECT horizon_seq FROM sync_partitions ORDER BY partition",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(horizons, [0, 1, 1, 2, 2, 0]);
}

/// Other programs may have deleted a row without its entries in the index of scopes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_a_deleted_row_left_behind_stops_no_new_row() {
    let postgres = Postgres::new();
    let store = postgres.store().await;
    let schema = prepare(&store).await;
    let watch = postgres.connect().await;
    let left = "INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
         VALUES ('p', 'projects', 'ws', 'w', 'a'), ('p', 'projects', 'ws', 'w', 'b')";
    watch.batch_execute(left).await.unwrap();
    let ops = ["a", "c"].map(|id| put(PROJECTS, project(id, "w")));
    let entries = "SELECT string_agg(row_id, ',' ORDER BY row_id) FROM sync_row_scopes
         WHERE tbl='projects' AND value='w'";
    write(&*store, batch(&schema, "p", 0, &[ops.to_vec()])).await;
    write(
        &*store,
        batch(&schema, "p", 1, &[vec![put(PROJECTS, project("b", "w"))]]),
    )
    .await;
    let found: String = watch.query_one(entries, &[]).await.unwrap().get(0);
    assert_eq!(found, "a,b,c");
    assert_eq!(head(&*store, "p").await, 2);
}

/// No order of the rows but one admits them, and a batch of many is not slow to find it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unique_values_that_move_on_by_one_row_each_are_written() {
    let postgres = Postgres::new();
    let store = postgres.store().await;
    let schema = prepare(&store).await;
    let rows = 250_i64;
    let ranked = |id: i64, rank: i64| note(&format!("n{id}"), "l1", "o1", Some(rank));
    let first = (0..rows).map(|n| put(NOTES, ranked(n, n)));
    write(&*store, batch(&schema, "p", 0, &[first.collect()])).await;
    // Up by one, and down again.
    for (head, up) in [(1, 1), (2, 0)] {
        let moved = (0..rows).map(|n| put_again(NOTES, ranked(n, n + up)));
        write(&*store, batch(&schema, "p", head, &[moved.collect()])).await;
    }
    // One that stays in the way of the others is named, whichever trip it is in.
    let mut ops: Vec<Op> = (0..rows)
        .map(|n| put(NOTES, ranked(1_000 + n, 1_000 + n)))
        .collect();
    for (at, taken) in [(30, 7), (180, 9)] {
        ops[at] = put(NOTES, ranked(2_000 + taken, taken));
    }
    let (settle, _) = chain();
    let refused = batch(&schema, "p", 3, &[ops]);
    let refused = store.commit_chained(Arc::new(refused), None, settle).await;
    let Err(CommitError::Constraint { key: Some(key) }) = refused else {
        panic!("{refused:?}");
    };
    assert!(["n2007", "n2009"].contains(&&*key.row_id), "{key:?}");
    assert_eq!(head(&*store, "p").await, 3);
}

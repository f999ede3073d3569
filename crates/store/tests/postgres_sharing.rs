//! Reads that requests share, and what closing waits for.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use std::sync::Arc;

use postgres_support::{Postgres, one, prepare, until, until_waiting};
use tidegate_engine::CommitSeq;
use tidegate_engine::model::Needs;
use tidegate_store::contract::fixture::*;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{Preamble, Store, Touch};
use tokio::task::JoinHandle;

/// Every look at a client stops, its view fixed, while somebody holds the lock 7.
const STOPPING_CLIENTS: &str = "ALTER TABLE sync_clients RENAME TO real_clients;
    CREATE FUNCTION stop() RETURNS boolean LANGUAGE plpgsql VOLATILE AS
      'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN true; END';
    CREATE VIEW sync_clients AS SELECT * FROM real_clients WHERE stop();
    INSERT INTO real_clients VALUES ('p', 'device', 'a', 3, 0, '[]', 1)";

fn preamble(store: &Arc<PostgresStore>, client: &'static str) -> JoinHandle<Preamble> {
    let store = Arc::clone(store);
    let touch = Touch {
        now_ms: 1,
        new_epoch: Arc::new(|| Ok("e".into())),
        refresh_after_ms: 1_000,
    };
    tokio::spawn(async move {
        store
            .read_preamble(&p("p"), &client.into(), touch)
            .await
            .unwrap()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_preamble_is_never_older_than_the_request() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    preamble(&store, "device").await.unwrap();
    let (holder, watch) = (database.connect().await, database.connect().await);
    holder.batch_execute(STOPPING_CLIENTS).await.unwrap();
    holder
        .batch_execute("SELECT pg_advisory_lock(7)")
        .await
        .unwrap();
    let early = preamble(&store, "device");
    until_waiting(&watch, 1).await;
    watch
        .batch_execute("INSERT INTO sync_partitions VALUES ('p', 5, 0)")
        .await
        .unwrap();
    // Both ask while a read is under way that cannot know of the 5 any more.
    let late = [preamble(&store, "device"), preamble(&store, "device")];
    let gate = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.read_gate(&p("p")).await.unwrap() }
    });
    holder
        .batch_execute("SELECT pg_advisory_unlock(7)")
        .await
        .unwrap();
    assert_eq!(early.await.unwrap().bounds.max, CommitSeq(0));
    for late in late {
        let late = late.await.unwrap();
        assert_eq!(late.client.unwrap().actor_id.as_str(), "a");
        // Asked before or after the unlock, they were asked after the 5.
        assert_eq!(late.bounds.max, CommitSeq(5));
    }
    assert_eq!(gate.await.unwrap().1.max, CommitSeq(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_hangs_does_not_hold_up_those_that_ask_later() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    preamble(&store, "device").await.unwrap();
    let (holder, watch) = (database.connect().await, database.connect().await);
    holder.batch_execute(STOPPING_CLIENTS).await.unwrap();
    holder
        .batch_execute("SELECT pg_advisory_lock(7)")
        .await
        .unwrap();
    let hanging = preamble(&store, "device");
    until_waiting(&watch, 1).await;
    // It looks at no client.
    store.read_gate(&p("p")).await.unwrap();
    assert!(!hanging.is_finished());
    holder
        .batch_execute("SELECT pg_advisory_unlock(7)")
        .await
        .unwrap();
    hanging.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_share_a_read_get_their_own_answers() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    let watch = database.connect().await;
    for partition in ["p", "q"] {
        watch
            .batch_execute(&format!(
                "INSERT INTO sync_partition_registry VALUES ('{partition}', 'epoch-{partition}', false, 1);
                 INSERT INTO sync_partitions VALUES ('{partition}', length('{partition}'), 0);
                 INSERT INTO sync_clients VALUES ('{partition}', 'device', 'owner-{partition}', 3, 7, '[]', 1)"
            ))
            .await
            .unwrap();
    }
    let asked = [
        ("p", "device"),
        ("q", "device"),
        ("p", "stranger"),
        ("q", "nul\0"),
        ("p", "device"),
    ];
    let reads = asked.repeat(20).into_iter().map(|(partition, client)| {
        let store = Arc::clone(&store);
        let touch = Touch {
            now_ms: 1,
            new_epoch: Arc::new(|| Ok("unused".into())),
            refresh_after_ms: 1_000,
        };
        tokio::spawn(async move {
            let (name, device) = (p(partition), client.into());
            let preamble = store.read_preamble(&name, &device, touch).await;
            (partition, client, preamble.unwrap())
        })
    });
    for read in reads.collect::<Vec<_>>() {
        let (partition, client, preamble) = read.await.unwrap();
        assert_eq!(
            preamble.registry.log_epoch.as_str(),
            format!("epoch-{partition}")
        );
        let owner = preamble.client.map(|record| record.actor_id.to_string());
        let expected = (client == "device").then(|| format!("owner-{partition}"));
        assert_eq!(owner, expected, "{partition} {client}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn needs_of_several_partitions_are_answered_each_for_itself() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    let partitions: Vec<String> = (0..30).map(|n| format!("p{n}")).collect();
    for (n, partition) in partitions.iter().enumerate() {
        for seq in 0..=(n as i64 % 3) {
            let values = note(&format!("n{seq}"), "l1", "o1", Some(seq));
            let ops = [vec![put(NOTES, values)]];
            commit(&*store, &schema, partition, seq, &ops).await;
        }
    }
    let keys: Vec<_> = (0..4)
        .map(|n| key_of(&schema, NOTES, &note(&format!("n{n}"), "l1", "o1", None)))
        .collect();
    let reads: Vec<_> = partitions
        .iter()
        .map(|partition| {
            let (store, partition) = (Arc::clone(&store), p(partition));
            let needs = Needs {
                rows: keys.iter().cloned().collect(),
                ..Needs::default()
            };
            tokio::spawn(async move { store.read_needs(&partition, &needs).await.unwrap() })
        })
        .collect();
    for (n, read) in reads.into_iter().enumerate() {
        let fetched = read.await.unwrap();
        let rows = n as i64 % 3 + 1;
        assert_eq!(fetched.max, CommitSeq(rows));
        assert_eq!(fetched.rows.len(), keys.len());
        let present = fetched
            .rows
            .iter()
            .filter(|(_, state)| matches!(state, tidegate_engine::model::RowState::Present(_)));
        assert_eq!(present.count() as i64, rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_the_write_of_a_locked_partition() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    let (blocker, watch) = (database.connect().await, database.connect().await);
    let mut locked = store.begin_locked(&p("p")).await.unwrap();
    assert_eq!(
        locked.read_needs(&Needs::default()).await.unwrap().max,
        CommitSeq(0)
    );
    blocker
        .batch_execute("BEGIN; LOCK TABLE sync_push_results IN SHARE MODE")
        .await
        .unwrap();
    let batch = Arc::new(one(&schema, 0, "n"));
    {
        // A caller that gives up does not end the write.
        let writing = locked.commit(batch);
        tokio::pin!(writing);
        tokio::select! {
            outcome = &mut writing => panic!("it was not held up: {outcome:?}"),
            () = until_waiting(&watch, 1) => {}
        }
    }
    let closing = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.close().await }
    });
    until(&watch, "SELECT true").await;
    assert!(!closing.is_finished());
    blocker.batch_execute("COMMIT").await.unwrap();
    closing.await.unwrap();
    let head: i64 = watch
        .query_one("SELECT max_commit_seq FROM sync_partitions", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(head, 1);
}

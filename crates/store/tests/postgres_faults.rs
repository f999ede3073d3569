//! Lost connections, refused rows and what the gate refuses.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use std::sync::Arc;

use postgres_support::{BOTH, Postgres, one, prepare, spawn, until, until_waiting};
use tidegate_engine::model::ResultLookup;
use tidegate_store::contract::Harness;
use tidegate_store::contract::fixture::*;
use tidegate_store::postgres::{ConnectError, PostgresOptions, PostgresStore};
use tidegate_store::{CommitError, Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A trigger that makes COMMIT itself wait for a lock.
const WAIT_AT_COMMIT: &str = "
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON sync_commits
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit();";
const TERMINATE_WAITING: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'";
const TERMINATE_OTHERS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()";
const ALONE: &str = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()
 AND backend_type = 'client backend'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_killed_before_a_commit_are_replaced() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    let watch = database.connect().await;
    store
        .commit_batch(Arc::new(one(&schema, 0, "n1")))
        .await
        .unwrap();
    watch.query_one(TERMINATE_OTHERS, &[]).await.unwrap();
    until(&watch, ALONE).await;
    // The death of an idle connection may not be known yet; then nothing is
    // written, or the stored result tells.
    match store.commit_batch(Arc::new(one(&schema, 1, "n2"))).await {
        Ok(()) => {}
        Err(CommitError::Store(StoreError::Unavailable(_)) | CommitError::OutcomeUnknown(_)) => {
            assert_eq!(result(&*store, "p", "c2").await, ResultLookup::Absent);
            store
                .commit_batch(Arc::new(one(&schema, 1, "n2")))
                .await
                .unwrap();
        }
        Err(error) => panic!("{error:?}"),
    }
    assert_eq!(head(&*store, "p").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_killed_during_a_batch_wrote_nothing() {
    for make in BOTH {
        let database = Postgres::new();
        let store = database.store().await;
        let schema = prepare(&store).await;
        let (blocker, watch) = (database.connect().await, database.connect().await);
        blocker
            .batch_execute(
                "BEGIN; INSERT INTO sync_push_results VALUES ('p', 'device', 'c1', '{}')",
            )
            .await
            .unwrap();
        let ours = spawn(&store, make(&schema, 0, "n1"));
        until_waiting(&watch, 1).await;
        watch.query_one(TERMINATE_WAITING, &[]).await.unwrap();
        let outcome = ours.await.unwrap();
        assert!(
            matches!(
                outcome,
                // A statement that commits by itself may have done so.
                Err(CommitError::Store(StoreError::Unavailable(_)) | CommitError::OutcomeUnknown(_))
            ),
            "{outcome:?}"
        );
        blocker.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(head(&*store, "p").await, 0);
        store
            .commit_batch(Arc::new(make(&schema, 0, "n1")))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_killed_at_commit_leaves_the_outcome_to_the_stored_result() {
    for make in BOTH {
        let database = Postgres::new();
        let store = database.store().await;
        let schema = prepare(&store).await;
        let (holder, watch) = (database.connect().await, database.connect().await);
        holder.batch_execute(WAIT_AT_COMMIT).await.unwrap();
        holder
            .batch_execute("SELECT pg_advisory_lock(1)")
            .await
            .unwrap();
        let ours = spawn(&store, make(&schema, 0, "n1"));
        until_waiting(&watch, 1).await;
        watch.query_one(TERMINATE_WAITING, &[]).await.unwrap();
        let outcome = ours.await.unwrap();
        assert!(
            matches!(outcome, Err(CommitError::OutcomeUnknown(_))),
            "{outcome:?}"
        );
        holder
            .batch_execute("SELECT pg_advisory_unlock(1)")
            .await
            .unwrap();
        assert_eq!(result(&*store, "p", "c1").await, ResultLookup::Absent);
        store
            .commit_batch(Arc::new(make(&schema, 0, "n1")))
            .await
            .unwrap();
    }
}

/// Forwards connections to the server; what the server says passes only while
/// it is `true` in the channel, and all connections end when it is dropped.
async fn proxy(url: &str, speaks: watch::Receiver<bool>) -> String {
    let config: tokio_postgres::Config = url.parse().unwrap();
    let port = config.get_ports()[0];
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let ours = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut speaks = speaks.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let up = tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                });
                let mut buffer = vec![0; 65536];
                while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                    if speaks.wait_for(|speaks| *speaks).await.is_err()
                        || to_client.write_all(&buffer[..read]).await.is_err()
                    {
                        break;
                    }
                }
                up.abort();
            });
        }
    });
    url.replace(&format!(":{port}/"), &format!(":{ours}/"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_lost_after_commit_is_found_among_the_stored_results() {
    for make in BOTH {
        let database = Postgres::new();
        let observer = database.store().await;
        let schema = prepare(&observer).await;
        let (switch, speaks) = watch::channel(true);
        let options = PostgresOptions::new(proxy(&database.url(), speaks).await);
        let store = PostgresStore::connect(options).await.unwrap();
        prepare(&store).await;
        // Statements are prepared: the next batch is one round trip.
        store
            .commit_batch(Arc::new(make(&schema, 0, "n1")))
            .await
            .unwrap();
        switch.send(false).unwrap();
        let ours = spawn(&store, make(&schema, 1, "n2"));
        let watch = database.connect().await;
        until(&watch, "SELECT count(*) = 2 FROM sync_commits").await;
        assert!(!ours.is_finished());
        drop(switch);
        let outcome = ours.await.unwrap();
        assert!(
            matches!(outcome, Err(CommitError::OutcomeUnknown(_))),
            "{outcome:?}"
        );
        assert_eq!(
            result(&*observer, "p", "c2").await,
            ResultLookup::Found(Arc::new(applied(2)))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_violation_of_a_later_commit_names_its_row() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    let slot = |id: &str, rank| vec![put(NOTES, note(id, "l1", "o1", Some(rank)))];
    commit(&*store, &schema, "p", 0, &[slot("taken", 7)]).await;
    let commits = [slot("a", 1), slot("b", 7), slot("c", 3)];
    match try_commit(&*store, &schema, "p", 1, &commits).await {
        Err(CommitError::Constraint { key: Some(key) }) => assert_eq!(&*key.row_id, "b"),
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(head(&*store, "p").await, 1);
    // Replayed one by one, only the one that violates it is refused.
    commit(&*store, &schema, "p", 1, &[slot("a", 1)]).await;
    assert!(matches!(
        try_commit(&*store, &schema, "p", 2, &[slot("b", 7)]).await,
        Err(CommitError::Constraint { .. })
    ));
    commit(&*store, &schema, "p", 2, &[slot("c", 3)]).await;
    assert_eq!(database.query("SELECT id FROM notes").await.len(), 3);
    // The same through a held partition.
    let locked = store.begin_locked(&p("p")).await.unwrap();
    let refused = locked
        .commit(Arc::new(batch(&schema, "p", 3, &[slot("b", 7)])))
        .await;
    assert!(matches!(
        refused,
        Err(CommitError::Constraint { key: Some(_) })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commit_of_a_failed_transaction_is_no_success() {
    for make in BOTH {
        let database = Postgres::new();
        let store = database.store().await;
        let schema = prepare(&store).await;
        // The last statement before COMMIT fails, and the driver calls that COMMIT a success.
        database
            .sql("ALTER TABLE notes ADD CONSTRAINT never CHECK (title <> title)")
            .await;
        let outcome = store.commit_batch(Arc::new(make(&schema, 0, "n1"))).await;
        assert!(
            matches!(outcome, Err(CommitError::Constraint { .. })),
            "{outcome:?}"
        );
        assert_eq!(head(&*store, "p").await, 0);
        assert!(
            database
                .query("SELECT 1 FROM sync_commits")
                .await
                .is_empty()
        );
        database
            .sql("ALTER TABLE notes DROP CONSTRAINT never")
            .await;
        store
            .commit_batch(Arc::new(make(&schema, 0, "n1")))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gate_refuses_outside_its_transaction_and_under_another_isolation() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    let client = database.connect().await;
    let gate = "SELECT tidegate_commit_gate('{p}', '{0}', '{1}', 1, '{}', '{}', NULL, NULL, false)";
    for (open, refused) in [
        ("SELECT 1", true),
        ("BEGIN", true),
        (
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL tidegate.tx = '1'",
            true,
        ),
        (
            "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL tidegate.tx = '1'",
            true,
        ),
        (
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL tidegate.tx = '1'",
            false,
        ),
        // The setting ends with its transaction.
        ("ROLLBACK; BEGIN", true),
    ] {
        client.batch_execute(open).await.unwrap();
        let outcome = client.batch_execute(gate).await;
        if refused {
            let code = outcome.unwrap_err().code().unwrap().code().to_owned();
            assert_eq!(code, "TG000", "{open}");
            client.batch_execute("ROLLBACK").await.unwrap();
        } else {
            outcome.unwrap();
        }
    }
    // As a part of a statement that is the whole transaction it needs no BEGIN.
    let whole = gate.replace("false", "true");
    for isolation in ["repeatable read", "serializable"] {
        let open = format!("SET default_transaction_isolation = '{isolation}'");
        client.batch_execute(&open).await.unwrap();
        let refused = client.batch_execute(&whole).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "TG000", "{isolation}");
    }
    assert_eq!(head(&*store, "p").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_with_a_nul_is_a_constraint_and_json_that_jsonb_refuses_is_null() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    let title = |text: &str| {
        let mut values = note("n", "l1", "o1", None);
        values[3] = tidegate_store::contract::fixture::text(text);
        values
    };
    for ops in [
        put(NOTES, title("a\0b")),
        put(NOTES, note("a\0b", "l1", "o1", None)),
        put(NOTES, note("n", "l\0", "o1", None)),
    ] {
        let outcome = try_commit(&*store, &schema, "p", 0, &[vec![ops]]).await;
        assert!(
            matches!(outcome, Err(CommitError::Constraint { .. })),
            "{outcome:?}"
        );
    }
    let mut values = note("n", "l1", "o1", None);
    values[7] = tidegate_store::contract::fixture::text(r#"{"a":"\u0000"}"#);
    commit(&*store, &schema, "p", 0, &[vec![put(NOTES, values)]]).await;
    let stored = rows(&database, "SELECT extra FROM notes").await;
    assert_eq!(stored, [["NULL"]]);
    // Nothing stored has such a key, and asking is no failure.
    assert_eq!(result(&*store, "p", "a\0").await, ResultLookup::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_longer_than_an_index_entry_is_a_constraint() {
    let database = Postgres::new();
    let store = database.store().await;
    let schema = prepare(&store).await;
    // Not compressible, as far as the database's compression goes.
    let mut state = 1_u64;
    let id: String = (0..12_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap())
        })
        .collect();
    let outcome = store.commit_batch(Arc::new(one(&schema, 0, &id))).await;
    assert!(
        matches!(outcome, Err(CommitError::Constraint { .. })),
        "{outcome:?}"
    );
    assert_eq!(head(&*store, "p").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_rows_are_in_byte_order_whatever_the_locale() {
    let database =
        Postgres::with("TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en' ENCODING 'UTF8'");
    // A table of another program has the locale's order.
    database
        .sql(
            "CREATE TABLE sync_row_scopes(
               partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL,
               value TEXT NOT NULL, row_id TEXT NOT NULL,
               PRIMARY KEY(partition, tbl, var, value, row_id))",
        )
        .await;
    let store = database.store().await;
    let schema = prepare(&store).await;
    let names = ["a", "B", "b", "A", "ä", "Z", "_", "z", "-"];
    for (n, id) in (0..).zip(names) {
        let ops = [vec![put(NOTES, note(id, "l1", "o1", None))]];
        commit(&*store, &schema, "p", n, &ops).await;
    }
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let mut snapshot = store.snapshot(&p("p")).await.unwrap();
        let page = snapshot
            .scan_rows(tidegate_store::ScanQuery {
                table: NOTES,
                scopes: lists(&[("list_id", &["l1"])]),
                after_row_id: after.take(),
                limit: 2,
                max_bytes: usize::MAX,
            })
            .await
            .unwrap();
        found.extend(page.rows.iter().map(|(id, _)| id.clone()));
        if !page.more {
            break;
        }
        after = found.last().cloned();
    }
    assert_eq!(found, sorted);
    let indexes = rows(
        &database,
        "SELECT 1 FROM pg_indexes WHERE indexname='tidegate_row_scopes_by_bytes'",
    )
    .await;
    assert_eq!(indexes.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_a_store_from_opening_is_told_apart() {
    let database = Postgres::new();
    let url = database.url();
    let open = async |url: String| {
        let mut options = PostgresOptions::new(url);
        options.connect_timeout = std::time::Duration::from_secs(2);
        PostgresStore::connect(options).await.unwrap_err()
    };
    assert!(matches!(
        open("nonsense".into()).await,
        ConnectError::BadUrl(_)
    ));
    let port = {
        let free = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        free.local_addr().unwrap().port()
    };
    let nobody = open(format!("postgres://postgres@127.0.0.1:{port}/x")).await;
    assert!(matches!(nobody, ConnectError::Unreachable(_)), "{nobody:?}");
    let missing = open(format!("{url}_missing")).await;
    assert!(
        matches!(missing, ConnectError::UnknownDatabase),
        "{missing:?}"
    );
    let user = format!("{}_user", url.rsplit('/').next().unwrap());
    let stranger = open(url.replace("postgres@", "no_such_role_at_all@")).await;
    assert!(
        matches!(stranger, ConnectError::WrongPassword),
        "{stranger:?}"
    );
    database
        .sql(&format!(
            "CREATE ROLE {user} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
        ))
        .await;
    let powerless = open(url.replace("postgres@", &format!("{user}@"))).await;
    assert!(
        matches!(powerless, ConnectError::MissingPermission(_)),
        "{powerless:?}"
    );
    // One grant of many is missing: told at the start, not by the first push.
    let store = database.store().await;
    prepare(&store).await;
    database
        .sql(&format!(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO {user};
             REVOKE DELETE ON sync_tombstones FROM {user}"
        ))
        .await;
    let lacking = open(url.replace("postgres@", &format!("{user}@"))).await;
    assert!(
        matches!(lacking, ConnectError::MissingPermission(what) if what.contains("DELETE")),
        "{lacking:?}"
    );
    let name = url.rsplit('/').next().unwrap();
    database
        .sql(&format!(
            "ALTER ROLE {user} SET default_transaction_read_only = on; GRANT ALL ON DATABASE {name} TO {user}"
        ))
        .await;
    let standby = open(url.replace("postgres@", &format!("{user}@"))).await;
    assert!(matches!(standby, ConnectError::ReadOnly), "{standby:?}");
    database
        .sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}"))
        .await;
    let latin = Postgres::with("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'");
    let encoding = open(latin.url()).await;
    assert!(matches!(encoding, ConnectError::NotUtf8), "{encoding:?}");
    for error in [
        nobody, missing, stranger, powerless, lacking, standby, encoding,
    ] {
        assert!(!error.to_string().contains('\n') && !error.to_string().contains("127.0.0.1"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_programs_fence_is_replaced_and_ours_is_left_alone() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    let identity =
        "SELECT t.oid, p.oid, p.xmin FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
      WHERE tgname = 'sync_commits_writer_fence'";
    let before = rows(&database, identity).await;
    prepare(&*database.store().await).await;
    assert_eq!(rows(&database, identity).await, before);
    database
        .sql(
            "CREATE FUNCTION harmless() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
             DROP TRIGGER sync_commits_writer_fence ON sync_commits;
             CREATE TRIGGER sync_commits_writer_fence BEFORE INSERT ON sync_commits
               FOR EACH ROW EXECUTE FUNCTION harmless();
             INSERT INTO sync_writer_fence VALUES ('p', 2)",
        )
        .await;
    prepare(&*database.store().await).await;
    let refused = database
        .try_sql("INSERT INTO sync_commits VALUES ('p', 1, 'd', 'c', 'a', 1, 1)")
        .await;
    assert_eq!(refused.unwrap_err(), "sync.storage.writer_fence_rejected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_default_isolation_is_written_to_all_the_same() {
    let database = Postgres::new();
    database
        .sql(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable',
               current_database()); END $$",
        )
        .await;
    let store = database.store().await;
    let schema = prepare(&store).await;
    for (expected, make) in (0..).zip(BOTH) {
        let batch = make(&schema, expected, &format!("n{expected}"));
        store.commit_batch(Arc::new(batch)).await.unwrap();
    }
    assert_eq!(head(&*store, "p").await, 2);
}

//! The store contract on a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use std::sync::Arc;
use std::time::Duration;

use postgres_support::{Postgres, prepare, until_waiting};
use tidegate_store::contract::fixture::*;
use tidegate_store::contract::operating;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{OperatorStore, SchemaOutcome, Store, StoreError};

mod core {
    tidegate_store::contract_tests!(core, crate::Postgres::new);
}
mod gated {
    tidegate_store::contract_tests!(gated, crate::Postgres::new);
}
mod reopen {
    tidegate_store::contract_tests!(reopen, crate::Postgres::new);
}
mod sql {
    tidegate_store::contract_tests!(sql, crate::Postgres::new);
}
mod backfills {
    tidegate_store::contract_tests!(backfills, crate::Postgres::new);
}

/// Columns of each table in order, indexes, functions and triggers.
const CATALOG: &str = "SELECT c.relname::text AS name, string_agg(a.attname || ' ' ||
       format_type(a.atttypid, a.atttypmod) || a.attnotnull || coalesce(k.collname, ''), ', ' ORDER BY a.attnum) AS text
   FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid LEFT JOIN pg_collation AS k ON k.oid = a.attcollation
   WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 1
   UNION ALL SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = 'public'
   UNION ALL SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace
   UNION ALL SELECT tgname::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
   ORDER BY 1, 2";

#[tokio::test]
async fn the_listed_statements_are_those_of_the_migration() {
    let (first, second) = (Postgres::new(), Postgres::new());
    operating::the_listed_statements_are_those_of_the_migration(&first, &second, CATALOG).await;
}

#[tokio::test]
async fn the_dry_run_of_a_new_database_lists_everything() {
    let (first, second) = (Postgres::new(), Postgres::new());
    operating::the_dry_run_of_a_new_database_lists_everything(&first, &second, CATALOG).await;
}

#[tokio::test]
async fn a_dry_run_waits_for_no_writer_and_no_barrier() {
    let database = Postgres::new();
    let store = database.store().await;
    prepare(&store).await;
    let holder = database.connect().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE; LOCK TABLE notes IN SHARE ROW EXCLUSIVE MODE")
        .await
        .unwrap();
    let plan = store.plan_migration(compile(&document_v2()), &[]).await;
    assert!(!plan.unwrap().ddl.is_empty());
    holder.batch_execute("ROLLBACK").await.unwrap();
}

fn migrate(
    store: &Arc<PostgresStore>,
) -> tokio::task::JoinHandle<Result<SchemaOutcome, StoreError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.ensure_schema(compile(&document_v2()), &[], 1).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_precedes_the_barrier_in_the_migrations_transaction() {
    let database = Postgres::new();
    let mut options = database.options();
    // Of requests; a migration waits longer than that.
    options.statement_timeout = Duration::from_millis(50);
    options.lock_timeout = Duration::from_millis(50);
    let store = PostgresStore::connect(options).await.unwrap();
    prepare(&store).await;
    let holder = database.connect().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
        .await
        .unwrap();
    let migration = migrate(&store);
    let watch = database.connect().await;
    until_waiting(&watch, 1).await;
    // The waiting transaction has written nothing and holds no lock of any table.
    let waiting = watch
        .query_one(
            "SELECT query, backend_xid IS NULL,
               (SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation')
             FROM pg_stat_activity AS a WHERE datname = current_database() AND wait_event_type = 'Lock'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        waiting.get::<_, &str>(0),
        "LOCK TABLE sync_partitions IN EXCLUSIVE MODE"
    );
    assert!(waiting.get::<_, bool>(1));
    assert_eq!(waiting.get::<_, i64>(2), 0);
    // Far beyond the timeouts of requests.
    holder
        .batch_execute("SELECT pg_sleep(0.3); COMMIT")
        .await
        .unwrap();
    assert!(matches!(
        migration.await.unwrap(),
        Ok(SchemaOutcome::Migrated { .. })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_that_does_not_come_in_time_fails_and_is_tried_afresh() {
    let database = Postgres::new();
    let mut options = database.options();
    options.migration_lock_timeout = Duration::from_millis(50);
    let store = PostgresStore::connect(options).await.unwrap();
    prepare(&store).await;
    let holder = database.connect().await;
    holder
        .batch_execute("BEGIN; LOCK TABLE sync_partitions IN EXCLUSIVE MODE")
        .await
        .unwrap();
    assert!(migrate(&store).await.unwrap().is_err());
    holder.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(
        migrate(&store).await.unwrap(),
        Ok(SchemaOutcome::Migrated { .. })
    ));
}

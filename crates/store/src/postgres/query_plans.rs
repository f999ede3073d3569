//! What the database plans for the statements of a request: no scan of a table
//! that grows. Sequential scans stay allowed; the tables are large enough that
//! nobody would choose one where an index serves.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tidegate_engine::model::ChildrenKey;
use tidegate_test_postgres::Database;
use tokio_postgres::Client;

use super::batch::Encoded;
use super::commit;
use super::connection::PLANNING;
use super::plan::{Children, Plan};
use super::preambles::PREAMBLES;
use super::read::{BOUNDS, NEEDS};
use super::rows::{CLEAR_BLOB_REFS, CLEAR_ROW_SCOPES, CLEAR_TOMBSTONES, STALE_ROW_SCOPES};
use super::window::{scan_sql, window_sql};
use super::{PostgresOptions, PostgresStore, checkpoints, maintain, source_rows};
use crate::Store as _;
use crate::contract::fixture::{NOTES, SECRETS, TASKS, batch, compile, document, note, put};
use crate::error::{CommitError, StoreError};

const GROWING: [&str; 12] = [
    "sync_partitions",
    "sync_partition_registry",
    "sync_row_scopes",
    "sync_commits",
    "sync_changes",
    "sync_change_scopes",
    "sync_push_results",
    "sync_clients",
    "sync_blob_refs",
    "sync_tombstones",
    "sync_backfill_checkpoints",
    "notes",
];

/// Many partitions, one of them large; a history of finished checkpoints.
const FILL: &str = r#"
INSERT INTO sync_partitions SELECT 'p'||n, 5000, 0 FROM generate_series(1, 3000) n;
INSERT INTO sync_partition_registry SELECT 'p'||n, 'e', false, 1 FROM generate_series(1, 3000) n;
INSERT INTO sync_commits SELECT p, n, 'd', 'c'||n, 'a', n, 1
  FROM unnest(ARRAY['p1','p2']) p, generate_series(1, 20000) n;
INSERT INTO sync_changes SELECT 'p1', n, 0, 'notes', 'r'||n, 1, 1, '{"list_id":"l1","owner":"o1"}', 'x'
  FROM generate_series(1, 20000) n;
INSERT INTO sync_change_scopes SELECT 'p1', 'notes', v, v||(n % 50), n
  FROM unnest(ARRAY['list_id','owner']) v, generate_series(1, 20000) n;
INSERT INTO sync_row_scopes SELECT 'p1', 'notes', v, v||(n % 50), 'r'||n
  FROM unnest(ARRAY['list_id','owner']) v, generate_series(1, 20000) n;
INSERT INTO sync_row_scopes SELECT 'p1', 'secrets', 'ws', 'w'||(n % 50), 's'||n FROM generate_series(1, 20000) n;
INSERT INTO sync_push_results SELECT 'p1', 'd', 'c'||n, '{}' FROM generate_series(1, 20000) n;
INSERT INTO sync_clients SELECT 'p1', 'd'||n, 'a', 3, 0, '[]', 1 FROM generate_series(1, 20000) n;
INSERT INTO sync_blob_refs SELECT 'p1', 'notes', 'r'||n, 'b'||n FROM generate_series(1, 20000) n;
INSERT INTO sync_tombstones SELECT 'p1', 'notes', 't'||n, n FROM generate_series(1, 20000) n;
INSERT INTO sync_backfill_checkpoints SELECT 'p'||n, 'x', 1, 'activated', 0, 0, 0, 1 FROM generate_series(1, 20000) n;
INSERT INTO notes SELECT 'p1', 'r'||n, 'r'||n, 'l'||(n % 50), 'o', 't', NULL, NULL, NULL, NULL, NULL, NULL,
  1, '{}', 'x', NULL FROM generate_series(1, 20000) n;
INSERT INTO tasks SELECT 'p1', n::text, n, 'w', 'j'||(n % 500), 'b', 1, '{}', 'x', NULL FROM generate_series(1, 20000) n;
ANALYZE;
"#;

async fn database() -> (Database, Arc<PostgresStore>, Client) {
    let database = Database::create().unwrap();
    let store = PostgresStore::connect(PostgresOptions::new(database.url()))
        .await
        .unwrap();
    store
        .ensure_schema(compile(&document()), &[], 1)
        .await
        .unwrap();
    let (client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    (database, store, client)
}

async fn explain(client: &Client, sql: &str, arguments: &str) -> String {
    client
        .batch_execute(&format!("PREPARE checked AS {sql}"))
        .await
        .unwrap_or_else(|error| panic!("{error:?}\n{sql}"));
    let plan = client
        .simple_query(&format!("EXPLAIN (COSTS off) EXECUTE checked({arguments})"))
        .await
        .unwrap_or_else(|error| panic!("{error:?}\n{sql}"));
    client.batch_execute("DEALLOCATE checked").await.unwrap();
    plan.iter()
        .filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn no_statement_of_a_request_scans_a_growing_table() {
    let (_database, _store, client) = database().await;
    client.batch_execute(FILL).await.unwrap();
    let plan = Plan::new(compile(&document()));
    let notes = plan.table(NOTES).1;
    let children = |child, column| {
        let key = ChildrenKey {
            child,
            column,
            parent_row: "x".into(),
            limit: 10,
        };
        match plan.children(&key) {
            Some(Children::Column { sql, .. } | Children::Scope { sql, .. }) => sql.clone(),
            _ => panic!("no statement"),
        }
    };
    let keys = "ARRAY['p1','p1'], ARRAY['notes','notes'], ARRAY['r5','r6']";
    let needs = "ARRAY['p1'], ARRAY['p1','p1'], ARRAY['d','d'], ARRAY['c1','c2'], \
                 ARRAY['p1'], ARRAY['notes'], ARRAY['r5']";
    let one = "'p1','notes',100,20000,65,1000000,'list_id',ARRAY['list_id1','list_id2']";
    let scan = "'p1','notes',501,1000000,'list_id',ARRAY['list_id1','list_id2']";
    let statements: Vec<(String, String)> = [
        (
            PREAMBLES,
            "1, ARRAY['p1','p2'], ARRAY['p1','p2'], ARRAY['d7','d8']",
        ),
        (BOUNDS, "'p1'"),
        (NEEDS, needs),
        (&*notes.select, "ARRAY['p1','p1'], ARRAY['r5','r6']"),
        (&*notes.delete, "ARRAY['p1','p1'], ARRAY['r5','r6']"),
        (&*notes.walk, "'p1', 'r5', 1000"),
        (&*notes.walk_start, "'p1', 1000"),
        (CLEAR_ROW_SCOPES, keys),
        (CLEAR_BLOB_REFS, keys),
        (CLEAR_TOMBSTONES, keys),
        (STALE_ROW_SCOPES, &format!("{keys}, ARRAY['{{}}','{{}}']")),
        (&*children(TASKS, 2), "'p1', ARRAY['j1','j2'], 10"),
        (&*window_sql(1), one),
        (&*window_sql(2), &format!("{one},'owner',ARRAY['owner1']")),
        (&*scan_sql("notes", 1, false), scan),
        (&*scan_sql("notes", 1, true), &format!("{scan},'r5'")),
        (
            &*scan_sql("notes", 2, false),
            &format!("{scan},'owner',ARRAY['owner1']"),
        ),
        (
            &*scan_sql("notes", 2, true),
            &format!("{scan},'owner',ARRAY['owner1'],'r5'"),
        ),
        (maintain::COMMIT_BEFORE, "'p1', 500"),
    ]
    .into_iter()
    .map(|(sql, arguments)| (sql.to_owned(), arguments.to_owned()))
    .collect();
    for mode in ["force_generic_plan", "force_custom_plan"] {
        client
            .batch_execute(&format!("SET plan_cache_mode = {mode}"))
            .await
            .unwrap();
        for (sql, arguments) in &statements {
            let plan = explain(&client, sql, arguments).await;
            for table in GROWING.iter().chain(&["tasks", "secrets"]) {
                let scan = format!("Seq Scan on {table}");
                let scans = plan.lines().any(|line| {
                    line.trim().trim_start_matches("->").trim() == scan
                        || line.contains(&format!("{scan} "))
                });
                assert!(!scans, "{mode}: {sql}\n{plan}");
            }
        }
    }
    // A page of rows comes from the index in its order: no sort of what matches.
    let plan = explain(
        &client,
        &scan_sql("notes", 1, true),
        &format!("{scan},'r5'"),
    )
    .await;
    assert!(plan.contains("row_id >"), "{plan}");
    let _ = SECRETS;
}

/// Rows `from` to `to` of one partition, and what they leave in every table.
fn grow(from: usize, to: usize) -> String {
    let rows = format!("generate_series({from}, {to}) n");
    format!(
        r#"INSERT INTO sync_change_scopes SELECT 'p1', 'notes', 'list_id', 'l1', n FROM {rows};
           INSERT INTO sync_row_scopes SELECT 'p1', 'notes', 'list_id', 'l1', 'r'||n FROM {rows};
           INSERT INTO sync_push_results SELECT 'p1', 'd', 'c'||n, '{{}}' FROM {rows};
           INSERT INTO sync_clients SELECT 'p1', 'd'||n, 'a', 3, 0, '[]', 1 FROM {rows};
           INSERT INTO sync_blob_refs SELECT 'p1', 'notes', 'r'||n, 'b'||n FROM {rows};
           INSERT INTO sync_tombstones SELECT 'p1', 'notes', 't'||n, n FROM {rows};
           INSERT INTO notes SELECT 'p1', 'r'||n, 'r'||n, 'l1', 'o', 't', NULL, NULL, NULL, NULL, NULL, NULL,
             1, '{{}}', 'x', NULL FROM {rows};
           INSERT INTO tasks SELECT 'p1', n::text, n, 'w', 'j1', 'b', 1, '{{}}', 'x', NULL FROM {rows};"#
    )
}

/// A plan is made once, perhaps while every table is empty or small and nobody has
/// counted its rows, and kept as they grow.
#[tokio::test]
async fn a_plan_made_on_small_tables_looks_every_row_up_by_its_whole_key() {
    let (_database, _store, client) = database().await;
    client.batch_execute(PLANNING).await.unwrap();
    let mut rows = 0;
    for to in [0, 10, 60, 150, 300, 700, 1_500, 4_000] {
        if to > rows {
            client.batch_execute(&grow(rows + 1, to)).await.unwrap();
            rows = to;
        }
        every_lookup_is_by_key(&client, rows).await;
    }
}

async fn every_lookup_is_by_key(client: &Client, rows: usize) {
    let plan = Plan::new(compile(&document()));
    let notes = plan.table(NOTES).1;
    let keys = "ARRAY['p1'], ARRAY['notes'], ARRAY['r5']";
    let children = {
        let key = ChildrenKey {
            child: TASKS,
            column: 2,
            parent_row: "x".into(),
            limit: 10,
        };
        match plan.children(&key) {
            Some(Children::Column { sql, .. } | Children::Scope { sql, .. }) => sql.clone(),
            _ => panic!("no statement"),
        }
    };
    for (sql, arguments) in [
        (
            PREAMBLES,
            "1, ARRAY['p1','p2'], ARRAY['p1','p2'], ARRAY['d7','d8']",
        ),
        (
            NEEDS,
            "ARRAY['p1'], ARRAY['p1'], ARRAY['d'], ARRAY['c1'], ARRAY['p1'], ARRAY['notes'], ARRAY['r5']",
        ),
        (&*notes.select, "ARRAY['p1'], ARRAY['r5']"),
        (&*notes.delete, "ARRAY['p1'], ARRAY['r5']"),
        (STALE_ROW_SCOPES, &format!("{keys}, ARRAY['{{}}']")),
        (CLEAR_ROW_SCOPES, keys),
        (CLEAR_BLOB_REFS, keys),
        (CLEAR_TOMBSTONES, keys),
        (&*children, "'p1', ARRAY['j1','j2'], 10"),
    ] {
        let plan = explain(client, sql, arguments).await;
        let mut filters = plan
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("Filter: "));
        // What the entries say is compared with what the row says now.
        let own = |line: &str| line.contains("IS DISTINCT FROM");
        assert!(filters.all(own), "{rows} rows: {sql}\n{plan}");
        assert!(!plan.contains("Seq Scan"), "{rows} rows: {sql}\n{plan}");
    }
}

#[tokio::test]
async fn no_statement_of_a_backfill_scans_a_growing_table() {
    let (_database, _store, client) = database().await;
    client.batch_execute(FILL).await.unwrap();
    // A source that changes often, and one whose changes are far between.
    client
        .batch_execute(
            r#"INSERT INTO sync_changes SELECT 'p1', n * 5000, 1, 'projects', 'r'||n, 1, 1, '{}', 'x'
                 FROM generate_series(1, 4) n;
               INSERT INTO sync_push_results SELECT 'p1', '["backfill","x"]', '["scan",'||n, '{}'
                 FROM generate_series(1, 500) n;
               INSERT INTO sync_push_results SELECT 'p1', 'd'||n, 'c', '{}' FROM generate_series(1, 20000) n;
               ANALYZE"#,
        )
        .await
        .unwrap();
    let of_log = [
        (
            checkpoints::COVERAGE.to_owned(),
            "'p1', ARRAY['notes','projects','tasks'], 19000".to_owned(),
        ),
        (
            source_rows::CHANGED.to_owned(),
            "'p1', ARRAY['projects','tasks'], 100, 19000, 501".to_owned(),
        ),
    ];
    let of_rows = [
        (false, false, ""),
        (true, false, ", 'r5'"),
        (false, true, ", 'r9'"),
        (true, true, ", 'r5', 'r9'"),
    ]
    .map(|(after, through, bounds)| {
        let sql = source_rows::range_sql("notes", after, through);
        (sql, format!("'p1', 100{bounds}"))
    });
    let pages = (
        checkpoints::PAGES.to_owned(),
        r#"'p1', '["backfill","x"]'"#.to_owned(),
    );
    for mode in ["force_generic_plan", "force_custom_plan"] {
        client
            .batch_execute(&format!("SET plan_cache_mode = {mode}"))
            .await
            .unwrap();
        for (sql, arguments) in &of_log {
            let plan = explain(&client, sql, arguments).await;
            assert!(plan.contains("sync_changes_"), "{mode}: {plan}");
            assert!(!plan.contains("Seq Scan"), "{mode}: {plan}");
        }
        for (sql, arguments) in &of_rows {
            let plan = explain(&client, sql, arguments).await;
            // Its order is the index's: a page costs a page.
            assert!(plan.contains("notes_pkey"), "{mode}: {sql}\n{plan}");
            assert!(!plan.contains("Sort"), "{mode}: {sql}\n{plan}");
        }
        let plan = explain(&client, &pages.0, &pages.1).await;
        assert!(!plan.contains("Seq Scan"), "{mode}: {plan}");
    }
}

#[tokio::test]
async fn a_table_of_another_program_gains_an_index_in_byte_order() {
    let database = Database::create().unwrap();
    let (client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(
            "CREATE TABLE secrets(_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL,
               _sync_server_version BIGINT NOT NULL, _sync_scopes JSONB NOT NULL,
               _sync_payload BYTEA NOT NULL, _sync_column_versions BYTEA,
               PRIMARY KEY (_sync_partition, _sync_row_id));
             INSERT INTO secrets SELECT 'p1', 'r'||n, 1, '{}', 'x', NULL FROM generate_series(1, 20000) n",
        )
        .await
        .unwrap();
    let store = PostgresStore::connect(PostgresOptions::new(database.url()))
        .await
        .unwrap();
    let schema = compile(&document());
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    client.batch_execute("ANALYZE").await.unwrap();
    let indexes = client
        .query(
            "SELECT indexname FROM pg_indexes WHERE indexname LIKE 'tidegate_rows_%'",
            &[],
        )
        .await
        .unwrap();
    let names: Vec<&str> = indexes.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["tidegate_rows_secrets"]);
    let sql = source_rows::range_sql("secrets", true, false);
    let plan = explain(&client, &sql, "'p1', 100, 'r5'").await;
    assert!(plan.contains("tidegate_rows_secrets"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");
}

#[tokio::test]
async fn statements_behind_a_begin_that_failed_write_nothing() {
    let (_database, store, client) = database().await;
    let schema = compile(&document());
    let plan = Plan::new(Arc::clone(&schema));
    let ops = [vec![put(NOTES, note("n1", "l1", "o1", Some(1)))]];
    let batch = batch(&schema, "p", 0, &ops);
    let mut lease = store.lease().await.unwrap();
    // As if BEGIN had failed: no transaction is open, each statement is its own.
    let encoded = Encoded::new(&plan, Arc::new(batch)).unwrap();
    let outcome = commit::write_locked(&mut lease, &plan, &encoded).await;
    assert!(
        matches!(outcome, Err(CommitError::Store(StoreError::Failed { .. }))),
        "{outcome:?}"
    );
    for table in [
        "sync_partitions",
        "sync_commits",
        "sync_changes",
        "sync_change_scopes",
        "sync_row_scopes",
        "sync_push_results",
        "notes",
    ] {
        let count: i64 = client
            .query_one(&format!("SELECT count(*) FROM {table}"), &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(count, 0, "{table}");
    }
}

#[tokio::test]
async fn json_is_judged_as_the_database_judges_it() {
    let (_database, _store, client) = database().await;
    for text in [
        r#"{"a":[1,-2.5e3,true,null,"x\"y"]}"#,
        r#""\u0000""#,
        r#""\\u0000""#,
        r#""\ud83d\ude00""#,
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\ud83d\u0041""#,
        "1e300",
        "1e130000",
        "1e200000",
        "1e-20000",
        "-0",
        "01",
        "[1,]",
        "{",
        "",
        " null ",
        "nan",
        "\"\u{1}\"",
        r#"{"a":1,"a":2}"#,
        r#""\x""#,
    ] {
        let accepted = client
            .query_one("SELECT $1::text::jsonb::text", &[&text])
            .await
            .is_ok();
        assert_eq!(super::accepted::jsonb(text), accepted, "{text}");
    }
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    assert!(super::accepted::jsonb(&deep));
    client
        .query_one("SELECT $1::text::jsonb::text", &[&deep])
        .await
        .unwrap();
}

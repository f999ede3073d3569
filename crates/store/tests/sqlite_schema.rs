//! What `ensure_schema` makes of databases that other programs, older versions or
//! accidents have shaped.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rusqlite::Connection;
use serde_json::json;
use ssp2::Value;
use tidegate_engine::model::RowState;
use tidegate_engine::{ClientId, CommitSeq, TableId};
use tidegate_store::contract::fixture::*;
use tidegate_store::sqlite::{SqliteOptions, SqliteStore};
use tidegate_store::{SchemaOutcome, Store, StoreError};

struct Database(PathBuf);

impl Database {
    fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "schema-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn open(&self) -> Arc<SqliteStore> {
        SqliteStore::open(SqliteOptions::file(self.0.join("data.sqlite"))).unwrap()
    }

    /// A database at version 1 with one note.
    async fn prepared(&self) {
        let store = self.open();
        let schema = compile(&document());
        store
            .ensure_schema(Arc::clone(&schema), &[], 1)
            .await
            .unwrap();
        let ops = [vec![put(NOTES, note("n1", "l1", "o1", Some(1)))]];
        commit(&*store, &schema, "p", 0, &ops).await;
        store.close().await;
    }

    fn connect(&self) -> Connection {
        Connection::open(self.0.join("data.sqlite")).unwrap()
    }

    fn sql(&self, statements: &str) {
        self.connect().execute_batch(statements).unwrap();
    }

    fn column(&self, query: &str) -> Vec<String> {
        let connection = self.connect();
        let mut statement = connection.prepare(query).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Rebuilds the table `projects` under another declaration.
fn rebuilt(columns: &str) -> String {
    format!("DROP TABLE projects; CREATE TABLE projects({columns});")
}

#[tokio::test]
async fn physical_mismatches_are_refused_with_their_reason() {
    const META: &str = "_sync_server_version INTEGER NOT NULL, _sync_scopes TEXT NOT NULL, _sync_payload BLOB NOT NULL, _sync_column_versions BLOB";
    const KEY: &str = "PRIMARY KEY(_sync_partition, _sync_row_id)";
    let ids = "_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL, id TEXT NOT NULL, ws TEXT NOT NULL";
    let cases = [
        (
            "missing_table",
            None,
            None,
            None,
            "DROP TABLE projects".to_owned(),
        ),
        (
            "missing_column",
            Some("ws"),
            None,
            None,
            rebuilt(&format!(
                "_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL, id TEXT NOT NULL, {META}, {KEY}"
            )),
        ),
        (
            "missing_column",
            Some("_sync_column_versions"),
            None,
            None,
            "ALTER TABLE projects DROP COLUMN _sync_column_versions".to_owned(),
        ),
        (
            "type",
            Some("_sync_payload"),
            Some("BLOB"),
            Some("TEXT"),
            rebuilt(&format!(
                "{ids}, {}, {KEY}",
                META.replace("_sync_payload BLOB", "_sync_payload TEXT")
            )),
        ),
        (
            "nullability",
            Some("_sync_scopes"),
            Some("not_null"),
            Some("nullable"),
            rebuilt(&format!(
                "{ids}, {}, {KEY}",
                META.replace("_sync_scopes TEXT NOT NULL", "_sync_scopes TEXT")
            )),
        ),
        (
            "primary_key",
            Some("_sync_row_id"),
            None,
            None,
            rebuilt(&format!("{ids}, {META}, PRIMARY KEY(_sync_partition)")),
        ),
        (
            "primary_key",
            Some("id"),
            None,
            None,
            rebuilt(&format!(
                "{ids}, {META}, PRIMARY KEY(_sync_partition, _sync_row_id, id)"
            )),
        ),
    ];
    for (reason, column, expected, actual, damage) in cases {
        let database = Database::new();
        database.prepared().await;
        database.sql(&damage);
        let before =
            database.column("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name");
        let store = database.open();
        let refused = store.ensure_schema(compile(&document()), &[], 1).await;
        let Err(StoreError::PhysicalLayoutMismatch {
            table,
            column: c,
            reason: r,
            expected: e,
            actual: a,
        }) = refused
        else {
            panic!("{reason}: {refused:?}");
        };
        assert_eq!((table.as_str(), r), ("projects", reason));
        assert_eq!(
            (c.as_deref(), e.as_deref(), a.as_deref()),
            (column, expected, actual),
            "{reason}"
        );
        assert_eq!(
            database.column("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"),
            before
        );
    }
}

#[tokio::test]
async fn a_table_in_the_way_of_a_migration_undoes_it() {
    let database = Database::new();
    database.prepared().await;
    database.sql("CREATE TABLE labels(id TEXT, ws TEXT)");
    let store = database.open();
    let refused = store.ensure_schema(compile(&document_v2()), &[], 1).await;
    assert!(
        matches!(&refused, Err(StoreError::PhysicalLayoutMismatch { table, .. }) if table == "labels"),
        "{refused:?}"
    );
    assert_eq!(
        database.column("SELECT CAST(schema_version AS TEXT) FROM sync_schema_meta"),
        ["1"]
    );
    assert!(
        database
            .column("SELECT name FROM pragma_table_info('notes') WHERE name='due'")
            .is_empty()
    );
}

#[tokio::test]
async fn an_older_core_schema_is_brought_up_to_date_at_an_equal_version() {
    let database = Database::new();
    database.prepared().await;
    database.sql(
        "DROP TRIGGER sync_commits_writer_fence; ALTER TABLE sync_commits DROP COLUMN writer_version;
         ALTER TABLE sync_clients DROP COLUMN wire_version; DROP TABLE sync_backfill_checkpoints; DROP TABLE sync_writer_fence; DROP TABLE tidegate_layouts;
         DROP TABLE sync_tombstones;",
    );
    let store = database.open();
    let schema = compile(&document());
    let outcome = store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    assert_eq!(outcome, SchemaOutcome::Verified);
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![put(NOTES, note("n2", "l1", "o1", None))]],
    )
    .await;
    assert_eq!(
        database.column(
            "SELECT coalesce(writer_version, 'none') || '' FROM sync_commits ORDER BY commit_seq"
        ),
        ["none", "1"]
    );
    let added = "SELECT name || ' ' || dflt_value FROM pragma_table_info('sync_clients') WHERE name='wire_version'";
    assert_eq!(database.column(added), ["wire_version 1"]);
}

#[tokio::test]
async fn another_programs_fence_is_replaced() {
    let database = Database::new();
    database.prepared().await;
    let text = "SELECT sql FROM sqlite_master WHERE name='sync_commits_writer_fence'";
    let ours = database.column(text);
    database.sql(
        "DROP TRIGGER sync_commits_writer_fence;
         CREATE TRIGGER sync_commits_writer_fence BEFORE INSERT ON sync_commits WHEN false BEGIN SELECT 1; END;",
    );
    let store = database.open();
    store
        .ensure_schema(compile(&document()), &[], 1)
        .await
        .unwrap();
    assert_eq!(database.column(text), ours);
}

#[tokio::test]
async fn owned_indexes_are_rebuilt_and_legacy_ones_dropped() {
    let database = Database::new();
    database.prepared().await;
    let names = "SELECT name FROM sqlite_master WHERE type='index' AND tbl_name='notes' AND sql IS NOT NULL ORDER BY name";
    let first = database.column(names);
    assert_eq!(first.len(), 2);
    assert_eq!(first[1], "sync_ix_slot");
    assert_eq!(first[0].len(), "sync_ix_".len() + 16);
    database.sql(
        "CREATE INDEX by_owner ON notes(owner); CREATE INDEX sync_ix_old ON notes(title); CREATE INDEX operators_own ON notes(rank);",
    );
    let mut next = document();
    next["version"] = json!(2);
    next["tables"][0]["indexes"] = json!([{"name": "by_owner", "columns": ["owner"]}]);
    let store = database.open();
    store.ensure_schema(compile(&next), &[], 1).await.unwrap();
    assert_eq!(
        database.column(names),
        ["operators_own", "sync_ix_by_owner"]
    );
    assert_eq!(
        database.column("SELECT name FROM pragma_index_info('sync_ix_by_owner')"),
        ["_sync_partition", "owner"]
    );
}

#[tokio::test]
async fn a_unique_index_that_stored_rows_break_is_refused() {
    let database = Database::new();
    database.prepared().await;
    let schema = compile(&document());
    let store = database.open();
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    commit(
        &*store,
        &schema,
        "p",
        1,
        &[vec![put(NOTES, note("n2", "l1", "o1", None))]],
    )
    .await;
    let mut next = document();
    next["version"] = json!(2);
    push(
        &mut next["tables"][0]["indexes"],
        json!({"name": "one_each", "columns": ["owner"], "unique": true}),
    );
    let refused = store.ensure_schema(compile(&next), &[], 1).await;
    assert!(
        matches!(&refused, Err(StoreError::RefusedMigration { table, reason }) if table == "notes" && reason.contains("one_each")),
        "{refused:?}"
    );
    commit(
        &*store,
        &schema,
        "p",
        2,
        &[vec![put(NOTES, note("n3", "l1", "o1", None))]],
    )
    .await;
}

#[tokio::test]
async fn a_table_may_begin_and_cease_to_have_sql_columns() {
    let database = Database::new();
    let mut hidden = document();
    hidden["tables"][0]["materialize"] = json!(false);
    hidden["tables"][0]["indexes"] = json!([]);
    let schema = compile(&hidden);
    let store = database.open();
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    let mut values = note("n1", "l1", "o1", Some(4));
    values[5] = Value::Boolean(true);
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, values.clone())]],
    )
    .await;
    assert!(
        database
            .column("SELECT name FROM pragma_table_info('notes') WHERE name='rank'")
            .is_empty()
    );

    let mut shown = document_v2();
    shown["tables"][0]["materialize"] = json!(true);
    let schema = compile(&shown);
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    assert_eq!(
        database.column("SELECT id || list_id || rank || done || coalesce(due, 'null') FROM notes"),
        ["n1l141null"]
    );
    values.push(Value::Null);
    let key = key_of(&schema, NOTES, &values);
    let expected = RowState::Present(Arc::new(stored(&schema, NOTES, &values, 1)));
    assert_eq!(row(&*store, "p", key.clone()).await, expected);

    hidden["tables"] = document_v2()["tables"].clone();
    hidden["tables"][0]["materialize"] = json!(false);
    hidden["tables"][0]["indexes"] = json!([]);
    hidden["version"] = json!(3);
    let schema = compile(&hidden);
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    assert_eq!(row(&*store, "p", key).await, expected);
    let mut second = note("n2", "l1", "o1", None);
    second.push(Value::Null);
    commit(&*store, &schema, "p", 1, &[vec![put(NOTES, second)]]).await;
}

#[tokio::test]
async fn a_log_that_another_program_migrated_is_served_from_its_own_commits_on() {
    let database = Database::new();
    let schema = compile(&document_v2());
    let store = database.open();
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    let label = |id: &str| vec![put(TableId(4), vec![text(id), text("w")])];
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[label("a"), label("b"), label("c")],
    )
    .await;
    store.close().await;
    // As the reference server leaves it: no record of layouts, older commits without a version.
    database.sql("DROP TABLE tidegate_layouts; UPDATE sync_commits SET writer_version=NULL WHERE commit_seq<3");
    for _ in 0..2 {
        let store = database.open();
        store
            .ensure_schema(Arc::clone(&schema), &[], 1)
            .await
            .unwrap();
        let preamble = store
            .read_preamble(&p("p"), &ClientId::from("d"), touch(1, "e"))
            .await
            .unwrap();
        assert_eq!(preamble.layout_floor, CommitSeq(2));
        store.close().await;
    }
}

#[tokio::test]
async fn the_registry_is_refreshed_only_when_stale() {
    let database = Database::new();
    let at = || {
        database
            .column("SELECT CAST(last_authenticated_at_ms AS TEXT) FROM sync_partition_registry")
    };
    for (now, expected) in [
        (1000, "1000"),
        (6000, "1000"),
        (6001, "6001"),
        (5000, "6001"),
    ] {
        let store = database.open();
        store
            .ensure_schema(compile(&document()), &[], 1)
            .await
            .unwrap();
        store
            .read_preamble(&p("p"), &ClientId::from("d"), touch(now, "e"))
            .await
            .unwrap();
        // Closing finishes the refresh, which no request waits for.
        store.close().await;
        assert_eq!(at(), [expected], "{now}");
    }
}

#[tokio::test]
async fn an_unreachable_file_is_an_error_not_a_panic() {
    let missing = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no/such/directory/data.sqlite");
    let refused = SqliteStore::open(SqliteOptions::file(missing));
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    let database = Database::new();
    std::fs::write(database.0.join("data.sqlite"), vec![7_u8; 8192]).unwrap();
    let refused = SqliteStore::open(SqliteOptions::file(database.0.join("data.sqlite")));
    assert!(refused.is_err());
}

#[tokio::test]
async fn a_lock_held_by_another_program_is_unavailable_and_passes() {
    let database = Database::new();
    database.prepared().await;
    let mut options = SqliteOptions::file(database.0.join("data.sqlite"));
    options.busy_timeout = std::time::Duration::from_millis(20);
    let store = SqliteStore::open(options).unwrap();
    let schema = compile(&document());
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    let other = database.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let ops = [vec![put(NOTES, note("n2", "l1", "o1", None))]];
    let refused = try_commit(&*store, &schema, "p", 1, &ops).await;
    assert!(
        matches!(
            refused,
            Err(tidegate_store::CommitError::Store(StoreError::Unavailable(
                _
            )))
        ),
        "{refused:?}"
    );
    other.execute_batch("ROLLBACK").unwrap();
    commit(&*store, &schema, "p", 1, &ops).await;
}

//! The store contract on SQLite files, on SQLite in memory and on the test store.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tidegate_store::Store;
use tidegate_store::contract::{Harness, operating};
use tidegate_store::memory::MemoryStore;
use tidegate_store::sqlite::{SqliteOptions, SqliteStore};

struct File(PathBuf);

impl File {
    fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "contract-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(self.0.join("data.sqlite")).unwrap();
        connection
            .busy_timeout(std::time::Duration::from_secs(5))
            .unwrap();
        connection
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[async_trait]
impl Harness for File {
    async fn open(&self) -> Arc<dyn Store> {
        SqliteStore::open(SqliteOptions::file(self.0.join("data.sqlite"))).unwrap()
    }

    async fn try_sql(&self, statements: &str) -> Result<(), String> {
        let connection = self.connect();
        connection
            .execute_batch(statements)
            .map_err(|error| error.to_string())
    }

    async fn query(&self, query: &str) -> Vec<Vec<Option<String>>> {
        let connection = self.connect();
        let mut statement = connection.prepare(query).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            (0..columns)
                .map(|at| {
                    Ok(match row.get_ref(at)? {
                        ValueRef::Null => None,
                        ValueRef::Integer(number) => Some(number.to_string()),
                        ValueRef::Real(number) => Some(number.to_string()),
                        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                            Some(String::from_utf8_lossy(bytes).into_owned())
                        }
                    })
                })
                .collect()
        });
        rows.unwrap().map(Result::unwrap).collect()
    }
}

/// A SQLite database in memory: one handle, gone with it.
struct Memory;

#[async_trait]
impl Harness for Memory {
    async fn open(&self) -> Arc<dyn Store> {
        SqliteStore::open(SqliteOptions::memory()).unwrap()
    }
    async fn try_sql(&self, _statements: &str) -> Result<(), String> {
        Err("no SQL access".into())
    }
    async fn query(&self, _query: &str) -> Vec<Vec<Option<String>>> {
        Vec::new()
    }
}

/// The test store; every handle looks at the same content.
struct Test(Arc<MemoryStore>);

#[async_trait]
impl Harness for Test {
    async fn open(&self) -> Arc<dyn Store> {
        self.0.reopen()
    }
    async fn try_sql(&self, _statements: &str) -> Result<(), String> {
        Err("no SQL access".into())
    }
    async fn query(&self, _query: &str) -> Vec<Vec<Option<String>>> {
        Vec::new()
    }
}

fn memory() -> Memory {
    Memory
}

fn test_store() -> Test {
    Test(MemoryStore::new())
}

mod file {
    mod core {
        tidegate_store::contract_tests!(core, crate::File::new);
    }
    mod gated {
        tidegate_store::contract_tests!(gated, crate::File::new);
    }
    mod reopen {
        tidegate_store::contract_tests!(reopen, crate::File::new);
    }
    mod sql {
        tidegate_store::contract_tests!(sql, crate::File::new);
    }
    mod backfills {
        tidegate_store::contract_tests!(backfills, crate::File::new);
    }
}

mod in_memory {
    mod core {
        tidegate_store::contract_tests!(core, crate::memory);
    }
    mod gated {
        tidegate_store::contract_tests!(gated, crate::memory);
    }
}

mod test_store_of_actors {
    mod core {
        tidegate_store::contract_tests!(core, crate::test_store);
    }
    mod reopen {
        tidegate_store::contract_tests!(reopen, crate::test_store);
    }
}

/// Columns of each table in order, then the text of indexes and triggers.
const CATALOG: &str = "SELECT m.type, m.name,
     CASE WHEN m.type = 'table'
       THEN (SELECT group_concat(c.name || ' ' || c.type || c.\"notnull\" || c.pk, ', ')
             FROM (SELECT * FROM pragma_table_info(m.name) ORDER BY cid) AS c)
       ELSE m.sql END
   FROM sqlite_master AS m WHERE m.sql IS NOT NULL ORDER BY m.type, m.name";

#[tokio::test]
async fn the_listed_statements_are_those_of_the_migration() {
    operating::the_listed_statements_are_those_of_the_migration(
        &File::new(),
        &File::new(),
        CATALOG,
    )
    .await;
}

#[tokio::test]
async fn the_dry_run_of_a_new_database_lists_everything() {
    operating::the_dry_run_of_a_new_database_lists_everything(&File::new(), &File::new(), CATALOG)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_leaves_the_file_as_it_is_and_no_writer_waits_for_it() {
    use tidegate_store::contract::fixture::*;
    let file = File::new();
    let store = ready(&file).await;
    let schema = compile(&document());
    let rows = (0..50_i64).map(|n| put(NOTES, note(&format!("n{n}"), "l1", "o1", Some(n))));
    commit(&*store, &schema, "p", 0, &[rows.collect()]).await;
    store.close().await;
    let path = file.0.join("data.sqlite");
    let before = std::fs::read(&path).unwrap();
    let store = file.open().await;
    let plan = store.plan_migration(compile(&document_v2()), &[]).await;
    assert_eq!(plan.unwrap().tables[0].rows_to_rewrite, 50);
    store.close().await;
    assert!(std::fs::read(&path).unwrap() == before);
    // Beside a writer in its transaction the dry run goes on, and the other way round.
    let writer = file.connect();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store = file.open().await;
    store
        .plan_migration(compile(&document_v2()), &[])
        .await
        .unwrap();
    writer.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_folds_the_log_into_the_file_whatever_the_threads_do() {
    use tidegate_store::contract::fixture::*;
    let file = File::new();
    let log = file.0.join("data.sqlite-wal");
    let schema = compile(&document());
    ready(&file).await.close().await;
    // Connections that close at once leave the log to each other; now and then is enough.
    for n in 0..300 {
        let store = ready(&file).await;
        let rank = put(NOTES, note(&format!("n{n}"), "l1", "o1", Some(n)));
        commit(&*store, &schema, "p", n, &[vec![rank]]).await;
        assert!(
            std::fs::metadata(&log).unwrap().len() > 0,
            "nothing to fold"
        );
        store.close().await;
        assert!(!log.exists(), "round {n}");
    }
}

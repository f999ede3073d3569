//! The process dies at every step of a migration and of a backfill, while clients push; the
//! next one ends where an uninterrupted one does, and nothing acknowledged is lost.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

use tokio::sync::OnceCell;

use crate::panel::Panel;
use crate::plant::{
    EarlyEnd, NAME, Plant, SEEDS, SHOP, Shape, TOUCHED, computed, seed, status, title,
};
use crate::process::{Backend, Server, on_each_database};
use crate::sql::{Sql, breath};
use crate::writer::{Diary, Writer};

/// Steps of a migration whose work is undone by a death there.
const UNDONE: &[&str] = &[
    "coordinator.before_barrier",
    "coordinator.barrier_held",
    "migrate.barrier_held",
    "migrate.ddl:1",
    "migrate.ddl:2",
    "migrate.ddl:3",
    "migrate.page:1",
    "migrate.page:2",
    "migrate.before_marker",
    "migrate.before_declarations",
    "migrate.before_commit",
];

/// Steps after which it is done.
const DONE: &[&str] = &["migrate.after_commit", "coordinator.after_ensure"];

/// Steps of a backfill. Pages are counted, and so are batches: those of clients too.
const STEPS: &[&str] = &[
    "backfill.claim.before",
    "backfill.claim.after",
    "backfill.page.planned:1",
    "backfill.page.planned:3",
    "backfill.page.before_commit:1",
    "backfill.page.before_commit:2",
    "partition.page.before_store:1",
    "partition.page.before_store:3",
    "store.batch.before_commit:2",
    "store.batch.before_commit:5",
    "store.batch.after_commit:2",
    "store.batch.after_commit:5",
    "partition.page.after_store:1",
    "partition.page.after_store:2",
    "backfill.page.after_commit:1",
    "backfill.page.after_commit:3",
    "backfill.scan.before_done",
    "backfill.scan.after_done",
    "backfill.activate.before",
    "backfill.activate.after",
];

/// Steps that are only reached while nobody writes.
const IDLE_STEPS: &[&str] = &[
    "backfill.catch_up.before_advance",
    "backfill.catch_up.after_advance",
];

/// Cases at a time: more than processors, for most of a case is waiting.
const AT_ONCE: usize = 4;

on_each_database!(
    killed_at_every_step_of_a_migration_it_migrates_as_if_uninterrupted,
    killed_at_every_step_of_filling_a_column_it_ends_as_if_uninterrupted,
    killed_at_every_step_of_filling_a_table_it_ends_as_if_uninterrupted,
);

/// Died of SIGABRT: at the failpoint and of nothing else.
fn assert_died(status: std::process::ExitStatus, step: &str) {
    const ABORTED: i32 = 6;
    assert_eq!(status.signal(), Some(ABORTED), "{step}: {status}");
}

async fn died(server: &mut Server, step: &str) {
    let deadline = std::time::Instant::now() + crate::process::PATIENCE;
    while server.is_running() {
        assert!(
            std::time::Instant::now() < deadline,
            "{step} is never reached"
        );
        breath().await;
    }
}

async fn killed_at_every_step_of_a_migration_it_migrates_as_if_uninterrupted(on: Backend) {
    let run = async |shape: Shape, last: &'static str| {
        let plant = Plant::seeded(on).await;
        let old = plant.old(&[]);
        let writer = Writer::start(&old.url, "ada", 1);
        writer.more(2).await;
        for step in UNDONE {
            assert_died(
                plant.ends_early(EarlyEnd::Failpoint(shape, step)).await,
                step,
            );
            // Nothing of it is left: not the version, no fence, no checkpoint, and who wrote
            // before goes on writing.
            for (query, wanted) in [
                ("SELECT schema_version FROM sync_schema_meta", "1"),
                ("SELECT count(*) FROM sync_writer_fence", "0"),
                ("SELECT count(*) FROM sync_backfill_checkpoints", "0"),
            ] {
                // Postgres notices with a delay that its client is gone.
                plant.sql.until(query, wanted).await;
            }
            writer.more(2).await;
        }
        let died = plant.ends_early(EarlyEnd::Failpoint(shape, last)).await;
        assert_died(died, last);
        let marker = "SELECT schema_version FROM sync_schema_meta";
        assert_eq!(plant.sql.value(marker).await, "2", "{last}");
        writer.refused().await;
        let server = plant.new_server(shape);
        writer.move_to(&server.url);
        writer.more(1).await;
        plant.activated().await;
        let diary = writer.stop().await;
        assert!(diary.refused > 0);
        check(&plant, shape, &[diary]).await;
    };
    tokio::join!(run(Shape::Column, DONE[0]), run(Shape::Table, DONE[1]));
}

async fn killed_at_every_step_of_filling_a_column_it_ends_as_if_uninterrupted(on: Backend) {
    every_step(on, Shape::Column).await;
}

async fn killed_at_every_step_of_filling_a_table_it_ends_as_if_uninterrupted(on: Backend) {
    every_step(on, Shape::Table).await;
}

async fn every_step(on: Backend, shape: Shape) {
    let mut cases = Vec::new();
    for step in STEPS {
        cases.push((*step, tokio::spawn(killed_at(on, shape, step, 2))));
    }
    // A window of the log without source changes: nobody may push then, and a column's own
    // pages are source changes.
    if shape == Shape::Table {
        for step in IDLE_STEPS {
            cases.push((*step, tokio::spawn(killed_at(on, shape, step, 0))));
        }
    }
    let mut failed = Vec::new();
    for (step, case) in cases {
        if case.await.is_err() {
            failed.push(step);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

static PERMITS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(AT_ONCE);

async fn killed_at(on: Backend, shape: Shape, step: &'static str, clients: usize) {
    let _permit = PERMITS.acquire().await.unwrap();
    let plant = Plant::seeded(on).await;
    let mut server = plant.doomed(shape, step);
    let names = ["ada", "bob"].iter().take(clients);
    let writers: Vec<Writer> = names
        .map(|name| Writer::start(&server.url, name, 2))
        .collect();
    died(&mut server, step).await;
    assert_died(server.wait(), step);

    let mut server = plant.new_server(shape);
    for writer in &writers {
        writer.move_to(&server.url);
    }
    let panel = Panel::of(&mut server);
    // The dead owner's lease would run out by itself; nobody waits for it here.
    let found = status(&panel).await;
    if found["state"] == "backfilling" && found["owned_here"] == false {
        panel
            .post(
                &crate::plant::path(&format!("/{NAME}/force-claim")),
                serde_json::json!({}),
            )
            .await;
    }
    plant.activated().await;
    let mut diaries = Vec::new();
    for writer in writers {
        diaries.push(writer.stop().await);
    }
    check(&plant, shape, &diaries).await;
    if !step.starts_with("backfill.activate.") {
        return;
    }
    // Activated is final: a third process finds nothing to do.
    let epoch = plant.owner_epoch().await;
    drop(server);
    let mut server = plant.new_server(shape);
    let found = status(&Panel::of(&mut server)).await;
    assert_eq!(found["state"], "activated");
    assert_eq!(plant.owner_epoch().await, epoch, "{step}");
}

/// What an uninterrupted run makes of the rows that nobody else touches: everything that is
/// stored of them.
async fn uninterrupted(shape: Shape) -> &'static BTreeMap<String, String> {
    static COLUMN: OnceCell<BTreeMap<String, String>> = OnceCell::const_new();
    static TABLE: OnceCell<BTreeMap<String, String>> = OnceCell::const_new();
    let cell = match shape {
        Shape::Column => &COLUMN,
        Shape::Table => &TABLE,
    };
    let run = async || {
        let plant = Plant::seeded(Backend::Sqlite).await;
        let server = plant.new_server(shape);
        plant.activated().await;
        drop(server);
        untouched(&plant.sql).await
    };
    cell.get_or_init(run).await
}

/// Rows of todos and cards that no client touched after the seed: versions, payloads, values.
async fn untouched(sql: &Sql) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (table, columns) in [("todos", "title, title_key"), ("cards", "label, list_id")] {
        let payload = sql.hex("_sync_payload");
        let rows = sql
            .rows(&format!(
                "SELECT _sync_row_id, _sync_server_version, {payload}, _sync_scopes, {columns}
                 FROM {table} WHERE _sync_partition='{SHOP}' AND _sync_row_id >= '{}'
                 AND _sync_row_id LIKE 's-%'",
                seed(TOUCHED)
            ))
            .await;
        for row in rows {
            let id = row[0].clone().unwrap();
            // Postgres prints JSON with spaces.
            let row = format!("{row:?}").replace(r#"\": \""#, r#"\":\""#);
            all.insert(format!("{table} {id}"), row);
        }
    }
    all
}

/// Everything that must hold once the backfill is activated.
pub async fn check(plant: &Plant, shape: Shape, diaries: &[Diary]) {
    let sql = &plant.sql;
    for diary in diaries {
        diary.check(sql).await;
    }
    let (rows, wanted) = (untouched(sql).await, uninterrupted(shape).await);
    for (id, row) in &rows {
        assert_eq!(Some(row), wanted.get(id), "{id}");
    }
    assert_eq!(rows.len(), wanted.len());
    assert_right(sql, shape).await;

    // No page twice, and none in the name of a superseded owner after its successor's.
    let twice = sql
        .rows("SELECT client_commit_id FROM sync_commits WHERE actor_id='backfill' GROUP BY client_commit_id HAVING count(*) > 1")
        .await;
    assert!(twice.is_empty(), "{twice:?}");
    // Nor its effect: one change of each row that nobody else touched.
    let filled = match shape {
        Shape::Column => "todos",
        Shape::Table => "cards",
    };
    let changes = sql
        .rows(&format!(
            "SELECT c.row_id, count(*) FROM sync_changes c JOIN sync_commits m
             ON m.partition=c.partition AND m.commit_seq=c.commit_seq
             WHERE c.tbl='{filled}' AND m.actor_id='backfill' AND c.row_id >= '{}' AND c.row_id LIKE 's-%'
             GROUP BY c.row_id",
            seed(TOUCHED)
        ))
        .await;
    assert_eq!(changes.len(), SEEDS - TOUCHED);
    for row in &changes {
        assert_eq!(row[1].as_deref(), Some("1"), "{row:?}");
    }
    // Versions count the changes of every row, whoever made them.
    let versions = sql
        .rows(&format!(
            "SELECT t._sync_row_id, t._sync_server_version FROM {filled} t
             WHERE t._sync_server_version <> (SELECT count(*) FROM sync_changes c
               WHERE c.partition=t._sync_partition AND c.tbl='{filled}' AND c.row_id=t._sync_row_id)"
        ))
        .await;
    assert!(versions.is_empty(), "{versions:?}");
    // The log has no gap.
    let log = sql
        .rows("SELECT count(*), max(commit_seq) FROM sync_commits")
        .await;
    assert_eq!(log[0][0], log[0][1]);
}

/// Every row that was written before the activation is computed, and nothing else is.
pub async fn assert_right(sql: &Sql, shape: Shape) {
    let watermark: i64 = sql
        .value(&format!(
            "SELECT watermark FROM sync_backfill_checkpoints WHERE name='{NAME}'"
        ))
        .await
        .parse()
        .unwrap();
    // Newer rows are their writers' to compute.
    let todos = sql
        .rows(&format!(
            "SELECT t._sync_row_id, t.title, t.title_key,
               (SELECT max(c.commit_seq) FROM sync_changes c JOIN sync_commits m
                ON m.partition=c.partition AND m.commit_seq=c.commit_seq
                WHERE c.partition=t._sync_partition AND c.tbl='todos'
                AND c.row_id=t._sync_row_id AND m.actor_id<>'backfill')
             FROM todos t WHERE t._sync_partition='{SHOP}'"
        ))
        .await;
    let cards: BTreeMap<String, String> = sql
        .rows("SELECT _sync_row_id, label FROM cards")
        .await
        .into_iter()
        .map(|row| (row[0].clone().unwrap(), row[1].clone().unwrap()))
        .collect();
    assert!(todos.len() >= SEEDS);
    let mut computed_rows = 0;
    for row in &todos {
        let written: i64 = row[3].as_deref().unwrap().parse().unwrap();
        if written > watermark {
            continue;
        }
        computed_rows += 1;
        let (id, wanted) = (
            row[0].as_deref().unwrap(),
            computed(row[1].as_deref().unwrap()),
        );
        match shape {
            Shape::Column => assert_eq!(row[2].as_ref(), Some(&wanted), "{row:?}"),
            Shape::Table => assert_eq!(cards.get(id), Some(&wanted), "{row:?}"),
        }
    }
    assert!(computed_rows >= SEEDS - TOUCHED);
    for id in cards.keys() {
        assert!(
            todos.iter().any(|row| row[0].as_ref() == Some(id)),
            "a card of nothing: {id}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_owners_lease_runs_out_without_an_operator() {
    let plant = Plant::seeded(Backend::Sqlite).await;
    let mut server = plant.doomed(Shape::Column, "backfill.page.after_commit:1");
    died(&mut server, "backfill.page.after_commit:1").await;
    let before = plant.owner_epoch().await;
    let _server = plant.new_server(Shape::Column);
    plant.activated().await;
    assert_eq!(plant.owner_epoch().await, before + 1);
    check(&plant, Shape::Column, &[]).await;
    assert_eq!(
        plant
            .sql
            .value(&format!(
                "SELECT title_key FROM todos WHERE _sync_row_id='{}'",
                seed(7)
            ))
            .await,
        computed(&title(7))
    );
}

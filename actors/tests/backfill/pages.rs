//! What one page writes, and what it leaves alone.

use tidegate_actors::backfill::BackfillSettings;
use tidegate_engine::backfill::page::{RowChange, RowImage, SourceImage, plan_changes};
use tidegate_engine::model::RowKey;
use tidegate_store::Store;

use crate::steps::Script;
use crate::world::*;

/// What the computed column of every source row still lacks.
pub async fn changes_of_all(store: &dyn Store) -> Vec<RowChange> {
    let schema = new_schema();
    let table = schema.table("todos").unwrap().id;
    let sources: Vec<SourceImage> = rows(store, "todos")
        .await
        .into_iter()
        .map(|(id, (server_version, values))| SourceImage {
            key: RowKey {
                table,
                row_id: id.into(),
            },
            row: Some(RowImage {
                server_version,
                values: values.into(),
            }),
        })
        .collect();
    plan_changes(&schema, &*projection(COLUMN), &sources, |_| None).unwrap()
}

/// A client's own column of a computed row, written between a page's plan and its commit,
/// is kept, and the computed columns get in all the same: no log of the sources names the
/// row again.
#[actix::test]
async fn a_target_row_that_a_client_writes_meanwhile_keeps_both() {
    let world = World::new(40, &[TABLE]).await;
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let process = world.process(vec![projection(TABLE)], settings).await;
    let directory = process.directory.clone();
    script.at("backfill.page.planned", move || async move {
        card(&directory, "card:r0004", "wrong label", "mine").await;
        card(&directory, "card:r0020", "wrong label", "mine too").await;
    });
    process.activated(TABLE).await;
    let cards = assert_table_is_right(&*process.store).await;
    for (id, note) in [("card:r0004", "mine"), ("card:r0020", "mine too")] {
        let (version, values) = &cards[id];
        assert_eq!(values[3], ssp2::Value::Text(note.to_owned()));
        assert_eq!(*version, 2);
    }
    process.die().await;
}

async fn card(directory: &tidegate_actors::Directory, id: &str, label: &str, note: &str) {
    let schema = new_schema();
    let columns = &schema.table("cards").unwrap().columns;
    let values: Vec<ssp2::Value> = [id, "l", label, note]
        .into_iter()
        .map(|text| ssp2::Value::Text(text.to_owned()))
        .collect();
    let operation = ssp2::Operation {
        table: "cards".into(),
        row_id: id.into(),
        base_version: None,
        kind: ssp2::OperationKind::Upsert(ssp2::encode_row(columns, &values).unwrap()),
    };
    push(directory, &format!("card-{}", unique()), vec![operation]).await;
}

/// Rows written by a client of the new version that computed the column itself are no
/// work.
#[actix::test]
async fn rows_that_already_are_as_computed_are_not_written() {
    let world = World::new(30, &[COLUMN]).await;
    let process = world.process(vec![projection(COLUMN)], quick()).await;
    process.activated(COLUMN).await;
    let before = max(&*process.store).await;
    process.die().await;
    // The same again under another name's checkpoint is not possible; a scan from the
    // start over rows that are done is what a lost log leads to.
    let path = world.path();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "UPDATE sync_backfill_checkpoints SET state='backfilling', watermark=0;
             DELETE FROM sync_push_results WHERE client_id LIKE '[\"backfill\"%'",
        )
        .unwrap();
    drop(connection);
    let process = world.process(vec![projection(COLUMN)], quick()).await;
    let status = process.activated(COLUMN).await;
    assert_eq!(status.checkpoint.observed_rows, 30);
    assert_eq!(max(&*process.store).await, before);
    process.die().await;
}

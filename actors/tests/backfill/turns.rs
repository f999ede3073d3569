//! Pages and pushes take turns.

use std::sync::Arc;
use std::time::Duration;

use tidegate_actors::{Directory, PageOutcome, Parts, Settings, SystemClock};
use tidegate_engine::backfill::checkpoint::Advance;
use tidegate_engine::backfill::page::BackfillPage;
use tidegate_engine::backfill::scan::{PageId, Place};
use tidegate_engine::{CommitSeq, SchemaVersion};

use crate::pages::changes_of_all;
use crate::world::*;

#[actix::test]
async fn waiting_pages_and_pushes_alternate() {
    let world = World::new(4, &[COLUMN]).await;
    let store = world.store(&[projection(COLUMN)]).await;
    let heard = Arc::new(Heard::default());
    let mut settings = Settings::default();
    settings.batch.operations = 1;
    let declared = [(partition().to_string(), COLUMN.to_owned())];
    let directory = Directory::start(
        Parts {
            store: Arc::clone(&store),
            schema: new_schema(),
            hooks: Arc::default(),
            declared: Arc::new(declared.into_iter().collect()),
            clock: Arc::new(SystemClock),
            observer: heard.clone(),
        },
        settings,
    );
    let epoch = store
        .claim_checkpoint(&partition(), COLUMN, SchemaVersion(2), 5)
        .await
        .unwrap()
        .owner_epoch;
    directory
        .drain(&partition(), Duration::from_secs(5))
        .await
        .unwrap();
    let mut pages = Vec::new();
    for (part, change) in changes_of_all(&*store).await.into_iter().enumerate() {
        let id = PageId {
            owner_epoch: epoch,
            fingerprint: "f".into(),
            place: Place::CatchUp {
                after: CommitSeq(0),
                through: CommitSeq(1),
                part: u32::try_from(part).unwrap(),
            },
        };
        let advance = Advance {
            owner_epoch: epoch,
            watermark: CommitSeq(0),
            observed_rows: 0,
        };
        let page = BackfillPage::new(COLUMN, &id, vec![change], advance);
        let handle = directory.partition(&partition());
        pages.push(tokio::spawn(async move { handle.commit_page(page).await }));
    }
    let mut pushes = Vec::new();
    for at in 0..4 {
        let directory = directory.clone();
        let row = format!("new{at}");
        pushes.push(tokio::spawn(
            async move { put_new(&directory, &row, "t").await },
        ));
    }
    let handle = directory.partition(&partition());
    while handle.queued() < 4 || handle.queued_pages() < 4 {
        tokio::task::yield_now().await;
    }
    directory.resume(&partition());
    for page in pages {
        let outcome = page.await.unwrap().unwrap();
        assert!(matches!(outcome, PageOutcome::Committed { seq: Some(_) }));
    }
    for push in pushes {
        push.await.unwrap();
    }
    while heard.0.lock().len() < 8 {
        tokio::task::yield_now().await;
    }
    let who: Vec<bool> = heard
        .0
        .lock()
        .iter()
        .map(|commit| commit.client_id.as_str() == "c")
        .collect();
    let alternating: Vec<bool> = (0..8).map(|at| at % 2 == 1).collect();
    assert_eq!(who, alternating);
    // The tail has both, without a gap.
    let tail = directory.partition(&partition()).tail();
    assert_eq!(tail.read(CommitSeq(1), CommitSeq(9)).unwrap().len(), 8);
    directory.shutdown(Duration::from_secs(5)).await;
}

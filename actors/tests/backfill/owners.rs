//! Who owns a checkpoint: one at a time, whoever claimed last.

use std::time::Duration;

use tidegate_actors::PageOutcome;
use tidegate_actors::backfill::{Activated, BackfillSettings, WorkerPhase};
use tidegate_engine::backfill::checkpoint::Advance;
use tidegate_engine::backfill::page::BackfillPage;
use tidegate_engine::backfill::scan::{KeyRange, PageId, Place};
use tidegate_engine::{CommitSeq, OwnerEpoch, SchemaVersion};

use crate::steps::Script;
use crate::world::*;

fn slow() -> BackfillSettings {
    BackfillSettings {
        pace: frozen(),
        ..quick()
    }
}

#[actix::test]
async fn two_processes_that_start_at_once_end_with_the_same_rows_and_one_owner_at_a_time() {
    two_processes(Home::sqlite()).await;
}

pub async fn two_processes(home: Home) {
    let world = World::new_in(home, 200, &[COLUMN, TABLE]).await;
    let stores = [world.store(&both()).await, world.store(&both()).await];
    let [one, other] = stores.map(|store| Process::start(store, both(), quick()));
    for process in [&one, &other] {
        process.activated(COLUMN).await;
        process.activated(TABLE).await;
    }
    let todos = assert_column_is_right(&*one.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    let cards = assert_table_is_right(&*one.store).await;
    assert!(cards.values().all(|(version, _)| *version == 1));
    one.die().await;
    other.die().await;
}

#[actix::test]
async fn a_checkpoint_that_its_owner_moves_is_left_alone_and_taken_over_when_it_stands_still() {
    let world = World::new(100, &[COLUMN]).await;
    let owner = world.process(vec![projection(COLUMN)], slow()).await;
    owner
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    let script = Script::new();
    let settings = BackfillSettings {
        steps: script.clone(),
        ..quick()
    };
    let other = world
        .process(vec![projection(COLUMN)], settings.clone())
        .await;
    // The owner waits for its pace, for much longer than a lease, and keeps it alive.
    let since = owner.checkpoint(COLUMN).await.updated_at_ms;
    let enough = since + 4 * i64::try_from(settings.lease.as_millis()).unwrap();
    let status = other
        .until(COLUMN, |status| status.checkpoint.updated_at_ms > enough)
        .await;
    assert_eq!(status.checkpoint.owner_epoch, OwnerEpoch(1));
    assert!(!status.owned_here);
    assert_eq!(script.count("backfill.claim.before"), 0);
    owner.die().await;
    let status = other.activated(COLUMN).await;
    assert_eq!(status.checkpoint.owner_epoch, OwnerEpoch(2));
    assert_eq!(status.checkpoint.observed_rows, 100);
    assert_column_is_right(&*other.store).await;
    other.die().await;
}

#[actix::test]
async fn a_forced_claim_supersedes_the_owner_which_stops_quietly() {
    let world = World::new(100, &[COLUMN]).await;
    let owner = world.process(vec![projection(COLUMN)], slow()).await;
    owner
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    let other = world.process(vec![projection(COLUMN)], slow()).await;
    other.backfills.force_claim(key(COLUMN)).await.unwrap();
    other.until(COLUMN, |status| status.owned_here).await;
    let status = owner
        .until(COLUMN, |status| status.phase == WorkerPhase::Superseded)
        .await;
    assert_eq!(status.last_error, None);
    assert_eq!(status.checkpoint.owner_epoch, OwnerEpoch(2));
    other.backfills.set_pace(key(COLUMN), fast()).await.unwrap();
    other.activated(COLUMN).await;
    let todos = assert_column_is_right(&*other.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    owner.die().await;
    other.die().await;
}

#[actix::test]
async fn a_forced_claim_of_an_own_backfill_starts_it_over_under_a_new_epoch() {
    let world = World::new(100, &[COLUMN]).await;
    let process = world.process(vec![projection(COLUMN)], slow()).await;
    process
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    process.backfills.force_claim(key(COLUMN)).await.unwrap();
    process
        .until(COLUMN, |status| {
            status.owned_here && status.checkpoint.owner_epoch == OwnerEpoch(2)
        })
        .await;
    process
        .backfills
        .set_pace(key(COLUMN), fast())
        .await
        .unwrap();
    let status = process.activated(COLUMN).await;
    assert_eq!(status.checkpoint.observed_rows, 100);
    process.die().await;
}

#[actix::test]
async fn a_superseded_owners_page_is_dropped_whole_and_a_repeated_page_writes_nothing() {
    let world = World::new(1, &[COLUMN]).await;
    let store = world.store(&[projection(COLUMN)]).await;
    let process = Process::start(store, vec![], quick());
    let declared = [(partition().to_string(), COLUMN.to_owned())];
    process
        .directory
        .set_declared(std::sync::Arc::new(declared.into_iter().collect()));
    let claim = || async {
        let (partition, version) = (partition(), SchemaVersion(2));
        let claim = process
            .store
            .claim_checkpoint(&partition, COLUMN, version, 5);
        claim.await.unwrap().owner_epoch
    };
    let (stale, owner) = (claim().await, claim().await);
    let page = |epoch: OwnerEpoch| {
        let id = PageId {
            owner_epoch: epoch,
            fingerprint: projection(COLUMN).fingerprint().into(),
            place: Place::Scan {
                start: CommitSeq(1),
                done: KeyRange::whole("todos"),
            },
        };
        let changes = crate::pages::changes_of_all(&*process.store);
        let advance = Advance {
            owner_epoch: epoch,
            watermark: CommitSeq(0),
            observed_rows: 1,
        };
        async move { BackfillPage::new(COLUMN, &id, changes.await, advance) }
    };
    let handle = process.directory.partition(&partition());
    let (before, first) = (max(&*process.store).await, page(stale).await);
    assert_eq!(first.changes.len(), 1);
    let dropped = handle.commit_page(first.clone()).await.unwrap();
    assert_eq!(dropped, PageOutcome::Superseded);
    assert_eq!(max(&*process.store).await, before);
    assert_eq!(process.checkpoint(COLUMN).await.observed_rows, 0);
    assert!(process.heard.0.lock().is_empty());
    // Dropped, not recorded: it would be dropped again, not taken for done.
    let again = handle.commit_page(first).await.unwrap();
    assert_eq!(again, PageOutcome::Superseded);

    let ours = page(owner).await;
    let seq = CommitSeq(before + 1);
    let committed = handle.commit_page(ours.clone()).await.unwrap();
    assert_eq!(committed, PageOutcome::Committed { seq: Some(seq) });
    let checkpoint = process.checkpoint(COLUMN).await;
    assert_eq!(checkpoint.observed_rows, 1);
    // Even a superseded owner's repetition of a page that is done is no failure.
    claim().await;
    let repeated = handle.commit_page(ours).await.unwrap();
    assert_eq!(repeated, PageOutcome::AlreadyDone);
    assert_eq!(max(&*process.store).await, seq.0);
    assert_eq!(process.heard.0.lock().len(), 1);
    let todos = assert_column_is_right(&*process.store).await;
    assert!(todos.values().all(|(version, _)| *version == 2));
    process.die().await;
}

#[actix::test]
async fn no_client_may_push_under_the_id_of_a_backfill() {
    let world = World::new(1, &[]).await;
    let process = world.process(vec![], quick()).await;
    let request = tidegate_actors::PushRequest {
        client_id: tidegate_engine::backfill::scan::client_id(COLUMN),
        actor_id: "mallory".into(),
        wire: ssp2::WireVersion::V2,
        allowed: tidegate_engine::hooks::Allowed::Failed,
        commits: Vec::new(),
        bind: None,
    };
    let handle = process.directory.partition(&partition());
    let refused = handle.push(request).await.unwrap_err();
    assert_eq!(refused.error.code, ssp2::ErrorCode::InvalidClientId);
    process.die().await;
}

#[actix::test]
async fn activation_by_hand_is_stale_before_the_work_is_done_and_possible_after_it() {
    let world = World::new(50, &[COLUMN]).await;
    let script = Script::dying(Some(("backfill.activate.before", 1)));
    let settings = BackfillSettings {
        steps: script.clone(),
        ..slow()
    };
    let process = world.process(vec![projection(COLUMN)], settings).await;
    process
        .until(COLUMN, |status| status.checkpoint.observed_rows > 0)
        .await;
    let activate = || process.backfills.activate(key(COLUMN));
    assert_eq!(activate().await.unwrap(), Activated::Stale);
    process
        .backfills
        .set_pace(key(COLUMN), fast())
        .await
        .unwrap();
    script.died().await;
    assert_eq!(activate().await.unwrap(), Activated::Activated);
    let status = process.status(COLUMN).await;
    assert_eq!(status.phase, WorkerPhase::Activated);
    assert_column_is_right(&*process.store).await;
    process.backfills.stop(Duration::ZERO).await;
    process.directory.shutdown(Duration::from_secs(5)).await;
}

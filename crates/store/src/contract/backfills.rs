//! The life of checkpoints and fences (migrations.md rules 2 to 7), rule by rule.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use tidegate_engine::backfill::checkpoint::{
    Activation, Advance, Checkpoint, CheckpointState, Coverage, Declare,
};
use tidegate_engine::backfill::pacing::Pace;
use tidegate_engine::backfill::scan::{self, KeyRange, PageId, Place};
use tidegate_engine::model::{CommitBatch, PageAdvance, ResultKey, ResultLookup};
use tidegate_engine::schema::Schema;
use tidegate_engine::{CommitSeq, LogEpoch, OwnerEpoch, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::{Activate, BackfillControl, CommitError, Store, StoreError};

/// A store at version 2, whose process declares `totals` of `p`.
async fn ready_for_totals(harness: &dyn Harness) -> (Arc<dyn Store>, Arc<Schema>) {
    let schema = compile(&document_v2());
    let store = harness.open().await;
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    (store, schema)
}

fn wanted(name: &str, version: i32) -> Declare {
    Declare {
        partition: p("p"),
        name: name.into(),
        schema_version: SchemaVersion(version),
    }
}

async fn declare(store: &dyn Store, name: &str, version: i32) -> Result<Checkpoint, StoreError> {
    store.declare_checkpoint(&wanted(name, version), 10).await
}

async fn claim(store: &dyn Store, name: &str, version: i32) -> Result<Checkpoint, StoreError> {
    store
        .claim_checkpoint(&p("p"), name, SchemaVersion(version), 20)
        .await
}

async fn stored_totals(store: &dyn Store) -> Checkpoint {
    let found = store.read_checkpoint(&p("p"), "totals").await.unwrap();
    found.unwrap()
}

async fn fence(store: &dyn Store) -> Option<SchemaVersion> {
    store.read_fence(&p("p")).await.unwrap()
}

fn advance(epoch: i64, watermark: i64, observed_rows: i64) -> Advance {
    Advance {
        owner_epoch: OwnerEpoch(epoch),
        watermark: CommitSeq(watermark),
        observed_rows,
    }
}

fn activation(epoch: i64, watermark: i64, sources: &[&str]) -> Activate {
    Activate {
        partition: p("p"),
        name: "totals".into(),
        owner_epoch: OwnerEpoch(epoch),
        watermark: CommitSeq(watermark),
        sources: sources.iter().map(|name| (*name).to_owned()).collect(),
        now_ms: 40,
    }
}

/// A batch of a process that declares `totals` of `p`.
fn declaring(mut batch: CommitBatch) -> CommitBatch {
    batch.declared = Arc::new([("p".to_owned(), "totals".to_owned())].into());
    batch
}

fn page(schema: &Schema, expected: i64, commits: &[Vec<Op>], to: Advance) -> Arc<CommitBatch> {
    let mut batch = declaring(batch(schema, "p", expected, commits));
    batch.advance = Some(PageAdvance {
        name: "totals".into(),
        to,
        now_ms: 30,
    });
    Arc::new(batch)
}

/// One commit with one note in `p`, by a process that declares `totals`.
async fn note_in_p(store: &dyn Store, schema: &Schema, expected: i64) {
    let mut ops = note(&format!("n{expected}"), "l1", "o1", None);
    ops.push(ssp2::Value::Null);
    let commits = [vec![put(NOTES, ops)]];
    let batch = declaring(batch(schema, "p", expected, &commits));
    store.commit_batch(Arc::new(batch)).await.unwrap();
}

fn noted() -> Vec<Vec<Op>> {
    let mut values = note("page", "l1", "o1", None);
    values.push(ssp2::Value::Null);
    vec![vec![put_again(NOTES, values)]]
}

async fn register(store: &dyn Store) {
    let device = tidegate_engine::ClientId::from("device");
    store
        .read_preamble(&p("p"), &device, touch(1, "epoch"))
        .await
        .unwrap();
}

async fn prune(store: &dyn Store, through: i64) {
    let epoch = LogEpoch::from("epoch");
    let pruned = store
        .prune(&p("p"), &epoch, CommitSeq(through))
        .await
        .unwrap();
    assert_eq!(pruned.horizon, CommitSeq(through));
}

pub async fn a_declaration_raises_the_fence_with_it(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    let declared = declare(&*store, "totals", 2).await.unwrap();
    assert_eq!(
        declared,
        Checkpoint {
            partition: p("p"),
            name: "totals".into(),
            schema_version: SchemaVersion(2),
            state: CheckpointState::Declared,
            watermark: CommitSeq(0),
            owner_epoch: OwnerEpoch(0),
            observed_rows: 0,
            updated_at_ms: 10,
        }
    );
    assert_eq!(stored_totals(&*store).await, declared);
    assert_eq!(fence(&*store).await, Some(SchemaVersion(2)));
    // Who does not declare it is refused at once; who does writes on.
    let refused = store
        .commit_batch(Arc::new(batch(&schema, "p", 0, &noted())))
        .await;
    assert!(matches!(refused, Err(CommitError::CheckpointPending(_))));
    note_in_p(&*store, &schema, 0).await;
    let other = store.read_fence(&p("other")).await.unwrap();
    assert_eq!(other, None);
}

pub async fn a_declaration_never_lowers_a_fence(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    let nine = SchemaVersion(9);
    assert_eq!(store.raise_fence(&p("p"), nine).await.unwrap(), nine);
    declare(&*store, "totals", 2).await.unwrap();
    assert_eq!(fence(&*store).await, Some(nine));
    let three = SchemaVersion(3);
    assert_eq!(store.raise_fence(&p("p"), three).await.unwrap(), nine);
    assert_eq!(fence(&*store).await, Some(nine));
}

pub async fn a_name_of_another_version_is_refused(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    let first = declare(&*store, "totals", 1).await.unwrap();
    let refused = declare(&*store, "totals", 2).await;
    let Err(StoreError::CheckpointVersionTaken { name, existing }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((name.as_str(), existing), ("totals", SchemaVersion(1)));
    assert_eq!(stored_totals(&*store).await, first);
    // The fence would have risen while nothing is pending at version 2.
    assert_eq!(fence(&*store).await, Some(SchemaVersion(1)));
}

pub async fn declaring_again_returns_the_row_as_it_is(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    declare(&*store, "totals", 2).await.unwrap();
    let claimed = claim(&*store, "totals", 2).await.unwrap();
    let again = store
        .declare_checkpoint(&wanted("totals", 2), 99)
        .await
        .unwrap();
    assert_eq!(again, claimed);
    let outcome = store
        .activate_checkpoint(&activation(1, 0, &["notes"]))
        .await
        .unwrap();
    let Activation::Activated(activated) = outcome else {
        panic!("{outcome:?}");
    };
    let again = store
        .declare_checkpoint(&wanted("totals", 2), 99)
        .await
        .unwrap();
    assert_eq!(again, activated);
    assert_eq!(stored_totals(&*store).await, activated);
}

pub async fn a_claim_supersedes_and_keeps_all_but_the_owner(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    declare(&*store, "totals", 2).await.unwrap();
    let claimed = claim(&*store, "totals", 2).await.unwrap();
    assert_eq!(claimed.state, CheckpointState::Backfilling);
    assert_eq!(claimed.owner_epoch, OwnerEpoch(1));
    assert_eq!(claimed.schema_version, SchemaVersion(2));
    assert_eq!(claimed.updated_at_ms, 20);
    let advanced = store
        .advance_checkpoint(&p("p"), "totals", advance(1, 5, 7), 30)
        .await;
    assert!(advanced.unwrap());
    let again = claim(&*store, "totals", 2).await.unwrap();
    assert_eq!(again.owner_epoch, OwnerEpoch(2));
    assert_eq!((again.watermark, again.observed_rows), (CommitSeq(5), 7));
    assert_eq!(stored_totals(&*store).await, again);
}

pub async fn only_a_declared_checkpoint_of_that_version_is_claimed(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    let absent = claim(&*store, "totals", 2).await;
    assert!(matches!(absent, Err(StoreError::CheckpointNotDeclared)));
    let declared = declare(&*store, "totals", 2).await.unwrap();
    for version in [1, 3] {
        let other = claim(&*store, "totals", version).await;
        assert!(matches!(other, Err(StoreError::CheckpointNotDeclared)));
    }
    assert_eq!(stored_totals(&*store).await, declared);
    store
        .activate_checkpoint(&activation(0, 0, &["notes"]))
        .await
        .unwrap();
    let activated = stored_totals(&*store).await;
    let late = claim(&*store, "totals", 2).await;
    assert!(matches!(late, Err(StoreError::CheckpointNotDeclared)));
    assert_eq!(stored_totals(&*store).await, activated);
}

pub async fn claimers_never_share_an_epoch(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    let other = harness.open().await;
    declare(&*store, "totals", 2).await.unwrap();
    other
        .ensure_schema(schema, &[declaration("p", "totals", 2)], 1)
        .await
        .unwrap();
    let claims = (0..16).map(|at| {
        let store = Arc::clone(if at % 2 == 0 { &store } else { &other });
        tokio::spawn(async move { claim(&*store, "totals", 2).await.unwrap().owner_epoch.0 })
    });
    let epochs: BTreeSet<i64> = join_all(claims)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(epochs, (1..=16).collect());
}

pub async fn a_superseded_owner_advances_nothing(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    let to = async |epoch| advance_to(&*store, advance(epoch, 9, 9)).await;
    assert!(!to(0).await);
    declare(&*store, "totals", 2).await.unwrap();
    // Not even at the epoch of a checkpoint that nobody claimed.
    assert!(!to(0).await);
    claim(&*store, "totals", 2).await.unwrap();
    let claimed = claim(&*store, "totals", 2).await.unwrap();
    for epoch in [0, 1, 3] {
        assert!(!to(epoch).await);
    }
    assert_eq!(stored_totals(&*store).await, claimed);
    assert!(to(2).await);
    let stored = stored_totals(&*store).await;
    assert_eq!((stored.watermark, stored.observed_rows), (CommitSeq(9), 9));
    assert_eq!(stored.updated_at_ms, 30);
    // The total is stored as told, and may begin again with a new scan.
    assert!(advance_to(&*store, advance(2, 0, 4)).await);
    assert_eq!(stored_totals(&*store).await.observed_rows, 4);
}

async fn advance_to(store: &dyn Store, to: Advance) -> bool {
    store
        .advance_checkpoint(&p("p"), "totals", to, 30)
        .await
        .unwrap()
}

pub async fn a_page_commits_and_advances_together(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    declare(&*store, "totals", 2).await.unwrap();
    claim(&*store, "totals", 2).await.unwrap();
    store
        .commit_batch(page(&schema, 0, &noted(), advance(1, 3, 1)))
        .await
        .unwrap();
    assert_eq!(head(&*store, "p").await, 1);
    let stored = stored_totals(&*store).await;
    assert_eq!((stored.watermark, stored.observed_rows), (CommitSeq(3), 1));
    assert_eq!(stored.updated_at_ms, 30);
    // A lost CAS takes the advance with it.
    let lost = store
        .commit_batch(page(&schema, 0, &noted(), advance(1, 4, 2)))
        .await;
    assert!(matches!(lost, Err(CommitError::SequenceMoved)), "{lost:?}");
    assert_eq!(stored_totals(&*store).await, stored);
    // So does a row that is refused.
    let mut slots = Vec::new();
    for id in ["a", "b"] {
        let mut values = note(id, "l1", "o1", Some(1));
        values.push(ssp2::Value::Null);
        slots.push(put(NOTES, values));
    }
    let refused = store
        .commit_batch(page(&schema, 1, &[slots], advance(1, 4, 2)))
        .await;
    assert!(matches!(refused, Err(CommitError::Constraint { .. })));
    assert_eq!(stored_totals(&*store).await, stored);
}

pub async fn a_stale_owners_page_is_dropped_whole(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    declare(&*store, "totals", 2).await.unwrap();
    claim(&*store, "totals", 2).await.unwrap();
    let owner = claim(&*store, "totals", 2).await.unwrap();
    for round in 0..10 {
        let mut values = note(&format!("n{round}"), "l1", "o1", None);
        values.push(ssp2::Value::Null);
        let free = declaring(batch(&schema, "free", round, &[vec![put(NOTES, values)]]));
        let (stale, fine) = join(
            store.commit_batch(page(&schema, 0, &noted(), advance(1, 3, 1))),
            store.commit_batch(Arc::new(free)),
        )
        .await;
        assert!(matches!(stale, Err(CommitError::Superseded)), "{stale:?}");
        fine.unwrap();
    }
    assert_eq!(stored_totals(&*store).await, owner);
    assert_eq!(head(&*store, "p").await, 0);
    assert_eq!(result(&*store, "p", "c1").await, ResultLookup::Absent);
    for table in ["sync_commits", "sync_changes", "sync_push_results"] {
        let query = format!("SELECT count(*) FROM {table} WHERE partition='p'");
        assert_eq!(rows(harness, &query).await, [["0"]], "{table}");
    }
    let notes = "SELECT count(*) FROM notes WHERE _sync_partition='p'";
    assert_eq!(rows(harness, notes).await, [["0"]]);
    // The sequence number is there for the next one.
    note_in_p(&*store, &schema, 0).await;
}

pub async fn an_advance_without_commits_passes_the_gate_too(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    declare(&*store, "totals", 2).await.unwrap();
    let claimed = claim(&*store, "totals", 2).await.unwrap();
    let mut undeclared = page(&schema, 0, &[], advance(1, 3, 1)).as_ref().clone();
    undeclared.declared = Arc::default();
    let refused = store.commit_batch(Arc::new(undeclared)).await;
    assert!(matches!(refused, Err(CommitError::CheckpointPending(_))));
    assert_eq!(stored_totals(&*store).await, claimed);

    store
        .commit_batch(page(&schema, 0, &[], advance(1, 3, 1)))
        .await
        .unwrap();
    let advanced = stored_totals(&*store).await;
    assert_eq!(advanced.watermark, CommitSeq(3));
    assert_eq!(head(&*store, "p").await, 0);
    let stale = store
        .commit_batch(page(&schema, 0, &[], advance(0, 4, 2)))
        .await;
    assert!(matches!(stale, Err(CommitError::Superseded)), "{stale:?}");

    note_in_p(&*store, &schema, 0).await;
    let moved = store
        .commit_batch(page(&schema, 0, &[], advance(1, 4, 2)))
        .await;
    assert!(
        matches!(moved, Err(CommitError::SequenceMoved)),
        "{moved:?}"
    );
    store.raise_fence(&p("p"), SchemaVersion(3)).await.unwrap();
    let fenced = store
        .commit_batch(page(&schema, 1, &[], advance(1, 4, 2)))
        .await;
    assert!(
        matches!(fenced, Err(CommitError::FenceRejected)),
        "{fenced:?}"
    );
    assert_eq!(stored_totals(&*store).await, advanced);
}

pub async fn a_locked_page_of_a_stale_owner_is_dropped_too(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    declare(&*store, "totals", 2).await.unwrap();
    claim(&*store, "totals", 2).await.unwrap();
    let locked = store.begin_locked(&p("p")).await.unwrap();
    let stale = locked
        .commit(page(&schema, 0, &noted(), advance(7, 3, 1)))
        .await;
    assert!(matches!(stale, Err(CommitError::Superseded)), "{stale:?}");
    let locked = store.begin_locked(&p("p")).await.unwrap();
    locked
        .commit(page(&schema, 0, &noted(), advance(1, 3, 1)))
        .await
        .unwrap();
    assert_eq!(stored_totals(&*store).await.watermark, CommitSeq(3));
}

pub async fn the_log_tells_what_changed_above_a_position(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    register(&*store).await;
    let projects = vec![put(PROJECTS, vec![text("a"), text("w")])];
    note_in_p(&*store, &schema, 0).await;
    commit(&*store, &schema, "p", 1, &[projects.clone(), projects]).await;
    let newest =
        async |tables: &[&str]| store.source_coverage_seq(&p("p"), tables).await.unwrap().0;
    assert_eq!(newest(&["notes"]).await, 1);
    assert_eq!(newest(&["notes", "projects"]).await, 3);
    assert_eq!(newest(&["tasks"]).await, 0);
    assert_eq!(newest(&["no such table"]).await, 0);
    // Without sources there is nothing that could change.
    assert_eq!(newest(&[]).await, 0);
    let above = async |tables: &[&str], seq| {
        store
            .has_source_changes_above(&p("p"), tables, CommitSeq(seq))
            .await
            .unwrap()
    };
    assert_eq!(above(&["notes"], 0).await, Coverage::Changed);
    assert_eq!(above(&["notes"], 1).await, Coverage::Clean);
    assert_eq!(above(&["notes", "projects"], 2).await, Coverage::Changed);
    assert_eq!(above(&["notes", "projects"], 3).await, Coverage::Clean);
    assert_eq!(above(&[], 0).await, Coverage::Clean);
    let elsewhere = store
        .has_source_changes_above(&p("q"), &["notes"], CommitSeq(0))
        .await;
    assert_eq!(elsewhere.unwrap(), Coverage::Clean);

    // A pruned window proves nothing, unless a change is still there.
    prune(&*store, 2).await;
    assert_eq!(newest(&["notes"]).await, 0);
    assert_eq!(above(&["notes"], 0).await, Coverage::Unverifiable);
    assert_eq!(above(&["notes"], 1).await, Coverage::Unverifiable);
    assert_eq!(above(&["notes"], 2).await, Coverage::Clean);
    assert_eq!(above(&["projects"], 0).await, Coverage::Changed);
    assert_eq!(above(&[], 0).await, Coverage::Clean);
}

pub async fn an_activation_judges_fence_sources_log_and_owner_in_that_order(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    register(&*store).await;
    let ask = async |epoch, watermark| {
        let sources = ["notes"];
        store
            .activate_checkpoint(&activation(epoch, watermark, &sources))
            .await
    };
    note_in_p(&*store, &schema, 0).await;
    note_in_p(&*store, &schema, 1).await;
    // No checkpoint, no fence, and everything else wrong as well.
    let absent = ask(7, 0).await;
    assert!(matches!(absent, Err(StoreError::CheckpointFenceMissing)));
    declare(&*store, "totals", 2).await.unwrap();
    let claimed = claim(&*store, "totals", 2).await.unwrap();
    for fence in [
        "DELETE FROM sync_writer_fence",
        "INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES('p', 1)",
    ] {
        harness.sql(fence).await;
        let low = ask(7, 0).await;
        assert!(matches!(low, Err(StoreError::CheckpointFenceMissing)));
    }
    store.raise_fence(&p("p"), SchemaVersion(2)).await.unwrap();
    // Changed, and pruned, and not the owner: changed speaks.
    prune(&*store, 1).await;
    assert_eq!(ask(7, 0).await.unwrap(), Activation::Stale);
    assert_eq!(ask(1, 0).await.unwrap(), Activation::Stale);
    // Pruned and not the owner: the log speaks.
    prune(&*store, 2).await;
    assert_eq!(ask(7, 1).await.unwrap(), Activation::Unverifiable);
    assert_eq!(ask(1, 1).await.unwrap(), Activation::Unverifiable);
    assert_eq!(ask(7, 2).await.unwrap(), Activation::Stale);
    // Every answer so far changed nothing, its time included.
    assert_eq!(stored_totals(&*store).await, claimed);
    let Activation::Activated(activated) = ask(1, 2).await.unwrap() else {
        panic!("not activated");
    };
    assert_eq!(activated.state, CheckpointState::Activated);
    assert_eq!(activated.watermark, CommitSeq(2));
    assert_eq!(activated.updated_at_ms, 40);
    assert_eq!(stored_totals(&*store).await, activated);
}

pub async fn activating_again_is_stale_while_the_log_is_clean(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    register(&*store).await;
    declare(&*store, "totals", 2).await.unwrap();
    claim(&*store, "totals", 2).await.unwrap();
    note_in_p(&*store, &schema, 0).await;
    let ask = activation(1, 1, &["notes"]);
    store.activate_checkpoint(&ask).await.unwrap();
    let activated = stored_totals(&*store).await;
    assert_eq!(activated.state, CheckpointState::Activated);
    let again = Activate { now_ms: 99, ..ask };
    let again = store.activate_checkpoint(&again).await.unwrap();
    assert_eq!(again, Activation::Stale);
    assert!(!advance_to(&*store, advance(1, 5, 5)).await);
    assert_eq!(stored_totals(&*store).await, activated);
}

pub async fn an_unclaimed_checkpoint_is_activated_when_nothing_ever_changed(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    let declared = declare(&*store, "totals", 2).await.unwrap();
    commit_projects(&*store, &schema).await;
    let ask = async |watermark| {
        let request = activation(0, watermark, &["notes"]);
        store.activate_checkpoint(&request).await.unwrap()
    };
    assert_eq!(ask(1).await, Activation::Stale);
    assert_eq!(stored_totals(&*store).await, declared);
    assert!(matches!(ask(0).await, Activation::Activated(_)));
    assert!(store.read_gate(&p("p")).await.unwrap().0.pending.is_empty());
}

async fn commit_projects(store: &dyn Store, schema: &Schema) {
    let commits = [vec![put(PROJECTS, vec![text("a"), text("w")])]];
    let batch = declaring(batch(schema, "p", 0, &commits));
    store.commit_batch(Arc::new(batch)).await.unwrap();
}

pub async fn checkpoints_are_listed_by_partition_and_name(harness: &dyn Harness) {
    let (store, _) = ready_for_totals(harness).await;
    for (partition, name) in [("q", "a"), ("p", "b"), ("p", "B"), ("p", "a")] {
        let wanted = Declare {
            partition: p(partition),
            name: name.into(),
            schema_version: SchemaVersion(2),
        };
        store.declare_checkpoint(&wanted, 1).await.unwrap();
    }
    let names = |list: Vec<Checkpoint>| -> Vec<String> {
        list.iter()
            .map(|row| format!("{} {}", row.partition, row.name))
            .collect()
    };
    let all = names(store.list_checkpoints(None).await.unwrap());
    assert_eq!(all, ["p B", "p a", "p b", "q a"]);
    let of_q = store.list_checkpoints(Some(&p("q"))).await.unwrap();
    assert_eq!(names(of_q), ["q a"]);
    let none = store.read_checkpoint(&p("q"), "b").await.unwrap();
    assert_eq!(none, None);
}

fn scan_page(epoch: i64, start: i64, after: Option<&str>, through: Option<&str>) -> PageId {
    PageId {
        owner_epoch: OwnerEpoch(epoch),
        fingerprint: "print".into(),
        place: Place::Scan {
            start: CommitSeq(start),
            done: KeyRange {
                table: "notes".into(),
                after: after.map(Arc::from),
                through: through.map(Arc::from),
            },
        },
    }
}

pub async fn the_pages_of_a_backfill_are_found_oldest_first(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    let older = scan_page(1, 1, None, Some("z"));
    let log = |part| PageId {
        owner_epoch: OwnerEpoch(3),
        fingerprint: "print".into(),
        place: Place::CatchUp {
            after: CommitSeq(5),
            through: CommitSeq(9),
            part,
        },
    };
    let pages = [
        older,
        scan_page(2, 5, Some("m"), Some("quoted \"Ü")),
        scan_page(3, 5, None, Some("m")),
        log(1),
        log(0),
    ];
    for (written, id) in (0..).zip(&pages) {
        let mut commits = batch(&schema, "p", written, &noted());
        let key = ResultKey {
            client_id: scan::client_id("totals"),
            client_commit_id: id.encode().into(),
        };
        commits.results = vec![(key, Arc::new(applied(written + 1)))];
        store.commit_batch(Arc::new(commits)).await.unwrap();
    }
    let found = store.backfill_pages(&p("p"), "totals").await.unwrap();
    assert_eq!(found, pages[1..]);
    for (partition, name) in [("p", "other"), ("q", "totals")] {
        let none = store.backfill_pages(&p(partition), name).await.unwrap();
        assert!(none.is_empty());
    }
}

pub async fn what_operators_set_outlives_the_process(harness: &dyn Harness) {
    let (store, schema) = ready_for_totals(harness).await;
    let control = BackfillControl {
        partition: p("p"),
        name: "totals".into(),
        paused: true,
        workers: 3,
        pace: Some(Pace {
            rows_per_second: 12.5,
            ..Pace::default()
        }),
        last_error: Some("the expression failed: \"no such key\"".into()),
        updated_at_ms: 7,
    };
    store.put_backfill_control(&control).await.unwrap();
    let other = BackfillControl {
        partition: p("q"),
        pace: None,
        last_error: None,
        paused: false,
        ..control.clone()
    };
    store.put_backfill_control(&other).await.unwrap();
    let again = harness.open().await;
    again.ensure_schema(schema, &[], 1).await.unwrap();
    let all = again.list_backfill_controls(None).await.unwrap();
    assert_eq!(all, [control.clone(), other.clone()]);
    let cleared = BackfillControl {
        paused: false,
        pace: None,
        last_error: None,
        workers: 1,
        updated_at_ms: 8,
        ..control
    };
    again.put_backfill_control(&cleared).await.unwrap();
    let of_p = store.list_backfill_controls(Some(&p("p"))).await.unwrap();
    assert_eq!(of_p, [cleared]);
}

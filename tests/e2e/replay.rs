//! Lost acknowledgements: replayed, never applied twice.

use tidegate_client::{Edit, Fault, Faults, FaultyTransport, OutcomeStatus, WireVersion};

use crate::process::{Backend, Site, on_each_database};
use crate::scenario::{client, client_over, http, todo};

on_each_database!(
    a_lost_acknowledgement_replays_as_cached_and_applies_once,
    a_lost_rejection_replays_as_itself,
    random_losses_never_double_or_lose_a_commit,
);

async fn a_lost_acknowledgement_replays_as_cached_and_applies_once(on: Backend) {
    for wire in [WireVersion::V1, WireVersion::V2, WireVersion::V3] {
        let site = Site::on(on);
        let server = site.start(&[]);
        let faults = Faults::none();
        let transport = FaultyTransport::new(http(&server.url, "ada"), faults.clone());
        let mut ada = client_over("ada-phone", wire, |_| {}, transport);
        ada.sync().await.unwrap();
        let commit = ada.edit([todo("t1", "bread")]).unwrap();
        faults.push(Fault::DropResponse);
        assert!(ada.sync().await.is_err(), "the answer is lost");
        assert_eq!(ada.pending().count(), 1);
        ada.sync().await.unwrap();
        assert!(
            matches!(ada.outcome(&commit), Some(OutcomeStatus::Cached(1))),
            "{:?}",
            ada.outcome(&commit)
        );
        assert_eq!(
            ada.replica().version("todos", "t1"),
            Some(1),
            "applied once"
        );
        let mut witness = client(&server.url, "witness");
        witness.sync().await.unwrap();
        assert_eq!(
            witness.replica().versioned_dump(),
            ada.replica().versioned_dump()
        );
    }
}

async fn a_lost_rejection_replays_as_itself(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut eve = client(&server.url, "eve");
    eve.edit([todo("t1", "one")]).unwrap();
    eve.sync().await.unwrap();

    let faults = Faults::none();
    let transport = FaultyTransport::new(http(&server.url, "ada"), faults.clone());
    let mut ada = client_over("ada-phone", WireVersion::V3, |_| {}, transport);
    ada.sync().await.unwrap();
    eve.edit([Edit::update("todos", "t1").set("title", "two")])
        .unwrap();
    eve.sync().await.unwrap();
    let edit = Edit::update("todos", "t1").set("title", "three");
    ada.edit([edit.base(tidegate_client::Base::Exact(1))])
        .unwrap();
    faults.push(Fault::DropResponse);
    assert!(ada.sync().await.is_err());
    // The row moves on meanwhile; the replayed evidence is still that of the decision.
    eve.edit([Edit::update("todos", "t1").set("title", "four")])
        .unwrap();
    eve.sync().await.unwrap();
    ada.sync().await.unwrap();
    let conflicts = ada.conflicts();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].server_version, 2);
    assert_eq!(conflicts[0].conflict_columns, ["title"]);
}

async fn random_losses_never_double_or_lose_a_commit(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut tasks = Vec::new();
    for n in 0..4_u64 {
        let url = server.url.clone();
        tasks.push(tokio::spawn(async move {
            let faults = Faults::random(n + 1, 15, 25);
            let id = format!("device-{n}");
            let transport = FaultyTransport::new(http(&url, &id), faults.clone());
            let mut client = client_over(&id, WireVersion::V3, |_| {}, transport);
            for step in 0..30 {
                client.edit([todo(&format!("{n}-{step}"), "x")]).unwrap();
                client.sync_through_losses(100).await.unwrap();
            }
            assert!(faults.injected() > 0);
            faults.clear();
            client.sync().await.unwrap();
            assert!(
                client
                    .outcomes()
                    .iter()
                    .all(tidegate_client::Outcome::is_success)
            );
            let mut seqs: Vec<i64> = client
                .outcomes()
                .iter()
                .map(|outcome| match outcome.status {
                    OutcomeStatus::Applied(seq) | OutcomeStatus::Cached(seq) => seq,
                    _ => unreachable!("all are successes"),
                })
                .collect();
            let count = seqs.len();
            seqs.dedup();
            assert_eq!((count, seqs.len()), (30, 30));
            seqs
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (1..=120).collect::<Vec<i64>>(), "one log, no gaps");
}

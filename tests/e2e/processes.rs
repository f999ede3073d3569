//! Two servers on one Postgres, one partition: one log, as if they were one.

use std::time::Instant;

use tidegate_client::{
    Base, ConflictPolicy, Edit, Faults, FaultyTransport, HttpTransport, Resolution, SyncClient,
    WireVersion,
};

use crate::process::{Backend, PATIENCE, Site};
use crate::scenario::{assert_one_log, client, client_over, http, todo};

/// Syncs as a client does: a request that lost too many races to the other
/// process is told to come again.
async fn sync_until_decided(device: &mut SyncClient<HttpTransport>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = device.sync().await {
        assert!(error.retryable(), "{error}");
        assert!(Instant::now() < deadline, "starved: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_make_one_log_with_every_commit_once() {
    const DEVICES: usize = 6;
    const STEPS: usize = 30;
    let site = Site::on(Backend::Postgres);
    let servers = [site.start(&[]), site.start(&[])];
    let mut tasks = Vec::new();
    for n in 0..DEVICES {
        let urls = [servers[0].url.clone(), servers[1].url.clone()];
        tasks.push(tokio::spawn(async move {
            let id = format!("device-{n}");
            let mut device = client_over(&id, WireVersion::V3, |_| {}, http(&urls[n % 2], &id));
            for step in 0..STEPS {
                device.edit([todo(&format!("{n}-{step}"), "x")]).unwrap();
                sync_until_decided(&mut device).await;
                // Devices roam: the next request may reach the other process.
                if step % 7 == 6 {
                    let url = &urls[(n + step) % 2];
                    device = device.map_transport(|old| old.at(url));
                }
            }
            device
        }));
    }
    let mut devices = Vec::new();
    for task in tasks {
        devices.push(task.await.unwrap());
    }
    assert_one_log(&devices, DEVICES * STEPS);
    let mut dumps = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let mut witness = client(&server.url, &format!("witness-{n}"));
        witness.sync().await.unwrap();
        assert_eq!(witness.replica().len("todos"), DEVICES * STEPS);
        dumps.push(witness.replica().versioned_dump());
    }
    assert_eq!(dumps[0], dumps[1]);
    for device in &mut devices {
        device.sync().await.unwrap();
        assert_eq!(device.replica().versioned_dump(), dumps[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_row_written_through_two_processes_conflicts_as_through_one() {
    let site = Site::on(Backend::Postgres);
    let servers = [site.start(&[]), site.start(&[])];
    let mut first = client(&servers[0].url, "first");
    first.edit([todo("counter", "0")]).unwrap();
    first.sync().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..4_usize {
        let url = servers[n % 2].url.clone();
        tasks.push(tokio::spawn(async move {
            let id = format!("device-{n}");
            let keep_local = ConflictPolicy::Always(Resolution::KeepLocal);
            let mut device = client_over(
                &id,
                WireVersion::V3,
                |config| config.conflicts = keep_local,
                http(&url, &id),
            );
            device.sync().await.unwrap();
            for step in 0..15 {
                let edit = Edit::update("todos", "counter").set("title", format!("{n}/{step}"));
                device.edit([edit.base(Base::Known)]).unwrap();
                // Beaten by the others, it is sent again until it wins.
                while device.pending().count() > 0 {
                    sync_until_decided(&mut device).await;
                }
            }
            device
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut dumps = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let mut witness = client(&server.url, &format!("witness-{n}"));
        witness.sync().await.unwrap();
        // No write was lost to another: each of the 61 made a version.
        assert_eq!(witness.replica().version("todos", "counter"), Some(61));
        dumps.push(witness.replica().versioned_dump());
    }
    assert_eq!(dumps[0], dumps[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_lost_by_one_process_is_replayed_by_the_other() {
    let site = Site::on(Backend::Postgres);
    let servers = [site.start(&[]), site.start(&[])];
    let faults = Faults::none();
    let transport = FaultyTransport::new(http(&servers[0].url, "ada"), faults.clone());
    let mut ada = client_over("ada", WireVersion::V3, |_| {}, transport);
    ada.sync().await.unwrap();
    let commit = ada.edit([todo("t1", "x")]).unwrap();
    faults.push(tidegate_client::Fault::DropResponse);
    ada.sync().await.unwrap_err();
    let mut ada = ada.map_transport(|_| http(&servers[1].url, "ada"));
    ada.sync().await.unwrap();
    assert_eq!(
        ada.outcome(&commit),
        Some(&tidegate_client::OutcomeStatus::Cached(1))
    );
    assert_eq!(ada.replica().version("todos", "t1"), Some(1));
}

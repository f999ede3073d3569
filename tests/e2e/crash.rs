//! `kill -9` under load: every acknowledged commit is there, none twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate_client::{ClientError, TransportError, WireVersion};
use tokio::sync::Notify;

use crate::process::{Backend, Site, on_each_database};
use crate::scenario::{assert_one_log, client, client_over, http, todo};

on_each_database!(acknowledged_commits_survive_kill_9_and_none_is_doubled,);

async fn acknowledged_commits_survive_kill_9_and_none_is_doubled(on: Backend) {
    let site = Site::on(on);
    let mut server = site.start(&[]);
    let mut devices = Vec::new();
    for n in 0..4 {
        let id = format!("device-{n}");
        devices.push(client_over(
            &id,
            WireVersion::V3,
            |_| {},
            http(&server.url, &id),
        ));
    }
    let mut written = 0;
    for round in 0..3 {
        // Every device pushes until the server is gone; the kill comes while all are at it.
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let enough = Arc::new(Notify::new());
        let dead = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (n, mut device) in devices.into_iter().enumerate() {
            let (acknowledged, enough) = (Arc::clone(&acknowledged), Arc::clone(&enough));
            let dead = Arc::clone(&dead);
            tasks.push(tokio::spawn(async move {
                let mut step = 0;
                loop {
                    device
                        .edit([todo(&format!("{round}-{n}-{step}"), "x")])
                        .unwrap();
                    step += 1;
                    match device.sync().await {
                        Ok(_) => {
                            if acknowledged.fetch_add(1, Ordering::Relaxed) == 40 {
                                enough.notify_one();
                            }
                        }
                        Err(ClientError::Transport(TransportError::Lost(_))) => {
                            assert!(dead.load(Ordering::SeqCst), "lost only when killed");
                            return (device, step);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
        enough.notified().await;
        dead.store(true, Ordering::SeqCst);
        server.kill();
        devices = Vec::new();
        for task in tasks {
            let (device, steps) = task.await.unwrap();
            written += steps;
            devices.push(device);
        }
        server = site.start(&[]);
        let mut moved = Vec::new();
        for device in devices {
            moved.push(device.map_transport(|old| old.at(&server.url)));
        }
        devices = moved;
        for device in &mut devices {
            device.sync().await.unwrap();
            assert_eq!(device.pending().count(), 0);
        }
    }
    assert_one_log(&devices, written);

    let mut witness = client(&server.url, "witness");
    witness.sync().await.unwrap();
    assert_eq!(witness.replica().len("todos"), written);
    for device in &mut devices {
        device.sync().await.unwrap();
        assert_eq!(
            device.replica().versioned_dump(),
            witness.replica().versioned_dump()
        );
    }
}

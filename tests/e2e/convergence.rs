//! Several clients, one list, concurrent writes: all replicas end equal.

use tidegate_client::{Base, ConflictPolicy, Edit, Resolution, WireVersion};

use crate::process::{Backend, Site, on_each_database};
use crate::scenario::{client, client_over, http, todo};

on_each_database!(
    clients_of_all_wire_versions_converge_under_concurrent_writes,
    a_small_page_bootstrap_resumes_until_complete,
    segments_by_reference_give_the_same_rows_as_inline_ones,
    partitions_do_not_see_each_other,
);

async fn clients_of_all_wire_versions_converge_under_concurrent_writes(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut tasks = Vec::new();
    for n in 0..6_usize {
        let url = server.url.clone();
        tasks.push(tokio::spawn(async move {
            let wire = [WireVersion::V1, WireVersion::V2, WireVersion::V3][n % 3];
            let id = format!("device-{n}");
            let keep_local = ConflictPolicy::Always(Resolution::KeepLocal);
            let mut client = client_over(
                &id,
                wire,
                |config| config.conflicts = keep_local,
                http(&url, &id),
            );
            for step in 0..25_usize {
                // Own rows, and rows that everybody writes.
                client
                    .edit([todo(&format!("own-{n}-{step}"), "mine")])
                    .unwrap();
                let shared = format!("shared-{}", step % 5);
                if client.replica().row("todos", &shared).is_some() {
                    let base = if step % 2 == 0 {
                        Base::Known
                    } else {
                        Base::None
                    };
                    let edit = Edit::update("todos", &shared).set("title", format!("{n}/{step}"));
                    client.edit([edit.base(base)]).unwrap();
                } else {
                    client.edit([todo(&shared, "new")]).unwrap();
                }
                if step % 7 == 6 {
                    client
                        .edit([Edit::delete("todos", format!("own-{n}-{}", step - 1))])
                        .unwrap();
                }
                client.sync().await.unwrap();
            }
            client
        }));
    }
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(task.await.unwrap());
    }
    for client in &mut clients {
        client.sync().await.unwrap();
        assert_eq!(client.pending().count(), 0);
    }
    let mut witness = client(&server.url, "witness");
    witness.sync().await.unwrap();
    let expected = witness.replica().versioned_dump();
    assert_eq!(witness.replica().len("todos"), 6 * 25 - 6 * 3 + 5);
    for client in &clients {
        assert_eq!(
            client.replica().versioned_dump(),
            expected,
            "{}",
            client.client_id()
        );
    }
}

async fn a_small_page_bootstrap_resumes_until_complete(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut writer = client(&server.url, "writer");
    for n in 0..60 {
        writer.edit([todo(&format!("t{n:03}"), "x")]).unwrap();
    }
    writer.sync().await.unwrap();
    let mut reader = client_over(
        "reader",
        WireVersion::V3,
        |config| {
            config.limit_snapshot_rows = 7;
            config.max_snapshot_pages = 2;
        },
        http(&server.url, "reader"),
    );
    let report = reader.sync().await.unwrap();
    assert!(report.segments >= 9, "{report:?}");
    assert_eq!(
        reader.replica().versioned_dump(),
        writer.replica().versioned_dump()
    );
}

async fn segments_by_reference_give_the_same_rows_as_inline_ones(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let mut writer = client(&server.url, "writer");
    for n in 0..30 {
        writer.edit([todo(&format!("t{n:03}"), "x")]).unwrap();
    }
    writer.sync().await.unwrap();
    for accept in [1, 2] {
        let id = format!("reader-{accept}");
        let mut reader = client_over(
            &id,
            WireVersion::V2,
            |config| config.accept = accept,
            http(&server.url, &id),
        );
        let report = reader.sync().await.unwrap();
        assert!(report.segments > 0);
        assert_eq!(
            reader.replica().versioned_dump(),
            writer.replica().versioned_dump()
        );
    }
}

async fn partitions_do_not_see_each_other(on: Backend) {
    let site = Site::on(on);
    let server = site.start(&[]);
    let transport = |partition| {
        tidegate_client::HttpTransport::new(&server.url, "ada", Some(partition)).unwrap()
    };
    let mut one = client_over("device", WireVersion::V3, |_| {}, transport("one"));
    let mut two = client_over("device", WireVersion::V3, |_| {}, transport("two"));
    one.edit([todo("t1", "one")]).unwrap();
    one.sync().await.unwrap();
    two.sync().await.unwrap();
    assert!(two.replica().is_empty());
    assert_ne!(one.log_epoch(), two.log_epoch());
}

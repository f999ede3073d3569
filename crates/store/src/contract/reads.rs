//! Preambles, gate tokens and snapshots.

use tidegate_engine::model::{LogBounds, Registry};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::StoreError;

pub async fn nothing_is_served_before_the_schema_is_ensured(harness: &dyn Harness) {
    let store = harness.open().await;
    store.ping().await.unwrap();
    let client = ClientId::from("device");
    assert!(matches!(
        store.read_preamble(&p("p"), &client, touch(1, "e1")).await,
        Err(StoreError::NotPrepared)
    ));
    assert!(matches!(
        store.snapshot(&p("p")).await.err(),
        Some(StoreError::NotPrepared)
    ));
    assert!(matches!(
        store.read_gate(&p("p")).await,
        Err(StoreError::NotPrepared)
    ));
}

pub async fn the_first_authentication_registers_a_partition(harness: &dyn Harness) {
    let store = ready(harness).await;
    let client = ClientId::from("device");
    let (gate, bounds) = store.read_gate(&p("p")).await.unwrap();
    assert_eq!(gate.log_epoch, None);
    assert_eq!(bounds, LogBounds::default());
    let expected = Registry {
        log_epoch: LogEpoch::from("e1"),
        epoch_required: false,
    };
    for (now, epoch) in [(1000, "e1"), (2000, "e2"), (9_000_000, "e3")] {
        let preamble = store
            .read_preamble(&p("p"), &client, touch(now, epoch))
            .await
            .unwrap();
        assert_eq!(preamble.registry, expected);
        assert_eq!(preamble.gate.log_epoch, Some(LogEpoch::from("e1")));
        assert_eq!(preamble.client, None);
    }
    assert_eq!(store.list_partitions().await.unwrap(), [p("p")]);
    let racing = (0..16).map(|n| {
        let (store, client) = (&store, &client);
        async move {
            let partition = p("race");
            let epoch = format!("r{n}");
            store
                .read_preamble(&partition, client, touch(1, &epoch))
                .await
                .unwrap()
                .registry
                .log_epoch
        }
    });
    let epochs = futures_util::future::join_all(racing).await;
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
}

pub async fn a_preamble_holds_everything_a_request_needs_first(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let ops = [
        vec![put(NOTES, note("n1", "l1", "o1", None))],
        vec![put(NOTES, note("n2", "l1", "o1", None))],
    ];
    commit(&*store, &schema, "p", 0, &ops).await;
    let record = client("device", "actor", 1);
    store
        .record_clients(&p("p"), vec![record.clone(), client("other", "actor", 2)])
        .await
        .unwrap();
    let preamble = store
        .read_preamble(&p("p"), &ClientId::from("device"), touch(1, "e1"))
        .await
        .unwrap();
    assert_eq!(preamble.gate.stored_version, SchemaVersion(1));
    assert!(preamble.gate.pending.is_empty());
    assert_eq!(
        preamble.bounds,
        LogBounds {
            max: CommitSeq(2),
            horizon: CommitSeq(0)
        }
    );
    assert_eq!(preamble.layout_floor, CommitSeq(0));
    assert_eq!(preamble.client, Some(record));
}

pub async fn a_snapshot_does_not_move(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    commit(
        &*store,
        &schema,
        "p",
        0,
        &[vec![put(NOTES, note("n1", "l1", "o1", None))]],
    )
    .await;
    let mut before = store.snapshot(&p("p")).await.unwrap();
    assert_eq!(before.bounds().max, CommitSeq(1));
    let ops = [vec![
        Op::Put(NOTES, note("n1", "l1", "o2", None), 2),
        put(NOTES, note("n0", "l1", "o1", None)),
    ]];
    commit(&*store, &schema, "p", 1, &ops).await;
    let mut after = store.snapshot(&p("p")).await.unwrap();
    let scopes = lists(&[("list_id", &["l1"])]);
    let scan = || crate::ScanQuery {
        table: NOTES,
        scopes: scopes.clone(),
        after_row_id: None,
        limit: 10,
        max_bytes: usize::MAX,
    };
    assert_eq!(ids(&before.scan_rows(scan()).await.unwrap()), ["n1"]);
    let old = before.scan_rows(scan()).await.unwrap();
    assert_eq!(old.rows[0].1.server_version, 1);
    let log = before
        .read_window(window_query(scopes.clone(), 0, 99, 10))
        .await
        .unwrap();
    assert_eq!(outline(&log), [(1, vec!["n1".to_owned()])]);
    assert_eq!(ids(&after.scan_rows(scan()).await.unwrap()), ["n0", "n1"]);
    assert_eq!(after.bounds().max, CommitSeq(2));
}

pub async fn many_snapshots_do_not_stop_writers(harness: &dyn Harness) {
    let schema = compile(&document());
    let store = ready(harness).await;
    let mut held = Vec::new();
    for round in 0..8 {
        held.push(store.snapshot(&p("p")).await.unwrap());
        let ops = [vec![put(
            NOTES,
            note(&format!("n{round}"), "l1", "o1", None),
        )]];
        commit(&*store, &schema, "p", round, &ops).await;
    }
    for (round, snapshot) in held.iter_mut().enumerate() {
        let found = snapshot
            .read_window(window_query(lists(&[("list_id", &["l1"])]), 0, 99, 100))
            .await
            .unwrap();
        assert_eq!(found.commits.len(), round);
    }
    drop(held);
    for _ in 0..100 {
        drop(store.snapshot(&p("p")).await.unwrap());
    }
}

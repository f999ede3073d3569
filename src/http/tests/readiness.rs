//! `/readyz` says whether requests should be sent here: also whether writes succeed.

use super::*;

async fn readyz(service: &web::Data<Service>) -> (u16, Json) {
    let reply = send(service, TestRequest::get().uri("/readyz")).await;
    (reply.0, reply.json()["phase"].clone())
}

#[actix_web::test]
async fn a_failed_write_ends_readiness_until_a_probe_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let service = service(|config| {
        config.database.url = format!("sqlite:{}", path.display());
        config.sqlite.busy_timeout_ms = 20;
    })
    .await;
    let device = Device::joined(&service).await;
    let write = async |id: &str| device.round(vec![commit(id, [1], "x")], None).await.0;
    assert_eq!(write("c1").await, 200);
    assert_eq!(readyz(&service).await, (200, json!("serving")));

    // Reads go on and writes do not, as on a full disk.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(readyz(&service).await.0, 200, "nobody has tried yet");
    assert!(write("c2").await >= 500);
    let pull = vec![pull_header(0b11, 0), todos(-1, None)];
    assert_eq!(device.round(vec![], Some(pull)).await.0, 200);
    for _ in 0..2 {
        assert_eq!(readyz(&service).await, (503, json!("storage_unavailable")));
    }

    // Nobody writes where nobody is ready: the probe itself finds out.
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(readyz(&service).await, (200, json!("serving")));
    assert_eq!(write("c2").await, 200);

    // So does a write that succeeds in between.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(write("c3").await >= 500);
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(write("c3").await, 200);
    assert_eq!(readyz(&service).await, (200, json!("serving")));
}

#[actix_web::test]
async fn a_refused_commit_is_no_failed_write() {
    let service = service(|_| {}).await;
    let device = Device::joined(&service).await;
    let response = device
        .round(vec![commit("c1", [1], "x"), commit("c1", [1], "x")], None)
        .await;
    assert_eq!(response.0, 200);
    assert_eq!(readyz(&service).await.0, 200);
}

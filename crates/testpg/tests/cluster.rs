//! A private cluster serves, and goes with its owner.
#![allow(clippy::unwrap_used)]

use tidegate_test_postgres::{ClusterOptions, Database, Server};

#[test]
fn a_database_is_created_and_reached() {
    let database = Database::create().unwrap();
    let inside = Server::at(&database.url()).unwrap();
    inside
        .execute("CREATE TABLE t(a int); INSERT INTO t VALUES (1)")
        .unwrap();
    assert!(inside.execute("SELECT * FROM nothing").is_err());
}

#[test]
fn a_private_cluster_is_gone_when_its_owner_is() {
    let options = ClusterOptions {
        fsync: false,
        settings: vec!["work_mem=8MB".into()],
        tls: None,
    };
    let server = Server::start(&options).unwrap();
    let url = server.url("postgres");
    Server::at(&url).unwrap().execute("SELECT 1").unwrap();
    drop(server);
    assert!(Server::at(&url).unwrap().execute("SELECT 1").is_err());
}

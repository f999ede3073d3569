//! TLS to a server with a certificate of its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use tidegate_store::Store;
use tidegate_store::postgres::{ConnectError, PostgresOptions, PostgresStore};
use tidegate_test_postgres::{ClusterOptions, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sslmode_decides_what_certificate_is_accepted() {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let options = ClusterOptions {
        fsync: false,
        tls: Some((cert.pem(), signing_key.serialize_pem())),
        ..ClusterOptions::default()
    };
    let server = Server::start(&options).unwrap();
    let url = server.url("postgres");
    let by_name = url.replace("127.0.0.1", "localhost");
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("postgres_tls_root.pem");
    std::fs::write(&root, cert.pem()).unwrap();
    let root = root.to_str().unwrap();
    let encrypted = async |url: String| -> Result<bool, ConnectError> {
        let store = PostgresStore::connect(PostgresOptions::new(url)).await?;
        store.ping().await.unwrap();
        // What the server says of the store's own session.
        let (client, connection) =
            tokio_postgres::connect(&server.url("postgres"), tokio_postgres::NoTls)
                .await
                .unwrap();
        tokio::spawn(connection);
        let row = client
            .query_one(
                "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                 WHERE application_name = 'tidegate'",
                &[],
            )
            .await
            .unwrap();
        store.close().await;
        Ok(row.get(0))
    };
    assert!(!encrypted(format!("{url}?sslmode=disable")).await.unwrap());
    assert!(encrypted(format!("{url}?sslmode=require")).await.unwrap());
    assert!(
        encrypted(format!("{by_name}?sslmode=verify-full&sslrootcert={root}"))
            .await
            .unwrap()
    );
    for refused in [
        // The name is not the certificate's, or nobody known has signed it.
        format!("{url}?sslmode=verify-full&sslrootcert={root}"),
        format!("{url}?sslmode=require&sslrootcert={root}"),
        format!("{by_name}?sslmode=verify-full&sslrootcert={root}.missing"),
    ] {
        let error = encrypted(refused.clone()).await.unwrap_err();
        assert!(
            matches!(error, ConnectError::Tls(_)),
            "{refused}: {error:?}"
        );
    }
}

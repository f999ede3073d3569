//! Starting, stopping, and every way not to start.

use super::opening::postgres_options;
use super::*;
use crate::cli::Exit;
use crate::config::{Control, ControlListen};
use tidegate_store::postgres::PostgresOptions;

fn local(url: &str) -> Config {
    let mut config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        control: Control {
            listen: ControlListen::Off,
            ..Control::default()
        },
        ..Config::default()
    };
    url.clone_into(&mut config.database.url);
    config
}

async fn run(config: Config) -> Result<Running, ServeError> {
    let schema = load_schema(&config)?;
    let store = open_store(&config).await?;
    let hooks = Hooks::development(&schema);
    start(config, schema, store, hooks).await
}

#[test]
fn development_authentication_stays_on_loopback_unless_forced() {
    let mut config = local("sqlite::memory:");
    check_exposure(&config).unwrap();
    config.listen = ([0, 0, 0, 0], 8787).into();
    assert_eq!(check_exposure(&config).unwrap_err().exit(), Exit::Usage);
    config.auth.insecure_dev = true;
    check_exposure(&config).unwrap();
}

#[test]
fn postgres_is_configured_as_the_store_would_be_by_itself() {
    let url = "postgres://u@h/d";
    let configured = postgres_options(&local(url), url.to_owned());
    let own = PostgresOptions::new(url);
    assert_eq!(configured.pool_size, own.pool_size);
    assert_eq!(configured.snapshot_pool_size, own.snapshot_pool_size);
    assert_eq!(configured.transactions, own.transactions);
    assert_eq!(configured.statement_timeout, own.statement_timeout);
    assert_eq!(configured.lock_timeout, own.lock_timeout);
    assert_eq!(
        configured.idle_in_transaction_timeout,
        own.idle_in_transaction_timeout
    );
    assert_eq!(configured.connect_timeout, own.connect_timeout);
    assert_eq!(
        configured.migration_lock_timeout,
        own.migration_lock_timeout
    );
}

#[actix_web::test]
async fn a_server_starts_on_a_free_port_makes_its_folder_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/a.db");
    let config = local(&format!("sqlite:{}", path.display()));
    let running = run(config.clone()).await.unwrap();
    assert_ne!(running.address().port(), 0);
    assert!(path.exists());

    let taken = Config {
        listen: running.address(),
        ..local("sqlite::memory:")
    };
    assert_eq!(run(taken).await.err().unwrap().exit(), Exit::Listen);
    running.stop().await.unwrap();
    run(config).await.unwrap().stop().await.unwrap();
}

#[actix_web::test]
async fn what_keeps_a_server_from_starting_has_its_own_exit() {
    let folder = tempfile::tempdir().unwrap();
    let exit = async |config: Config| run(config).await.err().unwrap().exit();
    assert_eq!(exit(local("postgres:///d")).await, Exit::DatabaseUrl);
    let nobody = local("postgres://u@127.0.0.1:1/d");
    assert_eq!(exit(nobody).await, Exit::DatabaseUnreachable);
    let file = folder.path().join("file");
    std::fs::write(
        &file,
        "not a folder, and no database either, but long enough",
    )
    .unwrap();
    let below = local(&format!("sqlite:{}", file.join("a.db").display()));
    assert_eq!(exit(below).await, Exit::Database);
    let garbage = local(&format!("sqlite:{}", file.display()));
    assert_eq!(exit(garbage).await, Exit::Database);

    let database = format!("sqlite:{}", folder.path().join("a.db").display());
    let mut newer = local(&database);
    newer.schema.file = folder.path().join("v2.json");
    assert_eq!(exit(newer.clone()).await, Exit::Usage);
    std::fs::write(&newer.schema.file, "{}").unwrap();
    assert_eq!(exit(newer.clone()).await, Exit::InvalidSchema);
    let schema = DEMO_SCHEMA.replacen("\"version\": 1", "\"version\": 2", 1);
    std::fs::write(&newer.schema.file, schema).unwrap();
    run(newer).await.unwrap().stop().await.unwrap();
    // The database is ahead of this one now.
    assert_eq!(exit(local(&database)).await, Exit::StorageMismatch);
}

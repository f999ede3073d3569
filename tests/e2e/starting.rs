//! Starts that come to nothing leave the database as it was.

use std::net::TcpListener;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::process::{Backend, PATIENCE, Site, on_each_database};
use crate::upgrade::{Grown, HeldBarrier, write_old_rows};

#[test]
fn a_sqlite_database_and_the_folder_made_for_it_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let site = Site::new();
    let folder = site.path("made/for");
    let database = folder.join("it.db");
    let url = format!("sqlite:{}", database.display());
    let server = site.start(&["--database", &url]);
    let mode = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(&site.path("made")), 0o700);
    assert_eq!(mode(&folder), 0o700);
    for file in ["it.db", "it.db-wal", "it.db-shm"] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
    server.terminate();
    assert!(server.wait().success());

    let shared = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(&database, shared).unwrap();
    let server = site.start(&["--database", &url]);
    assert_eq!(mode(&database), 0o640);
    server.terminate();
    assert!(server.wait().success());
}

#[test]
fn an_address_that_is_taken_leaves_no_file_behind() {
    let site = Site::new();
    let url = format!("sqlite:{}", site.path("made/for/it.db").display());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (requests, control) in [(taken.as_str(), "off"), ("127.0.0.1:0", &taken)] {
        let args = ["serve", "--database", &url];
        let mut command = site.tool(&args);
        command.args(["--listen", requests, "--control-listen", control]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(6), "{output:?}");
        assert!(!site.path("made").exists());
    }
}

on_each_database!(an_address_that_is_taken_is_noticed_before_the_database_is_migrated);

async fn an_address_that_is_taken_is_noticed_before_the_database_is_migrated(on: Backend) {
    let site = Site::on(on);
    write_old_rows(&site).await;
    let grown = Grown::at(&site);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = site.tool(&["serve", "--listen", &address, "--control-listen", "off"]);
    let output = command.args(grown.args()).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    still_at_the_old_version(&site);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_start_that_waits_to_migrate() {
    let site = Site::on(Backend::Postgres);
    write_old_rows(&site).await;
    let grown = Grown::at(&site);
    let held = HeldBarrier::of(&site).await;
    let child = site
        .command(&grown.args())
        .stdout(std::process::Stdio::null())
        .stderr(site.log_file())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !held.is_waited_for().await {
        assert!(Instant::now() < deadline, "{}", site.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let asked = std::process::Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(asked.unwrap().success());
    // The lock is still held: it did not wait for the migration.
    let status = ended(child, &site).await;
    assert_eq!(status.code(), Some(8), "{}", site.log());
    held.release().await;
    still_at_the_old_version(&site);
}

async fn ended(mut child: Child, site: &Site) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "{}", site.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A server of the old schema would refuse a database that was migrated.
fn still_at_the_old_version(site: &Site) {
    let server = site.start(&[]);
    server.terminate();
    assert!(server.wait().success());
}

//! A Postgres that cannot be used: each reason is one line and an exit code of
//! its own, and no word of it is the password.

use std::process::Output;

use tidegate_test_postgres::{ClusterOptions, Database, Server};

use crate::process::{Backend, Site};

const PASSWORD: &str = "correct-horse-7391";

/// How a server on `url` refuses to start, with the most talkative log.
#[track_caller]
fn refused(url: &str, exit: i32, words: &str) {
    let output = Site::at(url)
        .command(&[])
        .env("TIDEGATE_LOG__LEVEL", "trace")
        .output()
        .unwrap();
    let message = last_line(&output);
    assert_eq!(output.status.code(), Some(exit), "{message}");
    assert!(message.starts_with("tidegate: "), "{message}");
    assert!(message.contains(words), "{message}");
    assert!(!message.contains("storage_migration"), "{message}");
    assert!(output.stdout.is_empty());
    assert_secret(&output);
}

/// The line for the operator; above it stands the log.
fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines = text.lines().filter(|line| !line.starts_with('{'));
    let line = lines.next_back().unwrap_or_default().to_owned();
    assert_eq!(lines.next(), None, "one line only: {text}");
    line
}

fn assert_secret(output: &Output) {
    for stream in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(stream);
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

/// The URL of a fresh database, made ready by statements inside it.
fn prepared(statements: &str) -> (Database, String) {
    let database = Database::create().unwrap_or_else(|error| panic!("{error}"));
    let url = database.url();
    let inside = Server::at(&url).unwrap();
    inside.execute(statements).unwrap();
    (database, url)
}

/// The same URL for another user.
fn as_user(url: &str, user: &str) -> String {
    let address = url.split_once('@').unwrap().1;
    format!("postgres://{user}:{PASSWORD}@{address}")
}

#[test]
fn a_url_that_is_none() {
    for url in [
        format!("postgres://ada:{PASSWORD}@:x/d"),
        format!("postgres://ada:{PASSWORD}@localhost/d?sslmode=perhaps"),
        format!("postgres://ada:{PASSWORD}@localhost/d?no_such_parameter=1"),
    ] {
        refused(&url, 10, "URL is not valid");
    }
    refused(&format!("mysql://ada:{PASSWORD}@h/d"), 2, "database.url");
}

#[test]
fn a_server_that_does_not_answer() {
    // Port 1 belongs to a service that nobody runs.
    let url = format!("postgres://ada:{PASSWORD}@127.0.0.1:1/d");
    refused(&url, 11, "cannot be reached");
}

#[test]
fn a_server_that_says_nothing() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let output = Site::at(&format!("postgres://ada:{PASSWORD}@{address}/d"))
        .command(&[])
        .env("TIDEGATE_POSTGRES__CONNECT_TIMEOUT_MS", "200")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(11), "{}", last_line(&output));
    assert_secret(&output);
}

#[test]
fn a_server_without_the_tls_that_is_asked_for() {
    let (_database, url) = prepared("SELECT 1");
    let url = format!("{url}?sslmode=require");
    refused(&url, 12, "TLS");
}

#[test]
fn a_wrong_password_and_a_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("pg_hba.conf");
    let text = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&rules, text).unwrap();
    // The server runs as somebody else.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let server = Server::start(&ClusterOptions {
        fsync: false,
        settings: vec![format!("hba_file={}", rules.display())],
        ..ClusterOptions::default()
    })
    .unwrap_or_else(|error| panic!("{error}"));
    server
        .execute("CREATE ROLE ada LOGIN PASSWORD 'right-0815'")
        .unwrap();
    server.execute("CREATE DATABASE ours OWNER ada").unwrap();

    let wrong = as_user(&server.url("ours"), "ada");
    refused(&wrong, 13, "refused the user name or the password");
    let nobody = as_user(&server.url("ours"), "nobody");
    refused(&nobody, 13, "refused the user name or the password");
    let none = wrong.replace(&format!(":{PASSWORD}"), "");
    refused(&none, 13, "refused the user name or the password");

    let site = Site::at(&wrong.replace(PASSWORD, "right-0815"));
    let running = site.start(&[]);
    running.terminate();
    assert_eq!(running.wait().code(), Some(0));
    assert!(!site.log().contains("right-0815"), "{}", site.log());
}

#[test]
fn a_database_that_does_not_exist() {
    let (_database, url) = prepared("SELECT 1");
    let url = format!("{}/nowhere", url.rsplit_once('/').unwrap().0);
    refused(&url, 14, "does not exist");
}

#[test]
fn a_server_that_is_too_old() {
    // The server's own answer, but for the number.
    let (_database, url) = prepared(
        "CREATE SCHEMA old;
         CREATE FUNCTION old.current_setting(name text) RETURNS text LANGUAGE sql AS
           $$ SELECT CASE WHEN name = 'server_version_num' THEN '120022'
                ELSE pg_catalog.current_setting(name) END $$;
         DO $$ BEGIN EXECUTE format(
           'ALTER DATABASE %I SET search_path = old, pg_catalog, public', current_database());
         END $$",
    );
    refused(&url, 15, "Postgres 12");
}

#[test]
fn a_server_that_only_reads() {
    let (_database, url) = prepared(
        "DO $$ BEGIN EXECUTE format(
           'ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
         END $$",
    );
    refused(&url, 16, "read-only");
}

#[test]
fn a_role_without_the_permission_to_create_tables() {
    let role = format!("tidegate_guest_{}", std::process::id());
    let (database, url) = prepared(&format!(
        "REVOKE CREATE ON SCHEMA public FROM public;
         CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'"
    ));
    refused(&as_user(&url, &role), 17, "lacks a permission");
    database
        .server()
        .execute(&format!("DROP ROLE {role}"))
        .unwrap();
}

#[test]
fn a_database_in_another_encoding() {
    let database =
        Database::create_with("ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
            .unwrap_or_else(|error| panic!("{error}"));
    refused(&database.url(), 18, "UTF8");
}

/// What goes wrong before the migration is not called one, whatever opens the database.
#[test]
fn a_sqlite_database_that_cannot_be_opened() {
    let site = Site::new();
    let file = site.path("file");
    std::fs::write(&file, "no database, and long enough not to be an empty one").unwrap();
    let garbage = format!("sqlite:{}", file.display());
    refused(&garbage, 4, "opening the database");
    let below = format!("sqlite:{}", file.join("a.db").display());
    refused(&below, 4, "cannot create the folder");

    let grown = crate::upgrade::Grown::at(&site);
    for command in [
        &["migrate"][..],
        &["migrate", "--dry-run"],
        &["backfill", "preview", "todo-title-key"],
    ] {
        let output = site
            .tool(command)
            .args(grown.args())
            .args(["--database", &garbage])
            .output()
            .unwrap();
        let message = last_line(&output);
        assert_eq!(output.status.code(), Some(4), "{message}");
        assert!(message.contains("opening the database"), "{message}");
        assert!(!message.contains("storage_migration"), "{message}");
    }
}

#[test]
fn a_database_ahead_of_the_schema() {
    let site = Site::on(Backend::Postgres);
    let text = std::fs::read_to_string(crate::process::repository("config/schemas/demo.json"));
    let newer = text
        .unwrap()
        .replacen("\"version\": 1", "\"version\": 2", 1);
    let path = site.path("newer.json");
    std::fs::write(&path, newer).unwrap();
    let server = site.start(&["--schema", path.to_str().unwrap()]);
    server.terminate();
    server.wait();
    let output = site.command(&[]).output().unwrap();
    let message = last_line(&output);
    assert_eq!(output.status.code(), Some(5), "{message}");
    let named = message.starts_with("tidegate: storage_migration: ");
    assert!(named, "{message}");
}

//! The demo of a migration under load ends well, and says what it checked.

use std::process::{Command, Stdio};

use tidegate_test_postgres::Database;

/// Plays the demo with few rows.
fn play(database: Option<&str>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["demo", "migration", "--todos", "1000"])
        .stdin(Stdio::null());
    if let Some(url) = database {
        command.args(["--database", url]);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    for wanted in [
        "kill -9",
        "ok      final check: ",
        "every row equal to a direct computation",
        "goes on at row",
        "pushes of the old writer were refused after the declaration",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!text.contains("FAILED"), "{text}");
}

#[test]
fn the_demo_of_a_migration_checks_every_row_on_sqlite() {
    play(None);
}

#[test]
fn the_demo_of_a_migration_checks_every_row_on_postgres() {
    let database = Database::create().unwrap_or_else(|error| panic!("{error}"));
    play(Some(&database.url()));
}

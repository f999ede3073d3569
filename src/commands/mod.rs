//! The subcommands. Each says how it ended; none of them panics.

pub mod backfill;
pub mod check;
pub mod ctl;
pub mod demo;
pub mod inspect;
pub mod migrate;
pub mod serve;

use std::io::Write;

use crate::cli::{BackfillCommand, Cli, Command, DemoStory, Exit};
use crate::server::ServeError;

/// Runs the command line's command.
pub fn run(cli: Cli) -> Exit {
    match cli.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Check { schema, backfills } => check::run(&schema, backfills.as_deref()),
        Command::Migrate(arguments) => migrate::run(&arguments),
        Command::Backfill(BackfillCommand::Preview(arguments)) => backfill::run(&arguments),
        Command::Inspect { check, files } => inspect::run(&files, check),
        Command::Demo {
            story: Some(DemoStory::Migration(arguments)),
            ..
        } => demo::migration::run(&arguments),
        Command::Demo {
            server,
            story: None,
        } => demo::run(server.as_deref()),
        Command::Ctl(arguments) => ctl::run(&arguments),
    }
}

/// Says why a command failed, and how it exits.
fn fail(error: &ServeError) -> Exit {
    match error.phase() {
        Some(phase) => complain(&format_args!("{phase}: {error}")),
        None => complain(error),
    }
    error.exit()
}

/// For commands that do not serve.
fn runtime() -> Result<tokio::runtime::Runtime, ServeError> {
    tokio::runtime::Runtime::new().map_err(|source| ServeError::System {
        context: "cannot start threads",
        source,
    })
}

/// One line for people, on stderr.
fn complain(message: &dyn std::fmt::Display) {
    // With nobody to complain to, the exit code has to do; `eprintln!` would panic.
    let _ = writeln!(std::io::stderr().lock(), "tidegate: {message}");
}

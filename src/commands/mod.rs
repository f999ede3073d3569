//! The subcommands. Each says how it ended; none of them panics.

pub mod check;
pub mod ctl;
pub mod demo;
pub mod inspect;
pub mod serve;

use std::io::Write;

use crate::cli::{Cli, Command, Exit};

/// Runs the command line's command.
pub fn run(cli: Cli) -> Exit {
    match cli.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Check { schema } => check::run(&schema),
        Command::Inspect { check, files } => inspect::run(&files, check),
        Command::Demo { server } => demo::run(server.as_deref()),
        Command::Ctl(arguments) => ctl::run(&arguments),
    }
}

/// One line for people, on stderr.
fn complain(message: &dyn std::fmt::Display) {
    // With nobody to complain to, the exit code has to do; `eprintln!` would panic.
    let _ = writeln!(std::io::stderr().lock(), "tidegate: {message}");
}

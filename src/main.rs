//! The `tidegate` program.

use std::process::ExitCode;

use clap::Parser;
use tidegate::cli::Cli;
use tidegate::commands;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    commands::run(Cli::parse()).into()
}

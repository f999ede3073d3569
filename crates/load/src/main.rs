//! `tidegate-load`: a closed-loop load generator over HTTP/1.1. Every client keeps
//! one connection and one request in flight, checks every answer and measures how
//! long it took. The result is one line of JSON; the exit code is 1 when any answer
//! was not what the protocol promises.

mod backfill;
mod check;
mod cli;
mod connection;
mod distance;
mod measure;
mod postgres_suite;
mod relay;
mod runner;
mod server;
mod suite;
mod targets;
mod workload;
mod yardstick;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    let done = runtime.block_on(async {
        match cli.command {
            Some(Command::Suite(suite)) => suite::run(&suite).await,
            Some(Command::SuitePostgres(suite)) => postgres_suite::run(&suite).await,
            Some(Command::SuiteBackfill(suite)) => backfill::run(&suite).await,
            Some(Command::Yardstick(yardstick)) => yardstick::run(&yardstick).await,
            None => single(&cli.load).await,
        }
    });
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => fail(&format!("{errors} answers were wrong")),
        Err(error) => fail(&error.to_string()),
    }
}

/// Runs one load and prints its line; returns the number of wrong answers.
async fn single(args: &cli::LoadArgs) -> Result<u64, runner::LoadError> {
    let url = args
        .url
        .as_deref()
        .ok_or_else(|| runner::LoadError::Setup("--url is missing".to_owned()))?;
    let plan = args.load.plan(url)?;
    let mut report = runner::run(&plan).await?;
    report.server_peak_rss_kib = args.pid.and_then(server::peak_rss_kib);
    println!("{}", report.to_json());
    Ok(report.errors)
}

fn fail(message: &str) -> ExitCode {
    eprintln!("tidegate-load: {message}");
    ExitCode::FAILURE
}

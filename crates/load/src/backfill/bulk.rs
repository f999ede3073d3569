//! Unpaced backfills of a whole table, against the same in SQL.

use std::time::Instant;

use super::control::Operated;
use super::report::{Bulk, Report, Run};
use super::rewrite::{self, Projection};
use super::seed::{Template, connect};
use super::{BackfillSuiteArgs, process, setup};
use crate::runner::LoadError;
use crate::server::peak_rss_kib;

const PROJECTIONS: [Projection; 2] = [Projection::Column, Projection::Table];

/// One backfill of each kind.
pub(super) async fn backfills(
    args: &BackfillSuiteArgs,
    template: &Template<'_>,
) -> Result<Vec<Run>, LoadError> {
    let mut runs = Vec::new();
    for projection in PROJECTIONS {
        runs.push(backfill(args, template, projection).await?.0);
    }
    Ok(runs)
}

/// Interleaved runs of the backfill and both rewrites, on copies of one database.
pub(super) async fn measure(
    args: &BackfillSuiteArgs,
    template: &Template<'_>,
    report: &mut Report,
) -> Result<(), LoadError> {
    for projection in PROJECTIONS {
        let mut bulk = Bulk::new(projection.label(), template.rows);
        for turn in 1..=args.runs {
            let (run, left) = backfill(args, template, projection).await?;
            eprintln!(
                "run {turn}/{}: {} {}",
                args.runs,
                projection.label(),
                run.line()
            );
            bulk.backfill.push(run);
            let (seconds, expected) = whole(args, template, projection).await?;
            eprintln!("run {turn}/{}: rewrite in SQL {:.1} s", args.runs, seconds);
            if left != expected {
                return Err(setup(format!(
                    "the backfill left other rows than the rewrite: {left} and {expected}"
                )));
            }
            bulk.rewrite_seconds.push(seconds);
            let copy = template.copy()?;
            let seconds = rewrite::bare(&copy.url(), projection).await?.as_secs_f64();
            eprintln!(
                "run {turn}/{}: the app table alone {:.1} s",
                args.runs, seconds
            );
            bulk.bare_seconds.push(seconds);
        }
        report.bulk.push(bulk);
    }
    Ok(())
}

/// Declares the backfill and waits until it is activated. Also what it left behind.
async fn backfill(
    args: &BackfillSuiteArgs,
    template: &Template<'_>,
    projection: Projection,
) -> Result<(Run, String), LoadError> {
    let copy = template.copy()?;
    let head = rewrite::head(&connect(&copy.url()).await?).await?;
    let mut environment: Vec<(String, String)> = [
        ("TIDEGATE_BACKFILL__ROWS_PER_SECOND", "10000000".to_owned()),
        ("TIDEGATE_BACKFILL__BURST_ROWS", "10000000".to_owned()),
        ("TIDEGATE_BACKFILL__PUSH_P99_TARGET_MS", "0".to_owned()),
        ("TIDEGATE_BACKFILL__PAGE_ROWS", args.page_rows.to_string()),
        ("TIDEGATE_BACKFILL__WORKERS", args.workers.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    environment.extend(args.server_env.iter().cloned());
    let operated =
        Operated::start(&args.server_bin, &copy.url(), &[projection], &environment).await?;
    let pid = operated.server.pid();
    let used = pid.and_then(process::cpu_seconds);
    let began = Instant::now();
    operated.declare(projection).await?;
    let done = operated
        .until(projection, |checkpoint| checkpoint["state"] == "activated")
        .await?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = pid
        .and_then(process::cpu_seconds)
        .zip(used)
        .map(|(now, then)| now - then);
    let peak = pid.and_then(peak_rss_kib);
    let observed = done["observed_rows"].as_u64();
    if observed != Some(template.rows) {
        return Err(setup(format!(
            "{observed:?} rows were computed, not {}",
            template.rows
        )));
    }
    operated.server.stop().await?;
    let run = Run {
        rows: template.rows,
        seconds,
        server_cpu_seconds: cpu,
        server_peak_rss_kib: peak,
    };
    Ok((
        run,
        rewrite::fingerprint(&copy.url(), projection, head).await?,
    ))
}

async fn whole(
    args: &BackfillSuiteArgs,
    template: &Template<'_>,
    projection: Projection,
) -> Result<(f64, String), LoadError> {
    let copy = template.copy()?;
    let head = rewrite::head(&connect(&copy.url()).await?).await?;
    let took = rewrite::whole(&copy.url(), projection, args.page_rows).await?;
    let left = rewrite::fingerprint(&copy.url(), projection, head).await?;
    Ok((took.as_secs_f64(), left))
}

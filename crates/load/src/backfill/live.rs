//! Live clients on the partition that is backfilled, with a backfill at its ordinary pace
//! and without one, in turns on one server.

use super::control::Operated;
use super::report::Report;
use super::rewrite::Projection;
use super::seed::Template;
use super::{BackfillSuiteArgs, SCHEMA_TWO, setup};
use crate::runner::{self, LoadError};

const PROJECTION: Projection = Projection::Column;

pub(super) async fn measure(
    args: &BackfillSuiteArgs,
    template: &Template<'_>,
    report: &mut Report,
) -> Result<(), LoadError> {
    let copy = template.copy()?;
    let operated = Operated::start(
        &args.server_bin,
        &copy.url(),
        &[PROJECTION],
        &args.server_env,
    )
    .await?;
    let mut declared = false;
    for turn in 1..=args.runs {
        if declared {
            operated.order(PROJECTION, "pause").await?;
            operated
                .until(PROJECTION, |found| found["workers_running"] == 0)
                .await?;
        }
        let alone = runner::run(&args.plan("without", operated.server.url(), SCHEMA_TWO)?).await?;
        if declared {
            operated.order(PROJECTION, "resume").await?;
        } else {
            operated.declare(PROJECTION).await?;
            declared = true;
        }
        let began = operated
            .until(PROJECTION, |found| found["phase"] == "scanning")
            .await?;
        let beside =
            runner::run(&args.plan("beside a backfill", operated.server.url(), SCHEMA_TWO)?)
                .await?;
        let ended = operated.checkpoint(PROJECTION).await?;
        let rows = |found: &serde_json::Value| found["observed_rows"].as_u64().unwrap_or_default();
        let computed = rows(&ended).saturating_sub(rows(&began));
        // A backfill that was done, or stood still, would prove nothing.
        if ended["phase"] != "scanning" || computed == 0 {
            return Err(setup(format!(
                "the backfill did not run beside the load ({computed} rows); take more rows or less time: {ended}"
            )));
        }
        for run in [&alone, &beside] {
            eprintln!("run {turn}/{}: {}", args.runs, run.to_json());
        }
        report.errors += alone.errors + beside.errors;
        report.alone.push(alone);
        report.beside.push(beside);
        report
            .beside_rows_per_s
            .push(computed as f64 / (args.seconds + args.warmup));
    }
    operated.server.stop().await
}

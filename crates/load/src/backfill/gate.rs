//! What the serve gate costs: the same rounds on the ordinary server and on one that was
//! built without its checks, in turns.

use std::path::Path;

use super::report::{Gate, Report};
use super::{BackfillSuiteArgs, process, setup};
use crate::cli::DEMO_SCHEMA;
use crate::runner::{self, LoadError};
use crate::server::ServerProcess;

pub(super) async fn measure(
    args: &BackfillSuiteArgs,
    ungated: &Path,
    report: &mut Report,
) -> Result<(), LoadError> {
    let mut gate = Gate::default();
    for turn in 1..=args.runs {
        // Whoever goes second meets a warmer machine: they take turns at that as well.
        let gated_first = turn % 2 == 1;
        for gated in [gated_first, !gated_first] {
            let binary = if gated {
                args.server_bin.as_path()
            } else {
                ungated
            };
            let server = ServerProcess::start(binary, &[], &args.server_env, None).await?;
            let pid = server.pid().ok_or_else(|| setup("the server is gone"))?;
            let used = process::cpu_seconds(pid);
            let run = runner::run(&args.plan(
                if gated { "gated" } else { "ungated" },
                server.url(),
                DEMO_SCHEMA,
            )?)
            .await?;
            let used = process::cpu_seconds(pid)
                .zip(used)
                .map(|(now, then)| now - then);
            server.stop().await?;
            // Warm-up rounds cost the same, and are not counted: as many, for their time.
            let measured_share = args.seconds / (args.seconds + args.warmup);
            let per_round = used
                .filter(|_| run.rounds > 0)
                .map(|used| used * measured_share * 1e6 / run.rounds as f64);
            eprintln!(
                "run {turn}/{}: {} cpu_us_per_round {per_round:?}",
                args.runs,
                run.to_json()
            );
            report.errors += run.errors;
            let (rates, costs) = match gated {
                true => (&mut gate.gated_rounds_per_s, &mut gate.gated_cpu_us),
                false => (&mut gate.ungated_rounds_per_s, &mut gate.ungated_cpu_us),
            };
            rates.push(run.rounds_per_s);
            costs.extend(per_round);
        }
    }
    report.gate = Some(gate);
    Ok(())
}

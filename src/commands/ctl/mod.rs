//! `tidegate ctl`: operates a running server over its control endpoint.

mod call;
mod client;
mod table;

use std::io::Write;

use clap::{Args, Subcommand};

use crate::cli::Exit;
use call::{Call, Show};
pub(super) use client::CtlError;

/// `tidegate ctl`
#[derive(Debug, Clone, Args)]
pub struct CtlArgs {
    /// Where the control endpoint is
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "TIDEGATE_CONTROL_URL",
        default_value = "http://127.0.0.1:8788"
    )]
    pub url: String,
    /// Its token: control.token, or the one in the server's log. Everybody on the
    /// machine can read flags: give it in the environment instead
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "TIDEGATE_CONTROL_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// Print the answer as it came, as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Which page of a list.
#[derive(Debug, Clone, Args)]
pub struct PageArgs {
    /// Begin after that item
    #[arg(long, value_name = "ITEM")]
    pub after: Option<String>,
    /// Items at most, 1 to 1000 [default: 100]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// Which checkpoint.
#[derive(Debug, Clone, Args)]
pub struct CheckpointArgs {
    /// Partition
    pub partition: String,
    /// Checkpoint
    pub name: String,
}

/// What to do with grants.
#[derive(Debug, Clone, Subcommand)]
pub enum GrantsCommand {
    /// Show an actor's grant
    Get {
        /// Partition
        partition: String,
        /// Actor
        actor: String,
    },
    /// Create or replace an actor's grant
    Put {
        /// Partition
        partition: String,
        /// Actor
        actor: String,
        /// Allowed values of a scope variable, comma-separated; * is any value
        #[arg(long = "scope", required = true, value_name = "VARIABLE=VALUE[,VALUE…]", value_parser = call::scope)]
        scopes: Vec<(String, Vec<String>)>,
    },
    /// Take an actor's grant away
    Delete {
        /// Partition
        partition: String,
        /// Actor
        actor: String,
    },
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum CtlCommand {
    /// List the partitions
    Partitions(PageArgs),
    /// Show a partition
    Partition {
        /// Partition
        partition: String,
    },
    /// List the clients of a partition
    Clients {
        /// Partition
        partition: String,
        /// Page
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show rows of a table, whatever their scopes
    Rows {
        /// Partition
        partition: String,
        /// Table
        table: String,
        /// Page
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show how the database stands to the schema, or what a migration would do
    Migration {
        /// What a migration to the running schema would do now; changes nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the backfill checkpoints of a partition
    Checkpoints {
        /// Partition
        partition: String,
    },
    /// Declare a checkpoint of a loaded backfill and raise the writer fence
    Declare(CheckpointArgs),
    /// Take up a checkpoint that was paused, aborted or failed; this ends a pause, in every
    /// process
    Start(CheckpointArgs),
    /// Pause a checkpoint in every process, durably
    Pause(CheckpointArgs),
    /// End a pause
    Resume(CheckpointArgs),
    /// Activate a checkpoint, if it is complete; exits 1 if it is not
    Activate(CheckpointArgs),
    /// Claim a checkpoint whoever owns it, and work on; this ends a pause, in every process
    ForceClaim(CheckpointArgs),
    /// Stop the workers of this server at once; the checkpoint stays claimable
    Abort(CheckpointArgs),
    /// Set how many workers scan
    Workers {
        /// Which
        #[command(flatten)]
        checkpoint: CheckpointArgs,
        /// 1 to 64; to have none, pause
        count: u32,
    },
    /// Set how fast a checkpoint may write; what is left out stays
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Pace {
        /// Which
        #[command(flatten)]
        checkpoint: CheckpointArgs,
        /// Rows per second at most
        #[arg(long, value_name = "N", group = "change")]
        rows_per_second: Option<f64>,
        /// Rows that may be written at once after an idle time
        #[arg(long, value_name = "N", group = "change")]
        burst_rows: Option<f64>,
        /// Wanted 99th percentile of the latency of pushes, milliseconds, or none
        #[arg(long, value_name = "MS", group = "change", value_parser = call::milliseconds_or_none)]
        push_p99_target_ms: Option<f64>,
        /// The share of the rate that is kept however slow pushes are, 0.001 to 1
        #[arg(long, value_name = "SHARE", group = "change")]
        least_share: Option<f64>,
    },
    /// Show the writer fence of a partition
    Fence {
        /// Partition
        partition: String,
    },
    /// Raise the writer fence of a partition; it never falls
    RaiseFence {
        /// Partition
        partition: String,
        /// Lowest schema version that may write from now on
        version: i32,
        /// Even above the version of the server itself, which stops writing then
        #[arg(long)]
        force: bool,
    },
    /// Rotate a partition's log epoch, as after a restore: every client starts over
    RotateEpoch {
        /// Partition
        partition: String,
    },
    /// Hold a partition: its running batch ends, pushes queue up
    Drain {
        /// Partition
        partition: String,
        /// Milliseconds that the running batch may take [default: 10000]
        #[arg(long, value_name = "MS")]
        deadline_ms: Option<u64>,
    },
    /// Let a held partition go on
    Release {
        /// Partition
        partition: String,
    },
    /// Show and change what actors may see and write
    Grants {
        /// What to do
        #[command(subcommand)]
        command: GrantsCommand,
    },
    /// Prune a partition's log up to what nobody needs
    Prune {
        /// Partition
        partition: String,
        /// Newest commits that stay [default: 1000]
        #[arg(long, value_name = "N")]
        min_retained: Option<u64>,
        /// Clients heard of within that many milliseconds keep what they have not seen [default: 14 days]
        #[arg(long, value_name = "MS")]
        active_window_ms: Option<i64>,
        /// Commits older than that many milliseconds go in any case [default: 30 days]
        #[arg(long, value_name = "MS")]
        age_force_ms: Option<i64>,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Turn the clock of a server under test (serve --unsafe-test-clock)
    #[command(group = clap::ArgGroup::new("turn").required(true))]
    Clock {
        /// Stop it at that time, epoch milliseconds
        #[arg(long, value_name = "MS", group = "turn")]
        set_ms: Option<i64>,
        /// Move it on by that many milliseconds
        #[arg(long, value_name = "MS", group = "turn")]
        advance_ms: Option<i64>,
    },
    /// Switch the scope resolver of a server under test (serve --unsafe-test-clock)
    Resolver {
        /// live, failing or outage
        #[arg(value_parser = ["live", "failing", "outage"])]
        mode: String,
    },
    /// Print the OpenAPI document of the endpoint
    Openapi,
}

/// Asks, and prints the answer.
pub fn run(arguments: &CtlArgs) -> Exit {
    let call = Call::of(&arguments.command);
    let answer = actix_web::rt::System::new().block_on(client::send(
        &arguments.url,
        arguments.token.as_deref(),
        &call,
    ));
    match answer {
        Ok(answer) => {
            let text = match call.show {
                _ if arguments.json => format!("{answer:#}\n"),
                Show::Json => format!("{answer:#}\n"),
                Show::Object => table::object(&answer),
                Show::TakenUp => table::taken_up(&answer),
                Show::List(list) => table::list(&answer, list),
                Show::Plan => table::plan(&answer),
            };
            let mut out = std::io::stdout().lock();
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Ok(())
                    if answer["outcome"]
                        .as_str()
                        .is_none_or(|said| said == "activated") =>
                {
                    Exit::Success
                }
                Ok(()) => Exit::Failure,
                Err(error) => {
                    super::complain(&format_args!("cannot write to stdout: {error}"));
                    Exit::Failure
                }
            }
        }
        Err(error) => {
            if let (true, CtlError::Refused { body, .. }) = (arguments.json, &error) {
                // A script reads the refusal where it reads the answer.
                let _ = writeln!(std::io::stdout().lock(), "{body:#}");
            }
            super::complain(&error);
            error.exit()
        }
    }
}

/// Asks the endpoint at `url` for what is at `path`, for commands that watch a server.
///
/// # Errors
/// [`CtlError`]
pub(super) async fn read(
    url: &str,
    token: &str,
    path: &str,
) -> Result<serde_json::Value, CtlError> {
    let call = Call {
        method: "GET",
        path: path.to_owned(),
        body: None,
        show: Show::Json,
    };
    client::send(url, Some(token), &call).await
}

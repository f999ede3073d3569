//! The command line: a contract that scripts rely on.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::commands::ctl::CtlArgs;
use crate::commands::demo::migration::MigrationArgs;
use crate::config::Overrides;

/// How a command ends. The numbers are part of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything went well.
    Success = 0,
    /// The command found what it looks for (a difference, an undecodable file), or failed in a way without its own number.
    Failure = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// The schema is not valid.
    InvalidSchema = 3,
    /// The database cannot be reached or used.
    Database = 4,
    /// The database's content does not fit the schema.
    StorageMismatch = 5,
    /// The address cannot be listened on.
    Listen = 6,
    /// `ctl` cannot reach the control endpoint, or its token is refused.
    Control = 7,
    /// Shutdown was cut short by its deadline or a second signal.
    Forced = 8,
    /// The Postgres URL is not one.
    DatabaseUrl = 10,
    /// Nobody answers at the address of the Postgres server.
    DatabaseUnreachable = 11,
    /// TLS with the Postgres server failed.
    DatabaseTls = 12,
    /// Postgres refused the user or the password.
    DatabasePassword = 13,
    /// Postgres has no such database.
    DatabaseUnknown = 14,
    /// The Postgres server is too old.
    DatabaseTooOld = 15,
    /// The Postgres server is read-only, such as a standby.
    DatabaseReadOnly = 16,
    /// The Postgres role may not do what is needed.
    DatabasePermission = 17,
    /// The Postgres database is not in UTF-8.
    DatabaseEncoding = 18,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The discriminant is the contract.
        Self::from(exit as u8)
    }
}

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  check or inspect found a difference, a previewed row failed, the demo diverged,
     any other failure
  2  wrong usage or configuration
  3  the schema is not valid
  4  the database cannot be used, for a reason without its own number
  5  the database's content does not fit the schema
  6  cannot listen on the address, or on that of the control endpoint
  7  ctl cannot reach the control endpoint, or its token is refused
  8  shutdown was cut short
Postgres, at the start:
  10  the URL is not valid
  11  the server cannot be reached
  12  the TLS connection failed
  13  the user name or the password was refused
  14  there is no such database
  15  the server is older than Postgres 13
  16  the server is read-only (a standby)
  17  the role lacks a permission
  18  the database is not encoded in UTF-8";

/// A sync server for offline-first apps.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    #[command(args_override_self = true)]
    Serve(ServeArgs),
    /// Validate and explain a schema, and validate backfills
    Check {
        /// Schema IR file (syncular.ir.json)
        #[arg(long, value_name = "FILE")]
        schema: PathBuf,
        /// Folder of declared backfills, one TOML file each
        #[arg(long, value_name = "DIR")]
        backfills: Option<PathBuf>,
    },
    /// Bring the database to the schema, or show what that would do
    #[command(args_override_self = true)]
    Migrate(MigrateArgs),
    /// Look into declared backfills
    #[command(subcommand)]
    Backfill(BackfillCommand),
    /// Render SSP2 messages and SSG2 segments as canonical JSON
    Inspect {
        /// Encode each file again and exit 1 if any byte differs
        #[arg(long)]
        check: bool,
        /// Files to render
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Two offline clients, a conflict and a lost acknowledgement, step by step
    #[command(args_conflicts_with_subcommands = true)]
    Demo {
        /// Use a running server with the demo schema instead of starting one
        #[arg(long, value_name = "URL")]
        server: Option<String>,
        /// Another story
        #[command(subcommand)]
        story: Option<DemoStory>,
    },
    /// Operate a running server over its control endpoint
    Ctl(CtlArgs),
}

/// Another story than that of two offline clients.
#[derive(Debug, Subcommand)]
pub enum DemoStory {
    /// A schema upgrade with computed data, under load: an old writer, a kill -9, and a
    /// check of every row at the end
    Migration(MigrationArgs),
}

/// Which database, schema and backfills a command is about.
#[derive(Debug, Clone, Default, Args)]
pub struct Source {
    /// Configuration file (TOML); see config/default.toml for every key
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// sqlite:PATH, sqlite::memory: or postgres://… [default: sqlite:./data/tidegate.db].
    /// Everybody on the machine can read flags: give a password in the
    /// environment instead, as TIDEGATE_DATABASE__URL
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Schema IR file [default: the built-in demo schema]
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Folder of declared backfills, one TOML file each [default: none]
    #[arg(long, value_name = "DIR")]
    pub backfills: Option<PathBuf>,
}

impl Source {
    /// The configuration layer of the flags.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            database: self.database.clone(),
            schema: self.schema.clone(),
            backfills: self.backfills.clone(),
            ..Overrides::default()
        }
    }
}

/// `tidegate migrate`
#[derive(Debug, Clone, Default, Args)]
pub struct MigrateArgs {
    /// Database, schema and backfills.
    #[command(flatten)]
    pub source: Source,
    /// Show the statements, rows, locks and duration of the migration; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// JSON on standard output, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `tidegate backfill`
#[derive(Debug, Clone, Subcommand)]
pub enum BackfillCommand {
    /// Show source rows and what a backfill computes of them; write nothing
    #[command(args_override_self = true)]
    Preview(PreviewArgs),
}

/// `tidegate backfill preview`
#[derive(Debug, Clone, Default, Args)]
pub struct PreviewArgs {
    /// Name of the backfill
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Database, schema and backfills.
    #[command(flatten)]
    pub source: Source,
    /// Source rows to show, over all partitions
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    /// Rows of that partition alone
    #[arg(long, value_name = "ID")]
    pub partition: Option<String>,
    /// JSON on standard output, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `tidegate serve`
#[derive(Debug, Clone, Default, Args)]
pub struct ServeArgs {
    /// Database, schema and backfills.
    #[command(flatten)]
    pub source: Source,
    /// Address to listen on [default: 127.0.0.1:8787]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// Address of the control endpoint, or off [default: 127.0.0.1:8788]
    #[arg(long, value_name = "IP:PORT")]
    pub control_listen: Option<String>,
    /// Accept development authentication on an address that is not loopback
    #[arg(long)]
    pub insecure_dev_auth: bool,
    /// Let the control endpoint set the clock and fail the scope resolver: for tests,
    /// on loopback alone
    #[arg(long)]
    pub unsafe_test_clock: bool,
}

impl ServeArgs {
    /// The configuration layer of the flags.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            listen: self.listen.clone(),
            control_listen: self.control_listen.clone(),
            insecure_dev_auth: self.insecure_dev_auth,
            ..self.source.overrides()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const README: &str = include_str!("../README.md");

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_serve_reaches_the_configuration_and_the_last_one_wins() {
        let line = "tidegate serve --config c.toml --listen 127.0.0.1:1 --control-listen off \
            --database sqlite:first.db --schema s.json --backfills b --insecure-dev-auth \
            --unsafe-test-clock --database sqlite:last.db";
        let Command::Serve(arguments) = Cli::try_parse_from(line.split_whitespace())
            .unwrap()
            .command
        else {
            panic!("not serve");
        };
        assert_eq!(arguments.source.config, Some("c.toml".into()));
        assert!(arguments.unsafe_test_clock);
        let Overrides {
            listen,
            control_listen,
            database,
            schema,
            backfills,
            insecure_dev_auth,
        } = arguments.overrides();
        assert_eq!(listen.as_deref(), Some("127.0.0.1:1"));
        assert_eq!(control_listen.as_deref(), Some("off"));
        assert_eq!(database.as_deref(), Some("sqlite:last.db"));
        assert_eq!(schema, Some("s.json".into()));
        assert_eq!(backfills, Some("b".into()));
        assert!(insecure_dev_auth);
    }

    #[test]
    fn help_and_readme_list_every_exit_code() {
        for exit in [
            Exit::Success,
            Exit::Failure,
            Exit::Usage,
            Exit::InvalidSchema,
            Exit::Database,
            Exit::StorageMismatch,
            Exit::Listen,
            Exit::Control,
            Exit::Forced,
            Exit::DatabaseUrl,
            Exit::DatabaseUnreachable,
            Exit::DatabaseTls,
            Exit::DatabasePassword,
            Exit::DatabaseUnknown,
            Exit::DatabaseTooOld,
            Exit::DatabaseReadOnly,
            Exit::DatabasePermission,
            Exit::DatabaseEncoding,
        ] {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", exit as u8)));
            assert!(README.contains(&format!("\n| {} | ", exit as u8)));
        }
    }
}

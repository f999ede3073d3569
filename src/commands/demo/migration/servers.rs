//! Server processes of the demo's own, on one database, and what their control endpoints
//! tell.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value as Json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::super::{DemoError, random_name};
use crate::commands::ctl;

/// Schema 2 of the demo.
pub(super) const SCHEMA_TWO: &str = include_str!("../../../../config/schemas/demo-v2.json");

/// What schema 2 computes.
const BACKFILLS: [(&str, &str); 2] = [
    (
        "title-key.toml",
        include_str!("../../../../config/backfills/example.toml"),
    ),
    (
        "cards.toml",
        include_str!("../../../../config/backfills/todo-cards.toml"),
    ),
];

/// Slow enough to be watched, and taken up soon after a kill.
const PACE: [(&str, &str); 6] = [
    ("TIDEGATE_BACKFILL__ROWS_PER_SECOND", "500"),
    ("TIDEGATE_BACKFILL__BURST_ROWS", "100"),
    ("TIDEGATE_BACKFILL__PAGE_ROWS", "50"),
    ("TIDEGATE_BACKFILL__PUSH_P99_TARGET_MS", "0"),
    ("TIDEGATE_BACKFILL__POLL_MS", "100"),
    ("TIDEGATE_BACKFILL__LEASE_MS", "1500"),
];

/// Lines of a server's log that are shown when the story breaks off.
const LAST_WORDS: usize = 10;

/// Which program a server stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Schema 1.
    One,
    /// Schema 2, with its backfills.
    Two,
}

/// The database that all servers share, and a folder for everything else.
pub(super) struct Site {
    folder: TempDir,
    database: String,
    token: String,
}

impl Site {
    pub fn new(database: Option<&str>) -> Result<Self, DemoError> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("schema-2.json"), SCHEMA_TWO)?;
        std::fs::create_dir(folder.path().join("backfills"))?;
        for (name, text) in BACKFILLS {
            std::fs::write(folder.path().join("backfills").join(name), text)?;
        }
        let database = match database {
            Some(url) => url.to_owned(),
            None => format!("sqlite:{}", folder.path().join("demo.db").display()),
        };
        let token = random_name()?;
        Ok(Self {
            folder,
            database,
            token,
        })
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("servers.log")
    }

    /// The end of what the servers logged.
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n")
    }

    /// Starts a server and waits until it listens.
    pub async fn start(&self, release: Release) -> Result<ServerProcess, DemoError> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .args(["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"])
            .env("TIDEGATE_DATABASE__URL", &self.database)
            .env("TIDEGATE_CONTROL_TOKEN", &self.token)
            .envs(PACE)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        if release == Release::Two {
            command
                .arg("--schema")
                .arg(self.folder.path().join("schema-2.json"))
                .arg("--backfills")
                .arg(self.folder.path().join("backfills"));
        }
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or_else(did_not_start)?;
        let mut lines = BufReader::new(stdout).lines();
        Ok(ServerProcess {
            id: child.id().unwrap_or_default(),
            url: announced(&mut lines, "tidegate listening on ").await?,
            control: announced(&mut lines, "tidegate control on ").await?,
            token: self.token.clone(),
            child,
        })
    }
}

async fn announced(
    lines: &mut Lines<BufReader<ChildStdout>>,
    what: &str,
) -> Result<String, DemoError> {
    let line = lines.next_line().await?.unwrap_or_default();
    line.strip_prefix(what)
        .map(str::to_owned)
        .ok_or_else(did_not_start)
}

fn did_not_start() -> DemoError {
    DemoError::Stuck("a server did not start".to_owned())
}

/// A server that listens; killed when dropped.
pub(super) struct ServerProcess {
    id: u32,
    /// Where clients reach it.
    pub url: String,
    control: String,
    token: String,
    child: Child,
}

impl ServerProcess {
    pub fn id(&self) -> u32 {
        self.id
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(mut self) -> Result<(), DemoError> {
        Ok(self.child.kill().await?)
    }

    async fn ask(&self, path: &str) -> Result<Json, DemoError> {
        Ok(ctl::read(&self.control, &self.token, path).await?)
    }

    /// The fence of a partition.
    pub async fn required_writer_version(&self, partition: &str) -> Result<u64, DemoError> {
        let fence = self
            .ask(&format!("/control/v1/partitions/{partition}/fence"))
            .await?;
        Ok(fence["required_writer_version"]
            .as_u64()
            .unwrap_or_default())
    }

    /// The checkpoints of a partition.
    pub async fn checkpoints(&self, partition: &str) -> Result<Vec<CheckpointView>, DemoError> {
        let answer = self
            .ask(&format!("/control/v1/partitions/{partition}/checkpoints"))
            .await?;
        let found = answer["checkpoints"].as_array();
        Ok(found
            .into_iter()
            .flatten()
            .map(CheckpointView::of)
            .collect())
    }
}

/// A checkpoint, as an operator sees it.
#[derive(Debug, Clone)]
pub(super) struct CheckpointView {
    pub name: String,
    state: String,
    phase: String,
    /// Source rows computed, as the database has it.
    pub observed_rows: u64,
    rows_total: Option<u64>,
    rows_per_second: Option<f64>,
    pub owner_epoch: u64,
    last_error: Option<String>,
}

impl CheckpointView {
    fn of(json: &Json) -> Self {
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        Self {
            name: text("name"),
            state: text("state"),
            phase: text("phase"),
            observed_rows: json["observed_rows"].as_u64().unwrap_or_default(),
            rows_total: json["rows_total"].as_u64(),
            rows_per_second: json["rows_per_second"].as_f64(),
            owner_epoch: json["owner_epoch"].as_u64().unwrap_or_default(),
            last_error: json["last_error"].as_str().map(str::to_owned),
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == "activated"
    }

    /// Why its worker stopped for good.
    pub fn failure(&self) -> Option<String> {
        (self.phase == "failed").then(|| {
            let reason = self.last_error.as_deref().unwrap_or("for no stated reason");
            format!("the backfill {} failed: {reason}", self.name)
        })
    }

    /// Rows computed.
    pub fn done(&self) -> u64 {
        if self.is_done() {
            self.total()
        } else {
            self.observed_rows.min(self.total())
        }
    }

    /// Rows to compute; what is computed where the server does not tell.
    pub fn total(&self) -> u64 {
        self.rows_total.unwrap_or(self.observed_rows)
    }

    /// For people.
    pub fn line(&self) -> String {
        let phase = if self.is_done() {
            "activated"
        } else {
            &self.phase
        };
        let rows = match (self.is_done(), self.rows_total) {
            (false, Some(total)) => format!("{} of {total} rows", self.observed_rows),
            _ => format!("{} rows", self.observed_rows),
        };
        let rate = match self.rows_per_second {
            Some(rate) if !self.is_done() => format!(", {rate:.0} rows/s"),
            _ => String::new(),
        };
        format!("{}: {phase}, {rows}{rate}", self.name)
    }
}

//! A server process of the suite's own: fresh database, free port, peak memory.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::runner::LoadError;

/// What the server prints, before its address, once it accepts connections.
const LISTENING: &str = "tidegate listening on ";
/// How long a server may take to start.
const START: Duration = Duration::from_secs(30);

/// A running server with its own database; both go when it is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    url: String,
    _directory: Directory,
}

impl ServerProcess {
    /// Starts `binary` on `database`, a URL, or on a fresh on-disk SQLite database, and
    /// waits until it listens.
    ///
    /// # Errors
    /// When it does not start, or does not say where it listens.
    pub async fn start(
        binary: &Path,
        args: &[String],
        environment: &[(String, String)],
        database: Option<&str>,
    ) -> Result<Self, LoadError> {
        let fail = |error: &dyn std::fmt::Display| {
            LoadError::Setup(format!("{}: {error}", binary.display()))
        };
        let directory = Directory::fresh().map_err(|error| fail(&error))?;
        let database = database.map_or_else(
            || format!("sqlite:{}", directory.0.join("load.db").display()),
            str::to_owned,
        );
        let mut command = Command::new(binary);
        if args.is_empty() {
            command.arg("serve");
        }
        command
            .args(args)
            .env("TIDEGATE_LISTEN", "127.0.0.1:0")
            // Nobody operates it, and its port may be taken.
            .env("TIDEGATE_CONTROL__LISTEN", "off")
            .env("TIDEGATE_DATABASE__URL", database)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| fail(&error))?;
        let (found, mut finds) = mpsc::unbounded_channel();
        if let Some(stdout) = child.stdout.take() {
            watch(stdout, found.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            watch(stderr, found.clone());
        }
        drop(found);
        match tokio::time::timeout(START, finds.recv()).await {
            Ok(Some(url)) => Ok(Self {
                child,
                url,
                _directory: directory,
            }),
            Ok(None) => Err(fail(&"ended before it listened")),
            Err(_) => Err(fail(&"did not say where it listens")),
        }
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub async fn stop(mut self) -> Result<(), LoadError> {
        self.child
            .kill()
            .await
            .map_err(|error| LoadError::Setup(format!("the server does not stop: {error}")))
    }
}

/// Reads a stream to its end, so that the server never blocks on it, and reports the
/// address it names.
fn watch(stream: impl AsyncRead + Unpin + Send + 'static, found: mpsc::UnboundedSender<String>) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        let mut found = Some(found);
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some(url) = listening_url(&line)
                && let Some(found) = found.take()
            {
                let _ = found.send(url.to_owned());
            }
        }
    });
}

/// The address in a line that announces one.
fn listening_url(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(LISTENING)?;
    rest.split(|c: char| c.is_whitespace() || c == '"')
        .next()
        .filter(|url| url.starts_with("http://"))
}

/// Peak resident memory of a process in KiB, where the system tells.
pub fn peak_rss_kib(pid: u32) -> Option<u64> {
    vm_hwm_kib(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn vm_hwm_kib(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A directory of its own, removed when dropped.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn fresh() -> std::io::Result<Self> {
        for attempt in 0..u32::MAX {
            let name = format!("tidegate-load-{}-{attempt}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(std::io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_plain_and_json_lines() {
        assert_eq!(
            listening_url("tidegate listening on http://127.0.0.1:4711"),
            Some("http://127.0.0.1:4711")
        );
        assert_eq!(
            listening_url(r#"{"message":"tidegate listening on http://127.0.0.1:1","x":1}"#),
            Some("http://127.0.0.1:1")
        );
        assert_eq!(listening_url("tidegate listening on nothing"), None);
        assert_eq!(listening_url("starting"), None);
    }

    #[test]
    fn peak_memory_is_read_from_a_status_file() {
        let status = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(vm_hwm_kib(status), Some(12345));
        assert_eq!(vm_hwm_kib("Name:\tx\n"), None);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_server_that_ends_before_it_listens_is_an_error() {
        let error = ServerProcess::start(
            Path::new("/bin/sh"),
            &["-c".to_owned(), "exit 3".to_owned()],
            &[],
            None,
        )
        .await
        .unwrap_err();
        assert!(error.to_string().contains("ended before"));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_server_is_found_stopped_and_its_directory_removed() {
        let script = "echo tidegate listening on http://127.0.0.1:9; \
                      echo \"$TIDEGATE_DATABASE__URL $EXTRA\" >&2; exec cat /dev/zero >/dev/null";
        let server = ServerProcess::start(
            Path::new("/bin/sh"),
            &["-c".to_owned(), script.to_owned()],
            &[("EXTRA".to_owned(), "1".to_owned())],
            None,
        )
        .await
        .unwrap();
        assert_eq!(server.url(), "http://127.0.0.1:9");
        assert!(server.pid().is_some());
        let directory = server._directory.0.clone();
        assert!(directory.is_dir());
        server.stop().await.unwrap();
        assert!(!directory.exists());
    }
}

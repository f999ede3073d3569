//! A server process of its own for each test, and its folder.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_test_postgres::Database;

/// Opens the control endpoint of every server here.
pub const CONTROL_TOKEN: &str = "e2e-control-token";

/// How long a process may take to start, stop or reach a condition.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a site's database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    /// A database of its own on the server that all tests of this process share.
    Postgres,
}

/// Makes a test of each database out of `async fn name(on: Backend)`.
macro_rules! on_each_database {
    ($($name:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::process::Backend::Sqlite).await;
            })+
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::process::Backend::Postgres).await;
            })+
        }
    };
}
pub(crate) use on_each_database;

/// A folder and a database that outlive server processes.
pub struct Site {
    dir: TempDir,
    url: String,
    /// Dropped with the site.
    _postgres: Option<Database>,
}

impl Site {
    /// On a SQLite file.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            url: format!("sqlite:{}", dir.path().join("tidegate.db").display()),
            dir,
            _postgres: None,
        }
    }

    pub fn on(backend: Backend) -> Self {
        match backend {
            Backend::Sqlite => Self::new(),
            Backend::Postgres => {
                let database = Database::create().unwrap_or_else(|error| panic!("{error}"));
                Self {
                    url: database.url(),
                    _postgres: Some(database),
                    dir: tempfile::tempdir().unwrap(),
                }
            }
        }
    }

    /// On a database that somebody else makes and drops.
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            dir: tempfile::tempdir().unwrap(),
            _postgres: None,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a server and waits until it says where it listens.
    pub fn start(&self, args: &[&str]) -> Server {
        self.start_logging_to(args, self.log_file())
    }

    /// The same, with a control endpoint that makes its own token.
    pub fn start_without_token(&self, args: &[&str]) -> Server {
        let mut command = self.command(args);
        command.env_remove("TIDEGATE_CONTROL_TOKEN");
        self.spawn(command, self.log_file())
    }

    /// The log of every server here.
    pub fn log_file(&self) -> File {
        File::options()
            .create(true)
            .append(true)
            .open(self.path("server.log"))
            .unwrap()
    }

    /// The same with a log of the test's choice.
    pub fn start_logging_to(&self, args: &[&str], log: File) -> Server {
        self.spawn(self.command(args), log)
    }

    /// Runs a command of [`Self::command`] and waits until it says where it listens.
    pub fn spawn(&self, mut command: Command, log: File) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let Some(url) = line.trim_end().strip_prefix("tidegate listening on ") else {
            let _ = child.kill();
            panic!("the server did not start: {line:?}\n{}", self.log());
        };
        Server {
            url: url.to_owned(),
            child,
            stdout,
            control: None,
        }
    }

    /// The command of [`Self::start`], for tests of a start that fails.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .arg("serve")
            .args(["--listen", "127.0.0.1:0"])
            .args(["--control-listen", "127.0.0.1:0"])
            .args(args)
            .env("TIDEGATE_CONTROL_TOKEN", CONTROL_TOKEN)
            // As a password should be given.
            .env("TIDEGATE_DATABASE__URL", &self.url)
            // Many servers share one Postgres here.
            .env("TIDEGATE_POSTGRES__POOL_SIZE", "6")
            .env("TIDEGATE_POSTGRES__SNAPSHOT_POOL_SIZE", "4")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// The URL of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A command beside the server, on the site's database.
    pub fn tool(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .args(args)
            .env("TIDEGATE_DATABASE__URL", &self.url)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }
}

/// A running server; killed when dropped.
pub struct Server {
    pub url: String,
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    control: Option<String>,
}

impl Server {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let status = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Where the control endpoint is: what the second line on standard output says.
    pub fn control(&mut self) -> String {
        if self.control.is_none() {
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            let url = line.trim_end().strip_prefix("tidegate control on ");
            self.control = Some(url.unwrap().to_owned());
        }
        self.control.clone().unwrap()
    }

    /// Waits for the exit; also checks that standard output held no more than the
    /// lines that say where the server is.
    pub fn wait(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.stdout, &mut rest).unwrap();
        if self.control.is_none()
            && let Some(line) = rest.strip_prefix("tidegate control on http://127.0.0.1:")
        {
            rest = line
                .trim_start_matches(|c: char| c.is_ascii_digit())
                .to_owned();
            assert_eq!(rest.pop(), Some('\n'));
        }
        assert_eq!(rest, "", "standard output is for the addresses");
        status
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

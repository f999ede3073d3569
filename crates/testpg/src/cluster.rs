//! A private cluster: `initdb` in a temporary directory and a server on a free
//! port, under a watchdog that ends both when this process does.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Error;

/// How a private cluster runs.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Whether commits reach the disk. Off is faster and only loses data when the machine stops.
    pub fsync: bool,
    /// Further settings, `name=value`.
    pub settings: Vec<String>,
    /// Certificate and private key in PEM: the server then offers TLS.
    pub tls: Option<(String, String)>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            fsync: true,
            settings: Vec::new(),
            tls: None,
        }
    }
}

impl ClusterOptions {
    /// Defaults; `TIDEGATE_TEST_POSTGRES_FSYNC=off` turns fsync off.
    pub fn from_env() -> Self {
        let off = std::env::var("TIDEGATE_TEST_POSTGRES_FSYNC")
            .is_ok_and(|value| matches!(value.as_str(), "off" | "0" | "false"));
        Self {
            fsync: !off,
            ..Self::default()
        }
    }
}

/// How long a server may take to accept connections.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Ends with its standard input: that is the end of this process, even by a kill.
/// It ignores what an interrupted terminal sends to everyone.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
directory=$1; shift
"$@" >"$directory/log" 2>&1 </dev/null &
server=$!
read -r _
kill -QUIT "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$directory"
"#;

#[derive(Debug)]
pub(crate) struct Cluster {
    watchdog: Child,
    port: u16,
}

impl Cluster {
    pub(crate) fn start(options: &ClusterOptions) -> Result<Self, Error> {
        let binaries = binaries().ok_or(Error::NotInstalled)?;
        let mut last = Error::NotStarted("no port was free".into());
        // Another process may take the port between the look and the start.
        for _ in 0..3 {
            match Self::start_once(&binaries, options) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn start_once(binaries: &Path, options: &ClusterOptions) -> Result<Self, Error> {
        let account = Account::find()?;
        let directory = fresh_directory(&account)?;
        let data = directory.join("data");
        let initdb = account
            .command(&binaries.join("initdb"))
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"])
            .args(["--no-sync", "-D"])
            .arg(&data)
            .current_dir(&directory)
            .stdin(Stdio::null())
            .output()
            .map_err(not_started)?;
        if !initdb.status.success() {
            let _ = fs::remove_dir_all(&directory);
            let words = String::from_utf8_lossy(&initdb.stderr).into_owned();
            return Err(Error::NotStarted(words));
        }
        let port = free_port()?;
        let server = account.command(&binaries.join("postgres"));
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "tidegate-test-postgres"]);
        watchdog.arg(&directory);
        watchdog.arg(server.get_program()).args(server.get_args());
        watchdog.arg("-D").arg(&data);
        let mut set = |setting: &str| {
            watchdog.args(["-c", setting]);
        };
        set("listen_addresses=127.0.0.1");
        set(&format!("port={port}"));
        set("unix_socket_directories=");
        set("max_connections=200");
        set("shared_buffers=64MB");
        set("logging_collector=off");
        if !options.fsync {
            set("fsync=off");
            set("full_page_writes=off");
        }
        if let Some((certificate, key)) = &options.tls {
            account.private_file(&directory.join("server.crt"), certificate)?;
            account.private_file(&directory.join("server.key"), key)?;
            set("ssl=on");
            set(&format!("ssl_cert_file={}/server.crt", directory.display()));
            set(&format!("ssl_key_file={}/server.key", directory.display()));
        }
        options.settings.iter().for_each(|setting| set(setting));
        let watchdog = watchdog
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(not_started)?;
        let cluster = Self { watchdog, port };
        cluster.wait_until_ready(&directory)?;
        Ok(cluster)
    }

    fn wait_until_ready(&self, directory: &Path) -> Result<(), Error> {
        let config: tokio_postgres::Config = self
            .url()
            .parse()
            .map_err(|error: tokio_postgres::Error| Error::NotStarted(error.to_string()))?;
        let pid_file = directory.join("data/postmaster.pid");
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            // The port may be somebody else's server: ours says "ready" in its own file.
            let ready = fs::read_to_string(&pid_file)
                .is_ok_and(|text| text.lines().any(|line| line.trim() == "ready"));
            let refused = match crate::execute(&config, "SELECT 1") {
                Ok(()) if ready => return Ok(()),
                Ok(()) => "it is not ready".to_owned(),
                Err(error) => error.to_string(),
            };
            let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
            if Instant::now() >= deadline || gave_up(&log) {
                return Err(Error::NotStarted(format!("{refused}\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// Whether the log holds a server's last words.
fn gave_up(log: &str) -> bool {
    log.contains("FATAL:  could not") || log.contains("database system is shut down")
}

fn not_started(error: std::io::Error) -> Error {
    Error::NotStarted(error.to_string())
}

fn free_port() -> Result<u16, Error> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(not_started)
}

/// The newest installed server's programs.
fn binaries() -> Option<PathBuf> {
    let complete = |directory: &PathBuf| {
        ["initdb", "postgres"]
            .iter()
            .all(|program| directory.join(program).is_file())
    };
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions
        .into_iter()
        .rev()
        .map(|(_, directory)| directory)
        .chain(std::env::split_paths(&path))
        .find(complete)
}

/// Postgres refuses to run as root; then it runs as another account.
struct Account(Option<(u32, u32)>);

impl Account {
    fn find() -> Result<Self, Error> {
        let me = Command::new("id").arg("-u").output().map_err(not_started)?;
        if String::from_utf8_lossy(&me.stdout).trim() != "0" {
            return Ok(Self(None));
        }
        let accounts = fs::read_to_string("/etc/passwd").map_err(not_started)?;
        let ids = |wanted: &str| {
            accounts.lines().find_map(|line| {
                let mut fields = line.split(':');
                let name = fields.next()?;
                let uid = fields.nth(1)?.parse().ok()?;
                let gid = fields.next()?.parse().ok()?;
                (name == wanted).then_some((uid, gid))
            })
        };
        ids("postgres")
            .or_else(|| ids("nobody"))
            .map(|ids| Self(Some(ids)))
            .ok_or_else(|| Error::NotStarted("no account to run Postgres as".into()))
    }

    /// Writes a file that only the account may read, as Postgres insists for keys.
    fn private_file(&self, path: &Path, text: &str) -> Result<(), Error> {
        fs::write(path, text)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
            .map_err(not_started)?;
        if let Some((uid, gid)) = self.0 {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(not_started)?;
        }
        Ok(())
    }

    fn command(&self, program: &Path) -> Command {
        let Some((uid, gid)) = self.0 else {
            return Command::new(program);
        };
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .args(["--clear-groups", "--"])
            .arg(program);
        command
    }
}

fn fresh_directory(account: &Account) -> Result<PathBuf, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "tidegate-test-postgres-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let directory = std::env::temp_dir().join(name);
    fs::create_dir(&directory).map_err(not_started)?;
    if let Some((uid, gid)) = account.0 {
        std::os::unix::fs::chown(&directory, Some(uid), Some(gid)).map_err(not_started)?;
    }
    Ok(directory)
}

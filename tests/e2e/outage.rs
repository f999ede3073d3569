//! Postgres goes away and comes back under a running server: 503 meanwhile,
//! recovery without help, every acknowledged commit there, none twice.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tidegate_client::{ClientError, HttpTransport, SyncClient, TransportError, WireVersion};
use tidegate_test_postgres::{ClusterOptions, Server as Postgres};
use tokio::sync::{Semaphore, watch};
use tokio_postgres::NoTls;

use crate::process::{PATIENCE, Server, Site};
use crate::scenario::{assert_one_log, client, client_over, http, todo};

/// A private server that a test stops and starts again.
struct Stoppable {
    postgres: Postgres,
    control: PathBuf,
    data: PathBuf,
    stopped: bool,
}

impl Stoppable {
    async fn start() -> Self {
        let postgres =
            Postgres::start(&ClusterOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        let (client, connection) = tokio_postgres::connect(&postgres.url("postgres"), NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let places = "SELECT setting, current_setting('data_directory') FROM pg_config
                      WHERE name = 'BINDIR'";
        let row = client.query_one(places, &[]).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
        Self {
            control: Path::new(row.get::<_, &str>(0)).join("pg_ctl"),
            data: PathBuf::from(row.get::<_, &str>(1)),
            postgres,
            stopped: false,
        }
    }

    /// `mode` is smart, fast or immediate; the last is a crash.
    fn stop(&mut self, mode: &str) {
        self.pg_ctl(&["stop", "--mode", mode]);
        self.stopped = true;
    }

    /// Starts it again, with its options from before.
    fn start_again(&mut self) {
        self.pg_ctl(&["restart", "--log", "log-of-restart"]);
        self.stopped = false;
    }

    /// As the account that owns the data, which is not ours where we are root.
    fn pg_ctl(&self, arguments: &[&str]) {
        use std::os::unix::fs::MetadataExt as _;
        let owner = std::fs::metadata(&self.data).unwrap();
        let own = std::fs::metadata("/proc/self").map_or(owner.uid(), |process| process.uid());
        let mut command = if own == owner.uid() {
            Command::new(&self.control)
        } else {
            let mut command = Command::new("setpriv");
            command
                .arg(format!("--reuid={}", owner.uid()))
                .arg(format!("--regid={}", owner.gid()))
                .args(["--clear-groups", "--"])
                .arg(&self.control);
            command
        };
        // A started server inherits the streams: only files and nothing, never a pipe.
        let status = command
            .args(arguments)
            .args(["--wait", "--silent", "--pgdata"])
            .arg(&self.data)
            .current_dir(&self.data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "pg_ctl {arguments:?}: {status}");
    }
}

/// The restarted server is nobody's child: it is ended here.
impl Drop for Stoppable {
    fn drop(&mut self) {
        if !self.stopped && !std::thread::panicking() {
            self.stop("immediate");
        } else if !self.stopped {
            let pid = std::fs::read_to_string(self.data.join("postmaster.pid"));
            if let Some(pid) = pid.ok().as_deref().and_then(|text| text.lines().next()) {
                let _ = Command::new("kill").args(["-QUIT", pid]).status();
            }
        }
    }
}

const IMPATIENT: &str = "[postgres]\nconnect_timeout_ms = 500\n[shutdown]\ndeadline_ms = 3000\n";

/// Starts a server that gives up soon: on a connection, and on its own end.
fn start(site: &Site) -> Server {
    let path = site.path("impatient.toml");
    std::fs::write(&path, IMPATIENT).unwrap();
    site.start(&["--config", path.to_str().unwrap()])
}

/// Whether a sync failed as it must while the database is away.
#[track_caller]
fn assert_unavailable(error: &ClientError) {
    match error {
        ClientError::Transport(TransportError::Refused {
            status,
            error: Some(body),
        }) => {
            assert_eq!(*status, 503, "{body:?}");
            assert_eq!(body.code, "sync.internal_error");
            assert!(body.retryable);
            assert_eq!(
                body.message,
                "the service is temporarily unavailable; try again"
            );
        }
        // The answer had begun: its last frame is the error.
        ClientError::Server(frame) => assert_eq!(frame.code, "sync.internal_error"),
        other => panic!("{other}"),
    }
}

async fn readiness(url: &str) -> u16 {
    let answer = reqwest::get(format!("{url}/readyz")).await.unwrap();
    answer.status().as_u16()
}

/// What the devices of one outage report to each other.
struct Progress {
    /// A permit for each sync that succeeded.
    acknowledged: Semaphore,
    /// A permit for each device that was refused.
    noticed: Semaphore,
    /// Set just before the stop.
    away: AtomicBool,
}

/// Pushes until the database is gone, notices, waits for its return, and syncs
/// until everything is acknowledged. Returns the number of commits it made.
async fn push_through(
    device: &mut SyncClient<HttpTransport>,
    name: &str,
    progress: &Progress,
    mut back: watch::Receiver<bool>,
) -> usize {
    let mut made = 0;
    loop {
        device.edit([todo(&format!("{name}-{made}"), "x")]).unwrap();
        made += 1;
        match device.sync().await {
            Ok(_) => progress.acknowledged.add_permits(1),
            Err(error) => {
                assert!(progress.away.load(Ordering::SeqCst), "too early: {error}");
                assert_unavailable(&error);
                break;
            }
        }
    }
    // Still away, and still the same answer.
    assert_unavailable(&device.sync().await.unwrap_err());
    progress.noticed.add_permits(1);
    back.wait_for(|back| *back).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = device.sync().await {
        assert_unavailable(&error);
        assert!(Instant::now() < deadline, "no recovery");
    }
    assert_eq!(device.pending().count(), 0);
    made
}

async fn stopped_and_started_under_load(mode: &str) {
    const DEVICES: u32 = 4;
    let mut postgres = Stoppable::start().await;
    let site = Site::at(&postgres.postgres.url("postgres"));
    let mut server = start(&site);
    let mut devices = Vec::new();
    for n in 0..DEVICES {
        let id = format!("device-{n}");
        let transport = http(&server.url, &id);
        devices.push(client_over(&id, WireVersion::V3, |_| {}, transport));
    }
    let mut made = 0;
    for outage in 0..2 {
        let progress = Arc::new(Progress {
            acknowledged: Semaphore::new(0),
            noticed: Semaphore::new(0),
            away: AtomicBool::new(false),
        });
        let (returned, back) = watch::channel(false);
        let mut tasks = Vec::new();
        for (n, mut device) in devices.drain(..).enumerate() {
            let (progress, back) = (Arc::clone(&progress), back.clone());
            tasks.push(tokio::spawn(async move {
                let name = format!("{outage}-{n}");
                let made = push_through(&mut device, &name, &progress, back).await;
                (device, made)
            }));
        }
        // The stop comes while all are at it.
        drop(progress.acknowledged.acquire_many(40).await.unwrap());
        progress.away.store(true, Ordering::SeqCst);
        postgres.stop(mode);
        // Everybody notices before it comes back.
        drop(progress.noticed.acquire_many(DEVICES).await.unwrap());
        assert_eq!(readiness(&server.url).await, 503);
        assert!(server.is_running());
        postgres.start_again();
        returned.send(true).unwrap();
        for task in tasks {
            let (device, steps) = task.await.unwrap();
            made += steps;
            devices.push(device);
        }
        assert_eq!(readiness(&server.url).await, 200);
    }
    assert_one_log(&devices, made);
    let mut witness = client(&server.url, "witness");
    witness.sync().await.unwrap();
    assert_eq!(witness.replica().len("todos"), made);
    for device in &mut devices {
        device.sync().await.unwrap();
        assert_eq!(
            device.replica().versioned_dump(),
            witness.replica().versioned_dump()
        );
    }
    // It also ends as if nothing had been.
    server.terminate();
    assert_eq!(server.wait().code(), Some(0), "{}", site.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_restarted_under_load_is_503_then_recovery_and_nothing_lost() {
    stopped_and_started_under_load("fast").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_crashed_under_load_is_503_then_recovery_and_nothing_lost() {
    stopped_and_started_under_load("immediate").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_by_its_deadline_while_the_database_is_away_and_starts_when_it_is_back() {
    let mut postgres = Stoppable::start().await;
    let site = Site::at(&postgres.postgres.url("postgres"));
    let server = start(&site);
    let mut device = client(&server.url, "device");
    device.edit([todo("t1", "x")]).unwrap();
    device.sync().await.unwrap();
    postgres.stop("fast");
    device.edit([todo("t2", "x")]).unwrap();
    assert_unavailable(&device.sync().await.unwrap_err());
    server.terminate();
    // Nothing acknowledged is open, but it cannot note when devices were last seen.
    assert_eq!(server.wait().code(), Some(8), "{}", site.log());
    let refused = site.command(&[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(11));

    postgres.start_again();
    let server = start(&site);
    let mut device = device.map_transport(|old| old.at(&server.url));
    device.sync().await.unwrap();
    assert_eq!(device.replica().len("todos"), 2);
}

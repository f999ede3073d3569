//! A client that keeps pushing whatever happens to its server, and what it was promised.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tidegate_client::{ClientError, HttpTransport, OutcomeStatus, SyncClient, TransportError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::plant::{TOUCHED, device, schema, seed, todo};
use crate::process::PATIENCE;
use crate::sql::{Sql, breath};

/// A client at work.
pub struct Writer {
    url: watch::Sender<String>,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
    task: JoinHandle<Diary>,
}

#[derive(Default)]
struct Shared {
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
}

/// What a client wrote and heard.
pub struct Diary {
    pub device: SyncClient<HttpTransport>,
    /// Requests refused because the schema is not ready.
    pub refused: usize,
}

impl Writer {
    /// New rows and old ones in turn, one commit at a time.
    pub fn start(url: &str, id: &str, version: i32) -> Self {
        let (url, urls) = watch::channel(url.to_owned());
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared::default());
        let device = device(&urls.borrow(), id, version);
        let task = tokio::spawn(write(
            device,
            id.to_owned(),
            urls,
            stopped,
            Arc::clone(&shared),
        ));
        Self {
            url,
            stop,
            shared,
            task,
        }
    }

    /// Goes on with another server.
    pub fn move_to(&self, url: &str) {
        self.url.send_replace(url.to_owned());
    }

    /// Commits acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits for that many more acknowledgements.
    pub async fn more(&self, count: usize) {
        let wanted = self.acknowledged() + count;
        self.until("acknowledged", || self.acknowledged() >= wanted)
            .await;
    }

    /// Waits until a request is refused because the schema is not ready.
    pub async fn refused(&self) {
        let shared = &self.shared;
        self.until("refused", || shared.refused.load(Ordering::SeqCst) > 0)
            .await;
    }

    async fn until(&self, what: &str, reached: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !reached() {
            assert!(!self.task.is_finished(), "the client gave up");
            assert!(Instant::now() < deadline, "never {what}");
            breath().await;
        }
    }

    /// Ends it once nothing is left to push.
    pub async fn stop(self) -> Diary {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }
}

async fn write(
    mut device: SyncClient<HttpTransport>,
    id: String,
    mut urls: watch::Receiver<String>,
    stopped: watch::Receiver<bool>,
    shared: Arc<Shared>,
) -> Diary {
    let mut step = 0;
    let mut deadline = Instant::now() + PATIENCE;
    loop {
        if device.pending().count() == 0 {
            if *stopped.borrow() {
                let refused = shared.refused.load(Ordering::SeqCst);
                return Diary { device, refused };
            }
            let edit = if step % 2 == 0 {
                todo(&format!("{id}-{step}"), &format!(" Written By {id} {step}"))
            } else {
                todo(&seed(step % TOUCHED), &format!(" Edited By {id} {step}"))
            };
            device.edit([edit]).unwrap();
            step += 1;
        }
        if urls.has_changed().unwrap_or(false) {
            let url = urls.borrow_and_update().clone();
            device = device.map_transport(|old| old.at(&url));
        }
        match device.sync().await {
            Ok(_) => {
                shared.acknowledged.store(step, Ordering::SeqCst);
                deadline = Instant::now() + PATIENCE;
                continue;
            }
            Err(ClientError::Transport(TransportError::Lost(_))) => {}
            Err(ClientError::UpgradeRequired(floor)) => {
                device.upgrade_schema(schema(floor.required));
            }
            Err(error) if error.code() == Some("sync.schema_not_ready") => {
                assert!(error.retryable());
                if let ClientError::Transport(TransportError::Refused { status, .. }) = &error {
                    assert_eq!(*status, 503);
                }
                shared.refused.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => panic!("{id}: {error}"),
        }
        assert!(Instant::now() < deadline, "{id} is not served any more");
        breath().await;
    }
}

impl Diary {
    /// Every commit was applied, and stands in the log once.
    pub async fn check(&self, sql: &Sql) {
        assert_eq!(self.device.pending().count(), 0);
        let id = self.device.client_id();
        let logged = sql
            .rows(&format!(
                "SELECT client_commit_id, count(*) FROM sync_commits
                 WHERE client_id='{id}' GROUP BY client_commit_id"
            ))
            .await;
        assert_eq!(logged.len(), self.device.outcomes().len());
        for row in &logged {
            assert_eq!(row[1].as_deref(), Some("1"), "{row:?}");
        }
        for outcome in self.device.outcomes() {
            let (OutcomeStatus::Applied(_) | OutcomeStatus::Cached(_)) = outcome.status else {
                panic!("{outcome:?}");
            };
            let id = Some(outcome.client_commit_id.clone());
            assert!(logged.iter().any(|row| row[0] == id), "{outcome:?} is lost");
        }
    }
}

//! The client itself: configuration, local edits, and the loop of sync rounds.

use std::sync::Arc;

use bytes::Bytes;
use ssp2::{
    ACCEPT_EXTERNAL_ROWS, ACCEPT_INLINE_ROWS, ACCEPT_SIGNED_URLS, Lease, PullHeader, Request,
    RequestFrame, RequestHeader, ScopeLists, WireVersion,
};

use crate::edit::{Edit, EditError};
use crate::error::{ClientError, SchemaFloor};
use crate::outbox::{LocalCommit, Outbox};
use crate::outcome::{Conflict, ConflictPolicy, Outcome, OutcomeStatus, Resolution};
use crate::replica::Replica;
use crate::schema::ClientSchema;
use crate::subscription::SubscriptionState;
use crate::transport::{Transport, TransportError};

/// How a client syncs.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Stable device id, non-empty.
    pub client_id: String,
    /// Wire version it speaks.
    pub wire: WireVersion,
    /// `limitCommits` of every pull, in changes; 0 = the server's default.
    pub limit_commits: i32,
    /// `limitSnapshotRows` of every pull; 0 = the server's default.
    pub limit_snapshot_rows: i32,
    /// `maxSnapshotPages` of every pull; 0 = the server's default.
    pub max_snapshot_pages: i32,
    /// Segment capabilities it advertises (§4.2). SQLite images are not supported.
    pub accept: u8,
    /// Operations pushed per request at most.
    pub max_operations: usize,
    /// What happens to conflicts.
    pub conflicts: ConflictPolicy,
    /// Rounds one [`SyncClient::sync`] runs at most before it gives up.
    pub max_rounds: usize,
}

impl ClientConfig {
    /// Wire 3, the server's own limits, rows segments inline and by reference.
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            wire: WireVersion::V3,
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            accept: ACCEPT_INLINE_ROWS | ACCEPT_EXTERNAL_ROWS,
            max_operations: 500,
            conflicts: ConflictPolicy::Surface,
            max_rounds: 10_000,
        }
    }

    /// The same with another wire version.
    #[must_use]
    pub fn wire(mut self, wire: WireVersion) -> Self {
        self.wire = wire;
        self
    }

    /// The same, following signed URLs too (§5.4).
    #[must_use]
    pub fn signed_urls(mut self) -> Self {
        self.accept |= ACCEPT_SIGNED_URLS;
        self
    }
}

/// What one sync did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncReport {
    /// Requests answered.
    pub rounds: usize,
    /// Commits that reached a final outcome.
    pub settled: usize,
    /// COMMIT frames applied.
    pub commits: usize,
    /// Segments applied.
    pub segments: usize,
    /// Segment references that had expired before their download.
    pub expired_segments: usize,
    /// Log resets run (§2.1).
    pub resets: usize,
    /// Commits still pending, because the server could not serve their result yet.
    pub pending: usize,
}

/// An SSP2 client with its replica, outbox and subscriptions.
#[derive(Debug)]
pub struct SyncClient<T> {
    pub(crate) config: ClientConfig,
    pub(crate) transport: T,
    pub(crate) schema: Arc<ClientSchema>,
    pub(crate) replica: Replica,
    pub(crate) outbox: Outbox,
    pub(crate) subscriptions: Vec<SubscriptionState>,
    pub(crate) log_epoch: Option<String>,
    pub(crate) lease: Option<Lease>,
    pub(crate) latest_schema_version: Option<i32>,
    pub(crate) floor: Option<SchemaFloor>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) conflicts: Vec<Conflict>,
    commits_made: u64,
}

impl<T: Transport> SyncClient<T> {
    /// An empty client.
    pub fn new(config: ClientConfig, schema: ClientSchema, transport: T) -> Self {
        let schema = Arc::new(schema);
        Self {
            config,
            transport,
            replica: Replica::new(Arc::clone(&schema)),
            schema,
            outbox: Outbox::default(),
            subscriptions: Vec::new(),
            log_epoch: None,
            lease: None,
            latest_schema_version: None,
            floor: None,
            outcomes: Vec::new(),
            conflicts: Vec::new(),
            commits_made: 0,
        }
    }

    /// Registers a subscription. Registering the same intent again keeps its
    /// progress (§4.1).
    ///
    /// # Errors
    /// When the table is unknown, or the id stands for another intent.
    pub fn subscribe<'s, V: Into<String>>(
        &mut self,
        id: &str,
        table: &str,
        scopes: impl IntoIterator<Item = (&'s str, Vec<V>)>,
    ) -> Result<(), ClientError> {
        let scopes: ScopeLists = scopes
            .into_iter()
            .map(|(variable, values)| (variable, values.into_iter().map(Into::into).collect()))
            .collect();
        if self.schema.table(table).is_none() {
            return Err(ClientError::UnknownTable(table.to_owned()));
        }
        if let Some(known) = self.subscription(id) {
            return if known.table == table && known.scopes == scopes {
                Ok(())
            } else {
                Err(ClientError::SubscriptionMismatch(id.to_owned()))
            };
        }
        self.subscriptions.push(SubscriptionState::new(
            id.to_owned(),
            table.to_owned(),
            scopes,
            None,
        ));
        Ok(())
    }

    /// The same device over another transport, for example after the server moved.
    pub fn map_transport<U: Transport>(self, map: impl FnOnce(T) -> U) -> SyncClient<U> {
        SyncClient {
            transport: map(self.transport),
            config: self.config,
            schema: self.schema,
            replica: self.replica,
            outbox: self.outbox,
            subscriptions: self.subscriptions,
            log_epoch: self.log_epoch,
            lease: self.lease,
            latest_schema_version: self.latest_schema_version,
            floor: self.floor,
            outcomes: self.outcomes,
            conflicts: self.conflicts,
            commits_made: self.commits_made,
        }
    }

    /// Forgets a subscription and evicts its rows; pending edits stay (§4.8). The
    /// next pull leaves it out, which unregisters it.
    pub fn unsubscribe(&mut self, id: &str) {
        let Some(at) = self.subscriptions.iter().position(|sub| sub.id == id) else {
            return;
        };
        let gone = self.subscriptions.remove(at);
        if let Some(table) = self.schema.index(&gone.table)
            && self.schema.tables()[table].can_match(&gone.effective_scopes)
        {
            self.replica.purge(table, &gone.effective_scopes);
        }
        self.replica.replay(self.outbox.iter());
    }

    /// Records edits as one atomic commit and shows them at once. Returns the
    /// commit's id.
    ///
    /// # Errors
    /// When an edit does not fit the schema; nothing is recorded then.
    pub fn edit(&mut self, edits: impl IntoIterator<Item = Edit>) -> Result<String, EditError> {
        let commit = LocalCommit::record(
            self.next_commit_id(),
            edits.into_iter().collect(),
            &self.schema,
            &self.replica,
            self.config.wire,
        )?;
        Ok(self.enqueue(commit))
    }

    fn next_commit_id(&mut self) -> String {
        self.commits_made += 1;
        format!("{}-{}", self.config.client_id, self.commits_made)
    }

    fn enqueue(&mut self, commit: LocalCommit) -> String {
        let id = commit.client_commit_id.clone();
        self.replica.show(std::iter::once(&commit));
        self.outbox.push(commit);
        id
    }

    /// Settles the open conflict of a commit. Keeping the local side queues the
    /// commit again and returns its new id. `None` when there is no such conflict,
    /// or when the server's side is kept.
    pub fn resolve(&mut self, client_commit_id: &str, resolution: Resolution) -> Option<String> {
        let at = self
            .conflicts
            .iter()
            .position(|open| open.commit.client_commit_id == client_commit_id)?;
        let conflict = self.conflicts.remove(at);
        match resolution {
            Resolution::KeepServer => None,
            Resolution::KeepLocal => {
                let id = self.next_commit_id();
                Some(self.enqueue(conflict.rebased(id)))
            }
        }
    }

    /// Runs rounds until the outbox is empty and every live subscription has
    /// caught up.
    ///
    /// # Errors
    /// The first failure; what was applied before it stays.
    pub async fn sync(&mut self) -> Result<SyncReport, ClientError> {
        let mut report = SyncReport::default();
        loop {
            if report.rounds == self.config.max_rounds {
                return Err(ClientError::NotIdle(report.rounds));
            }
            let again = self.round(&mut report).await?;
            if !again {
                report.pending = self.outbox.len();
                return Ok(report);
            }
        }
    }

    /// [`Self::sync`], started again after each lost request or answer, `attempts`
    /// times at most.
    ///
    /// # Errors
    /// Any failure but a lost request; the last one when all attempts are lost.
    pub async fn sync_through_losses(
        &mut self,
        attempts: usize,
    ) -> Result<SyncReport, ClientError> {
        for _ in 1..attempts {
            match self.sync().await {
                Err(ClientError::Transport(TransportError::Lost(_))) => {}
                done => return done,
            }
        }
        self.sync().await
    }

    /// One request and its answer. Returns whether another round has work to do.
    async fn round(&mut self, report: &mut SyncReport) -> Result<bool, ClientError> {
        if let Some(floor) = self.floor {
            return Err(ClientError::UpgradeRequired(floor));
        }
        let Some((request, pushed)) = self.request() else {
            return Ok(false);
        };
        let body = ssp2::encode_request(&request)
            .map_err(|error| ClientError::Encode(error.to_string()))?;
        let answer = self.transport.round(body).await?;
        report.rounds += 1;
        self.apply(&request, &pushed, answer, report).await
    }

    /// The next request, with the ids of the commits it pushes; `None` when there is
    /// nothing to ask or say.
    fn request(&mut self) -> Option<(Request, Vec<String>)> {
        let acquiring = self.is_acquiring();
        let mut frames = vec![RequestFrame::Header(RequestHeader {
            client_id: self.config.client_id.clone(),
            schema_version: self.schema.version(),
            log_epoch: if self.config.wire >= WireVersion::V2 {
                self.log_epoch.clone()
            } else {
                None
            },
        })];
        let mut pushed = Vec::new();
        // An acquisition carries no push, and only an acquisition pulls nothing.
        if !acquiring {
            self.drop_incompatible();
            for commit in self.outbox.prefix(self.config.max_operations) {
                let Ok(frame) = commit.encode(&self.schema, self.config.wire) else {
                    break;
                };
                pushed.push(commit.client_commit_id.clone());
                frames.push(RequestFrame::PushCommit(frame));
            }
        }
        let live: Vec<_> = self
            .subscriptions
            .iter()
            .filter(|sub| !acquiring && sub.is_live())
            .map(|sub| RequestFrame::Subscription(sub.frame()))
            .collect();
        if pushed.is_empty() && live.is_empty() && !acquiring {
            return None;
        }
        if acquiring || !live.is_empty() {
            frames.push(RequestFrame::PullHeader(PullHeader {
                limit_commits: self.config.limit_commits,
                limit_snapshot_rows: self.config.limit_snapshot_rows,
                max_snapshot_pages: self.config.max_snapshot_pages,
                accept: self.config.accept,
            }));
            frames.extend(live);
        }
        let version = self.config.wire;
        Some((Request { version, frames }, pushed))
    }

    /// Whether the next round only asks for the log epoch (§2.1).
    pub(crate) fn is_acquiring(&self) -> bool {
        self.config.wire >= WireVersion::V2 && self.log_epoch.is_none()
    }

    /// Drops commits the schema cannot express any more (§7.2.1).
    fn drop_incompatible(&mut self) {
        let (schema, wire) = (Arc::clone(&self.schema), self.config.wire);
        let dropped = self
            .outbox
            .take_where(|commit| commit.encode(&schema, wire).is_err());
        self.record_dropped("sync.outbox_incompatible", dropped);
    }

    pub(crate) fn record_dropped(&mut self, code: &'static str, dropped: Vec<LocalCommit>) {
        if dropped.is_empty() {
            return;
        }
        self.outcomes
            .extend(dropped.into_iter().map(|commit| Outcome {
                client_commit_id: commit.client_commit_id.clone(),
                status: OutcomeStatus::Dropped { code, commit },
            }));
        self.replica.replay(self.outbox.iter());
    }

    /// Drops everything received from the server, keeping the outbox (§2.1, §7.4):
    /// the next round bootstraps again.
    pub(crate) fn drop_server_state(&mut self) {
        self.replica = Replica::new(Arc::clone(&self.schema));
        for sub in &mut self.subscriptions {
            sub.restart(true);
        }
        self.replica.replay(self.outbox.iter());
    }

    /// Moves to another schema version (§7.4): the replica starts again from a
    /// bootstrap, the outbox is replayed on top of it.
    pub fn upgrade_schema(&mut self, schema: ClientSchema) {
        self.schema = Arc::new(schema);
        self.floor = None;
        let known = Arc::clone(&self.schema);
        self.subscriptions
            .retain(|sub| known.table(&sub.table).is_some());
        self.drop_server_state();
        self.drop_incompatible();
    }

    /// Sends a request body as it is, past all client state: to probe a server.
    ///
    /// # Errors
    /// As [`Transport::round`].
    pub async fn send_raw(&self, body: Bytes) -> Result<Bytes, TransportError> {
        self.transport.round(body).await
    }

    /// The replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The schema in use.
    pub fn schema(&self) -> &ClientSchema {
        &self.schema
    }

    /// The device id.
    pub fn client_id(&self) -> &str {
        &self.config.client_id
    }

    /// Pending commits, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &LocalCommit> {
        self.outbox.iter()
    }

    /// Final outcomes, oldest first.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The final outcome of a commit.
    pub fn outcome(&self, client_commit_id: &str) -> Option<&OutcomeStatus> {
        self.outcomes
            .iter()
            .find(|outcome| outcome.client_commit_id == client_commit_id)
            .map(|outcome| &outcome.status)
    }

    /// Conflicts nobody has settled yet.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// All registered subscriptions.
    pub fn subscriptions(&self) -> &[SubscriptionState] {
        &self.subscriptions
    }

    /// The subscription of that id.
    pub fn subscription(&self, id: &str) -> Option<&SubscriptionState> {
        self.subscriptions.iter().find(|sub| sub.id == id)
    }

    /// The log epoch last accepted.
    pub fn log_epoch(&self) -> Option<&str> {
        self.log_epoch.as_deref()
    }

    /// The auth lease last received (§7.3).
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The newest schema version the server has told of.
    pub fn latest_schema_version(&self) -> Option<i32> {
        self.latest_schema_version
    }

    /// The schema floor that stopped this client, if one did.
    pub fn schema_floor(&self) -> Option<SchemaFloor> {
        self.floor
    }
}

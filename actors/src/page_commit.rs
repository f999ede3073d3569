//! One page of a backfill through the partition (migrations.md rule 5): decided like a
//! push of the server itself, written in one transaction with its checkpoint's advance.
//!
//! It is a batch of its own, so it is serialized with the pushes, meets the same CAS, and
//! leaves the same trace in memory and with the observer.

mod deciding;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use ssp2::{ErrorCode, OperationOutcome, OperationResult, PushCommit, SyncError};
use tidegate_engine::CommitSeq;
use tidegate_engine::backfill::page::{BackfillPage, RowChange};
use tidegate_engine::model::{
    CommitBatch, Fetched, LoggedCommit, Needs, PageAdvance, ResultLookup, RowKey, RowState,
    StoredPushResult,
};
use tidegate_engine::push::{Candidate, Decision, Step};
use tidegate_store::{CommitError, StoreError, error_chain};
use tokio::sync::oneshot;

use crate::access::Access;
use crate::batch::{self, Abandoned, Finish};
use crate::error::PushError;
use crate::failpoint::failpoint;
use crate::group_commit::pause_before;
use crate::partition::Partition;
use crate::resolve::{self, Fate};
use crate::service::Service;
use crate::standing::Standing;
use crate::view::Missing;
use deciding::Deciding;

/// What became of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageOutcome {
    /// It is durable, and the checkpoint advanced.
    Committed {
        /// Its commit; `None` = nothing was left to write.
        seq: Option<CommitSeq>,
    },
    /// It was durable before: nothing was written now.
    AlreadyDone,
    /// Its owner was superseded: nothing was written.
    Superseded,
    /// A row of it changed since it was planned, and it was to be written whole or not at
    /// all: nothing was written.
    Outdated,
}

/// What is done about a row that changed since its page was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is left out: the log names it again, for it is a source row itself.
    LeaveOut,
    /// The page is planned anew: the log of the sources does not name it.
    PlanAnew,
}

/// A page that waits for its turn.
#[derive(Debug)]
pub(crate) struct QueuedPage {
    pub page: Arc<BackfillPage>,
    pub moved: Moved,
    pub reply: oneshot::Sender<Result<PageOutcome, PushError>>,
}

/// What a page's work left behind.
#[derive(Debug)]
struct Done {
    outcome: Result<PageOutcome, PushError>,
    commits: Vec<Arc<LoggedCommit>>,
    moved_elsewhere: bool,
}

/// Runs a page that the inbox started, answers its worker, then tells the observer.
pub(crate) async fn run(partition: Arc<Partition>, queued: QueuedPage) {
    let _finish = Finish(Arc::clone(&partition));
    let service = &partition.service;
    service.counters.pages.add(1);
    let abandoned = Abandoned::new();
    let work = PageCommit::new(
        Arc::clone(&partition),
        Arc::clone(&queued.page),
        queued.moved,
        abandoned.clone(),
    );
    let task = tokio::spawn(work.run());
    let done = match tokio::time::timeout(service.settings.batch_deadline, task).await {
        Ok(Ok(done)) => done,
        Ok(Err(failure)) => {
            tracing::error!(partition = %partition.id, %failure, "a page failed; the partition restarts");
            recover(&partition, &queued.page).await
        }
        Err(_) => {
            abandoned.set();
            tracing::error!(partition = %partition.id, "a page hangs; the partition restarts");
            recover(&partition, &queued.page).await
        }
    };
    // A worker that is gone is not told.
    let _ = queued.reply.send(done.outcome);
    batch::tell(&partition, &done.commits, done.moved_elsewhere);
}

/// Starts the partition over and finds out what became of the page.
async fn recover(partition: &Arc<Partition>, page: &BackfillPage) -> Done {
    partition.service.counters.restarts.add(1);
    partition.distrust();
    let keys = [page.key.clone()].into_iter().collect();
    let outcome = match resolve::stored_results(partition, keys).await {
        None => Err(PushError::unavailable()),
        Some(found) => match found.get(&page.key) {
            None | Some(ResultLookup::Absent) => Err(PushError::internal()),
            Some(_) => Ok(PageOutcome::AlreadyDone),
        },
    };
    Done {
        outcome,
        commits: Vec::new(),
        moved_elsewhere: true,
    }
}

/// A page at work.
struct PageCommit {
    partition: Arc<Partition>,
    page: Arc<BackfillPage>,
    moved: Moved,
    abandoned: Abandoned,
    standing: Standing,
    generation: u64,
    locked: bool,
}

/// How an attempt went.
enum Attempt<'s> {
    /// This is the transaction and the way to write it.
    Ready(Access<'s>, Arc<CommitBatch>),
    /// Nothing is to be written.
    Answer(PageOutcome),
    /// Somebody else committed meanwhile.
    Overtaken,
}

impl PageCommit {
    fn new(
        partition: Arc<Partition>,
        page: Arc<BackfillPage>,
        moved: Moved,
        abandoned: Abandoned,
    ) -> Self {
        let (known, generation) = partition.take_known();
        Self {
            standing: Standing::new(Arc::clone(&partition), known),
            partition,
            page,
            moved,
            abandoned,
            generation,
            locked: false,
        }
    }

    async fn run(mut self) -> Done {
        let outcome = self.settle().await;
        if !self.abandoned.is_set() {
            let partition = &self.partition;
            let enough = partition.service.settings.quiet_batches;
            partition
                .contention
                .lock()
                .batch_ended(self.standing.sight, enough);
            partition.keep_known(self.standing.view.into_known(), self.generation);
        }
        Done {
            outcome,
            commits: self.standing.commits,
            moved_elsewhere: self.standing.moved_elsewhere,
        }
    }

    async fn settle(&mut self) -> Result<PageOutcome, PushError> {
        let service = Arc::clone(&self.partition.service);
        let abandoned = self.abandoned.clone();
        let mut attempt = 0;
        while attempt < service.settings.commit_attempts {
            pause_before(attempt).await;
            let tried = tokio::select! {
                biased;
                () = abandoned.wait() => return Err(PushError::internal()),
                tried = self.attempt(&service) => tried?,
            };
            let (access, batch) = match tried {
                Attempt::Answer(outcome) => return Ok(outcome),
                Attempt::Overtaken => {
                    if attempt > 0 {
                        self.partition.contention.lock().overtaken();
                    }
                    attempt += 1;
                    continue;
                }
                Attempt::Ready(access, batch) => (access, batch),
            };
            if self.abandoned.is_set() {
                return Err(PushError::internal());
            }
            failpoint("partition.page.before_store");
            let committed = access.commit(Arc::clone(&batch)).await;
            service.note_write(&committed);
            failpoint("partition.page.after_store");
            match committed {
                Ok(()) => return Ok(self.accept(&batch)),
                Err(CommitError::Superseded) => return Ok(PageOutcome::Superseded),
                Err(CommitError::SequenceMoved) => {
                    self.partition.contention.lock().overtaken();
                    self.standing.lost_race();
                }
                Err(CommitError::OutcomeUnknown(source)) => {
                    tracing::warn!(partition = %self.partition.id, source = error_chain(&*source), "a page's outcome is unknown");
                    match resolve::fate(&self.partition, &batch).await {
                        Fate::Durable => {
                            let outcome = self.accept(&batch);
                            // Whoever wrote since then is unknown as well.
                            self.standing.distrust();
                            return Ok(outcome);
                        }
                        Fate::Lost => self.standing.lost_race(),
                        Fate::Unknown => {
                            self.standing.distrust();
                            self.standing.moved_elsewhere = true;
                            return Err(PushError::unavailable());
                        }
                    }
                }
                Err(CommitError::Constraint { key }) => {
                    self.standing.distrust();
                    return Err(self.violated(key.as_ref()));
                }
                Err(refusal) => {
                    self.standing.distrust();
                    return Err(self.standing.refused(refusal));
                }
            }
            attempt += 1;
        }
        tracing::warn!(partition = %self.partition.id, "a page lost every race for the next commit");
        Err(PushError::unavailable())
    }

    /// Looks at what the page finds, decides it, and makes the transaction.
    async fn attempt<'s>(&mut self, service: &'s Arc<Service>) -> Result<Attempt<'s>, PushError> {
        let expected = self.standing.view.position();
        let mut access = self.begin(service).await?;
        let mut needs = Needs::default();
        needs.results.insert(self.page.key.clone());
        needs.rows.extend(self.page.rows().cloned());
        let Some(fetched) = self.supply(&mut access, &needs).await? else {
            return Ok(Attempt::Overtaken);
        };
        if access.is_locked() {
            self.standing.head_is_ours(expected, fetched.max);
        }
        // Before anything else: a page that is there is done, unreadable or not.
        let recorded = fetched
            .results
            .iter()
            .any(|(key, lookup)| *key == self.page.key && *lookup != ResultLookup::Absent);
        if recorded {
            return Ok(Attempt::Answer(PageOutcome::AlreadyDone));
        }
        let versions: HashMap<&RowKey, i64> = fetched
            .rows
            .iter()
            .filter_map(|(key, state)| match state {
                RowState::Present(row) => Some((key, row.server_version)),
                RowState::Absent { .. } => None,
            })
            .collect();
        let is_as_planned =
            |change: &RowChange| versions.get(&change.key).copied() == change.expected_version;
        if self.moved == Moved::PlanAnew && !self.page.changes.iter().all(is_as_planned) {
            return Ok(Attempt::Answer(PageOutcome::Outdated));
        }
        let commit = self
            .page
            .commit(&service.schema, |key| versions.get(key).copied())
            .map_err(|error| {
                tracing::error!(partition = %self.partition.id, %error, "a page does not encode");
                self.impossible("a computed row does not fit its table")
            })?;
        let candidate = Candidate::new(self.partition.id.clone(), fetched.max);
        let batch = match commit {
            None => candidate.into_batch(service.schema.version(), declared(service)),
            Some(commit) => match self
                .decide(service, &mut access, candidate, commit, fetched)
                .await?
            {
                Some(batch) => batch,
                None => return Ok(Attempt::Overtaken),
            },
        };
        Ok(Attempt::Ready(
            access,
            Arc::new(self.with_advance(service, batch)),
        ))
    }

    /// Adds the advance, and the result by which the page is found again: without a record
    /// per operation, for nobody will ask for them.
    fn with_advance(&self, service: &Service, mut batch: CommitBatch) -> CommitBatch {
        let now_ms = service.clock.now_ms();
        // A page that writes nothing stands where the log stood. A stored result names a
        // commit from 1 on, and only a log without any is at 0.
        let at = batch
            .commits
            .last()
            .map_or(batch.expected_max.max(CommitSeq(1)), |commit| commit.seq);
        batch.results = vec![(
            self.page.key.clone(),
            Arc::new(StoredPushResult {
                commit_seq: Some(at),
                recorded_at_ms: Some(now_ms),
                results: vec![OperationResult {
                    op_index: 0,
                    outcome: OperationOutcome::Applied,
                }],
                details: Vec::new(),
            }),
        )];
        batch.advance = Some(PageAdvance {
            name: Arc::clone(&self.page.name),
            to: self.page.advance,
            now_ms,
        });
        batch
    }

    /// Decides the page's commit by the rules of pushes, without the host's.
    async fn decide(
        &mut self,
        service: &Arc<Service>,
        access: &mut Access<'_>,
        candidate: Candidate,
        commit: PushCommit,
        fetched: Fetched,
    ) -> Result<Option<CommitBatch>, PushError> {
        let mut work = Deciding::new(service, &self.page, candidate, commit);
        let mut provided = fetched;
        let mut wanted = work.initial_needs();
        loop {
            let Some(more) = self.supply(access, &wanted).await? else {
                return Ok(None);
            };
            if work.candidate.provide(&provided).is_err() || work.candidate.provide(&more).is_err()
            {
                self.standing.lost_race();
                return Ok(None);
            }
            provided = Fetched {
                max: more.max,
                ..Fetched::default()
            };
            let (step, back) = work.step().await?;
            work = back;
            match step {
                Step::Done(Decision::Applied { .. }) => {
                    return Ok(Some(
                        work.candidate
                            .into_batch(service.schema.version(), declared(service)),
                    ));
                }
                Step::Done(decision) => return Err(self.rejected(&decision)),
                Step::Need(needs) if needs == wanted => {
                    tracing::error!(partition = %self.partition.id, "storage left needs unanswered");
                    return Err(PushError::internal());
                }
                Step::Need(needs) => wanted = needs,
                Step::Failed(error) => return Err(PushError::undecidable(error)),
            }
        }
    }

    async fn begin<'s>(&mut self, service: &'s Service) -> Result<Access<'s>, PushError> {
        if !self.partition.contention.lock().is_pessimistic() {
            return Ok(Access::Free(&*service.store));
        }
        if !std::mem::replace(&mut self.locked, true) {
            service.counters.pessimistic_batches.add(1);
        }
        self.standing.view.forget();
        match Access::locked(&*service.store, &self.partition.id).await {
            Ok(access) => Ok(access),
            Err(error) => Err(self.storage_failed(error)),
        }
    }

    async fn supply(
        &mut self,
        access: &mut Access<'_>,
        needs: &Needs,
    ) -> Result<Option<Fetched>, PushError> {
        match self
            .standing
            .view
            .supply(&self.partition, access, needs)
            .await
        {
            Ok(fetched) => Ok(Some(fetched)),
            Err(Missing::Moved) => {
                self.standing.note_foreign_commit();
                Ok(None)
            }
            Err(Missing::Store(error)) => Err(self.storage_failed(error)),
        }
    }

    fn accept(&mut self, batch: &Arc<CommitBatch>) -> PageOutcome {
        self.standing.view.absorb(batch);
        self.standing.committed(batch.commits.iter().cloned());
        let seq = batch.commits.last().map(|commit| commit.seq);
        PageOutcome::Committed { seq }
    }

    fn storage_failed(&mut self, error: StoreError) -> PushError {
        self.standing.distrust();
        self.standing.refused(error)
    }

    /// The page can never be written as it was computed.
    fn impossible(&self, reason: impl Into<Cow<'static, str>>) -> PushError {
        PushError::undecidable(SyncError::new(ErrorCode::ConstraintViolation, reason))
    }

    fn violated(&self, key: Option<&RowKey>) -> PushError {
        let Some(key) = key else {
            return self.impossible("a constraint of the target table refuses a computed row");
        };
        let table = &self.partition.service.schema.table_at(key.table).name;
        self.impossible(format!(
            "a constraint of table {table} refuses the computed row {}",
            key.row_id
        ))
    }

    fn rejected(&self, decision: &Decision) -> PushError {
        let record = decision.result().and_then(|result| result.results.first());
        let at = record
            .and_then(|record| usize::try_from(record.op_index).ok())
            .and_then(|at| self.page.changes.get(at));
        let code = match record.map(|record| &record.outcome) {
            Some(
                OperationOutcome::Error { code, .. } | OperationOutcome::Conflict { code, .. },
            ) => code.as_str(),
            _ => ErrorCode::IdempotencyCacheMiss.as_str(),
        };
        match at {
            Some(change) => {
                let table = &self
                    .partition
                    .service
                    .schema
                    .table_at(change.key.table)
                    .name;
                let row = &change.key.row_id;
                self.impossible(format!("{table} row {row} is refused: {code}"))
            }
            None => self.impossible(format!("a computed row is refused: {code}")),
        }
    }
}

fn declared(service: &Service) -> tidegate_store::Declared {
    Arc::clone(&service.declared.read())
}

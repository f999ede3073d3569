//! The group commit: reads what a batch needs, decides its commits in order, writes
//! them as one transaction whose compare-and-set proves that nobody else wrote.

mod clients;
mod succession;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::model::{ClientRecord, CommitBatch, Fetched, Needs, RowKey};
use tidegate_engine::push::Decision;
use tidegate_store::{CommitError, Link, Passed, Store, chain, error_chain};

use crate::access::Access;
use crate::batch::{Abandoned, Outcome};
use crate::deciding::{self, Deciding, Place, Progress, Violation};
use crate::error::PushError;
use crate::handover::{Ended, Lead, Ticket};
use crate::partition::Partition;
use crate::request::PushRequest;
use crate::resolve::{self, Fate};
use crate::standing::Standing;
use crate::view::{Adopted, Missing};

/// One commit of the batch.
#[derive(Debug)]
struct Entry {
    place: Place,
    verdict: Option<Result<Decision, PushError>>,
}

/// A batch at work.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    partition: Arc<Partition>,
    requests: Arc<[PushRequest]>,
    /// What was read for the requests before the batch began.
    ahead: Vec<Fetched>,
    /// Write-behind records.
    records: Vec<ClientRecord>,
    records_durable: bool,
    abandoned: Abandoned,
    entries: Vec<Entry>,
    /// Per push: a failure that needs no decision.
    refused: Vec<Option<PushError>>,
    /// Per push: whether its binding is durable (or it has none).
    bound: Vec<bool>,
    standing: Standing,
    generation: u64,
    /// The batch before, while its end is not known.
    before: Option<Before>,
    ticket: Ticket,
    /// Whether what this batch knows is in the handover, or was.
    handed_over: bool,
    /// What the gate saw of the transaction that wrote everything.
    passed: Option<Arc<Passed>>,
    /// Whether an attempt took the lock.
    locked: bool,
}

/// A batch's place among those of its partition.
#[derive(Debug)]
pub(crate) struct Turn {
    pub ticket: Ticket,
    /// Of one that begins beside another one.
    pub lead: Option<Lead>,
}

/// The batch that was being written when this one began.
#[derive(Debug)]
struct Before {
    ended: Ended,
    /// What this one was decided on top of; `None` = it knows nothing yet.
    link: Option<Link>,
}

/// How deciding went.
enum Attempt<'s> {
    /// Everything is decided; this is the transaction and the way to write it.
    Ready(Access<'s>, Arc<CommitBatch>, Vec<Decision>),
    /// Somebody else committed meanwhile.
    Moved,
    /// A push failed by itself; the others are to be decided without it.
    WithoutOne,
    /// Written together they might hide that one of them violates a constraint.
    Apart,
}

/// How a part of the batch ended.
enum Part {
    Settled,
    /// Nothing was written: some row violates a constraint, which the commit of this entry
    /// wrote, if that is known.
    Violated(Violation, Option<usize>),
}

impl GroupCommit {
    pub fn new(
        partition: Arc<Partition>,
        requests: Arc<[PushRequest]>,
        ahead: Vec<Fetched>,
        records: Vec<ClientRecord>,
        turn: Turn,
        abandoned: Abandoned,
    ) -> Self {
        let (known, generation, before) = succession::begin(&partition, turn.lead);
        let entries = requests
            .iter()
            .enumerate()
            .flat_map(|(push, request)| {
                (0..request.commits.len()).map(move |commit| Entry {
                    place: Place { push, commit },
                    verdict: None,
                })
            })
            .collect();
        Self {
            records_durable: records.is_empty(),
            refused: vec![None; requests.len()],
            bound: requests
                .iter()
                .map(|request| request.bind.is_none())
                .collect(),
            standing: Standing::new(Arc::clone(&partition), known),
            passed: None,
            locked: false,
            partition,
            requests,
            ahead,
            records,
            abandoned,
            entries,
            generation,
            before,
            handed_over: false,
            ticket: turn.ticket,
        }
    }

    /// Runs the batch to its end.
    pub async fn run(mut self) -> Outcome {
        // Bindings that the batch before makes are known when it has ended.
        if self.binds() {
            self.follow().await;
        }
        self.refuse_foreign_bindings();
        let failure = match self.settle().await {
            Ok(()) => self.write_clients_alone().await.err(),
            Err(failure) => Some(failure),
        };
        let failure = failure.unwrap_or_else(PushError::internal);
        self.follow().await;
        if !self.abandoned.is_set() {
            let enough = self.partition.service.settings.quiet_batches;
            self.partition
                .contention
                .lock()
                .batch_ended(self.standing.sight, enough);
            // What the next batch has taken over is that one's to keep.
            let known = if self.handed_over {
                self.take_back().map(|given| given.known)
            } else {
                Some(self.standing.view.into_known())
            };
            if let Some(known) = known {
                self.partition.keep_known(known, self.generation);
            }
        }
        let mut answers: Vec<Result<Vec<Decision>, PushError>> = self
            .refused
            .into_iter()
            .zip(self.bound)
            .map(|(refused, bound)| match refused {
                Some(error) => Err(error),
                None if !bound => Err(failure.clone()),
                None => Ok(Vec::new()),
            })
            .collect();
        for entry in self.entries {
            let verdict = entry.verdict.unwrap_or_else(|| Err(failure.clone()));
            let answer = &mut answers[entry.place.push];
            match (answer.as_mut(), verdict) {
                (Ok(decisions), Ok(decision)) => decisions.push(decision),
                (Ok(_), Err(error)) => *answer = Err(error),
                (Err(_), _) => {}
            }
        }
        Outcome {
            answers,
            passed: self.passed,
            commits: self.standing.commits,
            records_durable: self.records_durable,
            moved_elsewhere: self.standing.moved_elsewhere,
        }
    }

    /// Decides and writes everything, splitting where a constraint is violated until the
    /// violating commits stand alone.
    async fn settle(&mut self) -> Result<(), PushError> {
        let mut parts = vec![(0..self.entries.len(), None)];
        while let Some((part, violation)) = parts.pop() {
            let Part::Violated(key, culprit) = self.write_part(part.clone(), violation).await?
            else {
                continue;
            };
            if part.len() == 1 {
                parts.push((part, Some(key)));
                continue;
            }
            // What comes first goes first: log order is queue order.
            let pieces = match culprit.filter(|at| part.contains(at)) {
                Some(at) => [part.start..at, at..at + 1, at + 1..part.end],
                None => {
                    let middle = part.start + part.len() / 2;
                    [part.start..middle, middle..part.end, part.end..part.end]
                }
            };
            let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
            parts.extend(pieces.rev().map(|piece| (piece, None)));
        }
        Ok(())
    }

    /// Writes the undecided commits of `part` as one transaction. With a `violation` the
    /// single commit of the part is rejected for it instead of applied, unless the log
    /// moves: then it is decided afresh.
    async fn write_part(
        &mut self,
        part: Range<usize>,
        mut violation: Option<Violation>,
    ) -> Result<Part, PushError> {
        let service = Arc::clone(&self.partition.service);
        let abandoned = self.abandoned.clone();
        let mut attempt = 0;
        while attempt < service.settings.commit_attempts {
            pause_before(attempt).await;
            let undecided: Vec<usize> = part
                .clone()
                .filter(|at| self.entries[*at].verdict.is_none())
                .collect();
            if undecided.is_empty() {
                return Ok(Part::Settled);
            }
            // A lock must not be held by a batch that nobody waits for, whatever it waits for.
            let decided = tokio::select! {
                biased;
                () = abandoned.wait() => return Err(PushError::internal()),
                decided = self.decide(&*service.store, &undecided, &mut violation) => decided?,
            };
            let (access, batch, decisions) = match decided {
                Attempt::Ready(access, batch, decisions) => (access, batch, decisions),
                Attempt::Moved => {
                    if attempt > 0 {
                        // It happens again: reads are overtaken before the CAS can be.
                        self.partition.contention.lock().overtaken();
                    }
                    attempt += 1;
                    violation = None;
                    continue;
                }
                Attempt::WithoutOne => continue,
                Attempt::Apart => return Ok(Part::Violated(None, None)),
            };
            if batch.commits.is_empty() && batch.results.is_empty() {
                // What it repeats may be what the batch before is still writing.
                if !self.follow().await {
                    continue;
                }
                self.accept(&undecided, decisions, None);
                return Ok(Part::Settled);
            }
            if self.abandoned.is_set() {
                return Err(PushError::internal());
            }
            let (settle, link) = chain();
            let after = self.before.as_ref().and_then(|before| before.link.clone());
            let whole = part.len() == self.entries.len() && violation.is_none();
            if whole && !access.is_locked() {
                self.hand_over(&batch, link);
            }
            let written = access
                .commit_chained(Arc::clone(&batch), after, settle)
                .await;
            service.note_write(&written);
            let stands = self.follow().await;
            if written.is_err() {
                self.withdraw();
            }
            match written {
                Ok(passed) => {
                    if !stands {
                        // It was given up, and stood all the same: what it knew is gone.
                        self.distrust();
                    }
                    self.passed = passed.filter(|_| whole).map(Arc::new);
                    self.accept(&undecided, decisions, Some(&batch));
                    return Ok(Part::Settled);
                }
                // Then whatever became of it came of the batch before.
                Err(CommitError::Unfounded) => violation = None,
                Err(CommitError::SequenceMoved) if !stands => violation = None,
                Err(CommitError::SequenceMoved) => {
                    attempt += 1;
                    violation = None;
                    self.partition.contention.lock().overtaken();
                    self.standing.lost_race();
                }
                Err(CommitError::OutcomeUnknown(source)) => {
                    tracing::warn!(partition = %self.partition.id, source = error_chain(&*source), "a commit's outcome is unknown");
                    match resolve::fate(&self.partition, &batch).await {
                        Fate::Durable => {
                            self.accept(&undecided, decisions, Some(&batch));
                            // Whoever wrote since then is unknown as well.
                            self.distrust();
                            return Ok(Part::Settled);
                        }
                        Fate::Lost => {
                            attempt += 1;
                            violation = None;
                            self.standing.lost_race();
                        }
                        Fate::Unknown => {
                            self.distrust();
                            self.standing.moved_elsewhere = true;
                            return Err(PushError::unavailable());
                        }
                    }
                }
                Err(CommitError::Constraint { key }) if violation.is_none() => {
                    let culprit = key.as_ref().and_then(|key| last_writer(&decisions, key));
                    return Ok(Part::Violated(key, culprit.map(|nth| undecided[nth])));
                }
                Err(refusal @ CommitError::Constraint { .. }) => {
                    // Not even its rejection can be stored: it fails, and nobody else does.
                    self.distrust();
                    let failure = self.standing.refused(refusal);
                    for at in undecided {
                        self.fail_from(self.entries[at].place, &failure);
                    }
                    return Ok(Part::Settled);
                }
                Err(refusal) => {
                    self.distrust();
                    let error = self.standing.refused(refusal);
                    let service = &self.partition.service;
                    return Err(service.explain(&self.partition.id, error).await);
                }
            }
        }
        // Nothing is wrong here: another process writes faster.
        tracing::warn!(partition = %self.partition.id, "lost every race for the next commit");
        Err(PushError::unavailable())
    }

    /// Decides the given commits in order on one consistent picture, and makes the
    /// transaction. Under the lock it may find that the log moved since a `violation` was
    /// met; then that is forgotten.
    async fn decide<'s>(
        &mut self,
        store: &'s dyn Store,
        undecided: &[usize],
        violation: &mut Option<Violation>,
    ) -> Result<Attempt<'s>, PushError> {
        let partition = Arc::clone(&self.partition);
        let service = &partition.service;
        let places: Vec<Place> = undecided.iter().map(|at| self.entries[*at].place).collect();
        let needs = deciding::needs_of(service, &self.requests, &places);
        let pessimistic = self.partition.contention.lock().is_pessimistic();
        if pessimistic {
            // The batch before must not wait for a lock that this one holds.
            self.follow().await;
        }
        let expected = self.standing.view.position();
        let mut access = self.begin(store, pessimistic).await?;
        // Of use once: by then it is in the view, or too old for it.
        let ahead = std::mem::take(&mut self.ahead);
        if !access.is_locked() && self.standing.view.adopt(ahead) == Adopted::Moved {
            self.standing.lost_race();
        }
        let Some(fetched) = self.supply(&mut access, &needs).await? else {
            return Ok(Attempt::Moved);
        };
        if access.is_locked() && !self.standing.head_is_ours(expected, fetched.max) {
            *violation = None;
        }
        let requests = Arc::clone(&self.requests);
        let mut run = Deciding::new(&partition, requests, places, fetched.max);
        let mut fetched = fetched;
        let mut asked = None;
        let (candidate, decisions) = loop {
            if run.provide(&fetched).is_err() {
                self.standing.lost_race();
                return Ok(Attempt::Moved);
            }
            let progress = match &*violation {
                Some(violation) => run.reject(violation.clone()).await,
                None => run.run().await,
            };
            match progress {
                Progress::Done {
                    candidate,
                    decisions,
                } => break (candidate, decisions),
                Progress::Need { deciding, needs } => {
                    run = *deciding;
                    if asked.as_ref() == Some(&needs) {
                        // Asking for the same again would never end.
                        tracing::error!(partition = %partition.id, "storage left needs unanswered");
                        return Err(PushError::internal());
                    }
                    fetched = match self.supply(&mut access, &needs).await? {
                        Some(fetched) => fetched,
                        None => return Ok(Attempt::Moved),
                    };
                    asked = Some(needs);
                }
                Progress::Failed { at, error } => {
                    // The rest of the batch is decided without it.
                    let error = error.map_or_else(PushError::internal, PushError::undecidable);
                    let error = service.explain(&self.partition.id, error).await;
                    self.fail_from(self.entries[undecided[at]].place, &error);
                    return Ok(Attempt::WithoutOne);
                }
            }
        };
        if undecided.len() > 1 && candidate.may_hide_a_collision() {
            return Ok(Attempt::Apart);
        }
        let declared = Arc::clone(&service.declared.read());
        let mut batch = candidate.into_batch(service.schema.version(), declared);
        batch.clients = self.clients(undecided);
        Ok(Attempt::Ready(access, Arc::new(batch), decisions))
    }

    /// Opens the way to the database; holding the partition, everything is read afresh.
    async fn begin<'s>(
        &mut self,
        store: &'s dyn Store,
        pessimistic: bool,
    ) -> Result<Access<'s>, PushError> {
        if !pessimistic {
            return Ok(Access::Free(store));
        }
        if !std::mem::replace(&mut self.locked, true) {
            self.partition.service.counters.pessimistic_batches.add(1);
        }
        self.standing.view.forget();
        match Access::locked(store, &self.partition.id).await {
            Ok(access) => Ok(access),
            Err(error) => {
                self.distrust();
                Err(self.standing.refused(error))
            }
        }
    }

    async fn supply(
        &mut self,
        access: &mut Access<'_>,
        needs: &Needs,
    ) -> Result<Option<Fetched>, PushError> {
        if self.before.is_some() && self.standing.view.lacks(needs) {
            self.follow().await;
        }
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
            Err(Missing::Store(error)) => {
                self.distrust();
                let error = self.standing.refused(error);
                let service = &self.partition.service;
                Err(service.explain(&self.partition.id, error).await)
            }
        }
    }

    /// Takes over what is durable now.
    fn accept(
        &mut self,
        entries: &[usize],
        decisions: Vec<Decision>,
        batch: Option<&Arc<CommitBatch>>,
    ) {
        if let Some(batch) = batch {
            if !self.handed_over {
                self.standing.view.absorb(batch);
            }
            let commits = decisions.iter().filter_map(Decision::commit).cloned();
            self.standing.committed(commits);
            let pushes: Vec<usize> = entries
                .iter()
                .map(|at| self.entries[*at].place.push)
                .collect();
            self.clients_written(pushes);
        }
        for (at, decision) in entries.iter().zip(decisions) {
            self.entries[*at].verdict = Some(Ok(decision));
        }
    }

    /// Fails a push from one of its commits on: the server could not decide it. What the
    /// push holds before that commit is decided all the same.
    fn fail_from(&mut self, place: Place, error: &PushError) {
        tracing::error!(partition = %self.partition.id, %error, "a commit cannot be decided");
        for entry in &mut self.entries {
            let later = entry.place.push == place.push && entry.place.commit >= place.commit;
            if later && entry.verdict.is_none() {
                entry.verdict = Some(Err(error.clone()));
            }
        }
    }

    fn distrust(&mut self) {
        self.withdraw();
        self.standing.distrust();
    }
}

/// The last of the decisions whose commit wrote the row.
fn last_writer(decisions: &[Decision], key: &RowKey) -> Option<usize> {
    decisions.iter().rposition(|decision| {
        let changes = decision.commit().map(|commit| &commit.changes);
        changes.is_some_and(|changes| changes.iter().any(|change| change.key == *key))
    })
}

/// Lets a foreign writer finish before a later attempt; the first two follow at once.
pub(crate) async fn pause_before(attempt: u32) {
    if attempt > 1 {
        let millis = 1_u64 << attempt.min(6);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

//! One batch of pushes from the queue to its answers.
//!
//! The work itself ([`GroupCommit`]) runs in a task of its own, watched from here: if it
//! panics or hangs, everything it knew is thrown away and its callers are answered from
//! what the database says became of their commits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::model::{LoggedCommit, ResultKey, ResultLookup};
use tidegate_store::Passed;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::error::PushError;
use crate::group_commit::GroupCommit;
use crate::group_commit::Turn;
use crate::handover::{Ended, Lead};
use crate::inbox::QueuedPush;
use crate::partition::Partition;
use crate::request::{Decisions, PushRequest, Pushed};
use crate::resolve;

pub(crate) use crate::view::Known;

/// What became of a batch.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// One per push.
    pub answers: Vec<Result<Decisions, PushError>>,
    /// What the gate saw of the transaction that wrote all of them.
    pub passed: Option<Arc<Passed>>,
    /// Commits that became durable, in order.
    pub commits: Vec<Arc<LoggedCommit>>,
    /// Whether the write-behind client records became durable.
    pub records_durable: bool,
    /// Whether the log moved by commits that are not in `commits`.
    pub moved_elsewhere: bool,
}

/// Tells a batch's task that nobody waits for it any more.
#[derive(Debug, Clone)]
pub(crate) struct Abandoned(Arc<watch::Sender<bool>>);

impl Abandoned {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }
    /// Ready once it is set.
    pub async fn wait(&self) {
        // The sender lives as long as `self`: the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
    pub fn set(&self) {
        self.0.send_replace(true);
    }
}

/// Opens the inbox for the next batch, whatever happened to this one.
pub(crate) struct Finish(pub Arc<Partition>);

impl Drop for Finish {
    fn drop(&mut self) {
        let more = self.0.inbox.finish();
        if more || self.0.ledger.has_pending() {
            self.0.wake();
        }
    }
}

/// Runs a batch that the inbox started, answers its pushes, then tells the observer; with
/// a `lead` beside the batch before it.
pub(crate) async fn run(partition: Arc<Partition>, pushes: Vec<QueuedPush>, lead: Option<Lead>) {
    let _finish = Finish(Arc::clone(&partition));
    let (_running, ended) = Ended::new();
    let ticket = partition.handover.begin(ended);
    let (mut requests, mut ahead, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for push in pushes {
        requests.push(push.request);
        ahead.extend(push.ahead);
        waiting.push((push.reply, push.permit));
    }
    let requests: Arc<[PushRequest]> = requests.into();
    let service = &partition.service;
    if !requests.is_empty() {
        let commits = requests.iter().map(|request| request.commits.len()).sum();
        service.counters.batches.add(1);
        if lead.as_ref().is_some_and(|lead| lead.given.is_some()) {
            service.counters.batches_ahead.add(1);
        }
        service.counters.pushes.add(requests.len());
        service.counters.commits.add(commits);
    }
    let (delay, many) = (service.settings.flush_delay, service.settings.flush_clients);
    let takes_records = requests.is_empty() || partition.ledger.is_due(delay, many);
    let records = match takes_records {
        true => partition.ledger.begin_write(many),
        false => None,
    };
    let writes_records = records.is_some();

    let abandoned = Abandoned::new();
    let before = lead.as_ref().map(|lead| lead.before.clone());
    let work = GroupCommit::new(
        Arc::clone(&partition),
        Arc::clone(&requests),
        ahead,
        records.unwrap_or_default(),
        Turn { ticket, lead },
        abandoned.clone(),
    );
    let task = tokio::spawn(work.run());
    let outcome = match in_time(task, before, service.settings.batch_deadline).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(failure)) => {
            tracing::error!(partition = %partition.id, %failure, "a batch failed; the partition restarts");
            recover(&partition, &requests).await
        }
        Err(_) => {
            // Not aborted: dropping it would not stop what the database does for it. It
            // gives up what it holds by itself, unless its commit is under way.
            abandoned.set();
            tracing::error!(partition = %partition.id, "a batch hangs; the partition restarts");
            recover(&partition, &requests).await
        }
    };

    if requests.is_empty() && !outcome.records_durable {
        service.counters.failed_flushes.add(1);
    }
    if writes_records {
        partition.ledger.end_write(outcome.records_durable);
    }
    service.relieve();
    for ((reply, permit), answer) in waiting.into_iter().zip(outcome.answers) {
        drop(permit);
        // A caller that hung up is not told.
        let passed = outcome.passed.clone();
        let _ = reply.send(answer.map(|decisions| Pushed { decisions, passed }));
    }
    tell(&partition, &outcome.commits, outcome.moved_elsewhere);
}

/// A task's end, unless it takes longer than `deadline`. The time that the batch before
/// takes is not its own.
async fn in_time<T>(
    mut task: JoinHandle<T>,
    before: Option<Ended>,
    deadline: Duration,
) -> Result<Result<T, JoinError>, Elapsed> {
    if let Some(before) = before {
        tokio::select! {
            done = &mut task => return Ok(done),
            () = before.wait() => {}
        }
    }
    timeout(deadline, task).await
}

/// Tells the observer what became durable; it may panic without taking the batch along.
pub(crate) fn tell(partition: &Partition, commits: &[Arc<LoggedCommit>], moved_elsewhere: bool) {
    let observer = &partition.service.observer;
    let told = catch_unwind(AssertUnwindSafe(|| {
        if !commits.is_empty() {
            observer.committed(&partition.id, commits);
        }
        if moved_elsewhere {
            observer.moved_elsewhere(&partition.id);
        }
    }));
    if told.is_err() {
        tracing::error!(partition = %partition.id, "the commit observer panicked");
    }
}

/// Starts the partition over and finds out what became of a failed batch's commits.
async fn recover(partition: &Arc<Partition>, requests: &Arc<[PushRequest]>) -> Outcome {
    partition.service.counters.restarts.add(1);
    partition.distrust();
    let keys = requests.iter().flat_map(result_keys).collect();
    let found = resolve::stored_results(partition, keys).await;
    let answers = requests
        .iter()
        .map(|request| {
            let Some(found) = &found else {
                return Err(PushError::unavailable());
            };
            let decided = !request.commits.is_empty()
                && result_keys(request).all(|key| {
                    found
                        .get(&key)
                        .is_some_and(|lookup| *lookup != ResultLookup::Absent)
                });
            if decided {
                resolve::replay(partition, request, found)
            } else {
                Err(PushError::internal())
            }
        })
        .collect();
    Outcome {
        answers,
        passed: None,
        commits: Vec::new(),
        records_durable: false,
        moved_elsewhere: !requests.is_empty(),
    }
}

fn result_keys(request: &PushRequest) -> impl Iterator<Item = ResultKey> + '_ {
    request.commits.iter().map(|commit| ResultKey {
        client_id: request.client_id.clone(),
        client_commit_id: commit.client_commit_id.as_str().into(),
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn the_time_of_the_batch_before_is_not_the_next_ones() {
        let (running, before) = Ended::new();
        let task = tokio::spawn(pending::<()>());
        let waiting = tokio::spawn(in_time(task, Some(before), Duration::ZERO));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished(), "its time has not begun");
        drop(running);
        assert!(waiting.await.is_ok_and(|timed| timed.is_err()));
    }

    #[tokio::test]
    async fn a_batch_that_ends_before_the_one_before_it_is_done() {
        let (_running, before) = Ended::new();
        let task = tokio::spawn(async { 7 });
        let done = in_time(task, Some(before), Duration::ZERO).await;
        assert!(matches!(done, Ok(Ok(7))));
    }
}

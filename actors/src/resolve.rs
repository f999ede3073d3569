//! What became of commits whose outcome nobody told: the stored results know.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::model::{CommitBatch, Fetched, Needs, ResultKey, ResultLookup};
use tokio::time::{Instant, sleep, timeout_at};

use crate::deciding;
use crate::error::PushError;
use crate::partition::Partition;
use crate::request::{Decisions, PushRequest};

/// Stored results by key.
pub(crate) type Results = HashMap<ResultKey, ResultLookup>;

/// What became of a batch whose COMMIT was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is durable.
    Durable,
    /// It is not; should it still arrive, its CAS or that of the next one fails.
    Lost,
    /// The database did not say in time.
    Unknown,
}

/// Looks up stored results, again and again while storage fails, until the deadline.
pub(crate) async fn stored_results(
    partition: &Arc<Partition>,
    keys: BTreeSet<ResultKey>,
) -> Option<Results> {
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);
    if keys.is_empty() {
        return Some(Results::new());
    }
    let settings = &partition.service.settings;
    let deadline = Instant::now() + settings.resolve_deadline;
    let needs = Arc::new(Needs {
        results: keys,
        ..Needs::default()
    });
    let mut pause = settings.resolve_backoff;
    loop {
        let (store, id) = (Arc::clone(&partition.service.store), partition.id.clone());
        let wanted = Arc::clone(&needs);
        // A task of its own: a store that panics here must not take the callers along.
        let read = tokio::spawn(async move { store.read_needs(&id, &wanted).await });
        match timeout_at(deadline, read).await {
            Ok(Ok(Ok(fetched))) => return Some(fetched.results.into_iter().collect()),
            Ok(failure) => {
                tracing::warn!(partition = %partition.id, ?failure, "an outcome cannot be looked up yet");
            }
            Err(_) => return None,
        }
        if Instant::now() + pause >= deadline {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What became of `batch`: it is durable whole or not at all, so its results say it.
/// Results that differ from ours were stored by somebody else.
pub(crate) async fn fate(partition: &Arc<Partition>, batch: &CommitBatch) -> Fate {
    let keys = batch.results.iter().map(|(key, _)| key.clone()).collect();
    let Some(found) = stored_results(partition, keys).await else {
        return Fate::Unknown;
    };
    let ours = batch.results.iter().all(
        |(key, mine)| matches!(found.get(key), Some(ResultLookup::Found(stored)) if stored == mine),
    );
    if ours { Fate::Durable } else { Fate::Lost }
}

/// The answer to a push all of whose commits have stored results.
pub(crate) fn replay(
    partition: &Partition,
    request: &PushRequest,
    results: &Results,
) -> Result<Decisions, PushError> {
    let fetched = Fetched {
        results: results
            .iter()
            .map(|(key, lookup)| (key.clone(), lookup.clone()))
            .collect(),
        ..Fetched::default()
    };
    deciding::replay(partition, request, &fetched).ok_or_else(PushError::internal)
}

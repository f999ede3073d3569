//! Runs the engine's push decisions: in place when there is little to decide, on a
//! blocking thread when there is much or when host rules take part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ssp2::SyncError;
use tidegate_engine::CommitSeq;
use tidegate_engine::model::{Fetched, Needs, RowKey};
use tidegate_engine::push::{
    Candidate, Decision, Moved, PushEnv, PushHooks, PushInput, Step, decide, initial_needs,
    reject_constraint,
};

use crate::partition::Partition;
use crate::request::{Decisions, PushRequest};
use crate::service::Service;

/// Where a commit stands in its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of its push.
    pub push: usize,
    /// Index in the push.
    pub commit: usize,
}

/// A run of commits being decided in order on one candidate.
pub(crate) struct Deciding {
    service: Arc<Service>,
    requests: Arc<[PushRequest]>,
    places: Vec<Place>,
    operations: usize,
    now_ms: i64,
    candidate: Candidate,
    decisions: Decisions,
}

/// How far deciding got.
pub(crate) enum Progress {
    /// Everything is decided.
    Done {
        candidate: Box<Candidate>,
        decisions: Decisions,
    },
    /// It goes on when this is known.
    Need {
        deciding: Box<Deciding>,
        needs: Needs,
    },
    /// The commit `at` that place of the run cannot be decided.
    Failed { at: usize, error: Option<SyncError> },
}

/// What a single commit is rejected for: the row that violates a constraint, if known.
pub(crate) type Violation = Option<RowKey>;

impl Deciding {
    pub fn new(
        partition: &Partition,
        requests: Arc<[PushRequest]>,
        places: Vec<Place>,
        max: CommitSeq,
    ) -> Self {
        let service = Arc::clone(&partition.service);
        Self {
            now_ms: service.clock.now_ms(),
            candidate: Candidate::new(partition.id.clone(), max),
            decisions: Vec::with_capacity(places.len()),
            operations: places
                .iter()
                .map(|place| input(&requests, *place).commit.operations.len())
                .sum(),
            service,
            requests,
            places,
        }
    }

    /// Hands in what was read.
    pub fn provide(&mut self, fetched: &Fetched) -> Result<(), Moved> {
        self.candidate.provide(fetched)
    }

    /// Decides on, from where it stopped.
    pub async fn run(self) -> Progress {
        self.place_work(Self::advance).await
    }

    /// Rejects the run's single commit for a constraint of the database.
    pub async fn reject(self, violation: Violation) -> Progress {
        self.place_work(move |mut run| {
            // Its stored result, or anything it still has to know, comes first.
            let place = run.places[0];
            let hooks = Arc::clone(&run.service.hooks);
            let schema = Arc::clone(&run.service.schema);
            let env = env(&schema, &hooks, &run);
            let push = input(&run.requests, place);
            let decision = reject_constraint(&env, &mut run.candidate, &push, violation.as_ref());
            run.decisions.push(decision);
            Progress::Done {
                candidate: Box::new(run.candidate),
                decisions: run.decisions,
            }
        })
        .await
    }

    /// Much work, and host rules of unknown cost, stay off the actors' threads.
    async fn place_work(self, work: impl FnOnce(Self) -> Progress + Send + 'static) -> Progress {
        let heavy = self.operations > self.service.settings.inline_operations
            || has_rules(&self.service.hooks);
        if !heavy {
            return work(self);
        }
        match tokio::task::spawn_blocking(move || work(self)).await {
            Ok(progress) => progress,
            Err(failure) if failure.is_panic() => std::panic::resume_unwind(failure.into_panic()),
            // The runtime stops.
            Err(_) => Progress::Failed { at: 0, error: None },
        }
    }

    fn advance(mut self) -> Progress {
        let (schema, hooks) = (
            Arc::clone(&self.service.schema),
            Arc::clone(&self.service.hooks),
        );
        let requests = Arc::clone(&self.requests);
        let env = env(&schema, &hooks, &self);
        while let Some(place) = self.places.get(self.decisions.len()) {
            let push = input(&requests, *place);
            // A panic leaves the candidate half changed; the caller starts a new one.
            let step = catch_unwind(AssertUnwindSafe(|| {
                decide(&env, &mut self.candidate, &push)
            }));
            let error = match step {
                Ok(Step::Done(decision)) => {
                    self.decisions.push(decision);
                    continue;
                }
                Ok(Step::Need(needs)) => {
                    return Progress::Need {
                        deciding: Box::new(self),
                        needs,
                    };
                }
                Ok(Step::Failed(error)) => Some(error),
                Err(_) => None,
            };
            return Progress::Failed {
                at: self.decisions.len(),
                error,
            };
        }
        Progress::Done {
            candidate: Box::new(self.candidate),
            decisions: self.decisions,
        }
    }
}

/// All that the commits at these places are known to need before any is decided.
pub(crate) fn needs_of(service: &Service, requests: &[PushRequest], places: &[Place]) -> Needs {
    let env = PushEnv {
        schema: &service.schema,
        hooks: &service.hooks,
        now_ms: 0,
        cascade_cap: service.settings.cascade_cap,
    };
    let mut needs = Needs::default();
    for place in places {
        let more = initial_needs(&env, &input(requests, *place));
        needs.rows.extend(more.rows);
        needs.results.extend(more.results);
        needs.children.extend(more.children);
    }
    needs
}

/// The decisions of a push all of whose results are in `fetched`; `None` when one is not.
pub(crate) fn replay(
    partition: &Partition,
    request: &PushRequest,
    fetched: &Fetched,
) -> Option<Vec<Decision>> {
    let requests: Arc<[PushRequest]> = Arc::new([request.clone()]);
    let places = (0..request.commits.len())
        .map(|commit| Place { push: 0, commit })
        .collect();
    let mut run = Deciding::new(partition, requests, places, fetched.max);
    run.provide(fetched).ok()?;
    match run.advance() {
        Progress::Done { decisions, .. } => Some(decisions),
        Progress::Need { .. } | Progress::Failed { .. } => None,
    }
}

fn env<'a>(
    schema: &'a tidegate_engine::schema::Schema,
    hooks: &'a PushHooks,
    run: &Deciding,
) -> PushEnv<'a> {
    PushEnv {
        schema,
        hooks,
        now_ms: run.now_ms,
        cascade_cap: run.service.settings.cascade_cap,
    }
}

fn input(requests: &[PushRequest], place: Place) -> PushInput<'_> {
    let request = &requests[place.push];
    PushInput {
        client_id: &request.client_id,
        actor_id: &request.actor_id,
        wire: request.wire,
        allowed: &request.allowed,
        commit: &request.commits[place.commit],
    }
}

fn has_rules(hooks: &PushHooks) -> bool {
    hooks.row_validator.is_some()
        || hooks.crdt_merger.is_some()
        || hooks.blobs.is_some()
        || hooks.commit_validator.is_some()
        || hooks.reactions.is_some()
}

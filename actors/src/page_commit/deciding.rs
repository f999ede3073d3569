//! The decision of a page's commit: the rules of pushes, without the host's.

use std::sync::Arc;

use ssp2::{PushCommit, WireVersion};
use tidegate_engine::ActorId;
use tidegate_engine::backfill::page::{BackfillPage, server_scopes};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::Needs;
use tidegate_engine::push::{
    Candidate, PushEnv, PushHooks, PushInput, Step, decide, initial_needs,
};

use crate::error::PushError;
use crate::service::Service;

/// The actor that the commits of backfills name.
const ACTOR: &str = "backfill";

/// The page's commit being decided; moved to a blocking thread when it is large.
pub(super) struct Deciding {
    service: Arc<Service>,
    page: Arc<BackfillPage>,
    pub candidate: Candidate,
    commit: PushCommit,
    allowed: Allowed,
    hooks: PushHooks,
    actor: ActorId,
    now_ms: i64,
}

impl Deciding {
    pub fn new(
        service: &Arc<Service>,
        page: &Arc<BackfillPage>,
        candidate: Candidate,
        commit: PushCommit,
    ) -> Self {
        let target = page.changes.first().map(|change| change.key.table);
        Self {
            allowed: target.map_or(Allowed::Failed, |table| {
                server_scopes(service.schema.table_at(table))
            }),
            // Merging is how a crdt column is stored at all; every other rule judges clients.
            hooks: PushHooks {
                crdt_merger: service.hooks.crdt_merger.clone(),
                ..PushHooks::default()
            },
            actor: ACTOR.into(),
            now_ms: service.clock.now_ms(),
            service: Arc::clone(service),
            page: Arc::clone(page),
            candidate,
            commit,
        }
    }

    fn with<T>(
        &mut self,
        work: impl FnOnce(&PushEnv<'_>, &mut Candidate, &PushInput<'_>) -> T,
    ) -> T {
        // What references may append is meant for one delete of a client; here are many.
        let operations = u32::try_from(self.commit.operations.len()).unwrap_or(u32::MAX);
        let env = PushEnv {
            schema: &self.service.schema,
            hooks: &self.hooks,
            now_ms: self.now_ms,
            cascade_cap: self.service.settings.cascade_cap.saturating_mul(operations),
        };
        let input = PushInput {
            client_id: &self.page.key.client_id,
            actor_id: &self.actor,
            wire: WireVersion::V3,
            allowed: &self.allowed,
            commit: &self.commit,
        };
        work(&env, &mut self.candidate, &input)
    }

    pub fn initial_needs(&mut self) -> Needs {
        self.with(|env, _, input| initial_needs(env, input))
    }

    pub async fn step(mut self) -> Result<(Step, Self), PushError> {
        let small = self.commit.operations.len() <= self.service.settings.inline_operations;
        let work = move || {
            let step = self.with(decide);
            (step, self)
        };
        if small {
            return Ok(work());
        }
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => Ok(done),
            Err(failure) if failure.is_panic() => std::panic::resume_unwind(failure.into_panic()),
            // The runtime stops.
            Err(_) => Err(PushError::unavailable()),
        }
    }
}

//! The operators' endpoint: partitions, backfill checkpoints, fences, migrations,
//! grants and maintenance over HTTP (docs/control.md).
//!
//! A route only reads its request and asks the `Operator`, an actor; every
//! question is a typed message, a `Command` with its answer. A caller that hangs up
//! cancels nothing: the actor carries the command to its end.

mod auth;
mod checkpoints;
mod clients;
mod draining;
mod errors;
mod fences;
mod grants;
mod holds;
mod input;
mod listener;
mod maintenance;
mod migration;
mod openapi;
mod partitions;
mod routes;
mod rows;
pub mod test_hooks;
mod workers;

/// Method and path of every route, those for tests included.
#[cfg(test)]
pub(crate) fn documented_routes() -> Vec<(String, String)> {
    routes::all(true)
        .into_iter()
        .flat_map(|resource| {
            let methods = resource.methods.into_iter();
            methods.map(move |(method, _)| (method.to_string(), resource.path.to_owned()))
        })
        .collect()
}

use std::fmt;
use std::sync::{Arc, OnceLock};

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture};
use actix_web::web::{Data, Json};
use tidegate_actors::backfill::Backfills;
use tidegate_actors::{Clock, Coordinator, Directory};
use tidegate_engine::PartitionId;
use tidegate_engine::schema::Schema;
use tidegate_store::Store;
use tidegate_store::operating::PartitionSummary;

pub use auth::{Token, generate as generate_token};
pub use errors::ControlError;
pub use listener::{Bound, Release, serve};

use crate::auth::grants::Grants;
use errors::ControlCode;
use holds::Holds;
use test_hooks::TestHooks;

/// What commands work with. Unlike requests of clients they see past the serve gate.
pub struct Parts {
    /// Storage.
    pub store: Arc<dyn Store>,
    /// Partition actors.
    pub directory: Directory,
    /// Served schema.
    pub schema: Arc<Schema>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// How the database stands to the schema.
    pub coordinator: Coordinator,
    /// The workers of backfills; empty until the database is prepared.
    pub backfills: Arc<OnceLock<Backfills>>,
    /// The resolver that reads grants, where grants are what counts.
    pub grants: Option<Arc<Grants>>,
    /// What tests may turn; `None` outside of them.
    pub test_hooks: Option<Arc<TestHooks>>,
}

/// What a running endpoint keeps beside its parts.
pub(crate) struct Station {
    parts: Parts,
    holds: Holds,
}

impl Station {
    /// A partition that the database knows.
    async fn known(&self, partition: &PartitionId) -> Result<PartitionSummary, ControlError> {
        self.parts
            .store
            .summarize_partition(partition)
            .await?
            .ok_or_else(|| ControlCode::UnknownPartition.into())
    }
}

/// A message of the control endpoint.
pub(crate) trait Command: fmt::Debug + Send + Sync + 'static {
    /// Its name in the log.
    const NAME: &'static str;
    /// Whether it changes anything; then the log keeps it.
    const CHANGES: bool;
    /// What it answers.
    type Answer: Send + 'static;

    /// Carries it out.
    fn run(
        self,
        station: &Station,
    ) -> impl Future<Output = Result<Self::Answer, ControlError>> + Send;
}

/// The actor that carries out commands.
pub(crate) struct Operator {
    station: Arc<Station>,
}

impl Actor for Operator {
    type Context = Context<Self>;
}

/// A command on its way to the [`Operator`].
#[derive(Debug)]
struct Ask<C>(C);

impl<C: Command> Message for Ask<C> {
    type Result = Result<C::Answer, ControlError>;
}

impl<C: Command> Handler<Ask<C>> for Operator {
    type Result = ResponseFuture<Result<C::Answer, ControlError>>;

    fn handle(&mut self, Ask(command): Ask<C>, _: &mut Context<Self>) -> Self::Result {
        let station = Arc::clone(&self.station);
        Box::pin(async move {
            let told = C::CHANGES.then(|| format!("{command:?}"));
            let done = command.run(&station).await;
            if let Some(command) = told {
                match &done {
                    Ok(_) => tracing::info!(command, "an operator's command was carried out"),
                    Err(error) => tracing::warn!(
                        command,
                        code = error.code(),
                        "an operator's command was refused"
                    ),
                }
            }
            if let Err(error) = &done
                && let Some(cause) = error.cause()
            {
                tracing::error!(command = C::NAME, cause, "an operator's command failed");
            }
            done
        })
    }
}

/// What a route answers.
pub(crate) type Answer<T> = Result<Json<T>, ControlError>;

/// The operator as routes hold it.
pub(crate) type OperatorData = Data<Addr<Operator>>;

/// Sends a command and waits for its answer.
pub(crate) async fn ask<C: Command>(operator: &Addr<Operator>, command: C) -> Answer<C::Answer> {
    operator
        .send(Ask(command))
        .await
        .unwrap_or_else(|_| Err(ControlCode::Stopping.into()))
        .map(Json)
}

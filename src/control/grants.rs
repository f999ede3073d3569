//! What actors may see and write (`tidegate_grants`).

use std::collections::BTreeMap;

use actix_web::web::Path;
use serde::{Deserialize, Serialize};
use ssp2::ScopeLists;
use tidegate_engine::{ActorId, PartitionId, scopes};
use tidegate_store::operating::Grant;
use utoipa::ToSchema;

use super::errors::{ControlCode, invalid};
use super::input::{Body, name, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

/// An actor's grant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GrantView {
    partition: String,
    actor: String,
    /// Allowed values by scope variable; `*` is any value.
    scopes: BTreeMap<String, Vec<String>>,
    /// Epoch milliseconds of the last change.
    updated_at_ms: i64,
    /// Whether this server asks grants at all (`auth.scopes = "grants"`).
    in_force: bool,
}

impl GrantView {
    fn of(partition: &PartitionId, grant: Grant, station: &Station) -> Self {
        Self {
            partition: partition.to_string(),
            actor: grant.actor.to_string(),
            scopes: grant
                .scopes
                .iter()
                .map(|(variable, values)| (variable.to_owned(), values.clone()))
                .collect(),
            updated_at_ms: grant.updated_at_ms,
            in_force: station.parts.grants.is_some(),
        }
    }
}

fn who(path: Path<(String, String)>) -> Result<(PartitionId, ActorId), ControlError> {
    let (p, actor) = path.into_inner();
    Ok((partition(p)?, name("actor", actor)?.into()))
}

#[derive(Debug)]
struct ReadGrant(PartitionId, ActorId);

impl Command for ReadGrant {
    const NAME: &'static str = "read a grant";
    const CHANGES: bool = false;
    type Answer = GrantView;

    async fn run(self, station: &Station) -> Result<GrantView, ControlError> {
        let Self(partition, actor) = self;
        let grant = station.parts.store.read_grant(&partition, &actor).await?;
        let grant = grant.ok_or(ControlCode::NoGrant)?;
        Ok(GrantView::of(&partition, grant, station))
    }
}

/// An actor's grant
#[utoipa::path(get, path = "/control/v1/partitions/{p}/grants/{actor}",
    params(("p" = String, Path, description = "Partition"), ("actor" = String, Path, description = "Actor")),
    responses((status = 200, body = GrantView)))]
pub(crate) async fn read_grant(
    operator: OperatorData,
    path: Path<(String, String)>,
) -> Answer<GrantView> {
    let (partition, actor) = who(path)?;
    ask(&operator, ReadGrant(partition, actor)).await
}

/// What to grant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrantBody {
    /// Allowed values by scope variable; `*` is any value.
    scopes: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
struct PutGrant {
    partition: PartitionId,
    actor: ActorId,
    scopes: ScopeLists,
}

impl Command for PutGrant {
    const NAME: &'static str = "put a grant";
    const CHANGES: bool = true;
    type Answer = GrantView;

    async fn run(self, station: &Station) -> Result<GrantView, ControlError> {
        let parts = &station.parts;
        if scopes::validate_allowed(&parts.schema, &self.scopes).is_err() {
            return Err(invalid("scopes", "scope variables of the schema"));
        }
        let grant = Grant {
            actor: self.actor,
            scopes: self.scopes,
            updated_at_ms: parts.clock.now_ms(),
        };
        let stored = parts.store.put_grant(&self.partition, &grant).await;
        // Also after a failure: it may have been stored all the same.
        if let Some(grants) = &parts.grants {
            grants.forget(&self.partition, &grant.actor);
        }
        stored?;
        Ok(GrantView::of(&self.partition, grant, station))
    }
}

/// Create or replace an actor's grant; the partition need not exist yet
#[utoipa::path(put, path = "/control/v1/partitions/{p}/grants/{actor}",
    params(("p" = String, Path, description = "Partition"), ("actor" = String, Path, description = "Actor")),
    request_body = GrantBody, responses((status = 200, body = GrantView)))]
pub(crate) async fn put_grant(
    operator: OperatorData,
    path: Path<(String, String)>,
    Body(body): Body<GrantBody>,
) -> Answer<GrantView> {
    let (partition, actor) = who(path)?;
    let command = PutGrant {
        partition,
        actor,
        scopes: body.scopes.into_iter().collect(),
    };
    ask(&operator, command).await
}

/// A grant that is gone.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GrantGone {
    partition: String,
    actor: String,
    deleted: bool,
}

#[derive(Debug)]
struct DeleteGrant(PartitionId, ActorId);

impl Command for DeleteGrant {
    const NAME: &'static str = "delete a grant";
    const CHANGES: bool = true;
    type Answer = GrantGone;

    async fn run(self, station: &Station) -> Result<GrantGone, ControlError> {
        let Self(partition, actor) = self;
        let deleted = station.parts.store.delete_grant(&partition, &actor).await;
        if let Some(grants) = &station.parts.grants {
            grants.forget(&partition, &actor);
        }
        if !deleted? {
            return Err(ControlCode::NoGrant.into());
        }
        Ok(GrantGone {
            partition: partition.to_string(),
            actor: actor.to_string(),
            deleted: true,
        })
    }
}

/// Take an actor's grant away
#[utoipa::path(delete, path = "/control/v1/partitions/{p}/grants/{actor}",
    params(("p" = String, Path, description = "Partition"), ("actor" = String, Path, description = "Actor")),
    responses((status = 200, body = GrantGone)))]
pub(crate) async fn delete_grant(
    operator: OperatorData,
    path: Path<(String, String)>,
) -> Answer<GrantGone> {
    let (partition, actor) = who(path)?;
    ask(&operator, DeleteGrant(partition, actor)).await
}

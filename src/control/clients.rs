//! The devices that sync in a partition.

use actix_web::web::Path;
use serde::Serialize;
use tidegate_engine::PartitionId;
use tidegate_engine::model::ClientRecord;
use utoipa::ToSchema;

use super::input::{Page, PageQuery, Query, partition};
use super::{Answer, Command, ControlError, OperatorData, Station, ask};

/// A device that syncs in a partition.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientView {
    client: String,
    /// The actor it is bound to.
    actor: String,
    /// Wire version of its last request.
    wire_version: u16,
    /// Its lowest cursor over all subscriptions; null before its first pull.
    cursor: Option<i64>,
    subscriptions: usize,
    /// Epoch milliseconds of its last request.
    updated_at_ms: i64,
}

impl From<ClientRecord> for ClientView {
    fn from(record: ClientRecord) -> Self {
        Self {
            client: record.client_id.to_string(),
            actor: record.actor_id.to_string(),
            wire_version: record.wire_version as u16,
            cursor: Some(record.cursor).filter(|&cursor| cursor >= 0),
            subscriptions: record.subscriptions.len(),
            updated_at_ms: record.updated_at_ms,
        }
    }
}

/// A page of clients, by id.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClientPage {
    clients: Vec<ClientView>,
    /// The `after` of the next page; null at the end.
    next: Option<String>,
}

#[derive(Debug)]
struct ListClients {
    partition: PartitionId,
    page: Page,
}

impl Command for ListClients {
    const NAME: &'static str = "list clients";
    const CHANGES: bool = false;
    type Answer = ClientPage;

    async fn run(self, station: &Station) -> Result<ClientPage, ControlError> {
        let Page { after, limit } = self.page;
        station.known(&self.partition).await?;
        let mut found = station.parts.store.list_clients(&self.partition).await?;
        if let Some(after) = after {
            found.retain(|record| record.client_id.as_str() > after.as_str());
        }
        found.sort_unstable_by(|a, b| a.client_id.cmp(&b.client_id));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more);
        Ok(ClientPage {
            next: next.map(|last| last.client_id.to_string()),
            clients: found.into_iter().map(ClientView::from).collect(),
        })
    }
}

/// The clients of a partition, as the database has them: a few hundred milliseconds late
#[utoipa::path(get, path = "/control/v1/partitions/{p}/clients",
    params(("p" = String, Path, description = "Partition"), PageQuery),
    responses((status = 200, body = ClientPage)))]
pub(crate) async fn list_clients(
    operator: OperatorData,
    path: Path<String>,
    Query(page): Query<PageQuery>,
) -> Answer<ClientPage> {
    let command = ListClients {
        partition: partition(path.into_inner())?,
        page: page.check()?,
    };
    ask(&operator, command).await
}

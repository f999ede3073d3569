//! What is remembered of a client after a successful round (§4.1, §4.5, §8.1).

use ssp2::{ScopeLists, WireVersion};

use crate::ids::{ActorId, ClientId, CommitSeq};
use crate::model::{ClientRecord, RegisteredSubscription};

/// How a pull left one subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubOutcome {
    /// Client-chosen id.
    pub id: String,
    /// Table.
    pub table: String,
    /// Effective scopes and next cursor while active; `None` = revoked or reset.
    pub active: Option<(ScopeLists, CommitSeq)>,
}

/// Who a round came from, and when it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Device.
    pub client_id: ClientId,
    /// Actor.
    pub actor_id: ActorId,
    /// Wire version of the request.
    pub wire_version: WireVersion,
    /// Epoch milliseconds.
    pub now_ms: i64,
}

/// The client record after a round. `pulled` is `None` for a request without a
/// PULL_HEADER, which leaves registrations and cursor alone.
///
/// A pull replaces the registrations: what it omits is unregistered, and so is
/// what is no longer active. The cursor becomes the minimum over active
/// subscriptions; without any, the old one stays, or −1. Keys that another server
/// stored in a registration are kept while its id is.
pub fn client_record_after(
    old: Option<&ClientRecord>,
    identity: Identity,
    pulled: Option<&[SubOutcome]>,
) -> ClientRecord {
    let old_cursor = old.map_or(-1, |record| record.cursor);
    let old_subscriptions = old.map_or(&[][..], |record| &record.subscriptions);
    let (cursor, subscriptions) = match pulled {
        None => (old_cursor, old_subscriptions.to_vec()),
        Some(outcomes) => {
            let active = outcomes
                .iter()
                .filter_map(|outcome| Some((outcome, outcome.active.as_ref()?)));
            let cursor = active.clone().map(|(_, (_, next))| next.0).min();
            let subscriptions = active
                .map(|(outcome, (scopes, _))| RegisteredSubscription {
                    id: outcome.id.clone(),
                    table: outcome.table.clone(),
                    scopes: scopes.clone(),
                    extra: old_subscriptions
                        .iter()
                        .find(|registered| registered.id == outcome.id)
                        .map(|registered| registered.extra.clone())
                        .unwrap_or_default(),
                })
                .collect();
            (cursor.unwrap_or(old_cursor), subscriptions)
        }
    };
    ClientRecord {
        client_id: identity.client_id,
        actor_id: identity.actor_id,
        wire_version: identity.wire_version,
        cursor,
        subscriptions,
        updated_at_ms: identity.now_ms,
    }
}

//! What a partition is asked for.

use std::sync::Arc;

use ssp2::{PushCommit, WireVersion};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::ClientRecord;
use tidegate_engine::push::Decision;
use tidegate_engine::{ActorId, ClientId};
use tidegate_store::Passed;

/// The push half of one sync request (§6.1).
#[derive(Debug, Clone)]
pub struct PushRequest {
    /// Device.
    pub client_id: ClientId,
    /// Authenticated actor.
    pub actor_id: ActorId,
    /// Wire version of the request.
    pub wire: WireVersion,
    /// What the host's resolver allows the actor.
    pub allowed: Allowed,
    /// The commits, in request order.
    pub commits: Vec<PushCommit>,
    /// Set when the database knew no record of the client: binds the client id to the
    /// actor (§1.5) in the transaction of these commits.
    pub bind: Option<ClientRecord>,
}

/// One decision per commit, in request order.
pub type Decisions = Vec<Decision>;

/// The answer to a push.
#[derive(Debug)]
pub(crate) struct Pushed {
    pub decisions: Decisions,
    /// What the gate of its own transaction saw, if it told.
    pub passed: Option<Arc<Passed>>,
}

//! What a client remembers of each subscription (§4.1, §4.4).

use ssp2::{ScopeLists, Subscription};

/// A registered subscription and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionState {
    /// Client-chosen id.
    pub id: String,
    /// Table.
    pub table: String,
    /// Requested scopes.
    pub scopes: ScopeLists,
    /// Raw JSON parameters.
    pub params: Option<String>,
    /// Last fully applied commit; -1 = never synced.
    pub cursor: i64,
    /// Opaque resume token while a bootstrap is under way (§4.7).
    pub bootstrap_state: Option<String>,
    /// The last effective scopes the server echoed: what a revocation purges (§3.3).
    pub effective_scopes: ScopeLists,
    /// Whether the subscription still takes part in pulls.
    pub status: SubscriptionStatus,
}

/// Whether a subscription takes part in pulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionStatus {
    /// Pulled in every round.
    Live,
    /// Revoked by the server, its rows purged; not pulled any more.
    Revoked {
        /// The server's reason code.
        reason: String,
    },
    /// The local schema cannot match its scopes to rows: fatal for this
    /// subscription (§3.3, §5.6), not pulled any more.
    Failed {
        /// A code.
        reason: &'static str,
    },
}

impl SubscriptionState {
    pub(crate) fn new(
        id: String,
        table: String,
        scopes: ScopeLists,
        params: Option<String>,
    ) -> Self {
        Self {
            id,
            table,
            scopes,
            params,
            cursor: -1,
            bootstrap_state: None,
            effective_scopes: ScopeLists::new(),
            status: SubscriptionStatus::Live,
        }
    }

    /// Whether the subscription is pulled.
    pub fn is_live(&self) -> bool {
        self.status == SubscriptionStatus::Live
    }

    /// Whether the replica holds all of it, up to its cursor.
    pub fn is_complete(&self) -> bool {
        self.is_live() && self.cursor >= 0 && self.bootstrap_state.is_none()
    }

    /// Forgets all progress; a revocation is forgotten too when `revive` is set.
    pub(crate) fn restart(&mut self, revive: bool) {
        self.cursor = -1;
        self.bootstrap_state = None;
        if revive {
            self.effective_scopes = ScopeLists::new();
            self.status = SubscriptionStatus::Live;
        }
    }

    pub(crate) fn frame(&self) -> Subscription {
        Subscription {
            id: self.id.clone(),
            table: self.table.clone(),
            scopes: self.scopes.clone(),
            params: self.params.clone(),
            cursor: self.cursor,
            bootstrap_state: self.bootstrap_state.clone(),
        }
    }
}

//! What both SQL backends know of a partition once they have read it.

use tidegate_engine::CommitSeq;
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::{ClientRecord, Fetched, LogBounds, Needs, Registry};

use crate::error::StoreError;
use crate::{Preamble, Touch};

/// Bounds and layout floor of a view.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) bounds: LogBounds,
    pub(crate) layout_floor: CommitSeq,
}

/// What reading a preamble found; the registry row may not exist yet.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) view: View,
    pub(crate) gate: GateToken,
    /// With the time of the last authentication, epoch milliseconds.
    pub(crate) registry: Option<(Registry, i64)>,
    pub(crate) client: Option<ClientRecord>,
    /// What the request's commits need, if it was read as well.
    pub(crate) ahead: Option<Fetched>,
}

/// Keys that are read ahead with one statement, at most; whoever's come on top of that
/// are read by their batch.
pub(crate) const AHEAD_KEYS: usize = 4_000;

/// How many keys reading `needs` takes.
pub(crate) fn keys(needs: &Needs) -> usize {
    needs.rows.len() + needs.results.len()
}

impl Found {
    /// Whether the registry row exists and need not be refreshed.
    pub(crate) fn is_fresh(&self, touch: &Touch) -> bool {
        self.registry
            .as_ref()
            .is_some_and(|(_, at)| touch.now_ms.saturating_sub(*at) <= touch.refresh_after_ms)
    }

    /// The preamble and what was read with it, once the partition is registered.
    ///
    /// # Errors
    /// [`StoreError::UnknownPartition`] before that.
    pub(crate) fn registered(self) -> Result<(Preamble, Option<Fetched>), StoreError> {
        let (registry, _) = self.registry.ok_or(StoreError::UnknownPartition)?;
        let preamble = Preamble {
            registry,
            gate: self.gate,
            bounds: self.view.bounds,
            layout_floor: self.view.layout_floor,
            client: self.client,
        };
        Ok((preamble, self.ahead))
    }
}

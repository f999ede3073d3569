//! What both SQL backends know of a partition once they have read it.

use tidegate_engine::CommitSeq;
use tidegate_engine::gate::GateToken;
use tidegate_engine::model::{ClientRecord, LogBounds, Registry};

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
}

impl Found {
    /// Whether the registry row exists and need not be refreshed.
    pub(crate) fn is_fresh(&self, touch: &Touch) -> bool {
        self.registry
            .as_ref()
            .is_some_and(|(_, at)| touch.now_ms.saturating_sub(*at) <= touch.refresh_after_ms)
    }

    /// The preamble, once the partition is registered.
    pub(crate) fn registered(self) -> Option<Preamble> {
        let (registry, _) = self.registry?;
        Some(Preamble {
            registry,
            gate: self.gate,
            bounds: self.view.bounds,
            layout_floor: self.view.layout_floor,
            client: self.client,
        })
    }
}

//! The memory of a successful `ensure_schema`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_engine::schema::Schema;

use crate::Declaration;

/// What the last successful `ensure_schema` ran with. It spares a repetition its
/// work and never stands in for the gate.
pub(crate) struct Ensured {
    schema: Arc<Schema>,
    declarations: BTreeSet<Declaration>,
}

impl Ensured {
    pub(crate) fn new(schema: Arc<Schema>, declarations: &[Declaration]) -> Self {
        Self {
            schema,
            declarations: declarations.iter().cloned().collect(),
        }
    }

    /// Whether running with `other` again would find the same.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.schema.version() == other.schema.version()
            && self.declarations == other.declarations
            && self.schema.layouts_json() == other.schema.layouts_json()
    }
}

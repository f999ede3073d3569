//! A projection that fails over a row until it is mended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_engine::backfill::projection::{
    FailureReason, ProjectedRow, Projection, ProjectionFailure, Shape, SourceRow,
};
use tidegate_engine::schema::Table;
use tidegate_engine::{SchemaVersion, TableId};

/// How it fails.
#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    Error,
    Panic,
}

pub struct Fragile {
    pub inner: Arc<dyn Projection>,
    pub row: &'static str,
    pub way: Way,
    pub mended: AtomicBool,
}

impl Fragile {
    pub fn new(inner: Arc<dyn Projection>, row: &'static str, way: Way) -> Arc<Self> {
        Arc::new(Self {
            inner,
            row,
            way,
            mended: AtomicBool::new(false),
        })
    }
}

impl Projection for Fragile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn schema_version(&self) -> SchemaVersion {
        self.inner.schema_version()
    }
    fn sources(&self) -> &[TableId] {
        self.inner.sources()
    }
    fn target(&self) -> TableId {
        self.inner.target()
    }
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }
    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }
    fn target_row_id(&self, source: &Table, row_id: &str) -> Result<Arc<str>, ProjectionFailure> {
        self.inner.target_row_id(source, row_id)
    }
    fn project(&self, row: &SourceRow<'_>) -> Result<Option<ProjectedRow>, ProjectionFailure> {
        if row.row_id == self.row && !self.mended.load(Ordering::SeqCst) {
            if self.way == Way::Panic {
                panic!("scripted");
            }
            return Err(ProjectionFailure {
                table: row.table.name.clone(),
                row_id: row.row_id.to_owned(),
                part: Some("title_key".into()),
                reason: FailureReason::Overflow,
            });
        }
        self.inner.project(row)
    }
}

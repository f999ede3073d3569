//! What a pull reads from one snapshot, within its budget.

use std::collections::HashMap;

use actix_web::web;
use bytes::Bytes;
use ssp2::{
    MediaType, ResponseFrame, SegmentHeader, SegmentRef, SegmentWriter, scope_digest, segment_id,
};
use tidegate_actors::View;
use tidegate_engine::model::{LoggedChange, StoredRow};
use tidegate_engine::pull::{Bootstrap, Delivery, Incremental, commit_frame, delivery};
use tidegate_engine::round::Accept;
use tidegate_engine::schema::{Schema, Table};
use tidegate_engine::{CommitSeq, TableId};
use tidegate_store::{ScanQuery, WindowQuery};

use super::answer::weight;
use super::budget::Budget;
use super::pull::{Data, Pages, Unpublished};
use super::segments::Publication;
use super::{Exchange, Failure};

/// Rows looked up at once.
const SCAN_ROWS: usize = 2_000;
/// Segments beyond that are built on another thread.
const BUILD_INLINE_BYTES: usize = 64 * 1024;
/// Pages that were read before are used again up to that weight when nothing else is.
const CHEAP_BYTES: usize = 4 * 1024;

/// What makes two bootstraps of one answer the same.
#[derive(PartialEq, Eq, Hash)]
struct Position {
    table: TableId,
    digest: String,
    pin: CommitSeq,
    after_row_id: Option<String>,
}

/// Reads from one snapshot.
pub(super) struct Reader<'a, 'v> {
    exchange: &'a Exchange<'a>,
    view: &'a mut View<'v>,
    accept: Accept,
    budget: Budget,
    /// Subscriptions that ask for the same share what is built.
    built: HashMap<Position, Pages>,
    pub(super) unpublished: Vec<Unpublished>,
}

impl<'a, 'v> Reader<'a, 'v> {
    pub(super) fn new(exchange: &'a Exchange<'a>, view: &'a mut View<'v>, accept: Accept) -> Self {
        Self {
            exchange,
            view,
            accept,
            budget: Budget::new(exchange.pull_bytes),
            built: HashMap::new(),
            unpublished: Vec::new(),
        }
    }

    pub(super) async fn window(&mut self, window: &Incremental) -> Result<Data, Failure> {
        if self.budget.postpones_windows() {
            return Ok(Data::Postponed);
        }
        let schema = self.exchange.schema();
        let read = self
            .view
            .read_window(WindowQuery {
                table: window.table,
                scopes: window.scopes.clone(),
                after: window.after,
                through: window.through,
                max_changes: window.max_changes,
                max_bytes: self.budget.left(),
            })
            .await?;
        if !read.commits.is_empty() {
            self.budget.client_returns();
        }
        let changes = read.commits.iter().flat_map(|commit| &commit.changes);
        self.budget.spend(changes.map(LoggedChange::bytes).sum());
        Ok(Data::Commits {
            frames: read
                .commits
                .iter()
                .map(|commit| commit_frame(schema, commit))
                .collect(),
            scanned_through: read.scanned_through,
        })
    }

    pub(super) async fn pages(&mut self, bootstrap: &Bootstrap) -> Result<Data, Failure> {
        let table = self.exchange.schema().table_at(bootstrap.table);
        let position = Position {
            table: bootstrap.table,
            digest: scope_digest(&bootstrap.scopes),
            pin: bootstrap.pin,
            after_row_id: bootstrap.after_row_id.clone(),
        };
        if let Some(known) = self.built.get(&position) {
            let bytes: usize = known.frames.iter().map(weight).sum();
            if !self.budget.is_spent() || bytes <= CHEAP_BYTES {
                self.budget.spend(bytes);
                return Ok(Data::Pages(known.clone()));
            }
        }
        if self.budget.is_spent() {
            let page = self
                .segment(table, bootstrap, &position.digest, None, None, Vec::new())
                .await?;
            return Ok(Data::EmptyPage(page));
        }
        let pages = self.read_pages(table, bootstrap, &position.digest).await?;
        if pages.resume_after.is_some() {
            self.budget.client_returns();
        }
        self.built.insert(position, pages.clone());
        Ok(Data::Pages(pages))
    }

    async fn read_pages(
        &mut self,
        table: &Table,
        bootstrap: &Bootstrap,
        digest: &str,
    ) -> Result<Pages, Failure> {
        let mut frames = Vec::new();
        let mut after = bootstrap.after_row_id.clone();
        for page in 0..bootstrap.pages {
            if page > 0 && self.budget.is_spent() {
                break;
            }
            let (rows, more) = self.page(bootstrap, after.clone()).await?;
            let next = match rows.last() {
                Some((row_id, _)) if more => Some(row_id.clone()),
                _ => None,
            };
            // In this reference, in the next one, and in the resume token.
            let cursor = next.as_ref().map_or(0, String::len);
            self.budget.spend(3 * cursor);
            frames.push(
                self.segment(table, bootstrap, digest, after, next.clone(), rows)
                    .await?,
            );
            after = next;
            if after.is_none() {
                break;
            }
        }
        Ok(Pages {
            frames,
            resume_after: after,
        })
    }

    /// A page of rows, cut short when the budget ends; and whether rows remain.
    async fn page(
        &mut self,
        bootstrap: &Bootstrap,
        mut after: Option<String>,
    ) -> Result<(Vec<(String, StoredRow)>, bool), Failure> {
        let wanted = bootstrap.page_rows;
        let mut rows = Vec::new();
        loop {
            let mut read = self
                .view
                .scan_rows(ScanQuery {
                    table: bootstrap.table,
                    scopes: bootstrap.scopes.clone(),
                    after_row_id: after.take(),
                    limit: SCAN_ROWS.min(wanted - rows.len()),
                    max_bytes: self.budget.left(),
                })
                .await?;
            let bytes = read.rows.iter().map(|(row_id, row)| row.bytes(row_id));
            self.budget.spend(bytes.sum());
            if rows.is_empty() {
                rows = read.rows;
            } else {
                rows.append(&mut read.rows);
            }
            if !read.more || rows.len() >= wanted || self.budget.is_spent() {
                return Ok((rows, read.more));
            }
            after = rows.last().map(|(row_id, _)| row_id.clone());
        }
    }

    async fn segment(
        &mut self,
        table: &Table,
        bootstrap: &Bootstrap,
        digest: &str,
        row_cursor: Option<String>,
        next_row_cursor: Option<String>,
        rows: Vec<(String, StoredRow)>,
    ) -> Result<ResponseFrame, Failure> {
        let schema = self.exchange.schema();
        let header = segment_header(schema, table);
        let row_count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let bytes: usize = rows.iter().map(|(_, row)| row.payload.len() + 8).sum();
        let accept = self.accept;
        let (bytes, id) = if bytes <= BUILD_INLINE_BYTES {
            build(&header, rows, accept)
        } else {
            web::block(move || build(&header, rows, accept))
                .await
                .map_err(Failure::unavailable)?
        };
        let Some(id) = id else {
            return Ok(ResponseFrame::SegmentInline(bytes));
        };
        self.unpublished.push(Unpublished {
            id: id.clone(),
            bytes: bytes.clone(),
            publication: Publication {
                partition: self.exchange.identity.partition.clone(),
                epoch: self.exchange.epoch().clone(),
                digest: digest.into(),
                schema: schema.version(),
                table: bootstrap.table,
                pin: bootstrap.pin,
            },
        });
        Ok(ResponseFrame::SegmentRef(SegmentRef {
            segment_id: id,
            media_type: MediaType::Rows,
            table: table.name.clone(),
            byte_length: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
            row_count,
            as_of_commit_seq: bootstrap.pin.0,
            scope_digest: digest.to_owned(),
            row_cursor,
            next_row_cursor,
            url: None,
        }))
    }
}

fn segment_header(schema: &Schema, table: &Table) -> SegmentHeader {
    SegmentHeader {
        table: table.name.clone(),
        schema_version: schema.version().0,
        columns: table.columns.clone(),
    }
}

/// The segment, and its address when it travels by reference (§5.7).
fn build(
    header: &SegmentHeader,
    rows: Vec<(String, StoredRow)>,
    accept: Accept,
) -> (Bytes, Option<String>) {
    let mut writer = SegmentWriter::new(header);
    for (_, row) in rows {
        writer.row(row.server_version, &row.payload);
    }
    let bytes = writer.finish();
    let id = match delivery(accept, bytes.len()) {
        Delivery::Inline => None,
        Delivery::Reference => Some(segment_id(&bytes)),
    };
    (bytes, id)
}

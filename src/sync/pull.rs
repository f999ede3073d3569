//! The pull half of a round (§4): plan, read, verify, then answer.

use actix_web::web;
use bytes::Bytes;
use ssp2::{
    Commit, MediaType, ResponseFrame, SegmentHeader, SegmentRef, SegmentWriter, scope_digest,
    segment_id,
};
use tidegate_actors::{Tail, View};
use tidegate_engine::CommitSeq;
use tidegate_engine::model::{LogBounds, StoredRow};
use tidegate_engine::pull::{
    Bootstrap, Delivery, Incremental, SubOutcome, SubPlan, commit_frame, delivery, plan,
    sub_end_bootstrap, sub_end_echo, sub_end_incremental, sub_start,
};
use tidegate_engine::round::{Accept, AdmittedSub, PullLimits};
use tidegate_engine::schema::{Schema, Table};
use tidegate_engine::scopes::{Effective, effective};
use tidegate_store::{ScanQuery, WindowQuery};

use super::segments::Publication;
use super::window;
use super::{Exchange, Failure};

/// Rows fetched at once, so that a page of 50,000 large rows can be cut short.
const SCAN_ROWS: usize = 2_000;
/// Rows fetched first, to learn how large they are.
const FIRST_SCAN_ROWS: usize = 64;
/// Page size once an answer is full: a row may be as large as a request.
const CURT_PAGE_ROWS: usize = 1;
/// Segments beyond that are built on another thread.
const BUILD_INLINE_BYTES: usize = 64 * 1024;

/// What was read for a subscription.
enum Data {
    Nothing,
    Commits {
        frames: Vec<Commit>,
        scanned_through: CommitSeq,
    },
    Pages {
        frames: Vec<ResponseFrame>,
        resume_after: Option<String>,
    },
}

/// A segment to make available once the reads are verified.
struct Unpublished {
    id: String,
    bytes: Bytes,
    publication: Publication,
}

/// Everything read for a pull.
struct Read {
    sections: Vec<(SubPlan, Data)>,
    unpublished: Vec<Unpublished>,
}

/// Reads and appends the answer of every subscription; returns how each was left.
pub(super) async fn answer(
    exchange: &Exchange<'_>,
    subs: &[AdmittedSub<'_>],
    limits: &PullLimits,
    frames: &mut Vec<ResponseFrame>,
) -> Result<Vec<SubOutcome>, Failure> {
    let granted: Vec<Effective> = subs
        .iter()
        .map(|sub| effective(&sub.frame.scopes, &exchange.allowed))
        .collect();
    let plans = |bounds: LogBounds| -> Vec<SubPlan> {
        subs.iter()
            .zip(&granted)
            .map(|(sub, effective)| plan(sub, effective, bounds, limits))
            .collect()
    };

    let served = exchange.entry.tables(subs.iter().map(|sub| sub.table))?;
    let first = plans(exchange.bounds());
    let read = if first.iter().all(needs_no_data) {
        // The preamble alone answers: nothing was read that could have moved since.
        Read {
            sections: first.into_iter().map(caught_up).collect(),
            unpublished: Vec::new(),
        }
    } else {
        let remembered = exchange
            .entry
            .read_tail(&served, |tail| from_tail(exchange, tail, first))
            .await?;
        let read = match remembered {
            Some(read) => read,
            None => {
                exchange
                    .entry
                    .read(&served, async |view: &mut View<'_>| {
                        let planned = plans(view.bounds());
                        from_snapshot(exchange, view, planned, limits.accept).await
                    })
                    .await?
            }
        };
        read.data.recheck(read.floor)
    };

    let now_ms = exchange.service.clock.now_ms();
    for segment in read.unpublished {
        exchange.service.segments.publish(
            &segment.id,
            segment.bytes,
            segment.publication,
            now_ms,
        )?;
    }
    let mut outcomes = Vec::with_capacity(subs.len());
    for (sub, (plan, data)) in subs.iter().zip(read.sections) {
        frames.push(ResponseFrame::SubStart(sub_start(sub, &plan)));
        let end = match (&plan, data) {
            (
                SubPlan::Incremental(window),
                Data::Commits {
                    frames: commits,
                    scanned_through,
                },
            ) => {
                frames.extend(commits.into_iter().map(ResponseFrame::Commit));
                sub_end_incremental(window.after, scanned_through)
            }
            (
                SubPlan::Bootstrap(bootstrap),
                Data::Pages {
                    frames: pages,
                    resume_after,
                },
            ) => {
                frames.extend(pages);
                sub_end_bootstrap(sub, bootstrap, resume_after)
            }
            _ => sub_end_echo(sub),
        };
        let scopes = match plan {
            SubPlan::Incremental(window) => Some(window.scopes),
            SubPlan::Bootstrap(bootstrap) => Some(bootstrap.scopes),
            SubPlan::Revoked | SubPlan::Reset => None,
        };
        outcomes.push(SubOutcome {
            id: sub.frame.id.clone(),
            table: sub.frame.table.clone(),
            active: scopes.map(|scopes| (scopes, CommitSeq(end.next_cursor))),
        });
        frames.push(ResponseFrame::SubEnd(end));
    }
    Ok(outcomes)
}

fn needs_no_data(plan: &SubPlan) -> bool {
    match plan {
        SubPlan::Revoked | SubPlan::Reset => true,
        SubPlan::Incremental(window) => window.after == window.through,
        SubPlan::Bootstrap(_) => false,
    }
}

fn caught_up(plan: SubPlan) -> (SubPlan, Data) {
    let data = match &plan {
        SubPlan::Incremental(window) => Data::Commits {
            frames: Vec::new(),
            scanned_through: window.through,
        },
        _ => Data::Nothing,
    };
    (plan, data)
}

/// Serves every subscription from memory, or none: one answer never mixes two views.
fn from_tail(exchange: &Exchange<'_>, tail: &Tail, plans: Vec<SubPlan>) -> Option<Read> {
    let sections: Option<Vec<_>> = plans
        .into_iter()
        .map(|plan| {
            let data = match &plan {
                SubPlan::Revoked | SubPlan::Reset => Data::Nothing,
                SubPlan::Bootstrap(_) => return None,
                SubPlan::Incremental(window) => {
                    let commits = tail.read(window.after, window.through)?;
                    let delivered = window::deliver(exchange.schema(), window, &commits);
                    Data::Commits {
                        frames: delivered.commits,
                        scanned_through: delivered.scanned_through,
                    }
                }
            };
            Some((plan, data))
        })
        .collect();
    Some(Read {
        sections: sections?,
        unpublished: Vec::new(),
    })
}

async fn from_snapshot(
    exchange: &Exchange<'_>,
    view: &mut View<'_>,
    plans: Vec<SubPlan>,
    accept: Accept,
) -> Result<Read, Failure> {
    let mut reader = Reader {
        exchange,
        view,
        accept,
        budget: exchange.service.config.limits.max_pull_bytes,
        unpublished: Vec::new(),
    };
    let mut sections = Vec::with_capacity(plans.len());
    for plan in plans {
        let data = match &plan {
            SubPlan::Revoked | SubPlan::Reset => Data::Nothing,
            SubPlan::Incremental(window) => reader.window(window).await?,
            SubPlan::Bootstrap(bootstrap) => reader.pages(bootstrap).await?,
        };
        sections.push((plan, data));
    }
    Ok(Read {
        sections,
        unpublished: reader.unpublished,
    })
}

impl Read {
    /// Turns windows that pruning reached into meanwhile into resets (§4.6).
    fn recheck(self, horizon: CommitSeq) -> Self {
        let sections = self
            .sections
            .into_iter()
            .map(|(plan, data)| match plan.recheck(horizon) {
                SubPlan::Reset => (SubPlan::Reset, Data::Nothing),
                plan => (plan, data),
            })
            .collect();
        Self { sections, ..self }
    }
}

/// Reads from one snapshot within a budget of bytes.
struct Reader<'a, 'v> {
    exchange: &'a Exchange<'a>,
    view: &'a mut View<'v>,
    accept: Accept,
    budget: usize,
    unpublished: Vec<Unpublished>,
}

impl Reader<'_, '_> {
    async fn window(&mut self, window: &Incremental) -> Result<Data, Failure> {
        let schema = self.exchange.schema();
        let read = self
            .view
            .read_window(WindowQuery {
                table: window.table,
                scopes: window.scopes.clone(),
                after: window.after,
                through: window.through,
                // A full answer still moves every subscription on by one commit.
                max_changes: if self.budget == 0 {
                    1
                } else {
                    window.max_changes
                },
            })
            .await?;
        let bytes: usize = read
            .commits
            .iter()
            .flat_map(|commit| &commit.changes)
            .filter_map(|change| change.upsert.as_ref())
            .map(|(_, payload)| payload.len())
            .sum();
        self.budget = self.budget.saturating_sub(bytes);
        Ok(Data::Commits {
            frames: read
                .commits
                .iter()
                .map(|commit| commit_frame(schema, commit))
                .collect(),
            scanned_through: read.scanned_through,
        })
    }

    async fn pages(&mut self, bootstrap: &Bootstrap) -> Result<Data, Failure> {
        let table = self.exchange.schema().table_at(bootstrap.table);
        let digest = scope_digest(&bootstrap.scopes);
        let mut frames = Vec::new();
        let mut after = bootstrap.after_row_id.clone();
        for page in 0..bootstrap.pages {
            if page > 0 && self.budget == 0 {
                break;
            }
            let (rows, more) = self.page(bootstrap, after.clone()).await?;
            let next = match rows.last() {
                Some((row_id, _)) if more => Some(row_id.clone()),
                _ => None,
            };
            frames.push(
                self.segment(table, bootstrap, &digest, after, next.clone(), rows)
                    .await?,
            );
            after = next;
            if after.is_none() {
                break;
            }
        }
        Ok(Data::Pages {
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
        let wanted = if self.budget == 0 {
            bootstrap.page_rows.min(CURT_PAGE_ROWS)
        } else {
            bootstrap.page_rows
        };
        let mut rows = Vec::new();
        let mut scan = FIRST_SCAN_ROWS;
        loop {
            let mut read = self
                .view
                .scan_rows(ScanQuery {
                    table: bootstrap.table,
                    scopes: bootstrap.scopes.clone(),
                    after_row_id: after.take(),
                    limit: scan.min(wanted - rows.len()),
                })
                .await?;
            let bytes: usize = read.rows.iter().map(|(_, row)| row.payload.len()).sum();
            self.budget = self.budget.saturating_sub(bytes);
            let row_bytes = (bytes / read.rows.len().max(1)).max(1);
            scan = (self.budget / row_bytes).clamp(1, SCAN_ROWS);
            if rows.is_empty() {
                rows = read.rows;
            } else {
                rows.append(&mut read.rows);
            }
            if !read.more || rows.len() >= wanted || self.budget == 0 {
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
            build(&header, &rows, accept)
        } else {
            web::block(move || build(&header, &rows, accept))
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
    rows: &[(String, StoredRow)],
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

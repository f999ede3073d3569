//! Applying an answer: frame by frame, each subscription its own unit of progress
//! (§1.4).

use std::collections::HashMap;

use bytes::Bytes;
use ssp2::{
    ChangeKind, ColumnSet, Commit, MediaType, OperationOutcome, PushResult, PushStatus, Request,
    RequestFrame, Response, ResponseFrame, ResponseHeader, SegmentRef, SubEnd, SubStart, SubStatus,
    Subscription,
};

use crate::client::{SyncClient, SyncReport};
use crate::error::{ClientError, SchemaFloor};
use crate::outbox::{LocalCommit, LocalOperationKind};
use crate::outcome::{Conflict, ConflictPolicy, Outcome, OutcomeStatus, Rejection};
use crate::schema::{ClientTable, render_scope_value};
use crate::subscription::SubscriptionStatus;
use crate::transport::{SegmentDownload, Transport, TransportError};

/// References one sync may find expired before it gives up.
const EXPIRED_SEGMENTS: usize = 5;

/// A subscription between its SUB_START and its SUB_END.
struct Open {
    /// Index among the client's subscriptions.
    at: usize,
    /// As it was sent.
    sent: Subscription,
    /// Whether this answer bootstraps it from the start (§5.6).
    fresh: bool,
    /// Tables whose first page has been seen.
    cleared: Vec<usize>,
    /// Set when its SUB_END must not be persisted.
    aborted: bool,
}

fn protocol(problem: impl Into<String>) -> ClientError {
    ClientError::Protocol(problem.into())
}

fn garbled(error: impl std::fmt::Display) -> ClientError {
    ClientError::Protocol(error.to_string())
}

impl<T: Transport> SyncClient<T> {
    /// Applies one answer; returns whether another round has work to do. Pending
    /// commits are replayed on top whatever happens (§7.1).
    pub(crate) async fn apply(
        &mut self,
        request: &Request,
        pushed: &[String],
        answer: Bytes,
        report: &mut SyncReport,
    ) -> Result<bool, ClientError> {
        let response = ssp2::decode_response(answer).map_err(garbled)?;
        if response.version != request.version {
            return Err(protocol("answered in another wire version"));
        }
        let applied = self.apply_frames(request, pushed, response, report).await;
        self.replica.replay(self.outbox.iter());
        applied
    }

    async fn apply_frames(
        &mut self,
        request: &Request,
        pushed: &[String],
        response: Response,
        report: &mut SyncReport,
    ) -> Result<bool, ClientError> {
        let before = *report;
        let mut frames = response.frames.into_iter();
        match frames.next() {
            Some(ResponseFrame::Header(header)) => {
                if self.accept_header(header, report)? {
                    return Ok(true);
                }
            }
            _ => return Err(protocol("no response header")),
        }
        let mut frames: Vec<ResponseFrame> = frames.collect();
        let mut details = take_details(&mut frames);
        let mut awaited = request.frames.iter().filter_map(|frame| match frame {
            RequestFrame::Subscription(subscription) => Some(subscription),
            _ => None,
        });
        let mut unanswered = pushed.iter();
        let mut open: Option<Open> = None;
        let mut again = false;
        for frame in frames {
            match frame {
                ResponseFrame::PushResult(result) => {
                    if unanswered.next() != Some(&result.client_commit_id) {
                        return Err(protocol("push results out of order"));
                    }
                    self.settle(result, &mut details, report)?;
                }
                ResponseFrame::SubStart(start) => {
                    let sent = awaited
                        .next()
                        .filter(|sent| sent.id == start.id)
                        .ok_or_else(|| protocol("subscriptions answered out of order"))?;
                    open = Some(self.open(start, sent.clone())?);
                }
                ResponseFrame::Commit(commit) => {
                    self.apply_commit(commit)?;
                    report.commits += 1;
                }
                ResponseFrame::SegmentInline(bytes) => {
                    let open = in_subscription(&mut open)?;
                    self.apply_segment(bytes, open)?;
                    report.segments += 1;
                }
                ResponseFrame::SegmentRef(reference) => {
                    let open = in_subscription(&mut open)?;
                    match self.download(&reference, open).await {
                        Ok(bytes) => {
                            self.apply_segment(bytes, open)?;
                            report.segments += 1;
                        }
                        // Gone or expired: pulling again mints a fresh reference (§5.5).
                        Err(ClientError::Transport(TransportError::Refused {
                            status: 404,
                            ..
                        })) if report.expired_segments < EXPIRED_SEGMENTS => {
                            report.expired_segments += 1;
                            open.aborted = true;
                        }
                        Err(error) => return Err(error),
                    }
                }
                ResponseFrame::SubEnd(end) => {
                    let open = open.take().ok_or_else(|| protocol("stray SUB_END"))?;
                    again |= self.close(open, end);
                }
                ResponseFrame::Lease(lease) => self.lease = Some(lease),
                ResponseFrame::Error(error) => return Err(ClientError::Server(Box::new(error))),
                ResponseFrame::Header(_) | ResponseFrame::PushResultDetails(_) => {
                    return Err(protocol("frame out of place"));
                }
                ResponseFrame::Unknown(_) => {}
            }
        }
        if unanswered.next().is_some() || awaited.next().is_some() {
            return Err(protocol("the answer leaves something unanswered"));
        }
        let settled = report.settled > before.settled;
        let caught_up = report.commits == before.commits && report.segments == before.segments;
        Ok(again || !caught_up || (settled && !self.outbox.is_empty()))
    }

    /// Takes in the header; returns whether the answer ends with it.
    fn accept_header(
        &mut self,
        header: ResponseHeader,
        report: &mut SyncReport,
    ) -> Result<bool, ClientError> {
        if header.latest_schema_version.is_some() {
            self.latest_schema_version = header.latest_schema_version;
        }
        // The floor comes before a reset: upgrading takes precedence (§1.6).
        if let Some(required) = header.required_schema_version {
            let floor = SchemaFloor {
                required,
                latest: header.latest_schema_version,
            };
            self.floor = Some(floor);
            return Err(ClientError::UpgradeRequired(floor));
        }
        let Some(epoch) = header.epoch else {
            return Ok(false);
        };
        if epoch.reset_required {
            self.log_epoch = Some(epoch.log_epoch);
            self.drop_server_state();
            report.resets += 1;
            return Ok(true);
        }
        if self.log_epoch.as_ref() != Some(&epoch.log_epoch) {
            return Err(protocol("another log epoch without a reset"));
        }
        Ok(false)
    }

    /// Gives a pushed commit its final outcome and takes it off the outbox (§7.2).
    fn settle(
        &mut self,
        result: PushResult,
        details: &mut HashMap<(String, i32), String>,
        report: &mut SyncReport,
    ) -> Result<(), ClientError> {
        let id = result.client_commit_id;
        let terminating = result
            .results
            .into_iter()
            .find(|record| record.outcome != OperationOutcome::Applied);
        // A serving failure, not an outcome: the commit stays queued (§6.3).
        if let Some(record) = &terminating
            && matches!(&record.outcome, OperationOutcome::Error { code, .. }
                if code == "sync.idempotency_cache_miss")
        {
            return Ok(());
        }
        let Some(commit) = self.outbox.take(&id) else {
            return Ok(());
        };
        report.settled += 1;
        let status = match result.status {
            PushStatus::Applied(seq) => OutcomeStatus::Applied(seq),
            PushStatus::Cached(seq) => OutcomeStatus::Cached(seq),
            PushStatus::Rejected => {
                let record = terminating.ok_or_else(|| protocol("a rejection without a reason"))?;
                let detail = details.remove(&(id.clone(), record.op_index));
                self.failure(commit, record.op_index, record.outcome, detail)?
            }
        };
        let conflict = match &status {
            OutcomeStatus::Conflict(conflict) => Some(conflict.clone()),
            _ => None,
        };
        self.outcomes.push(Outcome {
            client_commit_id: id.clone(),
            status,
        });
        if let Some(conflict) = conflict {
            self.conflicts.push(conflict);
            if let ConflictPolicy::Always(resolution) = self.config.conflicts {
                self.resolve(&id, resolution);
            }
        }
        Ok(())
    }

    fn failure(
        &self,
        commit: LocalCommit,
        op_index: i32,
        outcome: OperationOutcome,
        details: Option<String>,
    ) -> Result<OutcomeStatus, ClientError> {
        let op_index = usize::try_from(op_index)
            .ok()
            .filter(|&at| at < commit.operations.len())
            .ok_or_else(|| protocol("a result for no operation of the commit"))?;
        match outcome {
            OperationOutcome::Conflict {
                code,
                message,
                server_version,
                server_row,
                conflict_columns,
            } => {
                let table = self
                    .schema
                    .table(&commit.operations[op_index].table)
                    .ok_or_else(|| protocol("a conflict in an unknown table"))?;
                let server_row = ssp2::decode_row(&table.columns, &server_row).map_err(garbled)?;
                Ok(OutcomeStatus::Conflict(Conflict {
                    op_index,
                    code,
                    message,
                    server_version,
                    server_row,
                    conflict_columns: marked_columns(table, &conflict_columns),
                    commit,
                }))
            }
            OperationOutcome::Error {
                code,
                message,
                retryable,
            } => Ok(OutcomeStatus::Rejected(Rejection {
                op_index,
                code,
                message,
                retryable,
                details,
                commit,
            })),
            OperationOutcome::Applied => Err(protocol("a rejection that says applied")),
        }
    }

    fn open(&mut self, start: SubStart, sent: Subscription) -> Result<Open, ClientError> {
        let at = self
            .subscriptions
            .iter()
            .position(|sub| sub.id == start.id)
            .ok_or_else(|| protocol("an unknown subscription"))?;
        match start.status {
            SubStatus::Active => self.subscriptions[at].effective_scopes = start.effective_scopes,
            SubStatus::Revoked => self.revoke(at, start.reason_code),
            // Rows stay until the new bootstrap replaces them (§4.6).
            SubStatus::Reset => self.subscriptions[at].restart(false),
        }
        Ok(Open {
            at,
            fresh: start.bootstrap && sent.cursor < 0 && sent.bootstrap_state.is_none(),
            aborted: start.status != SubStatus::Active,
            cleared: Vec::new(),
            sent,
        })
    }

    /// Purges what the last effective scopes cover, and drops pending commits that
    /// provably write there (§3.3). Without a local mapping nothing is purged and
    /// the subscription fails.
    fn revoke(&mut self, at: usize, reason: String) {
        let sub = &mut self.subscriptions[at];
        let scopes = std::mem::take(&mut sub.effective_scopes);
        let Some(index) = self.schema.index(&sub.table) else {
            return;
        };
        sub.restart(false);
        let table = &self.schema.tables()[index];
        if !table.can_match(&scopes) {
            sub.status = SubscriptionStatus::Failed {
                reason: "sync.scope_revoked",
            };
            return;
        }
        sub.status = SubscriptionStatus::Revoked { reason };
        self.replica.purge(index, &scopes);
        let dropped = self.outbox.take_where(|commit| {
            commit.operations.iter().any(|operation| {
                operation.table == table.name
                    && match &operation.kind {
                        LocalOperationKind::Delete => false,
                        LocalOperationKind::Upsert { columns, .. } => table
                            .row_in(&scopes, |ordinal| columns.get(&table.columns[ordinal].name)),
                    }
            })
        });
        self.record_dropped("sync.scope_revoked", dropped);
    }

    /// Applies the changes of one COMMIT frame: all of them or none (§1.4 rule 4).
    fn apply_commit(&mut self, commit: Commit) -> Result<(), ClientError> {
        let tables: Vec<usize> = commit
            .tables
            .iter()
            .map(|name| self.schema.index(name))
            .collect::<Option<_>>()
            .ok_or_else(|| protocol("a change in an unknown table"))?;
        let mut decoded = Vec::with_capacity(commit.changes.len());
        for change in commit.changes {
            let table = *tables
                .get(usize::from(change.table_index))
                .ok_or_else(|| protocol("a change in no table"))?;
            let row = match change.kind {
                ChangeKind::Delete => None,
                ChangeKind::Upsert { row_version, row } => {
                    let columns = &self.schema.tables()[table].columns;
                    let values = ssp2::decode_row(columns, &row).map_err(garbled)?;
                    Some((row_version, values))
                }
            };
            decoded.push((table, change.row_id, row));
        }
        for (table, row_id, row) in decoded {
            match row {
                Some((version, values)) => self.replica.put(table, row_id, version, values),
                None => self.replica.remove(table, &row_id),
            }
        }
        Ok(())
    }

    /// Applies a rows segment (§5.6).
    fn apply_segment(&mut self, bytes: Bytes, open: &mut Open) -> Result<(), ClientError> {
        let mut segment = ssp2::SegmentReader::new(bytes).map_err(garbled)?;
        let header = segment.header();
        let index = self
            .schema
            .index(&header.table)
            .ok_or_else(|| protocol("a segment of an unknown table"))?;
        let table = &self.schema.tables()[index];
        if header.schema_version != self.schema.version() || header.columns != table.columns {
            return Err(protocol("a segment of another schema"));
        }
        let primary_key = table.primary_key;
        self.clear_first_page(index, open);
        if open.aborted {
            return Ok(());
        }
        while let Some(block) = segment.next_block().map_err(garbled)? {
            for row in block {
                let row_id = render_scope_value(&row.values[primary_key])
                    .ok_or_else(|| protocol("a segment row without a key"))?;
                self.replica
                    .put(index, row_id, row.server_version, row.values);
            }
        }
        Ok(())
    }

    /// On the first page of a table in a fresh bootstrap, removes the rows the
    /// subscription covers, so that deleted ones do not survive (§5.6).
    fn clear_first_page(&mut self, index: usize, open: &mut Open) {
        if !open.fresh || open.aborted || open.cleared.contains(&index) {
            return;
        }
        let sub = &mut self.subscriptions[open.at];
        if self.schema.tables()[index].can_match(&sub.effective_scopes) {
            open.cleared.push(index);
            self.replica.purge(index, &sub.effective_scopes);
        } else {
            open.aborted = true;
            sub.status = SubscriptionStatus::Failed {
                reason: "sync.scope_revoked",
            };
        }
    }

    async fn download(&self, reference: &SegmentRef, open: &Open) -> Result<Bytes, ClientError> {
        if reference.media_type != MediaType::Rows {
            return Err(protocol("a segment of a media type not asked for"));
        }
        let download = SegmentDownload {
            segment_id: reference.segment_id.clone(),
            scopes: ssp2::canonical_scopes(&open.sent.scopes),
            url: reference.url.as_ref().map(|(url, _)| url.clone()),
        };
        let bytes = self.transport.segment(&download).await?;
        if ssp2::segment_id(&bytes) != reference.segment_id {
            return Err(protocol("segment bytes that do not match their id"));
        }
        Ok(bytes)
    }

    /// Persists a subscription's progress; returns whether it needs another round.
    fn close(&mut self, mut open: Open, end: SubEnd) -> bool {
        if open.fresh && !open.aborted {
            // A bootstrap without any segment still clears (§5.6).
            if let Some(index) = self.schema.index(&open.sent.table) {
                self.clear_first_page(index, &mut open);
            }
        }
        let sub = &mut self.subscriptions[open.at];
        if open.aborted {
            return sub.is_live();
        }
        // A resumed bootstrap that comes back with another pin was restarted; rows of
        // its earlier pages may be gone since, so only a fresh one is safe.
        if open.sent.bootstrap_state.is_some() && end.next_cursor != open.sent.cursor {
            sub.restart(false);
            return true;
        }
        sub.cursor = end.next_cursor;
        sub.bootstrap_state = end.bootstrap_state;
        sub.bootstrap_state.is_some()
    }
}

fn in_subscription(open: &mut Option<Open>) -> Result<&mut Open, ClientError> {
    open.as_mut()
        .ok_or_else(|| protocol("a segment outside a subscription"))
}

/// Takes the details frames out, indexed by commit and operation (§6.3.1).
fn take_details(frames: &mut Vec<ResponseFrame>) -> HashMap<(String, i32), String> {
    let mut details = HashMap::new();
    frames.retain_mut(|frame| match frame {
        ResponseFrame::PushResultDetails(found) => {
            for entry in found.entries.drain(..) {
                details.insert(
                    (found.client_commit_id.clone(), entry.op_index),
                    entry.details_json,
                );
            }
            false
        }
        _ => true,
    });
    details
}

/// Names of the columns a conflict bitmap marks (§6.3); none of an absent bitmap.
fn marked_columns(table: &ClientTable, bitmap: &[u8]) -> Vec<String> {
    ColumnSet::from_bytes(bitmap, table.columns.len())
        .map(|marked| {
            marked
                .iter()
                .map(|at| table.columns[at].name.clone())
                .collect()
        })
        .unwrap_or_default()
}

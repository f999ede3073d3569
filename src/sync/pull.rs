//! The pull half of a round (§4): plan, read, verify, then answer.

use bytes::Bytes;
use ssp2::{Commit, ResponseFrame};
use tidegate_actors::{TailView, View};
use tidegate_engine::CommitSeq;
use tidegate_engine::model::LogBounds;
use tidegate_engine::pull::{
    SubOutcome, SubPlan, plan, sub_end_bootstrap, sub_end_echo, sub_end_incremental,
    sub_end_postponed, sub_start,
};
use tidegate_engine::round::{Accept, AdmittedSub, PullLimits};
use tidegate_engine::scopes::{Effective, effective};

use super::budget::Budget;
use super::reader::Reader;
use super::segments::Publication;
use super::window;
use super::{Exchange, Failure};

/// What was read for a subscription.
pub(super) enum Data {
    /// There is nothing to read.
    Nothing,
    Commits {
        frames: Vec<Commit>,
        scanned_through: CommitSeq,
    },
    Pages(Pages),
    /// The budget is spent: a window stays where it is.
    Postponed,
    /// The budget is spent: a bootstrap stays where it is. Its page without rows
    /// makes a fresh one begin, so that a client clears what it replaces with the
    /// first page and not with a later one (§5.6).
    EmptyPage(ResponseFrame),
}

/// Pages of a bootstrap.
#[derive(Clone)]
pub(super) struct Pages {
    pub(super) frames: Vec<ResponseFrame>,
    pub(super) resume_after: Option<String>,
}

/// A segment to make available once the reads are verified.
pub(super) struct Unpublished {
    pub(super) id: String,
    pub(super) bytes: Bytes,
    pub(super) publication: Publication,
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
                Data::Pages(Pages {
                    frames: pages,
                    resume_after,
                }),
            ) => {
                frames.extend(pages);
                sub_end_bootstrap(sub, bootstrap, resume_after)
            }
            (SubPlan::Incremental(window), Data::Postponed) => {
                sub_end_incremental(window.after, window.after)
            }
            (SubPlan::Bootstrap(bootstrap), Data::EmptyPage(page)) => {
                frames.push(page);
                sub_end_postponed(sub, bootstrap)
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
fn from_tail(exchange: &Exchange<'_>, tail: &TailView<'_>, plans: Vec<SubPlan>) -> Option<Read> {
    let mut budget = Budget::new(exchange.pull_bytes);
    let sections: Option<Vec<_>> = plans
        .into_iter()
        .map(|plan| {
            let data = match &plan {
                SubPlan::Revoked | SubPlan::Reset => Data::Nothing,
                SubPlan::Bootstrap(_) => return None,
                SubPlan::Incremental(_) if budget.postpones_windows() => Data::Postponed,
                SubPlan::Incremental(window) => {
                    let commits = tail.read(window.after, window.through)?;
                    let delivered =
                        window::deliver(exchange.schema(), window, &commits, budget.left());
                    if !delivered.commits.is_empty() {
                        budget.client_returns();
                    }
                    budget.spend(delivered.bytes);
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
    let mut reader = Reader::new(exchange, view, accept);
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

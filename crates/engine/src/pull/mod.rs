//! Pulls, decided: what each subscription gets (§4.5 to §4.7), the frames it is
//! answered with, and what is remembered of the client.
//!
//! Per subscription the caller computes the effective scopes, calls [`plan`],
//! reads what the plan names in one snapshot, calls [`SubPlan::recheck`] with the
//! horizon as it is then, and only then sends SUB_START.

mod delivery;
mod frames;
mod registration;
mod token;

use ssp2::ScopeLists;

use crate::ids::{CommitSeq, TableId};
use crate::model::LogBounds;
use crate::round::{AdmittedSub, PullLimits};
use crate::schema::Table;
use crate::scopes::Effective;

pub use delivery::{Delivery, INLINE_SEGMENT_BYTES, delivery};
pub use frames::{
    commit_frame, next_cursor, sub_end_bootstrap, sub_end_echo, sub_end_incremental,
    sub_end_postponed, sub_start,
};
pub use registration::{Identity, SubOutcome, client_record_after};
pub use token::BootstrapToken;

/// What a subscription is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubPlan {
    /// No longer granted: no data, cursor echoed (§3.3).
    Revoked,
    /// The log no longer reaches back to the cursor: no data, cursor echoed (§4.6).
    Reset,
    /// A window of the log (§4.5).
    Incremental(Incremental),
    /// Pages of current rows (§4.7).
    Bootstrap(Bootstrap),
}

/// A window of the log: commits in `(after, through]` that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incremental {
    /// Table.
    pub table: TableId,
    /// Effective scopes.
    pub scopes: ScopeLists,
    /// The client's cursor, exclusive.
    pub after: CommitSeq,
    /// Newest commit, inclusive.
    pub through: CommitSeq,
    /// Changes at most; commits are never split and the first one always fits.
    pub max_changes: usize,
}

/// Pages of rows from a position on, pinned at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Table.
    pub table: TableId,
    /// Effective scopes.
    pub scopes: ScopeLists,
    /// The commit that incremental pulls go on from.
    pub pin: CommitSeq,
    /// Exclusive row id to go on after; `None` = the table's start.
    pub after_row_id: Option<String>,
    /// Pages at most in this answer.
    pub pages: usize,
    /// Rows at most in a page.
    pub page_rows: usize,
    /// A resume token was presented and not usable, so this starts over.
    pub restarted: bool,
}

/// Plans one subscription's answer.
///
/// A bootstrap token is judged first: with one, the subscription bootstraps, from
/// where the token says if it is usable and its pin is not behind the horizon, else
/// from the start with a fresh pin. Only without one does the cursor decide.
///
/// `bounds` must not reach below a change of row layout: pass
/// [`LogBounds::above_layout`], here and as the horizon of [`SubPlan::recheck`].
pub fn plan(
    sub: &AdmittedSub<'_>,
    effective: &Effective,
    bounds: LogBounds,
    limits: &PullLimits,
) -> SubPlan {
    let Effective::Active(scopes) = effective else {
        return SubPlan::Revoked;
    };
    let bootstrap = |pin, after_row_id, restarted| {
        SubPlan::Bootstrap(Bootstrap {
            table: sub.table,
            scopes: scopes.clone(),
            pin,
            after_row_id,
            pages: limits.max_pages,
            page_rows: limits.page_rows,
            restarted,
        })
    };
    if let Some(state) = &sub.frame.bootstrap_state {
        return match BootstrapToken::parse(state, &sub.frame.table) {
            // A pin ahead of the log comes from another log: corrupt, like a cursor ahead.
            Some(token) if bounds.horizon <= token.pin && token.pin <= bounds.max => {
                bootstrap(token.pin, token.after_row_id, false)
            }
            _ => bootstrap(bounds.max, None, true),
        };
    }
    let cursor = CommitSeq(sub.frame.cursor);
    if cursor.0 < 0 || cursor > bounds.max {
        bootstrap(bounds.max, None, false)
    } else if cursor < bounds.horizon {
        SubPlan::Reset
    } else {
        SubPlan::Incremental(Incremental {
            table: sub.table,
            scopes: scopes.clone(),
            after: cursor,
            through: bounds.max,
            max_changes: limits.max_changes,
        })
    }
}

impl SubPlan {
    /// The plan once its data is read, given the horizon as it is now: a window that
    /// pruning reached into meanwhile may miss commits and becomes a reset (§4.6).
    #[must_use]
    pub fn recheck(self, horizon: CommitSeq) -> Self {
        match self {
            Self::Incremental(window) if window.after < horizon => Self::Reset,
            plan => plan,
        }
    }
}

impl Bootstrap {
    /// Whether an image of the whole table may stand for the pages (§5.3): the
    /// client takes images, nothing was delivered yet, and no column is encrypted.
    /// Whether the rows are many enough is known only after the first page.
    pub fn may_use_image(&self, table: &Table, limits: &PullLimits) -> bool {
        limits.accept.sqlite() && self.after_row_id.is_none() && !table.has_encrypted_column()
    }
}

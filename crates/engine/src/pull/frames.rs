//! The frames of a subscription's answer (§4.4, §4.5).

use std::collections::HashMap;

use ssp2::{Change, ChangeKind, Commit, ErrorCode, ScopeLists, SubEnd, SubStart, SubStatus};

use super::{Bootstrap, BootstrapToken, SubPlan};
use crate::ids::{CommitSeq, TableId};
use crate::model::LoggedCommit;
use crate::round::AdmittedSub;
use crate::schema::Schema;

/// SUB_START of a plan (§4.4). Send it only after [`SubPlan::recheck`].
pub fn sub_start(sub: &AdmittedSub<'_>, plan: &SubPlan) -> SubStart {
    let (status, reason, scopes, bootstrap) = match plan {
        SubPlan::Revoked => (
            SubStatus::Revoked,
            ErrorCode::ScopeRevoked.as_str(),
            ScopeLists::new(),
            false,
        ),
        SubPlan::Reset => (
            SubStatus::Reset,
            ErrorCode::CursorExpired.as_str(),
            ScopeLists::new(),
            false,
        ),
        SubPlan::Incremental(window) => (SubStatus::Active, "", window.scopes.clone(), false),
        SubPlan::Bootstrap(bootstrap) => (SubStatus::Active, "", bootstrap.scopes.clone(), true),
    };
    SubStart {
        id: sub.frame.id.clone(),
        status,
        reason_code: reason.to_owned(),
        effective_scopes: scopes,
        bootstrap,
    }
}

/// The cursor after a window (§4.5): it advances to what was scanned, matching or
/// not, and never falls behind the client's own.
pub fn next_cursor(after: CommitSeq, scanned_through: CommitSeq) -> CommitSeq {
    after.max(scanned_through)
}

/// SUB_END of a revoked or reset subscription: the request's cursor, echoed.
pub fn sub_end_echo(sub: &AdmittedSub<'_>) -> SubEnd {
    SubEnd {
        next_cursor: sub.frame.cursor,
        bootstrap_state: None,
    }
}

/// SUB_END of a window.
pub fn sub_end_incremental(after: CommitSeq, scanned_through: CommitSeq) -> SubEnd {
    SubEnd {
        next_cursor: next_cursor(after, scanned_through).0,
        bootstrap_state: None,
    }
}

/// SUB_END of bootstrap pages (§4.7): the pin is the cursor, complete or not.
/// `resume_after` is the last delivered row id while rows remain, `None` = complete.
pub fn sub_end_bootstrap(
    sub: &AdmittedSub<'_>,
    bootstrap: &Bootstrap,
    resume_after: Option<String>,
) -> SubEnd {
    SubEnd {
        next_cursor: bootstrap.pin.0,
        bootstrap_state: resume_after.map(|row_id| {
            BootstrapToken {
                pin: bootstrap.pin,
                after_row_id: Some(row_id),
            }
            .format(&sub.frame.table)
        }),
    }
}

/// SUB_END of a bootstrap that this answer has no room for: its position stays, and
/// the token makes the client pull on. The pin of a fresh one is settled by it.
pub fn sub_end_postponed(sub: &AdmittedSub<'_>, bootstrap: &Bootstrap) -> SubEnd {
    let token = BootstrapToken {
        pin: bootstrap.pin,
        after_row_id: bootstrap.after_row_id.clone(),
    };
    SubEnd {
        next_cursor: bootstrap.pin.0,
        bootstrap_state: Some(token.format(&sub.frame.table)),
    }
}

/// COMMIT (§4.5) of the changes that `commit` holds: those a reader may see. The
/// table dictionary lists tables in order of first use.
pub fn commit_frame(schema: &Schema, commit: &LoggedCommit) -> Commit {
    let mut tables = Vec::new();
    let mut positions: HashMap<TableId, u16> = HashMap::new();
    let changes = commit
        .changes
        .iter()
        .map(|change| {
            let next = u16::try_from(tables.len()).unwrap_or(u16::MAX);
            let table_index = *positions.entry(change.key.table).or_insert_with(|| {
                tables.push(schema.table_at(change.key.table).name.clone());
                next
            });
            Change {
                table_index,
                row_id: change.key.row_id.to_string(),
                scopes: change.scopes.clone(),
                kind: match &change.upsert {
                    Some((row_version, row)) => ChangeKind::Upsert {
                        row_version: *row_version,
                        row: row.clone(),
                    },
                    None => ChangeKind::Delete,
                },
            }
        })
        .collect();
    Commit {
        commit_seq: commit.seq.0,
        created_at_ms: commit.created_at_ms,
        actor_id: commit.actor_id.to_string(),
        tables,
        changes,
    }
}

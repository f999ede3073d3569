//! Whether an answer is what the protocol promises for the request.

use ssp2::{PushStatus, Response, ResponseFrame, SubStatus, WireVersion};

use crate::workload::SUBSCRIPTION;

/// Changes a server returns per pull at most, when asked for its default (§4.2).
const PULL_LIMIT: usize = 1000;

/// What a request asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Wire version to be answered in.
    pub version: WireVersion,
    /// The commit it pushed.
    pub commit: Option<String>,
    /// The cursor it pulled from.
    pub cursor: Option<i64>,
}

/// What a correct answer brought.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Sequence number of the pushed commit.
    pub applied: Option<i64>,
    /// How far the pull came.
    pub pulled: Option<Pulled>,
}

/// How far a pull came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Cursor of the next pull.
    pub next_cursor: i64,
    /// Resume token of an unfinished bootstrap.
    pub bootstrap_state: Option<String>,
}

/// Checks an answer against its request.
///
/// # Errors
/// What is wrong with it.
pub fn check(response: Response, expected: &Expected) -> Result<Progress, String> {
    if response.version != expected.version {
        return Err("answered in another wire version".to_owned());
    }
    let mut progress = Progress::default();
    let mut seen: Vec<i64> = Vec::new();
    let mut changes = 0;
    let mut started = false;
    let mut bootstrap = false;
    for frame in response.frames {
        match frame {
            ResponseFrame::Header(header) => {
                if header.required_schema_version.is_some() {
                    return Err("schema version not served".to_owned());
                }
                if header.epoch.is_some_and(|epoch| epoch.reset_required) {
                    return Err("log reset".to_owned());
                }
            }
            ResponseFrame::PushResult(result) => {
                if Some(&result.client_commit_id) != expected.commit.as_ref() {
                    return Err("a result for another commit".to_owned());
                }
                match result.status {
                    PushStatus::Applied(seq) if progress.applied.is_none() => {
                        progress.applied = Some(seq);
                    }
                    other => return Err(format!("commit {other:?}: {:?}", result.results)),
                }
            }
            ResponseFrame::SubStart(start) => {
                if start.id != SUBSCRIPTION || start.status != SubStatus::Active || started {
                    return Err(format!("subscription {:?}", start.status));
                }
                started = true;
                bootstrap = start.bootstrap;
            }
            ResponseFrame::Commit(commit) => {
                if seen.last().is_some_and(|last| *last >= commit.commit_seq) {
                    return Err("commits out of order".to_owned());
                }
                changes += commit.changes.len();
                seen.push(commit.commit_seq);
            }
            ResponseFrame::SubEnd(end) => {
                progress.pulled = Some(Pulled {
                    next_cursor: end.next_cursor,
                    bootstrap_state: end.bootstrap_state,
                });
            }
            ResponseFrame::Error(error) => return Err(format!("ERROR frame {}", error.code)),
            ResponseFrame::Lease(_)
            | ResponseFrame::SegmentRef(_)
            | ResponseFrame::SegmentInline(_)
            | ResponseFrame::PushResultDetails(_)
            | ResponseFrame::Unknown(_) => {}
        }
    }
    if expected.commit.is_some() != progress.applied.is_some() {
        return Err("the commit has no result".to_owned());
    }
    if expected.cursor.is_some() != (started && progress.pulled.is_some()) {
        return Err("the subscription has no answer".to_owned());
    }
    if let (Some(cursor), Some(pulled)) = (expected.cursor, &progress.pulled) {
        check_window(cursor, pulled, bootstrap, &seen, changes, progress.applied)?;
    }
    Ok(progress)
}

/// The cursor never goes back, the window holds only what lies in it, and a pull in
/// the same request sees the commit that was just applied (§4.5, §7.2).
fn check_window(
    cursor: i64,
    pulled: &Pulled,
    bootstrap: bool,
    seen: &[i64],
    changes: usize,
    applied: Option<i64>,
) -> Result<(), String> {
    if pulled.next_cursor < cursor {
        return Err(format!(
            "cursor went from {cursor} to {}",
            pulled.next_cursor
        ));
    }
    if bootstrap {
        return Ok(());
    }
    if seen
        .iter()
        .any(|seq| *seq <= cursor || *seq > pulled.next_cursor)
    {
        return Err("a commit outside the window".to_owned());
    }
    if let Some(applied) = applied
        && changes < PULL_LIMIT
    {
        if pulled.next_cursor < applied {
            return Err("the cursor did not reach the client's own commit".to_owned());
        }
        if !seen.contains(&applied) {
            return Err("the client's own commit is missing".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ssp2::{
        Commit, EpochHeader, OperationOutcome, OperationResult, PushResult, ResponseHeader,
        ScopeLists, SubEnd, SubStart,
    };

    use super::*;

    fn expected() -> Expected {
        Expected {
            version: WireVersion::V3,
            commit: Some("c-1".to_owned()),
            cursor: Some(4),
        }
    }

    fn answer(status: PushStatus, commits: &[i64], next_cursor: i64) -> Response {
        let mut frames = vec![
            ResponseFrame::Header(ResponseHeader {
                required_schema_version: None,
                latest_schema_version: Some(1),
                epoch: Some(EpochHeader {
                    log_epoch: "e".to_owned(),
                    reset_required: false,
                }),
            }),
            ResponseFrame::PushResult(PushResult {
                client_commit_id: "c-1".to_owned(),
                status,
                results: vec![OperationResult {
                    op_index: 0,
                    outcome: OperationOutcome::Applied,
                }],
            }),
            ResponseFrame::SubStart(SubStart {
                id: SUBSCRIPTION.to_owned(),
                status: SubStatus::Active,
                reason_code: String::new(),
                effective_scopes: ScopeLists::new(),
                bootstrap: false,
            }),
        ];
        frames.extend(commits.iter().map(|&commit_seq| {
            ResponseFrame::Commit(Commit {
                commit_seq,
                created_at_ms: 0,
                actor_id: "a".to_owned(),
                tables: Vec::new(),
                changes: Vec::new(),
            })
        }));
        frames.push(ResponseFrame::SubEnd(SubEnd {
            next_cursor,
            bootstrap_state: None,
        }));
        Response {
            version: WireVersion::V3,
            frames,
        }
    }

    #[test]
    fn a_correct_answer_moves_the_cursor() {
        let progress = check(answer(PushStatus::Applied(6), &[5, 6], 6), &expected()).unwrap();
        assert_eq!(progress.applied, Some(6));
        assert_eq!(progress.pulled.unwrap().next_cursor, 6);
    }

    #[test]
    fn anything_but_applied_is_an_error() {
        for status in [PushStatus::Cached(6), PushStatus::Rejected] {
            assert!(check(answer(status, &[6], 6), &expected()).is_err());
        }
    }

    #[test]
    fn a_cursor_that_stands_still_or_goes_back_is_an_error() {
        for next in [3, 4, 5] {
            assert!(check(answer(PushStatus::Applied(6), &[], next), &expected()).is_err());
        }
    }

    #[test]
    fn the_clients_own_commit_has_to_come_back() {
        let error = check(answer(PushStatus::Applied(6), &[5], 6), &expected()).unwrap_err();
        assert!(error.contains("own commit"));
    }

    #[test]
    fn commits_outside_the_window_or_out_of_order_are_errors() {
        for commits in [&[4, 6][..], &[6, 7], &[6, 5], &[6, 6]] {
            assert!(check(answer(PushStatus::Applied(6), commits, 6), &expected()).is_err());
        }
    }

    #[test]
    fn a_missing_part_of_the_answer_is_an_error() {
        for gone in 1..5 {
            let mut response = answer(PushStatus::Applied(6), &[6], 6);
            response.frames.remove(gone);
            assert!(
                check(response, &expected()).is_err(),
                "without frame {gone}"
            );
        }
    }

    #[test]
    fn a_pull_may_find_nothing_new() {
        let mut response = answer(PushStatus::Applied(6), &[], 4);
        response.frames.remove(1);
        let expected = Expected {
            commit: None,
            ..expected()
        };
        assert_eq!(check(response, &expected).unwrap().applied, None);
    }
}

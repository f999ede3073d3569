//! A subscription's window of the log, served from the partition's tail.

use std::sync::Arc;

use ssp2::Commit;
use tidegate_engine::model::{LoggedChange, LoggedCommit};
use tidegate_engine::pull::{Incremental, commit_frame};
use tidegate_engine::schema::Schema;
use tidegate_engine::{CommitSeq, scopes};

/// COMMIT frames and the highest commit scanned.
pub(super) struct Delivered {
    pub commits: Vec<Commit>,
    /// Bytes of the changes in them.
    pub bytes: usize,
    pub scanned_through: CommitSeq,
}

/// Filters `commits`, which are all of `(after, through]` in order (§4.5): only
/// matching changes travel, commits are never split, the first one always fits.
/// There is an end to the changes, and to their bytes.
pub(super) fn deliver(
    schema: &Schema,
    window: &Incremental,
    commits: &[Arc<LoggedCommit>],
    max_bytes: usize,
) -> Delivered {
    let matches = |change: &LoggedChange| {
        change.key.table == window.table && scopes::matches(&window.scopes, &change.scopes)
    };
    let mut delivered = Delivered {
        commits: Vec::new(),
        bytes: 0,
        scanned_through: window.after,
    };
    let mut changes = 0;
    for commit in commits {
        let (mut matching, mut bytes) = (0, 0);
        for change in commit.changes.iter().filter(|change| matches(change)) {
            matching += 1;
            bytes += change.bytes();
        }
        if matching == 0 {
            continue;
        }
        let fits = changes + matching <= window.max_changes && delivered.bytes + bytes <= max_bytes;
        if changes > 0 && !fits {
            return delivered;
        }
        changes += matching;
        delivered.bytes += bytes;
        delivered.scanned_through = commit.seq;
        delivered.commits.push(if matching == commit.changes.len() {
            commit_frame(schema, commit)
        } else {
            let mut visible = LoggedCommit {
                changes: Vec::with_capacity(matching),
                ..without_changes(commit)
            };
            visible.changes.extend(
                commit
                    .changes
                    .iter()
                    .filter(|change| matches(change))
                    .cloned(),
            );
            commit_frame(schema, &visible)
        });
    }
    delivered.scanned_through = window.through;
    delivered
}

fn without_changes(commit: &LoggedCommit) -> LoggedCommit {
    LoggedCommit {
        seq: commit.seq,
        client_id: commit.client_id.clone(),
        client_commit_id: Arc::clone(&commit.client_commit_id),
        actor_id: commit.actor_id.clone(),
        created_at_ms: commit.created_at_ms,
        changes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use ssp2::{ScopeLists, ScopeValues};
    use tidegate_engine::model::RowKey;

    fn schema() -> Schema {
        Schema::load(crate::server::DEMO_SCHEMA).unwrap()
    }

    fn change(schema: &Schema, table: &str, row: &str, list: &str) -> LoggedChange {
        let scopes: ScopeValues = [("list_id", list.to_owned())].into_iter().collect();
        LoggedChange {
            key: RowKey {
                table: schema.table(table).unwrap().id,
                row_id: row.into(),
            },
            scopes,
            upsert: Some((1, Bytes::from_static(b"row"))),
        }
    }

    fn commit(seq: i64, changes: Vec<LoggedChange>) -> Arc<LoggedCommit> {
        Arc::new(LoggedCommit {
            seq: CommitSeq(seq),
            client_id: "c".into(),
            client_commit_id: "x".into(),
            actor_id: "ada".into(),
            created_at_ms: 5,
            changes,
        })
    }

    fn window(schema: &Schema, through: i64, max_changes: usize) -> Incremental {
        let scopes: ScopeLists = [("list_id", vec!["a".to_owned(), "b".to_owned()])]
            .into_iter()
            .collect();
        Incremental {
            table: schema.table("todos").unwrap().id,
            scopes,
            after: CommitSeq(0),
            through: CommitSeq(through),
            max_changes,
        }
    }

    fn shape(delivered: &Delivered) -> (Vec<(i64, usize)>, i64) {
        let commits = delivered
            .commits
            .iter()
            .map(|commit| (commit.commit_seq, commit.changes.len()))
            .collect();
        (commits, delivered.scanned_through.0)
    }

    #[test]
    fn only_matching_changes_travel_and_the_cursor_covers_the_rest() {
        let schema = schema();
        let log = [
            commit(
                1,
                vec![
                    change(&schema, "todos", "1", "a"),
                    change(&schema, "todos", "2", "z"),
                ],
            ),
            commit(2, vec![change(&schema, "lists", "a", "a")]),
            commit(3, vec![change(&schema, "todos", "3", "b")]),
            commit(4, vec![change(&schema, "todos", "4", "z")]),
            commit(5, vec![]),
        ];
        let delivered = deliver(&schema, &window(&schema, 5, 100), &log, usize::MAX);
        assert_eq!(shape(&delivered), (vec![(1, 1), (3, 1)], 5));
        assert_eq!(delivered.commits[0].tables, ["todos"]);
    }

    #[test]
    fn a_commit_is_never_split_and_the_first_one_always_fits() {
        let schema = schema();
        let three = |seq| {
            let changes = ["1", "2", "3"].map(|row| change(&schema, "todos", row, "a"));
            commit(seq, changes.to_vec())
        };
        let log = [three(1), three(2), three(3)];
        let limited = |max| {
            shape(&deliver(
                &schema,
                &window(&schema, 3, max),
                &log,
                usize::MAX,
            ))
        };
        assert_eq!(limited(1), (vec![(1, 3)], 1));
        assert_eq!(limited(5), (vec![(1, 3)], 1));
        assert_eq!(limited(6), (vec![(1, 3), (2, 3)], 2));
        assert_eq!(limited(9), (vec![(1, 3), (2, 3), (3, 3)], 3));
    }

    #[test]
    fn a_window_ends_where_its_bytes_do() {
        let schema = schema();
        let log = [1, 2, 3].map(|seq| commit(seq, vec![change(&schema, "todos", "1", "a")]));
        let each = log[0].changes[0].bytes();
        let limited = |max| shape(&deliver(&schema, &window(&schema, 3, 100), &log, max));
        assert_eq!(limited(0), (vec![(1, 1)], 1));
        assert_eq!(limited(2 * each - 1), (vec![(1, 1)], 1));
        assert_eq!(limited(2 * each), (vec![(1, 1), (2, 1)], 2));
        assert_eq!(limited(3 * each), (vec![(1, 1), (2, 1), (3, 1)], 3));
    }
}

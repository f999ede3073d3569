//! What a store keeps of the pages of a backfill while it walks their results.

use tidegate_engine::CommitSeq;
use tidegate_engine::backfill::scan::{PageId, Place};
use tidegate_engine::push::decode_push_result;

type Page = (CommitSeq, PageId);

/// Collects the pages that a new owner needs: those of the newest scan, those of
/// the newest catch-up window, and the newest page of all. A backfill that runs for
/// weeks has many more.
///
/// Results come in the byte order of their commit ids, in which the pages of one
/// window stand together.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    scan: Vec<Page>,
    window: Vec<Page>,
    newest_window: Vec<Page>,
    newest: Option<Page>,
}

impl Pages {
    /// Takes a stored result. One without a commit is no page that was written.
    pub(crate) fn take(&mut self, client_commit_id: &str, result: &str) {
        let seq = decode_push_result(result).and_then(|result| result.commit_seq);
        let (Some(seq), Some(page)) = (seq, PageId::parse(client_commit_id)) else {
            return;
        };
        if self
            .newest
            .as_ref()
            .is_none_or(|(newest, _)| *newest <= seq)
        {
            self.newest = Some((seq, page.clone()));
        }
        match scan_start(&page) {
            Some(start) => {
                match self.scan.first().and_then(|(_, kept)| scan_start(kept)) {
                    Some(kept) if kept > start => return,
                    Some(kept) if kept < start => self.scan.clear(),
                    _ => {}
                }
                self.scan.push((seq, page));
            }
            None => {
                let same = self
                    .window
                    .first()
                    .is_none_or(|(_, kept)| is_same_window(kept, &page));
                if !same {
                    self.end_window();
                }
                self.window.push((seq, page));
            }
        }
    }

    /// The pages, oldest first.
    pub(crate) fn finish(mut self) -> Vec<PageId> {
        self.end_window();
        let mut kept = self.scan;
        kept.append(&mut self.newest_window);
        kept.extend(self.newest);
        kept.sort();
        kept.dedup();
        kept.into_iter().map(|(_, page)| page).collect()
    }

    fn end_window(&mut self) {
        let newest = |pages: &[Page]| pages.iter().map(|(seq, _)| *seq).max();
        if newest(&self.window) > newest(&self.newest_window) {
            std::mem::swap(&mut self.window, &mut self.newest_window);
        }
        self.window.clear();
    }
}

fn scan_start(page: &PageId) -> Option<CommitSeq> {
    match &page.place {
        Place::Scan { start, .. } => Some(*start),
        Place::CatchUp { .. } => None,
    }
}

fn is_same_window(a: &PageId, b: &PageId) -> bool {
    let bounds = |page: &PageId| match &page.place {
        Place::CatchUp { after, through, .. } => Some((*after, *through)),
        Place::Scan { .. } => None,
    };
    a.owner_epoch == b.owner_epoch && a.fingerprint == b.fingerprint && bounds(a) == bounds(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ssp2::{OperationOutcome, OperationResult};
    use std::sync::Arc;
    use tidegate_engine::OwnerEpoch;
    use tidegate_engine::backfill::scan::KeyRange;
    use tidegate_engine::model::StoredPushResult;
    use tidegate_engine::push::encode_push_result;

    fn page(epoch: i64, place: Place) -> PageId {
        PageId {
            owner_epoch: OwnerEpoch(epoch),
            fingerprint: "p".into(),
            place,
        }
    }

    fn scan(epoch: i64, start: i64, through: &str) -> PageId {
        let done = KeyRange {
            table: "t".into(),
            after: None,
            through: Some(Arc::from(through)),
        };
        let start = CommitSeq(start);
        page(epoch, Place::Scan { start, done })
    }

    fn window(epoch: i64, after: i64, through: i64, part: u32) -> PageId {
        let (after, through) = (CommitSeq(after), CommitSeq(through));
        page(
            epoch,
            Place::CatchUp {
                after,
                through,
                part,
            },
        )
    }

    fn applied(seq: i64) -> StoredPushResult {
        StoredPushResult {
            commit_seq: Some(CommitSeq(seq)),
            recorded_at_ms: None,
            results: vec![OperationResult {
                op_index: 0,
                outcome: OperationOutcome::Applied,
            }],
            details: Vec::new(),
        }
    }

    fn kept(written: &[(i64, PageId)]) -> Vec<PageId> {
        let mut stored: Vec<(String, i64)> = written
            .iter()
            .map(|(seq, page)| (page.encode(), *seq))
            .collect();
        stored.sort();
        let mut pages = Pages::default();
        for (id, seq) in stored {
            pages.take(&id, &encode_push_result(&applied(seq)));
        }
        pages.finish()
    }

    #[test]
    fn pages_of_the_newest_scan_and_window_are_kept_oldest_first() {
        let written = [
            (11, scan(1, 10, "m")),
            (12, scan(1, 10, "c")),
            (20, window(1, 10, 15, 0)),
            (31, scan(2, 30, "z")),
            (32, scan(3, 30, "b")),
            (40, window(3, 30, 39, 0)),
            (41, window(3, 30, 39, 1)),
            (52, window(3, 39, 100, 1)),
            (51, window(3, 39, 100, 0)),
            (50, window(3, 39, 50, 0)),
        ];
        let expected: Vec<PageId> = [3, 4, 8, 7]
            .into_iter()
            .map(|at: usize| written[at].1.clone())
            .collect();
        assert_eq!(kept(&written), expected);
    }

    #[test]
    fn the_newest_page_is_last_even_of_an_older_scan() {
        let written = [(31, scan(2, 30, "z")), (33, scan(1, 10, "m"))];
        assert_eq!(kept(&written), [scan(2, 30, "z"), scan(1, 10, "m")]);
    }

    #[test]
    fn what_is_no_written_page_is_passed_over() {
        let mut pages = Pages::default();
        let rejected = StoredPushResult {
            commit_seq: None,
            ..applied(1)
        };
        pages.take(&scan(1, 1, "a").encode(), &encode_push_result(&rejected));
        pages.take("no page", &encode_push_result(&applied(2)));
        pages.take(&scan(1, 1, "b").encode(), "unreadable");
        assert!(pages.finish().is_empty());
    }
}

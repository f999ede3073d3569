//! Key ranges, page ids and where a new owner goes on.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_engine::backfill::checkpoint::{Checkpoint, CheckpointState};
use tidegate_engine::backfill::scan::{
    Cursor, KeyRange, PageId, Place, Resume, RowId, client_id, resume, share,
};
use tidegate_engine::{CommitSeq, OwnerEpoch, SchemaVersion};

fn id(text: &str) -> RowId {
    text.into()
}

fn range(after: Option<&str>, through: Option<&str>) -> KeyRange {
    KeyRange {
        table: "todos".into(),
        after: after.map(id),
        through: through.map(id),
    }
}

fn page(fingerprint: &str, place: Place) -> PageId {
    PageId {
        owner_epoch: OwnerEpoch(3),
        fingerprint: fingerprint.into(),
        place,
    }
}

fn scanned(start: i64, after: Option<&str>, through: &str) -> PageId {
    let done = range(after, Some(through));
    let start = CommitSeq(start);
    page("f", Place::Scan { start, done })
}

fn at(watermark: i64) -> Checkpoint {
    Checkpoint {
        partition: "p".into(),
        name: "b".into(),
        schema_version: SchemaVersion(2),
        state: CheckpointState::Backfilling,
        watermark: CommitSeq(watermark),
        owner_epoch: OwnerEpoch(4),
        observed_rows: 0,
        updated_at_ms: 0,
    }
}

fn resumed(watermark: i64, horizon: i64, pages: &[PageId]) -> Resume {
    resume(
        &at(watermark),
        CommitSeq(horizon),
        "f",
        &["todos", "lists"],
        pages,
    )
}

#[test]
fn a_page_id_is_deterministic_and_reads_back() {
    assert_eq!(client_id("a\"b").as_str(), r#"["backfill","a\"b"]"#);
    let scan = scanned(9, None, "k\"1");
    assert_eq!(scan.encode(), r#"["scan",3,"f",9,"todos",null,"k\"1"]"#);
    let place = Place::CatchUp {
        after: CommitSeq(9),
        through: CommitSeq(12),
        part: 1,
    };
    let log = page("f", place);
    assert_eq!(log.encode(), r#"["log",3,"f",9,12,1]"#);
    for id in [scan, log] {
        assert_eq!(PageId::parse(&id.encode()), Some(id));
    }
    for other in [
        "",
        "c1",
        "[]",
        "[\"scan\",1,\"f\",2]",
        "[\"log\",1,\"f\",2,3,-1]",
        "{}",
    ] {
        assert_eq!(PageId::parse(other), None);
    }
}

#[test]
fn a_cursor_reads_its_range_to_the_end() {
    let cursor = Cursor::new(range(Some("a"), Some("m")));
    assert_eq!(cursor.next_page(), range(Some("a"), Some("m")));
    let cursor = cursor.past(Some(&id("f")), true).unwrap();
    assert_eq!(cursor.next_page(), range(Some("f"), Some("m")));
    assert_eq!(*cursor.range(), range(Some("a"), Some("m")));
    assert_eq!(cursor.clone().past(Some(&id("m")), false), None);
    assert_eq!(cursor.past(None, true), None);
}

#[test]
fn a_new_owner_finishes_what_is_left_of_a_scan() {
    let pages = [
        scanned(5, None, "zzz"),
        scanned(9, None, "c"),
        scanned(9, Some("m"), "p"),
        scanned(9, None, "e"),
    ];
    let expected = Resume::Scan {
        start: CommitSeq(9),
        ranges: vec![
            range(Some("e"), Some("m")),
            range(Some("p"), None),
            KeyRange::whole("lists"),
        ],
    };
    assert_eq!(resumed(0, 9, &pages), expected);
}

#[test]
fn a_complete_scan_goes_on_with_the_log() {
    let pages = [scanned(9, None, "c")];
    assert_eq!(
        resumed(9, 9, &pages),
        Resume::CatchUp {
            after: CommitSeq(9)
        }
    );
}

#[test]
fn work_that_cannot_be_trusted_begins_anew() {
    let other = page("g", scanned(9, None, "c").place);
    let log = Place::CatchUp {
        after: CommitSeq(1),
        through: CommitSeq(2),
        part: 0,
    };
    let (ours, log) = (scanned(9, None, "c"), page("f", log));
    assert_eq!(resumed(0, 0, &[]), Resume::FromTheStart, "no page");
    assert_eq!(
        resumed(9, 0, &[]),
        Resume::FromTheStart,
        "nobody knows by which definition"
    );
    assert_eq!(
        resumed(0, 10, std::slice::from_ref(&ours)),
        Resume::FromTheStart,
        "pruned"
    );
    assert_eq!(
        resumed(9, 10, std::slice::from_ref(&ours)),
        Resume::FromTheStart,
        "pruned"
    );
    assert_eq!(
        resumed(0, 0, &[ours.clone(), other.clone()]),
        Resume::FromTheStart,
        "another definition"
    );
    assert_eq!(
        resumed(0, 0, &[other, ours]),
        Resume::FromTheStart,
        "another definition in this scan"
    );
    assert_eq!(resumed(0, 0, &[log]), Resume::FromTheStart, "no scan");
}

fn ids() -> impl Strategy<Value = Vec<RowId>> {
    prop::collection::btree_set("[a-d]{1,3}", 0..30)
        .prop_map(|ids| ids.into_iter().map(Arc::from).collect())
}

proptest! {
    /// Every row is in exactly one part, and in exactly one worker's share.
    #[test]
    fn a_split_keeps_every_row_once(sample in ids(), rows in ids(), parts in 0..6_usize) {
        let ranges = KeyRange::whole("todos").split(&sample, parts);
        prop_assert!(ranges.len() <= parts.max(1));
        let shares = share(ranges.clone(), 3);
        for row in &rows {
            prop_assert_eq!(ranges.iter().filter(|range| range.contains(row)).count(), 1);
            prop_assert_eq!(shares.iter().flatten().filter(|range| range.contains(row)).count(), 1);
        }
        if sample.len() >= parts && parts > 0 {
            prop_assert!(ranges.len() + 1 >= parts);
        }
    }

    /// Crashed anywhere, with any splitting: done rows are not scanned again and
    /// every other one is, once.
    #[test]
    fn a_resumed_scan_reads_exactly_the_rest(
        sample in ids(), rows in ids(), parts in 1..4_usize,
        stops in prop::collection::vec(0..12_usize, 4), page_rows in 1..4_usize,
    ) {
        let mut pages = Vec::new();
        let mut done = std::collections::BTreeSet::new();
        for (range, stop) in KeyRange::whole("todos").split(&sample, parts).into_iter().zip(stops) {
            let mut cursor = Some(Cursor::new(range));
            for _ in 0..stop {
                let Some(at) = cursor.take() else { break };
                let wanted = at.next_page();
                let found: Vec<&RowId> = rows.iter().filter(|row| wanted.contains(row)).collect();
                let read: Vec<&RowId> = found.iter().copied().take(page_rows).collect();
                let Some(last) = read.last() else { break };
                done.extend(read.iter().map(|row| (*row).clone()));
                let done = KeyRange {
                    through: Some(RowId::clone(last)),
                    ..at.range().clone()
                };
                pages.push(page("f", Place::Scan { start: CommitSeq(9), done }));
                cursor = at.past(Some(last), found.len() > read.len());
            }
        }
        if pages.is_empty() {
            prop_assert_eq!(resumed(0, 0, &pages), Resume::FromTheStart);
        } else {
            let Resume::Scan { ranges, .. } = resumed(0, 0, &pages) else {
                panic!("the scan is unfinished");
            };
            for row in &rows {
                let left = ranges.iter().filter(|range| &*range.table == "todos" && range.contains(row));
                prop_assert_eq!(left.count(), usize::from(!done.contains(row)), "{}", row);
            }
        }
    }
}

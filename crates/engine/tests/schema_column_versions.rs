//! §2.2: column versions and their stored form.

use proptest::prelude::*;
use tidegate_engine::column_versions::{ColumnVersions, ColumnVersionsError};

#[test]
fn s2_2_an_insert_sets_every_column_to_1_and_stores_nothing() {
    let versions = ColumnVersions::inserted(3);
    assert_eq!((versions.get(0), versions.get(2)), (1, 1));
    assert_eq!(versions.encode(1), None);
}

#[test]
fn s2_2_a_row_older_than_column_versions_reads_as_its_own_version() {
    let versions = ColumnVersions::decode(None, 7, 2).unwrap();
    assert_eq!((versions.get(0), versions.get(1)), (7, 7));
}

#[test]
fn s2_2_pairs_stand_for_columns_above_1_in_ordinal_order() {
    let mut versions = ColumnVersions::inserted(200);
    versions.set(1, 2);
    versions.set(130, 300);
    let blob = versions.encode(300).unwrap();
    assert_eq!(&blob[..], &[1, 2, 0x82, 0x01, 0xac, 0x02]);
}

#[test]
fn s2_2_an_upsert_of_the_key_alone_does_not_turn_into_a_legacy_row() {
    let blob = ColumnVersions::inserted(3).encode(2);
    assert_eq!(blob.as_deref(), Some(&[][..]));
    let read = ColumnVersions::decode(blob.as_deref(), 2, 3).unwrap();
    assert_eq!((read.get(0), read.get(1), read.get(2)), (1, 1, 1));
}

#[test]
fn a_blob_that_no_server_wrote_is_an_error() {
    let decode = |blob: &[u8]| ColumnVersions::decode(Some(blob), 5, 2).unwrap_err();
    assert_eq!(decode(&[0]), ColumnVersionsError::Number);
    assert_eq!(decode(&[0, 0x80]), ColumnVersionsError::Number);
    assert_eq!(decode(&[0xff; 10]), ColumnVersionsError::Number);
    assert_eq!(decode(&[2, 2]), ColumnVersionsError::Ordinal);
    assert_eq!(decode(&[1, 2, 0, 2]), ColumnVersionsError::Order);
    assert_eq!(decode(&[1, 2, 1, 2]), ColumnVersionsError::Order);
    assert_eq!(decode(&[0, 6]), ColumnVersionsError::Version);
    assert_eq!(decode(&[0, 0]), ColumnVersionsError::Version);
}

proptest! {
    #[test]
    fn column_versions_round_trip(versions in prop::collection::vec(1i64..=(1 << 53), 0..40), extra in 0i64..5) {
        let row_version = versions.iter().copied().max().unwrap_or(1) + extra;
        let mut written = ColumnVersions::inserted(versions.len());
        for (ordinal, version) in versions.iter().enumerate() {
            written.set(ordinal, *version);
        }
        let blob = written.encode(row_version);
        let read = ColumnVersions::decode(blob.as_deref(), row_version, versions.len()).unwrap();
        prop_assert_eq!(read, written);
    }

    #[test]
    fn decoding_arbitrary_bytes_never_panics(blob in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = ColumnVersions::decode(Some(&blob), 9, 9);
    }
}

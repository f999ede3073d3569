//! migrations.md rule 1: which layout changes may run, and how payloads follow.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use ssp2::{Column, ColumnType, Value, decode_row, encode_row};
use tidegate_engine::TableId;
use tidegate_engine::schema::migration::{RefusalReason, TableChange, plan, rewrite_payload};
use tidegate_engine::schema::{Schema, StoredLayouts};

type Columns<'a> = &'a [(&'a str, &'a str, bool)];

fn schema(tables: &[(&str, Columns<'_>)]) -> Schema {
    let tables: Vec<Json> = tables
        .iter()
        .map(|(name, columns)| {
            let columns: Vec<Json> = columns
                .iter()
                .map(|(name, ty, nullable)| json!({"name": name, "type": ty, "nullable": nullable}))
                .collect();
            json!({"name": name, "primaryKey": "id", "columns": columns, "scopes": ["id:{id}"]})
        })
        .collect();
    Schema::load(&json!({"version": 1, "tables": tables}).to_string()).unwrap()
}

const ID: (&str, &str, bool) = ("id", "string", false);
const A: (&str, &str, bool) = ("a", "integer", true);
const B: (&str, &str, bool) = ("b", "string", false);

fn refusals(
    from: &[(&str, &str, bool)],
    to: &[(&str, &str, bool)],
) -> Vec<(String, RefusalReason)> {
    let stored = StoredLayouts::of(&schema(&[("t", from)]));
    plan(&stored, &schema(&[("t", to)]))
        .unwrap_err()
        .into_iter()
        .map(|refusal| {
            assert_eq!(refusal.table, "t");
            assert!(refusal.to_string().contains(&refusal.column));
            (refusal.column, refusal.reason)
        })
        .collect()
}

#[test]
fn a_new_database_creates_every_table() {
    let plan = plan(
        &StoredLayouts::default(),
        &schema(&[("t", &[ID]), ("u", &[ID])]),
    )
    .unwrap();
    assert!(
        plan.tables
            .iter()
            .all(|table| table.change == TableChange::Created)
    );
    assert!(plan.retired.is_empty());
}

#[test]
fn tables_are_created_retired_extended_or_left_alone() {
    let old = StoredLayouts::of(&schema(&[
        ("gone", &[ID]),
        ("same", &[ID, B]),
        ("more", &[ID, B]),
    ]));
    let new = schema(&[("same", &[ID, B]), ("more", &[ID, B, A]), ("fresh", &[ID])]);
    let plan = plan(&old, &new).unwrap();
    assert_eq!(plan.retired, ["gone"]);
    assert_eq!(plan.tables[0].change, TableChange::Unchanged);
    assert_eq!(plan.tables[1].table, TableId(1));
    assert_eq!(
        plan.tables[1].change,
        TableChange::Appended {
            stored: new.tables()[0].columns.clone(),
            columns: 2..3,
        }
    );
    assert_eq!(plan.tables[2].change, TableChange::Created);
}

#[test]
fn removing_or_renaming_a_column_is_refused() {
    assert_eq!(
        refusals(&[ID, A, B], &[ID, A]),
        [("b".into(), RefusalReason::Removed)]
    );
    assert_eq!(
        refusals(&[ID, A], &[ID, ("z", "integer", true)]),
        [
            ("a".into(), RefusalReason::Removed),
            ("z".into(), RefusalReason::Inserted)
        ]
    );
}

#[test]
fn reordering_columns_is_refused() {
    assert_eq!(
        refusals(&[ID, A, B], &[ID, B, A]),
        [
            ("a".into(), RefusalReason::Moved),
            ("b".into(), RefusalReason::Moved)
        ]
    );
}

#[test]
fn inserting_a_column_before_stored_ones_is_refused() {
    assert!(refusals(&[ID, B], &[ID, A, B]).contains(&("a".into(), RefusalReason::Inserted)));
}

#[test]
fn retyping_a_column_is_refused() {
    assert_eq!(
        refusals(&[ID, A], &[ID, ("a", "float", true)]),
        [(
            "a".into(),
            RefusalReason::Retyped {
                from: "integer",
                to: "float"
            }
        )]
    );
}

#[test]
fn changing_nullability_is_refused() {
    assert_eq!(
        refusals(&[ID, A], &[ID, ("a", "integer", false)]),
        [("a".into(), RefusalReason::Nullability)]
    );
}

#[test]
fn appending_a_column_that_is_not_nullable_is_refused() {
    assert_eq!(
        refusals(&[ID], &[ID, B]),
        [("b".into(), RefusalReason::AppendedNotNullable)]
    );
}

#[test]
fn all_refusals_of_all_tables_are_reported() {
    let old = StoredLayouts::of(&schema(&[("t", &[ID, A]), ("u", &[ID, A])]));
    let new = schema(&[("t", &[ID]), ("u", &[ID, ("a", "string", true)])]);
    let refusals = plan(&old, &new).unwrap_err();
    let tables: Vec<_> = refusals
        .iter()
        .map(|refusal| refusal.table.as_str())
        .collect();
    assert_eq!(tables, ["t", "u"]);
}

fn nullable(count: usize) -> Vec<Column> {
    (0..count)
        .map(|ordinal| Column {
            name: format!("c{ordinal}"),
            ty: ColumnType::Integer,
            nullable: true,
        })
        .collect()
}

#[test]
fn a_payload_is_rewritten_only_for_an_extension() {
    let row = encode_row(&nullable(2), &[Value::Null, Value::Integer(1)]).unwrap();
    assert!(rewrite_payload(&nullable(2), &nullable(1), &row).is_err());
    let mut strict = nullable(3);
    strict[2].nullable = false;
    let error = rewrite_payload(&nullable(2), &strict, &row).unwrap_err();
    assert_eq!(error.column, Some(2));
    let mut other = nullable(3);
    other[0].ty = ColumnType::String;
    assert!(rewrite_payload(&nullable(2), &other, &row).is_err());
}

#[test]
fn a_damaged_payload_is_refused() {
    let rewrite =
        |row: &'static [u8]| rewrite_payload(&nullable(2), &nullable(3), &Bytes::from_static(row));
    assert!(rewrite(&[]).is_err());
    assert!(
        rewrite(&[0b0000_0111]).is_err(),
        "a padding bit of the stored layout"
    );
    assert_eq!(&rewrite(&[0b0000_0011]).unwrap()[..], &[0b0000_0111]);
}

proptest! {
    #[test]
    fn a_rewritten_payload_reads_as_the_old_row_plus_nulls(
        values in prop::collection::vec(prop::option::of(-1000i64..1000), 0..20),
        appended in 0usize..20,
    ) {
        let (old, new) = (nullable(values.len()), nullable(values.len() + appended));
        let values: Vec<Value> = values.into_iter().map(|v| v.map_or(Value::Null, Value::Integer)).collect();
        let row = rewrite_payload(&old, &new, &encode_row(&old, &values).unwrap()).unwrap();
        let mut expected = values;
        expected.resize(new.len(), Value::Null);
        prop_assert_eq!(&row, &encode_row(&new, &expected).unwrap());
        prop_assert_eq!(decode_row(&new, &row).unwrap(), expected);
    }
}

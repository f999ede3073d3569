//! Declared projections: load-time checks with their places, and evaluation.

use proptest::prelude::*;
use ssp2::Value;
use tidegate_engine::backfill::projection::{
    FailureReason, ProjectedRow, Projection, ProjectionConfig, ProjectionFailure, Shape, SourceRow,
};

use super::world::*;

fn project(
    text: &str,
    table_name: &str,
    values: &[Value],
) -> Result<Option<ProjectedRow>, ProjectionFailure> {
    let schema = schema();
    let table = schema.table(table_name).unwrap();
    let row_id = tidegate_engine::keys::render_key(&values[table.primary_key]).unwrap();
    let row = SourceRow {
        table,
        row_id: &row_id,
        values,
    };
    load(text).unwrap().project(&row)
}

/// A backfill of one column.
fn one(column: &str, expression: &str) -> String {
    format!(
        "name='n'\nschema_version=2\nsources=['todos']\ntarget='todos'\n[columns]\n{column} = '''{expression}'''\n"
    )
}

fn refusal(text: &str) -> Vec<String> {
    load(text)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn columns_are_computed_from_their_row() {
    let row = todo(
        "t1",
        "l",
        " Hello World ",
        Some(3),
        Some(r#"{"tags":["b","a"]}"#),
    );
    let projected = project(COLUMNS, "todos", &row).unwrap().unwrap();
    assert_eq!(&*projected.row_id, "t1");
    assert_eq!(
        projected.cells,
        [
            (6, text("hello world")),
            (7, Value::Float(1.5)),
            (8, Value::Boolean(true)),
            (
                9,
                text(r#"{"a":1,"tags":["b","a"],"title":" Hello World "}"#)
            ),
            (10, Value::Bytes(" Hello World ".into())),
        ]
    );
    let left_out = todo("t1", "l", "", None, None);
    assert_eq!(project(COLUMNS, "todos", &left_out), Ok(None));
    assert_eq!(
        *load(COLUMNS).unwrap().shape(),
        Shape::Columns(vec![6, 7, 8, 9, 10])
    );
}

#[test]
fn rows_of_several_sources_have_keys_of_their_own() {
    let projected = project(ROWS, "todos", &todo("7", "l", "x", None, None))
        .unwrap()
        .unwrap();
    assert_eq!(&*projected.row_id, "todos:7");
    let counter = [Value::Integer(7), text("m"), text("y")];
    let projected = project(ROWS, "counters", &counter).unwrap().unwrap();
    assert_eq!(
        projected.cells,
        [(0, text("counters:7")), (1, text("m")), (2, text("y"))]
    );
    let schema = schema();
    let rows = load(ROWS).unwrap();
    let counters = schema.table("counters").unwrap();
    assert_eq!(&*rows.target_row_id(counters, "7").unwrap(), "counters:7");
    assert!(rows.target_row_id(counters, "no number").is_err());
}

#[test]
fn a_failure_names_row_and_column_but_never_contents() {
    for (expression, reason) in [
        (
            "row.title + string(9223372036854775807 + row.size)",
            FailureReason::Overflow,
        ),
        (
            "string(row.size / (row.size - row.size))",
            FailureReason::DivisionByZero,
        ),
        ("row.meta.missing", FailureReason::NoSuchElement),
        ("string(int(row.title))", FailureReason::ConversionFailed),
        ("row.meta[row.title]", FailureReason::NoSuchElement),
        ("row.meta.n + 1", FailureReason::TypeMismatch),
    ] {
        let row = todo("t1", "l", "top secret", Some(5), Some(r#"{"n":"hidden"}"#));
        let failure = project(&one("title_key", expression), "todos", &row).unwrap_err();
        assert_eq!(failure.reason, reason, "{expression}");
        let shown = failure.to_string();
        assert!(shown.starts_with("todos row t1, title_key: "), "{shown}");
        assert!(
            !shown.contains("secret") && !shown.contains("hidden"),
            "{shown}"
        );
    }
}

#[test]
fn null_is_no_number_and_no_text() {
    let row = todo("t1", "l", "a", None, None);
    let failure = project(&one("half", "double(row.size)"), "todos", &row).unwrap_err();
    assert_eq!(failure.reason, FailureReason::TypeMismatch);
}

#[test]
fn values_must_fit_their_columns() {
    let row = |meta: &str| todo("t1", "l", "a", Some(1), Some(meta));
    let reason = |column, expression, meta: &str| {
        let text = one(column, expression);
        project(&text, "todos", &row(meta)).unwrap_err().reason
    };
    assert!(matches!(
        reason("title_key", "row.meta", "1"),
        FailureReason::WrongType { .. }
    ));
    assert_eq!(
        reason("half", "double('NaN')", "1"),
        FailureReason::NotFinite
    );
    assert_eq!(reason("summary", "row.meta", "{"), FailureReason::NotJson);
    assert_eq!(
        reason("summary", "{1: row.meta}", "1"),
        FailureReason::NotJson
    );
    let big = r#"{"id": 9007199254740992}"#;
    let text = ROWS.replace(
        "label = \"row.title\"",
        "label = \"row.title\"\nnote = \"row.note\"",
    );
    assert!(load(&text).is_err());
    assert_eq!(
        reason("size", "row.meta.id", big),
        FailureReason::UnsafeInteger
    );
}

#[test]
fn every_broken_rule_is_reported_with_its_place() {
    let broken = r#"
name = ""
schema_version = 3
sources = ["todos", "nope", "todos"]
target = "todos"
where = "row.title"
[columns]
id = "row.id"
list_id = "row.list_id"
title = "row.title"
missing = "1"
photo = "row.title"
secret = "bytes(row.title)"
title_key = "row.nothing"
half = "row.size"
long = "row.title +"
raw = "row.secret"
summary = "row.summary"
"#;
    let found = refusal(broken);
    for expected in [
        "name: must have 1 to 128 bytes",
        "schema_version: the schema's version is 2",
        "sources[1]: the schema has no table nope",
        "sources[2]: is named twice",
        "key: is missing: without it the target must be the one source, whose columns are filled",
        "where: the value is a string, the column a boolean",
        "columns.id: a key or scope column never changes",
        "columns.list_id: a key or scope column never changes",
        "columns.title: must be nullable: old rows have no value yet",
        "columns.missing: todos has no such column",
        "columns.photo: a blob_ref column cannot be computed",
        "columns.secret: an encrypted column cannot be computed",
        "columns.title_key: todos has no column nothing",
        "columns.half: the value is a int, the column a float",
        "columns.raw: secret is encrypted by clients",
        "columns.summary: reads summary, which this backfill computes",
    ] {
        assert!(
            found.iter().any(|error| error == expected),
            "{expected} is not in {found:#?}"
        );
    }
    assert!(
        found
            .iter()
            .any(|error| error.starts_with("columns.long: line 1:")),
        "{found:#?}"
    );
}

#[test]
fn a_table_that_is_filled_by_key_needs_its_scopes_and_columns() {
    let found = refusal(
        "name='n'\nschema_version=2\nsources=['todos','cards']\ntarget='cards'\nkey='row.title'\n[columns]\nid='row.id'\n",
    );
    for expected in [
        "target: a table that is filled by key cannot be a source too",
        "columns: list_id is missing: it is a scope column of the target",
        "columns: label is missing: it is not nullable",
        "columns.id: is the primary key; key computes it",
        "key: may read the primary key of todos alone, which is id",
    ] {
        assert!(
            found.iter().any(|error| error == expected),
            "{expected} is not in {found:#?}"
        );
    }
}

#[test]
fn expressions_are_bounded_and_cannot_loop() {
    for (expression, expected) in [
        ("[1, 2].map(x, x)", "loops"),
        ("row.meta.exists(x, x == 1)", "loops"),
        ("other.title", "unknown name other"),
        ("row", "uses row as a whole"),
        ("now()", "unknown function now"),
        ("row.title.replace('a', 'b')", "unknown function replace"),
        ("'%s'.format([row.title])", "unknown function format"),
        ("  ", "is empty"),
    ] {
        let found = refusal(&one("title_key", expression));
        assert!(found[0].contains(expected), "{found:?}");
    }
    for hostile in [
        "(".repeat(3_000),
        "(".repeat(64) + "1" + &")".repeat(64),
        "[".repeat(65) + &"]".repeat(65),
        vec!["1"; 1_000].join("+"),
        "!".repeat(2_000) + "true",
        "true ? 1 : ".repeat(150) + "1",
        "row.title".to_owned() + &".a".repeat(900),
    ] {
        let ends = load(&one("title_key", &hostile));
        assert!(ends.is_err(), "{hostile}");
    }
}

/// The deepest expression there may be leaves a thread of the runtime (2 MiB) room.
#[test]
fn evaluation_needs_little_stack() {
    let chain = vec!["row.title"; 23].join(" + ");
    let projection = load(&one("title_key", &chain)).unwrap();
    let run = move || {
        let schema = schema();
        let values = todo("t", "l", "ab", None, None);
        let row = SourceRow {
            table: schema.table("todos").unwrap(),
            row_id: "t",
            values: &values,
        };
        projection.project(&row).unwrap().unwrap().cells[0]
            .1
            .clone()
    };
    let small = std::thread::Builder::new()
        .stack_size(3 << 19)
        .spawn(run)
        .unwrap();
    assert_eq!(small.join().unwrap(), text(&"ab".repeat(23)));
}

#[test]
fn a_document_that_is_no_configuration_is_refused_with_its_line() {
    let refused = ProjectionConfig::parse("name = 'n'\nschema_version = 'two'\n").unwrap_err();
    assert_eq!(refused.location, "line 2");
    let unknown = ProjectionConfig::parse(&format!("colour = 1\n{COLUMNS}")).unwrap_err();
    assert!(unknown.reason.contains("colour"), "{unknown}");
}

#[test]
fn a_changed_definition_has_another_fingerprint() {
    let print = |text: &str| load(text).unwrap().fingerprint().to_owned();
    assert_eq!(
        print(COLUMNS),
        print(&COLUMNS.replace("title-key", "renamed"))
    );
    assert_ne!(print(COLUMNS), print(&COLUMNS.replace("> 10", "> 11")));
    assert_ne!(
        print(COLUMNS),
        print(&COLUMNS.replace("where = \"row.title != ''\"", ""))
    );
}

proptest! {
    /// Any row either projects or fails with a reason; twice the same.
    #[test]
    fn any_row_has_one_outcome(
        title in ".{0,40}",
        size in prop::option::of(any::<i64>()),
        meta in prop::option::of(prop_oneof![
            Just("{}".to_owned()), Just("[1]".to_owned()), Just("{\"tags\":1e400}".to_owned()),
            Just("{\"tags\":{\"b\":[2,{}],\"a\":null,\"c\":1.5}}".to_owned()), ".{0,12}",
        ]),
    ) {
        let row = todo("t", "l", &title, size, meta.as_deref());
        let first = project(COLUMNS, "todos", &row);
        prop_assert_eq!(&first, &project(COLUMNS, "todos", &row));
    }
}

/// The example that operators copy from fits a schema.
#[test]
fn the_example_configuration_loads() {
    let example = include_str!("../../../../config/backfills/example.toml");
    let projection = load(example).unwrap();
    assert_eq!(projection.name(), "todo-title-key");
    assert!(!projection.serve_while_backfilling());
}

//! §2.4 same-version readiness: stored layouts.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::{Value as Json, json};
use tidegate_engine::schema::{Schema, StoredLayouts};

const GENERATED: &str = include_str!("data/generated.ir.json");

fn schema() -> Schema {
    let document = json!({
        "version": 1,
        "tables": [
            {
                "name": "lists", "primaryKey": "id", "scopes": ["team:{team}"],
                "columns": [{"name": "id", "type": "string"}, {"name": "team", "type": "string"}],
            },
            {
                "name": "tasks", "primaryKey": "id", "scopes": ["team:{team}"],
                "columns": [
                    {"name": "id", "type": "string"}, {"name": "team", "type": "string"},
                    {"name": "list", "type": "string", "nullable": true},
                ],
            },
        ],
    });
    Schema::load(&document.to_string()).unwrap()
}

#[test]
fn layouts_keep_declaration_order() {
    let schema = schema();
    assert_eq!(
        schema.layouts_json(),
        concat!(
            r#"{"lists":[{"name":"id","type":"string","nullable":false},{"name":"team","type":"string","nullable":false}],"#,
            r#""tasks":[{"name":"id","type":"string","nullable":false},{"name":"team","type":"string","nullable":false},"#,
            r#"{"name":"list","type":"string","nullable":true}]}"#
        )
    );
}

#[test]
fn layouts_round_trip() {
    let schema = Schema::load(GENERATED).unwrap();
    let stored = StoredLayouts::parse(&schema.layouts_json()).unwrap();
    assert_eq!(stored, StoredLayouts::of(&schema));
    assert_eq!(stored.mismatch(&schema), None);
    assert_eq!(StoredLayouts::parse("").unwrap(), StoredLayouts::default());
    assert_eq!(
        StoredLayouts::parse("{}").unwrap(),
        StoredLayouts::default()
    );
    for bad in [
        "[]",
        "{\"t\":[{\"name\":\"a\"}]}",
        "{\"t\":[{\"name\":\"a\",\"type\":\"text\",\"nullable\":true}]}",
    ] {
        assert!(StoredLayouts::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_layout_mismatch_names_the_first_table_and_column() {
    let schema = schema();
    let mismatch = |layouts: Json| {
        let found = StoredLayouts::parse(&layouts.to_string())
            .unwrap()
            .mismatch(&schema)
            .unwrap();
        (found.table, found.column)
    };
    let mut layouts: Json = serde_json::from_str(&schema.layouts_json()).unwrap();
    layouts["extra"] = json!([]);
    assert_eq!(mismatch(layouts.clone()), ("extra".into(), None));
    layouts["tasks"][2]["nullable"] = json!(false);
    assert_eq!(
        mismatch(layouts.clone()),
        ("tasks".into(), Some("list".into()))
    );
    layouts["lists"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "old", "type": "json", "nullable": true}));
    assert_eq!(
        mismatch(layouts.clone()),
        ("lists".into(), Some("old".into()))
    );
    layouts.as_object_mut().unwrap().remove("lists");
    assert_eq!(mismatch(layouts), ("lists".into(), Some("id".into())));
}

//! §2.4, §3.1, §6.11: compiling schema documents.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use ssp2::ColumnType;
use tidegate_engine::schema::{OnDelete, Schema};
use tidegate_engine::scopes::validate_allowed;
use tidegate_engine::{SchemaVersion, TableId};

const GENERATED: &str = include_str!("data/generated.ir.json");

fn column(name: &str, ty: &str) -> Json {
    json!({"name": name, "type": ty, "nullable": false})
}

/// A valid document of one parent and one child table, to break in one place.
fn document() -> Json {
    json!({
        "version": 1,
        "tables": [
            {
                "name": "lists",
                "primaryKey": "id",
                "columns": [column("id", "string"), column("team", "string")],
                "scopes": ["team:{team}"],
            },
            {
                "name": "tasks",
                "primaryKey": "id",
                "columns": [
                    column("id", "string"), column("team", "string"),
                    {"name": "list", "type": "string", "nullable": true},
                ],
                "scopes": [{"pattern": "team:{team}"}],
                "indexes": [{"name": "by_list", "columns": ["list"]}],
                "references": [{"column": "list", "parentTable": "lists", "onDelete": "CASCADE"}],
            },
        ],
    })
}

fn load(document: &Json) -> Result<Schema, Vec<(String, String)>> {
    Schema::load(&document.to_string()).map_err(|errors| {
        assert!(!errors.is_empty());
        errors.into_iter().map(|e| (e.path, e.reason)).collect()
    })
}

/// The paths reported after replacing what `pointer` names.
fn broken(pointer: &str, value: Json) -> Vec<String> {
    let mut document = document();
    *document
        .pointer_mut(pointer)
        .expect("pointer into the document") = value;
    paths(&document)
}

fn paths(document: &Json) -> Vec<String> {
    let errors = load(document).expect_err("the document breaks a rule");
    errors.into_iter().map(|(path, _)| path).collect()
}

#[test]
fn a_generated_document_loads_as_it_is() {
    let schema = Schema::load(GENERATED).unwrap();
    assert_eq!(schema.version(), SchemaVersion(3));
    let names: Vec<_> = schema.tables().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["shelves", "books", "loans", "secrets"]);
    let books = schema.table("books").unwrap();
    assert_eq!((books.id, books.primary_key), (TableId(1), 0));
    assert_eq!(books.scopes[0].prefix, "library");
    assert_eq!(books.scopes[0].variable, "libraryId");
    assert_eq!(books.scopes[0].column, 1);
    assert_eq!(books.column_info[3].crdt_type.as_deref(), Some("yjs-doc"));
    assert_eq!(books.references[0].parent, TableId(0));
    assert_eq!(books.references[0].on_delete, OnDelete::SetNull);
    assert_eq!(
        (books.indexes[1].unique, &books.indexes[1].columns[..]),
        (true, &[1, 0][..])
    );
    let secrets = schema.table("secrets").unwrap();
    assert!(secrets.has_encrypted_column() && !books.has_encrypted_column());
    assert_eq!(
        secrets.column_info[2].declared_type,
        Some(ColumnType::String)
    );
}

#[test]
fn s6_11_on_delete_defaults_to_restrict() {
    let schema = Schema::load(GENERATED).unwrap();
    let loans = schema.table("loans").unwrap();
    assert_eq!(loans.references[0].on_delete, OnDelete::Restrict);
}

#[test]
fn scopes_read_as_strings_and_as_objects() {
    let schema = load(&document()).unwrap();
    let (lists, tasks) = (&schema.tables()[0], &schema.tables()[1]);
    assert_eq!(lists.scopes, tasks.scopes);
    assert!(lists.is_scope_column(1) && !lists.is_scope_column(0));
}

#[test]
fn every_broken_rule_is_reported_at_once() {
    let document = json!({
        "tables": [
            {"name": "sync_x", "primaryKey": "nope", "columns": [column("id", "text")], "scopes": []},
            7,
        ],
    });
    assert_eq!(
        paths(&document),
        [
            "$.version",
            "$.tables[0].name",
            "$.tables[0].columns[0].type",
            "$.tables[0].primaryKey",
            "$.tables[0].scopes",
            "$.tables[1]",
        ]
    );
}

#[test]
fn what_is_not_json_or_no_object_is_an_error_at_the_root() {
    for text in ["{", "[]", "null"] {
        let errors = Schema::load(text).unwrap_err();
        assert_eq!(errors[0].path, "$");
    }
}

#[test]
fn the_version_may_stand_under_either_key_but_not_differ() {
    let with = |fields: Json| {
        let mut document = document();
        let root = document.as_object_mut().unwrap();
        root.remove("version");
        root.extend(fields.as_object().unwrap().clone());
        document
    };
    for fields in [
        json!({"version": 7}),
        json!({"schemaVersion": 7}),
        json!({"version": 7, "schemaVersion": 7}),
    ] {
        assert_eq!(load(&with(fields)).unwrap().version(), SchemaVersion(7));
    }
    assert_eq!(
        paths(&with(json!({"version": 7, "schemaVersion": 8}))),
        ["$.version"]
    );
    for bad in [
        json!(0),
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(2147483648_i64),
    ] {
        assert_eq!(paths(&with(json!({"version": bad}))), ["$.version"]);
    }
    assert_eq!(paths(&with(json!({}))), ["$.version"]);
}

#[test]
fn a_schema_has_at_least_one_table() {
    assert_eq!(broken("/tables", json!([])), ["$.tables"]);
}

#[test]
fn table_names_are_unique_and_not_reserved() {
    for reserved in [
        "sync_x",
        "_sync_x",
        "SYNC_x",
        "tidegate_x",
        "sqlite_x",
        "_syncular_x",
    ] {
        let paths = broken("/tables/0/name", json!(reserved));
        assert_eq!(paths[0], "$.tables[0].name", "{reserved}");
    }
    assert_eq!(
        broken("/tables/1/name", json!("Lists")),
        ["$.tables[1].name"],
        "names that differ in case collide in SQLite"
    );
    assert_eq!(
        broken("/tables/1/name", json!("x".repeat(64))),
        ["$.tables[1].name"]
    );
}

#[test]
fn column_names_are_unique_and_not_reserved() {
    for name in ["_sync_scopes", "sync_version"] {
        let paths = broken("/tables/1/columns/0/name", json!(name));
        assert_eq!(paths[0], "$.tables[1].columns[0].name", "{name}");
    }
    let twice = broken("/tables/1/columns/2/name", json!("Team"));
    assert_eq!(twice[0], "$.tables[1].columns[2].name");
}

#[test]
fn s2_4_a_primary_key_exists_and_has_an_eligible_type() {
    assert_eq!(
        broken("/tables/0/primaryKey", json!("nope")),
        ["$.tables[0].primaryKey"]
    );
    for ty in ["string", "integer", "boolean", "json"] {
        let mut document = document();
        document["tables"][1]["references"] = json!([]);
        document["tables"][0]["columns"][0]["type"] = json!(ty);
        assert!(load(&document).is_ok(), "{ty}");
    }
    for ty in ["float", "bytes", "blob_ref"] {
        let paths = broken("/tables/0/columns/0/type", json!(ty));
        assert_eq!(paths[0], "$.tables[0].primaryKey", "{ty}");
    }
}

#[test]
fn s3_1_every_table_has_a_scope_pattern() {
    assert_eq!(
        broken("/tables/1/scopes", json!([]))[0],
        "$.tables[1].scopes"
    );
}

#[test]
fn s3_1_a_pattern_is_a_prefix_and_exactly_one_variable() {
    for pattern in [
        "team",
        "team:",
        "{team}",
        ":{team}",
        "team:{}",
        "a:{team}:{id}",
        "team:{team}x",
        "te{am:{team}",
    ] {
        assert_eq!(
            broken("/tables/0/scopes/0", json!(pattern))[0],
            "$.tables[0].scopes[0]",
            "{pattern}"
        );
    }
    let mut document = document();
    for table in 0..2 {
        document["tables"][table]["scopes"] = json!(["a:b:{team}"]);
    }
    assert_eq!(load(&document).unwrap().tables()[0].scopes[0].prefix, "a:b");
}

#[test]
fn s3_1_a_variable_maps_to_one_existing_column() {
    assert_eq!(
        broken("/tables/0/scopes", json!(["team:{nope}"]))[0],
        "$.tables[0].scopes[0]"
    );
    assert_eq!(
        broken(
            "/tables/0/scopes",
            json!(["team:{team}", {"pattern": "other:{team}", "column": "id"}])
        )[0],
        "$.tables[0].scopes[1]"
    );
    assert_eq!(
        broken(
            "/tables/0/scopes",
            json!([{"pattern": "team:{team}", "variable": "id"}])
        )[0],
        "$.tables[0].scopes[0].variable"
    );
}

#[test]
fn s3_1_a_scope_column_must_render() {
    for ty in ["bytes", "crdt"] {
        let mut document = document();
        document["tables"][0]["columns"][1] = json!({"name": "team", "type": ty, "crdtType": if ty == "crdt" { json!("m") } else { Json::Null }});
        assert_eq!(paths(&document), ["$.tables[0].scopes[0]"], "{ty}");
    }
}

#[test]
fn s3_2_rule_3_an_allowed_variable_belongs_to_some_table() {
    let schema = Schema::load(GENERATED).unwrap();
    let allowed = |key: &str| [(key, vec!["*".to_owned()])].into_iter().collect();
    assert!(validate_allowed(&schema, &allowed("libraryId")).is_ok());
    let error = validate_allowed(&schema, &allowed("library_id")).unwrap_err();
    assert_eq!(error.code.as_str(), "sync.invalid_subscription");
}

#[test]
fn s6_11_the_parent_must_exist() {
    assert_eq!(
        broken("/tables/1/references/0/parentTable", json!("nope")),
        ["$.tables[1].references[0].parentTable"]
    );
}

#[test]
fn s6_11_a_reference_column_needs_its_own_index() {
    assert_eq!(
        broken("/tables/1/indexes", json!([])),
        ["$.tables[1].references[0].column"]
    );
    assert_eq!(
        broken("/tables/1/indexes/0/columns", json!(["list", "team"])),
        ["$.tables[1].references[0].column"]
    );
}

#[test]
fn s6_11_types_of_child_column_and_parent_key_are_equal() {
    assert_eq!(
        broken("/tables/1/columns/2/type", json!("integer")),
        ["$.tables[1].references[0].column"]
    );
}

#[test]
fn s6_11_parent_and_child_have_the_same_scope_patterns() {
    assert_eq!(
        broken("/tables/1/scopes", json!(["squad:{team}"])),
        ["$.tables[1].references[0].parentTable"]
    );
    let mut document = document();
    document["tables"][1]["columns"][1]["name"] = json!("owner");
    document["tables"][1]["scopes"] = json!([{"pattern": "team:{team}", "column": "owner"}]);
    assert!(
        load(&document).is_ok(),
        "the column's name is not part of the pattern"
    );
}

#[test]
fn s6_11_set_null_needs_a_nullable_column_that_is_no_scope() {
    let set_null = |document: &mut Json| {
        document["tables"][1]["references"][0]["onDelete"] = json!("SET NULL");
    };
    let mut allowed = document();
    set_null(&mut allowed);
    assert!(load(&allowed).is_ok());
    let mut not_null = allowed.clone();
    not_null["tables"][1]["columns"][2]["nullable"] = json!(false);
    assert_eq!(paths(&not_null), ["$.tables[1].references[0].onDelete"]);
    let mut scope = allowed;
    scope["tables"][1]["columns"][1]["nullable"] = json!(true);
    scope["tables"][1]["indexes"][0]["columns"] = json!(["team"]);
    scope["tables"][1]["references"][0]["column"] = json!("team");
    assert_eq!(paths(&scope), ["$.tables[1].references[0].onDelete"]);
}

#[test]
fn s6_11_other_actions_are_refused() {
    for action in ["NO ACTION", "SET DEFAULT", "cascade"] {
        assert_eq!(
            broken("/tables/1/references/0/onDelete", json!(action)),
            ["$.tables[1].references[0].onDelete"]
        );
    }
}

#[test]
fn indexes_name_existing_columns_and_are_unique_across_tables() {
    assert_eq!(
        broken("/tables/1/indexes/0/columns", json!(["nope"]))[0],
        "$.tables[1].indexes[0].columns[0]"
    );
    assert_eq!(
        broken("/tables/1/indexes/0/columns", json!([]))[0],
        "$.tables[1].indexes[0].columns"
    );
    let mut document = document();
    document["tables"][0]["indexes"] = json!([{"name": "by_list", "columns": ["team"]}]);
    assert_eq!(paths(&document), ["$.tables[1].indexes[0].name"]);
}

#[test]
fn s5_11_an_encrypted_column_is_of_type_bytes() {
    assert_eq!(
        broken(
            "/tables/0/columns/1",
            json!({"name": "team", "type": "string", "encrypted": true})
        ),
        ["$.tables[0].columns[1].type"]
    );
    assert_eq!(
        broken("/tables/1/columns/2/type", json!("text"))[0],
        "$.tables[1].columns[2].type"
    );
}

#[test]
fn s5_10_1_a_crdt_column_names_its_merger() {
    let with = |column: Json| {
        let mut document = document();
        document["tables"][0]["columns"]
            .as_array_mut()
            .unwrap()
            .push(column);
        document
    };
    assert_eq!(
        paths(&with(column("doc", "crdt"))),
        ["$.tables[0].columns[2].crdtType"]
    );
    assert_eq!(
        paths(&with(
            json!({"name": "doc", "type": "bytes", "crdtType": "yjs-doc"})
        )),
        ["$.tables[0].columns[2].crdtType"]
    );
    assert!(
        load(&with(
            json!({"name": "doc", "type": "crdt", "crdtType": "yjs-doc"})
        ))
        .is_ok()
    );
}

#[test]
fn a_table_of_encrypted_columns_alone_is_not_materialized() {
    let schema = Schema::load(GENERATED).unwrap();
    assert!(!schema.table("secrets").unwrap().materialize);
    assert!(schema.table("books").unwrap().materialize);

    let encrypted = json!({"name": "note", "type": "bytes", "encrypted": true});
    let mut document = document();
    assert!(
        load(&document).unwrap().tables()[0].materialize,
        "no column besides key and scope"
    );
    document["tables"][0]["columns"]
        .as_array_mut()
        .unwrap()
        .push(encrypted);
    assert!(!load(&document).unwrap().tables()[0].materialize);
    document["tables"][0]["materialize"] = json!(true);
    assert!(load(&document).unwrap().tables()[0].materialize);
    document["tables"][0]["columns"]
        .as_array_mut()
        .unwrap()
        .push(column("plain", "string"));
    document["tables"][0]["materialize"] = Json::Null;
    assert!(load(&document).unwrap().tables()[0].materialize);
}

#[test]
fn a_table_with_references_stays_reachable_by_its_parent() {
    let mut document = document();
    document["tables"][1]["materialize"] = json!(false);
    assert_eq!(paths(&document), ["$.tables[1].materialize"]);
}

/// JSON that a careless author might put anywhere.
fn anything() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-2i64..3).prop_map(Json::from),
        prop::sample::select(vec![
            "",
            "id",
            "team",
            "lists",
            "tasks",
            "string",
            "bytes",
            "crdt",
            "team:{id}",
            "SET NULL"
        ])
        .prop_map(Json::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let keys = prop::sample::select(vec![
            "name",
            "type",
            "columns",
            "pattern",
            "column",
            "parentTable",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Json::from),
            prop::collection::vec((keys.prop_map(str::to_owned), inner), 0..3)
                .prop_map(|entries| Json::Object(entries.into_iter().collect())),
        ]
    })
}

fn pointers(json: &Json, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match json {
        Json::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, &format!("{at}/{index}"), found);
            }
        }
        Json::Object(fields) => {
            for (key, field) in fields {
                pointers(field, &format!("{at}/{key}"), found);
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_schema_in_hand_is_valid_whatever_was_loaded(
        changes in prop::collection::vec((any::<prop::sample::Index>(), anything()), 1..3),
    ) {
        let mut document = document();
        for (index, value) in changes {
            let mut found = Vec::new();
            pointers(&document, "", &mut found);
            *document.pointer_mut(&found[index.index(found.len())]).unwrap() = value;
        }
        let Ok(schema) = load(&document) else { return Ok(()); };
        prop_assert!(!schema.tables().is_empty());
        for (at, table) in schema.tables().iter().enumerate() {
            let columns = table.columns.len();
            prop_assert_eq!(usize::from(table.id.0), at);
            prop_assert_eq!(schema.table(&table.name).map(|t| t.id), Some(table.id));
            prop_assert_eq!(table.column_info.len(), columns);
            prop_assert!(table.primary_key < columns && !table.scopes.is_empty());
            prop_assert!(table.scopes.iter().all(|scope| scope.column < columns));
            prop_assert!(table.indexes.iter().all(|i| !i.columns.is_empty() && i.columns.iter().all(|c| *c < columns)));
            for reference in &table.references {
                let parent = schema.table_at(reference.parent);
                prop_assert_eq!(table.columns[reference.column].ty, parent.columns[parent.primary_key].ty);
            }
        }
    }
}

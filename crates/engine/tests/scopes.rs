//! §3: scopes, and the rendering of keys and scope values.

use std::sync::Arc;

use proptest::prelude::*;
use ssp2::{Column, ColumnType, ErrorCode, ScopeLists, ScopeValues, Value};
use tidegate_engine::TableId;
use tidegate_engine::hooks::Allowed;
use tidegate_engine::keys::{render_key, render_scope_value};
use tidegate_engine::schema::{ColumnInfo, ScopePattern, Table};
use tidegate_engine::scopes::{
    Effective, authorize, effective, matches, scope_key, stored_scopes, validate_requested,
};

fn table() -> Table {
    let column = |name: &str, ty| Column {
        name: name.into(),
        ty,
        nullable: true,
    };
    let pattern = |variable: &str, column| ScopePattern {
        prefix: variable.into(),
        variable: variable.into(),
        column,
    };
    Table {
        id: TableId(0),
        name: "docs".into(),
        columns: vec![
            column("id", ColumnType::String),
            column("org", ColumnType::String),
            column("project", ColumnType::Integer),
        ],
        column_info: vec![ColumnInfo::default(); 3],
        primary_key: 0,
        scopes: vec![pattern("org", 1), pattern("project", 2)],
        indexes: vec![],
        references: vec![],
        materialize: true,
    }
}

fn lists(entries: &[(&str, &[&str])]) -> ScopeLists {
    entries
        .iter()
        .map(|(key, values)| (*key, values.iter().map(|v| (*v).to_owned()).collect()))
        .collect()
}

fn allowed(entries: &[(&str, &[&str])]) -> Allowed {
    Allowed::Resolved(Arc::new(lists(entries)))
}

fn values(entries: &[(&str, &str)]) -> ScopeValues {
    entries.iter().map(|(k, v)| (*k, (*v).to_owned())).collect()
}

fn row(org: Value, project: Value) -> Vec<Value> {
    vec![Value::Text("d1".into()), org, project]
}

#[test]
fn s2_4_keys_render_as_text_that_every_implementation_agrees_on() {
    assert_eq!(render_key(&Value::Text("a b".into())), Some("a b".into()));
    assert_eq!(
        render_key(&Value::Text("{\"a\": 1}".into())),
        Some("{\"a\": 1}".into())
    );
    assert_eq!(render_key(&Value::Integer(-7)), Some("-7".into()));
    assert_eq!(render_key(&Value::Boolean(true)), Some("true".into()));
    assert_eq!(render_key(&Value::Boolean(false)), Some("false".into()));
    assert_eq!(render_key(&Value::Float(1.5)), None);
    assert_eq!(render_key(&Value::Null), None);
    assert_eq!(render_key(&Value::Bytes(vec![1].into())), None);
}

#[test]
fn s3_1_float_scope_values_render_as_javascript_does() {
    for (number, text) in [
        (1.0, "1"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (-123.456, "-123.456"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.25e21, "1.25e+21"),
        (1e-6, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.1 + 0.2, "0.30000000000000004"),
        (9007199254740993.0, "9007199254740992"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        assert_eq!(
            render_scope_value(&Value::Float(number)).as_deref(),
            Some(text)
        );
    }
}

#[test]
fn s3_1_null_empty_and_bytes_have_no_scope_value() {
    assert_eq!(render_scope_value(&Value::Null), None);
    assert_eq!(render_scope_value(&Value::Text(String::new())), None);
    assert_eq!(render_scope_value(&Value::Bytes(vec![1].into())), None);
    assert_eq!(render_scope_value(&Value::Integer(0)), Some("0".into()));
    assert_eq!(
        render_scope_value(&Value::Boolean(false)),
        Some("false".into())
    );
}

#[test]
fn s3_1_stored_scopes_hold_every_declared_variable_or_the_row_has_none() {
    let table = table();
    assert_eq!(
        stored_scopes(&table, &row(Value::Text("o1".into()), Value::Integer(4))),
        Some(values(&[("org", "o1"), ("project", "4")]))
    );
    assert_eq!(
        stored_scopes(&table, &row(Value::Text("o1".into()), Value::Null)),
        None
    );
    assert_eq!(
        stored_scopes(&table, &row(Value::Text("".into()), Value::Integer(4))),
        None
    );
    assert_eq!(stored_scopes(&table, &[Value::Text("d1".into())]), None);
}

#[test]
fn s3_2_rule_2_an_undeclared_variable_fails_the_request() {
    let error = validate_requested(&table(), &lists(&[("team", &["t1"])])).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidSubscription);
}

#[test]
fn s3_2_rule_2_a_requested_star_fails_the_request() {
    let error = validate_requested(&table(), &lists(&[("org", &["o1", "*"])])).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidSubscription);
    assert!(validate_requested(&table(), &lists(&[("org", &["o1"])])).is_ok());
}

#[test]
fn s3_2_rule_4_effective_is_the_intersection_per_requested_key() {
    assert_eq!(
        effective(
            &lists(&[("org", &["o2", "o1", "o9"])]),
            &allowed(&[("org", &["o1", "o2"]), ("project", &["p"])])
        ),
        Effective::Active(lists(&[("org", &["o2", "o1"])]))
    );
}

#[test]
fn s3_2_rule_4_an_allowed_star_passes_the_requested_values() {
    assert_eq!(
        effective(
            &lists(&[("org", &["x", "y"])]),
            &allowed(&[("org", &["*"])])
        ),
        Effective::Active(lists(&[("org", &["x", "y"])]))
    );
}

#[test]
fn s3_2_rule_5_a_failed_resolver_revokes() {
    assert_eq!(
        effective(&lists(&[("org", &["o1"])]), &Allowed::Failed),
        Effective::Revoked
    );
}

#[test]
fn s3_2_rule_5_losing_one_requested_key_revokes_all_of_it() {
    let requested = lists(&[("org", &["o1"]), ("project", &["p1"])]);
    assert_eq!(
        effective(&requested, &allowed(&[("org", &["o1"])])),
        Effective::Revoked
    );
    assert_eq!(
        effective(
            &requested,
            &allowed(&[("org", &["o1"]), ("project", &["p2"])])
        ),
        Effective::Revoked
    );
}

#[test]
fn s3_2_rule_5_an_empty_request_or_an_empty_list_revokes() {
    let any = allowed(&[("org", &["*"])]);
    assert_eq!(effective(&lists(&[]), &any), Effective::Revoked);
    assert_eq!(effective(&lists(&[("org", &[])]), &any), Effective::Revoked);
}

#[test]
fn s3_2_a_change_matches_when_every_effective_key_holds_its_value() {
    let effective = lists(&[("org", &["o1", "o2"]), ("project", &["4"])]);
    assert!(matches(
        &effective,
        &values(&[("org", "o2"), ("project", "4")])
    ));
    assert!(!matches(
        &effective,
        &values(&[("org", "o2"), ("project", "5")])
    ));
    assert!(!matches(&effective, &values(&[("org", "o2")])));
    assert!(!matches(&lists(&[]), &values(&[("org", "o2")])));
}

#[test]
fn s3_4_rule_3_a_write_needs_every_declared_variable() {
    let table = table();
    let scopes = values(&[("org", "o1"), ("project", "4")]);
    let both = [("org", &["o1"][..]), ("project", &["*"][..])];
    assert!(authorize(&table, &scopes, &allowed(&both)));
    assert!(!authorize(&table, &scopes, &allowed(&both[..1])));
    assert!(!authorize(
        &table,
        &values(&[("org", "o1")]),
        &allowed(&both)
    ));
    assert!(!authorize(&table, &scopes, &Allowed::Failed));
}

#[test]
fn s3_1_a_scope_key_is_prefix_colon_value() {
    assert_eq!(scope_key("project", "p:1"), "project:p:1");
}

fn any_lists() -> impl Strategy<Value = ScopeLists> {
    let value = prop_oneof!["[abc]", Just("*".to_owned())];
    prop::collection::vec(("org|project", prop::collection::vec(value, 0..4)), 0..3)
        .prop_map(|entries| entries.into_iter().collect())
}

proptest! {
    #[test]
    fn effective_stays_inside_requested_and_allowed(requested in any_lists(), granted in any_lists()) {
        let resolved = Allowed::Resolved(Arc::new(granted.clone()));
        let Effective::Active(active) = effective(&requested, &resolved) else { return Ok(()); };
        prop_assert_eq!(active.len(), requested.len());
        for (key, list) in active.iter() {
            prop_assert!(!list.is_empty());
            let asked = requested.get(key).unwrap();
            let may = granted.get(key).unwrap();
            for value in list {
                prop_assert!(asked.contains(value));
                prop_assert!(may.contains(value) || may.iter().any(|v| v == "*"));
            }
        }
    }

    #[test]
    fn an_actor_reads_only_what_it_was_granted(
        requested in any_lists(), granted in any_lists(), org in "[abc]", project in "[abc]",
    ) {
        let stored = values(&[("org", &org), ("project", &project)]);
        let resolved = Allowed::Resolved(Arc::new(granted.clone()));
        if let Effective::Active(active) = effective(&requested, &resolved)
            && matches(&active, &stored)
        {
            for (key, _) in active.iter() {
                let may = granted.get(key).unwrap();
                prop_assert!(may.iter().any(|v| v == "*" || Some(v) == stored.get(key)));
            }
        }
    }
}

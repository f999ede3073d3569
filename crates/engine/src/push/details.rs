//! Rejection details (§6.3.1): the bounded recovery hints beside an error record.

use std::collections::BTreeMap;

use serde::Deserialize;
use ssp2::RejectionDetails;

/// Normalizes a details object: fixed member order, references by key. The same
/// object then always reads the same, so that a replay is byte-equal even after a
/// JSON column of a database has put the members in another order.
///
/// `None` when it breaks a bound of §6.3.1.
pub fn normalize_details(json: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Members {
        #[serde(default)]
        field_paths: Vec<String>,
        reason: Option<String>,
        required_action: Option<String>,
        #[serde(default)]
        references: BTreeMap<String, String>,
    }
    RejectionDetails::parse(json).ok()?;
    let members: Members = serde_json::from_str(json).ok()?;
    RejectionDetails::new(
        members.field_paths,
        members.reason,
        members.required_action,
        members.references.into_iter().collect(),
    )
    .ok()
    .map(|details| details.to_json())
}

/// Details of a `sync.reference_violation` (§6.11). A path or an identifier that
/// §6.3.1 does not admit (an overlong row id, for one) is left out.
pub(super) fn reference_details(
    reason: &str,
    field: Option<&str>,
    references: &[(&str, &str)],
) -> Option<String> {
    let alone = |field: Option<&str>, reference: Option<(&str, &str)>| {
        RejectionDetails::new(
            field.map(str::to_owned).into_iter().collect(),
            Some(reason.to_owned()),
            None,
            reference
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into_iter()
                .collect(),
        )
    };
    let admitted = references
        .iter()
        .copied()
        // A padded value would be trimmed into another row's id.
        .filter(|(_, value)| value.trim() == *value)
        .filter(|reference| alone(None, Some(*reference)).is_ok())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let field = field.filter(|path| alone(Some(path), None).is_ok());
    RejectionDetails::new(
        field.map(str::to_owned).into_iter().collect(),
        Some(reason.to_owned()),
        None,
        admitted,
    )
    .ok()
    .map(|details| details.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_normalized_to_one_form() {
        let given = r#" {"references":{"row":"r1","parent":"lists"}, "reason":"missing_parent", "fieldPaths":["list_id"]} "#;
        assert_eq!(
            normalize_details(given).unwrap(),
            r#"{"fieldPaths":["list_id"],"reason":"missing_parent","references":{"parent":"lists","row":"r1"}}"#
        );
        assert_eq!(normalize_details(r#"{"reason":"a","reason":"b"}"#), None);
        assert_eq!(normalize_details(r#"{"prose":"x"}"#), None);
    }

    #[test]
    fn an_inadmissible_row_id_is_left_out() {
        for row in ["x".repeat(257), " padded".into(), "two\nlines".into()] {
            assert_eq!(
                reference_details(
                    "missing_parent",
                    Some("list_id"),
                    &[("parent", "lists"), ("row", &row)]
                )
                .unwrap(),
                r#"{"fieldPaths":["list_id"],"reason":"missing_parent","references":{"parent":"lists"}}"#
            );
        }
    }
}

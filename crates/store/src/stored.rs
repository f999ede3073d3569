//! Encoded values inside columns, the same in every backend: scope maps,
//! registered subscriptions, blob ids and the names of owned indexes
//! (docs/storage.md); and what every backend judges alike in a migration.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value as Json};
use ssp2::{ColumnType, ScopeLists, ScopeValues, Value, WireVersion};
use tidegate_engine::SchemaVersion;
use tidegate_engine::backfill::pacing::Pace;
use tidegate_engine::model::RegisteredSubscription;
use tidegate_engine::schema::Table;
use tidegate_engine::schema::migration::{MigrationPlan, MigrationRefusal, TableChange};

use crate::Declaration;
use crate::error::StoreError;

/// Longest identifier that every backend keeps whole, in bytes.
const MAX_IDENTIFIER: usize = 63;
/// What the names of the indexes that belong to Tidegate begin with.
pub const OWNED_INDEX_PREFIX: &str = "sync_ix_";

/// Stored scopes as a JSON object, variable to value.
pub fn encode_scopes(scopes: &ScopeValues) -> String {
    let mut text = String::with_capacity(32);
    text.push('{');
    for (n, (variable, value)) in scopes.iter().enumerate() {
        if n > 0 {
            text.push(',');
        }
        push_json_string(&mut text, variable);
        text.push(':');
        push_json_string(&mut text, value);
    }
    text.push('}');
    text
}

fn push_json_string(text: &mut String, value: &str) {
    // A string has no failing serialization; `Json`'s display is the infallible way to it.
    use fmt::Write as _;
    if value
        .bytes()
        .all(|b| b >= 0x20 && b != b'"' && b != b'\\' && b != 0x7f)
    {
        text.push('"');
        text.push_str(value);
        text.push('"');
    } else {
        let _ = write!(text, "{}", Json::String(value.to_owned()));
    }
}

struct Scopes(ScopeValues);

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Scopes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scopes, A::Error> {
                let mut scopes = ScopeValues::new();
                while let Some((variable, value)) = map.next_entry::<String, String>()? {
                    scopes.insert(variable, value);
                }
                Ok(Scopes(scopes))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Reads what [`encode_scopes`] writes.
///
/// # Errors
/// [`StoreError::Corrupt`] for anything but an object of strings.
pub fn decode_scopes(text: &str) -> Result<ScopeValues, StoreError> {
    serde_json::from_str::<Scopes>(text)
        .map(|scopes| scopes.0)
        .map_err(|_| StoreError::Corrupt {
            what: "the scopes of a row or change",
        })
}

/// `sync_clients.subscriptions`: `[{id, table, scopes}]` with the other keys of each entry.
pub fn encode_subscriptions(subscriptions: &[RegisteredSubscription]) -> String {
    let entries = subscriptions
        .iter()
        .map(|subscription| {
            let mut entry = Map::new();
            entry.insert("id".into(), Json::String(subscription.id.clone()));
            entry.insert("table".into(), Json::String(subscription.table.clone()));
            let scopes = scope_lists_object(&subscription.scopes);
            entry.insert("scopes".into(), Json::Object(scopes));
            for (key, value) in &subscription.extra {
                entry.entry(key.clone()).or_insert_with(|| value.clone());
            }
            Json::Object(entry)
        })
        .collect();
    Json::Array(entries).to_string()
}

/// Scope lists as a JSON object, variable to values.
pub fn encode_scope_lists(scopes: &ScopeLists) -> String {
    Json::Object(scope_lists_object(scopes)).to_string()
}

/// Reads what [`encode_scope_lists`] writes.
///
/// # Errors
/// [`StoreError::Corrupt`] for anything but an object of lists of strings.
pub fn decode_scope_lists(text: &str) -> Result<ScopeLists, StoreError> {
    let lists: Option<ScopeLists> = match serde_json::from_str(text) {
        Ok(Json::Object(lists)) => read_scope_lists(lists),
        _ => None,
    };
    lists.ok_or(StoreError::Corrupt {
        what: "the scopes of a grant",
    })
}

fn scope_lists_object(scopes: &ScopeLists) -> Map<String, Json> {
    scopes
        .iter()
        .map(|(variable, values)| {
            let values = values.iter().cloned().map(Json::String).collect();
            (variable.to_owned(), Json::Array(values))
        })
        .collect()
}

fn read_scope_lists(lists: Map<String, Json>) -> Option<ScopeLists> {
    let mut scopes = ScopeLists::new();
    for (variable, values) in lists {
        let values: Vec<String> = serde_json::from_value(values).ok()?;
        scopes.insert(variable, values);
    }
    Some(scopes)
}

/// Reads what [`encode_subscriptions`] writes. `None` when the text is anything
/// else: the record is rewritten by the client's next pull, so a reader goes on
/// with no subscriptions instead of failing the request.
pub fn decode_subscriptions(text: &str) -> Option<Vec<RegisteredSubscription>> {
    let Json::Array(entries) = serde_json::from_str(text).ok()? else {
        return None;
    };
    entries.into_iter().map(decode_subscription).collect()
}

fn decode_subscription(entry: Json) -> Option<RegisteredSubscription> {
    let Json::Object(mut entry) = entry else {
        return None;
    };
    let Json::String(id) = entry.remove("id")? else {
        return None;
    };
    let Json::String(table) = entry.remove("table")? else {
        return None;
    };
    let Json::Object(lists) = entry.remove("scopes")? else {
        return None;
    };
    Some(RegisteredSubscription {
        id,
        table,
        scopes: read_scope_lists(lists)?,
        extra: entry,
    })
}

/// `tidegate_backfills.pace`: a JSON object.
pub fn encode_pace(pace: &Pace) -> String {
    serde_json::json!({
        "rowsPerSecond": pace.rows_per_second,
        "burstRows": pace.burst_rows,
        "pushP99TargetMs": pace.push_p99_target_ms,
        "leastShare": pace.least_share,
    })
    .to_string()
}

/// Reads what [`encode_pace`] writes; anything else is no pace, and the configured
/// one holds.
pub fn decode_pace(text: &str) -> Option<Pace> {
    let json: Json = serde_json::from_str(text).ok()?;
    let target = json.get("pushP99TargetMs")?;
    Some(Pace {
        rows_per_second: json.get("rowsPerSecond")?.as_f64()?,
        burst_rows: json.get("burstRows")?.as_f64()?,
        push_p99_target_ms: match target {
            Json::Null => None,
            number => Some(number.as_f64()?),
        },
        least_share: json.get("leastShare")?.as_f64()?,
    })
}

/// The wire version of a client record; an unknown number reads as the oldest.
pub const fn wire_version(number: i64) -> WireVersion {
    match number {
        3 => WireVersion::V3,
        2 => WireVersion::V2,
        _ => WireVersion::V1,
    }
}

/// The physical name of a declared index.
pub fn owned_index_name(declared: &str) -> String {
    let name = format!("{OWNED_INDEX_PREFIX}{declared}");
    if name.len() <= MAX_IDENTIFIER {
        return name;
    }
    format!("{OWNED_INDEX_PREFIX}{:016x}", fnv1a64(declared.as_bytes()))
}

/// The name of the index that sorts a table's row ids by bytes, where its own key
/// sorts them by locale.
pub(crate) fn byte_order_index_name(table: &str) -> String {
    let name = format!("tidegate_rows_{table}");
    if name.len() <= MAX_IDENTIFIER {
        return name;
    }
    format!("tidegate_rows_{:016x}", fnv1a64(table.as_bytes()))
}

/// FNV-1a, 64 bits.
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The blobs that a row references through its `blob_ref` columns, sorted, each
/// once (§5.9.4). The codec has checked the values' shape.
pub fn blob_ids(table: &Table, values: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = table
        .columns
        .iter()
        .zip(values)
        .filter(|(column, _)| column.ty == ColumnType::BlobRef)
        .filter_map(|(_, value)| match value {
            Value::Text(text) => ssp2::blob_ref::blob_id(text),
            _ => None,
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Whether changes already in the log have a layout that the new schema cannot
/// read. A retired table counts: its name may come back with other columns.
pub(crate) fn changes_layouts(steps: &MigrationPlan) -> bool {
    !steps.retired.is_empty()
        || steps
            .tables
            .iter()
            .any(|step| matches!(step.change, TableChange::Appended { .. }))
}

/// A fence above our own version would lock this process out as well.
pub(crate) fn check_declaration(
    declaration: &Declaration,
    running: SchemaVersion,
) -> Result<(), StoreError> {
    let reason = if declaration.name.is_empty() {
        "its name is empty"
    } else if declaration.schema_version.0 < 1 {
        "its schema version is below 1"
    } else if declaration.schema_version > running {
        "its schema version is newer than the running one"
    } else {
        return Ok(());
    };
    Err(StoreError::BadDeclaration {
        name: declaration.name.clone(),
        reason,
    })
}

/// A migration that the engine does not allow, with every reason.
pub(crate) fn refused(refusals: &[MigrationRefusal]) -> StoreError {
    let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    StoreError::RefusedMigration {
        table: refusals
            .first()
            .map(|refusal| refusal.table.clone())
            .unwrap_or_default(),
        reason: reasons.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_round_trip_with_every_kind_of_character() {
        let scopes: ScopeValues = [
            ("list_id", "a\"b\\c\n\u{1}"),
            ("ü", "\u{1F600}"),
            ("empty", ""),
        ]
        .into_iter()
        .map(|(k, v)| (k, v.to_owned()))
        .collect();
        let text = encode_scopes(&scopes);
        assert_eq!(decode_scopes(&text).unwrap(), scopes);
        let plain: ScopeValues = [("a", "1".to_owned()), ("b", "2".to_owned())]
            .into_iter()
            .collect();
        assert_eq!(encode_scopes(&plain), r#"{"a":"1","b":"2"}"#);
    }

    #[test]
    fn scopes_that_are_no_object_of_strings_are_corrupt() {
        for text in ["", "[]", r#"{"a":1}"#, r#"{"a":null}"#, "{"] {
            assert!(
                matches!(decode_scopes(text), Err(StoreError::Corrupt { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn subscriptions_keep_unknown_keys() {
        let text =
            r#"[{"id":"s1","scopes":{"list_id":["l1","l2"]},"schemaVersion":3,"table":"todos"}]"#;
        let read = decode_subscriptions(text).unwrap();
        assert_eq!(read[0].extra["schemaVersion"], 3);
        let again = decode_subscriptions(&encode_subscriptions(&read)).unwrap();
        assert_eq!(again, read);
        assert!(decode_subscriptions("{}").is_none());
        assert!(decode_subscriptions(r#"[{"id":"s1"}]"#).is_none());
    }

    #[test]
    fn a_pace_is_stored_as_json() {
        let pace = Pace::default();
        assert_eq!(decode_pace(&encode_pace(&pace)), Some(pace));
        let unyielding = Pace {
            push_p99_target_ms: None,
            ..pace
        };
        assert_eq!(decode_pace(&encode_pace(&unyielding)), Some(unyielding));
        assert_eq!(decode_pace("{}"), None);
    }

    #[test]
    fn index_names_over_63_bytes_are_hashed() {
        assert_eq!(owned_index_name("by_list"), "sync_ix_by_list");
        let fits = "x".repeat(MAX_IDENTIFIER - OWNED_INDEX_PREFIX.len());
        assert_eq!(owned_index_name(&fits), format!("sync_ix_{fits}"));
        let long = owned_index_name(&format!("{fits}x"));
        assert_eq!(long.len(), OWNED_INDEX_PREFIX.len() + 16);
        assert_eq!(byte_order_index_name("notes"), "tidegate_rows_notes");
        assert_eq!(byte_order_index_name(&fits).len(), 14 + fits.len().min(16));
        // Published test values of FNV-1a-64.
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}

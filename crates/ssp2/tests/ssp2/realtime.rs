//! Realtime control messages (§8): known events strictly, unknown ones not at all.

use ssp2::realtime::{Hello, JsonObject, PresenceChange, PresenceError, WakeReason};
use ssp2::{ClientMessage, MAX_SAFE_INTEGER, ServerEvent};

fn doc(text: &str) -> JsonObject {
    JsonObject::parse(text).unwrap()
}

fn server_events() -> Vec<ServerEvent> {
    let fanout = |change| ServerEvent::Presence {
        scope_key: "project:p1".to_owned(),
        change,
        actor_id: "a \"quoted\"".to_owned(),
        client_id: "c".to_owned(),
        timestamp: 7,
    };
    let refused = |error| ServerEvent::PresenceRefused {
        scope_key: "k:v".to_owned(),
        error,
        timestamp: 7,
    };
    let mut events = vec![
        ServerEvent::Hello(Hello {
            protocol_version: 1,
            session_id: "s".to_owned(),
            actor_id: "a".to_owned(),
            client_id: "c".to_owned(),
            cursor: -1,
            latest_cursor: MAX_SAFE_INTEGER,
            requires_sync: false,
            timestamp: 0,
        }),
        ServerEvent::Heartbeat { timestamp: 7 },
        fanout(PresenceChange::Join(doc("{}"))),
        fanout(PresenceChange::Update(doc(r#"{"a":"b"}"#))),
        fanout(PresenceChange::Leave),
        refused(PresenceError::TooLarge),
        refused(PresenceError::Forbidden),
    ];
    for reason in [
        WakeReason::DeltaTooLarge,
        WakeReason::CatchupRequired,
        WakeReason::ResetRequired,
    ] {
        events.push(ServerEvent::Sync {
            cursor: 1,
            reason,
            timestamp: 7,
        });
    }
    events
}

#[test]
fn every_server_event_reads_as_it_was_written() {
    for event in server_events() {
        assert_eq!(ServerEvent::parse(&event.to_json()), Ok(Some(event)));
    }
}

#[test]
fn every_client_message_reads_as_it_was_written() {
    for message in [
        ClientMessage::Ack { cursor: 12 },
        ClientMessage::Presence {
            scope_key: "k:é".to_owned(),
            doc: Some(doc(r#"{"x":[1,2],"half":"\ud800"}"#)),
        },
        ClientMessage::Presence {
            scope_key: "k:v".to_owned(),
            doc: None,
        },
    ] {
        assert_eq!(ClientMessage::parse(&message.to_json()), Ok(Some(message)));
    }
}

#[test]
fn s8_1_unparsable_text_and_unknown_events_are_ignored() {
    for text in [
        "",
        "{",
        "null",
        "[]",
        "42",
        "\"ack\"",
        "{}",
        r#"{"event":"later","data":1}"#,
        r#"{"type":"subscribe"}"#,
        r#"{"event":7}"#,
        r#"{"type":7}"#,
        "{\"type\":\"ack\"",
    ] {
        assert_eq!(ClientMessage::parse(text), Ok(None), "{text}");
        assert_eq!(ServerEvent::parse(text), Ok(None), "{text}");
    }
    // Each direction's events are unknown in the other one.
    assert_eq!(
        ClientMessage::parse(r#"{"event":"hello","data":{}}"#),
        Ok(None)
    );
    assert_eq!(ServerEvent::parse(r#"{"type":"ack","cursor":1}"#), Ok(None));
}

#[test]
fn s8_1_a_missing_or_mistyped_member_of_a_known_event_is_malformed() {
    for event in server_events() {
        let value: serde_json::Value = serde_json::from_str(&event.to_json()).unwrap();
        let data = value["data"].as_object().unwrap();
        for key in data.keys() {
            // Without its error a refusal is a fanout without a kind: malformed too.
            let mut missing = value.clone();
            missing["data"].as_object_mut().unwrap().remove(key);
            assert!(
                ServerEvent::parse(&missing.to_string()).is_err(),
                "{key}: {missing}"
            );
            let mut mistyped = value.clone();
            mistyped["data"][key] = serde_json::json!([1]);
            assert!(
                ServerEvent::parse(&mistyped.to_string()).is_err(),
                "{key}: {mistyped}"
            );
        }
        let name = value["event"].as_str().unwrap();
        assert!(ServerEvent::parse(&format!("{{\"event\":\"{name}\"}}")).is_err());
        assert!(ServerEvent::parse(&format!("{{\"event\":\"{name}\",\"data\":[]}}")).is_err());
    }
}

#[test]
fn s8_1_numbers_are_safe_integers() {
    let ack =
        |cursor: &str| ClientMessage::parse(&format!("{{\"type\":\"ack\",\"cursor\":{cursor}}}"));
    for (text, cursor) in [
        ("0", 0),
        ("-1", -1),
        ("57.0", 57),
        ("1e2", 100),
        ("9007199254740991", MAX_SAFE_INTEGER),
    ] {
        assert_eq!(ack(text), Ok(Some(ClientMessage::Ack { cursor })), "{text}");
    }
    for text in [
        "57.5",
        "9007199254740992",
        "1e300",
        "1e999",
        "\"1\"",
        "null",
        "true",
    ] {
        assert!(ack(text).is_err(), "{text}");
    }
    assert!(ClientMessage::parse("{\"type\":\"ack\"}").is_err());
}

#[test]
fn s8_3_the_reasons_are_a_closed_set_and_requires_pull_is_true() {
    let wake = |reason: &str, requires: &str| {
        ServerEvent::parse(&format!(
            r#"{{"event":"sync","data":{{"cursor":1,"requiresPull":{requires},"reason":"{reason}","timestamp":2}}}}"#
        ))
    };
    assert!(wake("catchup-required", "true").unwrap().is_some());
    assert!(wake("because", "true").is_err());
    for requires in ["false", "1", "\"true\"", "null"] {
        assert!(wake("catchup-required", requires).is_err(), "{requires}");
    }
}

#[test]
fn s8_6_2_a_publish_has_a_key_and_an_object_or_null() {
    let publish =
        |data: &str| ClientMessage::parse(&format!("{{\"event\":\"presence\",\"data\":{data}}}"));
    for data in [
        "null",
        "[]",
        "{}",
        r#"{"scopeKey":"k:v"}"#,
        r#"{"doc":{}}"#,
        r#"{"scopeKey":"","doc":{}}"#,
        r#"{"scopeKey":7,"doc":{}}"#,
        r#"{"scopeKey":"k:v","doc":[]}"#,
        r#"{"scopeKey":"k:v","doc":"online"}"#,
        r#"{"scopeKey":"k:v","doc":1}"#,
        r#"{"scopeKey":"k:v","doc":false}"#,
    ] {
        assert!(publish(data).is_err(), "{data}");
    }
    assert!(
        publish(r#"{"scopeKey":"k:v","doc":null,"more":1}"#)
            .unwrap()
            .is_some()
    );
}

#[test]
fn s8_6_2_a_document_stands_unless_the_peer_leaves() {
    let fanout = |kind: &str, doc: &str| {
        ServerEvent::parse(&format!(
            r#"{{"event":"presence","data":{{"scopeKey":"k:v","kind":"{kind}","actorId":"a","clientId":"c","doc":{doc},"timestamp":2}}}}"#
        ))
    };
    for (kind, doc, valid) in [
        ("join", "{}", true),
        ("update", "{}", true),
        ("leave", "null", true),
        ("join", "null", false),
        ("update", "null", false),
        ("leave", "{}", false),
        ("snapshot", "{}", false),
    ] {
        assert_eq!(fanout(kind, doc).is_ok(), valid, "{kind} {doc}");
    }
}

#[test]
fn a_document_of_any_depth_is_carried_without_a_tree() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let message = ClientMessage::Presence {
        scope_key: "k:v".to_owned(),
        doc: Some(doc(&deep)),
    };
    assert_eq!(ClientMessage::parse(&message.to_json()), Ok(Some(message)));
}

//! Realtime control messages (§8.1–§8.3, §8.5, §8.6): JSON text in both directions.
//!
//! A known event of the wrong shape is an error; an unknown event name is not, and
//! neither is text that is no JSON object: those are `Ok(None)`, to be ignored.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{DecodeError, ErrorCode};
use crate::json::is_valid_json;
use crate::primitives::MAX_SAFE_INTEGER;

/// The `protocolVersion` of `hello`.
pub const REALTIME_PROTOCOL_VERSION: i64 = 1;
/// Channel tag of a delta: one whole response follows (§8.7).
pub const TAG_DELTA: u8 = 0x00;
/// Channel tag of a chunk of the round in flight (§8.7).
pub const TAG_ROUND: u8 = 0x01;

/// A JSON object as text, without white space between its tokens. The presence
/// document of a host: passed on, never interpreted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonObject(String);

impl JsonObject {
    /// Takes a JSON object; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        (text
            .trim_start_matches([' ', '\t', '\n', '\r'])
            .starts_with('{')
            && is_valid_json(text))
        .then(|| Self(compact(text)))
    }

    /// The text; its length is what a size cap counts.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Removes white space outside strings. Expects a JSON document.
fn compact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if matches!(c, ' ' | '\t' | '\n' | '\r') {
            continue;
        } else {
            in_string = c == '"';
        }
        out.push(c);
    }
    out
}

/// Why a client must pull (§8.3); a closed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WakeReason {
    /// `delta-too-large`
    DeltaTooLarge,
    /// `catchup-required`
    CatchupRequired,
    /// `reset-required`
    ResetRequired,
}

impl WakeReason {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeltaTooLarge => "delta-too-large",
            Self::CatchupRequired => "catchup-required",
            Self::ResetRequired => "reset-required",
        }
    }
    fn parse(name: &str) -> Option<Self> {
        [
            Self::DeltaTooLarge,
            Self::CatchupRequired,
            Self::ResetRequired,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == name)
    }
}

/// What happened to a peer's presence; the document is there unless it left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresenceChange {
    /// `join`
    Join(JsonObject),
    /// `update`
    Update(JsonObject),
    /// `leave`
    Leave,
}

/// Why a publish was refused (§8.6.2); a closed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PresenceError {
    /// `presence.too_large`
    TooLarge,
    /// `presence.forbidden`
    Forbidden,
}

impl PresenceError {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "presence.too_large",
            Self::Forbidden => "presence.forbidden",
        }
    }
}

/// The first event of a connection (§8.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// [`REALTIME_PROTOCOL_VERSION`].
    pub protocol_version: i64,
    /// Id of the connection.
    pub session_id: String,
    /// Authenticated actor.
    pub actor_id: String,
    /// Client of the connection.
    pub client_id: String,
    /// Last acknowledged cursor.
    pub cursor: i64,
    /// Newest commit of the partition.
    pub latest_cursor: i64,
    /// Whether a round must run before deltas can be trusted.
    pub requires_sync: bool,
    /// Server clock, epoch milliseconds.
    pub timestamp: i64,
}

/// A control message from server to client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// `hello`
    Hello(Hello),
    /// `sync`: run a round soon.
    Sync {
        /// Newest commit of the partition.
        cursor: i64,
        /// Why.
        reason: WakeReason,
        /// Server clock, epoch milliseconds.
        timestamp: i64,
    },
    /// `heartbeat`
    Heartbeat {
        /// Server clock, epoch milliseconds.
        timestamp: i64,
    },
    /// `presence`: a peer joined, changed or left.
    Presence {
        /// Scope key both hold.
        scope_key: String,
        /// What happened.
        change: PresenceChange,
        /// The peer's actor.
        actor_id: String,
        /// The peer's client.
        client_id: String,
        /// Server clock, epoch milliseconds.
        timestamp: i64,
    },
    /// `presence` with `error`: the receiver's own publish was refused.
    PresenceRefused {
        /// Scope key of the publish.
        scope_key: String,
        /// Why.
        error: PresenceError,
        /// Server clock, epoch milliseconds.
        timestamp: i64,
    },
}

/// A control message from client to server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// `ack` (§8.2)
    Ack {
        /// Highest commit applied without a gap.
        cursor: i64,
    },
    /// `presence` (§8.6.2): publish, or leave when there is no document.
    Presence {
        /// Scope key, non-empty.
        scope_key: String,
        /// The document.
        doc: Option<JsonObject>,
    },
}

const fn malformed(message: &'static str) -> DecodeError {
    DecodeError {
        code: ErrorCode::InvalidRequest,
        message,
        offset: 0,
    }
}

/// The members of a JSON object; of equal keys the last one counts, as in JavaScript.
struct Members<'a>(HashMap<String, &'a RawValue>);

type Parsed<T> = Result<T, DecodeError>;

impl<'a> Members<'a> {
    fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }
    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).map(|value| value.get())
    }
    fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?).ok()
    }
    fn required_text(&self, key: &str) -> Parsed<String> {
        self.text(key)
            .ok_or(malformed("a text member of a control message is missing"))
    }
    /// An integer within ±(2^53−1); `57.0` is one, `57.5` is not (§8.1).
    fn integer(&self, key: &str) -> Parsed<i64> {
        const FAULT: DecodeError = malformed("a number of a control message is not a safe integer");
        let text = self.get(key).ok_or(FAULT)?;
        let number: f64 = serde_json::from_str(text).map_err(|_| FAULT)?;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        if number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER as f64 {
            Ok(number as i64)
        } else {
            Err(FAULT)
        }
    }
    fn boolean(&self, key: &str) -> Parsed<bool> {
        match self.get(key) {
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            _ => Err(malformed("a boolean of a control message is missing")),
        }
    }
    fn data(&self) -> Parsed<Self> {
        self.get("data")
            .and_then(Self::of)
            .ok_or(malformed("the data of a control message is no object"))
    }
    /// An object, or null as `None`.
    fn doc(&self) -> Parsed<Option<JsonObject>> {
        match self.get("doc") {
            Some("null") => Ok(None),
            Some(text) => JsonObject::parse(text).map(Some).ok_or(BAD_DOC),
            None => Err(BAD_DOC),
        }
    }
}

const BAD_DOC: DecodeError = malformed("a presence document is neither an object nor null");

impl ServerEvent {
    /// Reads an event. `Ok(None)`: not an event this version knows.
    ///
    /// # Errors
    /// A known event of the wrong shape.
    pub fn parse(text: &str) -> Result<Option<Self>, DecodeError> {
        let Some(members) = Members::of(text) else {
            return Ok(None);
        };
        let Some(event) = members.text("event") else {
            return Ok(None);
        };
        Ok(Some(match event.as_str() {
            "hello" => Self::Hello(hello(&members.data()?)?),
            "sync" => {
                let data = members.data()?;
                if data.get("requiresPull") != Some("true") {
                    return Err(malformed("requiresPull is not true"));
                }
                let reason = data.required_text("reason")?;
                Self::Sync {
                    cursor: data.integer("cursor")?,
                    reason: WakeReason::parse(&reason)
                        .ok_or(malformed("the reason of a wake-up is unknown"))?,
                    timestamp: data.integer("timestamp")?,
                }
            }
            "heartbeat" => Self::Heartbeat {
                timestamp: members.data()?.integer("timestamp")?,
            },
            "presence" => presence(&members.data()?)?,
            _ => return Ok(None),
        }))
    }

    /// The text on the wire, members in the order of the specification.
    pub fn to_json(&self) -> String {
        let (event, data) = match self {
            Self::Hello(hello) => (
                "hello",
                vec![
                    ("protocolVersion", hello.protocol_version.to_string()),
                    ("sessionId", quoted(&hello.session_id)),
                    ("actorId", quoted(&hello.actor_id)),
                    ("clientId", quoted(&hello.client_id)),
                    ("cursor", hello.cursor.to_string()),
                    ("latestCursor", hello.latest_cursor.to_string()),
                    ("requiresSync", hello.requires_sync.to_string()),
                    ("timestamp", hello.timestamp.to_string()),
                ],
            ),
            Self::Sync {
                cursor,
                reason,
                timestamp,
            } => (
                "sync",
                vec![
                    ("cursor", cursor.to_string()),
                    ("requiresPull", "true".to_owned()),
                    ("reason", quoted(reason.as_str())),
                    ("timestamp", timestamp.to_string()),
                ],
            ),
            Self::Heartbeat { timestamp } => {
                ("heartbeat", vec![("timestamp", timestamp.to_string())])
            }
            Self::Presence {
                scope_key,
                change,
                actor_id,
                client_id,
                timestamp,
            } => {
                let (kind, doc) = match change {
                    PresenceChange::Join(doc) => ("join", doc.as_str()),
                    PresenceChange::Update(doc) => ("update", doc.as_str()),
                    PresenceChange::Leave => ("leave", "null"),
                };
                (
                    "presence",
                    vec![
                        ("scopeKey", quoted(scope_key)),
                        ("kind", quoted(kind)),
                        ("actorId", quoted(actor_id)),
                        ("clientId", quoted(client_id)),
                        ("doc", doc.to_owned()),
                        ("timestamp", timestamp.to_string()),
                    ],
                )
            }
            Self::PresenceRefused {
                scope_key,
                error,
                timestamp,
            } => (
                "presence",
                vec![
                    ("scopeKey", quoted(scope_key)),
                    ("error", quoted(error.as_str())),
                    ("timestamp", timestamp.to_string()),
                ],
            ),
        };
        enveloped(event, &data)
    }
}

fn hello(data: &Members<'_>) -> Parsed<Hello> {
    Ok(Hello {
        protocol_version: data.integer("protocolVersion")?,
        session_id: data.required_text("sessionId")?,
        actor_id: data.required_text("actorId")?,
        client_id: data.required_text("clientId")?,
        cursor: data.integer("cursor")?,
        latest_cursor: data.integer("latestCursor")?,
        requires_sync: data.boolean("requiresSync")?,
        timestamp: data.integer("timestamp")?,
    })
}

fn presence(data: &Members<'_>) -> Parsed<ServerEvent> {
    let scope_key = data.required_text("scopeKey")?;
    let timestamp = data.integer("timestamp")?;
    if data.get("error").is_some() {
        let error = match data.required_text("error")?.as_str() {
            "presence.too_large" => PresenceError::TooLarge,
            "presence.forbidden" => PresenceError::Forbidden,
            _ => return Err(malformed("the error of a presence event is unknown")),
        };
        return Ok(ServerEvent::PresenceRefused {
            scope_key,
            error,
            timestamp,
        });
    }
    let change = match (data.required_text("kind")?.as_str(), data.doc()?) {
        ("join", Some(doc)) => PresenceChange::Join(doc),
        ("update", Some(doc)) => PresenceChange::Update(doc),
        ("leave", None) => PresenceChange::Leave,
        ("join" | "update" | "leave", _) => {
            return Err(malformed("a presence document is there iff nobody leaves"));
        }
        _ => return Err(malformed("the kind of a presence event is unknown")),
    };
    Ok(ServerEvent::Presence {
        scope_key,
        change,
        actor_id: data.required_text("actorId")?,
        client_id: data.required_text("clientId")?,
        timestamp,
    })
}

impl ClientMessage {
    /// Reads a message. `Ok(None)`: not one this version knows, to be ignored.
    ///
    /// # Errors
    /// A known message of the wrong shape.
    pub fn parse(text: &str) -> Result<Option<Self>, DecodeError> {
        let Some(members) = Members::of(text) else {
            return Ok(None);
        };
        if members.text("type").as_deref() == Some("ack") {
            let cursor = members.integer("cursor")?;
            return Ok(Some(Self::Ack { cursor }));
        }
        if members.text("event").as_deref() != Some("presence") {
            return Ok(None);
        }
        let data = members.data()?;
        let scope_key = data.required_text("scopeKey")?;
        if scope_key.is_empty() {
            return Err(malformed("the scopeKey of a presence message is empty"));
        }
        let doc = data.doc()?;
        Ok(Some(Self::Presence { scope_key, doc }))
    }

    /// The text on the wire.
    pub fn to_json(&self) -> String {
        match self {
            Self::Ack { cursor } => format!("{{\"type\":\"ack\",\"cursor\":{cursor}}}"),
            Self::Presence { scope_key, doc } => {
                let doc = doc.as_ref().map_or("null", JsonObject::as_str);
                enveloped(
                    "presence",
                    &[("scopeKey", quoted(scope_key)), ("doc", doc.to_owned())],
                )
            }
        }
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn enveloped(event: &str, data: &[(&str, String)]) -> String {
    let members: Vec<String> = data
        .iter()
        .map(|(key, value)| format!("\"{key}\":{value}"))
        .collect();
    format!(
        "{{\"event\":\"{event}\",\"data\":{{{}}}}}",
        members.join(",")
    )
}

//! Why a sync ends early.

use ssp2::ErrorFrame;

use crate::transport::TransportError;

/// The server does not serve the client's schema version (§1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaFloor {
    /// Oldest version served.
    pub required: i32,
    /// Newest version known.
    pub latest: Option<i32>,
}

/// Why a sync ended early. What was applied before stays applied; the outbox keeps
/// whatever has no final outcome.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The request failed as a whole, or its answer was lost.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The server ended its answer with an ERROR frame.
    #[error("{}: {}", .0.code, .0.message)]
    Server(Box<ErrorFrame>),
    /// The answer is not a message, or a message that answers something else.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The client's schema version is not served; only an upgrade helps.
    #[error("schema version not served: {} is the oldest", .0.required)]
    UpgradeRequired(SchemaFloor),
    /// The request cannot be encoded.
    #[error("the request cannot be encoded: {0}")]
    Encode(String),
    /// A subscription id is taken by another intent (§4.1).
    #[error("subscription {0} is registered for something else")]
    SubscriptionMismatch(String),
    /// The schema has no such table.
    #[error("there is no table {0}")]
    UnknownTable(String),
    /// Still not idle after the configured number of rounds.
    #[error("not idle after {0} rounds")]
    NotIdle(usize),
}

impl ClientError {
    /// The catalogue code the server gave, if it gave one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Transport(error) => error.code(),
            Self::Server(frame) => Some(&frame.code),
            Self::UpgradeRequired(_) => Some("sync.client_schema_unsupported"),
            _ => None,
        }
    }

    /// Whether the same sync may succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Transport(error) => error.retryable(),
            Self::Server(frame) => frame.retryable,
            _ => false,
        }
    }
}

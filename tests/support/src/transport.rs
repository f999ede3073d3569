//! How rounds and segment downloads reach a server.

use std::future::Future;

use bytes::Bytes;
use serde::Deserialize;

/// Carries sync rounds and segment downloads.
pub trait Transport: Send + Sync {
    /// One combined request: the body of a `POST /sync` and its answer's body.
    ///
    /// # Errors
    /// [`TransportError::Refused`] when the server answered with a failure;
    /// [`TransportError::Lost`] when it is unknown whether the server saw it.
    fn round(&self, body: Bytes) -> impl Future<Output = Result<Bytes, TransportError>> + Send;

    /// Downloads one segment (§5.5), or follows its signed URL (§5.4).
    ///
    /// # Errors
    /// As [`Transport::round`].
    fn segment(
        &self,
        download: &SegmentDownload,
    ) -> impl Future<Output = Result<Bytes, TransportError>> + Send;
}

/// A segment to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentDownload {
    /// `sha256:` and hex digits.
    pub segment_id: String,
    /// Value of `X-Syncular-Scopes`: canonical JSON of the requested scopes.
    pub scopes: String,
    /// A signed URL: then it alone is the grant, and no credentials go with it.
    pub url: Option<String>,
}

/// Why a request has no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The server answered with a failure status.
    #[error("HTTP {status}: {}", .error.as_ref().map_or("no error body", |e| e.code.as_str()))]
    Refused {
        /// HTTP status.
        status: u16,
        /// The error document, when the body held one.
        error: Option<Box<ErrorBody>>,
    },
    /// The connection failed: the server may or may not have done the work.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The request cannot be made at all.
    #[error("the request cannot be made: {0}")]
    Invalid(String),
}

impl TransportError {
    /// The catalogue code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { error, .. } => error.as_ref().map(|error| error.code.as_str()),
            Self::Lost(_) | Self::Invalid(_) => None,
        }
    }

    /// Whether the same request may succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Refused { error, .. } => error.as_ref().is_some_and(|error| error.retryable),
            Self::Lost(_) => true,
            Self::Invalid(_) => false,
        }
    }
}

/// The JSON document of a failed request (§1.1).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// Catalogue code.
    pub code: String,
    /// Category name.
    pub category: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Action name.
    pub recommended_action: String,
    /// Public message.
    pub message: String,
    /// Structured details.
    #[serde(default)]
    pub details: Option<serde_json::Map<String, serde_json::Value>>,
}

impl<T: Transport> Transport for &T {
    fn round(&self, body: Bytes) -> impl Future<Output = Result<Bytes, TransportError>> + Send {
        (**self).round(body)
    }
    fn segment(
        &self,
        download: &SegmentDownload,
    ) -> impl Future<Output = Result<Bytes, TransportError>> + Send {
        (**self).segment(download)
    }
}

impl<T: Transport> Transport for std::sync::Arc<T> {
    fn round(&self, body: Bytes) -> impl Future<Output = Result<Bytes, TransportError>> + Send {
        (**self).round(body)
    }
    fn segment(
        &self,
        download: &SegmentDownload,
    ) -> impl Future<Output = Result<Bytes, TransportError>> + Send {
        (**self).segment(download)
    }
}

//! The HTTP transport: `POST /sync` and `GET /segments/{id}` over kept-alive
//! connections (§1.1, §5.5).

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder};

use crate::transport::{SegmentDownload, Transport, TransportError};

/// Requests time out after this long; a client then treats them as lost.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Speaks to one server as one actor.
#[derive(Debug, Clone)]
pub struct HttpTransport {
    client: Client,
    base: String,
    credentials: HeaderMap,
    gzip_requests: bool,
}

impl HttpTransport {
    /// A transport to the server at `base` (scheme, host, port and any mount path),
    /// authenticating with a bearer token and, where the server asks for it, naming
    /// a partition.
    ///
    /// # Errors
    /// [`TransportError::Invalid`] when token or partition cannot stand in a header.
    pub fn new(base: &str, token: &str, partition: Option<&str>) -> Result<Self, TransportError> {
        let mut credentials = HeaderMap::new();
        credentials.insert(AUTHORIZATION, header(&format!("Bearer {token}"))?);
        if let Some(partition) = partition {
            credentials.insert("x-tidegate-partition", header(partition)?);
        }
        let client = Client::builder()
            .timeout(TIMEOUT)
            .build()
            .map_err(|error| TransportError::Invalid(error.to_string()))?;
        Ok(Self {
            client,
            base: base.trim_end_matches('/').to_owned(),
            credentials,
            gzip_requests: false,
        })
    }

    /// Compresses request bodies, which servers must accept (§1.3).
    #[must_use]
    pub fn gzip_requests(mut self, on: bool) -> Self {
        self.gzip_requests = on;
        self
    }

    /// The same credentials at another base.
    #[must_use]
    pub fn at(mut self, base: &str) -> Self {
        base.trim_end_matches('/').clone_into(&mut self.base);
        self
    }

    async fn send(&self, request: RequestBuilder) -> Result<Bytes, TransportError> {
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        let body = response.bytes().await.map_err(lost)?;
        if status.is_success() {
            return Ok(body);
        }
        Err(TransportError::Refused {
            status: status.as_u16(),
            error: serde_json::from_slice(&body).ok(),
        })
    }
}

impl Transport for HttpTransport {
    async fn round(&self, body: Bytes) -> Result<Bytes, TransportError> {
        let request = self
            .client
            .post(format!("{}/sync", self.base))
            .headers(self.credentials.clone())
            .header(CONTENT_TYPE, ssp2::SYNC_CONTENT_TYPE);
        let request = if self.gzip_requests {
            request.header(CONTENT_ENCODING, "gzip").body(gzip(&body)?)
        } else {
            request.body(body)
        };
        self.send(request).await
    }

    async fn segment(&self, download: &SegmentDownload) -> Result<Bytes, TransportError> {
        let request = match &download.url {
            // The signed URL is the whole grant: no credentials go along (§5.4).
            Some(url) if url.starts_with('/') => self.client.get(format!("{}{url}", self.base)),
            Some(url) => self.client.get(url),
            None => self
                .client
                .get(format!("{}/segments/{}", self.base, download.segment_id))
                .headers(self.credentials.clone())
                .header("x-syncular-scopes", header(&download.scopes)?),
        };
        self.send(request).await
    }
}

fn header(value: &str) -> Result<HeaderValue, TransportError> {
    HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| TransportError::Invalid("a header value is not printable".to_owned()))
}

fn lost(error: reqwest::Error) -> TransportError {
    if error.is_builder() {
        TransportError::Invalid(error.to_string())
    } else {
        TransportError::Lost(error.to_string())
    }
}

fn gzip(body: &[u8]) -> Result<Vec<u8>, TransportError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(body)
        .and_then(|()| encoder.finish())
        .map_err(|error| TransportError::Invalid(error.to_string()))
}

//! One kept-alive HTTP/1.1 connection, with nothing between the loop and the socket
//! that a request does not need.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::runner::LoadError;

/// An answer that takes longer counts as an error.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Host, port and mount path of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `host:port`.
    pub authority: String,
    /// Path before `/sync`, without a trailing slash.
    pub mount: String,
}

impl Target {
    /// Reads an `http://host[:port][/mount]` URL.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let fail = || LoadError::Setup(format!("{url} is not an http:// URL"));
        let uri: Uri = url.parse().map_err(|_| fail())?;
        let authority = uri
            .authority()
            .filter(|_| uri.scheme_str() == Some("http"))
            .ok_or_else(fail)?;
        let host = authority.host();
        Ok(Self {
            authority: format!("{host}:{}", authority.port_u16().unwrap_or(80)),
            mount: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// Who a connection speaks as.
#[derive(Debug, Clone)]
pub struct Credentials {
    bearer: HeaderValue,
    partition: HeaderValue,
}

impl Credentials {
    /// Headers of a token and a partition.
    ///
    /// # Errors
    /// When either cannot stand in a header.
    pub fn new(token: &str, partition: &str) -> Result<Self, LoadError> {
        let header = |value: &str| {
            HeaderValue::from_str(value)
                .map_err(|_| LoadError::Setup("token or partition is not printable".to_owned()))
        };
        Ok(Self {
            bearer: header(&format!("Bearer {token}"))?,
            partition: header(partition)?,
        })
    }
}

/// An open connection.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    content_type: HeaderValue,
    credentials: Credentials,
    sync: Uri,
    healthz: Uri,
}

/// What the server answered.
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Body.
    pub body: Bytes,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When the server is not there.
    pub async fn open(target: &Target, credentials: Credentials) -> Result<Self, LoadError> {
        let lost = |error: &dyn std::fmt::Display| LoadError::Lost(error.to_string());
        let stream = TcpStream::connect(&target.authority)
            .await
            .map_err(|error| lost(&error))?;
        stream.set_nodelay(true).map_err(|error| lost(&error))?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| lost(&error))?;
        // Ends with the sender; its error shows up as the failed request's.
        tokio::spawn(async move {
            let _ = driver.await;
        });
        let uri = |path: &str| {
            format!("{}{path}", target.mount)
                .parse::<Uri>()
                .map_err(|error| LoadError::Setup(error.to_string()))
        };
        Ok(Self {
            sender,
            host: HeaderValue::from_str(&target.authority)
                .map_err(|error| LoadError::Setup(error.to_string()))?,
            content_type: HeaderValue::from_static(ssp2::SYNC_CONTENT_TYPE),
            credentials,
            sync: uri("/sync")?,
            healthz: uri("/healthz")?,
        })
    }

    /// `POST /sync`.
    ///
    /// # Errors
    /// [`LoadError::Lost`] when no answer comes.
    pub async fn sync(&mut self, body: Bytes) -> Result<Answer, LoadError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.sync.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, self.content_type.clone());
        headers.insert(AUTHORIZATION, self.credentials.bearer.clone());
        headers.insert("x-tidegate-partition", self.credentials.partition.clone());
        self.send(request).await
    }

    /// `GET /healthz`.
    ///
    /// # Errors
    /// [`LoadError::Lost`] when no answer comes.
    pub async fn healthz(&mut self) -> Result<Answer, LoadError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = self.healthz.clone();
        self.send(request).await
    }

    async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Result<Answer, LoadError> {
        request.headers_mut().insert(HOST, self.host.clone());
        let exchange = async {
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>(Answer { status, body })
        };
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(LoadError::Lost(error.to_string())),
            Err(_) => Err(LoadError::Lost("no answer in time".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_an_authority_and_a_mount_path() {
        let target = Target::parse("http://127.0.0.1:8787").unwrap();
        assert_eq!(target.authority, "127.0.0.1:8787");
        assert_eq!(target.mount, "");
        let target = Target::parse("http://sync.test/api/").unwrap();
        assert_eq!(target.authority, "sync.test:80");
        assert_eq!(target.mount, "/api");
        assert!(Target::parse("https://sync.test").is_err());
        assert!(Target::parse("127.0.0.1:8787").is_err());
    }
}

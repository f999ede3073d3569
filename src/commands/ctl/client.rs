//! Asks the control endpoint.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Method};
use serde_json::Value as Json;

use super::call::Call;
use crate::cli::Exit;

/// A drain, a prune or a dry run may take its time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// The URL or the token cannot be used.
    #[error("{0}")]
    Usage(&'static str),
    /// Nobody answers.
    #[error("the control endpoint at {url} cannot be reached: {cause}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        cause: String,
    },
    /// The answer is not one of a control endpoint.
    #[error("what answers at {url} with status {status} is no control endpoint")]
    Stranger {
        /// Where.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The endpoint refuses.
    #[error("{}", refusal(.body))]
    Refused {
        /// HTTP status.
        status: u16,
        /// The error body.
        body: Json,
    },
}

fn refusal(body: &Json) -> String {
    let text = |key: &str| body[key].as_str().unwrap_or("?");
    let mut line = format!("{}: {}", text("code"), text("message"));
    if let Some(details) = body.get("details") {
        line.push_str(&format!(" {details}"));
    }
    line
}

impl CtlError {
    /// The exit code of the process.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Unreachable { .. } | Self::Stranger { .. } => Exit::Control,
            Self::Refused { status: 401, .. } => Exit::Control,
            Self::Refused { .. } => Exit::Failure,
        }
    }
}

/// Sends a request.
///
/// # Errors
/// [`CtlError`]
pub async fn send(url: &str, token: Option<&str>, call: &Call) -> Result<Json, CtlError> {
    let base = url.trim_end_matches('/');
    if !base.starts_with("http://") {
        return Err(CtlError::Usage(
            "--url: expected http://HOST:PORT; the endpoint speaks plain HTTP",
        ));
    }
    let token = token.filter(|token| !token.is_empty()).ok_or(CtlError::Usage(
        "no token: give --token or TIDEGATE_CONTROL_TOKEN (the server's control.token, or the one its log shows at the start)",
    ))?;
    let mut credentials = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| CtlError::Usage("--token: not a token"))?;
    credentials.set_sensitive(true);
    let method =
        Method::from_bytes(call.method.as_bytes()).map_err(|_| CtlError::Usage("not a method"))?;
    let unreachable = |error: reqwest::Error| CtlError::Unreachable {
        url: base.to_owned(),
        cause: crate::serve_error::chain(&error),
    };
    let client = Client::builder()
        .timeout(TIMEOUT)
        // The token goes to the endpoint and nowhere else.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(unreachable)?;
    let mut request = client
        .request(method, format!("{base}{}", call.path))
        .header(AUTHORIZATION, credentials);
    if let Some(body) = &call.body {
        request = request
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string());
    }
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    let bytes = response.bytes().await.map_err(unreachable)?;
    let stranger = || CtlError::Stranger {
        url: base.to_owned(),
        status: status.as_u16(),
    };
    let body: Json = serde_json::from_slice(&bytes).map_err(|_| stranger())?;
    if status.is_success() {
        Ok(body)
    } else if body["code"].is_string() {
        Err(CtlError::Refused {
            status: status.as_u16(),
            body,
        })
    } else {
        Err(stranger())
    }
}

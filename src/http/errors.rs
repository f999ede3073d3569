//! Failures before the first byte of an answer: catalogue JSON with a status (§10).

use std::fmt;

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use ssp2::{ErrorCode, SyncError};

/// Names the request in the log, so that a user's report can be found there.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// A request that ends with an error, and the status it has over HTTP.
#[derive(Debug)]
pub struct Refusal {
    error: Box<SyncError>,
    status: u16,
    request_id: Option<u64>,
}

impl Refusal {
    /// The catalogue failure.
    pub fn error(&self) -> &SyncError {
        &self.error
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The same refusal with a status other than its code's.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The same refusal, naming the request in its answer.
    #[must_use]
    pub fn of_request(mut self, id: u64) -> Self {
        self.request_id = Some(id);
        self
    }
}

impl From<SyncError> for Refusal {
    fn from(error: SyncError) -> Self {
        Self {
            status: error.code.http_status(),
            error: Box::new(error),
            request_id: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        response.insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")));
        if self.status == 401 {
            response.insert_header((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        if self.status == 408 {
            // The rest of the body is not read.
            response.force_close();
        }
        if matches!(self.status, 429 | 503) {
            response.insert_header((RETRY_AFTER, HeaderValue::from_static("1")));
        }
        if let Some(id) = self.request_id {
            response.insert_header((REQUEST_ID_HEADER, format!("{id:016x}")));
        }
        response
            .content_type("application/json")
            .body(self.error.to_json().to_string())
    }
}

/// 404 for everything that is no route.
pub async fn unknown_route(_request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Err(SyncError::new(ErrorCode::NotFound, "there is no such route").into())
}

/// 405 for a route's wrong method.
pub async fn wrong_method(_request: HttpRequest) -> Result<HttpResponse, Refusal> {
    Err(Refusal::from(SyncError::new(
        ErrorCode::InvalidRequest,
        "the route does not take this method",
    ))
    .with_status(405))
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::body::to_bytes;

    #[actix_web::test]
    async fn an_error_is_catalogue_json_with_its_status() {
        let refusal =
            Refusal::from(SyncError::new(ErrorCode::SchemaNotReady, "not ready")).of_request(0xab);
        let response = refusal.error_response();
        assert_eq!(response.status(), 503);
        assert_eq!(
            response.headers().get(REQUEST_ID_HEADER).unwrap(),
            "00000000000000ab"
        );
        let body = to_bytes(response.into_body()).await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "code": "sync.schema_not_ready",
                "category": "internal",
                "retryable": true,
                "recommendedAction": "retryLater",
                "message": "not ready",
            })
        );
    }
}

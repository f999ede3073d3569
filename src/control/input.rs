//! What a request brings: bodies and query parameters, bounded and strict.

use std::pin::Pin;

use actix_web::dev::Payload;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::{FromRequest, HttpRequest, web};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use ssp2::{ErrorCode, SyncError};
use tidegate_engine::PartitionId;

use utoipa::ToSchema;

use super::ControlError;
use super::errors::{ControlCode, invalid};

/// Bytes of a body at most.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;
/// Items of a page at most.
pub(crate) const MAX_PAGE: usize = 1_000;
/// Items of a page where the request does not say.
const DEFAULT_PAGE: usize = 100;
/// Bytes of a name at most.
const MAX_NAME_BYTES: usize = 512;

fn malformed(message: &'static str, reason: Option<String>) -> ControlError {
    let mut error = SyncError::new(ErrorCode::InvalidRequest, message);
    if let Some(reason) = reason
        && let serde_json::Value::Object(details) = json!({"reason": reason})
    {
        error = error.with_details(details);
    }
    error.into()
}

/// A JSON body; an empty one is `{}`.
#[derive(Debug)]
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for Body<T> {
    type Error = ControlError;
    type Future = Pin<Box<dyn Future<Output = Result<Self, ControlError>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let media_type = request.headers().get(CONTENT_TYPE).map(|value| {
            let essence = value.to_str().unwrap_or_default().split(';').next();
            essence
                .unwrap_or_default()
                .trim()
                .eq_ignore_ascii_case("application/json")
        });
        let payload = web::Payload::from_request(request, payload);
        Box::pin(async move {
            let payload = payload
                .await
                .map_err(|_| malformed("the request body could not be read", None))?;
            let bytes = match payload.to_bytes_limited(MAX_BODY_BYTES).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(_)) => return Err(malformed("the request body could not be read", None)),
                Err(_) => {
                    return Err(ControlCode::BodyTooLarge.with(json!({"limit": MAX_BODY_BYTES})));
                }
            };
            if media_type == Some(false) {
                let error = malformed("the content type is not application/json", None);
                return Err(error.with_status(415));
            }
            // The parser would take a list for an object's members in order.
            let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
            if first.is_some_and(|&byte| byte != b'{') {
                return Err(malformed("the request body is no JSON object", None));
            }
            let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
            serde_json::from_slice(text).map(Self).map_err(|error| {
                malformed(
                    "the request body is not the JSON expected",
                    Some(error.to_string()),
                )
            })
        })
    }
}

/// No members.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Query parameters.
#[derive(Debug)]
pub(crate) struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequest for Query<T> {
    type Error = ControlError;
    type Future = std::future::Ready<Result<Self, ControlError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        std::future::ready(
            web::Query::from_query(request.query_string())
                .map(|web::Query(value)| Self(value))
                .map_err(|error| {
                    malformed(
                        "the query parameters are not those expected",
                        Some(error.to_string()),
                    )
                }),
        )
    }
}

/// Which page of a list.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// The `next` of the page before; the first page without it.
    after: Option<String>,
    /// Items at most, 1 to 1000; 100 without it.
    limit: Option<usize>,
}

/// A checked [`PageQuery`].
#[derive(Debug)]
pub(crate) struct Page {
    /// Exclusive start.
    pub after: Option<String>,
    /// Items at most.
    pub limit: usize,
}

impl PageQuery {
    /// # Errors
    /// `control.invalid_value`
    pub fn check(self) -> Result<Page, ControlError> {
        let limit = self.limit.unwrap_or(DEFAULT_PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(invalid("limit", "1 to 1000"));
        }
        Ok(Page {
            after: self.after,
            limit,
        })
    }
}

/// A name from a path or a body.
///
/// # Errors
/// `control.invalid_value` for one that nothing can have.
pub(crate) fn name(field: &'static str, text: String) -> Result<String, ControlError> {
    let fine =
        !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control);
    if fine {
        Ok(text)
    } else {
        Err(invalid(
            field,
            "1 to 512 bytes of text without control characters",
        ))
    }
}

/// The partition of a path.
///
/// # Errors
/// As [`name`].
pub(crate) fn partition(text: String) -> Result<PartitionId, ControlError> {
    name("partition", text).map(PartitionId::from)
}

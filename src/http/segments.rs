//! `GET /segments/{id}`: bootstrap segments by reference, authorized anew on
//! every download (§5.5, §5.8).

use actix_web::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_NONE_MATCH, VARY,
};
use actix_web::web::{self, Bytes, Data, Path};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use ssp2::{ErrorCode, ScopeLists, SyncError, scope_digest};
use tidegate_engine::schema::Schema;
use tidegate_engine::scopes::{ANY, Effective, effective};
use tidegate_engine::{hooks::Allowed, scopes};

use super::compression::{Coding, compress};
use super::errors::Refusal;
use crate::auth::{Identity, Resolution};
use crate::server::Service;
use crate::sync::Failure;
use crate::sync::segments::Found;

/// The requested scopes of the subscription that a segment belongs to, canonical JSON.
pub const SCOPES_HEADER: HeaderName = HeaderName::from_static("x-syncular-scopes");

const CACHE: HeaderValue = HeaderValue::from_static("private, max-age=0");
const VARY_ON: HeaderValue =
    HeaderValue::from_static("Authorization, X-Syncular-Scopes, Accept-Encoding");

/// Segments beyond that are compressed on another thread.
const COMPRESS_INLINE_BYTES: usize = 64 * 1024;

/// Serves a segment.
///
/// # Errors
/// As catalogue JSON, in the order of §5.5: authentication, gate, existence,
/// expiry, scopes header, authorization.
pub async fn get(
    request: HttpRequest,
    id: Path<String>,
    service: Data<Service>,
) -> Result<HttpResponse, Refusal> {
    let identity = service
        .authenticate
        .authenticate(request.headers())
        .await
        .map_err(Refusal::from)?;
    let allowed = authorize(&service, &identity, request.headers(), &id).await;
    let bytes = allowed.map_err(|failure| {
        let number = service.next_request_id();
        tracing::info!(
            request = format_args!("{number:016x}"),
            status = failure.status(),
            code = failure.error().code.as_str(),
            partition = identity.partition.as_str(),
            cause = failure.cause(),
            "a segment download was refused"
        );
        let status = failure.status();
        Refusal::from(failure.into_error())
            .with_status(status)
            .of_request(number)
    })?;
    let etag =
        HeaderValue::from_str(&format!("\"{id}\"")).map_err(|_| Refusal::from(not_found()))?;
    if is_known(request.headers(), &id) {
        let mut response = HttpResponse::NotModified();
        cacheable(&mut response, etag);
        return Ok(response.finish());
    }
    let coding = Coding::negotiate(
        request
            .headers()
            .get(ACCEPT_ENCODING)
            .and_then(|value| value.to_str().ok()),
    );
    let (body, coding) = pack(bytes, coding, service.config.http.compress_min_bytes)
        .await
        .map_err(|failure| Refusal::from(failure.into_error()))?;
    let mut response = HttpResponse::Ok();
    cacheable(&mut response, etag);
    response.insert_header((
        CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    ));
    if let Some(name) = coding.header() {
        response.insert_header((CONTENT_ENCODING, HeaderValue::from_static(name)));
    }
    Ok(response.body(body))
}

fn cacheable(response: &mut HttpResponseBuilder, etag: HeaderValue) {
    response
        .insert_header((ETAG, etag))
        .insert_header((CACHE_CONTROL, CACHE))
        .insert_header((VARY, VARY_ON));
}

fn not_found() -> SyncError {
    SyncError::new(ErrorCode::NotFound, "there is no such segment")
}

fn forbidden() -> SyncError {
    SyncError::new(
        ErrorCode::Forbidden,
        "the segment is not granted for these scopes",
    )
}

async fn authorize(
    service: &Service,
    identity: &Identity,
    headers: &HeaderMap,
    id: &str,
) -> Result<Bytes, Failure> {
    let running = service.schema.version();
    let pass = service.gate.pass(&identity.partition).await?;
    // A partition without an epoch has never published anything.
    let epoch = pass.epoch().ok_or_else(not_found)?;
    let now_ms = service.clock.now_ms();
    let found = service
        .segments
        .find(id, &identity.partition, epoch, running, now_ms);
    let (bytes, digests) = match found {
        Found::Unknown => return Err(not_found().into()),
        Found::Expired => {
            return Err(
                SyncError::new(ErrorCode::SegmentExpired, "the segment has expired").into(),
            );
        }
        Found::Live { bytes, digests } => (bytes, digests),
    };
    let requested = requested_scopes(headers, &service.schema)?;
    let allowed = match service.scopes.resolve(identity).await {
        Resolution::Known(Allowed::Resolved(allowed)) => {
            scopes::validate_allowed(&service.schema, &allowed)?;
            Allowed::Resolved(allowed)
        }
        // No lease stands in for a download.
        Resolution::Known(Allowed::Failed) | Resolution::Outage => {
            return Err(forbidden().into());
        }
    };
    let Effective::Active(granted) = effective(&requested, &allowed) else {
        return Err(forbidden().into());
    };
    let digest = scope_digest(&granted);
    let (_, table) = digests
        .iter()
        .find(|(published, _)| **published == *digest)
        .ok_or_else(forbidden)?;
    pass.table(*table)?;
    Ok(bytes)
}

/// Reads the scopes header: an object of lists of strings.
fn requested_scopes(headers: &HeaderMap, schema: &Schema) -> Result<ScopeLists, SyncError> {
    let garbled = || {
        SyncError::new(
            ErrorCode::InvalidRequest,
            "X-Syncular-Scopes is not a JSON object of string lists",
        )
    };
    let header = headers.get(SCOPES_HEADER).ok_or_else(garbled)?;
    let parsed: std::collections::BTreeMap<String, Vec<String>> =
        serde_json::from_slice(header.as_bytes()).map_err(|_| garbled())?;
    let declared = |variable: &str| {
        schema
            .tables()
            .iter()
            .any(|table| table.declares_scope(variable))
    };
    for (variable, values) in &parsed {
        if !declared(variable) || values.iter().any(|value| value == ANY) {
            return Err(SyncError::new(
                ErrorCode::InvalidSubscription,
                "the scopes name an unknown variable or the value *",
            ));
        }
    }
    Ok(parsed.into_iter().collect())
}

/// Whether the client holds the segment already (weak comparison, RFC 9110 §13.1.2).
fn is_known(headers: &HeaderMap, id: &str) -> bool {
    headers.get_all(IF_NONE_MATCH).any(|value| {
        value.to_str().is_ok_and(|list| {
            list.split(',').map(str::trim).any(|tag| {
                tag == "*"
                    || tag
                        .trim_start_matches("W/")
                        .strip_prefix('"')
                        .and_then(|tag| tag.strip_suffix('"'))
                        == Some(id)
            })
        })
    })
}

async fn pack(bytes: Bytes, coding: Coding, min: usize) -> Result<(Bytes, Coding), Failure> {
    if coding == Coding::Identity || bytes.len() < min {
        return Ok((bytes, Coding::Identity));
    }
    let packed = if bytes.len() <= COMPRESS_INLINE_BYTES {
        compress(coding, &bytes)
    } else {
        web::block(move || compress(coding, &bytes))
            .await
            .map_err(Failure::unavailable)?
    };
    packed.map(|body| (body, coding)).map_err(Failure::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        headers
    }

    #[test]
    fn an_etag_is_compared_weakly_in_a_list() {
        let known = |value: &str| is_known(&headers(IF_NONE_MATCH, value), "sha256:ab");
        assert!(known("\"sha256:ab\""));
        assert!(known("\"x\", W/\"sha256:ab\""));
        assert!(known("*"));
        assert!(!known("sha256:ab"));
        assert!(!known("\"sha256:abc\""));
    }

    #[test]
    fn the_scopes_header_is_judged() {
        let schema = Schema::load(crate::server::DEMO_SCHEMA).unwrap();
        let parse = |value: &str| {
            requested_scopes(&headers(SCOPES_HEADER, value), &schema).map_err(|error| error.code)
        };
        let scopes = parse(r#"{"list_id":["a","ü"]}"#).unwrap();
        assert_eq!(scopes.get("list_id").unwrap(), &["a", "ü"]);
        for garbled in ["", "[]", "{", r#"{"list_id":"a"}"#, r#"{"list_id":[1]}"#] {
            assert_eq!(parse(garbled), Err(ErrorCode::InvalidRequest), "{garbled}");
        }
        for wrong in [r#"{"nope":["a"]}"#, r#"{"list_id":["*"]}"#] {
            assert_eq!(parse(wrong), Err(ErrorCode::InvalidSubscription), "{wrong}");
        }
        let missing = requested_scopes(&HeaderMap::new(), &schema).unwrap_err();
        assert_eq!(missing.code, ErrorCode::InvalidRequest);
    }
}

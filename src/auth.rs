//! Who is asking, and what they may see. The two seams that a deployment
//! replaces, and the development implementation of both.

pub mod grants;

use std::sync::Arc;

use actix_web::http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use async_trait::async_trait;
use ssp2::{ErrorCode, ScopeLists, SyncError};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, PartitionId};

/// Who a request comes from (§1.1). The partition never travels in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Tenant.
    pub partition: PartitionId,
    /// Actor.
    pub actor: ActorId,
}

/// Finds out who a request comes from.
#[async_trait]
pub trait Authenticate: Send + Sync {
    /// # Errors
    /// `sync.auth_required` when the credentials are missing or wrong,
    /// `sync.internal_error` when it could not be found out.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Identity, SyncError>;
}

/// What a scope resolver found out (§3.2, §7.3).
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// It answered, or failed in a way that revokes.
    Known(Allowed),
    /// What it asks is out of reach: only a lease could stand in.
    Outage,
}

/// Finds out what an actor may see and write (§3.2), once per request.
#[async_trait]
pub trait ResolveScopes: Send + Sync {
    /// The allowed values of each scope variable, or why there are none.
    async fn resolve(&self, identity: &Identity) -> Resolution;
}

/// Selects the partition in development authentication.
pub const PARTITION_HEADER: HeaderName = HeaderName::from_static("x-tidegate-partition");
const DEFAULT_PARTITION: &str = "default";
const MAX_NAME_BYTES: usize = 128;

/// Development authentication: `Authorization: Bearer NAME` IS actor NAME, and
/// `X-Tidegate-Partition` names the partition (`default` without it). Proves
/// nothing, so it is refused beyond loopback unless forced.
#[derive(Debug, Clone, Copy, Default)]
pub struct DevelopmentAuth;

#[async_trait]
impl Authenticate for DevelopmentAuth {
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Identity, SyncError> {
        let token =
            only(headers, &AUTHORIZATION)?.ok_or_else(|| refused("a bearer token is required"))?;
        let actor = bearer(token.as_bytes())
            .filter(|name| is_name(name, |byte| byte.is_ascii_graphic()))
            .ok_or_else(|| refused("the bearer token is malformed"))?;
        let partition = match only(headers, &PARTITION_HEADER)? {
            None => DEFAULT_PARTITION,
            Some(value) => std::str::from_utf8(value.as_bytes())
                .ok()
                .filter(|name| {
                    is_name(name, |byte| {
                        byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte)
                    })
                })
                .ok_or_else(|| refused("the partition name is malformed"))?,
        };
        Ok(Identity {
            partition: partition.into(),
            actor: actor.into(),
        })
    }
}

/// The value of a header that may stand once: of two, a proxy may have checked the other.
fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, SyncError> {
    let mut values = headers.get_all(name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(refused("a header that says who asks stands twice")),
    }
}

fn refused(message: &'static str) -> SyncError {
    SyncError::new(ErrorCode::AuthRequired, message)
}

/// The token of a `Bearer` credential; the scheme's case does not matter (RFC 9110 §11.1).
pub(crate) fn bearer(header: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(header).ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_matches(' '))
}

fn is_name(name: &str, allowed: impl Fn(u8) -> bool) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(allowed)
}

/// Every actor holds `*` for every variable that the schema declares.
#[derive(Debug, Clone)]
pub struct Everything {
    allowed: Arc<ScopeLists>,
}

impl Everything {
    /// For the variables of `schema`.
    pub fn of(schema: &Schema) -> Self {
        let variables = schema
            .tables()
            .iter()
            .flat_map(|table| &table.scopes)
            .map(|pattern| (pattern.variable.clone(), vec!["*".to_owned()]));
        Self {
            allowed: Arc::new(variables.collect()),
        }
    }
}

#[async_trait]
impl ResolveScopes for Everything {
    async fn resolve(&self, _identity: &Identity) -> Resolution {
        Resolution::Known(Allowed::Resolved(Arc::clone(&self.allowed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn identify(
        token: Option<&str>,
        partition: Option<&str>,
    ) -> Result<(String, String), SyncError> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(token).unwrap());
        }
        if let Some(partition) = partition {
            headers.insert(PARTITION_HEADER, HeaderValue::from_str(partition).unwrap());
        }
        DevelopmentAuth
            .authenticate(&headers)
            .await
            .map(|id| (id.actor.to_string(), id.partition.to_string()))
    }

    #[actix_web::test]
    async fn the_bearer_token_is_the_actor() {
        assert_eq!(
            identify(Some("Bearer ada"), None).await.unwrap(),
            ("ada".to_owned(), "default".to_owned())
        );
        assert_eq!(
            identify(Some("bearer  ada@example.org "), Some("team-1:eu"))
                .await
                .unwrap(),
            ("ada@example.org".to_owned(), "team-1:eu".to_owned())
        );
    }

    #[actix_web::test]
    async fn missing_or_malformed_credentials_are_auth_required() {
        let long = format!("Bearer {}", "a".repeat(129));
        let cases = [
            (None, None),
            (Some("ada"), None),
            (Some("Basic YWRhOng="), None),
            (Some("Bearer"), None),
            (Some("Bearer "), None),
            (Some("Bearer a b"), None),
            (Some(long.as_str()), None),
            (Some("Bearer ada"), Some("")),
            (Some("Bearer ada"), Some("a/b")),
            (Some("Bearer ada"), Some("a b")),
            (Some("Bearer ada"), Some(&long[7..])),
        ];
        for (token, partition) in cases {
            let error = identify(token, partition).await.unwrap_err();
            assert_eq!(
                error.code,
                ErrorCode::AuthRequired,
                "{token:?} {partition:?}"
            );
        }
    }

    #[actix_web::test]
    async fn a_header_that_stands_twice_is_refused() {
        for twice in [AUTHORIZATION, PARTITION_HEADER] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer ada"));
            headers.insert(PARTITION_HEADER, HeaderValue::from_static("p"));
            assert!(DevelopmentAuth.authenticate(&headers).await.is_ok());
            let value = headers.get(&twice).unwrap().clone();
            headers.append(twice, value);
            let error = DevelopmentAuth.authenticate(&headers).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::AuthRequired);
        }
    }
}

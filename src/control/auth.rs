//! The bearer token that opens the control endpoint.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use actix_web::middleware::Next;
use actix_web::web::Data;
use ssp2::{ErrorCode, SyncError};
use subtle::ConstantTimeEq;

use super::ControlError;
use crate::auth::bearer;

/// The token that requests must carry.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl Token {
    /// The configured one.
    pub fn new(token: &str) -> Self {
        Self(token.as_bytes().into())
    }

    /// Whether the credentials are right. How long it takes tells no more than the
    /// token's length.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION);
        // Of two, a proxy may have checked the other one.
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        bearer(value.as_bytes()).is_some_and(|token| token.as_bytes().ct_eq(&self.0).into())
    }
}

/// 256 unpredictable bits for a server without a configured token.
///
/// # Errors
/// When the system has no randomness.
pub fn generate() -> Result<String, getrandom::Error> {
    let (first, second) = (random_hex()?, random_hex()?);
    Ok(first + &second)
}

/// 128 unpredictable bits.
pub(crate) fn random_hex() -> Result<String, getrandom::Error> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}

/// Lets nobody through without the token, whatever the route.
pub(crate) async fn require(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let admitted = request
        .app_data::<Data<Token>>()
        .is_some_and(|token| token.admits(request.headers()));
    if admitted {
        next.call(request).await
    } else {
        let error = SyncError::new(
            ErrorCode::AuthRequired,
            "the control endpoint needs its bearer token",
        );
        Err(ControlError::from(error).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::HeaderValue;

    fn admits(headers: &[&'static str]) -> bool {
        let mut map = HeaderMap::new();
        for header in headers {
            map.append(AUTHORIZATION, HeaderValue::from_static(header));
        }
        Token::new("s3cret").admits(&map)
    }

    #[test]
    fn only_the_token_opens() {
        assert!(admits(&["Bearer s3cret"]));
        assert!(admits(&["bearer s3cret"]));
        for refused in [
            &[][..],
            &["Bearer s3cres"],
            &["Bearer s3cre"],
            &["Bearer s3cret2"],
            &["Bearer "],
            &["s3cret"],
            &["Basic s3cret"],
            &["Bearer s3cret", "Bearer s3cret"],
        ] {
            assert!(!admits(refused), "{refused:?}");
        }
    }

    #[test]
    fn generated_tokens_are_long_and_differ() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
    }
}

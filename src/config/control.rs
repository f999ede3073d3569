//! `[control]`: the operators' endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a token at least: what opens everything must not be guessed.
const MIN_TOKEN_BYTES: usize = 16;
/// Bytes of a token at most.
const MAX_TOKEN_BYTES: usize = 512;

/// `[control]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Where it listens.
    pub listen: ControlListen,
    /// What opens it.
    pub token: ControlToken,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            listen: ControlListen::At(SocketAddr::from(([127, 0, 0, 1], 8788))),
            token: ControlToken(String::new()),
        }
    }
}

/// Where the control endpoint listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ControlListen {
    /// Nowhere.
    Off,
    /// There.
    At(SocketAddr),
}

impl ControlListen {
    /// The address, unless it is off.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl FromStr for ControlListen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Self::Off);
        }
        text.parse()
            .map(Self::At)
            .map_err(|_| "expected IP:PORT or off")
    }
}

impl TryFrom<String> for ControlListen {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ControlListen> for String {
    fn from(listen: ControlListen) -> Self {
        match listen {
            ControlListen::Off => "off".to_owned(),
            ControlListen::At(address) => address.to_string(),
        }
    }
}

/// A bearer token; empty = one is generated at start. Never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ControlToken(String);

impl ControlToken {
    /// The token, if one is configured.
    pub fn get(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|token| !token.is_empty())
    }
}

impl TryFrom<String> for ControlToken {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fits = text.is_empty() || (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err(
                "expected at least 16 and at most 512 printable ASCII characters without spaces, or none for a generated token",
            )
        }
    }
}

impl fmt::Debug for ControlToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "(set)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_listens_at_an_address_or_not_at_all() {
        assert_eq!("off".parse(), Ok(ControlListen::Off));
        let at: ControlListen = "[::1]:9".parse().unwrap();
        assert_eq!(at.address().unwrap().port(), 9);
        assert_eq!(String::from(at), "[::1]:9");
        assert!("localhost:9".parse::<ControlListen>().is_err());
        assert!("".parse::<ControlListen>().is_err());
    }

    #[test]
    fn a_token_is_printable_and_never_shown() {
        let token = ControlToken::try_from("s3cret-of-operators".to_owned()).unwrap();
        assert_eq!(token.get(), Some("s3cret-of-operators"));
        assert!(!format!("{token:?}").contains("s3cret"));
        assert_eq!(ControlToken::try_from(String::new()).unwrap().get(), None);
        for bad in ["sixteen or more, with spaces", "sechzehn-und-mehr-ä"] {
            assert!(ControlToken::try_from(bad.to_owned()).is_err());
        }
    }

    #[test]
    fn a_token_is_neither_short_nor_endless() {
        for length in [0, 16, 512] {
            ControlToken::try_from("x".repeat(length)).unwrap();
        }
        for length in [1, 15, 513] {
            assert!(ControlToken::try_from("x".repeat(length)).is_err());
        }
    }
}

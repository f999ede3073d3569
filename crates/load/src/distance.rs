//! How far away the database is for what is measured: on this machine, or behind a relay
//! that makes every round trip take longer.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::config::Host;

use crate::relay::Relay;
use crate::runner::LoadError;

/// Where Postgres listens when a URL does not say.
const PORT: u16 = 5432;

/// The way from what is measured to its database.
#[derive(Debug)]
pub enum Way {
    /// As the database's own URL says.
    Direct,
    /// Through a relay.
    Relayed(Relay),
}

/// A round trip to the database, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoundTrip {
    /// What was asked for; 0 is the direct way.
    pub asked: u32,
    /// Median of a trivial query's.
    pub measured: f64,
}

impl RoundTrip {
    /// What it was, as a sentence or two.
    pub fn sentence(self) -> String {
        let Self { asked, measured } = self;
        if asked == 0 {
            return format!(
                "The database is reached directly: `SELECT 1` takes {measured:.0} µs (median)."
            );
        }
        format!(
            "The database is behind a relay that adds {asked} µs to a round trip: `SELECT 1` takes \
             {measured:.0} µs through it (median). The relay's threads take processor time of the \
             machine that does all the rest, at every configuration's expense."
        )
    }
}

impl Way {
    /// Opens the way to the server of `url`, `rtt_us` microseconds there and back.
    ///
    /// # Errors
    /// When a relay is needed and `url` does not name one host that can be found, or the
    /// relay cannot listen.
    pub fn open(url: &str, rtt_us: u32) -> Result<Self, LoadError> {
        if rtt_us == 0 {
            return Ok(Self::Direct);
        }
        let delay = Duration::from_micros(u64::from(rtt_us)) / 2;
        Relay::open(addresses(url)?, delay)
            .map(Self::Relayed)
            .map_err(|error| LoadError::Setup(format!("the relay does not open: {error}")))
    }

    /// The URL by which what is measured reaches the database of `url`.
    ///
    /// # Errors
    /// When `url` does not name its host where a URL does.
    pub fn url(&self, url: &str) -> Result<String, LoadError> {
        match self {
            Self::Direct => Ok(url.to_owned()),
            Self::Relayed(relay) => rerouted(url, relay.address()),
        }
    }
}

fn one_host() -> LoadError {
    LoadError::Setup(
        "a database at a distance needs a URL like postgres://user@host:port/database, with one \
         host"
            .to_owned(),
    )
}

/// The only host and port of a URL.
fn host(url: &str) -> Result<(String, u16), LoadError> {
    let config: tokio_postgres::Config = url.parse().map_err(|_| one_host())?;
    let port = match config.get_ports() {
        [] => PORT,
        [port] => *port,
        _ => return Err(one_host()),
    };
    match config.get_hosts() {
        [Host::Tcp(host)] if config.get_hostaddrs().is_empty() => Ok((host.clone(), port)),
        _ => Err(one_host()),
    }
}

fn addresses(url: &str) -> Result<Vec<SocketAddr>, LoadError> {
    let (host, port) = host(url)?;
    (host.as_str(), port)
        .to_socket_addrs()
        .map(Iterator::collect)
        .map_err(|error| LoadError::Setup(format!("{host} is not found: {error}")))
}

/// A URL with another host and port and everything else of it.
fn rerouted(url: &str, address: SocketAddr) -> Result<String, LoadError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(one_host)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let user = authority.rfind('@').map_or(0, |at| at + 1);
    let rerouted = format!("{scheme}://{}{address}{path}", &authority[..user]);
    // A host may also hide among the options, which would be a way around the relay.
    if host(&rerouted)? == (address.ip().to_string(), address.port()) {
        Ok(rerouted)
    } else {
        Err(one_host())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::yardstick::round_trip;

    #[test]
    fn another_host_and_port_leave_the_rest_of_a_url() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4711));
        for (url, wanted) in [
            (
                "postgres://u:p@host:5433/db",
                "postgres://u:p@127.0.0.1:4711/db",
            ),
            (
                "postgres://u%40x@[::1]/db",
                "postgres://u%40x@127.0.0.1:4711/db",
            ),
            ("postgresql://host", "postgresql://127.0.0.1:4711"),
            (
                "postgres://host/db?sslmode=disable",
                "postgres://127.0.0.1:4711/db?sslmode=disable",
            ),
        ] {
            assert_eq!(rerouted(url, address).unwrap(), wanted);
        }
    }

    #[test]
    fn a_url_that_would_lead_around_the_relay_is_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4711));
        for url in [
            "postgres://u@%2Fvar%2Frun/db?host=other",
            "postgres:///db?host=/var/run",
            "postgres://host/db?hostaddr=10.0.0.1",
            "postgres://host/db?port=1",
            "host=h port=1",
            "no url",
        ] {
            assert!(rerouted(url, address).is_err(), "{url}");
        }
        for url in ["postgres://a,b/db", "postgres://%2Fvar%2Frun/db"] {
            assert!(Way::open(url, 500).is_err(), "{url}");
        }
    }

    #[test]
    fn no_distance_leaves_the_url_alone() {
        let way = Way::open("postgres://%2Fvar%2Frun/db", 0).unwrap();
        assert!(matches!(way, Way::Direct));
        let url = "postgres://u@%2Fvar%2Frun/db";
        assert_eq!(way.url(url).unwrap(), url);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_query_takes_at_least_the_round_trip_that_was_asked_for() {
        let database = tidegate_test_postgres::Database::create().unwrap();
        let way = Way::open(&database.url(), 2000).unwrap();
        let began = Instant::now();
        let measured = round_trip(&way.url(&database.url()).unwrap())
            .await
            .unwrap();
        assert!(measured >= Duration::from_micros(2000), "{measured:?}");
        assert!(measured < began.elapsed() / 100, "{measured:?}");
    }

    #[test]
    fn the_sentence_says_asked_and_measured() {
        let direct = RoundTrip {
            asked: 0,
            measured: 31.4,
        };
        assert!(
            direct
                .sentence()
                .contains("directly: `SELECT 1` takes 31 µs")
        );
        let far = RoundTrip {
            asked: 500,
            measured: 640.6,
        };
        let text = far.sentence();
        assert!(text.contains("adds 500 µs") && text.contains("takes 641 µs"));
        assert!(text.contains("processor time"));
    }
}

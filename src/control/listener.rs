//! The endpoint's own listener.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix::Actor;
use actix_web::dev::{Server, ServerHandle};
use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
use actix_web::middleware::{DefaultHeaders, from_fn};
use actix_web::web::Data;
use actix_web::{App, HttpServer};

use super::openapi::Document;
use super::{Operator, Parts, Station, Token, auth, routes};

/// Operators are few; a connection of theirs may wait.
const MAX_CONNECTIONS: usize = 64;
/// How long the head of a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// What asks every few seconds keeps its connection.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// An endpoint that listens, and the server that must be polled for it to answer.
pub struct Bound {
    /// The address it really listens on.
    pub address: SocketAddr,
    /// Stops it.
    pub handle: ServerHandle,
    /// Runs it.
    pub server: Server,
    /// What to do at the end.
    pub release: Release,
}

/// Lets go of what operators held, so that it does not hold up the end.
pub struct Release(Arc<Station>);

impl Release {
    /// Resumes every held partition.
    pub fn all(&self) {
        for partition in self.0.holds.take_all() {
            self.0.parts.directory.resume(&partition);
        }
    }
}

/// Serves what connects to a listener. Runs inside an actix system.
///
/// # Errors
/// When the listener cannot be used.
pub fn serve(listener: TcpListener, token: Token, parts: Parts) -> std::io::Result<Bound> {
    let address = listener.local_addr()?;
    let test_hooks = parts.test_hooks.is_some();
    let station = Arc::new(Station {
        parts,
        holds: super::Holds::default(),
    });
    let operator = Operator {
        station: Arc::clone(&station),
    };
    let token = Data::new(token);
    let document = Data::new(Document::of(test_hooks));
    let operator = Data::new(operator.start());
    let server = HttpServer::new(move || {
        App::new()
            .app_data(operator.clone())
            .app_data(token.clone())
            .app_data(document.clone())
            .wrap(from_fn(auth::require))
            .wrap(DefaultHeaders::new().add((CACHE_CONTROL, HeaderValue::from_static("no-store"))))
            .configure(|config| routes::register(config, test_hooks))
    })
    .workers(1)
    .max_connections(MAX_CONNECTIONS)
    .client_request_timeout(REQUEST_TIMEOUT)
    .keep_alive(KEEP_ALIVE)
    .shutdown_timeout(1)
    .disable_signals()
    .listen(listener)?;
    let address = server.addrs().first().copied().unwrap_or(address);
    let server = server.run();
    Ok(Bound {
        address,
        handle: server.handle(),
        server,
        release: Release(station),
    })
}

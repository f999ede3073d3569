//! The control endpoint of a running server.

use std::net::SocketAddr;
use std::sync::Arc;

use actix_web::dev::ServerHandle;
use tokio::task::JoinHandle;

use super::doors::Door;
use super::{ServeError, Service};
use crate::control::{self, Parts, Release, Token};

/// A control endpoint that answers.
pub(super) struct RunningControl {
    pub address: SocketAddr,
    handle: ServerHandle,
    pub server: JoinHandle<std::io::Result<()>>,
    release: Release,
}

impl RunningControl {
    /// Starts it behind its door, unless it is off.
    pub fn start(service: &Service, door: Option<Door>) -> Result<Option<Self>, ServeError> {
        let Some(door) = door else {
            return Ok(None);
        };
        let address = door.address;
        let wanted = &service.config.control;
        let generated = match wanted.token.get() {
            Some(_) => None,
            None => Some(
                control::generate_token().map_err(|source| ServeError::System {
                    context: "cannot generate a token for the control endpoint",
                    source: std::io::Error::other(source),
                })?,
            ),
        };
        let token = wanted.token.get().or(generated.as_deref());
        let parts = Parts {
            store: Arc::clone(&service.store),
            directory: service.directory.clone(),
            schema: Arc::clone(&service.schema),
            clock: Arc::clone(&service.clock),
            coordinator: service.coordinator.clone(),
            backfills: Arc::clone(&service.backfills),
            grants: service.grants.clone(),
            test_hooks: service.test_hooks.clone(),
        };
        let token = Token::new(token.unwrap_or_default());
        let bound = door
            .open()
            .and_then(|listener| control::serve(listener, token, parts))
            .map_err(|source| ServeError::ControlListen { address, source })?;
        match &generated {
            Some(token) => tracing::warn!(
                address = %bound.address,
                token,
                "the control endpoint listens; control.token is not set, this token opens it until the server ends"
            ),
            None => tracing::info!(address = %bound.address, "the control endpoint listens"),
        }
        Ok(Some(Self {
            address: bound.address,
            handle: bound.handle,
            server: tokio::task::spawn_local(bound.server),
            release: bound.release,
        }))
    }

    /// Ends it, and lets go of every partition that an operator held: pushes that wait
    /// for one are requests in flight.
    pub async fn stop(&self) {
        self.handle.stop(true).await;
        self.release.all();
    }
}

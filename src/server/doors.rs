//! The addresses of a server, taken before anything else is touched: a start that fails on
//! one leaves no file behind, migrates nothing, and locks nobody out.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use super::ServeError;
use crate::config::Config;

/// Connections that wait to be accepted, at most.
const BACKLOG: u32 = 2048;

/// The addresses of a server. Nobody can connect to them yet.
#[derive(Debug)]
pub struct Doors {
    pub(super) requests: Door,
    /// `None` where the control endpoint is off.
    pub(super) control: Option<Door>,
}

impl Doors {
    /// Takes the configured addresses. Runs inside a tokio runtime.
    ///
    /// # Errors
    /// [`ServeError::Listen`], [`ServeError::ControlListen`]
    pub fn reserve(config: &Config) -> Result<Self, ServeError> {
        let address = config.listen;
        let requests =
            Door::reserve(address).map_err(|source| ServeError::Listen { address, source })?;
        let control = config.control.listen.address().map(|address| {
            Door::reserve(address).map_err(|source| ServeError::ControlListen { address, source })
        });
        Ok(Self {
            requests,
            control: control.transpose()?,
        })
    }
}

/// An address that is taken.
#[derive(Debug)]
pub(super) struct Door {
    /// As configured: port 0 is one that the system picks.
    pub(super) address: SocketAddr,
    socket: TcpSocket,
}

impl Door {
    fn reserve(address: SocketAddr) -> std::io::Result<Self> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(cfg!(unix))?;
        socket.bind(address)?;
        Ok(Self { address, socket })
    }

    /// Lets connections in.
    pub(super) fn open(self) -> std::io::Result<std::net::TcpListener> {
        self.socket.listen(BACKLOG).and_then(TcpListener::into_std)
    }
}

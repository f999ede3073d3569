//! Signals and the deadline that bounds the end.

use std::time::{Duration, Instant};

/// Waits for a signal that asks the process to end.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Starts listening for SIGTERM and SIGINT.
    ///
    /// # Errors
    /// When the system refuses the handlers.
    #[cfg(unix)]
    pub fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Starts listening for Ctrl-C.
    ///
    /// # Errors
    /// Never on this system.
    #[cfg(not(unix))]
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {})
    }

    /// The name of the next signal.
    #[cfg(unix)]
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// The name of the next signal.
    #[cfg(not(unix))]
    pub async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}

/// A point in time that everything must be done by.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// What is left; zero when it passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

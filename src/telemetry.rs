//! The log: to stderr, text for people or JSON for machines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Says why `directives` is no log filter.
pub(crate) fn check_filter(directives: &str) -> Result<(), String> {
    EnvFilter::builder()
        .parse(directives)
        .map(drop)
        .map_err(|_| "expected error, warn, info, debug, trace or filter directives".to_owned())
}

/// Starts logging. A second call in one process changes nothing: tests and
/// embedding programs may have their own subscriber.
pub fn start(log: &Log) {
    let filter = EnvFilter::builder()
        .parse(&log.level)
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if json {
        builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init()
    };
    if started.is_err() {
        tracing::debug!("a log subscriber was already installed");
    }
}

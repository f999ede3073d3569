//! The log: to stderr, text for people or JSON for machines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Log, LogFormat};

/// The HTTP library reports every malformed request as an error of ours, and its
/// own start line by line; the driver repeats the database's notices. What the
/// configuration says of the same targets wins.
const QUIET: &str = "actix_http=off,actix_server=warn,tokio_postgres=warn";

/// Says why `directives` is no log filter.
pub(crate) fn check_filter(directives: &str) -> Result<(), String> {
    // A lone word that is no level would be taken for a module's name: a slip of
    // the pen would silence everything.
    let understood = directives
        .split(',')
        .map(str::trim)
        .all(|part| part.contains('=') || is_level(part));
    match filter(directives) {
        Ok(_) if understood => Ok(()),
        _ => Err("expected error, warn, info, debug, trace or filter directives".to_owned()),
    }
}

/// The parser takes an empty word for a level.
fn is_level(word: &str) -> bool {
    !word.is_empty() && word.parse::<LevelFilter>().is_ok()
}

fn filter(directives: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    EnvFilter::builder().parse(format!("{QUIET},{directives}"))
}

/// Starts logging. A second call in one process changes nothing: tests and
/// embedding programs may have their own subscriber.
pub fn start(log: &Log) {
    let filter = filter(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would complain on the very stream that failed, and panic when that
        // fails too: a full disk below the log must not break requests.
        .log_internal_errors(false);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_or_directives_are_a_filter_and_a_lone_word_is_not() {
        for fine in [
            "error",
            "INFO",
            "off",
            "info,tidegate_store=debug",
            "actix_http=trace",
        ] {
            assert_eq!(check_filter(fine), Ok(()), "{fine}");
        }
        for wrong in ["", "loud", "info,loud", "tidegate=loud", "a=b=c"] {
            assert!(check_filter(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_configuration_wins_over_what_is_quiet_by_default() {
        let loud = filter("actix_http=trace").unwrap().to_string();
        assert!(loud.contains("actix_http=trace"), "{loud}");
        assert!(!loud.contains("actix_http=off"), "{loud}");
    }
}

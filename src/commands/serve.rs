//! `tidegate serve`

use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::backfills;
use crate::cli::{Exit, ServeArgs};
use crate::config::Layers;
use crate::server::{self, Doors, Hooks, ServeError};
use crate::shutdown::Signals;
use crate::telemetry;

/// How often a server that trusts everybody says so in its log.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A signal that soon after the first is the same wish: `timeout` and Ctrl-C in a
/// wrapper reach a process twice, once itself and once through its group.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Runs the server until a signal ends it.
pub fn run(arguments: &ServeArgs) -> Exit {
    match actix_web::rt::System::new().block_on(serve(arguments)) {
        Ok(()) => Exit::Success,
        Err(error) => super::fail(&error),
    }
}

async fn serve(arguments: &ServeArgs) -> Result<(), ServeError> {
    let config =
        Layers::of_process(arguments.source.config.clone(), arguments.overrides()).load()?;
    telemetry::start(&config.log);
    server::check_exposure(&config)?;
    let schema = server::load_schema(&config)?;
    let projections = backfills::load_projections(&config, &schema)?;
    // Signals are caught before the port opens: one that arrives early is not lost.
    let mut signals = Signals::listen().map_err(|source| ServeError::System {
        context: "cannot listen for signals",
        source,
    })?;
    if arguments.unsafe_test_clock {
        server::check_test_hooks(&config)?;
    }
    let exposed = !config.listen.ip().is_loopback();
    let doors = Doors::reserve(&config)?;
    let store = server::open_store(&config).await?;
    let mut hooks = Hooks::configured(&config, &schema, &store);
    hooks.projections = projections;
    if arguments.unsafe_test_clock {
        hooks = hooks.under_test();
    }
    let control_is_fixed = config
        .control
        .listen
        .address()
        .is_none_or(|address| address.port() != 0);
    let mut running = tokio::select! {
        started = server::start_behind(doors, config, schema, store, hooks) => started?,
        signal = signals.next() => {
            tracing::info!(signal, "stopped before anything was served; what was not committed is undone");
            return Err(ServeError::Forced("the database was still being prepared"));
        }
    };
    announce("listening", running.address())?;
    if let Some(address) = running.control_address()
        && !control_is_fixed
    {
        announce("control", address)?;
    }
    running.begin_backfills();
    if exposed {
        actix_web::rt::spawn(warn_of_exposure());
    }

    let signal = tokio::select! {
        signal = signals.next() => signal,
        error = running.failed() => return Err(error),
    };
    tracing::info!(signal, "shutting down");
    let asked = Instant::now();
    let mut stop = pin!(running.stop());
    loop {
        tokio::select! {
            ended = &mut stop => {
                ended?;
                tracing::info!("everything is finished and flushed");
                return Ok(());
            }
            _ = signals.next() => if asked.elapsed() >= SAME_WISH {
                return Err(ServeError::Forced("a second signal arrived"));
            },
        }
    }
}

/// A line on stdout. The first one is what scripts wait for; a second one stands only
/// where it says what cannot be known otherwise, a control port that was picked.
fn announce(what: &str, address: SocketAddr) -> Result<(), ServeError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "tidegate {what} on http://{address}")
        .and_then(|()| out.flush())
        .map_err(|source| ServeError::System {
            context: "cannot write to stdout",
            source,
        })
}

async fn warn_of_exposure() {
    let mut ticks = tokio::time::interval(WARNING_INTERVAL);
    loop {
        ticks.tick().await;
        tracing::warn!(
            "development authentication is open to the network: anyone who can connect can read and write everything"
        );
    }
}

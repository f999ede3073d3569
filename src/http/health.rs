//! `/healthz` and `/readyz`.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
use actix_web::{HttpResponse, web};
use serde_json::json;
use tidegate_actors::MigrationPhase;

use crate::server::Service;

/// What a running server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Answering.
    Serving,
    /// On its way down: finishing what is in flight.
    Draining,
}

/// The phase, shared by all threads.
#[derive(Debug, Default)]
pub struct PhaseCell(AtomicU8);

impl PhaseCell {
    /// The phase now.
    pub fn get(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::Serving,
            _ => Phase::Draining,
        }
    }

    /// Begins the end; there is no way back.
    pub fn drain(&self) {
        self.0.store(1, Ordering::Release);
    }
}

/// How long a readiness probe waits for the database.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Says that the process lives; touches nothing else.
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/json")
        .body(r#"{"status":"ok"}"#)
}

/// The phase that keeps the gate shut: another process migrated past this one, or declared
/// what this one cannot compute.
fn shut(phase: MigrationPhase) -> Option<&'static str> {
    matches!(
        phase,
        MigrationPhase::Newer | MigrationPhase::BackfillCheckpoint
    )
    .then(|| phase.as_str())
}

/// Asks whether the database takes writes.
async fn storage(service: &Service) -> &'static str {
    match tokio::time::timeout(PROBE_TIMEOUT, service.check_storage()).await {
        Ok(Ok(())) => "serving",
        Ok(Err(error)) => {
            let error = tidegate_store::error_chain(&error);
            tracing::warn!(
                error,
                "the readiness probe found no database that takes writes"
            );
            "storage_unavailable"
        }
        Err(_) => "storage_unavailable",
    }
}

/// Says whether requests should be sent here.
pub async fn readyz(service: web::Data<Service>) -> HttpResponse {
    let phase = match service.phase.get() {
        Phase::Draining => "draining",
        Phase::Serving => match shut(service.migration_phase()) {
            Some(phase) => phase,
            None => storage(&service).await,
        },
    };
    let ready = phase == "serving";
    let mut response = if ready {
        HttpResponse::Ok()
    } else {
        HttpResponse::ServiceUnavailable()
    };
    response
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .content_type("application/json")
        .body(
            json!({
                "status": if ready { "ready" } else { "unavailable" },
                "phase": phase,
                "schemaVersion": service.schema.version().0,
            })
            .to_string(),
        )
}

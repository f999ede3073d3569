//! `POST /sync`: one combined round over HTTP (§1.1, §1.3).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, MessageBody};
use actix_web::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY,
};
use actix_web::web::{Bytes, Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use ssp2::SYNC_CONTENT_TYPE;
use tidegate_engine::ClientId;
use tokio::task::JoinHandle;

use super::body;
use super::compression::Coding;
use super::errors::Refusal;
use crate::auth::Identity;
use crate::server::Service;
use crate::sync::answer::Pieces;
use crate::sync::{self, Answer, Failure};

/// What the log says of a request that failed.
#[derive(Default)]
struct Trace {
    /// Whether the whole body is here.
    received: bool,
    identity: Option<Identity>,
    client: Option<ClientId>,
}

/// Answers a round.
///
/// # Errors
/// Everything that ends a request before its first byte, as catalogue JSON.
pub async fn post(
    request: HttpRequest,
    payload: Payload,
    service: Data<Service>,
) -> Result<HttpResponse, Refusal> {
    let mut trace = Trace::default();
    let work = work(&request, payload, &service, &mut trace);
    let done = match tokio::time::timeout(service.config.request_timeout(), work).await {
        Ok(done) => done,
        Err(_) if !trace.received => Err(Ended::Refused(body::too_slow())),
        Err(elapsed) => Err(Ended::Failed(Failure::unavailable(elapsed))),
    };
    done.map_err(|ended| ended.into_refusal(service.next_request_id(), &trace))
}

/// How a request ended without an answer.
enum Ended {
    /// By its HTTP form.
    Refused(Refusal),
    /// By its content, or our failure.
    Failed(Failure),
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Ended {
    /// Logs the end, once, and makes its public form.
    fn into_refusal(self, request: u64, trace: &Trace) -> Refusal {
        let (refusal, cause) = match self {
            Self::Refused(refusal) => (refusal, None),
            Self::Failed(failure) => {
                let (status, cause) = (failure.status(), failure.cause());
                let refusal = Refusal::from(failure.into_error()).with_status(status);
                (refusal, cause)
            }
        };
        log(&refusal, cause.as_deref(), request, trace);
        refusal.of_request(request)
    }
}

/// One line per failed request, whatever failed.
fn log(refusal: &Refusal, cause: Option<&str>, request: u64, trace: &Trace) {
    let error = refusal.error();
    let partition = trace.identity.as_ref().map(|id| id.partition.as_str());
    let actor = trace.identity.as_ref().map(|id| id.actor.as_str());
    macro_rules! line {
        ($level:ident, $text:literal) => {
            tracing::$level!(
                request = format_args!("{request:016x}"),
                status = refusal.status(),
                code = error.code.as_str(),
                message_public = %error.message,
                partition,
                actor,
                client = trace.client.as_ref().map(ClientId::as_str),
                cause,
                $text
            )
        };
    }
    match refusal.status() {
        500 => line!(error, "a sync request failed"),
        429 | 503 => line!(warn, "a sync request was turned away"),
        _ => line!(info, "a sync request was refused"),
    }
}

async fn work(
    request: &HttpRequest,
    payload: Payload,
    service: &Service,
    trace: &mut Trace,
) -> Result<HttpResponse, Ended> {
    let identity = service
        .authenticate
        .authenticate(request.headers())
        .await
        .map_err(Refusal::from)?;
    let identity = trace.identity.insert(identity);
    let body = body::read(request, payload, SYNC_CONTENT_TYPE, &service.config.limits).await?;
    trace.received = true;
    let answer = sync::round(service, identity, body, &mut trace.client).await?;
    let coding = Coding::negotiate(
        request
            .headers()
            .get(ACCEPT_ENCODING)
            .and_then(|value| value.to_str().ok()),
    );
    respond(answer, coding, service.config.http.compress_min_bytes)
        .map_err(|error| Ended::Failed(Failure::internal(error)))
}

/// Turns an answer into a response: with its length when it is small, in chunks
/// encoded on other threads when it is large.
fn respond(answer: Answer, coding: Coding, compress_min: usize) -> io::Result<HttpResponse> {
    let mut response = HttpResponse::Ok();
    response
        .insert_header((CONTENT_TYPE, HeaderValue::from_static(SYNC_CONTENT_TYPE)))
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .insert_header((VARY, HeaderValue::from_static("Accept-Encoding")));
    if answer.is_large() {
        if let Some(name) = coding.header() {
            response.insert_header((CONTENT_ENCODING, HeaderValue::from_static(name)));
        }
        return Ok(response.body(Chunks::Ready(answer.into_pieces(coding)?)));
    }
    let (body, coding) = answer.encode_compressed(coding, compress_min)?;
    if let Some(name) = coding.header() {
        response.insert_header((CONTENT_ENCODING, HeaderValue::from_static(name)));
    }
    Ok(response.body(body))
}

/// A body whose pieces are made one by one on blocking threads, each only when
/// the connection has taken the one before: a slow reader holds no thread.
enum Chunks {
    Ready(Pieces),
    Working(JoinHandle<io::Result<(Bytes, Option<Pieces>)>>),
    Done,
}

impl MessageBody for Chunks {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, io::Error>>> {
        loop {
            match std::mem::replace(&mut *self, Self::Done) {
                Self::Done => return Poll::Ready(None),
                Self::Ready(pieces) => {
                    *self = Self::Working(tokio::task::spawn_blocking(move || pieces.next()));
                }
                Self::Working(mut task) => {
                    let poll = Pin::new(&mut task).poll(cx);
                    if poll.is_pending() {
                        *self = Self::Working(task);
                    }
                    let result = ready!(poll).map_err(io::Error::other).flatten();
                    let (piece, rest) = match result {
                        Ok(made) => made,
                        Err(error) => {
                            tracing::error!(%error, "a response was cut off");
                            return Poll::Ready(Some(Err(error)));
                        }
                    };
                    if let Some(rest) = rest {
                        *self = Self::Ready(rest);
                    }
                    // An empty chunk would end a chunked body.
                    if !piece.is_empty() {
                        return Poll::Ready(Some(Ok(piece)));
                    }
                }
            }
        }
    }
}

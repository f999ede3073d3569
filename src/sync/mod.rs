//! One combined round: pushes, then the pull, in the protocol's request order.

pub mod answer;
mod budget;
mod failure;
mod pull;
mod reader;
pub mod segments;
mod window;

use std::sync::Arc;

use actix_web::web;
use bytes::Bytes;
use ssp2::{
    ErrorCode, PushCommit, Request, RequestFrame, ResponseFrame, Subscription, SyncError,
    WireVersion,
};
use tidegate_actors::{Entry, PushRequest};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::{ClientRecord, LogBounds, Needs};
use tidegate_engine::pull::{Identity as Author, SubOutcome, client_record_after};
use tidegate_engine::push;
use tidegate_engine::round::{
    Admission, AdmittedRound, AdmittedSub, PullLimits, RoundContext, admit,
};
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, TableId, scopes};
use tidegate_store::{Preamble, Touch};

use crate::auth::{Identity, Resolution};
use crate::config::Limits;
use crate::server::Service;

pub use answer::Answer;
pub use budget::Account;
pub use failure::Failure;
pub(crate) use failure::out_of_reach;

/// Bodies beyond that are decoded on another thread.
const DECODE_INLINE_BYTES: usize = 256 * 1024;

/// What pushes with more operations need is not read ahead.
const AHEAD_OPERATIONS: usize = 200;

/// The registry's authentication time is refreshed at most that often, milliseconds.
const TOUCH_EVERY_MS: i64 = 5_000;

/// Works off a request body and says what to answer.
///
/// `client` is told the client id as soon as it is known, for the log.
///
/// # Errors
/// Anything that fails the request as a whole. After a push became durable its
/// repetition is safe: stored results answer it.
pub async fn round(
    service: &Service,
    identity: &Identity,
    body: Bytes,
    client: &mut Option<ClientId>,
) -> Result<Answer, Failure> {
    let request = decode(body).await?;
    let client_id = client_of(&request)?;
    *client = Some(client_id.clone());

    let now_ms = service.clock.now_ms();
    let partition = &identity.partition;
    let touch = Touch {
        now_ms,
        new_epoch: Arc::clone(&service.new_epoch),
        refresh_after_ms: TOUCH_EVERY_MS,
    };
    check_breadth(&request, &service.config.limits)?;
    let ahead = needs_ahead(service, &client_id, &request);
    let (entry, preamble) = service
        .gate
        .enter(partition, &client_id, touch, ahead)
        .await?;

    let known = entry
        .pending_client(&client_id)
        .or_else(|| preamble.client.clone());
    let context = RoundContext {
        schema: &service.schema,
        registry: &preamble.registry,
        client: known.as_ref(),
        actor: &identity.actor,
        max_operations: service.config.limits.max_operations,
    };
    let (admitted, header) = match admit(&request, &context)? {
        Admission::HeaderOnly(header) => {
            return Ok(Answer::header_only(request.version, header.header()));
        }
        Admission::Round(round) => Admitted::of(round),
    };
    let allowed = resolve(service, identity).await?;

    let mut exchange = Exchange {
        service,
        identity,
        entry: &entry,
        preamble: &preamble,
        known,
        client_id,
        allowed,
        version: request.version,
        now_ms,
        reached: preamble.bounds.max,
        pull_bytes: 0,
    };
    let mut frames = vec![ResponseFrame::Header(header)];
    let (commits, subscriptions) = split(request.frames);
    if !commits.is_empty() {
        exchange.push(commits, &mut frames).await?;
    }
    let mut held = None;
    let outcomes = match admitted.limits {
        None => None,
        Some(limits) => {
            let reserved = service.pulls.reserve(service.config.limits.max_pull_bytes);
            exchange.pull_bytes = reserved.bytes();
            held = Some(reserved);
            let subs: Vec<AdmittedSub<'_>> = subscriptions
                .iter()
                .zip(&admitted.tables)
                .map(|(frame, &table)| AdmittedSub { frame, table })
                .collect();
            Some(pull::answer(&exchange, &subs, &limits, &mut frames).await?)
        }
    };
    exchange.remember(outcomes.as_deref()).await?;
    if let Some(held) = &mut held {
        held.settle(frames.iter().map(answer::weight).sum());
    }
    Ok(Answer {
        version: exchange.version,
        frames,
        held,
    })
}

async fn decode(body: Bytes) -> Result<Request, Failure> {
    if body.len() <= DECODE_INLINE_BYTES {
        return Ok(ssp2::decode_request(body)?);
    }
    let decoded = web::block(move || ssp2::decode_request(body))
        .await
        .map_err(Failure::unavailable)?;
    Ok(decoded?)
}

/// Bounds what a small request may make the server read: every subscription and
/// every scope value costs a search of its own.
fn check_breadth(request: &Request, limits: &Limits) -> Result<(), SyncError> {
    let (mut subscriptions, mut values) = (0, 0);
    for frame in &request.frames {
        if let RequestFrame::Subscription(subscription) = frame {
            subscriptions += 1;
            values += subscription
                .scopes
                .iter()
                .map(|(_, values)| values.len())
                .sum::<usize>();
        }
    }
    let message = if subscriptions > limits.max_subscriptions {
        "the request carries too many subscriptions"
    } else if values > limits.max_scope_values {
        "the request carries too many scope values"
    } else {
        return Ok(());
    };
    Err(SyncError::new(ErrorCode::InvalidSubscription, message))
}

/// What the commits of a request of ordinary size need, read with the preamble. The
/// batch of a larger one reads for itself.
fn needs_ahead(service: &Service, client_id: &ClientId, request: &Request) -> Needs {
    let commits = request.frames.iter().filter_map(|frame| match frame {
        RequestFrame::PushCommit(commit) => Some(commit),
        _ => None,
    });
    let operations: usize = commits.clone().map(|commit| commit.operations.len()).sum();
    if operations > AHEAD_OPERATIONS {
        return Needs::default();
    }
    push::needs_ahead(&service.schema, client_id, request.version, commits)
}

fn client_of(request: &Request) -> Result<ClientId, Failure> {
    match request.frames.first() {
        Some(RequestFrame::Header(header)) => Ok(header.client_id.as_str().into()),
        // The decoder lets no request through that begins otherwise.
        _ => Err(SyncError::new(
            ErrorCode::InvalidRequest,
            "a request begins with its header",
        )
        .into()),
    }
}

/// Asks what the actor may see and write (§3.2), once.
async fn resolve(service: &Service, identity: &Identity) -> Result<Allowed, Failure> {
    match service.scopes.resolve(identity).await {
        Resolution::Known(Allowed::Resolved(allowed)) => {
            scopes::validate_allowed(&service.schema, &allowed)?;
            Ok(Allowed::Resolved(allowed))
        }
        Resolution::Known(Allowed::Failed) => Ok(Allowed::Failed),
        Resolution::Outage => Err(SyncError::new(
            ErrorCode::AuthLeaseRequired,
            "permissions cannot be checked now and there is no lease",
        )
        .into()),
    }
}

/// What admission says, free of the request's borrow.
struct Admitted {
    limits: Option<PullLimits>,
    tables: Vec<TableId>,
}

impl Admitted {
    fn of(round: AdmittedRound<'_>) -> (Self, ssp2::ResponseHeader) {
        let (limits, tables) = match round.pull {
            None => (None, Vec::new()),
            Some(pull) => (
                Some(pull.limits),
                pull.subscriptions.iter().map(|sub| sub.table).collect(),
            ),
        };
        (Self { limits, tables }, round.header)
    }
}

/// The commits and the subscriptions of a request, moved out of it.
fn split(frames: Vec<RequestFrame>) -> (Vec<PushCommit>, Vec<Subscription>) {
    let (mut commits, mut subscriptions) = (Vec::new(), Vec::new());
    for frame in frames {
        match frame {
            RequestFrame::PushCommit(commit) => commits.push(commit),
            RequestFrame::Subscription(subscription) => subscriptions.push(subscription),
            RequestFrame::Header(_) | RequestFrame::PullHeader(_) | RequestFrame::Unknown(_) => {}
        }
    }
    (commits, subscriptions)
}

/// An admitted request on its way.
struct Exchange<'a> {
    service: &'a Service,
    identity: &'a Identity,
    entry: &'a Entry<'a>,
    preamble: &'a Preamble,
    known: Option<ClientRecord>,
    client_id: ClientId,
    allowed: Allowed,
    version: WireVersion,
    now_ms: i64,
    /// Newest commit that is known to be durable.
    reached: CommitSeq,
    /// What the pull may gather.
    pull_bytes: usize,
}

impl Exchange<'_> {
    /// Hands the commits to the partition and appends their results in order.
    async fn push(
        &mut self,
        commits: Vec<PushCommit>,
        frames: &mut Vec<ResponseFrame>,
    ) -> Result<(), Failure> {
        let ids: Vec<String> = commits
            .iter()
            .map(|commit| commit.client_commit_id.clone())
            .collect();
        let bind = self.known.is_none().then(|| self.record(None));
        let decisions = self
            .entry
            .push(PushRequest {
                client_id: self.client_id.clone(),
                actor_id: self.identity.actor.clone(),
                wire: self.version,
                allowed: self.allowed.clone(),
                commits,
                bind: bind.clone(),
            })
            .await?;
        if bind.is_some() {
            self.known = bind;
        }
        for (decision, id) in decisions.iter().zip(&ids) {
            if let Some(seq) = decision.result().and_then(|result| result.commit_seq) {
                self.reached = self.reached.max(seq);
            }
            frames.extend(decision.to_frames(id));
        }
        Ok(())
    }

    /// Bounds of the log as far as this request has seen it.
    fn bounds(&self) -> LogBounds {
        LogBounds {
            max: self.reached,
            // Below it rows may stand in an older layout, which never travels.
            horizon: self.preamble.pull_floor(),
        }
    }

    fn record(&self, outcomes: Option<&[SubOutcome]>) -> ClientRecord {
        client_record_after(
            self.known.as_ref(),
            Author {
                client_id: self.client_id.clone(),
                actor_id: self.identity.actor.clone(),
                wire_version: self.version,
                now_ms: self.now_ms,
            },
            outcomes,
        )
    }

    /// Stores what is remembered of the client (§4.1). A new client's binding is
    /// durable before it is answered; the rest may be written a little later.
    async fn remember(&self, outcomes: Option<&[SubOutcome]>) -> Result<(), Failure> {
        let record = self.record(outcomes);
        if self.known.is_none() {
            self.entry.bind_client(record).await?;
        } else {
            self.entry.record_client(record);
        }
        Ok(())
    }

    fn epoch(&self) -> &LogEpoch {
        &self.preamble.registry.log_epoch
    }

    fn schema(&self) -> &Arc<tidegate_engine::schema::Schema> {
        &self.service.schema
    }
}

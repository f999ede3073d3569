//! Admission of a decoded request: everything that can fail or end it as a whole
//! is judged here, in the protocol's order, before any write or lease.
//!
//! The caller has already decoded the bytes, made sure of the schema, read the
//! registry row and asked the serve gate. After admission come the scope resolver
//! or the lease, the pushes, and the pull.

use std::collections::HashSet;

use ssp2::{
    ACCEPT_EXTERNAL_ROWS, ACCEPT_INLINE_ROWS, ACCEPT_SIGNED_URLS, ACCEPT_SQLITE, EpochHeader,
    ErrorCode, PullHeader, PushCommit, Request, RequestFrame, RequestHeader, ResponseHeader,
    Subscription, SyncError, WireVersion,
};

use crate::ids::{ActorId, ClientId, LogEpoch, SchemaVersion, TableId};
use crate::model::{ClientRecord, Registry};
use crate::schema::Schema;
use crate::scopes::validate_requested;

/// Client ids that begin so belong to server-side commands (§1.5).
pub const RESERVED_CLIENT_PREFIX: &str = "[\"remote-command\",";
/// Bytes of a client id and of a client commit id at most: a database must hold both, and
/// the partition, in one index entry.
pub const MAX_ID_BYTES: usize = 1024;

/// Operations a request may carry unless configured otherwise (§6.1).
pub const DEFAULT_MAX_OPERATIONS: usize = 500;

/// What admission is judged against.
#[derive(Debug, Clone, Copy)]
pub struct RoundContext<'a> {
    /// The running schema.
    pub schema: &'a Schema,
    /// Registry row of the partition.
    pub registry: &'a Registry,
    /// The client's record in the partition, if any.
    pub client: Option<&'a ClientRecord>,
    /// The authenticated actor.
    pub actor: &'a ActorId,
    /// Operation cap over the whole request.
    pub max_operations: usize,
}

/// What becomes of a request that does not fail.
#[derive(Debug, Clone, PartialEq)]
pub enum Admission<'a> {
    /// Answered by its header alone; nothing else happens.
    HeaderOnly(HeaderOnly),
    /// Goes on.
    Round(AdmittedRound<'a>),
}

/// A response that ends after its header (§1.6, §2.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderOnly {
    /// Oldest served schema version; `Some` = the client's version is not served.
    pub required: Option<SchemaVersion>,
    /// Newest served schema version.
    pub latest: SchemaVersion,
    /// v2+: the current epoch.
    pub epoch: Option<LogEpoch>,
    /// Whether the client must reset its replica first; false in v1.
    pub reset_required: bool,
}

impl HeaderOnly {
    /// The frame.
    pub fn header(&self) -> ResponseHeader {
        ResponseHeader {
            required_schema_version: self.required.map(|version| version.0),
            latest_schema_version: Some(self.latest.0),
            epoch: self.epoch.as_ref().map(|epoch| EpochHeader {
                log_epoch: epoch.as_str().to_owned(),
                reset_required: self.reset_required,
            }),
        }
    }
}

/// A request that goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmittedRound<'a> {
    /// Wire version of the request, and of the answer.
    pub version: WireVersion,
    /// The device.
    pub client_id: ClientId,
    /// RESP_HEADER of the answer.
    pub header: ResponseHeader,
    /// Commits in client order.
    pub pushes: Vec<&'a PushCommit>,
    /// The pull half, when there is a PULL_HEADER.
    pub pull: Option<AdmittedPull<'a>>,
}

/// An admitted pull.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmittedPull<'a> {
    /// Clamped limits.
    pub limits: PullLimits,
    /// Subscriptions in request order.
    pub subscriptions: Vec<AdmittedSub<'a>>,
}

/// A subscription whose id, table and scopes are sound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmittedSub<'a> {
    /// The frame.
    pub frame: &'a Subscription,
    /// Its table.
    pub table: TableId,
}

/// The limits of PULL_HEADER, clamped (§4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullLimits {
    /// Changes per subscription, 1 to 1000.
    pub max_changes: usize,
    /// Rows per bootstrap page, 1 to 50000.
    pub page_rows: usize,
    /// Bootstrap pages per subscription, 1 to 50.
    pub max_pages: usize,
    /// How segments may be delivered.
    pub accept: Accept,
}

/// Segment delivery a client is capable of (§4.2 `accept`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept(u8);

impl Accept {
    /// Reads the mask.
    ///
    /// # Errors
    /// `sync.invalid_request` when rows are accepted neither inline nor by reference.
    pub fn new(mask: u8) -> Result<Self, SyncError> {
        if mask & (ACCEPT_INLINE_ROWS | ACCEPT_EXTERNAL_ROWS) == 0 {
            return Err(SyncError::new(
                ErrorCode::InvalidRequest,
                "a pull must accept rows segments, inline or by reference",
            ));
        }
        Ok(Self(mask))
    }
    /// Rows segments inline.
    pub const fn inline_rows(self) -> bool {
        self.0 & ACCEPT_INLINE_ROWS != 0
    }
    /// Rows segments by reference.
    pub const fn external_rows(self) -> bool {
        self.0 & ACCEPT_EXTERNAL_ROWS != 0
    }
    /// SQLite images.
    pub const fn sqlite(self) -> bool {
        self.0 & ACCEPT_SQLITE != 0
    }
    /// Signed URLs in references.
    pub const fn signed_urls(self) -> bool {
        self.0 & ACCEPT_SIGNED_URLS != 0
    }
}

impl PullLimits {
    /// Clamps silently (§4.2): 0 is the default, anything else is brought into range.
    ///
    /// # Errors
    /// Those of [`Accept::new`].
    pub fn clamp(header: &PullHeader) -> Result<Self, SyncError> {
        Ok(Self {
            max_changes: clamp(header.limit_commits, 1000, 1000),
            page_rows: clamp(header.limit_snapshot_rows, 50_000, 1000),
            max_pages: clamp(header.max_snapshot_pages, 50, 4),
            accept: Accept::new(header.accept)?,
        })
    }
}

fn clamp(asked: i32, max: usize, default: usize) -> usize {
    match usize::try_from(asked) {
        Ok(0) => default,
        Ok(asked) => asked.min(max),
        Err(_) => 1,
    }
}

/// Admits a request, or says how it ends.
///
/// # Errors
/// In this order: `sync.client_wire_unsupported` (wire 1 once the epoch was ever
/// rotated), `sync.invalid_request` (epoch acquisition with a push), then, if the
/// header alone does not answer: `sync.invalid_client_id`, `sync.invalid_request` (a
/// commit id), `sync.too_many_operations`, `sync.invalid_request` (accept),
/// `sync.invalid_subscription` and `sync.unknown_table`.
pub fn admit<'a>(
    request: &'a Request,
    context: &RoundContext<'_>,
) -> Result<Admission<'a>, SyncError> {
    let parts = Parts::of(request)?;
    let registry = context.registry;
    let speaks_epochs = request.version >= WireVersion::V2;

    if !speaks_epochs && registry.epoch_required {
        return Err(SyncError::new(
            ErrorCode::ClientWireUnsupported,
            "this log needs a client that tracks its epoch",
        ));
    }
    let acquires = speaks_epochs && parts.header.log_epoch.is_none();
    if acquires && !parts.pushes.is_empty() {
        return Err(SyncError::new(
            ErrorCode::InvalidRequest,
            "a request without a log epoch must not push",
        ));
    }

    let served = context.schema.version();
    let epoch_matches = parts.header.log_epoch.as_deref() == Some(registry.log_epoch.as_str());
    let mut answer = HeaderOnly {
        required: None,
        latest: served,
        epoch: speaks_epochs.then(|| registry.log_epoch.clone()),
        reset_required: speaks_epochs && !epoch_matches,
    };
    if parts.header.schema_version != served.0 {
        answer.required = Some(served);
        return Ok(Admission::HeaderOnly(answer));
    }
    if answer.reset_required {
        return Ok(Admission::HeaderOnly(answer));
    }

    check_client_id(&parts.header.client_id, context)?;
    if !parts
        .pushes
        .iter()
        .all(|push| keepable(&push.client_commit_id))
    {
        return Err(SyncError::new(
            ErrorCode::InvalidRequest,
            "a client commit id is too long or holds a NUL character",
        ));
    }
    let operations: usize = parts.pushes.iter().map(|push| push.operations.len()).sum();
    if operations > context.max_operations {
        return Err(SyncError::new(
            ErrorCode::TooManyOperations,
            "the request carries too many operations",
        ));
    }
    let pull = match parts.pull {
        None => None,
        Some(header) => Some(AdmittedPull {
            limits: PullLimits::clamp(header)?,
            subscriptions: admit_subscriptions(&parts.subscriptions, context.schema)?,
        }),
    };
    Ok(Admission::Round(AdmittedRound {
        version: request.version,
        client_id: parts.header.client_id.as_str().into(),
        header: answer.header(),
        pushes: parts.pushes,
        pull,
    }))
}

/// The frames of a request by kind; unknown ones mean nothing here.
struct Parts<'a> {
    header: &'a RequestHeader,
    pushes: Vec<&'a PushCommit>,
    pull: Option<&'a PullHeader>,
    subscriptions: Vec<&'a Subscription>,
}

impl<'a> Parts<'a> {
    fn of(request: &'a Request) -> Result<Self, SyncError> {
        let mut header = None;
        let (mut pushes, mut pull, mut subscriptions) = (Vec::new(), None, Vec::new());
        for frame in &request.frames {
            match frame {
                RequestFrame::Header(frame) => header = Some(frame),
                RequestFrame::PushCommit(frame) => pushes.push(frame),
                RequestFrame::PullHeader(frame) => pull = Some(frame),
                RequestFrame::Subscription(frame) => subscriptions.push(frame),
                RequestFrame::Unknown(_) => {}
            }
        }
        let header = header.ok_or_else(|| {
            SyncError::new(
                ErrorCode::InvalidRequest,
                "a request begins with its header",
            )
        })?;
        Ok(Self {
            header,
            pushes,
            pull,
            subscriptions,
        })
    }
}

/// Whether every database can hold the id.
fn keepable(id: &str) -> bool {
    id.len() <= MAX_ID_BYTES && !id.contains('\0')
}

/// Checks a client id against its bounds, the reserved prefix and the actor it is bound to (§1.5).
///
/// # Errors
/// `sync.invalid_client_id`.
fn check_client_id(client_id: &str, context: &RoundContext<'_>) -> Result<(), SyncError> {
    if !keepable(client_id) {
        return Err(SyncError::new(
            ErrorCode::InvalidClientId,
            "the client id is too long or holds a NUL character",
        ));
    }
    if client_id.starts_with(RESERVED_CLIENT_PREFIX) {
        return Err(SyncError::new(
            ErrorCode::InvalidClientId,
            "the client id is reserved for the server",
        ));
    }
    match context.client {
        Some(record) if record.actor_id != *context.actor => Err(SyncError::new(
            ErrorCode::InvalidClientId,
            "the client id belongs to another actor",
        )),
        _ => Ok(()),
    }
}

fn admit_subscriptions<'a>(
    frames: &[&'a Subscription],
    schema: &Schema,
) -> Result<Vec<AdmittedSub<'a>>, SyncError> {
    let mut ids = HashSet::new();
    frames
        .iter()
        .map(|frame| {
            if !ids.insert(frame.id.as_str()) {
                return Err(SyncError::new(
                    ErrorCode::InvalidSubscription,
                    "two subscriptions have the same id",
                ));
            }
            let table = schema.table(&frame.table).ok_or_else(|| {
                SyncError::new(
                    ErrorCode::UnknownTable,
                    "a subscription names an unknown table",
                )
            })?;
            validate_requested(table, &frame.scopes)?;
            Ok(AdmittedSub {
                frame,
                table: table.id,
            })
        })
        .collect()
}

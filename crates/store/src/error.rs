//! What can go wrong in storage. Driver text stays in `source`, for the log only.

use tidegate_engine::SchemaVersion;
use tidegate_engine::gate::PendingCheckpoint;

/// A driver's own error, for the log.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A storage failure.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached or the connection was lost (`sync.internal_error`, 503).
    #[error("the database is unavailable")]
    Unavailable(#[source] Source),
    /// A statement failed for any other reason (`sync.internal_error`, 500).
    #[error("a database operation failed: {context}")]
    Failed {
        /// What was being done.
        context: &'static str,
        /// Driver error.
        #[source]
        source: Source,
    },
    /// Stored bytes are not what this program writes.
    #[error("stored data is unreadable: {what}")]
    Corrupt {
        /// Which data.
        what: &'static str,
    },
    /// The published schema version is newer than ours.
    #[error("the database holds schema version {}, newer than this program's {}", stored.0, running.0)]
    NewerSchema {
        /// Published.
        stored: SchemaVersion,
        /// Ours.
        running: SchemaVersion,
    },
    /// `sync.storage.stored_layout_mismatch`
    #[error(
        "the schema changed without a new version: table {table}{} is not as stored",
        column.as_ref().map(|name| format!(", column {name},")).unwrap_or_default()
    )]
    StoredLayoutMismatch {
        /// Table.
        table: String,
        /// First differing column.
        column: Option<String>,
    },
    /// `sync.storage.physical_layout_mismatch`
    #[error("{}", layout_mismatch(table, column.as_deref(), reason, expected.as_deref(), actual.as_deref()))]
    PhysicalLayoutMismatch {
        /// Table.
        table: String,
        /// Column where one applies.
        column: Option<String>,
        /// missing_table | missing_column | type | nullability | primary_key
        reason: &'static str,
        /// Expected declaration.
        expected: Option<String>,
        /// Actual declaration.
        actual: Option<String>,
    },
    /// The change from the stored to the wanted schema is not allowed.
    #[error("the schema change is refused: {reason}")]
    RefusedMigration {
        /// Table.
        table: String,
        /// Why, for the operator; names the table.
        reason: String,
    },
    /// The database lacks something that this role may not add, or hides it from the role.
    #[error(
        "preparing the database takes rights that this role lacks; run `tidegate migrate` as the role that owns the tables"
    )]
    NotPermitted(#[source] Source),
    /// `sync.storage.checkpoint_incomplete`
    #[error("checkpoint {} of partition {} is not activated and not declared here", .0.name, .0.partition)]
    CheckpointIncomplete(PendingCheckpoint),
    /// `sync.storage.checkpoint_not_declared`
    #[error("no such claimable checkpoint")]
    CheckpointNotDeclared,
    /// `sync.storage.checkpoint_fence_missing`
    #[error("the writer fence of the checkpoint is missing or too low")]
    CheckpointFenceMissing,
    /// `sync.storage.checkpoint_unsupported`
    #[error("this backend cannot fence writers")]
    CheckpointUnsupported,
    /// An operation that this backend does not have.
    #[error("this backend does not support the operation")]
    Unsupported,
    /// A checkpoint name declared again at another schema version.
    #[error("checkpoint {name} belongs to schema version {}", existing.0)]
    CheckpointVersionTaken {
        /// Name.
        name: String,
        /// The version it belongs to.
        existing: SchemaVersion,
    },
    /// The partition's epoch is not the one the operation was computed for.
    #[error("the log epoch changed")]
    EpochChanged,
    /// The partition was never registered.
    #[error("unknown partition")]
    UnknownPartition,
    /// A declaration that cannot stand; nothing was installed.
    #[error("the declaration of checkpoint {name} is refused: {reason}")]
    BadDeclaration {
        /// Checkpoint name.
        name: String,
        /// Why, for the operator.
        reason: &'static str,
    },
    /// `ensure_schema` has not succeeded in this process yet.
    #[error("the schema is not prepared")]
    NotPrepared,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// What is wrong with a table, and what to do when it is somebody else's.
fn layout_mismatch(
    table: &str,
    column: Option<&str>,
    reason: &str,
    expected: Option<&str>,
    actual: Option<&str>,
) -> String {
    let column = column.unwrap_or_default();
    let (expected, actual) = (expected.unwrap_or("?"), actual.unwrap_or("?"));
    match reason {
        "missing_table" => format!("table {table} is missing in the database"),
        "missing_column" if column.starts_with("_sync_") => format!(
            "the database has a table {table} that is not a synced one: it lacks the column {column}; \
             rename that table, or use a database (in Postgres, a schema) of its own"
        ),
        "missing_column" => format!("table {table} in the database lacks the column {column}"),
        "primary_key" => {
            format!(
                "table {table} in the database has another primary key: see its column {column}"
            )
        }
        reason => format!(
            "table {table} in the database differs: {reason} of column {column} is {actual}, not {expected}"
        ),
    }
}

impl StoreError {
    /// Wraps a driver error of the operation `context`.
    pub fn failed(context: &'static str, source: impl Into<Source>) -> Self {
        Self::Failed {
            context,
            source: source.into(),
        }
    }
}

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The CAS lost: somebody else committed to the partition since the decisions' reads. Nothing was written.
    #[error("the partition moved on")]
    SequenceMoved,
    /// The published schema version differs from the running one. Nothing was written.
    #[error("another schema version is published")]
    SchemaChanged {
        /// Published.
        stored: SchemaVersion,
    },
    /// A pending checkpoint that this process does not declare. Nothing was written.
    #[error("a checkpoint is pending")]
    CheckpointPending(PendingCheckpoint),
    /// The writer fence refused this partition's commits. Nothing was written.
    #[error("the writer fence refused")]
    FenceRejected,
    /// The batch carried a backfill page of a superseded owner. Nothing was written.
    #[error("the owner of the checkpoint was superseded")]
    Superseded,
    /// The batch that this one was decided on top of was not written. Nothing was written.
    #[error("the batch before was not written")]
    Unfounded,
    /// A unique or not-null constraint of an app table. Nothing was written. The
    /// caller replays commit by commit to find the operation.
    #[error("a constraint was violated")]
    Constraint {
        /// Row whose write violated it, when the backend can tell.
        key: Option<tidegate_engine::model::RowKey>,
    },
    /// COMMIT's outcome is unknown (connection lost): stored results must be consulted before answering.
    #[error("the outcome of the commit is unknown")]
    OutcomeUnknown(#[source] Source),
    /// Any other failure; nothing was written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An error and all of its causes in one line, for the log and the operator. What a cause
/// says is the database's or the driver's own: it belongs into no answer to a client.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

//! A small SSP2 client: an in-memory replica with an optimistic overlay, a FIFO
//! outbox, and the loop that brings both into step with a server (§4–§7).
//!
//! It speaks wire versions 1, 2 and 3 and keeps everything in memory: made for
//! end-to-end tests, the demo command and load generation, not for devices.
//! Section numbers (§) refer to the public SSP2 specification.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tidegate_client::{ClientConfig, ClientSchema, Edit, HttpTransport, SyncClient};
//!
//! let schema = ClientSchema::from_ir_json(include_str!("../tests/data/schema.json"))?;
//! let transport = HttpTransport::new("http://127.0.0.1:8787", "ada", Some("home"))?;
//! let mut client = SyncClient::new(ClientConfig::new("device-1"), schema, transport);
//! client.subscribe("todos", "todos", [("list_id", vec!["groceries"])])?;
//! client.edit([Edit::upsert("todos")
//!     .set("id", "t1")
//!     .set("list_id", "groceries")
//!     .set("title", "bread")
//!     .set("done", false)])?;
//! client.sync().await?;
//! # Ok(())
//! # }
//! ```

mod apply;
mod client;
mod edit;
mod error;
mod fault;
mod http;
mod outbox;
mod outcome;
mod replica;
mod schema;
mod subscription;
mod transport;

pub use client::{ClientConfig, SyncClient, SyncReport};
pub use edit::{Base, Edit, EditError, IntoValue};
pub use error::{ClientError, SchemaFloor};
pub use fault::{Fault, Faults, FaultyTransport};
pub use http::HttpTransport;
pub use outbox::{LocalCommit, LocalOperation, LocalOperationKind};
pub use outcome::{Conflict, ConflictPolicy, Outcome, OutcomeStatus, Rejection, Resolution};
pub use replica::{Replica, RowView};
pub use schema::{ClientSchema, ClientTable, SchemaError, ScopeColumn};
pub use ssp2::{Value, WireVersion};
pub use subscription::{SubscriptionState, SubscriptionStatus};
pub use transport::{ErrorBody, SegmentDownload, Transport, TransportError};

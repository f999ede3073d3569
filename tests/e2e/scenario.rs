//! Clients of the demo schema.

use tidegate_client::{
    ClientConfig, ClientSchema, Edit, HttpTransport, OutcomeStatus, SyncClient, Transport,
    WireVersion,
};

use crate::process::repository;

/// The list that all clients of a test share.
pub const LIST: &str = "groceries";

/// The built-in schema of the server.
pub fn schema() -> ClientSchema {
    let text = std::fs::read_to_string(repository("config/schemas/demo.json")).unwrap();
    ClientSchema::from_ir_json(&text).unwrap()
}

/// A transport as `actor`.
pub fn http(url: &str, actor: &str) -> HttpTransport {
    HttpTransport::new(url, actor, None).unwrap()
}

/// A client subscribed to the shared list's todos.
pub fn client_over<T: Transport>(
    id: &str,
    wire: WireVersion,
    configure: impl FnOnce(&mut ClientConfig),
    transport: T,
) -> SyncClient<T> {
    let mut config = ClientConfig::new(id).wire(wire);
    configure(&mut config);
    let mut client = SyncClient::new(config, schema(), transport);
    client
        .subscribe("todos", "todos", [("list_id", vec![LIST])])
        .unwrap();
    client
}

/// A wire-3 client over HTTP.
pub fn client(url: &str, id: &str) -> SyncClient<HttpTransport> {
    client_over(id, WireVersion::V3, |_| {}, http(url, id))
}

/// A new todo of the shared list.
pub fn todo(id: &str, title: &str) -> Edit {
    Edit::upsert("todos")
        .set("id", id)
        .set("list_id", LIST)
        .set("title", title)
        .set("done", false)
}

/// Asserts that the devices' commits stand in one log without gaps, each once.
#[track_caller]
pub fn assert_one_log<T: Transport>(devices: &[SyncClient<T>], commits: usize) {
    let mut seqs: Vec<i64> = devices
        .iter()
        .flat_map(|device| device.outcomes())
        .map(|outcome| match outcome.status {
            OutcomeStatus::Applied(seq) | OutcomeStatus::Cached(seq) => seq,
            ref other => panic!("{other:?}"),
        })
        .collect();
    seqs.sort_unstable();
    let expected: Vec<i64> = (1..=i64::try_from(commits).unwrap()).collect();
    assert_eq!(seqs, expected);
}

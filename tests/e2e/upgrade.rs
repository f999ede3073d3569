//! A database of the demo schema, the next version of that schema, and what holds the
//! migration between them up.

use serde_json::{Value as Json, json};
use tidegate_client::{ClientConfig, ClientSchema, HttpTransport, SyncClient, WireVersion};
use tokio::task::JoinHandle;

use crate::process::{Server, Site, repository};
use crate::scenario::{LIST, client, todo};

/// The demo schema with a computed column, and the backfill that computes it.
pub struct Grown {
    schema: String,
    backfills: String,
    client: ClientSchema,
}

impl Grown {
    pub fn at(site: &Site) -> Self {
        let text = std::fs::read_to_string(repository("config/schemas/demo.json")).unwrap();
        let mut schema: Json = serde_json::from_str(&text).unwrap();
        schema["version"] = 2.into();
        let todos = &mut schema["tables"][1];
        assert_eq!(todos["name"], "todos");
        let column = json!({"name": "title_key", "type": "string", "nullable": true});
        todos["columns"].as_array_mut().unwrap().push(column);
        let path = site.path("grown.json");
        std::fs::write(&path, schema.to_string()).unwrap();
        let folder = site.path("backfills");
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(
            repository("config/backfills/example.toml"),
            folder.join("title-key.toml"),
        )
        .unwrap();
        Self {
            schema: path.to_str().unwrap().to_owned(),
            backfills: folder.to_str().unwrap().to_owned(),
            client: ClientSchema::from_ir_json(&schema.to_string()).unwrap(),
        }
    }

    pub fn args(&self) -> [&str; 4] {
        ["--schema", &self.schema, "--backfills", &self.backfills]
    }

    pub fn client(&self, server: &Server, partition: &str) -> SyncClient<HttpTransport> {
        let transport = HttpTransport::new(&server.url, "ada", Some(partition)).unwrap();
        let config = ClientConfig::new("ada").wire(WireVersion::V3);
        let mut client = SyncClient::new(config, self.client.clone(), transport);
        client
            .subscribe("todos", "todos", [("list_id", vec![LIST])])
            .unwrap();
        client
    }
}

pub async fn write_old_rows(site: &Site) {
    let server = site.start(&[]);
    let mut ada = client(&server.url, "ada");
    for (id, title) in [("t1", " Bread"), ("t2", "MILK")] {
        ada.edit([todo(id, title)]).unwrap();
    }
    ada.sync().await.unwrap();
    server.terminate();
    assert!(server.wait().success());
}

/// A writer inside a transaction on Postgres: a migration waits for its end.
pub struct HeldBarrier {
    writer: tokio_postgres::Client,
    connection: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl HeldBarrier {
    pub async fn of(site: &Site) -> Self {
        let (writer, connection) = tokio_postgres::connect(site.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        writer
            .batch_execute("BEGIN; LOCK TABLE sync_partitions IN ROW EXCLUSIVE MODE")
            .await
            .unwrap();
        Self { writer, connection }
    }

    /// Whether somebody waits for the end.
    pub async fn is_waited_for(&self) -> bool {
        let waiting = "SELECT EXISTS (SELECT 1 FROM pg_locks
            WHERE NOT granted AND relation = 'sync_partitions'::regclass)";
        self.writer.query_one(waiting, &[]).await.unwrap().get(0)
    }

    pub async fn release(self) {
        self.writer.batch_execute("COMMIT").await.unwrap();
        drop(self.writer);
        self.connection.await.unwrap().unwrap();
    }
}

//! What all tests here are about: todos of schema 1, and schema 2 with what is computed
//! from them, a column of their own or a table beside them.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Instant;

use serde_json::Value as Json;
use tidegate_client::{ClientConfig, ClientSchema, Edit, HttpTransport, SyncClient};
use tokio::sync::OnceCell;

use crate::panel::Panel;
use crate::process::{Backend, PATIENCE, Server, Site};
use crate::sql::{Copied, Sql, Template, breath};

/// The partition of every test.
pub const SHOP: &str = "shop";
/// The list that all todos are on.
pub const LIST: &str = "groceries";
/// The backfill's name, whatever it fills.
pub const NAME: &str = "title-key";
/// Seeded rows: two pages of the rewrite, three of the scan.
pub const SEEDS: usize = 1100;
/// Of them, those that clients touch again.
pub const TOUCHED: usize = 20;

/// What the backfill of schema 2 fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `todos.title_key`
    Column,
    /// `cards`, one per todo.
    Table,
}

/// A place with two schemas, two backfills and a database.
pub struct Plant {
    pub site: Site,
    pub sql: Sql,
    /// Dropped with the plant.
    _copied: Option<Copied>,
}

fn notes_text() -> String {
    r#",
          {"name": "notes", "primaryKey": "id", "columns": [
            {"name": "id", "type": "string", "nullable": false},
            {"name": "list_id", "type": "string", "nullable": false},
            {"name": "text", "type": "string", "nullable": false}],
            "scopes": [{"pattern": "list:{list_id}"}]}"#
        .to_owned()
}

fn schema_text(version: i32) -> String {
    let notes = notes_text();
    let grown = if version == 1 {
        ""
    } else {
        r#", {"name": "title_key", "type": "string", "nullable": true}"#
    };
    let cards = if version == 1 {
        ""
    } else {
        r#", {"name": "cards", "primaryKey": "id", "columns": [
            {"name": "id", "type": "string", "nullable": false},
            {"name": "list_id", "type": "string", "nullable": false},
            {"name": "label", "type": "string", "nullable": false}],
            "scopes": [{"pattern": "list:{list_id}"}]}"#
    };
    format!(
        r#"{{"version": {version}, "tables": [
          {{"name": "todos", "primaryKey": "id", "columns": [
            {{"name": "id", "type": "string", "nullable": false}},
            {{"name": "list_id", "type": "string", "nullable": false}},
            {{"name": "title", "type": "string", "nullable": false}}{grown}],
            "scopes": [{{"pattern": "list:{{list_id}}"}}],
            "indexes": [{{"name": "todos_by_list", "columns": ["list_id"]}}]}}{notes}{cards}]}}"#
    )
}

/// The schema as clients know it.
pub fn schema(version: i32) -> ClientSchema {
    ClientSchema::from_ir_json(&schema_text(version)).unwrap()
}

/// The text of the backfill file, with further keys.
pub fn backfill(shape: Shape, more: &str) -> String {
    let (target, columns) = match shape {
        Shape::Column => (
            "target = \"todos\"",
            "title_key = \"row.title.trim().lowerAscii()\"",
        ),
        Shape::Table => (
            "target = \"cards\"\nkey = \"row.id\"",
            "list_id = \"row.list_id\"\nlabel = \"row.title.trim().lowerAscii()\"",
        ),
    };
    format!(
        "name = \"{NAME}\"\nschema_version = 2\nsources = [\"todos\"]\n{target}\n{more}\n[columns]\n{columns}\n"
    )
}

/// What the backfill computes of a title.
pub fn computed(title: &str) -> String {
    title.trim().to_ascii_lowercase()
}

/// A todo.
pub fn todo(id: &str, title: &str) -> Edit {
    Edit::upsert("todos")
        .set("id", id)
        .set("list_id", LIST)
        .set("title", title)
}

/// A note.
pub fn note(id: &str, text: &str) -> Edit {
    Edit::upsert("notes")
        .set("id", id)
        .set("list_id", LIST)
        .set("text", text)
}

/// A seeded row's id.
pub fn seed(n: usize) -> String {
    format!("s-{n:04}")
}

/// A client of the shop without subscriptions.
pub fn device(url: &str, id: &str, version: i32) -> SyncClient<HttpTransport> {
    let transport = HttpTransport::new(url, id, Some(SHOP)).unwrap();
    SyncClient::new(ClientConfig::new(id), schema(version), transport)
}

/// A client that pulls one table.
pub fn reader(url: &str, id: &str, version: i32, table: &str) -> SyncClient<HttpTransport> {
    let mut client = device(url, id, version);
    client
        .subscribe(table, table, [("list_id", vec![LIST])])
        .unwrap();
    client
}

impl Plant {
    /// With an empty database.
    pub fn on(backend: Backend) -> Self {
        Self::at(Site::on(backend), None)
    }

    fn at(site: Site, copied: Option<Copied>) -> Self {
        for version in [1, 2] {
            let path = site.path(&format!("schema-{version}.json"));
            std::fs::write(path, schema_text(version)).unwrap();
        }
        let without_notes = schema_text(2).replace(&notes_text(), "");
        assert_ne!(without_notes, schema_text(2));
        std::fs::write(site.path("schema-retiring.json"), without_notes).unwrap();
        for (folder, shape) in [("column", Shape::Column), ("table", Shape::Table)] {
            std::fs::create_dir(site.path(folder)).unwrap();
            let file = site.path(folder).join("title-key.toml");
            std::fs::write(file, backfill(shape, "")).unwrap();
        }
        Self {
            sql: Sql::of(&site),
            site,
            _copied: copied,
        }
    }

    /// With the seeds, written by a server of schema 1 that has ended.
    pub async fn seeded(backend: Backend) -> Self {
        static SQLITE: OnceCell<Template> = OnceCell::const_new();
        static POSTGRES: OnceCell<Template> = OnceCell::const_new();
        let template = match backend {
            Backend::Sqlite => {
                let make = async || {
                    let plant = Self::on(Backend::Sqlite);
                    plant.sow().await;
                    Template::sqlite(&plant.site)
                };
                SQLITE.get_or_init(make).await
            }
            Backend::Postgres => {
                let make = async || {
                    let database = tidegate_test_postgres::Database::create().unwrap();
                    let plant = Self::at(Site::at(&database.url()), None);
                    plant.sow().await;
                    Template::Postgres(database)
                };
                POSTGRES.get_or_init(make).await
            }
        };
        let (site, copied) = template.copy();
        Self::at(site, copied)
    }

    async fn sow(&self) {
        let server = self.old(&[]);
        let mut sower = device(&server.url, "sower", 1);
        for n in (0..SEEDS).step_by(100) {
            let rows = (n..(n + 100).min(SEEDS)).map(|n| todo(&seed(n), &title(n)));
            sower.edit(rows).unwrap();
        }
        sower.edit([note("n-1", "milk")]).unwrap();
        sower.sync().await.unwrap();
        server.terminate();
        assert_eq!(server.wait().code(), Some(0));
    }

    fn args(&self, version: i32, more: &[&str]) -> Vec<String> {
        let schema = self.site.path(&format!("schema-{version}.json"));
        let mut args = vec!["--schema".to_owned(), schema.to_str().unwrap().to_owned()];
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        args
    }

    /// The folder with the backfill of a shape.
    pub fn folder(&self, shape: Shape) -> PathBuf {
        self.site.path(match shape {
            Shape::Column => "column",
            Shape::Table => "table",
        })
    }

    /// Replaces the backfill file of a shape.
    pub fn rewrite(&self, shape: Shape, text: &str) {
        std::fs::write(self.folder(shape).join("title-key.toml"), text).unwrap();
    }

    /// A server of schema 1.
    pub fn old(&self, more: &[&str]) -> Server {
        let args = self.args(1, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.site.start(&args)
    }

    /// A server of schema 1 that is held at a step.
    pub fn old_held(&self, step: &str) -> (Server, Hold) {
        let args = self.args(1, &[]);
        self.held(&args, step)
    }

    /// The arguments of a server of schema 2 that declares the backfill.
    fn new_args(&self, shape: Shape) -> Vec<String> {
        let folder = self.folder(shape);
        self.args(2, &["--backfills", folder.to_str().unwrap()])
    }

    /// A server of schema 2 that declares the backfill.
    pub fn new_server(&self, shape: Shape) -> Server {
        let args = self.new_args(shape);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.site.start(&args)
    }

    /// A server of schema 2 that declares nothing.
    pub fn bare_server(&self) -> Server {
        let args = self.args(2, &[]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.site.start(&args)
    }

    /// A server of a schema 2 that has no notes any more.
    pub fn retiring_server(&self) -> Server {
        let schema = self.site.path("schema-retiring.json");
        self.site.start(&["--schema", schema.to_str().unwrap()])
    }

    /// [`Self::new_server`] held at a step.
    pub fn new_held(&self, shape: Shape, step: &str) -> (Server, Hold) {
        self.held(&self.new_args(shape), step)
    }

    /// The same, held before it listens: this returns when it does.
    pub fn new_held_in(&self, shape: Shape, step: &str, folder: &Path) -> Server {
        self.held_in(&self.new_args(shape), step, folder)
    }

    fn held(&self, args: &[String], step: &str) -> (Server, Hold) {
        let hold = Hold(tempfile::tempdir().unwrap());
        (self.held_in(args, step, hold.0.path()), hold)
    }

    fn held_in(&self, args: &[String], step: &str, folder: &Path) -> Server {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = self.site.command(&args);
        let folder = folder.display();
        command.env("FAILPOINT_OF_TIDEGATE", format!("{step}@{folder}"));
        self.site.spawn(command, self.site.log_file())
    }

    /// A server of schema 2 that does not get as far as listening; how it ended.
    pub async fn ends_early(&self, args: EarlyEnd<'_>) -> ExitStatus {
        let (args, failpoint) = match args {
            EarlyEnd::Failpoint(shape, step) => (self.new_args(shape), Some(step)),
            EarlyEnd::Undeclared => (self.args(2, &[]), None),
            EarlyEnd::Old => (self.args(1, &[]), None),
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = self.site.command(&args);
        if let Some(step) = failpoint {
            command.env("FAILPOINT_OF_TIDEGATE", step);
        }
        command.stdout(std::process::Stdio::null());
        command.stderr(self.site.log_file());
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("it does not end: {failpoint:?}\n{}", self.site.log());
            }
            breath().await;
        }
    }

    /// A server of schema 2 that dies at a step of its backfill.
    pub fn doomed(&self, shape: Shape, step: &str) -> Server {
        let args = self.new_args(shape);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = self.site.command(&args);
        command.env("FAILPOINT_OF_TIDEGATE", step);
        self.site.spawn(command, self.site.log_file())
    }

    /// Waits until the backfill is activated.
    pub async fn activated(&self) {
        let state = format!("SELECT state FROM sync_backfill_checkpoints WHERE name='{NAME}'");
        self.sql.until(&state, "activated").await;
    }

    /// The stored epoch of the backfill's owner.
    pub async fn owner_epoch(&self) -> i64 {
        let query =
            format!("SELECT owner_epoch FROM sync_backfill_checkpoints WHERE name='{NAME}'");
        self.sql.value(&query).await.parse().unwrap()
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.site.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(40);
            eprintln!("the servers' last words:\n{}", lines[last..].join("\n"));
        }
    }
}

/// Which server ends before it listens.
pub enum EarlyEnd<'a> {
    /// Schema 2 with its backfill, at a failpoint of the migration.
    Failpoint(Shape, &'a str),
    /// Schema 2 without its backfill.
    Undeclared,
    /// Schema 1.
    Old,
}

/// A step at which a server is held.
pub struct Hold(tempfile::TempDir);

impl Hold {
    /// Waits until the step is reached.
    pub async fn reached(&self) {
        reached(self.0.path()).await;
    }

    /// Lets it go on.
    pub fn release(&self) {
        std::fs::write(self.0.path().join("go"), "").unwrap();
    }
}

/// Waits until the step that is held in a folder is reached.
pub async fn reached(folder: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !folder.join("reached").exists() {
        assert!(Instant::now() < deadline, "the step was never reached");
        breath().await;
    }
}

/// A seeded row's title.
pub fn title(n: usize) -> String {
    format!("  Title {n} ")
}

/// The path of the checkpoint on the control endpoint.
pub fn path(more: &str) -> String {
    format!("/partitions/{SHOP}/checkpoints{more}")
}

/// The backfill as a server's operator sees it.
pub async fn status(panel: &Panel) -> Json {
    let listed = Panel::ok(panel.get(&path("")).await);
    let found = listed["checkpoints"].as_array().unwrap().iter();
    found
        .clone()
        .find(|one| one["name"] == NAME)
        .unwrap_or_else(|| panic!("{listed}"))
        .clone()
}

/// Polls the backfill until it is as wanted.
pub async fn status_until(panel: &Panel, wanted: impl Fn(&Json) -> bool) -> Json {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = status(panel).await;
        if wanted(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "never as wanted: {found}");
        breath().await;
    }
}

/// Sends the backfill a command without members.
pub async fn order(panel: &Panel, command: &str) -> Json {
    Panel::ok(
        panel
            .post(&path(&format!("/{NAME}/{command}")), serde_json::json!({}))
            .await,
    )
}

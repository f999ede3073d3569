//! A database file, processes on it, and what its rows should be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ssp2::{Operation, OperationKind, PushCommit, ScopeLists, Value, WireVersion};
use tidegate_actors::backfill::{
    BackfillParts, BackfillSettings, Backfills, CheckpointKey, CheckpointStatus, WorkerPhase,
};
use tidegate_actors::*;
use tidegate_engine::backfill::checkpoint::Checkpoint;
use tidegate_engine::backfill::pacing::Pace;
use tidegate_engine::backfill::projection::{DeclaredProjection, Projection, ProjectionConfig};
use tidegate_engine::hooks::Allowed;
use tidegate_engine::model::LoggedCommit;
use tidegate_engine::push::Decision;
use tidegate_engine::schema::Schema;
use tidegate_engine::{PartitionId, SchemaVersion};
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::sqlite::{SqliteOptions, SqliteStore, Synchronous};
use tidegate_store::{Declaration, Partitions, RangeQuery, Store, Touch};
use tidegate_test_postgres::Database;

pub const COLUMN: &str = "title-key";
pub const TABLE: &str = "cards";

fn document(version: i32, new_columns: &str, new_tables: &str) -> Arc<Schema> {
    let text = format!(
        r#"{{"schemaVersion": {version}, "tables": [
            {{"name": "todos", "primaryKey": "id", "scopes": ["list:{{list}}"], "columns": [
                {{"name": "id", "type": "string"}}, {{"name": "list", "type": "string"}},
                {{"name": "title", "type": "string"}}{new_columns}]}}{new_tables}]}}"#
    );
    Arc::new(Schema::load(&text).unwrap())
}

pub fn old_schema() -> Arc<Schema> {
    document(1, "", "")
}

pub fn new_schema() -> Arc<Schema> {
    document(
        2,
        r#", {"name": "title_key", "type": "string", "nullable": true}"#,
        r#", {"name": "cards", "primaryKey": "id", "scopes": ["list:{list}"], "columns": [
            {"name": "id", "type": "string"}, {"name": "list", "type": "string"},
            {"name": "label", "type": "string"},
            {"name": "note", "type": "string", "nullable": true}]}"#,
    )
}

pub fn projection(name: &str) -> Arc<dyn Projection> {
    let text = match name {
        COLUMN => {
            "name = 'title-key'\nschema_version = 2\nsources = ['todos']\ntarget = 'todos'\n\
             [columns]\ntitle_key = 'row.title.trim().lowerAscii()'\n"
        }
        TABLE => {
            "name = 'cards'\nschema_version = 2\nsources = ['todos']\ntarget = 'cards'\n\
             key = \"'card:' + row.id\"\nwhere = \"!row.title.startsWith('#')\"\n\
             [columns]\nlist = 'row.list'\nlabel = 'row.title'\n"
        }
        other => panic!("no projection {other}"),
    };
    let config = ProjectionConfig::parse(text).unwrap();
    Arc::new(DeclaredProjection::load(&config, &new_schema()).unwrap())
}

pub fn both() -> Vec<Arc<dyn Projection>> {
    vec![projection(COLUMN), projection(TABLE)]
}

pub fn partition() -> PartitionId {
    "p".into()
}

pub fn key(name: &str) -> CheckpointKey {
    CheckpointKey {
        partition: partition(),
        name: name.into(),
    }
}

/// A database file at schema version 2, with old rows from version 1.
pub struct World {
    home: Home,
}

/// Where the database is.
pub enum Home {
    /// A SQLite file in a directory of its own, removed in the end.
    Sqlite(PathBuf),
    /// A database of the shared test server.
    Postgres(Database),
}

impl Home {
    pub fn sqlite() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "backfill-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self::Sqlite(directory)
    }

    pub fn postgres() -> Self {
        Self::Postgres(Database::create().unwrap())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Self::Sqlite(directory) = self {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// The title of old row `at`: some are left out of the cards.
pub fn title(at: usize) -> String {
    let hash = if at % 7 == 3 { "#" } else { "" };
    format!("{hash} Title {at:03} ").trim_start().to_owned() + " "
}

impl World {
    /// At version 1 with so many rows.
    pub async fn old(home: Home, rows: usize) -> Self {
        let world = Self { home };
        let schema = old_schema();
        let store = world.open().await;
        store
            .ensure_schema(Arc::clone(&schema), &[], 1)
            .await
            .unwrap();
        let process = directory_on(&store, &schema, Arc::new(NoObserver));
        register(&*store).await;
        for (chunk, ids) in (0..rows).collect::<Vec<_>>().chunks(100).enumerate() {
            let operations = ids
                .iter()
                .map(|at| upsert(&schema, &format!("r{at:04}"), &title(*at)))
                .collect();
            push(&process, &format!("old-{chunk}"), operations).await;
        }
        process.shutdown(Duration::from_secs(5)).await;
        store.close().await;
        world
    }

    /// At version 2, with so many rows from version 1 and those checkpoints declared.
    pub async fn new(rows: usize, names: &[&str]) -> Self {
        Self::new_in(Home::sqlite(), rows, names).await
    }

    pub async fn new_in(home: Home, rows: usize, names: &[&str]) -> Self {
        let world = Self::old(home, rows).await;
        let declarations: Vec<Declaration> = names.iter().map(|name| declaration(name)).collect();
        let store = world.open().await;
        store
            .ensure_schema(new_schema(), &declarations, 2)
            .await
            .unwrap();
        store.close().await;
        world
    }

    /// The SQLite file.
    pub fn path(&self) -> PathBuf {
        match &self.home {
            Home::Sqlite(directory) => directory.join("data.sqlite"),
            Home::Postgres(_) => panic!("there is no file"),
        }
    }

    /// A store on the database, not prepared yet.
    pub async fn open(&self) -> Arc<dyn Store> {
        match &self.home {
            Home::Sqlite(_) => self.open_with_timeout(Duration::from_secs(5)),
            Home::Postgres(database) => {
                let mut options = PostgresOptions::new(database.url());
                options.pool_size = 8;
                PostgresStore::connect(options).await.unwrap()
            }
        }
    }

    /// One that waits only so long for another program's lock.
    pub fn open_with_timeout(&self, busy_timeout: Duration) -> Arc<dyn Store> {
        open_file(&self.path(), busy_timeout)
    }

    /// A store on the file, prepared for the new schema by a program that has those
    /// projections.
    pub async fn store(&self, projections: &[Arc<dyn Projection>]) -> Arc<dyn Store> {
        let store = self.open().await;
        let declarations: Vec<Declaration> = projections
            .iter()
            .map(|projection| declaration(projection.name()))
            .collect();
        store
            .ensure_schema(new_schema(), &declarations, 3)
            .await
            .unwrap();
        store
    }

    /// A process with those projections.
    pub async fn process(
        &self,
        projections: Vec<Arc<dyn Projection>>,
        settings: BackfillSettings,
    ) -> Process {
        let store = self.store(&projections).await;
        Process::start(store, projections, settings)
    }
}

/// A store on a SQLite file, which waits only so long for another program's lock.
pub fn open_file(path: &Path, busy_timeout: Duration) -> Arc<dyn Store> {
    let mut options = SqliteOptions::file(path);
    options.synchronous = Synchronous::Normal;
    options.busy_timeout = busy_timeout;
    SqliteStore::open(options).unwrap()
}

pub fn declaration(name: &str) -> Declaration {
    Declaration {
        partitions: Partitions::One(partition()),
        name: name.to_owned(),
        schema_version: SchemaVersion(2),
    }
}

pub async fn register(store: &dyn Store) {
    let touch = Touch {
        now_ms: 1,
        new_epoch: std::sync::Arc::new(|| Ok("e1".into())),
        refresh_after_ms: i64::MAX,
    };
    store
        .read_preamble(&partition(), &"c".into(), touch)
        .await
        .unwrap();
}

pub fn directory_on(
    store: &Arc<dyn Store>,
    schema: &Arc<Schema>,
    observer: Arc<dyn CommitObserver>,
) -> Directory {
    let parts = Parts {
        store: Arc::clone(store),
        schema: Arc::clone(schema),
        hooks: Arc::default(),
        declared: Arc::default(),
        clock: Arc::new(SystemClock),
        observer,
    };
    let settings = Settings {
        arbiters: 1,
        ..Settings::default()
    };
    Directory::start(parts, settings)
}

/// Hears of commits.
#[derive(Default)]
pub struct Heard(pub Mutex<Vec<Arc<LoggedCommit>>>);

impl CommitObserver for Heard {
    fn committed(&self, _: &PartitionId, commits: &[Arc<LoggedCommit>]) {
        self.0.lock().extend_from_slice(commits);
    }
}

/// A process: a store, its partitions, its backfills.
pub struct Process {
    pub store: Arc<dyn Store>,
    pub directory: Directory,
    pub backfills: Backfills,
    pub heard: Arc<Heard>,
}

/// Small pages, no pace, short delays.
pub fn quick() -> BackfillSettings {
    BackfillSettings {
        page_rows: 16,
        pace: fast(),
        workers: 1,
        poll: Duration::from_millis(5),
        lease: Duration::from_millis(200),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(20),
        ..BackfillSettings::default()
    }
}

pub fn fast() -> Pace {
    Pace {
        rows_per_second: 1e9,
        burst_rows: 1e9,
        push_p99_target_ms: None,
        least_share: 1.0,
    }
}

/// A pace at which nothing but the first page is done.
pub fn frozen() -> Pace {
    Pace {
        rows_per_second: 0.001,
        burst_rows: 1.0,
        push_p99_target_ms: None,
        least_share: 1.0,
    }
}

impl Process {
    pub fn start(
        store: Arc<dyn Store>,
        projections: Vec<Arc<dyn Projection>>,
        settings: BackfillSettings,
    ) -> Self {
        let schema = new_schema();
        let heard = Arc::new(Heard::default());
        let directory = directory_on(&store, &schema, heard.clone());
        // As the coordinator does before anybody is served.
        let declared = projections
            .iter()
            .map(|projection| (partition().to_string(), projection.name().to_owned()))
            .collect();
        directory.set_declared(Arc::new(declared));
        let backfills = Backfills::start(
            BackfillParts {
                directory: directory.clone(),
                store: Arc::clone(&store),
                schema,
                projections,
                clock: Arc::new(SystemClock),
            },
            settings,
        );
        Self {
            store,
            directory,
            backfills,
            heard,
        }
    }

    pub async fn status(&self, name: &str) -> CheckpointStatus {
        let all = self.backfills.list(Some(partition())).await.unwrap();
        all.into_iter()
            .find(|status| *status.checkpoint.name == *name)
            .unwrap()
    }

    pub async fn checkpoint(&self, name: &str) -> Checkpoint {
        let read = self.store.read_checkpoint(&partition(), name).await;
        read.unwrap().unwrap()
    }

    /// Waits until a checkpoint's status is as wanted.
    pub async fn until(
        &self,
        name: &str,
        wanted: impl Fn(&CheckpointStatus) -> bool,
    ) -> CheckpointStatus {
        loop {
            let status = self.status(name).await;
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn activated(&self, name: &str) -> CheckpointStatus {
        self.until(name, |status| status.phase == WorkerPhase::Activated)
            .await
    }

    /// Ends at once, as a process that dies as far as the database is concerned.
    pub async fn die(self) {
        self.backfills.stop(Duration::ZERO).await;
        self.directory.shutdown(Duration::from_secs(5)).await;
        self.store.close().await;
    }

    /// Writes a source row as a client does.
    pub async fn put(&self, row: &str, title: &str) {
        put(&self.directory, row, title).await;
    }
}

/// Writes a source row as a client does: the computed column of a row that is there is left
/// as it is.
pub async fn put(directory: &Directory, row: &str, title: &str) {
    let schema = new_schema();
    let table = schema.table("todos").unwrap();
    let mut values = [row, "l", title]
        .map(|text| Some(Value::Text(text.to_owned())))
        .to_vec();
    values.push(None);
    let payload = ssp2::encode_sparse_row(&table.columns, table.primary_key, &values).unwrap();
    let mut operation = upsert(&schema, row, title);
    let whole = operation.clone();
    operation.kind = OperationKind::Upsert(payload);
    let wire = WireVersion::V3;
    let sparse = decide(directory, wire, &unique(), vec![operation]).await;
    if !matches!(sparse, Decision::Applied { .. }) {
        push(directory, &unique(), vec![whole]).await;
    }
}

/// Writes a whole source row.
pub async fn put_new(directory: &Directory, row: &str, title: &str) {
    let operation = upsert(&new_schema(), row, title);
    push(directory, &unique(), vec![operation]).await;
}

pub async fn delete(directory: &Directory, row: &str) {
    let operation = Operation {
        table: "todos".into(),
        row_id: row.into(),
        base_version: None,
        kind: OperationKind::Delete,
    };
    push(directory, &unique(), vec![operation]).await;
}

pub fn unique() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    format!("k{}", COUNTER.fetch_add(1, Ordering::Relaxed))
}

fn upsert(schema: &Schema, row: &str, title: &str) -> Operation {
    let columns = &schema.table("todos").unwrap().columns;
    let mut values = vec![Value::Null; columns.len()];
    for (at, text) in [row, "l", title].into_iter().enumerate() {
        values[at] = Value::Text(text.to_owned());
    }
    Operation {
        table: "todos".into(),
        row_id: row.into(),
        base_version: None,
        kind: OperationKind::Upsert(ssp2::encode_row(columns, &values).unwrap()),
    }
}

/// Pushes whole rows.
pub async fn push(directory: &Directory, id: &str, operations: Vec<Operation>) {
    let decision = decide(directory, WireVersion::V2, id, operations).await;
    assert!(matches!(decision, Decision::Applied { .. }), "{decision:?}");
}

async fn decide(
    directory: &Directory,
    wire: WireVersion,
    id: &str,
    operations: Vec<Operation>,
) -> Decision {
    let lists: ScopeLists = [("list", vec!["*".to_owned()])].into_iter().collect();
    let request = PushRequest {
        client_id: "c".into(),
        actor_id: "alice".into(),
        wire,
        allowed: Allowed::Resolved(Arc::new(lists)),
        commits: vec![PushCommit {
            client_commit_id: id.into(),
            operations,
        }],
        bind: None,
    };
    let pushed = directory.partition(&partition()).push(request).await;
    pushed.unwrap().remove(0)
}

/// A table's rows: version and values by id.
pub type Rows = BTreeMap<String, (i64, Vec<Value>)>;

pub async fn rows(store: &dyn Store, table: &str) -> Rows {
    let schema = new_schema();
    let table = schema.table(table).unwrap();
    let mut snapshot = store.snapshot(&partition()).await.unwrap();
    let page = snapshot
        .read_range(RangeQuery {
            table: table.id,
            after: None,
            through: None,
            limit: 100_000,
        })
        .await
        .unwrap();
    assert!(!page.more);
    page.rows
        .into_iter()
        .map(|(id, row)| {
            let values = ssp2::decode_row(&table.columns, &row.payload).unwrap();
            (id, (row.server_version, values))
        })
        .collect()
}

pub async fn max(store: &dyn Store) -> i64 {
    store.snapshot(&partition()).await.unwrap().bounds().max.0
}

fn text(value: &Value) -> &str {
    match value {
        Value::Text(text) => text,
        other => panic!("no text: {other:?}"),
    }
}

/// What the computed column of a source row should hold.
pub fn column_of(values: &[Value]) -> Value {
    Value::Text(text(&values[2]).trim().to_lowercase())
}

/// Whether a source row of that title has no card.
pub fn is_left_out(title: &Value) -> bool {
    text(title).starts_with('#')
}

/// Checks every computed column against its row.
pub async fn assert_column_is_right(store: &dyn Store) -> Rows {
    let todos = rows(store, "todos").await;
    for (id, (_, values)) in &todos {
        assert_eq!(values[3], column_of(values), "{id}");
    }
    todos
}

/// Checks every card against the sources.
pub async fn assert_table_is_right(store: &dyn Store) -> Rows {
    let todos = rows(store, "todos").await;
    let cards = rows(store, "cards").await;
    let expected: BTreeMap<String, String> = todos
        .iter()
        .map(|(id, (_, values))| (format!("card:{id}"), text(&values[2]).to_owned()))
        .filter(|(_, title)| !title.starts_with('#'))
        .collect();
    let found: BTreeMap<String, String> = cards
        .iter()
        .map(|(id, (_, values))| (id.clone(), text(&values[2]).to_owned()))
        .collect();
    assert_eq!(found, expected);
    cards
}

//! `tidegate demo`: the story of two people who edit one shopping list offline. Another
//! story has a module of its own: [`migration`].

pub mod migration;

use std::fmt::Write as _;
use std::io::Write as _;

use tidegate_client::{
    Base, ClientConfig, ClientError, ClientSchema, Conflict, Edit, EditError, Fault, Faults,
    FaultyTransport, HttpTransport, OutcomeStatus, Replica, Resolution, SyncClient, TransportError,
    Value,
};

use super::complain;
use super::ctl::CtlError;
use crate::cli::Exit;
use crate::config::{Config, Control, ControlListen, Database};
use crate::server::{self, DEMO_SCHEMA, Hooks, Running, ServeError};

const LIST: &str = "groceries";
/// A lost acknowledgement is made up for within that many tries.
const ATTEMPTS: usize = 5;

/// Why the story stops before its end.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(transparent)]
    Serve(Box<ServeError>),
    #[error("a sync failed: {0}")]
    Client(#[from] ClientError),
    #[error("cannot reach the server: {0}")]
    Transport(#[from] TransportError),
    #[error("an edit was refused: {0}")]
    Edit(#[from] EditError),
    #[error("the demo schema is unusable: {0}")]
    Schema(#[from] tidegate_client::SchemaError),
    #[error("the story went another way: {0}")]
    Plot(&'static str),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the story is stuck: {0}")]
    Stuck(String),
    #[error(transparent)]
    Control(#[from] CtlError),
}

impl From<ServeError> for DemoError {
    fn from(error: ServeError) -> Self {
        Self::Serve(Box::new(error))
    }
}

/// Plays the story against `server`, or one started for it.
pub fn run(server: Option<&str>) -> Exit {
    match actix_web::rt::System::new().block_on(play(server)) {
        Ok(true) => Exit::Success,
        Ok(false) => {
            complain(&"the two replicas differ");
            Exit::Failure
        }
        Err(DemoError::Serve(error)) => {
            complain(&error);
            error.exit()
        }
        Err(error) => {
            complain(&error);
            Exit::Failure
        }
    }
}

/// Returns whether both replicas ended equal.
async fn play(server: Option<&str>) -> Result<bool, DemoError> {
    let Some(url) = server else {
        let folder = tempfile::tempdir()?;
        let running = start(folder.path()).await?;
        let url = format!("http://{}", running.address());
        say(&format!(
            "A server starts on {url} with a new SQLite database."
        ))?;
        let told = tell(&url).await;
        running.stop().await?;
        return told;
    };
    say(&format!("The story plays against {url}."))?;
    tell(url).await
}

async fn start(folder: &std::path::Path) -> Result<Running, ServeError> {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        control: Control {
            listen: ControlListen::Off,
            ..Control::default()
        },
        database: Database {
            url: format!("sqlite:{}", folder.join("demo.db").display()),
        },
        ..Config::default()
    };
    let schema = server::load_schema(&config)?;
    let store = server::open_store(&config).await?;
    let hooks = Hooks::development(&schema);
    server::start(config, schema, store, hooks).await
}

type Client = SyncClient<FaultyTransport<HttpTransport>>;

struct Person {
    name: &'static str,
    client: Client,
    faults: Faults,
}

impl Person {
    fn new(name: &'static str, url: &str, partition: &str) -> Result<Self, DemoError> {
        let faults = Faults::none();
        let transport = HttpTransport::new(url, name, Some(partition))?;
        let schema = ClientSchema::from_ir_json(DEMO_SCHEMA)?;
        let mut client = SyncClient::new(
            ClientConfig::new(format!("{name}-phone")),
            schema,
            FaultyTransport::new(transport, faults.clone()),
        );
        for table in ["lists", "todos"] {
            client.subscribe(table, table, [("list_id", vec![LIST])])?;
        }
        Ok(Self {
            name,
            client,
            faults,
        })
    }

    fn todo(id: &str, title: &str, position: i64) -> Edit {
        Edit::upsert("todos")
            .set("id", id)
            .set("list_id", LIST)
            .set("title", title)
            .set("done", false)
            .set("position", position)
    }
}

async fn tell(url: &str) -> Result<bool, DemoError> {
    let partition = format!("demo-{}", random_name()?);
    let mut ada = Person::new("ada", url, &partition)?;
    let mut ben = Person::new("ben", url, &partition)?;

    say("\n1. Ada makes a list and syncs; Ben's phone fetches it.")?;
    ada.client.edit([
        Edit::upsert("lists")
            .set("id", LIST)
            .set("name", "Groceries")
            .set("owner", ada.name),
        Person::todo("bread", "Bread", 1),
        Person::todo("milk", "Milk", 2),
    ])?;
    ada.client.sync().await?;
    ben.client.sync().await?;
    report(&ben)?;

    say("\n2. Both lose their connection and go on editing.")?;
    ada.client.edit([Edit::update("todos", "bread")
        .set("title", "Rye bread")
        .base(Base::Known)])?;
    ada.client.edit([Person::todo("apples", "Apples", 3)])?;
    say("   Ada: renames Bread to \"Rye bread\", adds Apples")?;
    let renamed = ben.client.edit([Edit::update("todos", "bread")
        .set("title", "Two baguettes")
        .base(Base::Known)])?;
    ben.client
        .edit([Edit::update("todos", "bread").set("notes", "from the corner shop")])?;
    ben.client.edit([Edit::update("todos", "milk")
        .set("done", true)
        .base(Base::Known)])?;
    say("   Ben: renames Bread to \"Two baguettes\", adds a note to it, ticks off Milk")?;

    say("\n3. Ada is back, but the server's acknowledgement gets lost on the way.")?;
    let pushed = ada
        .client
        .pending()
        .map(|commit| commit.client_commit_id.clone());
    let pushed: Vec<String> = pushed.collect();
    ada.faults.push(Fault::DropResponse);
    ada.client.sync_through_losses(ATTEMPTS).await?;
    if ada.faults.injected() == 0 {
        return Err(DemoError::Plot("no acknowledgement was lost"));
    }
    for id in &pushed {
        match ada.client.outcome(id) {
            Some(OutcomeStatus::Cached(seq)) => say(&format!(
                "   The same commit is sent again: already applied as commit {seq}, nothing is done twice."
            ))?,
            _ => return Err(DemoError::Plot("a repeated commit was not recognized")),
        }
    }

    say("\n4. Ben is back too, and his new name for Bread meets Ada's.")?;
    ben.client.sync().await?;
    let Some(conflict) = ben
        .client
        .conflicts()
        .iter()
        .find(|conflict| conflict.commit.client_commit_id == renamed)
        .cloned()
    else {
        return Err(DemoError::Plot("nobody noticed the conflict"));
    };
    describe(&conflict)?;
    say("   His other edits went through: a note and a tick touch other columns.")?;
    ben.client.resolve(&renamed, Resolution::KeepLocal);
    say("   Ben insists on baguettes: his edit is sent again, based on the row as it is now.")?;
    ben.client.sync().await?;

    say("\n5. Both sync once more.")?;
    ada.client.sync().await?;
    ben.client.sync().await?;
    say(&format!(
        "\n{}",
        side_by_side(
            ("Ada", &tables(ada.client.replica())),
            ("Ben", &tables(ben.client.replica()))
        )
    ))?;
    // What is compared is everything, not what fits beside each other.
    let equal = ada.client.replica().canonical_dump() == ben.client.replica().canonical_dump()
        && ada.client.replica().len("todos") == 3;
    say(if equal {
        "Both phones hold the same rows."
    } else {
        "The phones differ!"
    })?;
    Ok(equal)
}

fn report(person: &Person) -> std::io::Result<()> {
    let replica = person.client.replica();
    say(&format!(
        "   {}: {} list, {} todos",
        person.name,
        replica.len("lists"),
        replica.len("todos")
    ))
}

/// Both tables of a replica, one short line a row.
fn tables(replica: &Replica) -> String {
    let mut out = String::new();
    for id in replica.row_ids("lists") {
        let Some(row) = replica.row("lists", id) else {
            continue;
        };
        let name = row.text("name").unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name} ({})", row.text("owner").unwrap_or("nobody's"));
    }
    for id in replica.row_ids("todos") {
        let Some(row) = replica.row("todos", id) else {
            continue;
        };
        let done = row.get("done") == Some(&Value::Boolean(true));
        let title = row.text("title").unwrap_or_default();
        let _ = write!(out, " [{}] {title}", if done { 'x' } else { ' ' });
        if let Some(notes) = row.text("notes") {
            let _ = write!(out, " - {notes}");
        }
        out.push('\n');
    }
    out
}

fn describe(conflict: &Conflict) -> std::io::Result<()> {
    say(&format!(
        "   {} on column {}: the server's row is at version {} by now.",
        conflict.code,
        conflict.conflict_columns.join(", "),
        conflict.server_version
    ))
}

/// A partition of its own for every run, so that one server can be shown often.
fn random_name() -> Result<String, DemoError> {
    let mut bits = [0u8; 8];
    getrandom::fill(&mut bits).map_err(std::io::Error::other)?;
    Ok(format!("{:016x}", u64::from_le_bytes(bits)))
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Two texts in columns, lines that differ marked.
fn side_by_side((left_name, left): (&str, &str), (right_name, right): (&str, &str)) -> String {
    let left: Vec<&str> = left.lines().collect();
    let right: Vec<&str> = right.lines().collect();
    let width = left
        .iter()
        .map(|line| line.chars().count())
        .chain([left_name.len()])
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{left_name:<width$}   {right_name}");
    let _ = writeln!(out, "{}", "-".repeat(2 * width + 3));
    for line in 0..left.len().max(right.len()) {
        let pair = (
            left.get(line).copied().unwrap_or_default(),
            right.get(line).copied().unwrap_or_default(),
        );
        let mark = if pair.0 == pair.1 { "|" } else { "≠" };
        let _ = writeln!(out, "{:<width$} {mark} {}", pair.0, pair.1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_lines_are_marked() {
        let text = side_by_side(("A", "same\nx"), ("B", "same\ny\nz"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "same | same");
        assert!(lines[3].contains('≠') && lines[4].contains('≠'));
    }
}

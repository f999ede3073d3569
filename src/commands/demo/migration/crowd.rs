//! The load: devices that push and pull all the time, and count how they are answered.

use std::cell::{Cell, Ref, RefCell};
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use tidegate_client::{
    ClientConfig, ClientError, ClientSchema, Edit, HttpTransport, OutcomeStatus, SyncClient,
    TransportError,
};
use tokio::sync::Notify;

use super::super::DemoError;
use super::servers::SCHEMA_TWO;
use super::truth::{Todo, Truth, first_uncomputed, headline, title_key};
use crate::server::DEMO_SCHEMA;

/// A person thinks between two actions.
const THINKS: Duration = Duration::from_millis(20);
/// Operations of a commit while the first rows are written.
const SEEDED_AT_ONCE: usize = 250;
/// The code of every refusal that a migration causes.
const NOT_READY: &str = "sync.schema_not_ready";

/// How far the upgrade is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// Schema 1 alone.
    #[default]
    Before,
    /// The new server starts and migrates.
    Migrating,
    /// The new server is there and computes.
    Computing,
    /// Everything is activated.
    After,
}

const PHASES: [(Phase, &str); 4] = [
    (Phase::Before, "before"),
    (Phase::Migrating, "migrating"),
    (Phase::Computing, "computing"),
    (Phase::After, "after"),
];

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A push of a device that upgrades.
    Push,
    /// A pull of lists, which nothing computes.
    PullLists,
    /// A pull of todos, with cards once they exist.
    PullTodos,
    /// A push of the old writer.
    OldPush,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Push, "pushes"),
    (Kind::PullLists, "pulls of lists"),
    (Kind::PullTodos, "pulls of todos and cards"),
    (Kind::OldPush, "pushes of the old writer"),
];

/// How it was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As it should.
    Served,
    /// With `sync.schema_not_ready`.
    Refused,
    /// Not at all: the server was gone.
    Unanswered,
}

/// Everything that is counted. A request belongs to the phase in which it was sent.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    counts: [[[u64; 3]; PHASES.len()]; KINDS.len()],
    /// Pushes that left out what the server computes.
    pub forgotten: u64,
    /// Requests of devices that had not yet moved to the new server.
    pub refused_at_the_old_server: u64,
    /// Pulls at schema 2 whose rows were looked at.
    pub pulls_checked: u64,
    /// Rows that such a pull showed before they were computed.
    pub uncomputed: Vec<String>,
    /// Answers that nothing here explains.
    pub unexpected: Vec<String>,
}

impl Tallies {
    pub fn count(&self, kind: Kind, phase: Phase, outcome: Outcome) -> u64 {
        self.counts[kind as usize][phase as usize][outcome as usize]
    }

    pub fn served(&self, kind: Kind, phase: Phase) -> u64 {
        self.count(kind, phase, Outcome::Served)
    }

    fn add(&mut self, kind: Kind, phase: Phase, outcome: Outcome) {
        self.counts[kind as usize][phase as usize][outcome as usize] += 1;
    }

    /// For people: served, refused, and unanswered where the server was killed.
    pub fn table(&self) -> String {
        let mut out = format!("{:<26}", "served / refused");
        // Writing to a String cannot fail.
        for (_, name) in PHASES {
            let _ = write!(out, "{name:>20}");
        }
        for (kind, name) in KINDS {
            let _ = write!(out, "\n{name:<26}");
            for (phase, _) in PHASES {
                let of = |outcome| self.count(kind, phase, outcome);
                let mut cell = format!("{} / {}", of(Outcome::Served), of(Outcome::Refused));
                if of(Outcome::Unanswered) > 0 {
                    let _ = write!(cell, " (+{})", of(Outcome::Unanswered));
                }
                let _ = write!(out, "{cell:>20}");
            }
        }
        let lost: u64 = self
            .counts
            .iter()
            .flatten()
            .map(|of| of[Outcome::Unanswered as usize])
            .sum();
        if lost > 0 {
            let _ = write!(
                out,
                "\n(+n) found no server between the kill and the next start, and asked again."
            );
        }
        out.push('\n');
        out
    }
}

/// What the devices are told, and what they tell.
#[derive(Default)]
pub(super) struct Stage {
    phase: Cell<Phase>,
    /// Where the server of schema 2 is.
    new_server: RefCell<Option<String>>,
    forgetting: Cell<bool>,
    ending: Cell<bool>,
    tallies: RefCell<Tallies>,
    old_refusal: RefCell<Option<String>>,
    changed: Notify,
}

impl Stage {
    pub fn enter(&self, phase: Phase) {
        self.phase.set(phase);
    }

    pub fn send_to(&self, url: &str) {
        *self.new_server.borrow_mut() = Some(url.to_owned());
    }

    /// Whether a forgetful device leaves out what the server computes.
    pub fn forget(&self, on: bool) {
        self.forgetting.set(on);
    }

    pub fn end(&self) {
        self.ending.set(true);
    }

    pub fn tallies(&self) -> Ref<'_, Tallies> {
        self.tallies.borrow()
    }

    /// How the old writer is refused.
    pub fn old_refusal(&self) -> Option<String> {
        self.old_refusal.borrow().clone()
    }

    /// Something was counted.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn note(&self, note: impl FnOnce(&mut Tallies)) {
        note(&mut self.tallies.borrow_mut());
        self.changed.notify_waiters();
        self.changed.notify_one();
    }
}

/// What a device does with an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Upgrades, and writes the computed columns itself from then on.
    Careful,
    /// Upgrades, and leaves them out while it may.
    Forgetful,
    /// Stays with schema 1 and the old server.
    Old,
}

type Client = SyncClient<HttpTransport>;

/// A commit on its way.
struct Pending {
    commit: String,
    id: String,
    todo: Todo,
}

/// A device and its list.
pub(super) struct Device {
    name: String,
    role: Role,
    /// The list that it alone writes to.
    pub list: String,
    /// What the server acknowledged.
    pub truth: Truth,
    rows: usize,
    url: String,
    upgraded: bool,
    pusher: Client,
    todos: Client,
    lists: Client,
    pending: Option<Pending>,
    turns: usize,
}

impl Device {
    pub fn new(
        name: &str,
        role: Role,
        url: &str,
        partition: &str,
        rows: usize,
    ) -> Result<Self, DemoError> {
        let list = format!("list-{name}");
        let client = |part: &str| -> Result<Client, DemoError> {
            Ok(SyncClient::new(
                ClientConfig::new(format!("{name}-{part}")),
                ClientSchema::from_ir_json(DEMO_SCHEMA)?,
                HttpTransport::new(url, name, Some(partition))?,
            ))
        };
        let mut device = Self {
            name: name.to_owned(),
            role,
            truth: Truth::new(),
            rows,
            url: url.to_owned(),
            upgraded: false,
            pusher: client("pusher")?,
            todos: client("todos")?,
            lists: client("lists")?,
            pending: None,
            turns: 0,
            list,
        };
        let own = [("list_id", vec![device.list.clone()])];
        device.todos.subscribe("todos", "todos", own.clone())?;
        device.lists.subscribe("lists", "lists", own)?;
        Ok(device)
    }

    /// Writes the list and its first todos.
    pub async fn seed(&mut self) -> Result<(), DemoError> {
        self.pusher.edit([Edit::upsert("lists")
            .set("id", self.list.clone())
            .set("name", self.list.clone())])?;
        let ids: Vec<String> = (0..self.rows).map(|n| self.row(n)).collect();
        for ids in ids.chunks(SEEDED_AT_ONCE) {
            let mut edits = Vec::new();
            for id in ids {
                let title = format!("  Item {id} ");
                edits.push(self.whole(id, &title));
                let (list, writes, old) = (self.list.clone(), 1, true);
                self.truth.insert(
                    id.clone(),
                    Todo {
                        list,
                        title,
                        writes,
                        old,
                    },
                );
            }
            self.pusher.edit(edits)?;
            self.pusher.sync().await?;
        }
        Ok(())
    }

    fn row(&self, n: usize) -> String {
        format!("{}-{n:06}", self.name)
    }

    fn whole(&self, id: &str, title: &str) -> Edit {
        Edit::upsert("todos")
            .set("id", id)
            .set("list_id", self.list.clone())
            .set("title", title)
            .set("done", false)
    }

    /// Works until the end, and until its last commit is answered.
    pub async fn work(mut self, stage: Rc<Stage>) -> Result<Self, DemoError> {
        loop {
            self = self.follow(&stage)?;
            if stage.ending.get() && (self.pending.is_none() || self.role == Role::Old) {
                return Ok(self);
            }
            self.push(&stage).await?;
            if self.role != Role::Old {
                self.pull(&stage).await;
            }
            self.turns += 1;
            tokio::time::sleep(THINKS).await;
        }
    }

    /// Goes where the new server is, with the new app.
    fn follow(self, stage: &Stage) -> Result<Self, DemoError> {
        let target = stage.new_server.borrow().clone();
        let Some(url) = target.filter(|url| self.role != Role::Old && *url != self.url) else {
            return Ok(self);
        };
        let mut moved = Self {
            pusher: self.pusher.map_transport(|old| old.at(&url)),
            todos: self.todos.map_transport(|old| old.at(&url)),
            lists: self.lists.map_transport(|old| old.at(&url)),
            url,
            ..self
        };
        if !moved.upgraded {
            moved.upgraded = true;
            let schema = ClientSchema::from_ir_json(SCHEMA_TWO)?;
            for client in [&mut moved.pusher, &mut moved.todos, &mut moved.lists] {
                client.upgrade_schema(schema.clone());
            }
            let own = [("list_id", vec![moved.list.clone()])];
            moved.todos.subscribe("cards", "cards", own)?;
        }
        Ok(moved)
    }

    /// Pushes a new commit, or the one that was not answered yet.
    async fn push(&mut self, stage: &Stage) -> Result<(), DemoError> {
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => self.edit(stage)?,
        };
        let kind = if self.role == Role::Old {
            Kind::OldPush
        } else {
            Kind::Push
        };
        let phase = stage.phase.get();
        let pushed = self.pusher.sync().await.map(|_| ());
        self.count(stage, kind, phase, pushed.as_ref().err());
        match self.pusher.outcome(&pending.commit) {
            Some(OutcomeStatus::Applied(_) | OutcomeStatus::Cached(_)) => {
                self.truth.insert(pending.id, pending.todo);
            }
            // The new app cannot say it; it was never applied.
            Some(OutcomeStatus::Dropped { .. }) => {}
            Some(other) => {
                let found = format!("{}: {} was rejected: {other:?}", self.name, pending.commit);
                stage.note(|tallies| tallies.unexpected.push(found));
            }
            None => self.pending = Some(pending),
        }
        Ok(())
    }

    /// Inserts a todo, or changes the title of one.
    fn edit(&mut self, stage: &Stage) -> Result<Pending, DemoError> {
        let inserts = self.turns.is_multiple_of(3) && self.role != Role::Old;
        let at = if inserts {
            self.rows
        } else {
            (self.turns * 7919) % self.rows
        };
        let id = self.row(at);
        let title = format!(" Edit {} of {id}  ", self.turns);
        let known = self.truth.get(&id);
        let todo = Todo {
            list: self.list.clone(),
            title: title.clone(),
            writes: known.map_or(0, |known| known.writes) + 1,
            old: known.is_some_and(|known| known.old),
        };
        self.rows += usize::from(inserts);
        let written = match inserts {
            true => self.whole(&id, &title),
            false => Edit::update("todos", id.clone()).set("title", title.clone()),
        };
        let forgets = self.role == Role::Forgetful && stage.forgetting.get() && !inserts;
        let edits = if !self.upgraded {
            vec![written]
        } else if forgets {
            stage.note(|tallies| tallies.forgotten += 1);
            vec![written]
        } else {
            let card = Edit::upsert("cards")
                .set("id", id.clone())
                .set("list_id", self.list.clone())
                .set("headline", headline(&title, &self.list));
            vec![written.set("title_key", title_key(&title)), card]
        };
        let commit = self.pusher.edit(edits)?;
        Ok(Pending { commit, id, todo })
    }

    async fn pull(&mut self, stage: &Stage) {
        let phase = stage.phase.get();
        let pulled = self.lists.sync().await.map(|_| ());
        self.count(stage, Kind::PullLists, phase, pulled.as_ref().err());
        let phase = stage.phase.get();
        let pulled = self.todos.sync().await.map(|_| ());
        self.count(stage, Kind::PullTodos, phase, pulled.as_ref().err());
        if pulled.is_ok() && self.upgraded {
            let uncomputed = first_uncomputed(self.todos.replica());
            stage.note(|tallies| {
                tallies.pulls_checked += 1;
                tallies.uncomputed.extend(uncomputed);
            });
        }
    }

    fn count(&self, stage: &Stage, kind: Kind, phase: Phase, error: Option<&ClientError>) {
        let outcome = match error {
            None => Outcome::Served,
            Some(ClientError::Transport(TransportError::Lost(_))) => Outcome::Unanswered,
            Some(_) => Outcome::Refused,
        };
        let expected =
            outcome != Outcome::Refused || error.and_then(ClientError::code) == Some(NOT_READY);
        if kind == Kind::OldPush && outcome == Outcome::Refused {
            *stage.old_refusal.borrow_mut() = error.map(told);
        }
        stage.note(|tallies| {
            tallies.add(kind, phase, outcome);
            if outcome == Outcome::Refused && !self.upgraded && self.role != Role::Old {
                tallies.refused_at_the_old_server += 1;
            }
            if let (false, Some(error)) = (expected, error) {
                tallies.unexpected.push(format!("{}: {error}", self.name));
            }
        });
    }
}

/// A refusal with its details.
fn told(error: &ClientError) -> String {
    match error {
        ClientError::Transport(TransportError::Refused {
            status,
            error: Some(body),
        }) => {
            let details = body
                .details
                .as_ref()
                .map(|details| format!(" {}", serde_json::Value::Object(details.clone())));
            format!("{status} {}{}", body.code, details.unwrap_or_default())
        }
        other => other.to_string(),
    }
}

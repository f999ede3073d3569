//! `tidegate demo migration`: a schema upgrade with computed data, under load, with real
//! server processes: one of them old, one killed half way.

mod crowd;
mod servers;
mod truth;
mod verdict;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::{DemoError, random_name, say};
use crate::cli::Exit;
use crate::commands::complain;
use crowd::{Device, Kind, Outcome, Phase, Role, Stage, Tallies};
use servers::{CheckpointView, Release, ServerProcess, Site};
use verdict::Verdict;

/// Devices that work all the time, each on a list of its own.
const DEVICES: usize = 4;
/// Share of the rows, in percent, at which the server is killed.
const KILLED_AT: u64 = 40;
/// Longest that the story waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between looks at the control endpoint.
const LOOK: Duration = Duration::from_millis(100);
/// Rows that the old writer has, in a list of its own.
const OLD_ROWS: usize = 3;

/// `tidegate demo migration`
#[derive(Debug, Clone, clap::Args)]
pub struct MigrationArgs {
    /// An empty database: postgres://… or sqlite:PATH [default: a temporary SQLite file].
    /// Everybody on the machine can read flags
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Todos that are there before the upgrade
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(100..=200_000))]
    pub todos: u32,
}

/// Plays the story and judges it.
pub fn run(args: &MigrationArgs) -> Exit {
    match actix_web::rt::System::new().block_on(play(args)) {
        Ok(true) => Exit::Success,
        Ok(false) => {
            complain(&"a check failed");
            Exit::Failure
        }
        Err(error) => {
            complain(&error);
            Exit::Failure
        }
    }
}

/// Returns whether every check passed.
async fn play(args: &MigrationArgs) -> Result<bool, DemoError> {
    let began = Instant::now();
    let site = Site::new(args.database.as_deref())?;
    let story = Story {
        partition: format!("demo-{}", random_name()?),
        per_device: (args.todos as usize).div_ceil(DEVICES),
        site,
        stage: Rc::default(),
    };
    let told = story.tell().await;
    if told.is_err() {
        say(&story.site.last_words())?;
    }
    let verdict = told?;
    say(&format!("\n{}", story.stage.tallies().table()))?;
    say(&verdict.text())?;
    if !verdict.is_good() {
        say(&format!(
            "\nThe servers' last words:\n{}",
            story.site.last_words()
        ))?;
    }
    say(&format!("\n{:.0} seconds.", began.elapsed().as_secs_f64()))?;
    Ok(verdict.is_good())
}

struct Story {
    site: Site,
    partition: String,
    per_device: usize,
    stage: Rc<Stage>,
}

/// Where the two backfills stood.
type Standing = BTreeMap<String, u64>;

impl Story {
    async fn tell(&self) -> Result<Verdict, DemoError> {
        say(
            "An upgrade under load. Schema 2 adds to every todo a column, title_key, and to every todo a row\n\
             of a new table, cards. Both are computed from todos, in the background, while everybody works on.",
        )?;
        say("\n1. A server at schema 1, and people at work.")?;
        let old = self.site.start(Release::One).await?;
        say(&format!(
            "   process {} serves schema 1 on {}",
            old.id(),
            old.url
        ))?;
        let mut devices = self.people(&old.url)?;
        for device in &mut devices {
            device.seed().await?;
        }
        say(&format!(
            "   {} todos in {DEVICES} lists; {DEVICES} devices push and pull all the time",
            self.per_device * DEVICES
        ))?;
        let crowd = self.set_to_work(devices);
        self.until("the load began", |tallies| {
            tallies.served(Kind::Push, Phase::Before) >= 100
                && tallies.served(Kind::PullTodos, Phase::Before) >= 20
                && tallies.served(Kind::OldPush, Phase::Before) >= 20
        })
        .await?;

        let new = self.upgrade().await?;
        let (killed_at, epochs) = self.compute_until_killed(new).await?;
        let (new, resumed_at) = self.resume(&epochs).await?;
        self.complete(&new).await?;
        let devices = end(&self.stage, crowd).await?;

        say("\n6. The load ends; a new device fetches everything and compares.")?;
        let verdict = Verdict::reach(
            &self.stage,
            &devices,
            &new.url,
            &self.partition,
            &killed_at,
            &resumed_at,
        )
        .await?;
        old.kill().await?;
        new.kill().await?;
        Ok(verdict)
    }

    fn people(&self, url: &str) -> Result<Vec<Device>, DemoError> {
        let mut devices = Vec::new();
        for n in 0..DEVICES {
            let role = if n == 0 {
                Role::Forgetful
            } else {
                Role::Careful
            };
            devices.push(Device::new(
                &format!("device-{n}"),
                role,
                url,
                &self.partition,
                self.per_device,
            )?);
        }
        devices.push(Device::new(
            "old-writer",
            Role::Old,
            url,
            &self.partition,
            OLD_ROWS,
        )?);
        Ok(devices)
    }

    fn set_to_work(&self, devices: Vec<Device>) -> Vec<JoinHandle<Result<Device, DemoError>>> {
        devices
            .into_iter()
            .map(|device| tokio::task::spawn_local(device.work(Rc::clone(&self.stage))))
            .collect()
    }

    async fn upgrade(&self) -> Result<ServerProcess, DemoError> {
        say("\n2. A server at schema 2 starts beside it, on the same database.")?;
        self.stage.enter(Phase::Migrating);
        let began = Instant::now();
        let new = self.site.start(Release::Two).await?;
        self.stage.enter(Phase::Computing);
        say(&format!(
            "   process {} migrated the database in {} ms (column and table are there, empty) and serves schema 2 on {}",
            new.id(),
            began.elapsed().as_millis(),
            new.url
        ))?;
        let fence = new.required_writer_version(&self.partition).await?;
        say(&format!(
            "   the writer fence of the partition is at {fence}: from this commit on, the database takes no commit of schema 1"
        ))?;
        self.stage.send_to(&new.url);
        self.until("the old writer was refused", |tallies| {
            tallies.count(Kind::OldPush, Phase::Computing, Outcome::Refused) > 0
        })
        .await?;
        say(&format!(
            "   the old writer, still at the old server, is told: {}",
            self.stage.old_refusal().unwrap_or_default()
        ))?;
        say("   the devices upgrade their app and move to the new server")?;
        Ok(new)
    }

    /// Lets the server compute, and kills it.
    async fn compute_until_killed(
        &self,
        new: ServerProcess,
    ) -> Result<(Standing, Standing), DemoError> {
        say("\n3. It computes the old rows; nobody reads a row that is not computed yet.")?;
        self.stage.forget(true);
        let seen = self
            .watch(&new, |views| percent(views) >= KILLED_AT)
            .await?;
        // What is forgotten now has to be found in the log by whoever goes on.
        self.until("a push forgot the computed columns", |tallies| {
            tallies.forgotten >= 3
        })
        .await?;
        self.stage.forget(false);
        let pid = new.id();
        new.kill().await?;
        say(&format!(
            "   kill -9 {pid}: nothing was cleaned up, nothing was said to anybody"
        ))?;
        let of = |read: fn(&CheckpointView) -> u64| -> Standing {
            seen.iter()
                .map(|view| (view.name.clone(), read(view)))
                .collect()
        };
        Ok((of(|view| view.observed_rows), of(|view| view.owner_epoch)))
    }

    async fn resume(&self, epochs: &Standing) -> Result<(ServerProcess, Standing), DemoError> {
        say("\n4. The server starts again.")?;
        let new = self.site.start(Release::Two).await?;
        self.stage.send_to(&new.url);
        let claimed = self
            .poll(&new, |views| {
                views
                    .iter()
                    .all(|view| view.is_done() || Some(&view.owner_epoch) > epochs.get(&view.name))
            })
            .await?;
        for view in &claimed {
            say(&format!(
                "   {} goes on at row {} of {}, under its owner's epoch {}",
                view.name,
                view.observed_rows,
                view.total(),
                view.owner_epoch
            ))?;
        }
        let resumed = claimed
            .into_iter()
            .map(|view| (view.name, view.observed_rows))
            .collect();
        Ok((new, resumed))
    }

    async fn complete(&self, new: &ServerProcess) -> Result<(), DemoError> {
        self.watch(new, |views| views.iter().all(CheckpointView::is_done))
            .await?;
        self.stage.enter(Phase::After);
        say("\n5. Both are activated: column and table are ordinary ones now.")?;
        self.until("pulls of the computed tables were served", |tallies| {
            tallies.served(Kind::Push, Phase::After) >= 100
                && tallies.served(Kind::PullTodos, Phase::After) >= 20
                && tallies.count(Kind::OldPush, Phase::After, Outcome::Refused) >= 10
        })
        .await
    }

    /// Waits until the load has done something.
    async fn until(&self, what: &str, done: impl Fn(&Tallies) -> bool) -> Result<(), DemoError> {
        let waited = tokio::time::timeout(PATIENCE, async {
            while !done(&self.stage.tallies()) {
                self.stage.changed().await;
            }
        })
        .await;
        waited.map_err(|_| DemoError::Stuck(format!("waiting until {what}")))
    }

    /// Asks for the checkpoints until they are as wanted.
    async fn poll(
        &self,
        server: &ServerProcess,
        mut done: impl FnMut(&[CheckpointView]) -> bool,
    ) -> Result<Vec<CheckpointView>, DemoError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let views = server.checkpoints(&self.partition).await?;
            if let Some(failed) = views.iter().find_map(CheckpointView::failure) {
                return Err(DemoError::Stuck(failed));
            }
            if !views.is_empty() && done(&views) {
                return Ok(views);
            }
            if Instant::now() > deadline {
                return Err(DemoError::Stuck("waiting for the backfills".to_owned()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The same, with a line of progress for every tenth of the work.
    async fn watch(
        &self,
        server: &ServerProcess,
        done: impl Fn(&[CheckpointView]) -> bool,
    ) -> Result<Vec<CheckpointView>, DemoError> {
        let mut told = None;
        self.poll(server, |views| {
            let done = done(views);
            let tenths = percent(views) / 10;
            if told != Some(tenths) || done {
                told = Some(tenths);
                let parts: Vec<String> = views.iter().map(CheckpointView::line).collect();
                // With nobody to tell, the checks and the exit code remain.
                let _ = say(&format!("   {}", parts.join("   ")));
            }
            done
        })
        .await
    }
}

/// Rows computed of all, in percent.
fn percent(views: &[CheckpointView]) -> u64 {
    let done: u64 = views.iter().map(CheckpointView::done).sum();
    let total: u64 = views.iter().map(CheckpointView::total).sum();
    (done * 100).checked_div(total).unwrap_or(0)
}

/// Lets the devices finish what they have begun.
async fn end(
    stage: &Stage,
    crowd: Vec<JoinHandle<Result<Device, DemoError>>>,
) -> Result<Vec<Device>, DemoError> {
    stage.end();
    let mut devices = Vec::new();
    for task in crowd {
        let ended = tokio::time::timeout(PATIENCE, task)
            .await
            .map_err(|_| DemoError::Stuck("waiting for the devices".to_owned()))?;
        devices.push(ended.map_err(|error| DemoError::Stuck(error.to_string()))??);
    }
    Ok(devices)
}

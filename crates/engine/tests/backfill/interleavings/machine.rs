//! The players, one atomic step at a time, over the crate's own transitions or a
//! broken version of one.

use tidegate_engine::backfill::checkpoint::{
    Activation, Advance, Checkpoint, CheckpointState, Coverage, Declare, activate, advance, claim,
    coverage, declare, raised_fence, writer_passes,
};
use tidegate_engine::backfill::scan::SCANNING;
use tidegate_engine::{CommitSeq, OwnerEpoch, SchemaVersion};

const OLD: SchemaVersion = SchemaVersion(1);
const NEW: SchemaVersion = SchemaVersion(2);
const ROWS: usize = 2;

/// How the log above a watermark is read.
#[derive(Clone, Copy, PartialEq)]
pub enum Read {
    OneSnapshot,
    WindowThenHorizon,
    HorizonThenWindow,
}

/// The rules under test; the default is what the crate and the design say.
#[derive(Clone, Copy)]
pub struct Rules {
    /// The target is also the source: pages are source changes.
    pub target_is_source: bool,
    pub read: Read,
    pub pruner_waits_for_activation: bool,
    pub writers_wait_for_activation: bool,
    pub advance_checks_owner: bool,
    pub claim_supersedes: bool,
    pub page_and_advance_are_one: bool,
    pub scan_starts_before_it_reads: bool,
    pub watermark_waits_for_the_scan: bool,
    pub activation_checks_coverage: bool,
    pub horizon_counts: bool,
    pub unclaimed_needs_watermark_zero: bool,
    pub fence_rises_at_declaration: bool,
    pub fence_never_falls: bool,
}

pub const SOUND: Rules = Rules {
    target_is_source: false,
    read: Read::OneSnapshot,
    pruner_waits_for_activation: false,
    writers_wait_for_activation: true,
    advance_checks_owner: true,
    claim_supersedes: true,
    page_and_advance_are_one: true,
    scan_starts_before_it_reads: true,
    watermark_waits_for_the_scan: true,
    activation_checks_coverage: true,
    horizon_counts: true,
    unclaimed_needs_watermark_zero: true,
    fence_rises_at_declaration: true,
    fence_never_falls: true,
};

/// Who plays, and how often: all at once is too many states, so each interplay has
/// a cast of its own.
pub struct Cast {
    workers: u8,
    new_writes: u8,
    old_writes: u8,
    prunes: u8,
    crashes: u8,
    lower_fences: u8,
}

const fn cast(workers: u8, new_writes: u8, old_writes: u8, prunes: u8, crashes: u8) -> Cast {
    Cast {
        workers,
        new_writes,
        old_writes,
        prunes,
        crashes,
        lower_fences: old_writes,
    }
}

pub const CASTS: [Cast; 7] = [
    cast(1, 2, 0, 1, 0),
    cast(1, 1, 1, 0, 1),
    cast(1, 1, 0, 1, 1),
    cast(2, 0, 0, 0, 1),
    cast(2, 1, 0, 0, 0),
    cast(2, 0, 1, 1, 0),
    cast(2, 1, 0, 1, 0),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Idle,
    Begin,
    /// About to read row `row`.
    Scan {
        start: u8,
        row: u8,
    },
    /// Read it, about to commit.
    Page {
        start: u8,
        row: u8,
        value: u8,
    },
    /// Broken rule: advanced, the page itself still to be written.
    LatePage {
        start: u8,
        row: u8,
        value: u8,
    },
    ScanDone {
        start: u8,
    },
    CatchUp {
        watermark: u8,
    },
    /// Knows which rows changed, about to read them.
    Window {
        through: u8,
        rows: [bool; ROWS],
    },
    CatchUpPage {
        through: u8,
        rows: [bool; ROWS],
        values: [u8; ROWS],
    },
    Activate {
        watermark: u8,
    },
    /// Read one half of the log's state inside the activation.
    Activating {
        watermark: u8,
        horizon: Option<u8>,
        changed: Option<bool>,
    },
    ScanAgain,
    Stopped,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Worker {
    epoch: OwnerEpoch,
    step: Step,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Commit `n` is entry `n - 1`: the source row it changed, if any.
    log: Vec<Option<u8>>,
    horizon: u8,
    /// What each source row holds: the commit that wrote it.
    source: [u8; ROWS],
    /// What its projection was computed from.
    projected: [Option<u8>; ROWS],
    checkpoint: Option<Checkpoint>,
    fence: Option<SchemaVersion>,
    highest_fence: Option<SchemaVersion>,
    /// The worker whose activation holds the partition.
    locked: Option<u8>,
    workers: [Worker; 2],
    new_writes: u8,
    old_writes: u8,
    prunes: u8,
    crashes: u8,
    lower_fences: u8,
    pub fault: Option<&'static str>,
}

impl State {
    /// Two rows from before the declaration.
    pub fn initial(cast: &Cast) -> Self {
        let worker = |plays| Worker {
            epoch: OwnerEpoch(0),
            step: if plays { Step::Idle } else { Step::Stopped },
        };
        Self {
            log: vec![Some(0), Some(1)],
            horizon: 0,
            source: [1, 2],
            projected: [None; ROWS],
            checkpoint: None,
            fence: None,
            highest_fence: None,
            locked: None,
            workers: [worker(true), worker(cast.workers > 1)],
            new_writes: cast.new_writes,
            old_writes: cast.old_writes,
            prunes: cast.prunes,
            crashes: cast.crashes,
            lower_fences: cast.lower_fences,
            fault: None,
        }
    }

    fn max(&self) -> u8 {
        u8::try_from(self.log.len()).unwrap()
    }

    /// The newest source change that pruning left.
    fn newest(&self) -> Option<u8> {
        (self.horizon + 1..=self.max())
            .rev()
            .find(|seq| self.log[usize::from(*seq) - 1].is_some())
    }

    fn newest_ever(&self) -> u8 {
        (1..=self.max())
            .rev()
            .find(|seq| self.log[usize::from(*seq) - 1].is_some())
            .unwrap_or(0)
    }

    pub fn activated(&self) -> bool {
        self.checkpoint
            .as_ref()
            .is_some_and(|found| found.state == CheckpointState::Activated)
    }

    fn fail(&mut self, fault: &'static str) {
        self.fault.get_or_insert(fault);
    }

    /// A page: the row's projection becomes what was computed, if it differs.
    fn write_page(&mut self, rules: &Rules, row: usize, value: u8) {
        if self.projected[row] != Some(value) {
            self.projected[row] = Some(value);
            let change = rules.target_is_source.then(|| u8::try_from(row).unwrap());
            self.log.push(change);
        }
    }

    fn set_fence(&mut self, rules: &Rules, required: SchemaVersion) {
        self.fence = Some(if rules.fence_never_falls {
            raised_fence(self.fence, required)
        } else {
            required
        });
        self.highest_fence = self.highest_fence.max(self.fence);
    }

    /// What must hold in every state.
    fn check(&mut self) {
        if self.fence < self.highest_fence {
            self.fail("the fence fell");
        }
        let [a, b] = &self.workers;
        let works = |worker: &Worker| !matches!(worker.step, Step::Idle | Step::Stopped);
        if works(a) && works(b) && a.epoch == b.epoch {
            self.fail("two owners share an epoch");
        }
        if self.activated() {
            let watermark = self.checkpoint.as_ref().unwrap().watermark;
            if watermark < CommitSeq(self.newest_ever().into()) {
                self.fail("activated below a source change");
            }
            if (0..ROWS).any(|row| self.projected[row] != Some(self.source[row])) {
                self.fail("activated over a row that is not computed");
            }
        }
    }
}

fn try_advance(
    state: &mut State,
    rules: &Rules,
    worker: usize,
    watermark: u8,
    observed_rows: i64,
) -> bool {
    let mut owner_epoch = state.workers[worker].epoch;
    let current = state.checkpoint.as_ref().unwrap().owner_epoch;
    let is_owner = owner_epoch == current;
    if !rules.advance_checks_owner {
        owner_epoch = current;
    }
    let to = Advance {
        owner_epoch,
        watermark: CommitSeq(watermark.into()),
        observed_rows,
    };
    match advance(state.checkpoint.as_ref(), to, 0) {
        Some(row) => {
            state.checkpoint = Some(row);
            if !is_owner {
                state.fail("a superseded owner advanced");
            }
            true
        }
        None => {
            state.workers[worker].step = Step::Stopped;
            false
        }
    }
}

/// The moves of one worker: one atomic step each.
fn work(state: &State, rules: &Rules, at: usize) -> Option<State> {
    let mut next = state.clone();
    let me = next.workers[at];
    // A commit waits while another worker's activation holds the partition.
    let waits = state.locked.is_some_and(|owner| usize::from(owner) != at);
    let scan_end = |start: u8, row: u8| {
        if usize::from(row) + 1 < ROWS {
            Step::Scan {
                start,
                row: row + 1,
            }
        } else {
            Step::ScanDone { start }
        }
    };
    match me.step {
        Step::Idle => {
            let mut row = claim(state.checkpoint.as_ref(), NEW, 0).ok()?;
            if !rules.claim_supersedes {
                row.owner_epoch = OwnerEpoch(1);
            }
            next.workers[at] = Worker {
                epoch: row.owner_epoch,
                step: if row.watermark > SCANNING {
                    Step::CatchUp {
                        watermark: u8::try_from(row.watermark.0).unwrap(),
                    }
                } else {
                    Step::Begin
                },
            };
            next.checkpoint = Some(row);
        }
        Step::Begin => {
            next.workers[at].step = Step::Scan {
                start: state.max(),
                row: 0,
            };
        }
        Step::Scan { start, row } => {
            next.workers[at].step = Step::Page {
                start,
                row,
                value: state.source[usize::from(row)],
            };
        }
        Step::Page { .. } | Step::CatchUpPage { .. } if waits => return None,
        Step::Page { start, row, value } => {
            let watermark = if rules.watermark_waits_for_the_scan {
                0
            } else {
                start
            };
            if try_advance(&mut next, rules, at, watermark, i64::from(row) + 1) {
                next.workers[at].step = if rules.page_and_advance_are_one {
                    next.write_page(rules, usize::from(row), value);
                    scan_end(start, row)
                } else {
                    Step::LatePage { start, row, value }
                };
            }
        }
        Step::LatePage { start, row, value } => {
            next.write_page(rules, usize::from(row), value);
            next.workers[at].step = scan_end(start, row);
        }
        Step::ScanDone { start } => {
            let watermark = if rules.scan_starts_before_it_reads {
                start
            } else {
                state.max()
            };
            if try_advance(&mut next, rules, at, watermark, 2) {
                next.workers[at].step = Step::CatchUp { watermark };
            }
        }
        Step::CatchUp { watermark } => {
            next.workers[at].step = if state.horizon > watermark && rules.horizon_counts {
                Step::ScanAgain
            } else {
                let mut rows = [false; ROWS];
                for seq in watermark.max(state.horizon)..state.max() {
                    if let Some(row) = state.log[usize::from(seq)] {
                        rows[usize::from(row)] = true;
                    }
                }
                Step::Window {
                    through: state.max(),
                    rows,
                }
            };
        }
        Step::Window { through, rows } => {
            next.workers[at].step = Step::CatchUpPage {
                through,
                rows,
                values: state.source,
            };
        }
        Step::CatchUpPage {
            through,
            rows,
            values,
        } => {
            if try_advance(&mut next, rules, at, through, 2) {
                for row in (0..ROWS).filter(|row| rows[*row]) {
                    next.write_page(rules, row, values[row]);
                }
                next.workers[at].step = Step::Activate { watermark: through };
            }
        }
        Step::ScanAgain => {
            if try_advance(&mut next, rules, at, 0, 0) {
                next.workers[at].step = Step::Begin;
            }
        }
        Step::Activate { .. } if waits => return None,
        Step::Activate { watermark } => match rules.read {
            Read::OneSnapshot if rules.writers_wait_for_activation => {
                let above = judge(rules, state.horizon, state.newest(), watermark);
                finish_activation(&mut next, rules, at, watermark, above);
            }
            Read::OneSnapshot | Read::WindowThenHorizon => {
                next.locked = Some(u8::try_from(at).unwrap());
                next.workers[at].step = Step::Activating {
                    watermark,
                    horizon: (rules.read == Read::OneSnapshot).then_some(state.horizon),
                    changed: Some(state.newest().is_some_and(|newest| newest > watermark)),
                };
            }
            Read::HorizonThenWindow => {
                next.locked = Some(u8::try_from(at).unwrap());
                next.workers[at].step = Step::Activating {
                    watermark,
                    horizon: Some(state.horizon),
                    changed: None,
                };
            }
        },
        Step::Activating {
            watermark,
            horizon,
            changed,
        } => {
            let newest = match changed {
                Some(changed) => changed.then_some(watermark + 1),
                None => state.newest(),
            };
            let above = judge(rules, horizon.unwrap_or(state.horizon), newest, watermark);
            next.locked = None;
            finish_activation(&mut next, rules, at, watermark, above);
        }
        Step::Stopped => return None,
    }
    Some(next)
}

fn judge(rules: &Rules, horizon: u8, newest: Option<u8>, watermark: u8) -> Coverage {
    if !rules.activation_checks_coverage {
        return Coverage::Clean;
    }
    let horizon = if rules.horizon_counts { horizon } else { 0 };
    coverage(
        1,
        CommitSeq(horizon.into()),
        newest.map(|seq| CommitSeq(seq.into())),
        CommitSeq(watermark.into()),
    )
}

fn finish_activation(state: &mut State, rules: &Rules, at: usize, watermark: u8, above: Coverage) {
    if !rules.fence_rises_at_declaration {
        state.set_fence(rules, NEW);
    }
    let epoch = state.workers[at].epoch;
    let mark = CommitSeq(watermark.into());
    let row = state.checkpoint.as_ref();
    state.workers[at].step = match activate(row, state.fence, above, epoch, mark, 0).unwrap() {
        Activation::Activated(row) => {
            state.checkpoint = Some(row);
            Step::Stopped
        }
        Activation::Stale => Step::CatchUp { watermark },
        Activation::Unverifiable => Step::ScanAgain,
    };
}

/// An operator who asks for the activation of a checkpoint that nobody claimed.
fn impatient_operator(state: &State, rules: &Rules, watermark: u8) -> Option<State> {
    let mut row = state.checkpoint.clone()?;
    if row.state != CheckpointState::Declared || state.locked.is_some() {
        return None;
    }
    if !rules.unclaimed_needs_watermark_zero {
        row.state = CheckpointState::Backfilling;
    }
    let above = judge(rules, state.horizon, state.newest(), watermark);
    let mark = CommitSeq(watermark.into());
    match activate(Some(&row), state.fence, above, OwnerEpoch(0), mark, 0) {
        Ok(Activation::Activated(row)) => {
            let mut next = state.clone();
            next.checkpoint = Some(row);
            Some(next)
        }
        _ => None,
    }
}

fn write(state: &State, rules: &Rules, version: SchemaVersion, row: usize) -> Option<State> {
    let blocked = state.locked.is_some() && rules.writers_wait_for_activation;
    if blocked || !writer_passes(state.fence, Some(version)) {
        return None;
    }
    let mut next = state.clone();
    if version == OLD && state.checkpoint.is_some() {
        next.fail("an old writer committed after the declaration");
    }
    next.log.push(Some(u8::try_from(row).unwrap()));
    next.source[row] = next.max();
    if version == OLD {
        next.projected[row] = None;
    }
    Some(next)
}

pub fn successors(state: &State, rules: &Rules) -> Vec<(String, State)> {
    let mut out: Vec<(String, State)> = Vec::new();
    if state.checkpoint.is_none() {
        let mut next = state.clone();
        let wanted = Declare {
            partition: "p".into(),
            name: "b".into(),
            schema_version: NEW,
        };
        next.checkpoint = Some(declare(None, &wanted, 0).unwrap());
        if rules.fence_rises_at_declaration {
            next.set_fence(rules, NEW);
        }
        out.push(("declare".into(), next));
    }
    for at in 0..2 {
        let step = state.workers[at].step;
        if let Some(next) = work(state, rules, at) {
            out.push((format!("worker {at}: {step:?}"), next));
        }
        if state.crashes > 0 && !matches!(step, Step::Idle | Step::Stopped) {
            let mut next = state.clone();
            next.crashes -= 1;
            next.workers[at].step = Step::Idle;
            if next.locked == Some(u8::try_from(at).unwrap()) {
                next.locked = None;
            }
            out.push((format!("worker {at} crashes in {step:?}"), next));
        }
    }
    for watermark in [0, state.max()] {
        if let Some(next) = impatient_operator(state, rules, watermark) {
            out.push((format!("operator activates at {watermark}"), next));
        }
    }
    // Once activated, new writers compute the projection themselves.
    if state.new_writes > 0 && state.checkpoint.is_some() && !state.activated() {
        for row in 0..ROWS {
            if let Some(mut next) = write(state, rules, NEW, row) {
                next.new_writes -= 1;
                out.push((format!("new writer: row {row}"), next));
            }
        }
    }
    if state.old_writes > 0
        && let Some(mut next) = write(state, rules, OLD, 0)
    {
        next.old_writes -= 1;
        out.push(("old writer: row 0".into(), next));
    }
    let held = state.locked.is_some() && rules.pruner_waits_for_activation;
    if state.prunes > 0 && !held {
        let mut next = state.clone();
        next.prunes -= 1;
        next.horizon = state.max();
        out.push((format!("prune through {}", next.horizon), next));
    }
    if state.lower_fences > 0 && state.fence.is_some() {
        let mut next = state.clone();
        next.lower_fences -= 1;
        next.set_fence(rules, OLD);
        out.push(("fence raised to an old version".into(), next));
    }
    for (_, next) in &mut out {
        next.check();
    }
    out
}

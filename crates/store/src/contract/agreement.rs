//! Random operations against a backend and against the engine's model of it: after
//! each the outcomes are the same, and so are all rows.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_engine::backfill::checkpoint::{Activation, Advance, Checkpoint, Declare};
use tidegate_engine::backfill::model::Model;
use tidegate_engine::model::{CommitBatch, PageAdvance};
use tidegate_engine::schema::Schema;
use tidegate_engine::{ClientId, CommitSeq, LogEpoch, OwnerEpoch, PartitionId, SchemaVersion};

use super::Harness;
use super::fixture::*;
use crate::{Activate, CommitError, Store, StoreError};

const RUNNING: SchemaVersion = SchemaVersion(2);
const NAMES: [&str; 2] = ["totals", "titles"];
const SOURCES: [&str; 2] = ["notes", "projects"];

/// What the runs must meet, as the steps tell it.
const OUTCOMES: [&str; 16] = [
    "Ok(Checkpoint",
    "state: Declared",
    "state: Backfilling",
    "state: Activated",
    "CheckpointVersionTaken",
    "CheckpointNotDeclared",
    "CheckpointFenceMissing",
    "Ok(Activated",
    "Ok(Stale",
    "Ok(Unverifiable",
    "FenceRejected",
    "Superseded",
    // A page's commit, a page without one, and the advance alone.
    " })) -> Ok(())",
    " } -> Ok(())",
    " } -> true",
    " } -> false",
];

/// xorshift64*: the same run every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }

    fn small(&mut self, limit: u32) -> i64 {
        i64::try_from(self.below(u64::from(limit))).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    fn tables(&mut self) -> Vec<&'static str> {
        let chosen = self.below(4);
        let at = |bit: usize| (chosen >> bit & 1 == 1).then_some(SOURCES[bit]);
        (0..2).filter_map(at).collect()
    }

    /// The running version most often: a fence above it ends a partition's writes.
    fn version(&mut self) -> SchemaVersion {
        SchemaVersion([1, 1, 2, 2, 2, 2, 2, 3][usize::try_from(self.below(8)).unwrap()])
    }

    fn advance(&mut self, model: &Model, partition: &PartitionId, name: &str) -> Advance {
        let owner = model.checkpoint(partition, name);
        let epoch = owner.map_or(0, |row| row.owner_epoch.0);
        Advance {
            // The owner itself most often, or its predecessor.
            owner_epoch: OwnerEpoch((epoch - self.small(4) / 3).max(0)),
            watermark: CommitSeq(self.small(8)),
            observed_rows: self.small(100),
        }
    }
}

struct Pair {
    store: Arc<dyn Store>,
    schema: Arc<Schema>,
    model: Model,
    partitions: Vec<PartitionId>,
    declared: Arc<BTreeSet<(String, String)>>,
    now_ms: i64,
}

pub async fn operations_agree_with_the_model(harness: &dyn Harness) {
    let schema = compile(&document_v2());
    let store = harness.open().await;
    store
        .ensure_schema(Arc::clone(&schema), &[], 1)
        .await
        .unwrap();
    let mut pair = Pair {
        store,
        schema,
        model: Model::default(),
        partitions: Vec::new(),
        declared: Arc::default(),
        now_ms: 100,
    };
    let mut reached = BTreeSet::new();
    for round in 1..=12_u64 {
        let names = [format!("{round}-p"), format!("{round}-q")];
        pair.enter(&names).await;
        let mut dice = Dice(round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for step in 0..60 {
            pair.now_ms += 1;
            let partition = p(dice.pick(&[&names[0], &names[1]]));
            let done = pair.step(&mut dice, &partition).await;
            reached.extend(
                OUTCOMES
                    .into_iter()
                    .filter(|outcome| done.contains(*outcome)),
            );
            pair.compare(&format!("round {round}, step {step}: {done}"))
                .await;
        }
    }
    assert_eq!(reached, BTreeSet::from(OUTCOMES), "every outcome is met");
}

impl Pair {
    async fn enter(&mut self, names: &[String]) {
        let mut declared = BTreeSet::clone(&self.declared);
        for partition in names {
            self.store
                .read_preamble(&p(partition), &ClientId::from("d"), touch(1, "epoch"))
                .await
                .unwrap();
            let known = |name: &str| (partition.clone(), name.to_owned());
            declared.extend(NAMES.map(known));
            self.partitions.push(p(partition));
        }
        self.declared = Arc::new(declared);
    }

    fn rows(&self) -> Vec<Checkpoint> {
        let of = |partition| self.model.checkpoints(partition).cloned();
        let mut rows: Vec<_> = self.partitions.iter().flat_map(of).collect();
        rows.sort();
        rows
    }

    async fn step(&mut self, dice: &mut Dice, partition: &PartitionId) -> String {
        let name = dice.pick(&NAMES);
        match dice.below(12) {
            0..=2 => self.append(dice.tables(), partition, None).await,
            3 => {
                let to = dice.advance(&self.model, partition, name);
                self.append(dice.tables(), partition, Some((name, to)))
                    .await
            }
            4 => {
                let to = dice.advance(&self.model, partition, name);
                self.advance_in_a_batch(partition, name, to).await
            }
            5 => {
                let to = dice.advance(&self.model, partition, name);
                self.advance(partition, name, to).await
            }
            6 => self.prune(partition, CommitSeq(dice.small(8))).await,
            7 => self.declare(partition, name, dice.version()).await,
            8 => self.claim(partition, name, dice.version()).await,
            9 | 10 => self.activate(dice, partition, name).await,
            _ => {
                let required = SchemaVersion([1, 2, 2, 3][usize::try_from(dice.below(4)).unwrap()]);
                let raised = self.store.raise_fence(partition, required).await.unwrap();
                assert_eq!(raised, self.model.raise_fence(partition, required));
                format!("fence {required:?}")
            }
        }
    }

    fn batch(&self, partition: &PartitionId, commits: &[Vec<Op>]) -> CommitBatch {
        let head = Model::max(&self.model, partition).0;
        let mut batch = batch(&self.schema, partition.as_str(), head, commits);
        batch.declared = Arc::clone(&self.declared);
        batch
    }

    fn page(&self, name: &str, to: Advance) -> PageAdvance {
        PageAdvance {
            name: name.into(),
            to,
            now_ms: self.now_ms,
        }
    }

    async fn append(
        &mut self,
        tables: Vec<&str>,
        partition: &PartitionId,
        page: Option<(&str, Advance)>,
    ) -> String {
        let ops = tables.iter().map(|table| match *table {
            "notes" => {
                let mut values = note("n", "l1", "o1", None);
                values.push(ssp2::Value::Null);
                put_again(NOTES, values)
            }
            _ => put_again(PROJECTS, vec![text("a"), text("w")]),
        });
        let mut batch = self.batch(partition, &[ops.collect()]);
        batch.advance = page.map(|(name, to)| self.page(name, to));
        let told = self.store.commit_batch(Arc::new(batch)).await;
        let mut next = self.model.clone();
        let fenced = next.append(partition, Some(RUNNING), &tables).is_err();
        let superseded =
            page.is_some_and(|(name, to)| !next.advance(partition, name, to, self.now_ms));
        match &told {
            Ok(()) => {
                assert!(!fenced && !superseded);
                self.model = next;
            }
            Err(CommitError::FenceRejected) => assert!(fenced),
            Err(CommitError::Superseded) => assert!(superseded),
            Err(other) => panic!("{other:?}"),
        }
        format!("append {tables:?} {page:?} -> {told:?}")
    }

    async fn advance_in_a_batch(
        &mut self,
        partition: &PartitionId,
        name: &str,
        to: Advance,
    ) -> String {
        let mut batch = self.batch(partition, &[]);
        batch.advance = Some(self.page(name, to));
        let told = self.store.commit_batch(Arc::new(batch)).await;
        let fenced = self
            .model
            .fence(partition)
            .is_some_and(|fence| fence > RUNNING);
        match &told {
            Err(CommitError::FenceRejected) => assert!(fenced),
            told => {
                assert!(!fenced);
                let advanced = self.model.advance(partition, name, to, self.now_ms);
                match told {
                    Ok(()) => assert!(advanced),
                    Err(CommitError::Superseded) => assert!(!advanced),
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        format!("page without commits {name} {to:?} -> {told:?}")
    }

    async fn advance(&mut self, partition: &PartitionId, name: &str, to: Advance) -> String {
        let told = self
            .store
            .advance_checkpoint(partition, name, to, self.now_ms)
            .await
            .unwrap();
        let expected = self.model.advance(partition, name, to, self.now_ms);
        assert_eq!(told, expected);
        format!("advance {name} {to:?} -> {told}")
    }

    async fn prune(&mut self, partition: &PartitionId, through: CommitSeq) -> String {
        let epoch = LogEpoch::from("epoch");
        let told = self.store.prune(partition, &epoch, through).await.unwrap();
        assert_eq!(told.horizon, self.model.prune(partition, through));
        format!("prune {through}")
    }

    async fn declare(
        &mut self,
        partition: &PartitionId,
        name: &str,
        version: SchemaVersion,
    ) -> String {
        let wanted = Declare {
            partition: partition.clone(),
            name: name.into(),
            schema_version: version,
        };
        let told = self.store.declare_checkpoint(&wanted, self.now_ms).await;
        same(&told, self.model.declare(&wanted, self.now_ms));
        format!("declare {wanted:?} -> {told:?}")
    }

    async fn claim(
        &mut self,
        partition: &PartitionId,
        name: &str,
        version: SchemaVersion,
    ) -> String {
        let told = self
            .store
            .claim_checkpoint(partition, name, version, self.now_ms)
            .await;
        let expected = self.model.claim(partition, name, version, self.now_ms);
        same(&told, expected);
        format!("claim {name} {version:?} -> {told:?}")
    }

    async fn activate(&mut self, dice: &mut Dice, partition: &PartitionId, name: &str) -> String {
        let Advance { owner_epoch, .. } = dice.advance(&self.model, partition, name);
        let head = Model::max(&self.model, partition).0;
        let watermark =
            CommitSeq([0, head, dice.small(8)][usize::try_from(dice.below(3)).unwrap()]);
        let sources = dice.tables();
        let request = Activate {
            partition: partition.clone(),
            name: name.into(),
            owner_epoch,
            watermark,
            sources: sources.iter().map(|name| (*name).to_owned()).collect(),
            now_ms: self.now_ms,
        };
        let told: Result<Activation, StoreError> = self.store.activate_checkpoint(&request).await;
        let (epoch, now_ms) = (owner_epoch, self.now_ms);
        let expected = self
            .model
            .activate(partition, name, epoch, watermark, &sources, now_ms);
        same(&told, expected);
        format!("{request:?} -> {told:?}")
    }

    async fn compare(&self, after: &str) {
        let listed = self.store.list_checkpoints(None).await.unwrap();
        assert_eq!(listed, self.rows(), "{after}");
        let mut latest = self.partitions.iter().rev().take(2);
        for partition in latest.by_ref() {
            let store = &self.store;
            let fence = store.read_fence(partition).await.unwrap();
            assert_eq!(fence, self.model.fence(partition), "{after}");
            let (gate, bounds) = store.read_gate(partition).await.unwrap();
            assert_eq!(bounds.max, Model::max(&self.model, partition), "{after}");
            assert_eq!(gate.pending, self.model.pending(RUNNING), "{after}");
            for sources in [&SOURCES[..], &SOURCES[..1], &[]] {
                let newest = store.source_coverage_seq(partition, sources).await.unwrap();
                let expected = self.model.source_coverage_seq(partition, sources);
                assert_eq!(newest, expected, "{after}");
                for seq in [CommitSeq(0), CommitSeq(3), bounds.max] {
                    let told = store.has_source_changes_above(partition, sources, seq);
                    let expected = self.model.has_source_changes_above(partition, sources, seq);
                    assert_eq!(told.await.unwrap(), expected, "{after}, above {seq}");
                }
            }
        }
    }
}

/// Both answer alike; refusals are compared by what callers see of them.
fn same<T: PartialEq + std::fmt::Debug>(
    told: &Result<T, StoreError>,
    expected: Result<T, tidegate_engine::backfill::checkpoint::CheckpointError>,
) {
    match (told, expected.map_err(StoreError::from)) {
        (Ok(told), Ok(expected)) => assert_eq!(*told, expected),
        (Err(told), Err(expected)) => assert_eq!(told.to_string(), expected.to_string()),
        (told, expected) => panic!("{told:?}, expected {expected:?}"),
    }
}

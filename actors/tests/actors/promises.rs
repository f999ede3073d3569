//! The promises that hold whatever happens, under seeded random faults and racing clients.

use std::collections::HashMap;

use ssp2::PushStatus;
use tidegate_store::{CommitError, StoreError};

use crate::store::{Gate, OnCommit, OnLock, OnRead, newer_schema};
use crate::world::*;

/// A small generator; the same seed tells the same story.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn script(world: &World, dice: &mut Dice) {
    for _ in 0..60 {
        let row = format!("r{}", dice.roll(3));
        world.store.next_commit(match dice.roll(12) {
            0 => OnCommit::WriteThenUnknown,
            1 => OnCommit::LoseThenUnknown,
            2 => OnCommit::Panic { written: true },
            3 => OnCommit::Panic { written: false },
            4 => OnCommit::Refuse(newer_schema()),
            5 => OnCommit::Refuse(CommitError::Store(StoreError::Unavailable(
                "scripted".into(),
            ))),
            6 | 7 => OnCommit::Touch(key(&row)),
            8 => {
                let gate = Gate::new();
                gate.open();
                OnCommit::Block(gate)
            }
            _ => OnCommit::Pass,
        });
        world.store.next_read(match dice.roll(8) {
            0 => OnRead::Unavailable,
            _ => OnRead::Pass,
        });
        world.store.next_lock(match dice.roll(8) {
            0 => OnLock::Unavailable,
            1 | 2 => OnLock::Touch(key(&row)),
            _ => OnLock::Pass,
        });
    }
}

/// Clients push and repeat until they are answered. Then: what was acknowledged is in the
/// log, at that position, once; every applied write raised its row's version once.
/// Tells how many batches took the lock, and how many there were.
async fn story(seed: u64) -> (u64, u64) {
    let settings = tidegate_actors::Settings {
        // Short enough that the partition changes between both ways again and again.
        quiet_batches: 2,
        ..patient()
    };
    let world = std::rc::Rc::new(world_with(settings, Default::default()));
    if seed.is_multiple_of(4) {
        world.store.lock_nothing();
    }
    let mut dice = Dice(seed);
    world.store.violate("bad");
    script(&world, &mut dice);
    let local = tokio::task::LocalSet::new();
    let mut clients = Vec::new();
    for client in 0..6 {
        let world = std::rc::Rc::clone(&world);
        let mut dice = Dice(seed * 31 + client);
        clients.push(local.spawn_local(async move {
            let name = format!("c{client}");
            let mut told = Vec::new();
            for n in 0..8 {
                let id = format!("{name}-{n}");
                let row = format!("r{}", dice.roll(3));
                let mut operations = vec![world.upsert(&row, &id, None)];
                if dice.roll(6) == 0 {
                    operations.push(world.upsert("bad", "t", None));
                }
                let commits = vec![commit(&id, operations)];
                let decision = loop {
                    let push = request(&name, commits.clone());
                    match world.handle().push(push).await {
                        Ok(mut decisions) => break decisions.remove(0),
                        Err(error) => assert!(error.error.code.retryable(), "{error}"),
                    }
                };
                let seq = match status(&decision) {
                    PushStatus::Applied(seq) | PushStatus::Cached(seq) => Some(seq),
                    PushStatus::Rejected => None,
                };
                told.push((id, row, seq));
            }
            told
        }));
    }
    let mut told = Vec::new();
    local
        .run_until(async {
            for client in clients {
                told.extend(client.await.unwrap());
            }
        })
        .await;

    let (log, versions, touches) = world.store.with(&world.partition, |log| {
        let commits: Vec<(String, i64)> = log
            .commits
            .iter()
            .map(|commit| (commit.client_commit_id.to_string(), commit.seq.0))
            .collect();
        let versions: HashMap<_, _> = log
            .rows
            .iter()
            .map(|(key, row)| (key.clone(), row.server_version))
            .collect();
        (commits, versions, log.touches.clone())
    });
    let by_id: HashMap<_, _> = log.iter().cloned().collect();
    assert_eq!(by_id.len(), log.len(), "seed {seed}: no commit twice");
    assert!(
        log.is_sorted_by_key(|(_, seq)| *seq),
        "seed {seed}: one order"
    );
    for client in 0..6 {
        let prefix = format!("c{client}-");
        let own = log.iter().filter(|(id, _)| id.starts_with(&prefix));
        assert!(
            own.is_sorted_by_key(|(id, _)| id.clone()),
            "seed {seed}: a client's own order"
        );
    }
    let mut applied: HashMap<String, i64> = HashMap::new();
    for (id, row, seq) in &told {
        assert_eq!(by_id.get(id), seq.as_ref(), "seed {seed}: told as stored");
        *applied.entry(row.clone()).or_default() += i64::from(seq.is_some());
    }
    for (row, applied) in applied {
        let touched = touches.get(&key(&row)).copied().unwrap_or(0);
        let version = versions.get(&key(&row)).copied().unwrap_or(0);
        assert_eq!(version, applied + touched, "seed {seed}: row {row}");
    }
    assert!(
        !world.store.is_held(&world.partition),
        "seed {seed}: a lock is left"
    );
    let statistics = world.directory.statistics();
    assert_eq!(statistics.queued_operations, 0);
    (statistics.pessimistic_batches, statistics.batches)
}

#[actix::test]
async fn acknowledged_is_durable_once_and_in_order_under_random_faults() {
    let (mut locked, mut all) = (0, 0);
    for seed in 1..=40 {
        let (pessimistic, batches) = story(seed).await;
        locked += pessimistic;
        all += batches;
    }
    assert!(locked > 0 && locked < all, "both ways are taken");
}

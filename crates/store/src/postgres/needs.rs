//! What batches need, read for several partitions at once: one round trip for all
//! that wait at the same time.

use std::sync::Arc;
use std::time::Duration;

use bb8::Pool;
use tidegate_engine::PartitionId;
use tidegate_engine::model::{Fetched, Needs};
use tokio::sync::oneshot;

use super::connection::Manager;
use super::driver::Driver;
use super::plan::Plan;
use super::read;
use super::turns::{Turns, patiently};
use super::writer::lost;
use crate::error::StoreError;

/// Reads under way: a slow one does not hold up the next.
const READS: usize = 2;
/// Rows and results that are read together, at most.
const SHARED_KEYS: usize = 4_000;

/// A read that takes longer no longer holds up the next one.
const PATIENCE: Duration = Duration::from_millis(500);

struct Waiting {
    plan: Arc<Plan>,
    partition: PartitionId,
    needs: Needs,
    reply: oneshot::Sender<Result<Fetched, StoreError>>,
}

impl Waiting {
    /// Children may be many, or take a walk through the partition.
    fn stands_alone(&self) -> bool {
        !self.needs.children.is_empty() || self.keys() > SHARED_KEYS
    }

    fn keys(&self) -> usize {
        self.needs.rows.len() + self.needs.results.len()
    }
}

/// The batches whose needs are not being read yet.
#[derive(Clone)]
pub(super) struct NeedsReader(Arc<Turns<Waiting>>);

impl NeedsReader {
    pub(super) fn new() -> Self {
        Self(Turns::new(READS))
    }

    pub(super) async fn read(
        &self,
        driver: &Driver,
        pool: Pool<Manager>,
        plan: Arc<Plan>,
        partition: &PartitionId,
        needs: &Needs,
    ) -> Result<Fetched, StoreError> {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            plan,
            partition: partition.clone(),
            needs: needs.clone(),
            reply,
        };
        if waiting.stands_alone() {
            driver.spawn(async move { together(&pool, vec![waiting]).await });
        } else if let Some(mut turn) = self.0.ask(waiting) {
            driver.spawn(async move {
                while let Some(waiting) = turn.next() {
                    let pool = pool.clone();
                    patiently(PATIENCE, async move { serve(&pool, waiting).await }).await;
                }
            });
        }
        answer.await.map_err(|_| lost())?
    }
}

async fn serve(pool: &Pool<Manager>, mut waiting: Vec<Waiting>) {
    while !waiting.is_empty() {
        let (mut group, mut others): (Vec<Waiting>, Vec<Waiting>) = (Vec::new(), Vec::new());
        let mut keys = 0;
        for one in waiting {
            let agrees = group
                .first()
                .is_none_or(|first| Arc::ptr_eq(&first.plan, &one.plan));
            if agrees && (group.is_empty() || keys + one.keys() <= SHARED_KEYS) {
                keys += one.keys();
                group.push(one);
            } else {
                others.push(one);
            }
        }
        together(pool, group).await;
        waiting = others;
    }
}

async fn together(pool: &Pool<Manager>, group: Vec<Waiting>) {
    let alone = group.len() == 1;
    let mut read = read_group(pool, &group).await.map(Vec::into_iter);
    for one in group {
        let answer = match &mut read {
            Ok(answers) => answers.next().ok_or_else(lost),
            Err(_) if !alone => {
                // A failure of the shared read is nobody's own: each reads for itself.
                let own = read_group(pool, std::slice::from_ref(&one)).await;
                own.and_then(|all| all.into_iter().next().ok_or_else(lost))
            }
            Err(error) => Err(std::mem::replace(error, lost())),
        };
        // A caller that stopped waiting is not told.
        let _ = one.reply.send(answer);
    }
}

async fn read_group(pool: &Pool<Manager>, group: &[Waiting]) -> Result<Vec<Fetched>, StoreError> {
    let Some(first) = group.first() else {
        return Ok(Vec::new());
    };
    let asked: Vec<read::Asked<'_>> = group
        .iter()
        .map(|one| (one.partition.as_str(), &one.needs))
        .collect();
    let mut lease = super::take(pool).await?;
    read::needs(&mut lease, &first.plan, &asked).await
}

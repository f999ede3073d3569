//! Preambles and gate tokens for many requests at once. Requests that wait at the
//! same time share one view: each partition's token and bounds are read once for
//! all of them. A view begins only after the last request that it answers has
//! asked, so every answer is as fresh as a read of its own.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;
use tidegate_engine::model::Needs;
use tidegate_engine::{ClientId, PartitionId};
use tokio::sync::oneshot;

use super::plan::Plan;
use super::read;
use super::readers::{Readers, in_one_view, read_lost};
use crate::error::StoreError;
use crate::preamble::{AHEAD_KEYS, Found, keys};

struct Waiting {
    partition: PartitionId,
    client: Option<ClientId>,
    ahead: Needs,
    plan: Arc<Plan>,
    reply: oneshot::Sender<Result<Found, StoreError>>,
}

/// The requests that no reader has taken yet.
#[derive(Clone, Default)]
pub(super) struct Preambles(Arc<Mutex<Vec<Waiting>>>);

impl Preambles {
    /// Reads a preamble; without `client` the gate token and the bounds alone.
    pub(super) async fn read(
        &self,
        readers: &Readers,
        plan: Arc<Plan>,
        partition: &PartitionId,
        client: Option<&ClientId>,
        ahead: Needs,
    ) -> Result<Found, StoreError> {
        let (reply, answer) = oneshot::channel();
        let first = {
            let mut waiting = self.0.lock();
            waiting.push(Waiting {
                partition: partition.clone(),
                client: client.cloned(),
                ahead,
                plan,
                reply,
            });
            waiting.len() == 1
        };
        if first {
            let preambles = self.clone();
            if !readers.queue(move |connection| preambles.serve(connection)) {
                self.0.lock().clear();
                return Err(StoreError::Closed);
            }
        }
        answer.await.map_err(|_| read_lost())?
    }

    fn serve(&self, connection: &Connection) {
        let mut waiting = std::mem::take(&mut *self.0.lock());
        waiting.retain(|request| !request.reply.is_closed());
        waiting.sort_by(|a, b| a.partition.cmp(&b.partition));
        let mut answers = Vec::with_capacity(waiting.len());
        let mut keys_left = AHEAD_KEYS;
        let view = in_one_view(connection, |connection| {
            for group in
                waiting.chunk_by(|a, b| a.partition == b.partition && Arc::ptr_eq(&a.plan, &b.plan))
            {
                read_group(connection, group, &mut keys_left, &mut answers)?;
            }
            Ok(())
        });
        if view.is_ok() {
            for (request, answer) in waiting.into_iter().zip(answers) {
                let _ = request.reply.send(Ok(answer));
            }
            return;
        }
        // A failure of the shared view is nobody's own: each request reads for itself.
        for request in waiting {
            let answer = in_one_view(connection, |connection| {
                let client = request.client.as_ref().map(ClientId::as_str);
                read::preamble(
                    connection,
                    &request.plan,
                    request.partition.as_str(),
                    client,
                )
            });
            let _ = request.reply.send(answer);
        }
    }
}

/// One answer per request of a partition, in order.
fn read_group(
    connection: &Connection,
    group: &[Waiting],
    keys_left: &mut usize,
    answers: &mut Vec<Found>,
) -> Result<(), StoreError> {
    let mut shared: Option<Found> = None;
    for request in group {
        let partition = request.partition.as_str();
        let client = request.client.as_ref().map(ClientId::as_str);
        let mut found = match &shared {
            None => read::preamble(connection, &request.plan, partition, client)?,
            Some(shared) => Found {
                client: match client {
                    Some(client) => read::client(connection, partition, client)?,
                    None => None,
                },
                ..shared.clone()
            },
        };
        if shared.is_none() {
            shared = Some(found.clone());
        }
        let keys = keys(&request.ahead);
        if keys > 0 && keys <= *keys_left {
            *keys_left -= keys;
            let needs = &request.ahead;
            found.ahead = Some(read::needs(connection, &request.plan, partition, needs)?);
        }
        answers.push(found);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::fixture::{compile, document};
    use crate::sqlite::{SqliteOptions, SqliteStore};
    use crate::{Store, Touch};
    use tidegate_engine::ActorId;
    use tidegate_engine::model::ClientRecord;

    fn touch(epoch: &str) -> Touch {
        Touch {
            now_ms: 1,
            new_epoch: {
                let epoch = tidegate_engine::LogEpoch::from(epoch);
                Arc::new(move || Ok(epoch.clone()))
            },
            refresh_after_ms: 1_000,
        }
    }

    #[tokio::test]
    async fn waiting_requests_share_a_view_and_get_their_own_answers() {
        let options = SqliteOptions {
            reader_threads: 1,
            ..SqliteOptions::memory()
        };
        let store = SqliteStore::open(options).unwrap();
        store
            .ensure_schema(compile(&document()), &[], 1)
            .await
            .unwrap();
        for partition in ["p", "q"] {
            let (partition, device) = (PartitionId::from(partition), ClientId::from("device"));
            store
                .read_preamble(&partition, &device, touch(partition.as_str()))
                .await
                .unwrap();
            let record = ClientRecord {
                client_id: device,
                actor_id: ActorId::from(format!("owner-in-{partition}")),
                wire_version: ssp2::WireVersion::V3,
                cursor: 7,
                subscriptions: Vec::new(),
                updated_at_ms: 1,
            };
            store
                .record_clients(&partition, vec![record])
                .await
                .unwrap();
        }

        // The one reader is busy while six requests arrive.
        let (release, wait) = std::sync::mpsc::channel::<()>();
        assert!(store.readers.queue(move |_| {
            let _ = wait.recv();
        }));
        let asked = [
            ("p", "device"),
            ("q", "device"),
            ("p", "stranger"),
            ("p", "device"),
            ("q", "stranger"),
            ("p", "device"),
        ];
        let reads = asked.map(|(partition, client)| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let client = ClientId::from(client);
                store
                    .read_preamble(&PartitionId::from(partition), &client, touch("unused"))
                    .await
            })
        });
        while store.preambles.0.lock().len() < asked.len() {
            tokio::task::yield_now().await;
        }
        release.send(()).unwrap();
        for ((partition, client), read) in asked.into_iter().zip(reads) {
            let preamble = read.await.unwrap().unwrap();
            assert_eq!(preamble.registry.log_epoch.as_str(), partition);
            let owner = preamble.client.map(|record| record.actor_id.to_string());
            let expected = (client == "device").then(|| format!("owner-in-{partition}"));
            assert_eq!(owner, expected, "{partition} {client}");
        }
        assert!(store.preambles.0.lock().is_empty());
    }
}

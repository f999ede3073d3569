//! The client records of a batch: bindings that its pushes make, and records that were
//! waiting to be written.

use std::collections::HashMap;

use tidegate_engine::model::ClientRecord;
use tidegate_engine::{ActorId, ClientId};

use super::GroupCommit;
use crate::error::PushError;

impl GroupCommit {
    /// §1.5: a client id belongs to its first actor. Two requests of different actors may
    /// both have found it unbound; the one that is queued first gets it.
    pub(super) fn refuse_foreign_bindings(&mut self) {
        let bindings = self.partition.bindings.lock();
        let mut in_batch: HashMap<&ClientId, &ActorId> = HashMap::new();
        for (push, request) in self.requests.iter().enumerate() {
            if request.bind.is_none() {
                continue;
            }
            let owner = bindings
                .get(&request.client_id)
                .or_else(|| in_batch.get(&request.client_id).copied());
            match owner {
                Some(owner) if *owner != request.actor_id => {
                    self.refused[push] = Some(PushError::bound_elsewhere());
                }
                _ => {
                    in_batch.insert(&request.client_id, &request.actor_id);
                }
            }
        }
        for entry in &mut self.entries {
            if let Some(error) = &self.refused[entry.place.push] {
                entry.verdict = Some(Err(error.clone()));
            }
        }
    }

    /// The client records that go into the transaction of these commits, one per client:
    /// their bindings, and all write-behind records.
    pub(super) fn clients(&self, entries: &[usize]) -> Vec<ClientRecord> {
        let pushes = entries.iter().map(|at| self.entries[*at].place.push);
        self.records_with(pushes)
    }

    fn records_with(&self, pushes: impl Iterator<Item = usize>) -> Vec<ClientRecord> {
        let mut clients: HashMap<&ClientId, &ClientRecord> = HashMap::new();
        for push in pushes.filter(|push| !self.bound[*push]) {
            if let Some(record) = &self.requests[push].bind {
                clients.insert(&record.client_id, record);
            }
        }
        if !self.records_durable {
            for record in &self.records {
                let bound = clients.get(&record.client_id);
                if bound.is_none_or(|bound| bound.actor_id == record.actor_id) {
                    clients.insert(&record.client_id, record);
                }
            }
        }
        clients.into_values().cloned().collect()
    }

    pub(super) fn clients_written(&mut self, pushes: impl IntoIterator<Item = usize>) {
        self.records_durable = true;
        let mut bindings = self.partition.bindings.lock();
        for push in pushes {
            if !std::mem::replace(&mut self.bound[push], true) {
                let request = &self.requests[push];
                bindings.made(request.client_id.clone(), request.actor_id.clone());
            }
        }
    }

    /// Writes the client records that no transaction of commits took along.
    pub(super) async fn write_clients_alone(&mut self) -> Result<(), PushError> {
        let unbound: Vec<usize> = (0..self.requests.len())
            .filter(|push| !self.bound[*push] && self.refused[*push].is_none())
            .collect();
        let clients = self.records_with(unbound.iter().copied());
        if clients.is_empty() {
            return Ok(());
        }
        let (store, id) = (&self.partition.service.store, &self.partition.id);
        match store.record_clients(id, clients).await {
            Ok(()) => {
                self.clients_written(unbound);
                Ok(())
            }
            Err(error) => Err(self.standing.refused(error)),
        }
    }
}

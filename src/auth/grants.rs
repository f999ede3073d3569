//! Scopes from the grants in the database (`auth.scopes = "grants"`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use ssp2::ScopeLists;
use tidegate_engine::hooks::Allowed;
use tidegate_engine::schema::Schema;
use tidegate_engine::{ActorId, PartitionId};
use tidegate_store::Store;

use super::{Identity, Resolution, ResolveScopes};

/// A change made by another process is seen that much later at most. The process
/// that made it sees it at once.
pub const STALENESS: Duration = Duration::from_secs(1);

/// Grants kept in memory at most.
const CAPACITY: usize = 65_536;

type Key = (PartitionId, ActorId);

struct Kept {
    allowed: Arc<ScopeLists>,
    read_at: Instant,
}

/// Reads grants, with a short memory.
pub struct Grants {
    store: Arc<dyn Store>,
    schema: Arc<Schema>,
    kept: Mutex<HashMap<Key, Kept>>,
    /// Moves with every change made here: what was read before one is not kept.
    changes: AtomicU64,
}

impl Grants {
    /// Of that database.
    pub fn new(store: Arc<dyn Store>, schema: Arc<Schema>) -> Self {
        Self {
            store,
            schema,
            kept: Mutex::default(),
            changes: AtomicU64::new(0),
        }
    }

    /// Forgets a grant that changed.
    pub fn forget(&self, partition: &PartitionId, actor: &ActorId) {
        let mut kept = self.kept.lock();
        self.changes.fetch_add(1, Ordering::SeqCst);
        kept.remove(&(partition.clone(), actor.clone()));
    }

    fn recall(&self, key: &Key) -> Option<Arc<ScopeLists>> {
        let kept = self.kept.lock();
        kept.get(key)
            .filter(|kept| kept.read_at.elapsed() < STALENESS)
            .map(|kept| Arc::clone(&kept.allowed))
    }

    fn keep(&self, key: Key, allowed: &Arc<ScopeLists>, read_at: Instant, changes: u64) {
        let mut kept = self.kept.lock();
        if self.changes.load(Ordering::SeqCst) != changes {
            return;
        }
        if kept.len() >= CAPACITY {
            kept.retain(|_, kept| kept.read_at.elapsed() < STALENESS);
            if kept.len() >= CAPACITY {
                kept.clear();
            }
        }
        let allowed = Arc::clone(allowed);
        kept.insert(key, Kept { allowed, read_at });
    }

    /// A grant outlives the schema it was made under: variables that no table
    /// declares any more say nothing, and would fail the request (§3.2 rule 3).
    fn of_this_schema(&self, scopes: &ScopeLists) -> ScopeLists {
        let declared = |variable: &str| {
            let mut tables = self.schema.tables().iter();
            tables.any(|table| table.declares_scope(variable))
        };
        scopes
            .iter()
            .filter(|(variable, _)| declared(variable))
            .map(|(variable, values)| (variable.to_owned(), values.clone()))
            .collect()
    }
}

#[async_trait]
impl ResolveScopes for Grants {
    async fn resolve(&self, identity: &Identity) -> Resolution {
        let key = (identity.partition.clone(), identity.actor.clone());
        if let Some(allowed) = self.recall(&key) {
            return Resolution::Known(Allowed::Resolved(allowed));
        }
        let (read_at, changes) = (Instant::now(), self.changes.load(Ordering::SeqCst));
        match self.store.read_grant(&key.0, &key.1).await {
            Ok(grant) => {
                // Without a grant an actor holds nothing, and that is known, not an outage.
                let scopes = grant.map(|grant| self.of_this_schema(&grant.scopes));
                let allowed = Arc::new(scopes.unwrap_or_default());
                self.keep(key, &allowed, read_at, changes);
                Resolution::Known(Allowed::Resolved(allowed))
            }
            // Whatever the database's trouble is, it is not a decision to revoke.
            Err(error) => {
                let error = tidegate_store::error_chain(&error);
                tracing::warn!(error, "grants cannot be read");
                Resolution::Outage
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_store::operating::Grant;
    use tidegate_store::sqlite::{SqliteOptions, SqliteStore};

    const SCHEMA: &str = r#"{"schemaVersion": 1, "tables": [{"name": "notes", "primaryKey": "id",
        "columns": [{"name": "id", "type": "string"}], "scopes": ["id:{id}"]}]}"#;

    async fn world() -> (Arc<SqliteStore>, Grants) {
        let schema = Arc::new(Schema::load(SCHEMA).unwrap());
        let store = SqliteStore::open(SqliteOptions::memory()).unwrap();
        store
            .ensure_schema(Arc::clone(&schema), &[], 1)
            .await
            .unwrap();
        let grants = Grants::new(Arc::clone(&store) as Arc<dyn Store>, schema);
        (store, grants)
    }

    fn identity() -> Identity {
        Identity {
            partition: "p".into(),
            actor: "ada".into(),
        }
    }

    async fn put(store: &dyn Store, scopes: &[(&str, &str)]) {
        let scopes = scopes
            .iter()
            .map(|&(variable, value)| (variable.to_owned(), vec![value.to_owned()]))
            .collect();
        let grant = Grant {
            actor: "ada".into(),
            scopes,
            updated_at_ms: 1,
        };
        store.put_grant(&"p".into(), &grant).await.unwrap();
    }

    async fn value(grants: &Grants) -> Option<String> {
        match grants.resolve(&identity()).await {
            Resolution::Known(Allowed::Resolved(allowed)) => {
                assert!(allowed.len() <= 1);
                allowed.get("id").map(|values| values.join(","))
            }
            other => panic!("{other:?}"),
        }
    }

    #[actix_web::test]
    async fn without_a_grant_an_actor_holds_nothing() {
        let (_store, grants) = world().await;
        assert_eq!(value(&grants).await, None);
    }

    #[actix_web::test]
    async fn a_grant_is_remembered_for_a_moment_and_forgotten_on_demand() {
        let (store, grants) = world().await;
        put(&*store, &[("id", "1")]).await;
        assert_eq!(value(&grants).await.as_deref(), Some("1"));
        put(&*store, &[("id", "2")]).await;
        // As for a change made by another process.
        assert_eq!(value(&grants).await.as_deref(), Some("1"));
        grants.forget(&"p".into(), &"ada".into());
        assert_eq!(value(&grants).await.as_deref(), Some("2"));
    }

    #[actix_web::test]
    async fn what_was_read_before_a_change_is_not_remembered() {
        let (_store, grants) = world().await;
        let key: Key = ("p".into(), "ada".into());
        let before = grants.changes.load(Ordering::SeqCst);
        grants.forget(&key.0, &key.1);
        grants.keep(key.clone(), &Arc::default(), Instant::now(), before);
        assert!(grants.recall(&key).is_none());
    }

    #[actix_web::test]
    async fn what_is_too_old_is_read_again() {
        let (_store, grants) = world().await;
        let key: Key = ("p".into(), "ada".into());
        let long_ago = Instant::now().checked_sub(STALENESS).unwrap();
        let changes = grants.changes.load(Ordering::SeqCst);
        grants.keep(key.clone(), &Arc::default(), long_ago, changes);
        assert!(grants.recall(&key).is_none());
    }

    #[actix_web::test]
    async fn a_variable_that_no_table_declares_any_more_says_nothing() {
        let (store, grants) = world().await;
        put(&*store, &[("id", "1"), ("gone", "1")]).await;
        assert_eq!(value(&grants).await.as_deref(), Some("1"));
    }

    #[actix_web::test]
    async fn a_database_that_is_away_is_an_outage_and_no_revocation() {
        let (store, grants) = world().await;
        store.close().await;
        assert_eq!(grants.resolve(&identity()).await, Resolution::Outage);
    }
}

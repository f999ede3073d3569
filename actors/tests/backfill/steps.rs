//! What happens at a step of the work: the process dies there, or something else comes in
//! between.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_actors::Steps;
use tokio::sync::watch;

type Action = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Steps that are counted, and at some of which something happens, once.
pub struct Script {
    reached: Mutex<Vec<&'static str>>,
    actions: Mutex<Vec<(&'static str, Action)>>,
    death: Option<(&'static str, usize)>,
    dead: watch::Sender<bool>,
}

impl Script {
    pub fn new() -> Arc<Self> {
        Self::dying(None)
    }

    /// Stands still for ever when a step is reached for that time, from 1.
    pub fn dying(death: Option<(&'static str, usize)>) -> Arc<Self> {
        Arc::new(Self {
            reached: Mutex::default(),
            actions: Mutex::default(),
            death,
            dead: watch::Sender::new(false),
        })
    }

    /// Does something when a step is reached for the first time.
    pub fn at<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        step: &'static str,
        action: impl FnOnce() -> F + Send + 'static,
    ) {
        let action: Action = Box::new(move || Box::pin(action()));
        self.actions.lock().push((step, action));
    }

    /// How often a step was reached.
    pub fn count(&self, step: &str) -> usize {
        self.reached
            .lock()
            .iter()
            .filter(|reached| **reached == step)
            .count()
    }

    /// Ready once the process stands where it dies.
    pub async fn died(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }
}

#[async_trait]
impl Steps for Script {
    async fn reached(&self, step: &'static str) {
        self.reached.lock().push(step);
        if *self.dead.borrow() {
            pending::<()>().await;
        }
        let action = {
            let mut actions = self.actions.lock();
            let found = actions.iter().position(|(at, _)| *at == step);
            found.map(|found| actions.remove(found).1)
        };
        if let Some(action) = action {
            action().await;
        }
        if let Some((at, time)) = self.death
            && at == step
            && self.count(step) >= time
        {
            self.dead.send_replace(true);
            pending::<()>().await;
        }
    }
}

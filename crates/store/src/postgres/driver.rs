//! The threads that drive connections, apart from those of the callers.
//!
//! A statement then costs no hand-over between threads but the two of its caller,
//! and a connection does not end with whichever thread first asked for it.

use std::future::Future;
use std::num::NonZero;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Processors that one driving thread is enough for: it only moves bytes.
const PROCESSORS_PER_THREAD: usize = 4;
const MOST_THREADS: usize = 4;

/// Owns the threads; they end with it, and what they still do is dropped.
pub(super) struct Driver {
    handle: Handle,
    /// Taken by the drop.
    runtime: Option<Runtime>,
}

impl Driver {
    pub(super) fn start() -> std::io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads((processors / PROCESSORS_PER_THREAD).clamp(1, MOST_THREADS))
            .thread_name("postgres")
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// A way to the threads that does not keep them.
    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs a task to its end, whether or not anybody waits for it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Waiting for the threads is not allowed where a runtime's own thread drops it.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

//! Steps at which a test of crashes may end this process, or hold it.
//!
//! The environment variable `FAILPOINT_OF_TIDEGATE` (not `TIDEGATE_…`: those are configuration) names one: `STEP` or `STEP:COUNT`, and the
//! process aborts when it comes to that step for the COUNTth time, as if it were killed
//! there. With `@FOLDER` behind it the step is held instead, once: a file `reached` appears
//! in the folder, and the step goes on when there is a file `go`.
//!
//! Only a build with debug assertions has any of this. In a release build every function
//! here is empty, and the variable's name is not in the program.

#[cfg(debug_assertions)]
use armed::reached;

/// Ends the process here, or blocks the thread, when it was told to.
#[cfg(debug_assertions)]
pub fn failpoint(step: &'static str) {
    if let Some(hold) = reached(step) {
        while !hold.is_over() {
            std::thread::sleep(armed::LOOK);
        }
    }
}

/// Ends the process here, or waits without blocking the thread, when it was told to.
#[cfg(debug_assertions)]
pub async fn pausing_failpoint(step: &'static str) {
    if let Some(hold) = reached(step) {
        while !hold.is_over() {
            tokio::time::sleep(armed::LOOK).await;
        }
    }
}

/// Does nothing in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn failpoint(_step: &'static str) {}

/// Does nothing in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub async fn pausing_failpoint(_step: &'static str) {}

#[cfg(debug_assertions)]
mod armed {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Between two looks for the end of a hold.
    pub(super) const LOOK: Duration = Duration::from_millis(5);

    struct Armed {
        step: String,
        left: AtomicU64,
        folder: Option<PathBuf>,
    }

    /// A step that is held.
    pub(super) struct Hold(PathBuf);

    impl Hold {
        pub(super) fn is_over(&self) -> bool {
            self.0.exists()
        }
    }

    fn armed() -> Option<&'static Armed> {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        ARMED
            .get_or_init(|| parse(&std::env::var("FAILPOINT_OF_TIDEGATE").ok()?))
            .as_ref()
    }

    fn parse(text: &str) -> Option<Armed> {
        let (step, folder) = match text.split_once('@') {
            Some((step, folder)) => (step, Some(PathBuf::from(folder))),
            None => (text, None),
        };
        let (step, count) = match step.split_once(':') {
            Some((step, count)) => (step, count.parse().ok()?),
            None => (step, 1),
        };
        Some(Armed {
            step: step.to_owned(),
            left: AtomicU64::new(count),
            folder,
        })
    }

    /// Counts a step, and ends the process if it is the one; else how it is held.
    pub(super) fn reached(step: &'static str) -> Option<Hold> {
        let armed = armed().filter(|armed| armed.step == step)?;
        if armed.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return None;
        }
        let Some(folder) = &armed.folder else {
            std::process::abort();
        };
        // Whoever waits for the file fails if it does not appear.
        let _ = std::fs::write(folder.join("reached"), step);
        Some(Hold(folder.join("go")))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_step_is_named_with_its_count_and_its_folder() {
            let plain = parse("migrate.page").unwrap();
            assert_eq!(plain.step, "migrate.page");
            assert_eq!(plain.left.into_inner(), 1);
            assert_eq!(plain.folder, None);
            let held = parse("migrate.page:3@/tmp/held").unwrap();
            assert_eq!(held.step, "migrate.page");
            assert_eq!(held.left.into_inner(), 3);
            assert_eq!(held.folder, Some(PathBuf::from("/tmp/held")));
            assert!(parse("migrate.page:x").is_none());
        }
    }
}

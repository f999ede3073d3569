//! Work that many callers share: all that wait when a turn begins are served by it
//! together. Nobody is served by a turn that began before it asked.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Those who wait, and the turns that are running.
pub(super) struct Turns<Q> {
    state: Mutex<State<Q>>,
    /// Turns at a time.
    most: usize,
}

struct State<Q> {
    waiting: Vec<Q>,
    running: usize,
}

impl<Q> Turns<Q> {
    /// At most `most` turns run at a time.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                running: 0,
            }),
            most,
        })
    }

    /// Queues a question. Whoever gets a turn must take it: nobody else will.
    pub(super) fn ask(self: &Arc<Self>, question: Q) -> Option<Turn<Q>> {
        let mut state = self.state.lock();
        state.waiting.push(question);
        if state.running >= self.most {
            return None;
        }
        state.running += 1;
        Some(Turn {
            turns: Arc::clone(self),
            ended: false,
        })
    }

    /// A turn beyond the limit, for work that goes on where another one's ends; `None`
    /// when somebody waits. The next one that ends makes up for it.
    pub(super) fn join(self: &Arc<Self>) -> Option<Turn<Q>> {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        state.running += 1;
        Some(Turn {
            turns: Arc::clone(self),
            ended: false,
        })
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

/// A place among the running turns.
#[must_use = "those who wait are served by nobody else"]
pub(super) struct Turn<Q> {
    turns: Arc<Turns<Q>>,
    ended: bool,
}

impl<Q> Turn<Q> {
    /// All that wait now; `None` ends the turn. One that is over the limit leaves them to
    /// the others.
    pub(super) fn next(&mut self) -> Option<Vec<Q>> {
        let mut state = self.turns.state.lock();
        let over = state.running > self.turns.most;
        let waiting = match over {
            true => Vec::new(),
            false => std::mem::take(&mut state.waiting),
        };
        if waiting.is_empty() {
            state.running -= 1;
            self.ended = true;
            return None;
        }
        Some(waiting)
    }
}

impl<Q> Drop for Turn<Q> {
    /// A turn that ends before its time (a panic, the end of its thread) lets those
    /// go who would wait for it for ever.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let lost = {
            let mut state = self.turns.state.lock();
            state.running -= 1;
            // Those who still run will serve them.
            match state.running {
                0 => std::mem::take(&mut state.waiting),
                _ => Vec::new(),
            }
        };
        drop(lost);
    }
}

/// Waits for a turn's work, but not for ever: what takes longer than `patience` (a
/// connection that is cut off, somebody's lock) goes on beside the next turn.
pub(super) async fn patiently(patience: Duration, work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    if tokio::time::timeout(patience, &mut work).await.is_err() {
        tokio::spawn(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_serves_all_that_wait_when_it_begins_and_nobody_later() {
        let turns = Turns::new(1);
        let mut turn = turns.ask(1).unwrap();
        assert!(turns.ask(2).is_none());
        assert_eq!(turn.next(), Some(vec![1, 2]));
        // Asked while the turn is under way: that is the next one's.
        assert!(turns.ask(3).is_none());
        assert_eq!(turns.waiting(), 1);
        assert_eq!(turn.next(), Some(vec![3]));
        assert_eq!(turn.next(), None);
        assert!(turns.ask(4).is_some());
    }

    #[test]
    fn turns_run_side_by_side_up_to_the_limit() {
        let turns = Turns::new(2);
        let mut first = turns.ask(1).unwrap();
        assert_eq!(first.next(), Some(vec![1]));
        let mut second = turns.ask(2).unwrap();
        assert!(turns.ask(3).is_none());
        assert_eq!(second.next(), Some(vec![2, 3]));
        assert_eq!(first.next(), None);
        assert!(turns.ask(4).is_some());
    }

    #[test]
    fn who_joins_is_over_the_limit_until_one_of_them_ends() {
        let turns = Turns::new(1);
        let mut first = turns.ask(1).unwrap();
        assert_eq!(first.next(), Some(vec![1]));
        let mut joined = turns.join().unwrap();
        assert!(turns.ask(2).is_none());
        // Somebody waits by now.
        assert!(turns.join().is_none());
        // One at a time: the one that goes on serves them.
        assert_eq!(first.next(), None);
        assert_eq!(joined.next(), Some(vec![2]));
        assert_eq!(joined.next(), None);
        assert!(turns.ask(3).is_some());
    }

    #[test]
    fn a_turn_that_dies_lets_those_who_wait_go() {
        let turns = Turns::new(1);
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let turn = turns.ask(Some(sender)).unwrap();
        drop(turn);
        assert!(receiver.recv().is_err());
        assert!(turns.ask(None).is_some());
    }
}

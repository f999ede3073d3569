//! Partitions that operators hold. Holding is a state here, not a count: drained
//! twice, a partition goes on after one resume.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate_engine::PartitionId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Draining,
    Held,
}

/// What a wish to hold found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// The caller drains, then says how it went.
    Drain,
    /// It is held already.
    Held,
    /// Somebody else drains it right now.
    Busy,
}

/// What a wish to let go found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was held; the caller resumes it.
    Resume,
    /// It was not held.
    NotHeld,
    /// Somebody drains it right now.
    Busy,
}

#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<PartitionId, Hold>>);

impl Holds {
    pub fn begin(&self, partition: &PartitionId) -> Begin {
        let mut holds = self.0.lock();
        match holds.get(partition) {
            Some(Hold::Held) => Begin::Held,
            Some(Hold::Draining) => Begin::Busy,
            None => {
                holds.insert(partition.clone(), Hold::Draining);
                Begin::Drain
            }
        }
    }

    /// Ends what [`Self::begin`] began.
    pub fn drained(&self, partition: &PartitionId, held: bool) {
        let mut holds = self.0.lock();
        if held {
            holds.insert(partition.clone(), Hold::Held);
        } else {
            holds.remove(partition);
        }
    }

    pub fn end(&self, partition: &PartitionId) -> End {
        let mut holds = self.0.lock();
        match holds.get(partition) {
            None => End::NotHeld,
            Some(Hold::Draining) => End::Busy,
            Some(Hold::Held) => {
                holds.remove(partition);
                End::Resume
            }
        }
    }

    pub fn is_held(&self, partition: &PartitionId) -> bool {
        self.0.lock().get(partition) == Some(&Hold::Held)
    }

    /// Everything that is held, which it no longer is then.
    pub fn take_all(&self) -> Vec<PartitionId> {
        let mut holds = self.0.lock();
        let held = |(partition, hold): (&PartitionId, &Hold)| {
            (*hold == Hold::Held).then(|| partition.clone())
        };
        let all: Vec<PartitionId> = holds.iter().filter_map(held).collect();
        holds.retain(|_, hold| *hold != Hold::Held);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holding_is_a_state_and_not_a_count() {
        let holds = Holds::default();
        let p: PartitionId = "p".into();
        assert_eq!(holds.end(&p), End::NotHeld);
        assert_eq!(holds.begin(&p), Begin::Drain);
        assert_eq!(holds.begin(&p), Begin::Busy);
        assert_eq!(holds.end(&p), End::Busy);
        holds.drained(&p, false);
        assert_eq!(holds.begin(&p), Begin::Drain);
        holds.drained(&p, true);
        assert!(holds.is_held(&p));
        assert_eq!(holds.begin(&p), Begin::Held);
        assert_eq!(holds.end(&p), End::Resume);
        assert_eq!(holds.end(&p), End::NotHeld);
        assert!(!holds.is_held(&p));
    }

    #[test]
    fn at_the_end_everything_held_is_let_go() {
        let holds = Holds::default();
        let (p, q): (PartitionId, PartitionId) = ("p".into(), "q".into());
        holds.begin(&p);
        holds.drained(&p, true);
        holds.begin(&q);
        assert_eq!(holds.take_all(), std::slice::from_ref(&p));
        assert_eq!(holds.end(&p), End::NotHeld);
        assert_eq!(holds.end(&q), End::Busy);
    }
}

//! Bytes that all partitions of the process keep together.
//!
//! A partition's own limits bound that partition; without a common budget a process
//! would hold them once for every partition that was used lately.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A budget and what is held of it.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: usize,
    held: AtomicUsize,
}

impl Memory {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            held: AtomicUsize::new(0),
        })
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether more is held than should be.
    pub fn is_over(&self) -> bool {
        self.held() > self.limit
    }

    /// Whether `bytes` more fit.
    pub fn fits(&self, bytes: usize) -> bool {
        self.held().saturating_add(bytes) <= self.limit
    }

    /// Whether so little is held that nothing need be given up for a while.
    pub fn is_relieved(&self) -> bool {
        self.held() <= self.limit / 4 * 3
    }

    /// A part of it, empty at first.
    pub fn share(self: &Arc<Self>) -> Share {
        Share {
            memory: Arc::clone(self),
            held: 0,
        }
    }
}

/// What one holder has of a [`Memory`]; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    held: usize,
}

impl Share {
    /// Sets what the holder has, bytes.
    pub fn set(&mut self, bytes: usize) {
        let total = &self.memory.held;
        if bytes >= self.held {
            total.fetch_add(bytes - self.held, Ordering::Relaxed);
        } else {
            total.fetch_sub(self.held - bytes, Ordering::Relaxed);
        }
        self.held = bytes;
    }

    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the budget has room for that much more.
    pub fn fits(&self, bytes: usize) -> bool {
        self.memory.fits(bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_are_given_back() {
        let memory = Memory::new(100);
        let (mut a, mut b) = (memory.share(), memory.share());
        a.set(60);
        b.set(40);
        assert!(!memory.is_over() && !memory.is_relieved());
        a.set(61);
        assert!(memory.is_over());
        a.set(10);
        assert_eq!(memory.held(), 50);
        assert!(memory.fits(50) && !memory.fits(51));
        drop(a);
        drop(b);
        assert_eq!(memory.held(), 0);
    }
}

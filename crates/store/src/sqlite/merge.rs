//! Intersections of unions over an index: the commits or rows whose scopes hold,
//! for every variable, one of the wanted values. Each (variable, value) is a
//! sorted run of the index; a union merges the runs of a variable, and the
//! unions leapfrog to their common positions. Nothing is materialized beyond a
//! small buffer per run, so a page costs what it delivers, not what exists.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use ssp2::ScopeLists;

use crate::error::StoreError;

/// A position in an index run.
pub(super) trait Position: Ord + Clone {
    /// The smallest position greater than this one.
    fn successor(&self) -> Self;
}

impl Position for i64 {
    fn successor(&self) -> Self {
        self.saturating_add(1)
    }
}

impl Position for String {
    fn successor(&self) -> Self {
        let mut next = String::with_capacity(self.len() + 1);
        next.push_str(self);
        next.push('\0');
        next
    }
}

/// A part of a run.
pub(super) struct RunPart<P> {
    /// Ascending; at least one unless the run has ended.
    pub(super) positions: Vec<P>,
    /// Whether nothing comes after it.
    pub(super) ended: bool,
}

/// Reads runs: at most `limit` positions of `(variable, value)`, from `from` on, ascending.
pub(super) trait Runs<P> {
    fn fetch(
        &self,
        variable: &str,
        value: &str,
        from: &P,
        limit: usize,
    ) -> Result<RunPart<P>, StoreError>;
}

/// Positions buffered over all runs of a scan, about.
const BUFFERED: usize = 4096;
const FIRST_FETCH: usize = 16;

struct Run<'a, P> {
    value: &'a str,
    buffer: VecDeque<P>,
    /// Inclusive start of the next fetch; `None` = the run has ended.
    from: Option<P>,
    fetch: usize,
}

impl<P: Position> Run<'_, P> {
    /// Takes the first position ≥ `wanted`.
    fn take_from(
        &mut self,
        variable: &str,
        wanted: &P,
        max_fetch: usize,
        runs: &impl Runs<P>,
    ) -> Result<Option<P>, StoreError> {
        while let Some(position) = self.buffer.pop_front() {
            if position >= *wanted {
                return Ok(Some(position));
            }
        }
        let Some(from) = self.from.take() else {
            return Ok(None);
        };
        let from = from.max(wanted.clone());
        let fetched = runs.fetch(variable, self.value, &from, self.fetch)?;
        if !fetched.ended {
            self.from = fetched.positions.last().map(P::successor);
        }
        self.fetch = (self.fetch * 2).min(max_fetch);
        self.buffer = fetched.positions.into();
        Ok(self.buffer.pop_front())
    }
}

struct Union<'a, P> {
    variable: &'a str,
    runs: Vec<Run<'a, P>>,
    heads: BinaryHeap<Reverse<(P, usize)>>,
    opened: bool,
}

impl<P: Position> Union<'_, P> {
    /// The first position ≥ `wanted` in any run.
    fn seek(
        &mut self,
        wanted: &P,
        max_fetch: usize,
        source: &impl Runs<P>,
    ) -> Result<Option<P>, StoreError> {
        if !self.opened {
            self.opened = true;
            for (at, run) in self.runs.iter_mut().enumerate() {
                if let Some(head) = run.take_from(self.variable, wanted, max_fetch, source)? {
                    self.heads.push(Reverse((head, at)));
                }
            }
        }
        while let Some(Reverse((head, at))) = self.heads.peek() {
            if head >= wanted {
                return Ok(Some(head.clone()));
            }
            let at = *at;
            self.heads.pop();
            let next = self.runs[at].take_from(self.variable, wanted, max_fetch, source)?;
            if let Some(next) = next {
                self.heads.push(Reverse((next, at)));
            }
        }
        Ok(None)
    }
}

/// Ascending positions that match every variable.
pub(super) struct Matches<'a, P> {
    unions: Vec<Union<'a, P>>,
    next: P,
    max_fetch: usize,
}

impl<'a, P: Position> Matches<'a, P> {
    /// Matches of `scopes` from `start` on; `wanted` is how many the caller needs at most.
    pub(super) fn new(scopes: &'a ScopeLists, start: P, wanted: usize) -> Self {
        let runs: usize = scopes.iter().map(|(_, values)| values.len()).sum();
        let max_fetch = (BUFFERED / runs.max(1)).clamp(4, wanted.max(4));
        let unions = scopes
            .iter()
            .map(|(variable, values)| {
                let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
                values.sort_unstable();
                values.dedup();
                let runs = values
                    .into_iter()
                    .map(|value| Run {
                        value,
                        buffer: VecDeque::new(),
                        from: Some(start.clone()),
                        fetch: FIRST_FETCH.min(max_fetch),
                    })
                    .collect();
                Union {
                    variable,
                    runs,
                    heads: BinaryHeap::new(),
                    opened: false,
                }
            })
            .collect();
        Self {
            unions,
            next: start,
            max_fetch,
        }
    }

    /// The next match, or `None` at the end. No variable at all matches nothing.
    pub(super) fn next(&mut self, source: &impl Runs<P>) -> Result<Option<P>, StoreError> {
        if self.unions.is_empty() {
            return Ok(None);
        }
        let mut target = self.next.clone();
        loop {
            let mut agreed = true;
            for union in &mut self.unions {
                match union.seek(&target, self.max_fetch, source)? {
                    None => return Ok(None),
                    Some(found) if found > target => {
                        target = found;
                        agreed = false;
                    }
                    Some(_) => {}
                }
            }
            // One union alone agrees with itself wherever it lands.
            if agreed || self.unions.len() == 1 {
                self.next = target.successor();
                return Ok(Some(target));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Index(BTreeMap<(&'static str, String), Vec<i64>>);

    impl Runs<i64> for Index {
        fn fetch(
            &self,
            variable: &str,
            value: &str,
            from: &i64,
            limit: usize,
        ) -> Result<RunPart<i64>, StoreError> {
            let run = self
                .0
                .iter()
                .find(|((var, val), _)| *var == variable && val == value);
            let rest: Vec<i64> = run.map_or(Vec::new(), |(_, all)| {
                all.iter().copied().filter(|p| p >= from).collect()
            });
            // A source may give less than asked for, as one bounded by bytes does.
            let given = rest.len().min(limit).min(3);
            Ok(RunPart {
                ended: given == rest.len(),
                positions: rest[..given].to_vec(),
            })
        }
    }

    fn all(scopes: &ScopeLists, start: i64, index: &Index) -> Vec<i64> {
        let mut matches = Matches::new(scopes, start, 10);
        let mut found = Vec::new();
        while let Some(position) = matches.next(index).unwrap() {
            found.push(position);
        }
        found
    }

    #[test]
    fn agrees_with_the_definition_on_many_shapes() {
        let mut entries: BTreeMap<_, Vec<i64>> = BTreeMap::new();
        for n in 0..2000_i64 {
            for (variable, modulus) in [("a", 7), ("b", 3)] {
                // A commit holds several rows, so several values per variable.
                for value in [n % modulus, (n / 5) % modulus] {
                    let run = entries.entry((variable, value.to_string())).or_default();
                    if run.last() != Some(&n) {
                        run.push(n);
                    }
                }
            }
        }
        let index = Index(entries);
        for (a, b) in [
            (vec!["1"], vec!["2"]),
            (vec!["0", "3", "3", "9"], vec!["1", "0"]),
            (vec!["9"], vec!["1"]),
            (vec![], vec!["1"]),
        ] {
            let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            let scopes: ScopeLists = [("a", owned(&a)), ("b", owned(&b))].into_iter().collect();
            let holds = |variable: &str, list: &[&str], n: i64| {
                list.iter().any(|value| {
                    index.0.iter().any(|((var, val), run)| {
                        *var == variable && val == value && run.binary_search(&n).is_ok()
                    })
                })
            };
            for start in [0, 777] {
                let expected: Vec<i64> = (start..2000)
                    .filter(|n| holds("a", &a, *n) && holds("b", &b, *n))
                    .collect();
                assert_eq!(all(&scopes, start, &index), expected, "{a:?} {b:?} {start}");
            }
        }
        assert!(all(&ScopeLists::new(), 0, &index).is_empty());
    }
}

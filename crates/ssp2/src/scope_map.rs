//! Maps whose keys stand in ascending UTF-16 code-unit order, as the wire and
//! the canonical JSON want them.

use std::cmp::Ordering;

/// Compares two strings by UTF-16 code units, as JavaScript does.
///
/// UTF-8 sorts by code point. The two orders differ only where a character beyond
/// the BMP, whose UTF-16 form begins with a surrogate (D800..DFFF), meets one of
/// U+E000..U+FFFF: there the leading bytes F0.. and EE, EF change places.
pub fn cmp_utf16(a: &str, b: &str) -> Ordering {
    let rank = |byte: u8| match byte {
        0xEE | 0xEF => u16::from(byte) + 0x100,
        _ => u16::from(byte),
    };
    match a.bytes().zip(b.bytes()).find(|(a, b)| a != b) {
        Some((a, b)) => rank(a).cmp(&rank(b)),
        None => a.len().cmp(&b.len()),
    }
}

/// A map from scope variable to `V`, ordered by UTF-16 code units, unique keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ScopeMap<V>(Vec<(String, V)>);

/// Requested, allowed or effective scopes: variable to values.
pub type ScopeLists = ScopeMap<Vec<String>>;
/// Stored scopes of a row or change: variable to its one value.
pub type ScopeValues = ScopeMap<String>;

impl<V> ScopeMap<V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self(Vec::new())
    }
    /// Sets `key`, keeping the order; returns the value it replaces.
    pub fn insert(&mut self, key: impl Into<String>, value: V) -> Option<V> {
        let key = key.into();
        if self
            .0
            .last()
            .is_none_or(|(last, _)| cmp_utf16(last, &key) == Ordering::Less)
        {
            self.0.push((key, value));
            return None;
        }
        match self.0.binary_search_by(|(k, _)| cmp_utf16(k, &key)) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0
            .binary_search_by(|(k, _)| cmp_utf16(k, key))
            .ok()
            .map(|at| &self.0[at].1)
    }
    /// Entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &V)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Appends an entry that sorts after all others; `false`, changing nothing, when it does not.
    pub fn push_sorted(&mut self, key: String, value: V) -> bool {
        if let Some((last, _)) = self.0.last()
            && cmp_utf16(last, &key) != Ordering::Less
        {
            return false;
        }
        self.0.push((key, value));
        true
    }
}

impl<K: Into<String>, V> FromIterator<(K, V)> for ScopeMap<V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut map = Self::new();
        for (key, value) in iter {
            map.insert(key, value);
        }
        map
    }
}

//! Column versions: the row version at which each column was last written
//! (§2.2), and their stored form.
//!
//! The stored form is a sequence of pairs `(ordinal, version)` of unsigned
//! LEB128 numbers, ascending by ordinal, one pair per column whose version
//! exceeds 1. Three cases must stay apart:
//!
//! - *No blob, row version 1*: nothing was written since the insert.
//! - *No blob, row version above 1*: the row is older than column versions;
//!   every column counts as written at the row's version.
//! - *An empty blob*: no column exceeds 1 although the row version does. An
//!   upsert that presents the primary key alone leaves a row so. It must not be
//!   stored without a blob, which would read as "every column just changed" and
//!   raise conflicts that nobody caused.

use bytes::Bytes;

/// Why a stored blob does not decode: the database holds something that no
/// server wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ColumnVersionsError {
    /// A number ends early or exceeds 2^63 − 1.
    #[error("column versions hold a malformed number")]
    Number,
    /// An ordinal past the table's columns.
    #[error("column versions name a column that the table does not have")]
    Ordinal,
    /// A column twice, or out of order.
    #[error("column versions are not ascending")]
    Order,
    /// A version outside 1 ..= the row's version.
    #[error("column versions exceed the row's version")]
    Version,
}

/// The version of every column of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnVersions {
    versions: Vec<i64>,
}

impl ColumnVersions {
    /// The versions of a freshly inserted row of `columns` columns: all 1.
    pub fn inserted(columns: usize) -> Self {
        Self {
            versions: vec![1; columns],
        }
    }

    /// Reads the stored form for a row at `server_version` with `columns` columns.
    ///
    /// # Errors
    /// [`ColumnVersionsError`] when the blob is not one.
    pub fn decode(
        blob: Option<&[u8]>,
        server_version: i64,
        columns: usize,
    ) -> Result<Self, ColumnVersionsError> {
        let Some(mut rest) = blob else {
            return Ok(Self {
                versions: vec![server_version; columns],
            });
        };
        let mut versions = vec![1; columns];
        let mut next = 0;
        while !rest.is_empty() {
            let ordinal = usize::try_from(take_number(&mut rest)?)
                .map_err(|_| ColumnVersionsError::Ordinal)?;
            let version = take_number(&mut rest)?;
            let slot = versions
                .get_mut(ordinal)
                .ok_or(ColumnVersionsError::Ordinal)?;
            if ordinal < next {
                return Err(ColumnVersionsError::Order);
            }
            if !(1..=server_version).contains(&version) {
                return Err(ColumnVersionsError::Version);
            }
            *slot = version;
            next = ordinal + 1;
        }
        Ok(Self { versions })
    }

    /// The version of column `ordinal`; 1 for one the row does not have.
    pub fn get(&self, ordinal: usize) -> i64 {
        self.versions.get(ordinal).copied().unwrap_or(1)
    }

    /// Records that column `ordinal` was written at `version`.
    pub fn set(&mut self, ordinal: usize, version: i64) {
        if let Some(slot) = self.versions.get_mut(ordinal) {
            *slot = version;
        }
    }

    /// The stored form for a row at `server_version`: `None` only at version 1,
    /// where it says the same as an empty blob.
    pub fn encode(&self, server_version: i64) -> Option<Bytes> {
        if server_version <= 1 {
            return None;
        }
        let mut blob = Vec::with_capacity(self.versions.len() * 3);
        for (ordinal, &version) in self.versions.iter().enumerate() {
            if version > 1 {
                put_number(&mut blob, ordinal as u64);
                put_number(&mut blob, version.unsigned_abs());
            }
        }
        Some(blob.into())
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

fn take_number(rest: &mut &[u8]) -> Result<i64, ColumnVersionsError> {
    let mut number: i64 = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, tail) = rest.split_first().ok_or(ColumnVersionsError::Number)?;
        *rest = tail;
        number |= i64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ColumnVersionsError::Number)
}

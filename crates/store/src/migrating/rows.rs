//! The rows of a table, page by page, and what the rewrite makes of each.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use ssp2::{Column, Value};
use tidegate_engine::TableId;
use tidegate_engine::schema::Table;
use tidegate_engine::schema::migration::rewrite_payload;

use super::broken;
use crate::error::StoreError;
use crate::physical::quote;

/// Rows of a page at most.
const PAGE_ROWS: i64 = 1000;
/// Payload bytes that a page should not exceed by much.
const PAGE_BYTES: usize = 8 << 20;

/// The rewrite of a table's rows.
pub(crate) struct Rewrite {
    pub(crate) table: TableId,
    /// Layout of the stored payloads; `None` when payloads stay.
    pub(super) stored: Option<Vec<Column>>,
    /// Ordinals of the columns that begin to exist and hold what the payload holds.
    pub(crate) filled: Vec<usize>,
}

impl Rewrite {
    /// Of payloads alone.
    pub(super) fn new(table: TableId, stored: Option<Vec<Column>>) -> Self {
        Self {
            table,
            stored,
            filled: Vec::new(),
        }
    }

    /// The new payload of a row and, where columns are filled, its values.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]
    pub(crate) fn row(
        &self,
        table: &Table,
        payload: Bytes,
    ) -> Result<(Bytes, Vec<Value>), StoreError> {
        let corrupt = || StoreError::Corrupt {
            what: "the payload of a row",
        };
        let payload = match &self.stored {
            Some(stored) => {
                rewrite_payload(stored, &table.columns, &payload).map_err(|_| corrupt())?
            }
            None => payload,
        };
        let values = if self.filled.is_empty() {
            Vec::new()
        } else {
            ssp2::row::decode_row(&table.columns, &payload).map_err(|_| corrupt())?
        };
        Ok((payload, values))
    }
}

/// The first page of a rewrite, or the one after a key.
pub(crate) struct Pages {
    /// Takes a limit.
    pub(crate) first: String,
    /// Takes the last partition and row id, and a limit.
    pub(crate) next: String,
    rows: i64,
}

impl Pages {
    /// `limit` parameters as the dialect spells them: of the first page, of the next.
    pub(crate) fn of(table: &Table, parameters: [&str; 4]) -> Self {
        let name = quote(&table.name);
        let [limit, partition, row_id, next_limit] = parameters;
        let select = format!("SELECT _sync_partition, _sync_row_id, _sync_payload FROM {name}");
        let order = "ORDER BY _sync_partition, _sync_row_id LIMIT";
        Self {
            first: format!("{select} {order} {limit}"),
            next: format!(
                "{select} WHERE (_sync_partition, _sync_row_id) > ({partition}, {row_id}) {order} {next_limit}"
            ),
            // Nothing is known of the rows' size yet.
            rows: 64,
        }
    }

    /// Rows to ask for.
    pub(crate) fn rows(&self) -> i64 {
        self.rows
    }

    /// Learns from a page how many rows the next one should have: what is in memory
    /// at once is bounded in bytes too.
    pub(crate) fn learn(&mut self, rows: usize, bytes: usize) {
        let average = bytes / rows.max(1) + 1;
        let fitting = i64::try_from(PAGE_BYTES / average).unwrap_or(PAGE_ROWS);
        self.rows = fitting.min(self.rows * 4).clamp(1, PAGE_ROWS);
    }
}

/// Watches, while a dry run walks a table's rows, for values that would break a
/// unique index over columns that do not exist yet.
pub(crate) struct Uniques<'t> {
    table: &'t Table,
    watched: Vec<Watched<'t>>,
}

struct Watched<'t> {
    index: &'t str,
    ordinals: &'t [usize],
    seen: HashSet<[u64; 2]>,
}

impl<'t> Uniques<'t> {
    /// Those of `table` that no query can judge and whose columns are all filled
    /// or stored: one over an appended column holds NULL in every row.
    pub(crate) fn of(table: &'t Table, rewrite: &Rewrite) -> Self {
        let appended_from = rewrite
            .stored
            .as_ref()
            .map_or(table.columns.len(), Vec::len);
        let watched = table
            .indexes
            .iter()
            .filter(|index| table.materialize && index.unique)
            .filter(|index| {
                let filled = |ordinal: &usize| rewrite.filled.contains(ordinal);
                index.columns.iter().any(filled)
                    && index.columns.iter().all(|ordinal| *ordinal < appended_from)
            })
            .map(|index| Watched {
                index: &index.name,
                ordinals: &index.columns,
                seen: HashSet::new(),
            })
            .collect();
        Self { table, watched }
    }

    /// Takes a row.
    ///
    /// # Errors
    /// [`StoreError::RefusedMigration`] when an earlier row has the same values.
    pub(crate) fn row(&mut self, partition: &str, values: &[Value]) -> Result<(), StoreError> {
        for watched in &mut self.watched {
            let columns = watched.ordinals.iter();
            let values: Vec<&Value> = columns.filter_map(|at| values.get(*at)).collect();
            if values.iter().any(|value| matches!(value, Value::Null)) {
                continue;
            }
            // Digests, as the values of every row may not fit into memory.
            let digest = |seed: u8| {
                let mut hasher = DefaultHasher::new();
                (seed, partition).hash(&mut hasher);
                values
                    .iter()
                    .for_each(|value| hash_value(value, &mut hasher));
                hasher.finish()
            };
            if !watched.seen.insert([digest(0), digest(1)]) {
                return Err(broken(&self.table.name, watched.index));
            }
        }
        Ok(())
    }
}

fn hash_value(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Null => 0_u8.hash(hasher),
        Value::Text(text) => text.hash(hasher),
        Value::Integer(number) => number.hash(hasher),
        // Both zeros are equal in SQL.
        Value::Float(number) => (number + 0.0).to_bits().hash(hasher),
        Value::Boolean(boolean) => boolean.hash(hasher),
        Value::Bytes(bytes) => bytes.hash(hasher),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::schema::Schema;

    #[test]
    fn pages_shrink_with_the_size_of_rows_and_grow_slowly() {
        let schema = Schema::load(
            r#"{"version":1,"tables":[{"name":"t","primaryKey":"id","columns":[
                {"name":"id","type":"string","nullable":false}],"scopes":["w:{id}"]}]}"#,
        )
        .unwrap();
        let mut pages = Pages::of(&schema.tables()[0], ["?1", "?1", "?2", "?3"]);
        assert_eq!(pages.rows(), 64);
        pages.learn(64, 640);
        assert_eq!(pages.rows(), 256);
        pages.learn(256, 2560);
        pages.learn(1000, 10_000);
        assert_eq!(pages.rows(), PAGE_ROWS);
        pages.learn(1000, 100 << 20);
        assert!((1..=90).contains(&pages.rows()), "{}", pages.rows());
        pages.learn(1, 1 << 30);
        assert_eq!(pages.rows(), 1);
    }
}

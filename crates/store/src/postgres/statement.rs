//! Statements with their parameters, and several of them as one.

use std::fmt;
use std::fmt::Write as _;

use tokio_postgres::types::ToSql;

use super::connection::Param;

/// A statement with its parameters.
pub(super) struct Step<'a> {
    pub(super) sql: &'a str,
    pub(super) params: Vec<Param<'a>>,
}

/// Every statement of a batch has it among its conditions: it writes only inside the
/// transaction whose own BEGIN made the setting. Should that BEGIN fail, each statement
/// behind it would be a transaction of its own: then none of them writes.
pub(super) const GUARD: &str = "current_setting('tidegate.tx', true)='1'";
/// What stands in its place where the gate is a part of the same statement.
const PASSED: &str = "EXISTS (SELECT 1 FROM gate)";

/// One parameter: something of each element, as an array.
pub(super) fn array<'a, T, U>(all: &[T], read: impl Fn(&T) -> U) -> Param<'a>
where
    U: ToSql + Sync + Send + fmt::Debug + 'a,
{
    Box::new(all.iter().map(read).collect::<Vec<U>>())
}

/// Statements that write as one, the last one being the main one. No two of them may
/// touch the same row: all of them see what was there before.
pub(super) fn composed(parts: &[&str]) -> String {
    let Some((last, others)) = parts.split_last() else {
        return String::new();
    };
    let mut sql = String::new();
    let mut used = 0;
    for (at, part) in others.iter().enumerate() {
        let lead = if at == 0 { "WITH" } else { "," };
        let _ = write!(sql, "{lead} s{at} AS (");
        used = renumbered(&mut sql, part, used);
        sql.push(')');
    }
    sql.push(' ');
    renumbered(&mut sql, last, used);
    sql
}

/// A whole batch as one statement and so one transaction: the gate, then, once it has let
/// the batch pass, what it writes; its rows are the gate's. As in [`composed`] no two parts touch the same row.
///
/// A statement locks its tables before it begins, in the order in which it names them.
/// The log's head comes first, as in every other writer: a migration that holds it lets
/// nobody stand in its way who holds another table already.
pub(super) fn gated(gate: &str, parts: &[&str]) -> String {
    let mut sql = String::from(
        "WITH heads AS (UPDATE sync_partitions SET max_commit_seq=max_commit_seq WHERE false), \
         gate AS MATERIALIZED (",
    );
    let mut used = renumbered(&mut sql, gate, 0);
    sql.push(')');
    for (at, part) in parts.iter().enumerate() {
        let _ = write!(sql, ", s{at} AS (");
        used = renumbered(&mut sql, &part.replace(GUARD, PASSED), used);
        sql.push(')');
    }
    sql.push_str(" SELECT * FROM gate");
    sql
}

/// A statement that reads, and the types of its columns.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) sql: &'a str,
    pub(super) types: &'a [&'a str],
}

/// Statements that read, as one: the rows of all of them, each with the number of its
/// statement first and its columns where [`offsets`] says.
pub(super) fn united(parts: &[Reading<'_>]) -> String {
    let mut sql = String::new();
    let mut used = 0;
    for (at, part) in parts.iter().enumerate() {
        sql.push_str(if at == 0 {
            "SELECT "
        } else {
            " UNION ALL SELECT "
        });
        let _ = write!(sql, "{at}::int");
        for (other, reading) in parts.iter().enumerate() {
            for (column, ty) in reading.types.iter().enumerate() {
                let _ = if other == at {
                    write!(sql, ", r.c{column}")
                } else {
                    write!(sql, ", NULL::{ty}")
                };
            }
        }
        sql.push_str(" FROM (");
        used = renumbered(&mut sql, part.sql, used);
        sql.push_str(") AS r(");
        for column in 0..part.types.len() {
            let comma = if column == 0 { "" } else { ", " };
            let _ = write!(sql, "{comma}c{column}");
        }
        sql.push(')');
    }
    sql
}

/// Where the columns of each part begin in the rows of [`united`].
pub(super) fn offsets(parts: &[Reading<'_>]) -> Vec<usize> {
    let mut next = 1;
    parts
        .iter()
        .map(|part| {
            let offset = next;
            next += part.types.len();
            offset
        })
        .collect()
}

/// Appends a statement whose parameters follow the `used` ones before it; returns how
/// many there are now.
fn renumbered(sql: &mut String, part: &str, used: usize) -> usize {
    let mut highest = used;
    let mut quote = None;
    let mut rest = part.chars().peekable();
    while let Some(next) = rest.next() {
        sql.push(next);
        match (quote, next) {
            (None, '\'' | '"') => quote = Some(next),
            (Some(open), _) if open == next => quote = None,
            (None, '$') => {
                let mut number = 0;
                while let Some(digit) = rest.peek().and_then(|next| next.to_digit(10)) {
                    number = number * 10 + digit as usize;
                    rest.next();
                }
                highest = highest.max(used + number);
                let _ = write!(sql, "{}", used + number);
            }
            _ => {}
        }
    }
    highest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_through_and_names_are_left_alone() {
        let parts = [
            r#"INSERT INTO "a$1"(x) SELECT $1, $2, $1 WHERE y='$9'"#,
            "DELETE FROM b",
            "UPDATE c SET d=$12, e=$1",
        ];
        assert_eq!(
            composed(&parts),
            r#"WITH s0 AS (INSERT INTO "a$1"(x) SELECT $1, $2, $1 WHERE y='$9'), s1 AS (DELETE FROM b) UPDATE c SET d=$14, e=$3"#
        );
        assert_eq!(composed(&parts[1..2]), " DELETE FROM b");
    }

    #[test]
    fn the_rows_of_united_statements_stand_beside_each_other() {
        let parts = [
            Reading {
                sql: "SELECT a, b FROM x WHERE k=$1",
                types: &["int", "text"],
            },
            Reading {
                sql: "SELECT c FROM y WHERE k=$1",
                types: &["bytea"],
            },
        ];
        assert_eq!(
            united(&parts),
            "SELECT 0::int, r.c0, r.c1, NULL::bytea FROM (SELECT a, b FROM x WHERE k=$1) AS r(c0, c1) \
             UNION ALL SELECT 1::int, NULL::int, NULL::text, r.c0 FROM (SELECT c FROM y WHERE k=$2) AS r(c0)"
        );
        assert_eq!(offsets(&parts), [1, 3]);
    }

    #[test]
    fn a_gated_statement_names_the_heads_before_any_other_table_and_is_guarded_by_its_gate() {
        let part = format!("INSERT INTO t SELECT $1 WHERE {GUARD}");
        let sql = gated("SELECT * FROM pass($1, $2)", &[&part, &part]);
        assert_eq!(
            sql,
            "WITH heads AS (UPDATE sync_partitions SET max_commit_seq=max_commit_seq WHERE false), \
             gate AS MATERIALIZED (SELECT * FROM pass($1, $2)), \
             s0 AS (INSERT INTO t SELECT $3 WHERE EXISTS (SELECT 1 FROM gate)), \
             s1 AS (INSERT INTO t SELECT $4 WHERE EXISTS (SELECT 1 FROM gate)) SELECT * FROM gate"
        );
    }
}

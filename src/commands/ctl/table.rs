//! Answers as aligned text.

use serde_json::Value as Json;

use super::call::List;

/// A column's cells may be that wide; beyond it they are cut.
const MAX_WIDTH: usize = 60;

/// A line per member of an object.
pub fn object(answer: &Json) -> String {
    let Json::Object(members) = answer else {
        return format!("{answer}\n");
    };
    let width = members.keys().map(String::len).max().unwrap_or(0);
    let line = |(key, value): (&String, &Json)| format!("{key:width$}  {}\n", cell(key, value));
    members.iter().map(line).collect()
}

/// A checkpoint that was taken up, and that a pause ended where one did.
pub fn taken_up(answer: &Json) -> String {
    let mut checkpoint = answer.clone();
    let ended = checkpoint
        .as_object_mut()
        .and_then(|members| members.remove("pause_ended"));
    let mut text = object(&checkpoint);
    if ended == Some(Json::Bool(true)) {
        text.push_str("the pause ended\n");
    }
    text
}

/// A table of a list, and where the next page begins.
pub fn list(answer: &Json, list: List) -> String {
    let empty = Vec::new();
    let items = answer[list.member].as_array().unwrap_or(&empty);
    if items.is_empty() {
        return format!("no {}\n", list.member);
    }
    let mut columns: Vec<(Option<&str>, String)> = list
        .columns
        .iter()
        .map(|&name| (None, name.to_owned()))
        .collect();
    if let Some(spread) = list.spread
        && let Some(Json::Object(members)) = items.first().and_then(|item| item.get(spread))
    {
        columns.extend(members.keys().map(|name| (Some(spread), name.clone())));
    }
    let rows: Vec<Vec<(String, bool)>> = items
        .iter()
        .map(|item| {
            let value = |(group, name): &(Option<&str>, String)| {
                let holder = group.map_or(item, |group| &item[group]);
                let value = &holder[name.as_str()];
                (cut(cell(name, value)), value.is_number())
            };
            columns.iter().map(value).collect()
        })
        .collect();
    let heads: Vec<String> = columns.iter().map(|(_, name)| head(name)).collect();
    let mut text = aligned(&heads, &rows);
    if let Some(next) = answer["next"].as_str() {
        text.push_str(&format!("more: --after {next}\n"));
    }
    text
}

/// What a migration would do.
pub fn plan(answer: &Json) -> String {
    const TABLES: List = List {
        member: "tables",
        columns: &["table", "change", "rows_to_rewrite"],
        spread: None,
    };
    const DECLARATIONS: List = List {
        member: "declarations",
        columns: &["partition", "checkpoint"],
        spread: None,
    };
    let from = cell("from_schema_version", &answer["from_schema_version"]);
    let to = cell("to_schema_version", &answer["to_schema_version"]);
    let lines = |member: &str| -> String {
        let none = Vec::new();
        let items = answer[member].as_array().unwrap_or(&none);
        let line = |item: &Json| format!("  {}\n", cell(member, item));
        items.iter().map(line).collect()
    };
    format!(
        "schema version {from} to {to}\n\n{}\n{}\nstatements\n{}locks\n{}",
        list(answer, TABLES),
        list(answer, DECLARATIONS),
        lines("ddl"),
        lines("locks"),
    )
}

fn aligned(heads: &[String], rows: &[Vec<(String, bool)>]) -> String {
    let widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            let cells = rows.iter().map(|row| row[at].0.chars().count());
            cells.max().unwrap_or(0).max(head.chars().count())
        })
        .collect();
    let line = |cells: Vec<(&str, bool)>| {
        let cells = cells.iter().zip(&widths);
        let padded: Vec<String> = cells
            .map(|(&(text, right), &width)| match right {
                true => format!("{text:>width$}"),
                false => format!("{text:width$}"),
            })
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    // A column of numbers has its head on the right too.
    let numeric = |at: usize| rows.iter().any(|row| row[at].1);
    let mut text = line(
        heads
            .iter()
            .enumerate()
            .map(|(at, head)| (head.as_str(), numeric(at)))
            .collect(),
    );
    for row in rows {
        text.push_str(&line(
            row.iter()
                .enumerate()
                .map(|(at, (cell, _))| (cell.as_str(), numeric(at)))
                .collect(),
        ));
    }
    text
}

fn head(name: &str) -> String {
    let name = name.strip_suffix("_at_ms").unwrap_or(name);
    name.replace('_', " ").to_uppercase()
}

fn cell(name: &str, value: &Json) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => printable(text),
        Json::Bool(true) => "yes".to_owned(),
        Json::Bool(false) => "no".to_owned(),
        // Three digits after the point are enough for people.
        Json::Number(number) if number.is_f64() => {
            let rounded = (number.as_f64().unwrap_or_default() * 1_000.0).round() / 1_000.0;
            rounded.to_string()
        }
        Json::Number(number) if name.ends_with("_at_ms") || name == "now_ms" => {
            number.as_i64().map_or_else(|| number.to_string(), utc)
        }
        other => printable(&other.to_string()),
    }
}

/// Stored text must not move the cursor of a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let plain = (!c.is_control()).then_some(c);
            let escaped = c.is_control().then(|| c.escape_default());
            plain.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect()
}

fn cut(text: String) -> String {
    if text.chars().count() <= MAX_WIDTH {
        return text;
    }
    let mut short: String = text.chars().take(MAX_WIDTH - 1).collect();
    short.push('…');
    short
}

/// Epoch milliseconds as a date and time in UTC.
fn utc(ms: i64) -> String {
    let (days, rest) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    // Days since 0000-03-01, in eras of 400 years: a leap day ends a year then.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let seconds = rest / 1_000;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_dates_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00Z");
        assert_eq!(utc(-1), "1969-12-31 23:59:59Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00Z");
        assert_eq!(utc(1_709_251_199_999), "2024-02-29 23:59:59Z");
        assert_eq!(utc(4_102_444_800_000), "2100-01-01 00:00:00Z");
    }

    #[test]
    fn an_object_is_a_line_per_member() {
        let text = object(&json!({"partition": "p", "held": true, "fence": null}));
        assert_eq!(text, "partition  p\nheld       yes\nfence      -\n");
    }

    #[test]
    fn a_list_is_an_aligned_table() {
        let shape = List {
            member: "things",
            columns: &["name", "size", "seen_at_ms"],
            spread: Some("values"),
        };
        let answer = json!({"things": [
            {"name": "a", "size": 5, "seen_at_ms": 0, "values": {"x": "1"}},
            {"name": "longer", "size": 1200, "seen_at_ms": null, "values": {"x": "\u{1b}[2J"}},
        ], "next": "longer"});
        assert_eq!(
            list(&answer, shape),
            "\
NAME    SIZE                  SEEN  X
a          5  1970-01-01 00:00:00Z  1
longer  1200                     -  \\u{1b}[2J
more: --after longer
"
        );
        assert_eq!(list(&json!({"things": []}), shape), "no things\n");
    }

    #[test]
    fn long_cells_are_cut() {
        assert_eq!(cut("x".repeat(60)).chars().count(), 60);
        assert!(cut("x".repeat(61)).ends_with('…'));
    }
}

//! What every row must hold, computed directly from what was acknowledged: the demo's own
//! words for the two expressions of its backfills.

use std::collections::BTreeMap;

use tidegate_client::Replica;

/// A todo that the server acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Todo {
    pub list: String,
    pub title: String,
    /// Times it was written by a device.
    pub writes: i64,
    /// It was there before the upgrade.
    pub old: bool,
}

/// Todos by id.
pub(super) type Truth = BTreeMap<String, Todo>;

/// `todos.title_key`
pub(super) fn title_key(title: &str) -> String {
    title.trim().to_ascii_lowercase()
}

/// `cards.headline`
pub(super) fn headline(title: &str, list: &str) -> String {
    format!("{} ({list})", title.trim())
}

/// The first todo of a replica whose computed column or row is not what its title makes it.
pub(super) fn first_uncomputed(replica: &Replica) -> Option<String> {
    replica
        .row_ids("todos")
        .into_iter()
        .find(|id| !is_computed(replica, id))
        .map(str::to_owned)
}

fn is_computed(replica: &Replica, id: &str) -> bool {
    let Some(todo) = replica.row("todos", id) else {
        return false;
    };
    let (title, list) = (
        todo.text("title").unwrap_or_default(),
        todo.text("list_id").unwrap_or_default(),
    );
    let card = replica.row("cards", id);
    todo.text("title_key") == Some(title_key(title).as_str())
        && card.is_some_and(|card| {
            card.text("headline") == Some(headline(title, list).as_str())
                && card.text("list_id") == Some(list)
        })
}

/// Every way in which a replica differs from the truth, each by its row.
pub(super) fn differences(replica: &Replica, truth: &Truth) -> Vec<String> {
    let mut found = Vec::new();
    for (id, todo) in truth {
        let stored = replica.row("todos", id);
        let title = stored.and_then(|row| row.text("title").map(str::to_owned));
        if title.as_deref() != Some(todo.title.as_str()) {
            found.push(format!(
                "todo {id} has the title {title:?}, not {:?}",
                todo.title
            ));
        } else if !is_computed(replica, id) {
            found.push(format!("todo {id} is not computed"));
        }
    }
    for table in ["todos", "cards"] {
        for id in replica.row_ids(table) {
            if !truth.contains_key(id) {
                found.push(format!("nobody wrote {table} row {id}"));
            }
        }
    }
    found
}

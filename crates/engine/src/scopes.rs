//! Scopes: what a request asks for, what its actor may have, and what a row
//! belongs to (§3).

use std::collections::HashSet;

use ssp2::{ErrorCode, ScopeLists, ScopeValues, SyncError, Value};

use crate::hooks::Allowed;
use crate::keys::render_scope_value;
use crate::schema::{Schema, Table};

/// The allowed value that stands for every value of its variable (§3.2 rule 3).
pub const ANY: &str = "*";

/// What a subscription may read (§3.2 rules 4 to 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effective {
    /// Never empty, and no list in it is.
    Active(ScopeLists),
    /// `sync.scope_revoked`: no data at all.
    Revoked,
}

impl Table {
    /// Whether a pattern of the table declares `variable` (§3.1).
    pub fn declares_scope(&self, variable: &str) -> bool {
        self.scopes.iter().any(|scope| scope.variable == variable)
    }
}

/// The stored scopes of a row (§3.1): the rendered value of each declared variable.
///
/// `None` when a scope column is null, empty or of no renderable type: such a
/// row has no owner and every write of it is denied (§3.4 rule 2).
pub fn stored_scopes(table: &Table, row: &[Value]) -> Option<ScopeValues> {
    let mut scopes = ScopeValues::new();
    for pattern in &table.scopes {
        let value = render_scope_value(row.get(pattern.column)?)?;
        scopes.insert(pattern.variable.as_str(), value);
    }
    Some(scopes)
}

/// Whether an actor may write a row with these scopes (§3.4 rule 3): **every**
/// declared variable must be allowed. A failed resolver allows nothing.
pub fn authorize(table: &Table, scopes: &ScopeValues, allowed: &Allowed) -> bool {
    let Allowed::Resolved(allowed) = allowed else {
        return false;
    };
    table.scopes.iter().all(|pattern| {
        let Some(value) = scopes.get(&pattern.variable) else {
            return false;
        };
        !value.is_empty()
            && allowed
                .get(&pattern.variable)
                .is_some_and(|list| list.iter().any(|v| v == ANY || v == value))
    })
}

/// Checks the scopes that a subscription asks for (§3.2 rule 2).
///
/// # Errors
/// `sync.invalid_subscription` for a variable the table does not declare, or
/// for the value `*`, which only allowed scopes may hold.
pub fn validate_requested(table: &Table, requested: &ScopeLists) -> Result<(), SyncError> {
    for (variable, values) in requested.iter() {
        if !table.declares_scope(variable) {
            return Err(SyncError::new(
                ErrorCode::InvalidSubscription,
                "a requested scope is not a variable of its table",
            ));
        }
        if values.iter().any(|value| value == ANY) {
            return Err(SyncError::new(
                ErrorCode::InvalidSubscription,
                "the value * may not be requested",
            ));
        }
    }
    Ok(())
}

/// Checks what a scope resolver returned (§3.2 rule 3): its variables may belong
/// to any table of the schema, but to one at least.
///
/// # Errors
/// `sync.invalid_subscription` for a variable that no table declares.
pub fn validate_allowed(schema: &Schema, allowed: &ScopeLists) -> Result<(), SyncError> {
    let declared_somewhere = |variable: &str| {
        schema
            .tables()
            .iter()
            .any(|table| table.declares_scope(variable))
    };
    if allowed.iter().all(|(key, _)| declared_somewhere(key)) {
        Ok(())
    } else {
        Err(SyncError::new(
            ErrorCode::InvalidSubscription,
            "an allowed scope is not a variable of any table",
        ))
    }
}

/// Intersects requested and allowed scopes (§3.2 rules 4 and 5).
///
/// Losing one requested key revokes the whole subscription, and so does an
/// empty request: an empty effective map would match every row of the partition.
/// Values stay as requested, in order: the client finds its own list echoed.
pub fn effective(requested: &ScopeLists, allowed: &Allowed) -> Effective {
    let Allowed::Resolved(allowed) = allowed else {
        return Effective::Revoked;
    };
    let mut active = ScopeLists::new();
    for (variable, values) in requested.iter() {
        let Some(granted) = allowed.get(variable) else {
            return Effective::Revoked;
        };
        let granted: HashSet<&str> = granted.iter().map(String::as_str).collect();
        let kept: Vec<String> = values
            .iter()
            .filter(|value| granted.contains(ANY) || granted.contains(value.as_str()))
            .cloned()
            .collect();
        if kept.is_empty() {
            return Effective::Revoked;
        }
        active.insert(variable, kept);
    }
    if active.is_empty() {
        Effective::Revoked
    } else {
        Effective::Active(active)
    }
}

/// Whether a row or change with these stored scopes belongs to a subscription
/// (§3.2): for **every** effective key its value is in the list. An empty
/// effective map, which no active subscription has, matches nothing.
pub fn matches(effective: &ScopeLists, stored: &ScopeValues) -> bool {
    !effective.is_empty()
        && effective.iter().all(|(variable, list)| {
            stored
                .get(variable)
                .is_some_and(|value| list.iter().any(|v| v == value))
        })
}

/// The key of the commit index (§3.1): `prefix:value`.
pub fn scope_key(prefix: &str, value: &str) -> String {
    format!("{prefix}:{value}")
}

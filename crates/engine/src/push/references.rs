//! Declared references (§6.11): enforced once per commit, over the state after
//! all of the client's operations.

use std::collections::VecDeque;
use std::sync::Arc;

use ssp2::ErrorCode;

use crate::ids::TableId;
use crate::keys::render_key;
use crate::model::{Needs, RowKey};
use crate::schema::OnDelete;

use super::Context;
use super::candidate::ChildrenOf;
use super::decision::{Refusal, Stop};
use super::details::reference_details;
use super::operation::{stage_clear, stage_delete};
use super::staging::{Lookup, PresentedReference, Staging, references_to};

/// Checks the parents of what was written, then follows what was deleted.
///
/// RESTRICT is judged last, when cascades have done their work: whatever they
/// remove does not hold a parent back, in whatever order references are declared.
pub(super) fn enforce(cx: &Context<'_>, staging: &mut Staging<'_>) -> Result<(), Stop> {
    require_parents(cx, staging)?;
    let restricted = follow_deletes(cx, staging)?;
    restrict(cx, staging, restricted)
}

/// The refusal, unless something unknown could have come before it.
fn settle(needs: Needs, refusal: Refusal) -> Stop {
    if needs == Needs::default() {
        Stop::Refused(Box::new(refusal))
    } else {
        Stop::Unknown(needs)
    }
}

fn require_parents(cx: &Context<'_>, staging: &Staging<'_>) -> Result<(), Stop> {
    let mut needs = Needs::default();
    for presented in &staging.presented {
        if is_superseded(cx, staging, presented)? {
            continue;
        }
        let parent = RowKey {
            table: presented.reference.parent,
            row_id: Arc::clone(&presented.parent_row),
        };
        match staging.lookup(&parent) {
            Lookup::Present(_) => {}
            Lookup::Unknown => {
                needs.rows.insert(parent);
            }
            Lookup::Absent { .. } => {
                let schema = cx.env.schema;
                let child = schema.table_at(presented.key.table);
                let mut refusal = violation(presented.op_index, "a referenced row does not exist");
                refusal.details = reference_details(
                    "missing_parent",
                    Some(&child.columns[presented.reference.column].name),
                    &[
                        ("parent", &schema.table_at(parent.table).name),
                        ("row", &presented.parent_row),
                    ],
                );
                return Err(settle(needs, refusal));
            }
        }
    }
    if needs == Needs::default() {
        Ok(())
    } else {
        Err(Stop::Unknown(needs))
    }
}

/// Whether a later operation of the same commit took the reference back.
fn is_superseded(
    cx: &Context<'_>,
    staging: &Staging<'_>,
    presented: &PresentedReference,
) -> Result<bool, Stop> {
    let Lookup::Present(current) = staging.lookup(&presented.key) else {
        return Ok(true);
    };
    let table = cx.env.schema.table_at(presented.key.table);
    let values = current.values(table).map_err(|_| Stop::corrupt())?;
    Ok(render_key(&values[presented.reference.column]).as_deref() != Some(&*presented.parent_row))
}

/// A RESTRICT reference to a deleted row.
struct Restricted {
    op_index: usize,
    of: ChildrenOf,
}

/// Appends what the deletes entail, breadth first, and returns the references
/// that may forbid them.
fn follow_deletes(cx: &Context<'_>, staging: &mut Staging<'_>) -> Result<Vec<Restricted>, Stop> {
    let schema = cx.env.schema;
    let cap = cx.env.cascade_cap;
    let mut needs = Needs::default();
    let mut restricted = Vec::new();
    let mut appended: u32 = 0;
    let mut queue: VecDeque<(usize, RowKey)> = staging.deleted.iter().cloned().collect();
    while let Some((op_index, parent)) = queue.pop_front() {
        // Written again by a later operation: its children have their parent.
        if matches!(staging.lookup(&parent), Lookup::Present(_)) {
            continue;
        }
        for (child, reference) in references_to(schema, parent.table) {
            let of = children_of(child.id, reference.column, &parent.row_id);
            if reference.on_delete == OnDelete::Restrict {
                restricted.push(Restricted { op_index, of });
                continue;
            }
            let children = match staging.children(of, cap.saturating_add(1)) {
                Ok(children) => children,
                Err((of, limit)) => {
                    needs.children.insert(of.limited(limit));
                    continue;
                }
            };
            for key in children {
                appended = appended.saturating_add(1);
                if appended > cap {
                    let mut refusal =
                        violation(op_index, "the delete affects too many referencing rows");
                    refusal.details = reference_details("cascade_limit", None, &[]);
                    return Err(settle(needs, refusal));
                }
                let Lookup::Present(current) = staging.lookup(&key) else {
                    continue;
                };
                let staged = if reference.on_delete == OnDelete::Cascade {
                    queue.push_back((op_index, key.clone()));
                    stage_delete(cx, staging, op_index, child, key, &current)
                } else {
                    stage_clear(
                        cx,
                        staging,
                        op_index,
                        child,
                        key,
                        &current,
                        reference.column,
                    )
                };
                staged.map_err(|stop| match stop {
                    Stop::Refused(refusal) => settle(std::mem::take(&mut needs), *refusal),
                    other => other,
                })?;
            }
        }
    }
    if needs == Needs::default() {
        return Ok(restricted);
    }
    for Restricted { of, .. } in restricted {
        if let Err((of, limit)) = staging.children(of, 1) {
            needs.children.insert(of.limited(limit));
        }
    }
    Err(Stop::Unknown(needs))
}

fn restrict(
    cx: &Context<'_>,
    staging: &Staging<'_>,
    restricted: Vec<Restricted>,
) -> Result<(), Stop> {
    let mut needs = Needs::default();
    for Restricted { op_index, of } in restricted {
        let child = of.child;
        match staging.children(of, 1) {
            Err((of, limit)) => {
                needs.children.insert(of.limited(limit));
            }
            Ok(children) if children.is_empty() => {}
            Ok(_) => {
                let mut refusal = violation(op_index, "other rows still reference the row");
                refusal.details = reference_details(
                    "restricted_delete",
                    None,
                    &[("child", &cx.env.schema.table_at(child).name)],
                );
                return Err(settle(needs, refusal));
            }
        }
    }
    if needs == Needs::default() {
        Ok(())
    } else {
        Err(Stop::Unknown(needs))
    }
}

pub(super) fn children_of(child: TableId, column: usize, parent_row: &Arc<str>) -> ChildrenOf {
    ChildrenOf {
        child,
        // A table has far fewer columns than that: each is a SQL column.
        column: u16::try_from(column).unwrap_or(u16::MAX),
        parent_row: Arc::clone(parent_row),
    }
}

fn violation(op_index: usize, message: &'static str) -> Refusal {
    Refusal::error(op_index, ErrorCode::ReferenceViolation, message)
}

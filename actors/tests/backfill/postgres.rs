//! The same on Postgres.

use crate::coordinator::two_coordinators;
use crate::crashes::{every_death_ends_alike, with_changes};
use crate::life::under_pushes;
use crate::owners::two_processes;
use crate::world::*;

#[actix::test]
async fn both_kinds_activate_under_pushes_on_postgres() {
    under_pushes(Home::postgres()).await;
}

#[actix::test]
async fn a_death_at_any_step_on_postgres_changes_nothing_in_the_end() {
    every_death_ends_alike(Home::postgres, COLUMN, true, &with_changes(), &[1]).await;
}

#[actix::test]
async fn two_processes_on_postgres_end_with_the_same_rows() {
    two_processes(Home::postgres()).await;
}

#[actix::test]
async fn of_two_coordinators_on_postgres_one_migrates() {
    two_coordinators(Home::postgres()).await;
}

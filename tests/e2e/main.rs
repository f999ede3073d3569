//! End-to-end tests: the real binary, real sockets, a real
//! database file or Postgres server.
#![allow(clippy::unwrap_used)]

mod budget;
mod conflict;
mod control;
mod control_backfills;
mod control_maintenance;
mod control_partitions;
mod convergence;
mod crash;
mod demo_migration;
mod hostile;
mod migration;
mod operation;
mod outage;
mod panel;
mod process;
mod processes;
mod reference;
mod refusal;
mod replay;
mod roles;
mod scenario;
#[path = "../migrations/sql.rs"]
#[allow(dead_code)]
mod sql;
mod starting;
mod unique;
mod upgrade;

//! End-to-end tests: the real binary, real sockets, a real database file.

mod conflict;
mod convergence;
mod crash;
mod hostile;
mod operation;
mod process;
mod replay;
mod scenario;

//! What Postgres does without a server in front of it: the usual way to give commits
//! a sequence number, and the inserts alone.

mod database;
mod floor;
mod rowlock;
mod rows;

use crate::cli::{Yardstick, YardstickArgs};
use crate::runner::LoadError;

pub use database::{mean_batch, prepare, round_trip};
pub use floor::Floor;
pub use rowlock::RowLock;

/// Runs one yardstick, prints its line and returns the number of failures.
///
/// # Errors
/// When the database cannot be reached or prepared.
pub async fn run(args: &YardstickArgs) -> Result<u64, LoadError> {
    let report = match &args.yardstick {
        Yardstick::Rowlock {
            database,
            clients,
            pace,
        } => {
            prepare(database).await?;
            let yardstick = RowLock {
                database,
                partition: "rowlock-0",
                clients: *clients,
                pace,
            };
            yardstick.run().await?
        }
        Yardstick::Floor {
            database,
            batch,
            clients,
            pace,
        } => {
            prepare(database).await?;
            let yardstick = Floor {
                database,
                partition: "floor-0",
                batch: *batch,
                clients: *clients,
                pace,
            };
            yardstick.run().await?
        }
    };
    println!("{}", report.to_json());
    Ok(report.errors)
}

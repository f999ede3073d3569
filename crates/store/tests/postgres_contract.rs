//! The store contract on a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod postgres_support;

use postgres_support::Postgres;

mod core {
    tidegate_store::contract_tests!(core, crate::Postgres::new);
}
mod reopen {
    tidegate_store::contract_tests!(reopen, crate::Postgres::new);
}
mod sql {
    tidegate_store::contract_tests!(sql, crate::Postgres::new);
}
mod backfills {
    tidegate_store::contract_tests!(backfills, crate::Postgres::new);
}

//! What every backend promises, as test functions. A backend's own test file
//! calls [`crate::contract_tests!`] with a function that makes a [`Harness`]
//! around a new, empty database.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

pub mod agreement;
pub mod ahead;
pub mod backfills;
pub mod chained;
pub mod checkpoints;
pub mod fixture;
pub mod lifecycle;
pub mod migrations;
pub mod operating;
pub mod over;
pub mod passed;
pub mod reads;
pub mod source_rows;
pub mod stored;
pub mod windows;
pub mod writes;

use std::sync::Arc;

use async_trait::async_trait;

use crate::Store;

/// Access to one database under test.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens the database: a new handle, as after a restart.
    async fn open(&self) -> Arc<dyn Store>;
    /// Runs statements that every SQL dialect here understands; the database's words when it refuses.
    async fn try_sql(&self, statements: &str) -> Result<(), String>;
    /// Runs statements that must succeed.
    async fn sql(&self, statements: &str) {
        self.try_sql(statements).await.unwrap();
    }
    /// Rows of a query, every value as text, NULL as `None`.
    async fn query(&self, query: &str) -> Vec<Vec<Option<String>>>;
}

/// Makes one test of each contract function: `core` opens the database once,
/// `gated` wants a gate inside the batch's transaction, `reopen` opens again and again, `sql` looks into it beside the store, `backfills` does
/// so with a store that keeps declared backfills.
#[macro_export]
macro_rules! contract_tests {
    (core, $harness:path) => {
        $crate::contract_tests!(@each $harness, writes:
            every_column_type_is_stored_and_read_back,
            a_lost_cas_writes_nothing,
            two_first_commits_of_a_partition_do_not_both_stand,
            a_batch_of_another_schema_version_is_refused,
            a_unique_violation_fails_only_its_batch,
            a_unique_value_may_move_within_a_batch,
            unique_indexes_are_per_partition,
            partitions_commit_together_and_fail_alone,
            a_recorded_result_is_never_overwritten,
            a_rejection_is_stored_without_a_sequence_number,
            deletes_leave_tombstones_and_inserts_clear_them,
            children_are_found_through_references);
        $crate::contract_tests!(@each $harness, reads:
            nothing_is_served_before_the_schema_is_ensured,
            the_first_authentication_registers_a_partition,
            a_preamble_holds_everything_a_request_needs_first,
            a_snapshot_does_not_move,
            many_snapshots_do_not_stop_writers);
        $crate::contract_tests!(@each $harness, ahead:
            what_is_read_ahead_is_what_the_needs_answer,
            requests_that_ask_at_once_get_each_their_own,
            nothing_read_ahead_is_older_than_its_head,
            a_huge_need_is_answered_whole_or_not_at_all,
            keys_that_no_row_can_have_do_not_fail_a_preamble,
            a_partitions_first_request_may_read_ahead);
        $crate::contract_tests!(@each $harness, chained:
            a_chained_batch_is_written_once_the_one_before_it_is_durable,
            a_batch_after_one_that_stands_is_written_at_once,
            a_batch_after_one_that_does_not_stand_is_unfounded,
            a_batch_tells_its_own_outcome,
            a_batch_that_fails_takes_along_all_that_follow_it,
            chained_batches_land_in_order_whichever_comes_first);
        $crate::contract_tests!(@each $harness, over:
            a_row_that_is_there_is_not_overwritten_by_a_put_over_nothing);
        $crate::contract_tests!(@each $harness, windows:
            a_window_holds_whole_commits,
            a_commit_larger_than_the_limit_still_fits_first,
            a_window_matches_every_effective_key,
            a_window_is_bounded_on_both_sides,
            windows_agree_with_the_definition,
            a_window_is_bounded_by_bytes,
            a_long_window_is_bounded_by_bytes,
            a_scan_is_bounded_by_bytes,
            a_scan_pages_through_rows_in_byte_order,
            a_scan_matches_every_effective_key,
            a_row_that_changes_scope_leaves_its_old_scan);
        $crate::contract_tests!(@each $harness, lifecycle:
            a_prune_moves_the_horizon_up_only,
            a_prune_for_another_epoch_is_refused,
            a_prune_keeps_rows_and_results,
            a_rotation_requires_the_epoch_and_forgets_clients,
            a_client_is_never_bound_to_another_actor,
            commits_are_found_by_time,
            partitions_and_clients_are_listed,
            a_closed_store_refuses_work);
        $crate::contract_tests!(@each $harness, migrations:
            an_appended_column_rewrites_every_row,
            a_version_without_layout_change_keeps_the_floor,
            a_retired_table_goes_with_all_its_rows,
            concurrent_callers_share_one_migration);
        $crate::contract_tests!(@each $harness, operating:
            partitions_are_summarized_page_by_page,
            a_grant_is_replaced_as_a_whole_and_deleted_once);
    };
    (gated, $harness:path) => {
        $crate::contract_tests!(@each $harness, passed:
            the_gate_of_a_batch_is_what_is_read_afterwards,
            the_gate_of_a_batch_knows_the_horizon_and_the_epoch_of_its_time);
    };
    (reopen, $harness:path) => {
        $crate::contract_tests!(@each $harness, writes:
            acknowledged_commits_survive_a_reopen);
        $crate::contract_tests!(@each $harness, migrations:
            a_layout_change_raises_the_layout_floor,
            refused_changes_undo_everything,
            an_equal_version_verifies_the_layouts,
            a_newer_database_is_refused);
        $crate::contract_tests!(@each $harness, operating:
            grants_survive_a_reopen_and_a_migration,
            the_published_version_is_known_before_the_schema_is_ensured,
            a_run_without_migration_has_no_steps);
    };
    (sql, $harness:path) => {
        $crate::contract_tests!(@each $harness, writes:
            reactions_wait_with_the_commit_they_follow_or_not_at_all);
        $crate::contract_tests!(@each $harness, checkpoints:
            the_fence_refuses_older_writers,
            a_fence_refusal_fails_only_its_partition,
            the_fence_refuses_other_programs,
            a_pending_checkpoint_stops_those_who_do_not_declare_it,
            a_pending_checkpoint_of_another_version_is_no_concern,
            the_gate_token_lists_pending_checkpoints_of_all_partitions,
            declarations_are_installed_with_the_migration,
            a_fence_never_falls,
            at_an_equal_version_nothing_is_installed,
            an_undeclared_incomplete_checkpoint_refuses_the_schema,
            one_bad_declaration_undoes_the_migration,
            an_unreadable_payload_undoes_the_migration,
            a_refused_run_is_not_remembered);
        $crate::contract_tests!(@each $harness, operating:
            a_summary_shows_fences_and_partitions_of_other_programs,
            a_dry_run_tells_what_the_migration_then_does,
            a_dry_run_changes_nothing_and_refuses_as_the_migration_does,
            a_migration_that_dies_at_any_step_leaves_no_trace,
            a_table_that_is_not_as_published_is_refused_by_name,
            rows_are_sampled_in_the_wanted_layout_before_and_after_the_migration,
            every_known_partition_gets_its_checkpoint_and_fence);
        $crate::contract_tests!(@each $harness, ahead:
            an_unreadable_result_is_read_ahead_as_such);
        $crate::contract_tests!(@each $harness, passed:
            the_gate_of_a_batch_lists_every_pending_checkpoint);
        $crate::contract_tests!(@each $harness, over:
            a_put_over_nothing_adds_the_row_and_its_index_entries,
            a_put_over_a_tombstone_takes_it_away,
            a_put_over_a_row_takes_the_place_of_its_index_entries,
            a_put_over_a_row_that_is_not_there_adds_it,
            puts_over_everything_and_deletes_share_a_batch,
            a_refused_put_leaves_rows_and_indexes_as_they_were);
        $crate::contract_tests!(@each $harness, stored:
            an_unreadable_result_is_reported_and_kept,
            a_result_recorded_by_another_program_fails_the_batch,
            commit_rows_carry_the_writer_version,
            blob_references_follow_their_rows,
            scope_indexes_follow_their_rows);
    };
    (backfills, $harness:path) => {
        $crate::contract_tests!(@each $harness, agreement:
            operations_agree_with_the_model);
        $crate::contract_tests!(@each $harness, backfills:
            a_declaration_raises_the_fence_with_it,
            a_declaration_never_lowers_a_fence,
            a_name_of_another_version_is_refused,
            declaring_again_returns_the_row_as_it_is,
            a_claim_supersedes_and_keeps_all_but_the_owner,
            only_a_declared_checkpoint_of_that_version_is_claimed,
            claimers_never_share_an_epoch,
            a_superseded_owner_advances_nothing,
            a_page_commits_and_advances_together,
            a_stale_owners_page_is_dropped_whole,
            an_advance_without_commits_passes_the_gate_too,
            a_locked_page_of_a_stale_owner_is_dropped_too,
            the_log_tells_what_changed_above_a_position,
            an_activation_judges_fence_sources_log_and_owner_in_that_order,
            activating_again_is_stale_while_the_log_is_clean,
            an_unclaimed_checkpoint_is_activated_when_nothing_ever_changed,
            checkpoints_are_listed_by_partition_and_name,
            the_pages_of_a_backfill_are_found_oldest_first,
            what_operators_set_outlives_the_process);
        $crate::contract_tests!(@each $harness, source_rows:
            a_range_pages_through_all_rows_in_byte_order,
            rows_are_read_by_key,
            changed_rows_come_by_whole_commits_in_log_order,
            rows_are_counted_and_sampled);
        $crate::contract_tests!(@each $harness, checkpoints:
            a_declaration_for_every_partition_reaches_all_that_are_known);
    };
    (@each $harness:path, $module:ident: $($name:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let harness = $harness();
                    $crate::contract::$module::$name(&harness).await;
                }
            )*
        }
    };
}

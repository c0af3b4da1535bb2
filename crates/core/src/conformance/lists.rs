//! The list of all cases, by what a store must be able to do.
//!
//! Each list is a macro that hands its cases on to another one: to be made tests, or to be made
//! data. So a case is named once, and cannot be a test here and forgotten there.

/// The list. Calls `$then` with the arguments given and all cases.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            claims::an_absent_key_has_no_record
            claims::a_fresh_key_is_granted_with_a_lease_from_now
            claims::a_claim_writes_what_it_was_given
            claims::key_ids_are_told_apart_by_every_byte
            claims::owners_are_told_apart_by_every_bit
            claims::an_owner_that_asks_again_keeps_its_fence
            claims::asking_again_changes_nothing_but_the_lease
            claims::asking_again_does_not_reopen_what_has_ended
            claims::a_loser_sees_the_record_and_the_clock_of_the_store
            claims::another_fingerprint_version_is_another_request
            claims::half_a_proof_is_no_proof
            races::one_of_many_concurrent_claims_wins
            races::many_tasks_on_many_keys_give_each_key_one_owner
            races::of_two_requests_one_wins_and_the_other_is_a_mismatch
            races::one_of_many_takes_over_a_lapsed_lease
            races::an_owner_that_races_itself_gets_one_fence
            races::overlapping_completions_of_one_owner_all_succeed
            races::of_different_answers_exactly_one_is_recorded
            races::completion_and_takeover_cannot_both_win
            races::renewal_and_takeover_cannot_both_win
            races::claims_that_race_a_release_get_one_owner
            races::purges_that_race_claims_never_give_two_owners
            leases::a_live_lease_is_not_taken_over
            leases::a_lapsed_lease_is_respected_for_the_claimants_grace
            leases::takeover_follows_the_effect_class
            leases::a_takeover_writes_the_new_claim
            leases::a_takeover_does_not_forget_that_something_may_have_happened
            leases::a_claim_that_announced_its_send_is_held_when_its_owner_is_lost
            leases::a_send_mark_stays
            leases::a_renewal_counts_from_now
            leases::renewals_answer_each_for_itself_and_in_order
            leases::a_renewal_never_revives
            leases::a_late_owner_that_was_not_replaced_may_still_write
            leases::a_replaced_owner_can_change_nothing
            leases::an_owner_that_gave_its_key_back_can_change_nothing
            fences::fences_rise_across_takeover
            fences::fences_rise_across_release
            fences::fences_rise_across_purge
            fences::fences_rise_though_the_clock_steps_back
            fences::fences_rise_across_reopening
            fences::a_clock_that_steps_back_takes_no_live_lease
            fences::a_clock_that_steps_back_loses_no_answer
            fences::a_clock_that_stepped_back_still_grants
            outcomes::a_replay_equals_what_was_saved
            outcomes::every_tombstone_comes_back_as_it_was_written
            outcomes::a_repeated_completion_is_applied_and_changes_nothing
            outcomes::another_answer_never_replaces_the_one_that_stands
            outcomes::a_recorded_answer_never_changes
            outcomes::a_released_key_is_free
            outcomes::an_unknown_outcome_is_held_unless_it_may_be_repeated
            outcomes::an_unknown_outcome_is_resolved_by_completion
            outcomes::an_unknown_outcome_is_resolved_by_release
            outcomes::an_unknown_outcome_is_not_running
            retention::retention_counts_from_completion
            retention::a_finished_record_tells_its_times
            retention::a_lingering_record_says_that_it_is_too_late
            retention::a_forgotten_record_is_absent_before_it_is_removed
            retention::running_and_unknown_records_never_expire
            retention::a_purge_removes_only_what_is_due
            retention::a_purge_keeps_to_its_limit
            retention::a_purge_strips_lingering_records
            retention::a_stripped_record_still_recognises_its_completion
            retention::a_new_generation_owes_nothing_to_the_old
            retention::endless_spans_do_not_overflow
            retention::another_request_is_a_mismatch_in_every_state
            limits::the_longest_texts_are_kept
            limits::a_text_that_is_too_long_is_rejected
            limits::the_largest_answer_is_kept
            limits::an_answer_that_is_too_large_is_rejected
            durability::every_state_survives_reopening
            durability::a_lease_outlives_a_restart
            durability::a_send_mark_survives_a_restart
            durability::what_is_gone_stays_gone_after_a_restart
            model::a_long_history_agrees_with_the_decision_tables
        }
    };
}

/// The list for stores that can be browsed.
#[doc(hidden)]
#[macro_export]
macro_rules! browse_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            browse::summaries_say_what_the_records_say
            browse::filters_select_what_they_say
            browse::paging_visits_every_record_once
            browse::paging_is_not_disturbed_by_others
            browse::pages_are_bounded
            browse::counting_stops_at_its_cap
            browse::a_key_is_found_in_every_scope
            browse::forgotten_records_are_not_shown
            browse::a_page_tells_the_stores_clock
        }
    };
}

/// The list for stores that erase.
#[doc(hidden)]
#[macro_export]
macro_rules! erase_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            erase::an_erased_answer_is_never_replayed_nor_run_again
            erase::erasing_takes_what_is_personal_and_leaves_the_rest
            erase::erasing_a_running_record_does_not_disturb_its_owner
            erase::erasing_resolves_no_doubt
            erase::erasing_keeps_the_times
            erase::an_expired_record_stays_expired_when_it_is_erased
            erase::an_erased_record_still_recognises_its_completion
            erase::erasing_twice_is_erasing_once
            erase::erasing_an_absent_key_says_so
            erase::another_request_is_a_mismatch_after_erasing
            erase::a_new_attempt_owes_nothing_to_an_erasure
            erase::an_erasure_and_a_completion_come_one_after_the_other
            erase::what_was_erased_stays_erased_after_a_restart
            model::a_long_history_agrees_while_somebody_erases
        }
    };
}

/// The list for stores that erase and can be browsed.
#[doc(hidden)]
#[macro_export]
macro_rules! erase_browse_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            erase::an_erased_record_is_not_found_by_what_was_personal
        }
    };
}

/// The list for stores that take records from elsewhere.
#[doc(hidden)]
#[macro_export]
macro_rules! restore_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            restore::a_restored_answer_is_replayed
            restore::every_state_is_restored_as_it_was
            restore::an_older_record_never_overwrites
            restore::under_one_fence_progress_wins
            restore::a_newer_record_replaces_the_older_one
            restore::a_restored_lease_proves_what_it_proved
            restore::a_restored_lease_lapses_in_time
            restore::fences_rise_above_a_restored_record
            restore::a_restored_doubt_stays_a_doubt
            restore::a_restored_tombstone_refuses
            restore::the_largest_answer_is_restored
            restore::a_restored_record_keeps_its_times
            restore::restoring_twice_is_restoring_once
            restore::a_record_that_breaks_a_limit_is_not_restored
            restore::restorations_and_claims_come_one_after_the_other
            restore::what_was_restored_survives_a_restart
            restore::the_lineage_survives_a_restart
        }
    };
}

/// The list for stores that take records from elsewhere and can be browsed.
#[doc(hidden)]
#[macro_export]
macro_rules! restore_browse_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            restore::restored_records_are_shown
        }
    };
}

/// The list for stores that wake.
#[doc(hidden)]
#[macro_export]
macro_rules! wake_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            wake::a_completion_wakes_a_watcher
            wake::a_release_wakes_a_watcher
            wake::an_unknown_outcome_wakes_a_watcher
            wake::every_waiting_watcher_is_woken
            wake::a_watcher_hears_of_every_key
            wake::giving_up_on_a_wake_up_loses_nothing
        }
    };
}

/// The list for rigs with a clock that can be read.
#[doc(hidden)]
#[macro_export]
macro_rules! clock_conformance_cases {
    ($then:ident($($arguments:tt)*)) => {
        $crate::$then! { ($($arguments)*)
            clocks::every_time_is_read_from_the_stores_clock
            clocks::a_lease_ends_at_its_moment
            clocks::retention_ends_at_its_moment
            clocks::a_step_back_costs_no_retention
            clocks::a_clock_that_was_far_ahead_makes_no_record_immortal
        }
    };
}

//! Every case of the suite can fail: for each there is a store with a planted bug that it catches.
//!
//! `cargo test -p oncekey-core --test suite_has_teeth -- --nocapture` prints the table.

#![allow(clippy::print_stdout, reason = "the table is what people run this test for")]

mod broken;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use oncekey_core::Store;
use oncekey_core::conformance::model::{Op, agrees_while_erasing, agrees_with_the_model};
use oncekey_core::conformance::{
    Case, Rig, Running, browse_cases, cases, clock_cases, erase_browse_cases, erase_cases,
    restore_browse_cases, restore_cases, wake_cases,
};

use self::broken::{BrokenRig, Bug};

/// Which case catches which bug. The same bug may be caught by many; here is who must.
const TEETH: &[(&str, Bug)] = &[
    ("an_absent_key_has_no_record", Bug::CompletionMakesRecords),
    ("a_fresh_key_is_granted_with_a_lease_from_now", Bug::LeaseFromAStaleClock),
    ("a_claim_writes_what_it_was_given", Bug::LosesTheRoute),
    ("key_ids_are_told_apart_by_every_byte", Bug::KeysAreText),
    ("owners_are_told_apart_by_every_bit", Bug::OwnersByPrefix),
    ("an_owner_that_asks_again_keeps_its_fence", Bug::AskingAgainIsANewAttempt),
    ("asking_again_changes_nothing_but_the_lease", Bug::AskingAgainRewrites),
    ("asking_again_does_not_reopen_what_has_ended", Bug::OwnerMayAlwaysRun),
    ("a_loser_sees_the_record_and_the_clock_of_the_store", Bug::LosersSeeAnOldClock),
    ("another_fingerprint_version_is_another_request", Bug::FingerprintVersionIgnored),
    ("half_a_proof_is_no_proof", Bug::OwnerNotCompared),
    ("half_a_proof_is_no_proof", Bug::FenceNotCompared),
    ("one_of_many_concurrent_claims_wins", Bug::ClaimInTwoSteps),
    ("many_tasks_on_many_keys_give_each_key_one_owner", Bug::ClaimInTwoSteps),
    ("of_two_requests_one_wins_and_the_other_is_a_mismatch", Bug::FingerprintComparedInASecondStep),
    ("one_of_many_takes_over_a_lapsed_lease", Bug::TakeoverInTwoSteps),
    ("an_owner_that_races_itself_gets_one_fence", Bug::ClaimInTwoSteps),
    ("overlapping_completions_of_one_owner_all_succeed", Bug::RepeatedCompletionIsFenced),
    ("of_different_answers_exactly_one_is_recorded", Bug::CompletionInTwoSteps),
    ("completion_and_takeover_cannot_both_win", Bug::CompletionInTwoSteps),
    ("renewal_and_takeover_cannot_both_win", Bug::RenewalInTwoSteps),
    ("claims_that_race_a_release_get_one_owner", Bug::ClaimInTwoSteps),
    ("purges_that_race_claims_never_give_two_owners", Bug::PurgeInTwoSteps),
    ("a_live_lease_is_not_taken_over", Bug::TakesLiveLeases),
    ("a_lapsed_lease_is_respected_for_the_claimants_grace", Bug::GraceIgnored),
    ("takeover_follows_the_effect_class", Bug::TakesOverWhatWasSent),
    ("takeover_follows_the_effect_class", Bug::OnlyTheNewClassCounts),
    ("a_takeover_writes_the_new_claim", Bug::TakeoverKeepsTheOldRequest),
    ("a_takeover_does_not_forget_that_something_may_have_happened", Bug::TakeoverForgetsTheSend),
    ("a_claim_that_announced_its_send_is_held_when_its_owner_is_lost", Bug::MergedSendMarkLost),
    ("a_send_mark_stays", Bug::RenewalClearsTheSendMark),
    ("a_renewal_counts_from_now", Bug::RenewalAddsToTheOldEnd),
    ("renewals_answer_each_for_itself_and_in_order", Bug::RenewalsInKeyOrder),
    ("a_renewal_never_revives", Bug::RenewalRevives),
    ("a_late_owner_that_was_not_replaced_may_still_write", Bug::LateOwnersAreFenced),
    ("a_replaced_owner_can_change_nothing", Bug::ProofNotCompared),
    ("an_owner_that_gave_its_key_back_can_change_nothing", Bug::FenceNotCompared),
    ("fences_rise_across_takeover", Bug::FenceStaysAtTakeover),
    ("fences_rise_across_release", Bug::FencePerRow),
    ("fences_rise_across_purge", Bug::FencePerRow),
    ("fences_rise_though_the_clock_steps_back", Bug::FenceIsTheClock),
    ("fences_rise_across_reopening", Bug::HighestFenceForgottenAtRestart),
    ("a_clock_that_steps_back_takes_no_live_lease", Bug::LeasesFromTheFutureAreFree),
    ("a_clock_that_steps_back_loses_no_answer", Bug::AnswersFromTheFutureAreGone),
    ("a_clock_that_stepped_back_still_grants", Bug::NoGrantsWhileTheClockIsBehind),
    ("a_replay_equals_what_was_saved", Bug::RepeatedHeadersAreJoined),
    ("every_tombstone_comes_back_as_it_was_written", Bug::TombstonesForgetTheStatus),
    ("a_repeated_completion_is_applied_and_changes_nothing", Bug::RepeatedCompletionMovesTheTimes),
    ("another_answer_never_replaces_the_one_that_stands", Bug::LastAnswerWins),
    ("a_recorded_answer_never_changes", Bug::DoneCanBeReleased),
    ("a_released_key_is_free", Bug::ReleaseOnlyLapses),
    ("an_unknown_outcome_is_held_unless_it_may_be_repeated", Bug::UnknownIsTakenOver),
    ("an_unknown_outcome_is_resolved_by_completion", Bug::UnknownCannotBeCompleted),
    ("an_unknown_outcome_is_resolved_by_release", Bug::UnknownCannotBeReleased),
    ("an_unknown_outcome_is_not_running", Bug::UnknownMovesItsTime),
    ("retention_counts_from_completion", Bug::RetentionFromTheClaim),
    ("a_finished_record_tells_its_times", Bug::NoLinger),
    ("a_lingering_record_says_that_it_is_too_late", Bug::ExpiredIsFree),
    ("a_forgotten_record_is_absent_before_it_is_removed", Bug::ForgottenUntilRemoved),
    ("running_and_unknown_records_never_expire", Bug::EverythingExpires),
    ("a_purge_removes_only_what_is_due", Bug::PurgeTakesUnknown),
    ("a_purge_keeps_to_its_limit", Bug::PurgeIgnoresItsLimit),
    ("a_purge_strips_lingering_records", Bug::StrippingForgetsTheStatus),
    ("a_stripped_record_still_recognises_its_completion", Bug::StrippingForgetsTheOutcome),
    ("a_new_generation_owes_nothing_to_the_old", Bug::PurgeByAnOldIndex),
    ("endless_spans_do_not_overflow", Bug::TimesWrapAround),
    ("another_request_is_a_mismatch_in_every_state", Bug::FingerprintComparedOnlyWhenDone),
    ("the_longest_texts_are_kept", Bug::TextsAreCut),
    ("a_text_that_is_too_long_is_rejected", Bug::TextsAreNotChecked),
    ("the_largest_answer_is_kept", Bug::BodiesAreCut),
    ("an_answer_that_is_too_large_is_rejected", Bug::AnswersAreNotChecked),
    ("every_state_survives_reopening", Bug::AnswersAreNotDurable),
    ("a_lease_outlives_a_restart", Bug::LeasesAreNotDurable),
    ("a_send_mark_survives_a_restart", Bug::SendMarksAreNotDurable),
    ("what_is_gone_stays_gone_after_a_restart", Bug::RemovalsAreNotDurable),
    ("every_time_is_read_from_the_stores_clock", Bug::TimesInSeconds),
    ("a_lease_ends_at_its_moment", Bug::LeaseEndsTooLate),
    ("retention_ends_at_its_moment", Bug::RetentionEndsTooLate),
    ("a_step_back_costs_no_retention", Bug::RetentionFromTheClockAlone),
    ("a_clock_that_was_far_ahead_makes_no_record_immortal", Bug::FenceCountsForEver),
    ("summaries_say_what_the_records_say", Bug::SummariesWithoutStatus),
    ("filters_select_what_they_say", Bug::ScopeFilterIgnored),
    ("paging_visits_every_record_once", Bug::CursorWithoutTheId),
    ("paging_is_not_disturbed_by_others", Bug::PagingByOffset),
    ("pages_are_bounded", Bug::PagesWithoutBound),
    ("counting_stops_at_its_cap", Bug::CountingWithoutCap),
    ("a_key_is_found_in_every_scope", Bug::FindIgnoresCase),
    ("forgotten_records_are_not_shown", Bug::ShowsTheForgotten),
    ("a_page_tells_the_stores_clock", Bug::PagesWithAnOldClock),
    ("an_erased_answer_is_never_replayed_nor_run_again", Bug::ErasureLeavesTheAnswer),
    ("an_erased_answer_is_never_replayed_nor_run_again", Bug::ErasureRemovesTheRecord),
    ("erasing_takes_what_is_personal_and_leaves_the_rest", Bug::ErasureTakesTheRoute),
    ("erasing_takes_what_is_personal_and_leaves_the_rest", Bug::ErasureTakesTheSendMark),
    ("erasing_a_running_record_does_not_disturb_its_owner", Bug::ErasureEndsTheLease),
    ("erasing_resolves_no_doubt", Bug::ErasureCompletes),
    ("erasing_keeps_the_times", Bug::ErasureMovesTheTimes),
    ("an_expired_record_stays_expired_when_it_is_erased", Bug::ErasureHidesExpiry),
    ("an_erased_record_still_recognises_its_completion", Bug::ErasureForgetsTheOutcome),
    ("erasing_twice_is_erasing_once", Bug::ErasedTwiceIsAbsent),
    ("erasing_an_absent_key_says_so", Bug::AbsentIsErased),
    ("erasing_an_absent_key_says_so", Bug::ErasesTheForgotten),
    ("another_request_is_a_mismatch_after_erasing", Bug::ErasureTakesTheFingerprint),
    ("a_new_attempt_owes_nothing_to_an_erasure", Bug::ErasureSticks),
    ("an_erasure_and_a_completion_come_one_after_the_other", Bug::ErasureInTwoSteps),
    ("what_was_erased_stays_erased_after_a_restart", Bug::ErasuresAreNotDurable),
    ("an_erased_record_is_not_found_by_what_was_personal", Bug::ErasureKeepsTheScope),
    ("a_restored_answer_is_replayed", Bug::RestoreLosesTheAnswer),
    ("every_state_is_restored_as_it_was", Bug::RestoreTakesItsOwnTime),
    ("an_older_record_never_overwrites", Bug::RestoreOverwrites),
    ("under_one_fence_progress_wins", Bug::RestoreComparesFencesAlone),
    ("under_one_fence_progress_wins", Bug::RestoreIgnoresTheSendMark),
    ("a_newer_record_replaces_the_older_one", Bug::RestoreKeepsTheOldRequest),
    ("a_restored_lease_proves_what_it_proved", Bug::RestoreForgetsTheOwner),
    ("a_restored_lease_lapses_in_time", Bug::RestoreRenewsTheLease),
    ("fences_rise_above_a_restored_record", Bug::RestoreLeavesTheFence),
    ("a_restored_doubt_stays_a_doubt", Bug::RestoreReleasesDoubts),
    ("a_restored_tombstone_refuses", Bug::RestoreSkipsTombstones),
    ("the_largest_answer_is_restored", Bug::RestoreCutsBodies),
    ("a_restored_record_keeps_its_times", Bug::RestoredRecordsStay),
    ("restoring_twice_is_restoring_once", Bug::RestoringAgainWritesAgain),
    ("a_record_that_breaks_a_limit_is_not_restored", Bug::RestoresAreNotChecked),
    ("restorations_and_claims_come_one_after_the_other", Bug::RestoreInTwoSteps),
    ("what_was_restored_survives_a_restart", Bug::RestoresAreNotDurable),
    ("the_lineage_survives_a_restart", Bug::LineageOfTheProcess),
    ("restored_records_are_shown", Bug::RestoredRecordsAreNotShown),
    ("a_long_history_agrees_with_the_decision_tables", Bug::MergedSendMarkLost),
    ("a_long_history_agrees_while_somebody_erases", Bug::ErasureMovesTheTimes),
    ("a_completion_wakes_a_watcher", Bug::CompletionIsSilent),
    ("a_release_wakes_a_watcher", Bug::ReleaseIsSilent),
    ("an_unknown_outcome_wakes_a_watcher", Bug::UnknownIsSilent),
    ("every_waiting_watcher_is_woken", Bug::OnlyTheFirstWatcherIsWoken),
    ("a_watcher_hears_of_every_key", Bug::EveryTenthWakeUpIsLost),
    ("giving_up_on_a_wake_up_loses_nothing", Bug::DroppedQuestionsLoseWakeUps),
];

/// A race that is lost by chance is run again: a bug that shows once in ten is a bug that shows.
const TRIES: usize = 10;

/// A case that hangs on its broken store has caught it, too; but the suite must end.
const PATIENCE: Duration = Duration::from_secs(30);

type Runner = for<'r> fn(&'r BrokenRig) -> Running<'r>;

fn all_cases() -> Vec<Case<BrokenRig>> {
    let mut all = cases();
    all.extend(clock_cases());
    all.extend(browse_cases());
    all.extend(erase_cases());
    all.extend(erase_browse_cases());
    all.extend(restore_cases());
    all.extend(restore_browse_cases());
    all.extend(wake_cases());
    all
}

/// Runs a case on a store with this bug. `Err` is what the case said when it failed.
async fn run(case: Runner, bug: Option<Bug>) -> Result<(), String> {
    let task = tokio::spawn(async move {
        let rig = BrokenRig::new(bug);
        tokio::time::timeout(PATIENCE, case(&rig)).await
    });
    match task.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(format!("did not end within {PATIENCE:?}")),
        Err(error) => Err(message(&*error.into_panic())),
    }
}

/// Says nothing about the panics that are wanted: those of the cases, in their tasks.
fn hush() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("tokio-rt-worker") {
            usual(panic);
        }
    }));
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").lines().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_case_has_a_broken_store() {
    let cases: BTreeSet<&str> = all_cases().iter().map(|case| case.name).collect();
    let teeth: BTreeSet<&str> = TEETH.iter().map(|(case, _)| *case).collect();
    let toothless: Vec<_> = cases.difference(&teeth).collect();
    assert!(toothless.is_empty(), "no planted bug shows that these can fail: {toothless:?}");
    let gone: Vec<_> = teeth.difference(&cases).collect();
    assert!(gone.is_empty(), "there is no such case: {gone:?}");
}

/// A case that is written but not listed would never run.
#[test]
fn every_case_that_is_written_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance");
    let mut written = BTreeSet::new();
    for file in std::fs::read_dir(folder).expect("the suite has a folder") {
        let path = file.expect("the folder can be read").path();
        let source = std::fs::read_to_string(&path).expect("the suite can be read");
        for function in source.split("pub async fn ").skip(1) {
            let (name, rest) = function.split_once('(').expect("a function has parameters");
            let parameters = rest.split(')').next().unwrap_or_default().trim();
            if parameters.starts_with("rig: &impl Rig") && !parameters.contains("history") {
                written.insert(name.to_owned());
            }
        }
    }
    let listed: BTreeSet<String> = all_cases().iter().map(|case| case.name.to_owned()).collect();
    let unlisted: Vec<_> = written.symmetric_difference(&listed).collect();
    assert!(unlisted.is_empty(), "every case is in the list of its macro: {unlisted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_passes_without_a_bug() {
    hush();
    for case in all_cases() {
        let outcome = run(case.run, None).await;
        assert_eq!(outcome, Ok(()), "{} fails on a store without a bug", case.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_case_catches_its_bug() {
    hush();
    let cases = all_cases();
    let mut missed = Vec::new();
    println!("| case | planted bug | what the case said |\n|---|---|---|");
    // A few at a time: some wait for a wake-up that does not come.
    for rows in TEETH.chunks(8) {
        let rows = rows.iter().filter_map(|(name, bug)| {
            let case = cases.iter().find(|case| case.name == *name)?;
            Some((name, bug, tokio::spawn(bite(case.run, *bug))))
        });
        for (name, bug, bite) in rows.collect::<Vec<_>>() {
            let caught = bite.await.expect("a bite reports the case's panic as a value");
            let text = caught.as_deref().unwrap_or("NOTHING: the bug was not caught");
            println!("| {name} | {bug:?} | {} |", text.chars().take(110).collect::<String>());
            if caught.is_none() {
                missed.push((name, bug));
            }
        }
    }
    assert!(missed.is_empty(), "these bugs were not caught: {missed:?}");
}

/// What the case says about a store with this bug, within a few tries.
async fn bite(case: Runner, bug: Bug) -> Option<String> {
    for _ in 0..TRIES {
        if let Err(said) = run(case, Some(bug)).await {
            return Some(said);
        }
    }
    None
}

/// What random histories must find by themselves, without a case that names it.
const FOUND_BY_HISTORIES: &[Bug] = &[
    Bug::CompletionMakesRecords,
    Bug::LeaseFromAStaleClock,
    Bug::LosesTheRoute,
    Bug::AskingAgainIsANewAttempt,
    Bug::AskingAgainRewrites,
    Bug::OwnerMayAlwaysRun,
    Bug::LosersSeeAnOldClock,
    Bug::FingerprintVersionIgnored,
    Bug::OwnerNotCompared,
    Bug::FenceNotCompared,
    Bug::ProofNotCompared,
    Bug::TakesLiveLeases,
    Bug::GraceIgnored,
    Bug::TakesOverWhatWasSent,
    Bug::OnlyTheNewClassCounts,
    Bug::TakeoverKeepsTheOldRequest,
    Bug::TakeoverForgetsTheSend,
    Bug::MergedSendMarkLost,
    Bug::RenewalClearsTheSendMark,
    Bug::RenewalAddsToTheOldEnd,
    Bug::RenewalsInKeyOrder,
    Bug::RenewalRevives,
    Bug::LateOwnersAreFenced,
    Bug::FenceStaysAtTakeover,
    Bug::FencePerRow,
    Bug::FenceIsTheClock,
    Bug::HighestFenceForgottenAtRestart,
    Bug::LeasesFromTheFutureAreFree,
    Bug::AnswersFromTheFutureAreGone,
    Bug::NoGrantsWhileTheClockIsBehind,
    Bug::TimesInSeconds,
    Bug::LeaseEndsTooLate,
    Bug::RetentionEndsTooLate,
    Bug::RetentionFromTheClockAlone,
    Bug::RepeatedCompletionIsFenced,
    Bug::RepeatedCompletionMovesTheTimes,
    Bug::LastAnswerWins,
    Bug::RepeatedHeadersAreJoined,
    Bug::TombstonesForgetTheStatus,
    Bug::DoneCanBeReleased,
    Bug::ReleaseOnlyLapses,
    Bug::UnknownIsTakenOver,
    Bug::UnknownCannotBeCompleted,
    Bug::UnknownCannotBeReleased,
    Bug::UnknownMovesItsTime,
    Bug::RetentionFromTheClaim,
    Bug::NoLinger,
    Bug::ExpiredIsFree,
    Bug::ForgottenUntilRemoved,
    Bug::PurgeTakesUnknown,
    Bug::PurgeIgnoresItsLimit,
    Bug::StrippingForgetsTheStatus,
    Bug::StrippingForgetsTheOutcome,
    Bug::PurgeByAnOldIndex,
    Bug::FingerprintComparedOnlyWhenDone,
    Bug::AnswersAreNotDurable,
    Bug::LeasesAreNotDurable,
    Bug::SendMarksAreNotDurable,
    Bug::RemovalsAreNotDurable,
];

/// What they must find while somebody erases.
const FOUND_WHILE_ERASING: &[Bug] = &[
    Bug::ErasureRemovesTheRecord,
    Bug::ErasureLeavesTheAnswer,
    Bug::ErasureTakesTheRoute,
    Bug::ErasureEndsTheLease,
    Bug::ErasureTakesTheSendMark,
    Bug::ErasureCompletes,
    Bug::ErasureMovesTheTimes,
    Bug::ErasureHidesExpiry,
    Bug::ErasureForgetsTheOutcome,
    Bug::ErasedTwiceIsAbsent,
    Bug::AbsentIsErased,
    Bug::ErasesTheForgotten,
    Bug::ErasureTakesTheFingerprint,
    Bug::ErasureSticks,
    Bug::ErasuresAreNotDurable,
    Bug::ErasureKeepsTheScope,
];

/// What the exhaustive search of a small world must find: a bug for each invariant it checks.
const FOUND_BY_SEARCH: &[Bug] = &[
    Bug::TakeoverForgetsTheSend,
    Bug::TakesLiveLeases,
    Bug::GraceIgnored,
    Bug::FenceStaysAtTakeover,
    Bug::FencePerRow,
    Bug::FenceIsTheClock,
    Bug::OwnerNotCompared,
    Bug::FenceNotCompared,
    Bug::ProofNotCompared,
    Bug::AskingAgainIsANewAttempt,
    Bug::TakesOverWhatWasSent,
    Bug::OnlyTheNewClassCounts,
    Bug::RenewalRevives,
    Bug::LastAnswerWins,
    Bug::DoneCanBeReleased,
    Bug::StrippingForgetsTheOutcome,
    Bug::UnknownIsTakenOver,
    Bug::OwnerMayAlwaysRun,
    Bug::FingerprintComparedOnlyWhenDone,
    Bug::RetentionFromTheClaim,
    Bug::ForgottenUntilRemoved,
    Bug::PurgeTakesUnknown,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_histories_have_teeth() {
    hush();
    let mut missed = Vec::new();
    for bug in FOUND_BY_HISTORIES.iter().copied() {
        let found = tokio::spawn(async move {
            for seed in 0..200 {
                agrees_with_the_model(&BrokenRig::new(Some(bug)), &Op::history(seed, 60)).await;
            }
        });
        if found.await.is_ok() {
            missed.push(bug);
        }
    }
    for bug in FOUND_WHILE_ERASING.iter().copied() {
        let found = tokio::spawn(async move {
            for seed in 0..200 {
                agrees_while_erasing(&BrokenRig::new(Some(bug)), &Op::history(seed, 60)).await;
            }
        });
        if found.await.is_ok() {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "random histories did not find {missed:?}");
    agrees_with_the_model(&BrokenRig::new(None), &Op::history(0, 200)).await;
    agrees_while_erasing(&BrokenRig::new(None), &Op::history(0, 200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_search_of_a_small_world_has_teeth() {
    hush();
    let mut missed = Vec::new();
    for bug in FOUND_BY_SEARCH.iter().copied() {
        let search = tokio::spawn(async move {
            world::search(|| {
                let rig = BrokenRig::new(Some(bug));
                (Arc::clone(&rig.clock), rig.store() as Arc<dyn Store>)
            })
        });
        match search.await {
            Ok(_) => missed.push(bug),
            Err(error) => {
                let said = message(&*error.into_panic());
                println!("{bug:?}: {}", said.chars().take(300).collect::<String>());
            }
        }
    }
    assert!(missed.is_empty(), "the search did not find {missed:?}");
}

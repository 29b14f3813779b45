//! Runs the models.

use ferrocomm_models::arena_model::Fences;
use ferrocomm_models::{arena_model, stream, window_model, work_model};

#[test]
fn bytes_pass_the_ring_in_order() {
    stream::bytes_pass_the_ring_in_order(2, 4);
}

#[test]
fn bytes_pass_a_larger_ring_in_order() {
    stream::bytes_pass_the_ring_in_order(4, 6);
}

#[test]
fn no_wake_up_is_lost() {
    stream::no_wake_up_is_lost(1, 2);
}

#[test]
fn no_wake_up_is_lost_where_room_is_ample() {
    stream::no_wake_up_is_lost(4, 3);
}

#[test]
fn each_callback_runs_once() {
    work_model::each_callback_runs_once();
}

#[test]
fn the_first_outcome_stands() {
    work_model::the_first_outcome_stands();
}

// Two rounds later a slot is used again, four rounds later an entry.
#[test]
fn payloads_come_with_their_flag() {
    arena_model::payloads_come_with_their_flag(5);
}

#[test]
fn who_waits_for_nobody_overwrites_nothing() {
    arena_model::who_waits_for_nobody_overwrites_nothing(6);
}

#[test]
fn the_last_to_post_wakes_who_waits_for_all() {
    arena_model::the_last_to_post_wakes_who_waits_for_all(Fences::Own);
}

#[test]
fn who_is_waited_for_alone_wakes() {
    arena_model::who_is_waited_for_alone_wakes(Fences::Own);
}

#[test]
fn who_was_woken_too_early_is_woken_again() {
    arena_model::who_was_woken_too_early_is_woken_again(Fences::Own);
}

#[test]
fn two_who_sleep_in_turn_go_on() {
    arena_model::two_who_sleep_in_turn_go_on(Fences::Own, 2);
}

#[test]
fn a_sleeper_orders_who_is_waited_for_alone() {
    arena_model::who_is_waited_for_alone_wakes(Fences::OfSleepers);
}

#[test]
fn a_sleeper_orders_the_last_to_post() {
    arena_model::the_last_to_post_wakes_who_waits_for_all(Fences::OfSleepers);
}

#[test]
fn a_sleeper_woken_too_early_orders_again() {
    arena_model::who_was_woken_too_early_is_woken_again(Fences::OfSleepers);
}

#[test]
fn sleepers_in_turn_order_each_other() {
    arena_model::two_who_sleep_in_turn_go_on(Fences::OfSleepers, 2);
}

// That the models see what the barrier is for.
#[test]
#[should_panic(expected = "deadlock")]
fn without_any_fence_a_wake_up_is_lost() {
    arena_model::who_is_waited_for_alone_wakes(Fences::Nobodys);
}

#[test]
fn a_signal_shows_what_was_put_and_wakes_who_waits_for_it() {
    window_model::signals(1, true);
}

#[test]
fn signals_of_two_ranks_wake_who_waits_for_both() {
    window_model::signals(2, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_fence_a_signal_wakes_nobody() {
    window_model::signals(1, false);
}

//! Runs the models.

use ferrocomm_models::{stream, work_model};

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

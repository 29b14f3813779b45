//! Gather: everyone's part straight to the root, also an empty one, since only the root knows
//! whether all are empty.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::Builder;
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Region,
    outputs: Option<&Regions>,
    root: usize,
) {
    let Some(outputs) = outputs else {
        return b.send(root, 0, Place::Client(input));
    };
    let own = outputs.of(scene.me);
    let input = b.apart(input, own, (0..scene.size).map(|rank| outputs.of(rank)));
    for rank in scene.senders() {
        b.recv(rank, 0, Place::Client(outputs.of(rank)));
    }
    b.copy(input, Place::Client(own));
}

//! Scatter: every rank's part straight from the root, also an empty one, since only the root knows
//! whether all are empty.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::Builder;
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    inputs: Option<&Regions>,
    output: Region,
    root: usize,
) {
    let Some(inputs) = inputs else {
        return b.recv(root, 0, Place::Client(output));
    };
    // The output may be the own input; any other input in it would be overwritten before it left.
    let own = b.apart(inputs.of(scene.me), output, []);
    for rank in scene.receivers() {
        let part = b.apart(inputs.of(rank), Region::EMPTY, [output]);
        b.send(rank, 0, part);
    }
    b.copy(own, Place::Client(output));
}

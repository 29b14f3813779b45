//! Scatter: every rank's part straight from the root, also an empty one, since only the root knows
//! whether all are empty.
//!
//! Small parts for machines other than the root's go together, in one message per machine. Must not
//! know how messages travel.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    inputs: Option<&Regions>,
    output: Region,
    root: usize,
) {
    let together = scene.goes_together(output.bytes);
    let Some(inputs) = inputs else {
        let output = Place::Client(output);
        return if together && scene.machine() != scene.topology.seat(root).0 {
            split(b, scene, output, root)
        } else {
            b.recv(scene.at(root), output)
        };
    };
    // The output may be the own input; any other input in it would be overwritten before it left.
    let own = b.apart(inputs.of(scene.me), output, []);
    for rank in scene.receivers() {
        let (machine, place) = scene.topology.seat(rank);
        if !together || machine == scene.machine() {
            let part = b.apart(inputs.of(rank), Region::EMPTY, [output]);
            b.send(scene.at(rank), part);
        } else if place == 0 {
            let ranks = scene.topology.ranks(machine);
            let all = b.scratch(output.bytes * ranks.len());
            for (place, rank) in ranks.iter().enumerate() {
                let part = slice(all, place * output.bytes, output.bytes);
                b.copy(Place::Client(inputs.of(*rank)), part);
            }
            b.send(rank, all);
        }
    }
    b.copy(own, Place::Client(output));
}

/// On another machine than the root's: the first rank hands out what comes for its machine.
fn split(b: &mut Builder, scene: Scene<'_>, output: Place, root: usize) {
    let home = scene.at_home();
    if home.me > 0 {
        return b.recv(home.at(0), output);
    }
    let length = bytes(output);
    let all = b.scratch(length * home.size);
    b.recv(root, all);
    b.wait_all();
    for number in home.receivers() {
        b.send(home.at(number), slice(all, number * length, length));
    }
    b.copy(slice(all, 0, length), output);
}

//! Gather: everyone's part straight to the root, also an empty one, since only the root knows
//! whether all are empty.
//!
//! Small parts of machines other than the root's go together, in one message per machine. Must not
//! know how messages travel.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Region,
    outputs: Option<&Regions>,
    root: usize,
) {
    let together = scene.goes_together(input.bytes);
    let Some(outputs) = outputs else {
        let input = Place::Client(input);
        return if together && scene.machine() != scene.topology.seat(root).0 {
            join(b, scene, input, root)
        } else {
            b.send(scene.at(root), input)
        };
    };
    let own = outputs.of(scene.me);
    let input = b.apart(input, own, (0..scene.size).map(|rank| outputs.of(rank)));
    let mut joined = Vec::new();
    for rank in scene.senders() {
        let (machine, place) = scene.topology.seat(rank);
        if !together || machine == scene.machine() {
            b.recv(scene.at(rank), Place::Client(outputs.of(rank)));
        } else if place == 0 {
            let ranks = scene.topology.ranks(machine);
            let all = b.scratch(own.bytes * ranks.len());
            b.recv(rank, all);
            joined.push((all, ranks));
        }
    }
    b.copy(input, Place::Client(own));
    if joined.is_empty() {
        return;
    }
    b.wait_all();
    for (all, ranks) in joined {
        for (place, rank) in ranks.iter().enumerate() {
            let part = slice(all, place * own.bytes, own.bytes);
            b.copy(part, Place::Client(outputs.of(*rank)));
        }
    }
}

/// On another machine than the root's: the first rank collects what its machine has.
fn join(b: &mut Builder, scene: Scene<'_>, input: Place, root: usize) {
    let home = scene.at_home();
    if home.me > 0 {
        return b.send(home.at(0), input);
    }
    let length = bytes(input);
    let all = b.scratch(length * home.size);
    for number in home.senders() {
        b.recv(home.at(number), slice(all, number * length, length));
    }
    b.copy(input, slice(all, 0, length));
    b.wait_all();
    b.send(root, all);
}

//! All-to-all: every pair's part straight across, all posted at once.
//!
//! A pair with nothing to say sends nothing: both of its ranks know, and no rank knows more than
//! its own pairs. Must not know how messages travel.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::Builder;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, inputs: &Regions, outputs: &Regions) {
    let inputs = apart(b, scene, inputs, outputs);
    for rank in scene.senders() {
        let output = outputs.of(rank);
        if output.bytes > 0 {
            b.recv(scene.at(rank), Place::Client(output));
        }
    }
    for rank in scene.receivers() {
        if super::builder::bytes(inputs[rank]) > 0 {
            b.send(scene.at(rank), inputs[rank]);
        }
    }
    b.copy(inputs[scene.me], Place::Client(outputs.of(scene.me)));
}

/// The inputs, copied aside where they share memory with outputs of other ranks.
fn apart(b: &mut Builder, scene: Scene<'_>, inputs: &Regions, outputs: &Regions) -> Vec<Place> {
    let Scene { me, size, .. } = scene;
    // Usually nothing is shared, and one look at the hull of the outputs shows it.
    let outputs: Vec<Region> = (0..size).map(|rank| outputs.of(rank)).collect();
    let hull = hull(&outputs);
    let apart = |rank: usize| {
        let input = inputs.of(rank);
        if input.address >= hull.address + hull.bytes || input.address + input.bytes <= hull.address
        {
            return Place::Client(input);
        }
        let own = if rank == me {
            outputs[me]
        } else {
            Region::EMPTY
        };
        b.apart(input, own, outputs.iter().copied())
    };
    (0..size).map(apart).collect()
}

/// The smallest region that holds all of `regions`.
fn hull(regions: &[Region]) -> Region {
    let used = || regions.iter().filter(|region| region.bytes > 0);
    let start = used().map(|region| region.address).min().unwrap_or(0);
    let end = used()
        .map(|region| region.address + region.bytes)
        .max()
        .unwrap_or(0);
    Region {
        address: start,
        bytes: end - start,
    }
}

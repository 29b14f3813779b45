//! Reduce-scatter: each rank's slice straight to it, in pieces.
//!
//! Where ranks share machines, each machine combines its inputs first, a rank those for itself and
//! for its partners on other machines, and sends them what it has for them. Must not know how
//! messages travel.

use ferrocomm_core::call::{Region, Regions};
use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::pipeline::{self, Finished};
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    inputs: &Regions,
    output: Region,
    reduction: Reduction,
) {
    if inputs.bytes() == 0 {
        return super::all_gather::exchange_nothing(b, scene);
    }
    // The output may be the own input; any other input in it would be overwritten before it left.
    let apart = |b: &mut Builder, rank: usize| {
        let input = inputs.of(rank);
        if rank == scene.me {
            b.apart(input, output, [])
        } else {
            b.apart(input, Region::EMPTY, [output])
        }
    };
    let inputs: Vec<Place> = (0..scene.size).map(|rank| apart(b, rank)).collect();
    if scene.has_levels() {
        return by_machine(b, scene, &inputs, Place::Client(output), reduction);
    }
    let finished = Finished::Keep(Place::Client(output));
    pipeline::build(b, scene, reduction, inputs, finished);
}

/// Where a rank has nothing to combine.
const EMPTY: Place = Place::Client(Region::EMPTY);

fn by_machine(
    b: &mut Builder,
    scene: Scene<'_>,
    inputs: &[Place],
    output: Place,
    reduction: Reduction,
) {
    let topology = scene.topology;
    let (me, machine) = (scene.rank(), scene.machine());
    let (width_in, width) = reduction.at(Stage::First).widths();
    let length = |place: Place| bytes(place) / width_in * width;
    // By machine, what it has for this rank.
    let mut partials = vec![EMPTY; topology.machines()];
    for (other, partial) in partials.iter_mut().enumerate() {
        if other != machine && bytes(output) > 0 {
            *partial = b.scratch(length(output));
            b.recv(topology.partner(me, other), *partial);
        }
    }
    for targets in batches(scene, inputs) {
        let combined = combine(b, scene, inputs, &targets, reduction);
        let mut start = 0;
        for &target in &targets[scene.at_home().me] {
            let part = slice(combined, start, length(inputs[target]));
            start += bytes(part);
            if target == me {
                partials[machine] = part;
            } else if bytes(part) > 0 {
                b.send(target, part);
            }
        }
    }
    b.wait_all();
    b.reduce(reduction.at(Stage::Last), &partials, output);
}

/// Which ranks' slices each rank of this machine combines, by rank: all at once when they are small,
/// else one each at a time.
fn batches(scene: Scene<'_>, inputs: &[Place]) -> Vec<Vec<Vec<usize>>> {
    let topology = scene.topology;
    let ranks = topology.ranks(scene.machine());
    let total: usize = inputs.iter().map(|input| bytes(*input)).sum();
    let all: Vec<Vec<usize>> = ranks
        .iter()
        .map(|rank| {
            let machines = 0..topology.machines();
            machines
                .flat_map(|machine| topology.dealt_with(*rank, machine))
                .collect()
        })
        .collect();
    if total <= scene.limits.one_shot {
        return vec![all];
    }
    let turns = all.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |turn: usize| {
        let one = |targets: &Vec<usize>| targets.get(turn).copied().into_iter().collect();
        all.iter().map(one).collect()
    };
    (0..turns).map(turn).collect()
}

/// Combines this machine's inputs for the ranks of one batch; those of this rank, one after another.
fn combine(
    b: &mut Builder,
    scene: Scene<'_>,
    inputs: &[Place],
    targets: &[Vec<usize>],
    reduction: Reduction,
) -> Place {
    let home = scene.at_home();
    let slices: Vec<Place> = targets
        .iter()
        .map(|targets| together(b, inputs, targets))
        .collect();
    if home.size == 1 && reduction.is_partial() {
        return slices[0];
    }
    let first = reduction.at(Stage::First);
    let (width_in, width) = first.widths();
    let work = b.scratch(bytes(slices[home.me]) / width_in * width);
    pipeline::build(b, home, first, slices, Finished::Keep(work));
    work
}

/// The inputs for `targets`, one after another.
fn together(b: &mut Builder, inputs: &[Place], targets: &[usize]) -> Place {
    match targets {
        [] => EMPTY,
        [alone] => inputs[*alone],
        _ => {
            let packed = b.scratch(targets.iter().map(|target| bytes(inputs[*target])).sum());
            let mut start = 0;
            for target in targets {
                let part = slice(packed, start, bytes(inputs[*target]));
                b.copy(inputs[*target], part);
                start += bytes(part);
            }
            packed
        }
    }
}

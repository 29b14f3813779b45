//! Reduce: everything to the root when small, reduced slices gathered there when large.
//!
//! Between machines: when small, one rank of each combines what it has and sends that to the root;
//! when large, each column combines its slice from machine to machine, to the root's at last. Must
//! not know how messages travel.

use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::{Reduction, Stage};

use super::builder::{Builder, bytes, slice};
use super::pipeline::{self, Finished};
use super::slices::slices;
use super::{Scene, chain};
use crate::program::Place;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Region,
    output: Option<Region>,
    reduction: Reduction,
    root: usize,
) {
    let length = input.bytes;
    let input = match output {
        Some(output) => b.apart(input, output, []),
        None => Place::Client(input),
    };
    let output = output.map(Place::Client);
    if scene.has_levels() {
        return if length <= scene.limits.one_shot {
            by_leaders(b, scene, input, output, reduction, root)
        } else {
            chain::build(b, scene, input, output, reduction, root)
        };
    }
    if scene.size == 1 || length <= scene.limits.one_shot {
        return match output {
            Some(output) => to_root(b, scene, input, output, reduction),
            None => b.send(scene.at(root), input),
        };
    }
    let cuts = slices(length, scene.dtype.size(), scene.size);
    let cut = |place| {
        cuts.iter()
            .map(|range| slice(place, range.start, range.len()))
            .collect()
    };
    let places = output.map_or_else(Vec::new, cut);
    pipeline::build(
        b,
        scene,
        reduction,
        cut(input),
        Finished::Gather { root, places },
    );
}

/// The root's side of a small reduce.
fn to_root(b: &mut Builder, scene: Scene<'_>, input: Place, output: Place, reduction: Reduction) {
    let length = bytes(output);
    let mut operands = vec![input; scene.size];
    for rank in scene.senders() {
        operands[rank] = b.scratch(length);
        b.recv(scene.at(rank), operands[rank]);
    }
    b.wait(0..b.mark());
    b.reduce(reduction, &operands, output);
}

/// One rank of each machine combines what the machine has; the root combines that.
fn by_leaders(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Place,
    output: Option<Place>,
    reduction: Reduction,
    root: usize,
) {
    let home = scene.at_home();
    let leaders = scene.topology.leaders(root);
    let leader = leaders[scene.machine()];
    if leader != scene.rank() {
        return b.send(leader, input);
    }
    let mut inputs = vec![input; home.size];
    for number in home.senders() {
        inputs[number] = b.scratch(bytes(input));
        b.recv(home.at(number), inputs[number]);
    }
    let first = reduction.at(Stage::First);
    let (width_in, width) = first.widths();
    let length = bytes(input) / width_in * width;
    let partial = b.scratch(length);
    let Some(output) = output else {
        b.wait_all();
        b.reduce(first, &inputs, partial);
        return b.send(root, partial);
    };
    let mut partials = vec![partial; leaders.len()];
    for (machine, leader) in leaders.iter().enumerate() {
        if *leader != root {
            partials[machine] = b.scratch(length);
            b.recv(*leader, partials[machine]);
        }
    }
    b.wait_all();
    b.reduce(first, &inputs, partial);
    b.reduce(reduction.at(Stage::Last), &partials, output);
}

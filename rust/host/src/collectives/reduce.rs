//! Reduce: everything to the root when small, reduced slices gathered there when large.

use ferrocomm_core::call::Region;
use ferrocomm_core::reduction::Reduction;

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::pipeline::{self, Finished};
use super::slices::slices;
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
    if scene.size == 1 || length <= scene.limits.one_shot {
        return match output {
            Some(output) => to_root(b, scene, input, output, reduction),
            None => b.send(root, 0, input),
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
        b.recv(rank, 0, operands[rank]);
    }
    b.wait(0..b.mark());
    b.reduce(reduction, &operands, output);
}

//! All-reduce: one exchange when small, reduced slices handed to everyone when large.

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
    output: Region,
    reduction: Reduction,
) {
    let input = b.apart(input, output, []);
    let output = Place::Client(output);
    let length = bytes(output);
    if scene.size == 1 || length <= scene.limits.one_shot {
        return one_shot(b, scene, input, output, reduction);
    }
    let cuts = slices(length, scene.dtype.size(), scene.size);
    let cut = |place| {
        cuts.iter()
            .map(|range| slice(place, range.start, range.len()))
            .collect()
    };
    pipeline::build(
        b,
        scene,
        reduction,
        cut(input),
        Finished::Spread(cut(output)),
    );
}

/// Everyone sends all it has to everyone. Also of zero bytes, so that ranks whose lengths differ
/// notice.
fn one_shot(b: &mut Builder, scene: Scene<'_>, input: Place, output: Place, reduction: Reduction) {
    let length = bytes(output);
    let mut operands = vec![input; scene.size];
    for rank in scene.senders() {
        operands[rank] = b.scratch(length);
        b.recv(rank, 0, operands[rank]);
    }
    let received = b.mark();
    for rank in scene.receivers() {
        b.send(rank, 0, input);
    }
    // In place, the result overwrites what the sends read.
    b.wait(0..if input == output { b.mark() } else { received });
    b.reduce(reduction, &operands, output);
}

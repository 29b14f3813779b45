//! Reduce-scatter: each rank's slice straight to it, in pieces.

use ferrocomm_core::call::{Region, Regions};
use ferrocomm_core::reduction::Reduction;

use super::Scene;
use super::builder::Builder;
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
    let inputs = (0..scene.size).map(|rank| apart(b, rank)).collect();
    let finished = Finished::Keep(Place::Client(output));
    pipeline::build(b, scene, reduction, inputs, finished);
}

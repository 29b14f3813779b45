//! Recursive halving and doubling: each round a machine gives half of what it still combines to one
//! at twice the distance, then results go back the same way. The near exchange comes first, so that
//! the farthest carry the least. Must not know how messages travel.

use std::ops::Range;

use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::doubling::Fold;
use super::lane::Lane;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, lanes: &[Lane], reduction: Reduction) {
    let Some((fold, mut current)) = Fold::begin(b, scene, lanes, reduction) else {
        return;
    };
    let (width, width_out) = reduction.at(Stage::Last).widths();
    let elements: Vec<usize> = current.iter().map(|place| bytes(*place) / width).collect();
    for bit in fold.bits() {
        let last = bit * 2 == fold.power;
        let stage = if last { Stage::Last } else { Stage::Middle };
        let partner = fold.partner(bit);
        let before = b.mark();
        let received: Vec<Place> = lanes
            .iter()
            .zip(current.iter().zip(&elements))
            .map(|(lane, (current, elements))| {
                let [mine, theirs] = fold.halves(*elements, bit);
                let received = b.scratch(mine.len() * width);
                lane.recv(b, scene, partner, received);
                lane.send(b, scene, partner, part(*current, &theirs, width));
                received
            })
            .collect();
        b.wait(before..b.mark());
        for (index, lane) in lanes.iter().enumerate() {
            let [mine, _] = fold.halves(elements[index], bit);
            let own = part(current[index], &mine, width);
            let into = if last {
                part(lane.output, &mine, width_out)
            } else {
                part(lane.work, &mine, width)
            };
            let operands = fold.ordered(bit, own, received[index]);
            b.reduce(reduction.at(stage), &operands, into);
            current[index] = lane.work;
        }
    }
    for bit in fold.bits().rev() {
        let partner = fold.partner(bit);
        let before = b.mark();
        for (lane, elements) in lanes.iter().zip(&elements) {
            let [mine, theirs] = fold.halves(*elements, bit);
            lane.recv(b, scene, partner, part(lane.output, &theirs, width_out));
            lane.send(b, scene, partner, part(lane.output, &mine, width_out));
        }
        b.wait(before..b.mark());
    }
    fold.end(b, scene, lanes);
}

fn part(place: Place, range: &Range<usize>, width: usize) -> Place {
    slice(place, range.start * width, range.len() * width)
}

impl Fold {
    /// Of `elements`, what this machine and its partner at this distance go on with.
    fn halves(&self, elements: usize, bit: usize) -> [Range<usize>; 2] {
        let mut whole = 0..elements;
        let mut distance = 1;
        loop {
            let middle = whole.start + whole.len() / 2;
            let (lower, upper) = (whole.start..middle, middle..whole.end);
            let [mine, theirs] = if self.is_lower(distance) {
                [lower, upper]
            } else {
                [upper, lower]
            };
            if distance == bit {
                return [mine, theirs];
            }
            whole = mine;
            distance *= 2;
        }
    }
}

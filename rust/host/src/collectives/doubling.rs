//! Recursive doubling: each round a machine exchanges all it has with the one at twice the distance,
//! and knows twice as many. Beyond a power of two, neighbours first become one. Must not know how
//! messages travel.

use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, bytes};
use super::lane::Lane;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, lanes: &[Lane], reduction: Reduction) {
    let Some((fold, mut current)) = Fold::begin(b, scene, lanes, reduction) else {
        return;
    };
    for bit in fold.bits() {
        let partner = fold.partner(bit);
        let before = b.mark();
        let received: Vec<Place> = lanes
            .iter()
            .zip(&current)
            .map(|(lane, current)| {
                let received = b.scratch(bytes(*current));
                lane.recv(b, scene, partner, received);
                lane.send(b, scene, partner, *current);
                received
            })
            .collect();
        b.wait(before..b.mark());
        let last = bit * 2 == fold.power;
        let stage = if last { Stage::Last } else { Stage::Middle };
        for ((lane, current), received) in lanes.iter().zip(&mut current).zip(received) {
            let into = if last { lane.output } else { lane.work };
            let operands = fold.ordered(bit, *current, received);
            b.reduce(reduction.at(stage), &operands, into);
            *current = into;
        }
    }
    fold.end(b, scene, lanes);
}

/// Machines as a power of two: of the first ones, pairs of neighbours count as one.
pub(super) struct Fold {
    /// the number of pairs
    pairs: usize,
    /// as many take part
    pub(super) power: usize,
    /// number of this one among those that take part
    number: usize,
}

impl Fold {
    /// Lets the second of each pair give its partials to the first. What each lane has then; `None`
    /// on the second, which has its results when this returns.
    pub(super) fn begin(
        b: &mut Builder,
        scene: Scene<'_>,
        lanes: &[Lane],
        reduction: Reduction,
    ) -> Option<(Self, Vec<Place>)> {
        let machines = scene.topology.machines();
        let home = scene.machine();
        let power = 1 << machines.ilog2();
        let pairs = machines - power;
        let before = b.mark();
        if home < 2 * pairs && home % 2 == 1 {
            for lane in lanes {
                lane.send(b, scene, home - 1, lane.partial);
            }
            b.wait(before..b.mark());
            for lane in lanes {
                lane.recv(b, scene, home - 1, lane.output);
            }
            b.wait(before..b.mark());
            return None;
        }
        let mut current: Vec<Place> = lanes.iter().map(|lane| lane.partial).collect();
        if home < 2 * pairs {
            let received: Vec<Place> = lanes
                .iter()
                .map(|lane| {
                    let received = b.scratch(bytes(lane.partial));
                    lane.recv(b, scene, home + 1, received);
                    received
                })
                .collect();
            b.wait(before..b.mark());
            for ((lane, current), received) in lanes.iter().zip(&mut current).zip(received) {
                b.reduce(
                    reduction.at(Stage::Middle),
                    &[*current, received],
                    lane.work,
                );
                *current = lane.work;
            }
        }
        let number = if home < 2 * pairs {
            home / 2
        } else {
            home - pairs
        };
        let fold = Self {
            pairs,
            power,
            number,
        };
        Some((fold, current))
    }

    /// Lets the first of each pair give the results to the second.
    pub(super) fn end(&self, b: &mut Builder, scene: Scene<'_>, lanes: &[Lane]) {
        if self.number < self.pairs {
            for lane in lanes {
                lane.send(b, scene, scene.machine() + 1, lane.output);
            }
        }
    }

    /// Distances, the near ones first.
    pub(super) fn bits(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (0..self.power.ilog2()).map(|exponent| 1 << exponent)
    }

    /// The machine at this distance.
    pub(super) fn partner(&self, bit: usize) -> usize {
        let number = self.number ^ bit;
        if number < self.pairs {
            2 * number
        } else {
            number + self.pairs
        }
    }

    /// Whether this machine stands before the one at this distance.
    pub(super) fn is_lower(&self, bit: usize) -> bool {
        self.number & bit == 0
    }

    /// Own and received, in the order of machines.
    pub(super) fn ordered(&self, bit: usize, own: Place, received: Place) -> [Place; 2] {
        if self.is_lower(bit) {
            [own, received]
        } else {
            [received, own]
        }
    }
}

//! What machines combine with one another: partials, each with the ranks that carry it.
//!
//! In every algorithm here operands stand in the order of machines, on all ranks alike, so that all
//! hold the same bits. Must not know how partials come about or who needs the results.

use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::pipeline::{self, Finished};
use super::slices::slices;
use super::{doubling, halving, ring};
use crate::program::Place;

/// Who exchanges with whom.
#[derive(Clone, Copy)]
pub(super) enum Reach {
    /// one rank per machine: those in this column
    Column(usize),
    /// All ranks hold the partial of their machine. Each takes from one rank of every other machine,
    /// and gives to those that take from it.
    Machine,
}

/// A partial on its way to a result.
pub(super) struct Lane {
    pub(super) reach: Reach,
    /// what this machine has combined; left alone where it is not `work`
    pub(super) partial: Place,
    /// Memory for partials, apart from `partial` or the same. An element of `partial` is not read
    /// any more once the same element of `work` is written.
    pub(super) work: Place,
    /// where the result goes, apart from `partial` and `work` or the same
    pub(super) output: Place,
}

impl Lane {
    /// Starts to send to `machine`.
    pub(super) fn send(&self, b: &mut Builder, scene: Scene<'_>, machine: usize, from: Place) {
        match self.reach {
            Reach::Column(column) => b.send(scene.topology.rank_in(machine, column), from),
            Reach::Machine => {
                for rank in scene.topology.dealt_with(scene.rank(), machine) {
                    b.send(rank, from);
                }
            }
        }
    }

    /// Starts to receive from `machine`.
    pub(super) fn recv(&self, b: &mut Builder, scene: Scene<'_>, machine: usize, into: Place) {
        let from = match self.reach {
            Reach::Column(column) => scene.topology.rank_in(machine, column),
            Reach::Machine => scene.topology.partner(scene.rank(), machine),
        };
        b.recv(from, into);
    }
}

/// Combines the partials of all machines, of which none is longer than `longest` bytes in any
/// column; every rank gets the results of its lanes.
pub(super) fn all_reduce(
    b: &mut Builder,
    scene: Scene<'_>,
    lanes: &[Lane],
    longest: usize,
    reduction: Reduction,
) {
    let few = scene.topology.machines() <= scene.limits.direct;
    let small = longest <= scene.limits.one_shot;
    match (few, small) {
        (true, true) => direct(b, scene, lanes, reduction),
        (true, false) => pieces(b, scene, lanes, reduction),
        (false, true) => doubling::build(b, scene, lanes, reduction),
        (false, false) if longest < scene.limits.ring => halving::build(b, scene, lanes, reduction),
        (false, false) => {
            for lane in lanes {
                ring::build(b, scene, lane, reduction);
            }
        }
    }
}

/// Every machine's partial to every other.
fn direct(b: &mut Builder, scene: Scene<'_>, lanes: &[Lane], reduction: Reduction) {
    let home = scene.machine();
    let machines = scene.topology.machines();
    let mut operands = Vec::new();
    let before = b.mark();
    for lane in lanes {
        let mut partials = vec![lane.partial; machines];
        for machine in (1..machines).map(|step| (home + machines - step) % machines) {
            partials[machine] = b.scratch(bytes(lane.partial));
            lane.recv(b, scene, machine, partials[machine]);
        }
        for machine in (1..machines).map(|step| (home + step) % machines) {
            lane.send(b, scene, machine, lane.partial);
        }
        operands.push(partials);
    }
    b.wait(before..b.mark());
    for (lane, partials) in lanes.iter().zip(operands) {
        b.reduce(reduction.at(Stage::Last), &partials, lane.output);
    }
}

/// Each machine combines a share of each lane, in pieces, and hands it out.
fn pieces(b: &mut Builder, scene: Scene<'_>, lanes: &[Lane], reduction: Reduction) {
    let last = reduction.at(Stage::Last);
    for lane in lanes {
        let Reach::Column(column) = lane.reach else {
            // Those are small.
            continue;
        };
        let machines = scene.topology.machines();
        let ranks: Vec<usize> = (0..machines)
            .map(|machine| scene.topology.rank_in(machine, column))
            .collect();
        let shares = Shares::of(lane, machines, last);
        let cut = |place, width| {
            (0..machines)
                .map(|machine| shares.slice(place, machine, width))
                .collect()
        };
        let (width_in, width_out) = last.widths();
        let before = b.mark();
        pipeline::build(
            b,
            scene.among(&ranks),
            last,
            cut(lane.partial, width_in),
            Finished::Spread(cut(lane.output, width_out)),
        );
        b.wait(before..b.mark());
    }
}

/// A lane cut into one share per machine.
pub(super) struct Shares(Vec<std::ops::Range<usize>>);

impl Shares {
    /// `last` is the stage that leaves `lane`'s output.
    pub(super) fn of(lane: &Lane, machines: usize, last: Reduction) -> Self {
        let width = last.widths().1;
        let elements = |range: std::ops::Range<usize>| range.start / width..range.end / width;
        let cuts = slices(bytes(lane.output), width, machines);
        Self(cuts.into_iter().map(elements).collect())
    }

    /// Elements of a share.
    pub(super) fn elements(&self, machine: usize) -> usize {
        self.0[machine].len()
    }

    /// Share of `place`, which has elements of `width` bytes.
    pub(super) fn slice(&self, place: Place, machine: usize, width: usize) -> Place {
        let share = &self.0[machine];
        slice(place, share.start * width, share.len() * width)
    }
}

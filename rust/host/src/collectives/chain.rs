//! A large reduce between machines: each rank combines a slice of what its machine has, and each
//! column adds up its slices from machine to machine, piece by piece, up to the root's machine, whose
//! ranks give the results to the root. Must not know how messages travel.

use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, bytes, slice};
use super::pipeline::{self, Finished};
use super::slices::slices;
use crate::program::Place;

/// Pieces whose receives are posted ahead.
const AHEAD: usize = 4;

pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    input: Place,
    output: Option<Place>,
    reduction: Reduction,
    root: usize,
) {
    let topology = scene.topology;
    let home = scene.at_home();
    let (width, width_out) = reduction.at(Stage::Last).widths();
    let cuts = slices(bytes(input), width_out, topology.columns());
    let range = |place: usize| {
        let columns = topology.columns_of(scene.machine(), place);
        cuts[columns.start].start..cuts[columns.end - 1].end
    };
    let own = range(home.me);
    let inputs = (0..home.size)
        .map(|place| slice(input, range(place).start, range(place).len()))
        .collect();
    let partial = b.scratch(own.len() / width_out * width);
    pipeline::build(
        b,
        home,
        reduction.at(Stage::First),
        inputs,
        Finished::Keep(partial),
    );
    if let Some(output) = output {
        collect(b, scene, &cuts, output, width_out);
    }
    for column in topology.columns_of(scene.machine(), home.me) {
        let cut = &cuts[column];
        let part = |place: Place, start: usize, width: usize| {
            slice(
                place,
                start / width_out * width,
                cut.len() / width_out * width,
            )
        };
        let link = Link {
            scene,
            reduction,
            root,
            column,
            partial: part(partial, cut.start - own.start, width),
            output: output.map(|output| part(output, cut.start, width_out)),
        };
        link.build(b);
    }
}

/// Posts the root's receives of what the other ranks of its machine finish.
fn collect(
    b: &mut Builder,
    scene: Scene<'_>,
    cuts: &[std::ops::Range<usize>],
    output: Place,
    width_out: usize,
) {
    for (column, cut) in cuts.iter().enumerate() {
        let owner = scene.topology.rank_in(scene.machine(), column);
        if owner != scene.rank() {
            for (start, elements) in pieces(scene, cut.len() / width_out, width_out) {
                let start = cut.start + start * width_out;
                b.recv(owner, slice(output, start, elements * width_out));
            }
        }
    }
}

/// Start and length of the pieces of a slice, in elements.
fn pieces(scene: Scene<'_>, elements: usize, width: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece = scene.piece(elements * width, width) / width;
    (0..elements)
        .step_by(piece)
        .map(move |start| (start, piece.min(elements - start)))
}

/// This rank's part in one column.
struct Link<'a> {
    scene: Scene<'a>,
    reduction: Reduction,
    root: usize,
    column: usize,
    /// this machine's
    partial: Place,
    /// on the root
    output: Option<Place>,
}

impl Link<'_> {
    fn build(&self, b: &mut Builder) {
        let topology = self.scene.topology;
        let (machine, machines) = (self.scene.machine(), topology.machines());
        // The chain begins behind the root's machine and ends on it.
        let end = topology.seat(self.root).0;
        let (width, width_out) = self.reduction.at(Stage::Last).widths();
        let all: Vec<(usize, usize)> =
            pieces(self.scene, bytes(self.partial) / width, width_out).collect();
        let next = topology.rank_in((machine + 1) % machines, self.column);
        let before = topology.rank_in((machine + machines - 1) % machines, self.column);
        let part = |place: Place, index: usize, width: usize| {
            let (start, elements) = all[index];
            slice(place, start * width, elements * width)
        };
        if machine == (end + 1) % machines {
            for index in 0..all.len() {
                b.send(next, part(self.partial, index, width));
            }
            return;
        }
        let longest = all.first().map_or(0, |(_, elements)| *elements);
        let slots: Vec<Place> = (0..AHEAD.min(all.len()))
            .map(|_| b.scratch(longest * width))
            .collect();
        let arriving = |index: usize| slice(slots[index % AHEAD], 0, all[index].1 * width);
        let results = b.scratch(if machine == end && self.output.is_none() {
            bytes(self.partial) / width * width_out
        } else {
            0
        });
        let mut received = Vec::new();
        for index in 0..slots.len() {
            received.push(b.mark());
            b.recv(before, arriving(index));
        }
        for index in 0..all.len() {
            b.wait(received[index]..received[index] + 1);
            let own = part(self.partial, index, width);
            let operands = [arriving(index), own];
            if machine != end {
                b.reduce(self.reduction.at(Stage::Middle), &operands, own);
                b.send(next, own);
            } else {
                let into = part(self.output.unwrap_or(results), index, width_out);
                b.reduce(self.reduction.at(Stage::Last), &operands, into);
                if self.output.is_none() {
                    b.send(self.root, into);
                }
            }
            if index + AHEAD < all.len() {
                received.push(b.mark());
                b.recv(before, arriving(index + AHEAD));
            }
        }
    }
}

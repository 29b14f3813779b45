//! Reduction of slices among some ranks: slice `j` of each one's input goes to the `j`th, which combines them in
//! rank order, piece by piece, and hands on what is finished.
//!
//! While piece `k` is combined piece `k + 1` is on its way, in the other half of the scratch memory.
//! On every pair of ranks, messages are started and expected in one order (piece `k + 1` before what
//! was finished of piece `k`), and nobody waits for a message before having posted all receives that
//! come before it; so links that deliver in order need no buffer for what nobody expects yet. Must
//! not know how messages travel.

use std::ops::Range;

use ferrocomm_core::reduction::Reduction;

use super::Scene;
use super::builder::{Builder, bytes, slice};
use crate::program::Place;

/// What becomes of finished slices.
pub(super) enum Finished {
    /// Each rank keeps its own, here.
    Keep(Place),
    /// Every rank gets all of them, here, one place per rank.
    Spread(Vec<Place>),
    /// The root gets all of them, here; the others keep nothing.
    Gather {
        /// the rank that gets them
        root: usize,
        /// one place per rank, on the root; empty elsewhere
        places: Vec<Place>,
    },
}

/// A reduction in slices.
struct Pipeline<'a> {
    scene: Scene<'a>,
    reduction: Reduction,
    /// what this rank contributes to each rank's slice
    inputs: Vec<Place>,
    finished: Finished,
    /// elements of a piece
    piece: usize,
    /// bytes of an element of an input and of a result
    widths: (usize, usize),
}

/// Writes the steps of a reduction in slices; `inputs` is what this rank contributes to each rank's
/// slice.
pub(super) fn build(
    b: &mut Builder,
    scene: Scene<'_>,
    reduction: Reduction,
    inputs: Vec<Place>,
    finished: Finished,
) {
    let longest = inputs.iter().map(|input| bytes(*input)).max().unwrap_or(0);
    let widths = reduction.widths();
    Pipeline {
        scene,
        reduction,
        inputs,
        finished,
        piece: scene.piece(longest, widths.0) / widths.0,
        widths,
    }
    .build(b);
}

/// The transfers of one round, by number.
struct Round {
    received: Range<u32>,
    sent: Range<u32>,
}

impl Pipeline<'_> {
    fn build(&self, b: &mut Builder) {
        let Scene { size, .. } = self.scene;
        let rounds = (0..size).map(|rank| self.pieces(rank)).max().unwrap_or(0);
        let halves = self.halves(b);
        let slots = self.result_slots(b);
        // Numbers of the transfers that hand on each piece of this rank's slice.
        let mut handed: Vec<Range<u32>> = Vec::new();
        let mut next = self.start(b, 0, &halves);
        for round in 0..rounds {
            let current = next;
            next = self.start(b, round + 1, &halves);
            b.wait(current.received);
            if round < self.pieces(self.scene.me) {
                // A result slot is free once what stood in it has left.
                if let Some(earlier) = round.checked_sub(2).filter(|_| !slots.is_empty()) {
                    b.wait(handed[earlier].clone());
                }
                let result = self.reduce(b, round, &halves, &slots);
                handed.push(self.hand_on(b, result));
            }
            // Results may land where the input was, which must have left before.
            b.wait(current.sent);
            self.expect_finished(b, round);
        }
    }

    /// Number of pieces of the slice of `rank`.
    fn pieces(&self, rank: usize) -> usize {
        self.elements(rank).div_ceil(self.piece)
    }

    /// Elements of the slice of `rank`.
    fn elements(&self, rank: usize) -> usize {
        bytes(self.inputs[rank]) / self.widths.0
    }

    /// Piece `round` of the slice of `rank`, which is `place` with elements of `width` bytes.
    fn piece(&self, place: Place, rank: usize, round: usize, width: usize) -> Place {
        let start = round * self.piece;
        let elements = self.piece.min(self.elements(rank) - start);
        slice(place, start * width, elements * width)
    }

    /// Scratch memory in which the pieces of the other ranks arrive: two halves, each with a place
    /// per rank (the own one unused).
    fn halves(&self, b: &mut Builder) -> Vec<Vec<Place>> {
        let Scene { me, size, .. } = self.scene;
        let length = self.piece.min(self.elements(me)) * self.widths.0;
        let half = |b: &mut Builder| {
            (0..size)
                .map(|rank| b.scratch(if rank == me { 0 } else { length }))
                .collect()
        };
        (0..self.pieces(me).min(2)).map(|_| half(b)).collect()
    }

    /// Scratch memory for results that stay nowhere on this rank.
    fn result_slots(&self, b: &mut Builder) -> Vec<Place> {
        let Scene { me, .. } = self.scene;
        match &self.finished {
            Finished::Gather { root, .. } if *root != me => {
                let length = self.piece.min(self.elements(me)) * self.widths.1;
                (0..self.pieces(me).min(2))
                    .map(|_| b.scratch(length))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Starts the exchange of piece `round` of every slice that has one.
    fn start(&self, b: &mut Builder, round: usize, halves: &[Vec<Place>]) -> Round {
        let scene = self.scene;
        let me = scene.me;
        let before = b.mark();
        if round < self.pieces(me) {
            let length = bytes(self.piece(self.inputs[me], me, round, self.widths.0));
            for rank in scene.senders() {
                b.recv(scene.at(rank), slice(halves[round % 2][rank], 0, length));
            }
        }
        let between = b.mark();
        for rank in scene.receivers() {
            if round < self.pieces(rank) {
                b.send(
                    scene.at(rank),
                    self.piece(self.inputs[rank], rank, round, self.widths.0),
                );
            }
        }
        Round {
            received: before..between,
            sent: between..b.mark(),
        }
    }

    /// Combines piece `round` of the own slice and says where the result is.
    fn reduce(
        &self,
        b: &mut Builder,
        round: usize,
        halves: &[Vec<Place>],
        slots: &[Place],
    ) -> Place {
        let Scene { me, size, .. } = self.scene;
        let (width_in, width_out) = self.widths;
        let own = self.piece(self.inputs[me], me, round, width_in);
        let result = match &self.finished {
            Finished::Keep(place) => self.piece(*place, me, round, width_out),
            Finished::Spread(places) => self.piece(places[me], me, round, width_out),
            Finished::Gather { root, places } if *root == me => {
                self.piece(places[me], me, round, width_out)
            }
            Finished::Gather { .. } => {
                slice(slots[round % 2], 0, bytes(own) / width_in * width_out)
            }
        };
        let operands: Vec<Place> = (0..size)
            .map(|rank| {
                if rank == me {
                    own
                } else {
                    slice(halves[round % 2][rank], 0, bytes(own))
                }
            })
            .collect();
        b.reduce(self.reduction, &operands, result);
        result
    }

    /// Sends a finished piece of the own slice to whoever gets it.
    fn hand_on(&self, b: &mut Builder, result: Place) -> Range<u32> {
        let (scene, before) = (self.scene, b.mark());
        match &self.finished {
            Finished::Keep(_) => {}
            Finished::Spread(_) => {
                for rank in scene.receivers() {
                    b.send(scene.at(rank), result);
                }
            }
            Finished::Gather { root, .. } if *root == self.scene.me => {}
            Finished::Gather { root, .. } => b.send(scene.at(*root), result),
        }
        before..b.mark()
    }

    /// Posts receives for the finished pieces `round` of the other ranks.
    fn expect_finished(&self, b: &mut Builder, round: usize) {
        let places = match &self.finished {
            Finished::Keep(_) => return,
            Finished::Gather { root, .. } if *root != self.scene.me => return,
            Finished::Spread(places) | Finished::Gather { places, .. } => places,
        };
        let scene = self.scene;
        for rank in scene.senders() {
            if round < self.pieces(rank) {
                b.recv(
                    scene.at(rank),
                    self.piece(places[rank], rank, round, self.widths.1),
                );
            }
        }
    }
}

//! Ring: shares of a lane travel from machine to machine, first gathering each one's part, then as
//! results. Only neighbours talk, and each piece goes on as soon as it is combined.
//!
//! Every machine gets, in order, the messages that the one before it sends: piece `p` of step `t` is
//! number `t * pieces + p`. What it makes of a message is its own message one step later. Must not
//! know how messages travel.

use std::ops::Range;

use ferrocomm_core::reduction::{Reduction, Stage};

use super::Scene;
use super::builder::{Builder, slice};
use super::lane::{Lane, Shares};
use crate::program::Place;

/// Messages whose receives are posted ahead, at most.
const AHEAD: usize = 4;

struct Ring<'a> {
    scene: Scene<'a>,
    lane: &'a Lane,
    reduction: Reduction,
    shares: Shares,
    /// elements of a piece, and how many pieces the longest share has
    piece: usize,
    pieces: usize,
    machines: usize,
    home: usize,
    /// bytes of an element of a partial and of a result
    widths: (usize, usize),
    /// where partials arrive
    slots: Vec<Place>,
    /// by number of the message: its transfer
    sent: Vec<u32>,
    received: Vec<u32>,
}

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, lane: &Lane, reduction: Reduction) {
    let machines = scene.topology.machines();
    let last = reduction.at(Stage::Last);
    let shares = Shares::of(lane, machines, last);
    let longest = (0..machines)
        .map(|machine| shares.elements(machine))
        .max()
        .unwrap_or(0);
    let widths = last.widths();
    let piece = scene.piece(longest * widths.0, widths.0) / widths.0;
    let pieces = longest.div_ceil(piece).max(1);
    // Results are not expected before the messages of a first round have left.
    let slots = (0..AHEAD.min((machines - 1) * pieces))
        .map(|_| b.scratch(piece.min(longest) * widths.0))
        .collect();
    Ring {
        scene,
        lane,
        reduction,
        shares,
        piece,
        pieces,
        machines,
        home: scene.machine(),
        widths,
        slots,
        sent: Vec::new(),
        received: Vec::new(),
    }
    .build(b);
}

impl Ring<'_> {
    fn build(&mut self, b: &mut Builder) {
        let combining = (self.machines - 1) * self.pieces;
        let total = 2 * combining;
        let ahead = self.slots.len();
        for number in 0..ahead {
            self.expect(b, number);
        }
        for number in 0..self.pieces {
            let own = self.part(self.lane.partial, self.home, number, self.widths.0);
            self.send(b, own);
        }
        for number in 0..total {
            b.wait(one(self.received[number]));
            let result = if number < combining {
                self.combine(b, number, number + self.pieces >= combining)
            } else {
                self.arriving(number)
            };
            if number + self.pieces < total {
                self.send(b, result);
            }
            if number + ahead < total {
                self.expect(b, number + ahead);
            }
        }
    }

    /// Adds the own part to what message `number` has brought, and says where it stands.
    fn combine(&self, b: &mut Builder, number: usize, last: bool) -> Place {
        let share = self.share(number);
        let own = self.part(self.lane.partial, share, number, self.widths.0);
        let (stage, into) = if last {
            let output = self.part(self.lane.output, share, number, self.widths.1);
            (Stage::Last, output)
        } else {
            let work = self.part(self.lane.work, share, number, self.widths.0);
            (Stage::Middle, work)
        };
        let operands = [self.arriving(number), own];
        b.reduce(self.reduction.at(stage), &operands, into);
        into
    }

    /// Posts the receive of message `number`.
    fn expect(&mut self, b: &mut Builder, number: usize) {
        // The result may land where a partial was that had to leave first.
        if let Some(earlier) = (number + self.pieces).checked_sub(self.machines * self.pieces) {
            b.wait(one(self.sent[earlier]));
        }
        let into = self.arriving(number);
        self.received.push(b.mark());
        let before = (self.home + self.machines - 1) % self.machines;
        self.lane.recv(b, self.scene, before, into);
    }

    fn send(&mut self, b: &mut Builder, from: Place) {
        self.sent.push(b.mark());
        let next = (self.home + 1) % self.machines;
        self.lane.send(b, self.scene, next, from);
    }

    /// The share that message `number` from the machine before is a piece of.
    fn share(&self, number: usize) -> usize {
        let step = number / self.pieces;
        (self.home + 2 * self.machines - step - 1) % self.machines
    }

    /// Where message `number` arrives.
    fn arriving(&self, number: usize) -> Place {
        let share = self.share(number);
        if number < (self.machines - 1) * self.pieces {
            let length = self.part_elements(share, number) * self.widths.0;
            slice(self.slots[number % self.slots.len()], 0, length)
        } else {
            self.part(self.lane.output, share, number, self.widths.1)
        }
    }

    /// Elements of the piece of `share` that message `number` carries.
    fn part_elements(&self, share: usize, number: usize) -> usize {
        let start = number % self.pieces * self.piece;
        self.piece
            .min(self.shares.elements(share).saturating_sub(start))
    }

    /// The piece of `share` that message `number` carries, in `place`.
    fn part(&self, place: Place, share: usize, number: usize, width: usize) -> Place {
        let whole = self.shares.slice(place, share, width);
        let elements = self.part_elements(share, number);
        let start = number % self.pieces * self.piece;
        slice(
            whole,
            start.min(self.shares.elements(share)) * width,
            elements * width,
        )
    }
}

fn one(transfer: u32) -> Range<u32> {
    transfer..transfer + 1
}

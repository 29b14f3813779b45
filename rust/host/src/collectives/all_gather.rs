//! All-gather: everyone's part straight to everyone.

use ferrocomm_core::call::{Region, Regions};

use super::Scene;
use super::builder::Builder;
use crate::program::Place;

pub(super) fn build(b: &mut Builder, scene: Scene<'_>, input: Region, outputs: &Regions) {
    if outputs.bytes() == 0 {
        return exchange_nothing(b, scene);
    }
    let own = outputs.of(scene.me);
    let input = b.apart(input, own, (0..scene.size).map(|rank| outputs.of(rank)));
    for rank in scene.senders() {
        let output = outputs.of(rank);
        if output.bytes > 0 {
            b.recv(rank, 0, Place::Client(output));
        }
    }
    if own.bytes > 0 {
        for rank in scene.receivers() {
            b.send(rank, 0, input);
        }
    }
    b.copy(input, Place::Client(own));
}

/// The exchange of a collective in which nobody has anything: every pair's empty message shows a
/// rank that thinks otherwise.
pub(super) fn exchange_nothing(b: &mut Builder, scene: Scene<'_>) {
    for rank in scene.senders() {
        b.recv(rank, 0, Place::Client(Region::EMPTY));
    }
    for rank in scene.receivers() {
        b.send(rank, 0, Place::Client(Region::EMPTY));
    }
}
